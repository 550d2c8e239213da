r"""A test that uses the order of numbers: the Cramer-von Mises test of two columns' cumulative proportions.

.. math:: T = \sum_k w_k\, (F_k - G_k)^2

where F and G are P's and Q's cumulative proportions at the end of each group of values and w is the pooled proportion
in the group. Under the null hypothesis, F - G is nearly normal with a covariance V that is known for independent rows
and estimated for clusters. T is then a sum of chi-square variables weighted by the eigenvalues of
:math:`W^{1/2} V W^{1/2}`. Ties need no correction.

A test of bins spreads its power over all possible differences of bins. Most shifts move numbers in one direction; this
test detects such a shift from far fewer rows.

References:
    On the Distribution of the Two-Sample Cramer-von Mises Criterion (Anderson, 1962)
    Saddle point approximation for the distribution of the sum of independent random variables
        (Lugannani and Rice, 1980)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from kullback.tables.columns.column_profile import ColumnProfile
from kullback.tables.inference.significance import MOST_PERMUTED, permutation_test

Array = np.ndarray[Any, np.dtype[Any]]

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


def ordered_test_of_clusters(a: Array, b: Array, random: np.random.Generator) -> float:
    """Return the p-value for clusters of rows, from their weights in ordered bins.

    The p-value comes from permutations if there are few clusters and no cluster has rows on both sides. The weights of
    P and of Q by cluster and bin have the clusters in the same order.
    """
    of_p, of_q = a.sum(1) > 0, b.sum(1) > 0
    if not (of_p.any() and of_q.any()):
        return math.nan
    weights = (a + b).sum(0) / (a + b).sum()

    def statistic(first: Array, second: Array) -> Array:
        return np.square(_cumulative(first) - _cumulative(second)) @ weights

    if len(a) > MOST_PERMUTED or (of_p & of_q).any():
        # A cluster with rows on both sides has a single residual: the difference.
        residuals = _residuals(a) - _residuals(b)
        least = min(int(of_p.sum()), int(of_q.sum()))
        covariance = residuals.T @ residuals * least / max(least - 1, 1)
        return _tail(float(statistic(a.sum(0), b.sum(0))), weights, covariance)
    return permutation_test(a, b, statistic, random)


def _on_one_grid(p: ColumnProfile, q: ColumnProfile) -> tuple[Array, Array]:
    """Return both columns' weights in the same ordered buckets, with the infinities as the first and last bucket."""
    buckets = sorted({*p.buckets, *q.buckets})
    a, b = (
        np.array([side.minus_infinity, *(side.buckets.get(k, 0.0) for k in buckets), side.plus_infinity])
        for side in (p, q)
    )
    return a, b


def _cumulative(weights: Array) -> Array:
    """Return the cumulative proportions along the last dimension."""
    total = weights.sum(-1, keepdims=True)
    return np.cumsum(weights, -1) / np.where(total > 0, total, 1)


def _residuals(weights: Array) -> Array:
    """Return by how much each cluster moves the cumulative proportions."""
    rows, below = weights.sum(1, keepdims=True), np.cumsum(weights, 1)
    return (below - rows * below.sum(0) / rows.sum()) / rows.sum()


def _tail(statistic: float, weights: Array, covariance: Array) -> float:
    """Return the probability of a statistic at least this large, if the differences have this covariance."""
    root = np.sqrt(weights)
    values = np.linalg.eigvalsh(root[:, None] * covariance * root)
    values = values[values > 1e-9 * max(values.max(initial=0.0), 1e-300)]
    if not len(values):
        return 1.0 if statistic <= 1e-24 else math.nan
    return _chi_square_sum_tail(statistic, values)


def _chi_square_sum_tail(x: float, weights: Array) -> float:
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
