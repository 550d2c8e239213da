"""A seeded part of the sweep over hard pairs: values, claimed errors and gradients; some truths again, in two ways."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from tests.oracles import sweep_extended
from tests.oracles.sweep import direction_of, load, random_pair, truth
from tests.oracles.sweep_checks import KINDS, Count, check, check_second, is_second_wrong, judge

ENTRIES = load()
RNG = random.Random(20)  # noqa: S311
CHECKED = [(entry, RNG.sample(sorted(KINDS), 1)) for entry in RNG.sample(ENTRIES, 24)]
# mpmath takes up to minutes for a pair; for this one, about a second.
AGAIN = [entry for entry in ENTRIES if entry["index"] == 78]
EXTENDED = RNG.sample(ENTRIES, 12)
# Those of mixtures take minutes.
TWICE = RNG.sample([entry for entry in ENTRIES if entry["sort"] != "mixtures"], 6)


def name(entry: dict[str, Any]) -> str:
    return f"{entry['index']} {entry['sort']}"


@pytest.mark.parametrize(("entry", "kinds"), CHECKED, ids=[name(entry) for entry, _ in CHECKED])
def test_nothing_is_wrong(entry: dict[str, Any], kinds: list[str]) -> None:
    _, faults = check(entry, kinds)
    assert not faults


@pytest.mark.sweep
@pytest.mark.parametrize("entry", AGAIN, ids=name)
def test_truths_come_out_again(entry: dict[str, Any]) -> None:
    rng = random.Random(f"sweep {entry['index']}")  # noqa: S311
    sort, p, q = random_pair(rng)
    direction = direction_of(p, rng) + direction_of(q, rng)
    assert (sort, p, q, direction) == (entry["sort"], entry["p"], entry["q"], entry["direction"])
    found = truth(p, q, direction)
    for what, stored in (("values", entry["values"]), ("derivatives", entry["derivatives"])):
        for kind, x in getattr(found, what).items():
            known = stored[kind]
            assert x == known or (x is not None and math.isclose(x, known, rel_tol=1e-12)), (kind, x, known)


@pytest.mark.heavy
@pytest.mark.skipif(not sweep_extended.IS_EXTENDED, reason="numpy's longdouble is float64 here")
@pytest.mark.parametrize("entry", EXTENDED, ids=name)
def test_extended_precision_agrees_with_mpmath(entry: dict[str, Any]) -> None:
    found = sweep_extended.truth(entry["p"], entry["q"], entry["direction"])
    known = 0
    for kind, value in found.values.items():
        true, derivative = entry["values"][kind], entry["derivatives"][kind]
        if value is None or true is None:
            continue
        known += 1
        assert value == true or abs(value - true) <= found.errors[kind] + 4e-16 * abs(true), kind
        slope = found.derivatives[kind]
        if slope is not None and derivative is not None:
            assert slope == pytest.approx(derivative, rel=1e-6, abs=1e-9), kind
    assert known >= 4


def test_there_are_enough_pairs_of_every_sort() -> None:
    sorts = [entry["sort"] for entry in ENTRIES]
    assert len(ENTRIES) >= 200
    assert sorts.count("mixtures") >= 60
    assert min(sorts.count(sort) for sort in set(sorts)) >= 10


@pytest.mark.sweep
@pytest.mark.skipif(not sweep_extended.IS_EXTENDED, reason="numpy's longdouble is float64 here")
@pytest.mark.parametrize("entry", TWICE, ids=name)
def test_second_derivatives_are_those_of_the_truth(entry: dict[str, Any]) -> None:
    true = sweep_extended.second_derivatives(entry["p"], entry["q"], entry["direction"])
    count, faults = check_second(entry, true)
    assert count.known >= 3
    assert not faults


def test_a_wrong_answer_is_told() -> None:
    assert judge(1.0, 1e-9, None, 1.0, None) == Count()
    assert judge(1.1, 1e-9, None, 1.0, None) == Count(values=1, bounds=1)
    assert judge(1.0 + 1e-8, 1e-9, None, 1.0, None) == Count(bounds=1)
    assert judge(math.nan, 0.0, None, 1.0, None) == Count(values=1)
    assert judge(math.inf, 0.0, None, 1.0, None) == Count(values=1)
    assert judge(1.0, 0.0, None, math.inf, None) == Count(values=1)
    assert judge(1.0 + 1e-10, 1e-11, None, 1.0, None, 1e-10) == Count()
    gradient = torch.tensor([1.0, -0.5])
    assert judge(1.0, 0.0, gradient, 1.0, 0.5) == Count()
    assert judge(1.0, 0.0, gradient, 1.0, 0.501) == Count(gradients=1)
    assert judge(1.0, 0.0, gradient * math.nan, 1.0, 0.5) == Count(gradients=1)
    assert not is_second_wrong(2.0001, 2.0, 0.5)
    assert is_second_wrong(2.001, 2.0, 0.5)
    assert not is_second_wrong(2.001, 2.0, 20.0)
    assert is_second_wrong(math.nan, 2.0, None)
