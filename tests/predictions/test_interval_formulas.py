"""The formulas of intervals of means, each against an independent one: what mutation testing found untested."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch

from kullback.predictions.intervals import (
    FEWEST_NONZERO,
    MeanEstimate,
    MeanEstimator,
    Quantity,
    _wilson,
    student_t,
)

DRAWS = 20_000


def estimate(table, quantity: Quantity, clusters=None) -> MeanEstimate:
    rows = torch.as_tensor(np.asarray(table, dtype=float)).reshape(len(table), -1)
    numbers = None if clusters is None else torch.as_tensor(clusters)
    estimator = MeanEstimator(rows.shape[1], DRAWS, torch.Generator().manual_seed(0), numbers)
    estimator.add(rows)
    return estimator.estimates([quantity])[0]


def true_t(tail: float, dof: int) -> float:
    """The quantile of Student's t from its distribution function, an incomplete beta function."""
    with mpmath.workdps(50):

        def beyond(t):
            return (
                mpmath.betainc(mpmath.mpf(dof) / 2, 0.5, 0, dof / (dof + t * t), regularized=True) / 2 - tail
            )

        return float(mpmath.findroot(beyond, 2.5 if tail < 0.02 else 1.97))


@pytest.mark.parametrize("tail", [0.025, 0.0025])
@pytest.mark.parametrize(("dof", "digits"), [(9, 2e-4), (30, 5e-7), (100, 2e-9), (1000, 2e-13)])
def test_students_quantile_has_every_term_of_its_series(tail, dof, digits):
    assert student_t(tail, dof) == pytest.approx(true_t(tail, dof), rel=digits)


def tail_probability(skewness: float) -> float:
    """0.025 up to a skewness of 0.1, 0.0025 from 0.2 on, and in between on the line of their logarithms."""
    return 10 ** np.interp(skewness, [0.1, 0.2], np.log10([0.025, 0.0025]))


def plain_interval(sums: np.ndarray, sizes: np.ndarray, *, logarithm: bool) -> tuple[float, float, float]:
    """The standard error and the ends, unit by unit and draw by draw."""
    random, units = np.random.default_rng(7), len(sums)
    mean = sums.sum() / sizes.sum()
    left_out = np.array([(sums.sum() - s) / (sizes.sum() - n) for s, n in zip(sums, sizes, strict=True)])
    change = left_out.mean() - left_out
    error = math.sqrt((units - 1) / units * (change**2).sum())
    skewness = (change**3).mean() / (change**2).mean() ** 1.5 / math.sqrt(units)
    ratios = []
    for _ in range(DRAWS):
        drawn = random.integers(units, size=units)
        s, n = sums[drawn], sizes[drawn]
        there = s.sum() / n.sum()
        of_draw = math.sqrt(((s - there * n) ** 2).sum() * units / (units - 1)) / n.sum()
        ratios.append(math.log(there / mean) * there / of_draw if logarithm else (there - mean) / of_draw)
    tails = tail_probability(-skewness), tail_probability(skewness)
    below, above = np.quantile(ratios, 1 - tails[0]) * error, np.quantile(ratios, tails[1]) * error
    ends = (
        (mean * math.exp(-below / mean), mean * math.exp(-above / mean))
        if logarithm
        else (mean - below, mean - above)
    )
    t = [true_t(tail, units - 1) * error for tail in tails]
    return error, min(ends[0], mean - t[0]), max(ends[1], mean + t[1])


@pytest.mark.parametrize("case", ["signed", "mirrored", "nonnegative"])
def test_the_interval_of_clusters_of_unlike_size_is_that_of_a_plain_loop(case):
    random = np.random.default_rng(3)
    lengths = random.integers(1, 12, 60)
    effect = np.repeat(random.gamma(1.5, size=60), lengths)
    values = effect + 0.2 * random.random(len(effect))
    if case == "mirrored":
        values = -values
    clusters = np.repeat(np.arange(60), lengths)
    sums = np.bincount(clusters, values)
    error, low, high = plain_interval(sums, lengths.astype(float), logarithm=case == "nonnegative")
    found = estimate(values, Quantity(0, low=0.0) if case == "nonnegative" else Quantity(0), clusters)
    assert found.standard_error == pytest.approx(error, rel=1e-10)
    assert found.interval == pytest.approx((low, high), abs=0.04 * (high - low))
    assert found.reason is None


def test_the_unit_of_a_mean_may_be_another_column():
    random = np.random.default_rng(4)
    values, counted = random.random(200), random.random(200) < 0.6
    found = estimate(np.stack([values * counted, counted], -1), Quantity(0, per=1))
    alone = estimate(values[counted], Quantity(0))
    assert found.standard_error == pytest.approx(alone.standard_error, rel=1e-12)
    width = alone.interval[1] - alone.interval[0]
    assert found.interval == pytest.approx(alone.interval, abs=0.03 * width)


def test_ten_nonzero_units_are_enough_and_nine_are_not():
    values = np.zeros(300)
    values[: FEWEST_NONZERO - 1] = np.linspace(0.4, 0.5, FEWEST_NONZERO - 1)
    assert FEWEST_NONZERO == 10
    assert estimate(values, Quantity(0, low=0.0)).reason == "few nonzero units"
    values[FEWEST_NONZERO - 1] = 0.45
    assert estimate(values, Quantity(0, low=0.0)).reason != "few nonzero units"


def test_a_proportion_that_no_cluster_shows_is_bounded_by_the_largest_ones():
    sizes = np.array([1] * 20 + [4] * 10)
    found = estimate(
        np.zeros(60), Quantity(0, low=0.0, high=1.0, binary=True), np.repeat(np.arange(30), sizes)
    )
    assert found.interval == (0.0, pytest.approx(_wilson(0.0, 30)[1] * 4 / 2, rel=1e-12))


def test_a_proportion_close_to_one_mirrors_one_close_to_zero():
    values = (np.arange(400) % 40 == 0).astype(float)
    rare = estimate(values, Quantity(0, low=0.0, high=1.0, binary=True)).interval
    common = estimate(1 - values, Quantity(0, low=0.0, high=1.0, binary=True)).interval
    assert rare == pytest.approx(_wilson(10 / 400, 400), rel=1e-12)
    assert common == pytest.approx((1 - rare[1], 1 - rare[0]), rel=1e-12)


@pytest.mark.parametrize("units", [100, 300, 1000])
def test_an_end_opens_where_the_tail_index_passes_its_limit(units):
    """Values of a Pareto distribution with tail index xi at equal steps: Hill's estimate is close to xi."""
    steps = (np.arange(units) + 0.5) / units
    limit = np.interp(math.log10(units), [2, 3], [0.75, 0.7])
    top = int(1.5 * math.sqrt(units))
    hill = np.log(steps[top] / steps[:top]).mean()  # of index 1; the estimate is proportional to it
    for factor, is_open in ((0.97, False), (1.03, True)):
        found = estimate(steps ** -(limit / hill * factor), Quantity(0, low=0.0))
        assert (found.reason == "heavy tail") == is_open, factor
        assert math.isinf(found.interval[1]) == is_open
