"""Rounded numbers: those on a common lattice are moved within their rounding, those of few values are categories."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from kullback import Estimate, Samples, kl_estimate
from kullback.estimators import coverage_adjusted, histogram
from kullback.estimators.draws import Draws
from kullback.estimators.lattice import common_step, jittered


def rounded_normal_kl(sd: float, shift: float) -> float:
    """Sum over the integers, whose probabilities are those of the intervals that round to them."""
    k = np.arange(-12 * math.ceil(sd), 12 * math.ceil(sd) + 1)
    p, q = (norm.cdf(k + 0.5, mean, sd) - norm.cdf(k - 0.5, mean, sd) for mean in (0, shift))
    seen = (p > 1e-300) & (q > 1e-300)
    return float((p[seen] * np.log(p[seen] / q[seen])).sum())


def rounded(seed: int, sd: float, shift: float, n: int = 1000) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return np.round(sd * rng.standard_normal(n)), np.round(shift + sd * rng.standard_normal(n))


def estimates(pairs: list[tuple[Any, Any]]) -> list[Estimate]:
    return [
        kl_estimate(Samples(x), Samples(y), generator=torch.Generator().manual_seed(seed))
        for seed, (x, y) in enumerate(pairs)
    ]


@pytest.mark.sweep
@pytest.mark.parametrize("sd", [5.0, 15.0, 50.0, 400.0])
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_intervals_of_rounded_numbers_have_upper_ends_and_hold(sd: float, shift: float) -> None:
    truth = rounded_normal_kl(sd, shift * sd)
    found = estimates([rounded(seed, sd, shift * sd) for seed in range(40)])
    opened = sum(math.isinf(float((one.interval or (0, 0))[1])) for one in found)
    held = sum(
        one.interval is not None and bool(one.interval[0] <= truth <= one.interval[1]) for one in found
    )
    assert opened <= 10  # of continuous draws as many are
    assert held >= 34


def test_prices_are_categories_as_their_texts_are() -> None:
    rng = np.random.default_rng(0)
    prices = np.unique(np.round(np.exp(rng.normal(3, 1.5, 300)), 2))[:150]
    shares = rng.dirichlet(np.full(len(prices), 3.0))
    x, y = (rng.choice(prices, 2000, p=shares) for _ in "pq")
    found, texts = (
        kl_estimate(Samples(side(x)), Samples(side(y))) for side in (np.asarray, lambda z: z.astype(str))
    )
    assert found.value == texts.value
    assert found.interval == texts.interval
    assert found.method == "coverage_adjusted"
    assert "150 unevenly spaced values" in found.notes[0]


@pytest.mark.parametrize(
    ("scale", "offset", "dtype"),
    [
        (1.0, 0.0, float),
        (0.1, 0.0, float),
        (0.1, 0.0, np.float32),
        (0.01, 1e5, float),
        (5 / 9, -160 / 9, float),
    ],
)
def test_the_step_of_a_lattice(scale: float, offset: float, dtype: Any) -> None:
    x, y = ((scale * side + offset).astype(dtype) for side in rounded(0, 20, 0))
    assert common_step(*map(Draws.of, (Samples(x), Samples(y)))) == pytest.approx(scale, rel=1e-3)


def test_a_step_wider_than_no_gap() -> None:
    """Values that are multiples of 2 or of 3 have gaps of 1 and more."""
    k = np.arange(300)
    x = np.repeat(k[(k % 2 == 0) | (k % 3 == 0)].astype(float), 4)
    assert common_step(*map(Draws.of, (Samples(x), Samples(x[::-1].copy())))) == pytest.approx(1.0)


NO_LATTICE = {
    "continuous": (
        np.random.default_rng(0).standard_normal(500),
        np.random.default_rng(1).standard_normal(500),
    ),
    "one side alone": (rounded(0, 20, 0)[0], 20 * np.random.default_rng(1).standard_normal(1000)),
    "a coarser side": (10 * rounded(0, 20, 0)[0], rounded(1, 200, 0, 3000)[1]),
    "few values": rounded(0, 1.0, 0),
    "prices": (np.repeat(np.arange(1.99, 400, 10), 9), np.repeat(np.arange(0.95, 400, 7), 9)),
}


@pytest.mark.parametrize("name", NO_LATTICE)
def test_no_common_lattice(name: str) -> None:
    assert common_step(*(Draws.of(Samples(x)) for x in NO_LATTICE[name])) is None


def test_a_lattice_of_one_side_alone_leaves_the_interval_open() -> None:
    found = histogram(*map(Samples, NO_LATTICE["one side alone"]))
    assert math.isinf(float((found.interval or (0, 0))[1]))


def test_draws_are_moved_within_half_a_step_and_by_the_generator() -> None:
    x, y = (Draws.of(Samples(side)) for side in rounded(0, 20, 0))
    moved = jittered(x, 1.0, np.random.default_rng(0))
    assert torch.equal(moved.tensor.round(), x.tensor)
    assert len(torch.unique(moved.tensor)) == len(moved)
    first, again, other = (
        histogram(x, y, generator=torch.Generator().manual_seed(seed)).value for seed in (0, 0, 1)
    )
    assert first == again != other
    assert any("moved at random" in note for note in histogram(x, y).notes)


def test_the_same_rounded_draws_are_said_to_be_the_same() -> None:
    x = Samples(rounded(0, 20, 0)[0])
    assert "P and Q are the same draws." in histogram(x, x).notes


def test_weights_and_clusters_move_with_their_draws() -> None:
    x, y = rounded(0, 20, 0)
    weights, cluster = np.ones(1000), np.arange(1000) // 2
    plain = histogram(Samples(x), Samples(y), generator=torch.Generator().manual_seed(0))
    weighted = histogram(Samples(x, weights=weights), Samples(y), generator=torch.Generator().manual_seed(0))
    assert float(weighted.value) == pytest.approx(float(plain.value), abs=1e-9)
    assert histogram(Samples(x, cluster=cluster), Samples(y, cluster=cluster)).interval is not None


def test_categories_of_numbers_are_those_of_their_codes() -> None:
    x, y = NO_LATTICE["prices"]
    codes = np.unique(np.concatenate([x, y]), return_inverse=True)[1]
    first = kl_estimate(Samples(x), Samples(y))
    assert first.value == coverage_adjusted(Samples(codes[: len(x)]), Samples(codes[len(x) :])).value
