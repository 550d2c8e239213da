"""Damaged files and profiles and hostile expressions end in an answer or in one line; `make fuzz` tries many more."""

from __future__ import annotations

import pytest

from tests import fuzz

pytestmark = pytest.mark.usefixtures("validation")

# How many seeds of each kind, whatever the speed of the machine.
SEEDS = {"files": 200, "profiles": 20, "top-k": 600, "states": 80, "expressions": 40}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", SEEDS)
def test_no_seed_ends_in_a_traceback(kind):
    assert fuzz.run(kind, range(SEEDS[kind])) == (SEEDS[kind], [])


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
