"""The formulas of intervals of means, each against an independent one: what mutation testing found untested."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch

from kullback.common.inference import wilson_interval
from kullback.predictions.mean_intervals import (
    FEWEST_NONZERO,
    MeanEstimate,
    MeanEstimator,
    RatioOfSums,
    _heavy_tailed,
    _Ratio,
)

DRAWS = 20_000


def estimate(table, quantity: RatioOfSums, clusters=None) -> MeanEstimate:
    rows = torch.as_tensor(np.asarray(table, dtype=float)).reshape(len(table), -1)
    numbers = None if clusters is None else torch.as_tensor(clusters)
    estimator = MeanEstimator(rows.shape[1], DRAWS, torch.Generator().manual_seed(0), numbers)
    estimator.add(rows)
    return estimator.estimates([quantity])[0]


def beyond(t, dof):
    """The probability of Student's t above t: an incomplete beta function."""
    t, dof = mpmath.mpf(float(t)) if not isinstance(t, mpmath.mpf) else t, mpmath.mpf(float(dof))
    return mpmath.betainc(dof / 2, 0.5, 0, dof / (dof + t * t), regularized=True) / 2


def true_t(tail: float, dof: float) -> float:
    """The quantile of Student's t from its distribution function."""
    with mpmath.workdps(50):
        logarithm = mpmath.findroot(
            lambda u: mpmath.log(beyond(mpmath.exp(u), dof) / tail), (-1, 8), solver="illinois", tol=1e-40
        )
        return float(mpmath.exp(logarithm))


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
    dof = (change**2).sum() ** 2 / (change**4).sum()
    farther = [true_t(tail, dof) * error for tail in tails]
    influence = (
        (mean * math.exp(-farther[0] / mean), mean * math.exp(farther[1] / mean))
        if logarithm
        else (mean - farther[0], mean + farther[1])
    )
    low, high = min(ends[0], mean - t[0]), max(ends[1], mean + t[1])
    if sizes.max() > sizes.min():
        low, high = min(low, influence[0]), max(high, influence[1])
    return error, low, high


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
    found = estimate(values, RatioOfSums(0, low=0.0) if case == "nonnegative" else RatioOfSums(0), clusters)
    assert found.standard_error == pytest.approx(error, rel=1e-10)
    assert found.interval == pytest.approx((low, high), abs=0.04 * (high - low))
    assert found.reason is None


@pytest.mark.sweep
def test_documents_of_unlike_length_have_an_upper_end():
    """The sums of long documents are a heavy tail, though what they say of the mean is not."""
    random = np.random.default_rng(2)
    for units, most in ((12, 4), (40, 1), (200, 0)):
        opened = 0
        for _ in range(20):
            sizes = np.round(20 * np.exp(1.5 * random.standard_normal(units))).astype(int) + 1
            sums = sizes * 0.01 * np.exp(0.3 * random.standard_normal(units))
            table = torch.from_numpy(np.stack([sums, sizes], -1).astype(float))
            found = estimate(table, RatioOfSums(0, 1, low=0.0), np.arange(units))
            opened += math.isinf(found.interval[1])
            total, squares = sizes.sum(), np.square(sums - sums.sum() / sizes.sum() * sizes)
            # At least that of the deviations, and t with as many degrees of freedom as they show.
            assert found.interval[1] > sums.sum() / total + 1.9 * math.sqrt(squares.sum()) / total
        assert opened <= most, units


def test_the_end_of_a_heavy_tail_of_clusters_is_students():
    """One document in ten is 40 times as long: its end has the degrees of freedom of the influences."""
    sizes = np.array([10] * 27 + [400] * 3)
    values = np.linspace(0.5, 1.5, 30)[np.random.default_rng(0).permutation(30)]
    table = torch.from_numpy(np.stack([values * sizes, sizes], -1))
    found = estimate(table, RatioOfSums(0, 1, low=0.0), np.arange(30))
    mean = (values * sizes).sum() / sizes.sum()
    left_out = ((values * sizes).sum() - values * sizes) / (sizes.sum() - sizes)
    change = left_out.mean() - left_out
    error = math.sqrt(29 / 30 * (change**2).sum())
    dof = max(1.5, (change**2).sum() ** 2 / (change**4).sum())
    assert dof < 4
    skewness = (change**3).mean() / (change**2).mean() ** 1.5 / math.sqrt(30)
    end = mean * math.exp(true_t(tail_probability(skewness), dof) * error / mean)
    assert found.reason is None
    assert found.interval[1] == pytest.approx(end, rel=1e-6)


def test_rows_that_share_groups_are_no_documents():
    """Groups of rows differ in size by chance: a heavy tail leaves their end open as it does that of single rows."""
    values = np.random.default_rng(0).pareto(1.2, size=25_000)
    found = MeanEstimator(1, 100, torch.Generator().manual_seed(0), None)
    found.add(torch.from_numpy(values[:, None]))
    ((_, interval, reason),) = found.estimates([RatioOfSums(0, low=0.0)])
    assert (interval[1], reason) == (math.inf, "heavy tail")


def test_an_end_that_says_nothing_is_open():
    sizes, values = np.array([10] * 27 + [400] * 3), np.array([0.01] * 28 + [1.0, 200.0])
    table = torch.from_numpy(np.stack([values * sizes, sizes], -1))
    found = estimate(table, RatioOfSums(0, 1, low=0.0), np.arange(30))
    assert (found.interval[1], found.reason) == (math.inf, "heavy tail")


def test_the_unit_of_a_mean_may_be_another_column():
    random = np.random.default_rng(4)
    values, counted = random.random(200), random.random(200) < 0.6
    found = estimate(np.stack([values * counted, counted], -1), RatioOfSums(0, per=1))
    alone = estimate(values[counted], RatioOfSums(0))
    assert found.standard_error == pytest.approx(alone.standard_error, rel=1e-12)
    width = alone.interval[1] - alone.interval[0]
    assert found.interval == pytest.approx(alone.interval, abs=0.03 * width)


def test_ten_nonzero_units_are_enough_and_nine_are_not():
    values = np.zeros(300)
    values[: FEWEST_NONZERO - 1] = np.linspace(0.4, 0.5, FEWEST_NONZERO - 1)
    assert FEWEST_NONZERO == 10
    assert estimate(values, RatioOfSums(0, low=0.0)).reason == "few nonzero units"
    values[FEWEST_NONZERO - 1] = 0.45
    assert estimate(values, RatioOfSums(0, low=0.0)).reason != "few nonzero units"


def test_a_proportion_that_no_cluster_shows_is_bounded_by_the_largest_ones():
    sizes = np.array([1] * 20 + [4] * 10)
    found = estimate(
        np.zeros(60), RatioOfSums(0, low=0.0, high=1.0, binary=True), np.repeat(np.arange(30), sizes)
    )
    assert found.interval == (0.0, pytest.approx(wilson_interval(0.0, 30, 0.95)[1] * 4 / 2, rel=1e-12))


def test_the_bound_of_clusters_of_very_unlike_size_is_at_most_that_of_the_mean():
    clusters = np.repeat(np.arange(30), [1] * 29 + [300])
    assert estimate(np.zeros(329), RatioOfSums(0, low=0.0, high=2.0), clusters).interval == (0.0, 2.0)


def test_a_proportion_close_to_one_mirrors_one_close_to_zero():
    values = (np.arange(400) % 40 == 0).astype(float)
    rare = estimate(values, RatioOfSums(0, low=0.0, high=1.0, binary=True)).interval
    common = estimate(1 - values, RatioOfSums(0, low=0.0, high=1.0, binary=True)).interval
    assert rare == pytest.approx(wilson_interval(10 / 400, 400, 0.95), rel=1e-12)
    assert common == pytest.approx((1 - rare[1], 1 - rare[0]), rel=1e-12)


@pytest.mark.sweep
@pytest.mark.parametrize("units", [100, 300, 1000])
def test_an_end_opens_where_the_tail_index_passes_its_limit(units):
    """Values of a Pareto distribution with tail index xi at equal steps: Hill's estimate is close to xi."""
    steps = (np.arange(units) + 0.5) / units
    limit = np.interp(math.log10(units), [2, 3], [0.75, 0.7])
    top = int(1.5 * math.sqrt(units))
    hill = np.log(steps[top] / steps[:top]).mean()  # of index 1; the estimate is proportional to it
    for factor, is_open in ((0.97, False), (1.03, True)):
        found = estimate(steps ** -(limit / hill * factor), RatioOfSums(0, low=0.0))
        assert (found.reason == "heavy tail") == is_open, factor
        assert math.isinf(found.interval[1]) == is_open


def ratio(sums, sizes, quantity: RatioOfSums) -> _Ratio:
    return _Ratio(
        np.stack([sums, sizes], -1).astype(float), quantity, clustered=True, of_rows=False, wider=1.0
    )


def drawn_sums(shifts, variances, totals=None) -> np.ndarray:
    """Sums over the units of draws: of deviations, sizes, and the squares that give these variances."""
    totals = np.ones(len(shifts)) if totals is None else totals
    sums = np.zeros((len(shifts), 5))
    sums[:, 0], sums[:, 1], sums[:, 2] = shifts * totals, totals, variances * totals**2
    return sums


def test_the_ends_are_those_order_statistics_of_the_studentized_draws():
    draws, units = 999, 12
    of = ratio(np.arange(units), np.ones(units), RatioOfSums(0))
    ratios = np.random.default_rng(0).permutation(draws) - 400.0
    variances = np.random.default_rng(1).random(draws) + 0.5
    shifts = ratios * np.sqrt(variances * units / (units - 1))
    totals = np.linspace(5, 20, draws)
    found = of._studentized(drawn_sums(shifts, variances, totals), (0.025, 0.01))
    # The 25th largest and the 10th least of 999.
    assert found == pytest.approx((-(598.0 - 24), -(-400.0 + 9)), rel=1e-12)
    few = of._studentized(drawn_sums(shifts, variances, totals)[:30], (0.025, 0.025))
    assert few == pytest.approx((-ratios[:30].max(), -ratios[:30].min()), rel=1e-12)
    # A draw without any row says nothing; one without variance is infinitely far on its side.
    totals[ratios == 598] = 0
    variances[ratios == 597] = variances[ratios == -400] = 0
    sums = drawn_sums(shifts, variances, totals)
    assert of._studentized(sums, (0.002, 0.001)) == (-math.inf, math.inf)
    assert of._studentized(sums, (0.0035, 0.0025)) == pytest.approx((-595.0, 399.0), rel=1e-12)
    # 998 are left, and 0.025 of 999 is 24 and not 25.
    assert of._studentized(sums, (0.025, 0.025)) == pytest.approx((-574.0, 377.0), rel=1e-12)


def test_the_studentized_draws_of_a_nonnegative_mean_are_those_of_its_logarithm():
    units = 12
    of = ratio(np.arange(units), np.ones(units), RatioOfSums(0, low=0.0))  # of mean 5.5
    shifts = np.linspace(-5, 9, 99)
    variances = np.linspace(0.2, 0.3, 99)
    errors = np.sqrt(variances * units / (units - 1)) / (5.5 + shifts)
    ordered = np.sort(np.log((5.5 + shifts) / 5.5) / errors)
    found = of._studentized(drawn_sums(shifts, variances), (0.05, 0.1))
    assert found == pytest.approx((-ordered[-5], -ordered[9]), rel=1e-12)


def test_the_variance_of_a_draw_is_that_of_its_own_ratio():
    sums, sizes = np.array([3.0, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]), np.arange(1.0, 13)
    of = ratio(sums, sizes, RatioOfSums(0))
    picked = np.random.default_rng(0).integers(12, size=(99, 12))
    drawn = np.array([of.products()[row].sum(0) for row in picked])
    ratios = []
    for row in picked:
        mean = sums[row].sum() / sizes[row].sum()
        error = math.sqrt((np.square(sums[row] - mean * sizes[row])).sum() * 12 / 11) / sizes[row].sum()
        ratios.append((mean - sums.sum() / sizes.sum()) / error)
    ordered = np.sort(ratios)
    assert of._studentized(drawn, (0.05, 0.1)) == pytest.approx((-ordered[-5], -ordered[9]), rel=1e-10)


def test_several_quantities_have_the_draws_that_each_has_alone():
    table = torch.from_numpy(np.random.default_rng(5).gamma(2.0, size=(40, 3)))
    quantities = [RatioOfSums(0, low=0.0), RatioOfSums(1), RatioOfSums(2, per=0)]

    def estimates(wanted):
        estimator = MeanEstimator(3, 500, torch.Generator().manual_seed(0), None)
        estimator.add(table)
        return estimator.estimates(wanted)

    together = estimates(quantities)
    for quantity, found in zip(quantities, together, strict=True):
        assert found == estimates([quantity])[0]


def test_a_bounded_mean_above_half_of_its_bound_mirrors_one_below():
    values = 0.1 + 0.9 * np.random.default_rng(8).beta(2.0, 3.0, size=60)
    assert 0.36 < values.mean() < 0.46
    low, high = estimate(values, RatioOfSums(0, low=0.0, high=1.0)).interval
    assert (low, high) == estimate(values, RatioOfSums(0, low=0.0)).interval
    mirrored = estimate(1 - values, RatioOfSums(0, low=0.0, high=1.0)).interval
    assert mirrored == pytest.approx((1 - high, 1 - low), rel=1e-9)


def test_a_weighted_sum_of_columns_is_a_column():
    table = torch.from_numpy(np.random.default_rng(6).normal(size=(40, 2)))
    sums = table @ torch.tensor([0.25, -3.0], dtype=torch.float64)
    whole, parts = (MeanEstimator(2, 500, torch.Generator().manual_seed(0), None) for _ in range(2))
    whole.add(torch.stack([table[:, 0], sums], -1))
    parts.add(table)
    assert parts.combine({0: 0.25, 1: -3.0}) == 2
    ours, true = (
        parts.estimates([RatioOfSums(2), RatioOfSums(0)]),
        whole.estimates([RatioOfSums(1), RatioOfSums(0)]),
    )
    assert ours[0].standard_error == pytest.approx(true[0].standard_error, rel=1e-12)
    assert ours[0].interval == pytest.approx(true[0].interval, rel=1e-9)
    assert ours[1] == true[1]


def test_a_tail_of_few_values_above_zero_is_heavy():
    values = np.concatenate([np.arange(1.0, 6.0), -np.ones(95)])
    assert _heavy_tailed(values)
    assert _heavy_tailed(np.arange(10.0, 15.0))  # five are too few
    assert not _heavy_tailed(np.arange(10.0, 16.0))
    assert not _heavy_tailed(np.arange(1.0, 101.0))


def test_a_single_draw_that_is_close_gives_students_interval():
    values = torch.arange(20, dtype=torch.float64)[:, None]  # symmetric, so that both tails have 2.5 %
    estimator = MeanEstimator(1, 1, torch.Generator().manual_seed(0), None)
    estimator.add(values)
    (found,) = estimator.estimates([RatioOfSums(0)])
    error = math.sqrt(float(values.var()) / 20)
    assert found.standard_error == pytest.approx(error, rel=1e-12)
    reach = true_t(0.025, 19) * error
    assert found.interval == pytest.approx((9.5 - reach, 9.5 + reach), rel=1e-12)


def test_the_generator_decides_the_draws():
    table = torch.from_numpy(np.random.default_rng(5).gamma(2.0, size=(40, 1)))

    def interval(seed):
        estimator = MeanEstimator(1, 200, None if seed is None else torch.Generator().manual_seed(seed), None)
        estimator.add(table)
        return estimator.estimates([RatioOfSums(0, low=0.0)])[0].interval

    assert interval(1) == interval(1) != interval(2)
    assert interval(None) == interval(0)


def test_the_limit_of_the_tail_index_falls_from_a_hundred_units_on():
    for units, limit in ((50, 0.75), (300, 0.75 - 0.05 * math.log10(3)), (3000, 0.7)):
        top = int(1.5 * math.sqrt(units))
        for index, heavy in ((limit - 1e-5, False), (limit + 1e-5, True)):  # Hill's estimate of these values
            values = np.concatenate([np.full(top, math.exp(index)), np.ones(units - top)])
            assert _heavy_tailed(values) == heavy


def test_rows_that_all_have_the_same_value_leave_nothing_to_estimate():
    for value, quantity in ((0.0, RatioOfSums(0)), (0.3, RatioOfSums(0, low=0.0)), (-2.1, RatioOfSums(0))):
        for clusters in (None, np.arange(120) // 7):
            found = estimate(np.full(120, value), quantity, clusters)
            assert found.standard_error == 0
            assert found.interval == pytest.approx((value, value), rel=1e-13)
            assert found.reason is None
    nothing = estimate(np.zeros(20), RatioOfSums(0, low=0.0))
    assert nothing == MeanEstimate(0.0, (0.0, math.inf), "few nonzero units")


def test_units_that_differ_a_little_have_a_standard_error():
    values = 0.3 + 1e-12 * np.arange(20.0)
    true = values.std(ddof=1) / math.sqrt(20)
    assert estimate(values, RatioOfSums(0, low=0.0)).standard_error == pytest.approx(true, rel=1e-3)


def test_two_units_have_a_standard_error_and_no_interval():
    found = estimate([1.0, 4.0], RatioOfSums(0))
    assert found.standard_error == pytest.approx(1.5, rel=1e-14)
    assert (found.interval, found.reason) == (None, "few units")


def test_a_lower_end_below_students_is_that_of_the_logarithm():
    values = 1 - 0.2 * np.random.default_rng(0).gamma(0.3, size=40)
    error, low, high = plain_interval(values, np.ones(40), logarithm=True)
    assert low < values.mean() - 5 * error  # Student's is not as wide
    found = estimate(values, RatioOfSums(0, low=0.0))
    assert found.interval == pytest.approx((low, high), abs=0.05 * (high - low))


def test_a_tail_whose_largest_values_are_zero_or_less_is_heavy():
    for last in (0.0, -0.5):
        assert _heavy_tailed(np.concatenate([np.arange(1.0, 6.0), np.full(10, last)]))


def test_a_single_unit_has_a_reason_where_an_interval_is_asked_for():
    for draws, reason in ((100, "few units"), (0, None)):
        estimator = MeanEstimator(1, draws, None, None)
        estimator.add(torch.ones(1, 1, dtype=torch.float64))
        assert estimator.estimates([RatioOfSums(0)])[0].reason == reason


def test_too_few_values_tell_nothing_of_a_tail() -> None:
    assert _heavy_tailed(np.array([1.0, 1.01, 1.02]))
    assert not _heavy_tailed(1 + np.arange(200) / 1e4)
