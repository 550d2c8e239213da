"""Draws that are in both data sets are noticed, said, and never make an interval too narrow; ties are no alarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from kullback import Samples, estimate, kl_estimate, two_sample_test
from kullback.errors import ArgumentValueError
from kullback.testing import assert_close_distributions
from tests.refusals import refused

Draw = Callable[[np.random.Generator], tuple[Any, Any]]


def between(p: Callable[[float], float], q: Callable[[float], float]) -> float:
    return integrate.quad(lambda t: p(t) * np.log(p(t) / q(t)), -9, 11)[0]


def part(t: float) -> float:
    return float(stats.norm.pdf(t, 1))


def whole(t: float) -> float:
    return (part(t) + float(stats.norm.pdf(t))) / 2


PART_TO_WHOLE, WHOLE_TO_PART = between(part, whole), between(whole, part)


def of_part(g: np.random.Generator, n: int = 400) -> Any:
    return g.normal(size=n) + 1


def joined(g: np.random.Generator, *parts: Any) -> Any:
    return g.permutation(np.concatenate(parts))


def in_whole(g: np.random.Generator) -> tuple[Any, Any]:
    p = of_part(g)
    return p, joined(g, p, g.normal(size=400))


def half_in_whole(g: np.random.Generator) -> tuple[Any, Any]:
    p = of_part(g)
    return p, joined(g, p[:200], of_part(g, 200), g.normal(size=400))


def whole_over_part(g: np.random.Generator) -> tuple[Any, Any]:
    q = of_part(g)
    return joined(g, q, g.normal(size=400)), q


def rounded_in_whole(g: np.random.Generator) -> tuple[Any, Any]:
    p = of_part(g).round(2)
    return p, joined(g, p, g.normal(size=400).round(2))


def in_order(g: np.random.Generator) -> tuple[Any, Any]:
    p = of_part(g)
    return p, np.concatenate([p, g.normal(size=400)])


SHARED: dict[str, tuple[Draw, float, int]] = {
    "P's draws are in Q": (in_whole, PART_TO_WHOLE, 400),
    "half of P's draws are in Q": (half_in_whole, PART_TO_WHOLE, 200),
    "Q's draws are in P": (whole_over_part, WHOLE_TO_PART, 400),
    "rounded draws": (rounded_in_whole, PART_TO_WHOLE, 400),
    "in the order of the parts": (in_order, PART_TO_WHOLE, 400),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", SHARED)
def test_intervals_cover_where_draws_are_shared_and_no_gate_passes(name: str) -> None:
    draw, truth, number = SHARED[name]
    g = np.random.default_rng(7)
    covered = 0
    for _ in range(20):
        p, q = map(Samples, draw(g))
        found = kl_estimate(p, q)
        low, high = map(float, found.interval or (0, np.inf))  # too few blocks have no interval
        covered += low <= truth <= high
        said = [note for note in found.notes if "are also in Q" in note]
        assert len(said) == 1
        if name != "half of P's draws are in Q":
            assert said[0].startswith(f"{number} of P's")
        with pytest.raises(AssertionError):
            assert_close_distributions(p, q, below=0.1)
    assert covered >= 18


@pytest.mark.sweep
def test_the_estimate_from_divided_draws_is_close_and_finite() -> None:
    g = np.random.default_rng(3)
    found = [kl_estimate(*map(Samples, in_whole(g))) for _ in range(20)]
    assert np.mean([float(one.value) for one in found]) == pytest.approx(PART_TO_WHOLE, abs=0.02)
    assert sum(float(one.interval[1]) < 1 for one in found if one.interval) >= 15
    assert {one.n for one in found} == {(400, 800)}


@pytest.mark.sweep
def test_other_kinds_weights_clusters_and_methods_see_shared_draws_too() -> None:
    g = np.random.default_rng(0)
    p, q = in_whole(g)
    truth = integrate.quad(lambda t: abs(part(t) - whole(t)) / 2, -9, 11)[0]
    found = estimate(Samples(p), Samples(q), "tv")
    assert found.interval is not None
    assert float(found.interval[0]) <= truth <= float(found.interval[1])
    assert "are also in Q" in found.notes[0]
    weighted = kl_estimate(Samples(p, weights=np.ones(400)), Samples(q))
    assert weighted.value == kl_estimate(Samples(p), Samples(q)).value
    in_groups = kl_estimate(Samples(p, cluster=np.arange(400) // 4), Samples(q))
    assert in_groups.interval is not None
    assert in_groups.interval[0] == 0
    assert in_groups.interval[1].isinf()
    assert "the upper limit is inf" in in_groups.notes[0]
    js = estimate(Samples(p, cluster=np.arange(400) // 4), Samples(q), "js")
    assert js.interval is not None
    assert float(js.interval[1]) == pytest.approx(np.log(2))
    by_classifier = kl_estimate(Samples(p), Samples(q), method="density_ratio")
    assert "are also in Q" in by_classifier.notes[0]
    with refused(ArgumentValueError, got="400 of the 400 draws of p that are also in q"):
        kl_estimate(Samples(p), Samples(q), method="nearest_neighbors")
    effect = two_sample_test(Samples(p), Samples(q), permutations=99).effect
    assert effect is not None
    assert "are also in Q" in effect.notes[0]


def test_the_division_is_the_same_for_all_generators_and_units() -> None:
    x, y = in_whole(np.random.default_rng(1))
    one, other, in_other_units = (
        float(
            kl_estimate(Samples(c * x), Samples(c * y), generator=torch.Generator().manual_seed(seed)).value
        )
        for seed, c in ((1, 1.0), (2, 1.0), (1, 4.0))
    )
    assert one == other == in_other_units


POPULATION = np.random.default_rng(5).lognormal(3, 1, size=3000).round(1)
TIES: dict[str, Draw] = {
    **{
        f"{digits} digits": (
            lambda g, digits=digits: (g.normal(size=300).round(digits), g.normal(size=500).round(digits))
        )
        for digits in range(5)
    },
    **{
        f"{k} values": (lambda g, k=k: (g.integers(0, k, 400) / k, g.integers(0, k, 600) / k))
        for k in (50, 300, 1000, 3000)
    },
    "float32": lambda g: (g.normal(size=10_000).astype("f4"), g.normal(size=10_000).astype("f4")),
    "zeros": lambda g: tuple(
        np.where(g.random(n) < 0.3, 0, g.exponential(size=n)).round(1) for n in (300, 500)
    ),  # pyright: ignore[reportReturnType]
    "integers": lambda g: (g.poisson(20, 500), g.poisson(20, 500)),
    "amounts": lambda g: (g.poisson(900, 500).astype(float), g.poisson(900, 500).astype(float)),
    "other spreads": lambda g: (g.normal(size=400).round(2), (3 * g.normal(size=400)).round(2)),
    "two parts of a population": lambda g: tuple(np.split(g.permutation(POPULATION), [1000])),  # pyright: ignore[reportReturnType]
}


@pytest.mark.sweep
def test_ties_are_no_shared_draws() -> None:
    g = np.random.default_rng(11)
    for name, draw in TIES.items():
        for _ in range(3 if name == "float32" else 12):
            p, q = draw(g)
            found = kl_estimate(Samples(p, independent=True), Samples(q, independent=True))
            assert not any("are also in Q" in note for note in found.notes), name


def test_equal_data_are_said_to_be_the_same() -> None:
    x = Samples(np.random.default_rng(0).normal(size=300))
    assert "P and Q are the same draws." in kl_estimate(x, x).notes
