r"""Tests that two tables' rows come from one distribution: of bins, of the order of numbers, and of words.

The test of order is the Cramer-von Mises test of two columns' cumulative proportions,

.. math:: T = \sum_k w_k\, (F_k - G_k)^2

where F and G are P's and Q's cumulative proportions at the end of each group of values and w is the pooled proportion
in the group. Under the null hypothesis, F - G is nearly normal with a covariance V that is known for independent rows
and estimated for clusters. T is then a sum of chi-square variables weighted by the eigenvalues of
:math:`W^{1/2} V W^{1/2}`. Ties need no correction. A test of bins spreads its power over all possible differences of
bins. Most shifts move numbers in one direction; the test of order detects such a shift from far fewer rows.

The test of words counts rows, because a row has several words. For each group of words
(`kullback.tables.columns.word_groups`), it compares the proportions of P's and Q's rows that contain a word of the
group. Let O be the numbers of rows of P and of Q with and without such a word, and E the numbers expected from both
tables together. With each O moved half a row towards E,

.. math:: G = 2 \sum O \log(O / E)

is nearly chi-square distributed with one degree of freedom. Simes' method combines the p-values of the groups, and
keeps its level if words occur together.

References:
    On the Distribution of the Two-Sample Cramer-von Mises Criterion (Anderson, 1962)
    Saddle point approximation for the distribution of the sum of independent random variables
        (Lugannani and Rice, 1980)
    An improved Bonferroni procedure for multiple tests of significance (Simes, 1986)
    Contingency tables involving small numbers and the chi-square test (Yates, 1934)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kullback.common.arrays import Floats
from kullback.common.inference import false_discovery_rates
from kullback.tables.columns.column_profile import ColumnProfile
from kullback.tables.columns.word_groups import WORD_GROUPS
from kullback.tables.inference.sampling_error import ProportionErrors

ENOUGH_EXPECTED = 5.0  # with this many expected rows in every bin, the statistic is nearly chi-square
RANDOM_TABLES = 9999
# If ENOUGH_ABOVE of the first tables are as extreme as the observed table, p is about 0.05 or more.
FIRST_TABLES = 999
ENOUGH_ABOVE = 50
PERMUTATIONS = 1999
MOST_RANDOM = 200  # for more values, the moments of the statistic give its distribution
MOST_PERMUTED = 1000  # for more clusters, an approximate distribution is as accurate and faster
BLOCK = 1 << 22
MOST_TABULATED = 10_000_000  # for more rows, SciPy's random tables would need too much memory
FEW = 100_000  # among more than MOST_TABULATED rows, draws from at most this many rows are binomial


def g_test(
    a: Floats,
    b: Floats,
    errors: ProportionErrors,
    clusters: tuple[Floats, Floats] | None,
    random: np.random.Generator,
    *,
    permute: bool = True,
) -> float:
    """Return the p-value of the likelihood-ratio test that P's and Q's rows come from one distribution.

    For independent rows, the p-value comes from the chi-square distribution if every bin is large enough, else from
    random tables with the same margins. For few clusters without rows on both sides, it comes from permutations. For
    other clusters, it comes from the F distribution, with the statistic divided by its design effect.

    The weights a of P and b of Q in the bins are not both 0. `clusters` has P's and Q's weights by cluster and bin.
    If `permute`, permutations of the clusters may be used, because the bins do not depend on them.

    References:
        Improved likelihood ratio tests for complete contingency tables (Williams, 1976)
        An efficient method of generating random R x C tables with given row and column totals (Patefield, 1981)
        Small-sample comparison of level and power for simple goodness-of-fit statistics under cluster sampling
            (Thomas and Rao, 1987)
    """
    from scipy.special import chdtrc, fdtrc

    n, m = errors.effective
    a, b = a / a.sum() * n, b / b.sum() * m
    if clusters is None:
        if _is_whole(a, b) and min(n, m) / (n + m) * (a + b).min() < ENOUGH_EXPECTED:
            return _random_tables(a, b, random)
        return float(chdtrc(errors.dof, float(g_statistic(a, b)) / _williams(a, b)))
    of_p, of_q = (side.sum(1) > 0 for side in clusters)
    if permute and len(of_p) <= MOST_PERMUTED and not (of_p & of_q).any():
        return permutation_test(*clusters, _scaled_statistic, random)
    least = max(int(of_p.sum() + of_q.sum()) - 2, 1)
    ratio = float(g_statistic(a, b)) / _williams(a, b) / (len(a) - 1)
    return float(fdtrc(errors.dof, errors.dof * least, ratio))


def g_statistic(a: Floats, b: Floats) -> Floats:
    r"""Return :math:`2 \sum a \log \frac{a / n}{(a + b) / (n + m)}` plus the same for b, along the last dimension."""
    from scipy.special import rel_entr

    n, m = a.sum(-1, keepdims=True), b.sum(-1, keepdims=True)
    pooled = (a + b) / (n + m)
    return 2 * (rel_entr(a, n * pooled).sum(-1) + rel_entr(b, m * pooled).sum(-1))


def sparse_test(a: Floats, b: Floats, random: np.random.Generator) -> float:
    """Return the p-value of the likelihood-ratio test for many values with few rows each.

    The p-value comes from random tables with the same margins if there are few values. Otherwise the statistic is a sum
    of many terms. Its mean, variance and skewness given the margins are computed as for independent binomials, without
    the part that the total explains. Its distribution is then taken as Pearson's type III with these moments. The
    result is NaN if all tables with these margins have the same statistic, for example if each value occurs once.

    The numbers of rows of P and of Q with each value are a and b.

    References:
        Central limit theorems for multinomial sums (Morris, 1975)
        Conditioned limit theorems (Holst, 1979)
    """
    from scipy.special import xlogy

    occupied = a + b > 0
    a, total = a[occupied], (a + b)[occupied]
    if total.max(initial=0) <= 1 or a.sum() in (0, total.sum()):
        return float("nan")
    if len(a) <= MOST_RANDOM:
        return _random_tables(a, total - a, random)
    observed = float((xlogy(a, a / total) + xlogy(total - a, (total - a) / total)).sum())
    return _pearson_tail(observed, total, float(a.sum() / total.sum()))


def _pearson_tail(observed: float, total: Floats, proportion: float) -> float:
    """Return the probability that random rows give as large a sum of a log(a / t) + b log(b / t)."""
    from scipy.special import gammaincc, ndtr, xlogy
    from scipy.stats import binom

    proportion = min(proportion, 1 - proportion)  # the smaller side's, because the statistic is symmetric
    parts: list[tuple[float, Floats, Floats, Floats]] = []
    mean = covariance = variance = third = 0.0
    for rows, number in zip(*(each.tolist() for each in np.unique(total, return_counts=True)), strict=True):
        # Larger numbers of rows have a negligible probability.
        most = int(rows * proportion + 12 * np.sqrt(rows * proportion) + 30)
        x = np.arange(min(rows, most) + 1)
        probability = binom.pmf(x, rows, proportion)
        part = xlogy(x, x / rows) + xlogy(rows - x, (rows - x) / rows)
        expected = float(probability @ part)
        parts.append((number, probability, part - expected, x - rows * proportion))
        mean += number * expected
        covariance += number * float(probability @ (parts[-1][2] * parts[-1][3]))
    slope = covariance / (float(total.sum()) * proportion * (1 - proportion))
    for number, probability, part, row in parts:
        residual = part - slope * row
        variance += number * float(probability @ residual**2)
        third += number * float(probability @ residual**3)
    z, skewness = (observed - mean) / np.sqrt(variance), third / variance**1.5
    if skewness < 1e-6:
        return float(ndtr(-z))
    shape = 4 / skewness**2
    return float(gammaincc(shape, max(shape + z * np.sqrt(shape), 0.0)))


def _williams(a: Floats, b: Floats) -> float:
    """Return the ratio of the statistic's mean to its degrees of freedom, to first order."""
    n, m = a.sum(), b.sum()
    total = n + m
    rows, bins = total / n + total / m - 1, (total / (a + b)).sum() - 1
    return float(1 + rows * bins / (6 * total * (len(a) - 1)))


def _is_whole(a: Floats, b: Floats) -> bool:
    """Whether `a` and `b` are numbers of rows, not sums of weights."""
    return bool(all(np.allclose(side, np.round(side), rtol=0, atol=1e-6) for side in (a, b)))


def _random_tables(a: Floats, b: Floats, random: np.random.Generator) -> float:
    """Return the p-value from random tables with the same margins; fewer tables are drawn if the p-value is large."""
    a, b = np.round(a), np.round(b)
    least = float(g_statistic(a, b)) * (1 - 1e-9)
    above = drawn = 0
    while drawn < RANDOM_TABLES and above < ENOUGH_ABOVE:
        number = min(max(1, min(FIRST_TABLES, BLOCK // len(a))), RANDOM_TABLES - drawn)
        first = _rows_of_p(float(a.sum()), a + b, number, random)
        above += int((g_statistic(first, a + b - first) >= least).sum())
        drawn += number
    return (1 + above) / (1 + drawn)


def _rows_of_p(n: float, total: Floats, number: int, random: np.random.Generator) -> Floats:
    """Return the numbers of P's n rows in each bin of random tables with these totals, shape (number, bins)."""
    from scipy.stats import random_table

    rows = float(total.sum())
    if rows <= MOST_TABULATED:
        tables = random_table([round(n), round(rows - n)], total.astype(np.int64))
        drawn = np.asarray(tables.rvs(number, random_state=random), np.float64)
        return drawn.reshape(number, 2, len(total))[:, 0]
    draws = np.empty((number, len(total)))
    left = np.full(number, n)
    order = np.argsort(total)
    for index in order[:-1]:
        draws[:, index] = _hypergeometric(left, float(total[index]), rows, random)
        left, rows = left - draws[:, index], rows - float(total[index])
    draws[:, order[-1]] = left
    return draws


def _hypergeometric(n: Floats, good: float, rows: float, random: np.random.Generator) -> Floats:
    """Draw the number of `good` rows among n random rows; binomial if n or `good` is small, otherwise normal."""
    if good <= FEW:
        return random.binomial(int(good), n / rows).astype(np.float64)
    if n.max() <= FEW:
        return random.binomial(n.astype(np.int64), good / rows).astype(np.float64)
    share = n / rows
    spread = np.sqrt(good * share * (1 - share) * (1 - good / rows))
    drawn = np.round(good * share + spread * random.standard_normal(len(n)))
    return np.clip(drawn, np.maximum(0.0, n - (rows - good)), np.minimum(good, n))


def permutation_test(
    a: Floats, b: Floats, statistic: Callable[[Floats, Floats], Floats], random: np.random.Generator
) -> float:
    """Return the p-value from random permutations of the clusters between P and Q.

    The weights of P and of Q by cluster and bin, shape (G, K), have the same clusters. No cluster has rows on both
    sides. `statistic` is a function of P's and Q's weight in each bin, with the bins along the last dimension.
    """
    counts, of_p = a + b, a.sum(1) > 0
    least = float(statistic(a.sum(0), b.sum(0))) * (1 - 1e-9)
    above, step = 0, max(1, BLOCK // sum(counts.shape))
    for start in range(0, PERMUTATIONS, step):
        number = min(step, PERMUTATIONS - start)
        on_p = random.permuted(np.tile(of_p, (number, 1)), axis=1).astype(np.float64)
        above += int((statistic(on_p @ counts, (1 - on_p) @ counts) >= least).sum())
    return (1 + above) / (1 + PERMUTATIONS)


def _scaled_statistic(a: Floats, b: Floats) -> Floats:
    """Return the statistic of the proportions, as if all permutations had the same number of rows."""
    n, m = a.sum(-1, keepdims=True), b.sum(-1, keepdims=True)
    p = np.divide(a, n, out=np.zeros_like(a), where=n > 0)
    q = np.divide(b, m, out=np.zeros_like(b), where=m > 0)
    return g_statistic(p, q)


FEWEST_ROWS = 5  # with fewer rows on a side, the statistic is not near its limiting distribution
# Values are merged into at most this many groups. More groups change the statistic by less than its third digit.
MOST_GROUPS = 128


@dataclass(frozen=True)
class OrderedTest:
    """The Kolmogorov-Smirnov distance of two columns of numbers, and the p-value of the Cramer-von Mises test.

    The distance is NaN if a side has no number, the p-value if a side has fewer than 5 independent rows with numbers.
    """

    distance: float
    p_value: float


def ordered_test(p: ColumnProfile, q: ColumnProfile, sizes: tuple[float, float]) -> OrderedTest:
    """Compare two columns of numbers by the buckets of their common grid, for independent rows."""
    a, b = _on_one_grid(p, q)
    if not (a.sum() > 0 and b.sum() > 0):
        return OrderedTest(math.nan, math.nan)
    distance = float(np.abs(_cumulative(a) - _cumulative(b)).max())
    rows = [
        size * side.sum() / column.total for size, side, column in zip(sizes, (a, b), (p, q), strict=True)
    ]
    if min(rows) < FEWEST_ROWS:
        return OrderedTest(distance, math.nan)
    pooled = (a / a.sum() * rows[0] + b / b.sum() * rows[1]) / sum(rows)
    group = np.minimum((np.cumsum(pooled) * MOST_GROUPS).astype(np.int64), MOST_GROUPS - 1)
    group = np.unique(group, return_inverse=True)[1]
    weights = np.bincount(group, pooled)
    below = np.cumsum(weights)
    bridge = np.minimum(below[:, None], below) - below[:, None] * below
    difference = _cumulative(np.bincount(group, a)) - _cumulative(np.bincount(group, b))
    statistic = float(weights @ np.square(difference))
    return OrderedTest(distance, _tail(statistic, weights, bridge * (1 / rows[0] + 1 / rows[1])))


def ordered_test_of_clusters(a: Floats, b: Floats, random: np.random.Generator) -> float:
    """Return the p-value for clusters of rows, from their weights in ordered bins.

    The p-value comes from permutations if there are few clusters and no cluster has rows on both sides. The weights of
    P and of Q by cluster and bin have the clusters in the same order.
    """
    of_p, of_q = a.sum(1) > 0, b.sum(1) > 0
    if not (of_p.any() and of_q.any()):
        return math.nan
    weights = (a + b).sum(0) / (a + b).sum()

    def statistic(first: Floats, second: Floats) -> Floats:
        return np.square(_cumulative(first) - _cumulative(second)) @ weights

    if len(a) > MOST_PERMUTED or (of_p & of_q).any():
        # A cluster with rows on both sides has a single residual: the difference.
        residuals = _residuals(a) - _residuals(b)
        least = min(int(of_p.sum()), int(of_q.sum()))
        covariance = residuals.T @ residuals * least / max(least - 1, 1)
        return _tail(float(statistic(a.sum(0), b.sum(0))), weights, covariance)
    return permutation_test(a, b, statistic, random)


def _on_one_grid(p: ColumnProfile, q: ColumnProfile) -> tuple[Floats, Floats]:
    """Return both columns' weights in the same ordered buckets, with the infinities as the first and last bucket."""
    buckets = sorted({*p.buckets, *q.buckets})
    a, b = (
        np.array([side.minus_infinity, *(side.buckets.get(k, 0.0) for k in buckets), side.plus_infinity])
        for side in (p, q)
    )
    return a, b


def _cumulative(weights: NDArray[Any]) -> Floats:
    """Return the cumulative proportions along the last dimension."""
    total = weights.sum(-1, keepdims=True)
    return np.cumsum(weights, -1) / np.where(total > 0, total, 1)


def _residuals(weights: Floats) -> Floats:
    """Return by how much each cluster moves the cumulative proportions."""
    rows, below = weights.sum(1, keepdims=True), np.cumsum(weights, 1)
    return (below - rows * below.sum(0) / rows.sum()) / rows.sum()


def _tail(statistic: float, weights: NDArray[Any], covariance: Floats) -> float:
    """Return the probability of a statistic at least this large, if the differences have this covariance."""
    root = np.sqrt(weights)
    values = np.linalg.eigvalsh(root[:, None] * covariance * root)
    values = values[values > 1e-9 * max(values.max(initial=0.0), 1e-300)]
    if not len(values):
        return 1.0 if statistic <= 1e-24 else math.nan
    return _chi_square_sum_tail(statistic, values)


def _chi_square_sum_tail(x: float, weights: NDArray[Any]) -> float:
    """Return P(sum of weighted chi-square variables of one degree of freedom > x), by Lugannani and Rice's formula."""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    mean = float(weights.sum())
    if x <= 1e-6 * mean:
        return 1.0
    weights, x = weights / mean, x / mean

    def slope(s: float) -> float:
        return float((weights / (1 - 2 * s * weights)).sum()) - x

    most = (1 - 1e-12) / (2 * float(weights.max()))
    least = -len(weights) / x  # here each term of the slope is less than x / (2 len)
    s = cast("float", brentq(slope, least, most, xtol=1e-14)) if slope(most) > 0 else most
    if abs(s) < 1e-5:  # at the mean the formula is 0 / 0
        s = math.copysign(1e-5, s)
        x = slope(s) + x
    cumulant = -0.5 * float(np.log1p(-2 * s * weights).sum())
    w = math.copysign(math.sqrt(2 * (s * x - cumulant)), s)
    v = s * math.sqrt(2 * float(np.square(weights / (1 - 2 * s * weights)).sum()))
    density = math.exp(-w * w / 2) / math.sqrt(2 * math.pi)
    return min(1.0, max(0.0, float(ndtr(-w)) + density * (1 / v - 1 / w)))


# A group of words is tested if at least this many rows with a word, and rows without, are expected on the smaller side.
FEWEST_EXPECTED = 10.0


@dataclass(frozen=True)
class WordTest:
    """The PSI between rows with and rows without a word of the most significant group, and the p-value of all groups.

    The p-value is NaN if no group can be tested and some group has a word in every row.
    """

    psi: float
    p_value: float


def word_test(p: ColumnProfile, q: ColumnProfile, sizes: tuple[float, float]) -> WordTest | None:
    """Compare the words of two columns of texts; None if words were not counted or no group of words is frequent."""
    if p.words is None or q.words is None or p.empty or q.empty:
        return None
    n, m = (size * side.present / side.total for size, side in zip(sizes, (p, q), strict=True))
    a, b = (rows * _proportions(side) for rows, side in zip((n, m), (p, q), strict=True))
    pooled = (a + b) / (n + m)
    frequent = np.minimum(pooled, 1 - pooled) * min(n, m) >= FEWEST_EXPECTED
    if not frequent.any():
        return WordTest(0.0, math.nan) if (pooled > 1 - 1e-12).any() else None
    a, b, pooled = a[frequent], b[frequent], pooled[frequent]
    p_values = _p_values(a, b, pooled, n, m)
    most = int(np.argmin(p_values))
    x, y = (float((rows[most] + 0.5) / (size + 1)) for rows, size in ((a, n), (b, m)))
    psi = (x - y) * (math.log(x / (1 - x)) - math.log(y / (1 - y)))
    return WordTest(psi, min(false_discovery_rates(p_values.tolist())))


def _proportions(column: ColumnProfile) -> Floats:
    """Return the proportion of texts that contain a word of each group."""
    weights = np.zeros(WORD_GROUPS)
    words = column.words or {}
    weights[list(words)] = list(words.values())
    return weights / column.present


def _p_values(a: Floats, b: Floats, pooled: Floats, n: float, m: float) -> Floats:
    from scipy.special import chdtrc, rel_entr

    nearer = np.clip(a - n * pooled, -0.5, 0.5)
    a, b = a - nearer, b + nearer
    statistic = sum(
        rel_entr(rows, size * pooled) + rel_entr(size - rows, size * (1 - pooled))
        for rows, size in ((a, n), (b, m))
    )
    return chdtrc(1, np.maximum(2 * statistic, 0.0))
