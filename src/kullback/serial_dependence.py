r"""How much rows depend on each other, as their order and their repetitions show it, and blocks that do not.

The means of blocks of L rows vary :math:`V_L` times as much as they would for independent rows,

.. math:: V_L = \frac{L \operatorname{Var}(\bar x_L)}{\operatorname{Var}(x)}
    = 1 + 2 \sum_{k < L} \Bigl(1 - \frac kL\Bigr) \rho_k,

which rises with L to the integrated autocorrelation time :math:`\tau`: n rows tell as much as :math:`n / \tau`
independent ones. It is measured for L = 1, 2, 4, ... on ranks, and on the ranks' distances from the middle one, which
see a changing spread. Blocks of :math:`5 \tau` to :math:`12 \tau` rows have nearly uncorrelated means.

References:
    Error estimates on averages of correlated data (Flyvbjerg and Petersen, 1989)
    Stock Market Prices Do Not Follow Random Walks (Lo and MacKinlay, 1988)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np

__all__ = [
    "FEWEST_BLOCKS",
    "SerialDependence",
    "block_labels",
    "block_length",
    "category_scores",
    "number_scores",
    "repeated_rows",
    "serial_dependence",
]

Array = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Kind = Literal["blocks", "period", "pattern", "repeats"]

# Of fewer blocks no error is computed.
FEWEST_BLOCKS = 10
# Rows below which nothing is measured, and rows in which a period is looked for.
_FEWEST_ROWS, _MOST_ROWS_FOR_PERIOD = 20, 1 << 16
# Autocorrelation times in a block at least, and how many times as many where so many blocks are left: the means of
# blocks of five vary by 10 % too little, those of twelve by 4 %.
_FEWEST_TIMES_IN_A_BLOCK, _MOST_TIMES, _USUAL_BLOCKS = 5.0, 2.4, 20
# Blocks at least of a length whose means are compared.
_FEWEST_COMPARED = 8
# The probability that independent rows appear dependent, and as much again for a period.
_FALSE_ALARMS = 1e-4
# Scores of standard deviation 1 that vary by no more are constant.
_ROUNDING = 1e-6
# Columns that are looked at; of more, as many random directions. Categories that are looked at one by one.
_MOST_COLUMNS, _MOST_CATEGORIES, _HALVES = 32, 8, 8
# Continuous rows count as repeated from this share on that equal another one.
_LEAST_REPEATED = 0.1


@dataclass(frozen=True)
class SerialDependence:
    """Dependence of rows that is statistically significant.

    Attributes:
        kind: ``"blocks"``, where neighboring rows are alike; ``"period"``, where rows a period apart are, as of sources
            that take turns; ``"pattern"``, where that period is shorter than `FEWEST_BLOCKS` rows, so that it may be a
            design as well, and rows count as independent; ``"repeats"``, where whole rows are equal.
        rows: how many rows there are.
        time: how many rows tell as much as one independent row.
        length: rows in a block, or in a period; 0 for repeats.
        labels: the number of each row's block, phase or repeated row, shape (rows,), from 0; None of a pattern, and
            where there would be too few blocks, or blocks do not help.
    """

    kind: Kind
    rows: int
    time: float
    length: int
    labels: Integers | None

    @property
    def is_open(self) -> bool:
        """Whether there are no independent groups of rows to compute an error from."""
        return self.labels is None and self.kind != "pattern"

    @property
    def effective(self) -> float:
        """How many independent rows tell as much."""
        return self.rows / self.time

    @property
    def correction(self) -> float:
        r"""By what to multiply a variance that takes blocks as independent: :math:`\tau / V_L` of an autoregression."""
        if self.kind != "blocks" or self.labels is None:
            return 1.0
        return 1 / (1 - (self.time - 1 / self.time) / (2 * self.length))


def number_scores(x: Array) -> Array:
    """Return the scores that dependence of numbers is measured on, shape (n, c), from numbers of shape (n, d).

    They are the ranks of each column that is not sorted (of random directions, where there are many columns), and the
    ranks' distance from the middle. A sorted column shows no dependence, as every column can be sorted.
    """
    x = x[:, [not is_sorted(column) for column in x.T]]
    if x.shape[1] > _MOST_COLUMNS:
        scale = x.std(0)
        directions = np.random.default_rng(0).standard_normal((x.shape[1], _MOST_COLUMNS))
        x = (x / np.where(scale > 0, scale, 1.0)) @ directions
    ranks = np.stack([_ranks(column) for column in x.T], 1) if x.shape[1] else np.zeros((len(x), 0))
    return np.concatenate([ranks, np.abs(ranks)], 1)


def category_scores(codes: Integers) -> Array:
    """Return the scores that dependence of categories 0, 1, ... is measured on, shape (n, c); none if they are sorted.

    They say whether a row has each of the most frequent categories, and one of a random half of all.
    """
    counts = np.bincount(codes)
    if np.count_nonzero(np.diff(codes)) < np.count_nonzero(counts):  # one run of each
        return np.zeros((len(codes), 0))
    frequent = np.argsort(-counts, kind="stable")[:_MOST_CATEGORIES]
    scores = [codes == category for category in frequent if counts[category]]
    if len(counts) > _MOST_CATEGORIES:
        halves = np.random.default_rng(0).random((_HALVES, len(counts))) < 0.5
        scores += list(halves[:, codes])
    return np.stack(scores, 1).astype(float)


def is_sorted(x: Array) -> bool:
    """Tell whether numbers rise, or fall, all along."""
    return bool((x[1:] >= x[:-1]).all() or (x[1:] <= x[:-1]).all())


def serial_dependence(scores: Array) -> SerialDependence | None:
    """Return how much rows depend on their order; None where that is not statistically significant.

    Arguments:
        scores: numbers of each row, of `number_scores` or `category_scores`, shape (rows, columns). Rows depend on each
            other where any column does.
    """
    n = len(scores)
    spread = scores.std(0) if n >= _FEWEST_ROWS else np.zeros(scores.shape[1])
    scores = (scores[:, spread > 0] - scores[:, spread > 0].mean(0)) / spread[spread > 0]
    if not scores.shape[1]:
        return None
    period = _period(scores)
    if period and not (period.smooth and period.rows >= FEWEST_BLOCKS):
        phases = np.arange(n) % period.rows
        sums = np.stack([np.bincount(phases, column, period.rows) for column in scores.T])
        rest = scores - (sums / np.bincount(phases)).T[phases]
        left = rest.std(0) > _ROUNDING
        serial = bool(left.any()) and bool(_variance_ratios(rest[:, left] / rest[:, left].std(0))[1].any())
        if period.rows >= FEWEST_BLOCKS:
            time = max(1.0, float(np.square(sums).sum(1).max()) / n)
            return SerialDependence("period", n, time, period.rows, None if serial else phases)
        if not serial:
            return SerialDependence("pattern", n, 1.0, period.rows, None)
    ratios, significant = _variance_ratios(scores)
    if not significant.any():
        return None
    time = max(1.0, float(ratios[:, significant].max()))
    length = block_length(n, time)
    if period:  # whole periods
        length = period.rows * math.ceil(length / period.rows)
    blocks = n // length
    labels = block_labels(n, blocks) if blocks >= FEWEST_BLOCKS else None
    return SerialDependence("blocks", n, time, length, labels)


def block_length(
    rows: int, time: float, least: float = _FEWEST_TIMES_IN_A_BLOCK, blocks: int = _USUAL_BLOCKS
) -> int:
    """Return how many rows a block needs, given their autocorrelation time, so that its mean is nearly independent."""
    return math.ceil(time * min(max(rows / time / blocks, least), _MOST_TIMES * least))


def block_labels(rows: int, blocks: int) -> Integers:
    """Return the number of each row's block, of as many blocks of neighboring rows, as equal as can be."""
    return np.arange(rows) * blocks // rows


def repeated_rows(x: Array) -> SerialDependence | None:
    """Return how much rows of continuous numbers, shape (n, d), repeat each other; None where they do not.

    Rounded numbers have equal values too, and so do mixtures with atoms. Rows count as repeated where a column of the
    distinct rows has neither a lattice, on which gaps between neighboring values are equal, nor values that are far
    more frequent than the others. Values of few digits, such as prices, are atoms as well, unless each one has about as
    many rows as the others, which independent draws do not show.
    """
    n = len(x)
    if n < _FEWEST_ROWS:
        return None
    # A sum of ranks with random weights is the same for equal rows, and for no others.
    weights = np.random.default_rng(0).uniform(1, 2, x.shape[1])
    key = (
        x[:, 0]
        if x.shape[1] == 1
        else sum(w * _ranks(column) for w, column in zip(weights, x.T, strict=True))
    )
    _, first, labels, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    again = counts[counts > 1]
    if again.sum() < _LEAST_REPEATED * n or len(again) < FEWEST_BLOCKS or again.max() > 8 * np.median(again):
        return None
    continuous = [column[first] for column in x.T if _is_continuous(column[first])]
    if not continuous or (all(map(_has_few_digits, continuous)) and not _are_even(counts)):
        return None
    time = float(np.square(counts).sum()) / n
    return SerialDependence("repeats", n, time, 0, labels.reshape(-1).astype(np.int64))


def _is_continuous(distinct: Array) -> bool:
    """Tell whether values of distinct rows lie on no lattice, and hardly repeat."""
    values = np.unique(distinct)
    gaps = np.diff(values / 2)  # whose range is finite
    if len(values) < 0.9 * len(distinct) or len(gaps) < 2:
        return False
    # Of independent gaps the smaller of two neighbors is more than 0.98 of the larger in 1 %.
    alike = np.minimum(gaps[1:], gaps[:-1]) > 0.98 * np.maximum(gaps[1:], gaps[:-1])
    return bool(alike.mean() < 0.03 + 0.2 / math.sqrt(len(gaps)))


def _has_few_digits(values: Array) -> bool:
    """Tell whether values are whole, or decimals of two places or of six digits, also in single precision."""
    single = values.astype(np.float32)
    kind = np.float32 if (single == values).all() else np.float64
    if (np.round(values, 2).astype(kind) == values.astype(kind)).all():
        return True
    return all(kind(f"{value:.6g}") == kind(value) for value in values)


def _are_even(counts: Integers) -> bool:
    """Tell whether counts of values vary significantly less than those of equally likely values, each seen once."""
    mean, values = float(counts.mean()), len(counts)
    rate = mean  # of the Poisson distribution without 0 that has this mean
    for _ in range(50):
        rate = mean * -math.expm1(-rate)
    variance = mean * (1 + rate - mean)
    # The variance of a sample by Wilson and Hilferty's normal approximation to chi-squared.
    cubed = 2 / (9 * (values - 1))
    limit = 1 - cubed + NormalDist().inv_cdf(_FALSE_ALARMS) * math.sqrt(cubed)
    return math.cbrt(float(counts.var(ddof=1)) / variance) < limit


def _ranks(x: Array) -> Array:
    """Return the mean rank of equal values, from -1/2 to 1/2."""
    _, codes, counts = np.unique(x, return_inverse=True, return_counts=True)
    return ((np.cumsum(counts) - (counts + 1) / 2) / max(len(x) - 1, 1) - 0.5)[codes]


def _variance_ratios(scores: Array) -> tuple[Array, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return V_L of each length (rows) and column, and for each column whether one is significantly above 1."""
    n, columns = scores.shape
    sums, length = scores, 1
    shape = _shape(scores)
    limit = NormalDist().inv_cdf(1 - _FALSE_ALARMS / columns)
    lag_one = (scores[1:] * scores[:-1]).mean(0) + 1 / n
    significant = lag_one * math.sqrt(n) > _limit(limit, *shape, n)
    found: list[Array] = []
    while len(sums) >= _FEWEST_COMPARED:
        blocks = len(sums)
        found.append((sums * sums).mean(0) / length / (1 - 1 / blocks))
        if length > 1:
            cubed = 2 / (9 * n / (length - 1))
            z = (np.cbrt(found[-1]) - (1 - cubed)) / math.sqrt(cubed)  # Wilson and Hilferty
            significant |= z > _limit(limit, *shape, n * (length - 1) / 2)
        sums = sums[: blocks - 1 : 2] + sums[1::2]
        length *= 2
    return np.stack(found), significant


def _shape(scores: Array) -> tuple[Array, Array]:
    """Return the squared skewness and the kurtosis of columns of mean 0 and standard deviation 1."""
    square = scores * scores
    return np.square((square * scores).mean(0)), (square * square).mean(0)


def _limit(limit: float, skewness: Array, kurtosis: Array, pairs: float) -> Array:
    """Return a normal limit for sums of products of so many pairs of scores, by the expansion of Cornish and Fisher."""
    third = skewness / math.sqrt(pairs)
    fourth = np.maximum(np.square(kurtosis) - 3, 0) / pairs
    return limit + (limit**2 - 1) * third / 6 + (limit**3 - 3 * limit) * fourth / 24


class _Period(NamedTuple):
    """After how many rows scores resemble themselves again, and whether neighboring phases resemble each other too."""

    rows: int
    smooth: bool


def _period(scores: Array) -> _Period | None:
    """Return the period of the column that has the clearest one; None where none has one."""
    scores = scores[:_MOST_ROWS_FOR_PERIOD]
    n, columns = scores.shape
    size, lags = 1 << (2 * n - 1).bit_length(), n // 2
    limit = NormalDist().inv_cdf(1 - _FALSE_ALARMS / columns / lags)
    limits = _limit(limit, *_shape(scores), n)
    pairs = n - np.arange(lags + 1)
    highest, found = 0.0, None
    for column, bound in zip(scores.T, limits, strict=True):
        spectrum = np.fft.rfft(column, size)
        correlation = np.fft.irfft(np.square(np.abs(spectrum)), size)[: lags + 1] / pairs
        near = int(np.argmax(correlation < 2 / math.sqrt(n)))  # where neighbors resemble each other no longer
        # The error of an autocorrelation of dependent rows (On the theoretical specification and sampling properties
        # of autocorrelated time-series, Bartlett, 1946).
        error = np.sqrt((1 + 2 * float(np.square(correlation[1:near]).sum())) / pairs)
        # Dependence that lasts long raises the correlations at all lags: a period stands out from those around it.
        around = _sums_around(correlation) / _sums_around(np.ones(lags + 1))
        clear = (correlation - np.maximum(around, 0) > bound * error) & (np.arange(lags + 1) >= near)
        if near and clear.any() and correlation[clear].max() > highest:
            highest = float(correlation[clear].max())
            peak = _first_peak(np.where(clear, correlation, 0.0))
            beside = correlation[[peak - 1, peak + 1] if peak < lags else [peak - 1]].mean()
            found = _Period(peak, bool(beside > correlation[peak] / 2))
    return found


def _sums_around(x: Array) -> Array:
    """Return the sum of ten values before each and ten after it, but for those next to it."""
    weights = np.array([1.0] * 9 + [0.0] * 3 + [1.0] * 9)
    return np.convolve(x, weights)[10 : 10 + len(x)]


def _first_peak(correlation: Array) -> int:
    """Return the first lag about as high as the highest; or of its divisors the least that is half as high."""
    high = correlation > 0.7 * correlation.max()
    first = int(np.argmax(high))
    width = int(np.argmin(np.append(high[first:], False)))
    peak = first + int(correlation[first : first + width].argmax())
    divisors = (k for k in range(2, peak) if peak % k == 0 and correlation[k] > 0.5 * correlation[peak])
    return next(divisors, peak)
