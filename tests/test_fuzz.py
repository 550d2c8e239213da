"""Damaged files and profiles and hostile expressions end in an answer or in one line; `make fuzz` tries many more."""

from __future__ import annotations

import pytest

from tests import fuzz

pytestmark = pytest.mark.usefixtures("validation")

# Seconds for each kind; seeds are tried in order, so a slow machine tries fewer of the same.
BUDGET = {"files": 6, "profiles": 11, "top-k": 4, "states": 5, "expressions": 9}


@pytest.mark.parametrize(
    ("kind", "least"), [("files", 20), ("profiles", 10), ("top-k", 30), ("states", 30), ("expressions", 8)]
)
def test_no_seed_ends_in_a_traceback(kind, least):
    done, failures = fuzz.run(kind, range(10**6), budget=BUDGET[kind])
    assert failures == []
    assert done >= least


# Seeds that once failed, each by another fault.
@pytest.mark.parametrize(("kind", "seed"), [("files", 551), ("expressions", 4437)])
def test_what_once_failed(kind, seed):
    assert fuzz.run(kind, range(seed, seed + 1)) == (1, [])


def test_the_fuzzer_sees_what_goes_wrong(monkeypatch):
    def broken(*_arguments, **_settings):
        raise IndexError("list index out of range")

    monkeypatch.setattr(fuzz, "read_labels", broken)
    monkeypatch.setattr(fuzz.fuzz_top_k, "open_top_k", broken)
    for kind in ("files", "top-k"):
        _, failures = fuzz.run(kind, range(3))
        assert [seed for seed, _ in failures] == [0, 1, 2]
    monkeypatch.setattr("kullback.dispatch.kl_estimate", broken)
    assert fuzz.damage(b"abc" * 100, fuzz.random.Random(1)) != b"abc" * 100
