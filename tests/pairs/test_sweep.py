"""A seeded part of the sweep over hard pairs: values, claimed errors and gradients of every kind; some truths again."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from tests.oracles.sweep import direction_of, load, random_pair, truth
from tests.oracles.sweep_checks import Count, check, judge

ENTRIES = load()
RNG = random.Random(20)  # noqa: S311
CHECKED = RNG.sample(ENTRIES, 24)
RECOMPUTED = [entry for entry in RNG.sample(ENTRIES, 40) if entry["sort"] in ("unit", "supports")][:3]


@pytest.mark.parametrize("entry", CHECKED, ids=lambda e: f"{e['index']} {e['sort']}")
def test_nothing_is_wrong(entry: dict[str, Any]) -> None:
    _, faults = check(entry)
    assert not faults


@pytest.mark.parametrize("entry", RECOMPUTED, ids=lambda e: f"{e['index']} {e['sort']}")
def test_truths_come_out_again(entry: dict[str, Any]) -> None:
    rng = random.Random(f"sweep {entry['index']}")  # noqa: S311
    sort, p, q = random_pair(rng)
    direction = direction_of(p, rng) + direction_of(q, rng)
    assert (sort, p, q, direction) == (entry["sort"], entry["p"], entry["q"], entry["direction"])
    found = truth(p, q, direction)
    for name, stored in (("values", entry["values"]), ("derivatives", entry["derivatives"])):
        for kind, x in getattr(found, name).items():
            known = stored[kind]
            assert x == known or (x is not None and math.isclose(x, known, rel_tol=1e-12)), (kind, x, known)


def test_there_are_enough_pairs_of_every_sort() -> None:
    sorts = [entry["sort"] for entry in ENTRIES]
    assert len(ENTRIES) >= 200
    assert sorts.count("mixtures") >= 60
    assert min(sorts.count(sort) for sort in set(sorts)) >= 10


def test_a_wrong_answer_is_told() -> None:
    assert judge(1.0, 1e-9, None, 1.0, None) == Count()
    assert judge(1.1, 1e-9, None, 1.0, None) == Count(values=1, bounds=1)
    assert judge(1.0 + 1e-8, 1e-9, None, 1.0, None) == Count(bounds=1)
    assert judge(math.nan, 0.0, None, 1.0, None) == Count(values=1)
    assert judge(math.inf, 0.0, None, 1.0, None) == Count(values=1)
    assert judge(1.0, 0.0, None, math.inf, None) == Count(values=1)
