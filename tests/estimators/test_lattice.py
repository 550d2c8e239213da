"""Rounded numbers: bins end between those on a common lattice, and those of few or preferred values are categories."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from kullback import Estimate, Samples, estimate, kl_estimate
from kullback.estimators import coverage_adjusted, histogram
from kullback.estimators.draws import Draws
from kullback.estimators.histogram import common_step, prefers_values, spread


def rounded_normal_kl(sd: float, shift: float) -> float:
    """Sum over the integers, whose probabilities are those of the intervals that round to them."""
    k = np.arange(-12 * math.ceil(sd), 12 * math.ceil(sd) + 1)
    p, q = (norm.cdf(k + 0.5, mean, sd) - norm.cdf(k - 0.5, mean, sd) for mean in (0, shift))
    seen = (p > 1e-300) & (q > 1e-300)
    return float((p[seen] * np.log(p[seen] / q[seen])).sum())


def rounded(seed: int, sd: float, shift: float, n: int = 1000) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return np.round(sd * rng.standard_normal(n)), np.round(shift + sd * rng.standard_normal(n))


def seeded_generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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


def test_a_density_beside_atoms_is_not_counted_as_categories() -> None:
    """P and Q are 0 in 98 and 95 % of the draws, and otherwise log-normal: the KL is that of the proportions."""
    truth = 0.98 * math.log(0.98 / 0.95) + 0.02 * math.log(0.02 / 0.05)

    def amounts(seed: int, zeros: float) -> Any:
        rng = np.random.default_rng(seed)
        return np.where(rng.random(1000) < zeros, 0.0, np.exp(rng.normal(size=1000)))

    found = estimates([(amounts(2 * seed, 0.98), amounts(2 * seed + 1, 0.95)) for seed in range(20)])
    ends = [tuple(map(float, one.interval or (0, math.inf))) for one in found]
    assert {one.method for one in found} == {"histogram"}
    assert sum(low <= truth <= high < math.inf for low, high in ends) >= 18


def test_equal_draws_of_one_cluster_are_no_category() -> None:
    """Each cluster has its own value of a standard normal variable, ten times."""
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(100), 10)
    x, y = (Samples(rng.normal(size=100)[clusters], cluster=clusters) for _ in "pq")
    found = kl_estimate(x, y)
    assert found.method == "histogram"
    assert found.interval is not None
    assert found.interval[0] == 0
    assert found.value < 0.2


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


def test_draws_are_spread_within_half_a_step_and_nothing_is_random() -> None:
    x, y = (Draws.of(Samples(side)) for side in rounded(0, 20, 0))
    moved = spread(x, 1.0)
    assert torch.equal(moved.tensor.round(), x.tensor)
    assert len(torch.unique(moved.tensor)) == len(moved)
    for value in torch.unique(x.tensor):
        places = (moved.tensor - x.tensor)[x.tensor == value]
        number = len(places)
        assert places.tolist() == pytest.approx([(i + 0.5) / number - 0.5 for i in range(number)], abs=1e-12)
    first, other = (histogram(x, y, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert (first.value, first.interval, first.notes) == (other.value, other.interval, other.notes)
    assert any("Bins end between the rounded values." in note for note in first.notes)


@pytest.mark.parametrize("kind", ["kl", "js", "tv"])
def test_rounded_numbers_have_one_value_in_every_unit_and_for_every_generator(kind: str) -> None:
    rng = np.random.default_rng([0, 1503])
    x, y = (np.round(rng.normal(mean, sd, 500) / 5) for mean, sd in ((120, 15), (126, 17)))
    estimates = [
        estimate(
            Samples(scale * x + offset),
            Samples(scale * y + offset),
            kind=kind,
            generator=seeded_generator(seed),
        )
        for seed, (scale, offset) in enumerate([(1.0, 0.0), (5.0, 0.0), (5.0, 0.0), (0.1, -7.0), (1e-9, 0.0)])
    ]
    for other in estimates[1:]:
        assert float(other.value) == pytest.approx(float(estimates[0].value), rel=1e-6)
        assert estimates[0].interval is not None
        assert other.interval is not None
        assert [float(end) for end in other.interval] == pytest.approx(
            [float(end) for end in estimates[0].interval], rel=1e-3
        )
    whole = estimate(Samples(x.astype(int)), Samples(y.astype(int)), kind=kind)
    assert estimates[0].interval is not None
    width = float(estimates[0].interval[1] - estimates[0].interval[0])
    assert abs(float(whole.value) - float(estimates[0].value)) < 0.1 * width


def heaped(rng: np.random.Generator, share: float, n: int, sd: float, other: int = 0) -> Any:
    """Draw numbers rounded to 1, and a share of them to 5, plus `other`."""
    x = 120 + sd * rng.standard_normal(n)
    return np.where(rng.random(n) < share, np.round(x / 5) * 5 + other, np.round(x))


def heaped_kl(of_p: float, of_q: float, sd: float) -> float:
    k = np.arange(-12 * math.ceil(sd), 12 * math.ceil(sd) + 1)
    fine, coarse = (norm.cdf((k + step / 2) / sd) - norm.cdf((k - step / 2) / sd) for step in (1, 5))
    p, q = ((1 - share) * fine + share * coarse * (k % 5 == 0) for share in (of_p, of_q))
    seen = (p > 1e-300) & (q > 1e-300)
    return float((p[seen] * np.log(p[seen] / q[seen])).sum())


@pytest.mark.sweep
def test_preferred_values_are_categories_as_the_integers_are_and_intervals_hold() -> None:
    truth, inside = heaped_kl(0.6, 0.2, 15.0), 0
    for seed in range(20):
        rng = np.random.default_rng([seed, 41])
        x, y = heaped(rng, 0.6, 300, 15.0), heaped(rng, 0.2, 300, 15.0)
        real, whole = (
            kl_estimate(Samples(x), Samples(y)),
            kl_estimate(*(Samples(z.astype(int)) for z in (x, y))),
        )
        assert (real.value, real.interval) == (whole.value, whole.interval), seed
        assert "some of them preferred" in " ".join(real.notes), seed
        assert real.interval is not None
        inside += bool(real.interval[0] <= truth <= real.interval[1])
    assert inside >= 17


def test_preferred_values_with_too_few_draws_for_each_leave_the_interval_open_until_both_are_rounded() -> (
    None
):
    rng = np.random.default_rng(42)
    x, y = heaped(rng, 0.6, 300, 80.0), heaped(rng, 0.2, 300, 80.0)
    rough = kl_estimate(Samples(x), Samples(y))
    assert rough.interval is not None
    assert float(rough.interval[0]) <= heaped_kl(0.6, 0.2, 80.0)
    assert math.isinf(float(rough.interval[1]))
    assert "prefer some of the rounded values" in " ".join(rough.notes)
    smooth = kl_estimate(*(Samples(np.round(z / 5) * 5) for z in (x, y)))  # the remedy
    assert smooth.interval is not None
    assert math.isfinite(float(smooth.interval[1]))


PREFERENCES = {
    "none": (0.0, 0.0, 0, 0, False),
    "one side": (0.5, 0.0, 0, 0, True),
    "both": (0.5, 0.5, 0, 0, True),
    "unlike ones": (0.5, 0.5, 0, 2, True),
}


def test_preferred_values_are_seen_on_either_side() -> None:
    for name, (of_p, of_q, first, second, expected) in PREFERENCES.items():
        for seed in range(10):
            rng = np.random.default_rng([seed, 43])
            x, y = heaped(rng, of_p, 400, 20.0, first), heaped(rng, of_q, 400, 20.0, second)
            draws = Draws.of(Samples(x)), Draws.of(Samples(y))
            assert prefers_values(*draws, 1.0) == expected, (name, seed)


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
