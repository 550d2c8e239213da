r"""Measurement of the serial dependence of rows from their order and from repeated rows; nearly independent blocks.

Let :math:`V_L` be the variance of the means of blocks of L rows, relative to independent rows:

.. math:: V_L = \frac{L \operatorname{Var}(\bar x_L)}{\operatorname{Var}(x)}
    = 1 + 2 \sum_{k < L} \Bigl(1 - \frac kL\Bigr) \rho_k.

:math:`V_L` rises with L to the integrated autocorrelation time :math:`\tau`. So n rows have as much information as
:math:`n / \tau` independent rows. :math:`V_L` is measured for L = 1, 2, 4, ... on ranks, and on the distances of the
ranks from the middle rank. These distances detect a changing spread. Blocks of :math:`5 \tau` to :math:`12 \tau` rows
have nearly uncorrelated means.

References:
    Error estimates on averages of correlated data (Flyvbjerg and Petersen, 1989)
    Stock Market Prices Do Not Follow Random Walks (Lo and MacKinlay, 1988)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from kullback.common.arrays import Flags, Floats, Integers
from kullback.common.inference import chi_square_scores, normal_quantile
from kullback.common.turn_spectrum import spectral_turns

Kind = Literal["blocks", "period", "uneven", "pattern", "repeats"]

# `tests/common/test_serial_dependence.py` and `tests/estimators/test_dependence.py` measure false alarms and coverage
# with the constants of this file.

# The smallest number of blocks for a standard error, which then has a relative error of about a quarter.
FEWEST_BLOCKS = 10
# The smallest number of rows to test, and the largest number of rows in the search for a period.
_FEWEST_ROWS, _MOST_ROWS_FOR_PERIOD = 20, 1 << 16
# The smallest block length in autocorrelation times, the largest multiple of this length, and the number of blocks that
# must remain if blocks are longer. The variance of block means is 10 % too small for blocks of
# 5 autocorrelation times, and 4 % too small for blocks of 12.
_FEWEST_TIMES_IN_A_BLOCK, _MOST_TIMES, _USUAL_BLOCKS = 5.0, 2.4, 20
# V_L is measured only for lengths with at least this many blocks.
_FEWEST_COMPARED = 8
# The probability of a false alarm for independent rows; the search for a period has the same probability in addition.
_FALSE_ALARMS = 1e-4
# Scores have the standard deviation 1. Residuals with a standard deviation up to this number count as constant.
_ROUNDING = 1e-6
# The largest number of columns, the number of categories that get their own score, and the number of random halves of
# the categories. This number of random directions replaces more columns.
_MOST_COLUMNS, _MOST_CATEGORIES, _HALVES = 32, 8, 8
# The correlation of a grid's lines that are half of all rows apart is below this fraction of the correlation of
# neighboring lines.
_FADED = 0.6
# If neighboring rows have a larger correlation, the dependence does not come from sources that take turns.
_NEIGHBORS = 0.3
# A convolution with these weights sums the values at distances 2 to 10 before and after each value.
_AROUND = np.array([1.0] * 9 + [0.0] * 3 + [1.0] * 9)
# Rows count as repeated only if at least this fraction of the rows equals another row.
_LEAST_REPEATED = 0.1
# For a mixture of atoms and a density, the probability that the atoms appear to repeat equally often by chance.
_FALSE_ALARMS_OF_ATOMS = 1e-3
# Let m be the mean number of rows of a repeated value. Repeated values are atoms if m is above `_SELDOM`, and more
# values occur once than `_MOST_SINGLES` times the number expected for geometrically repeated records. They are also
# atoms if there are fewer of them than m^2 / `_FEW_VALUES`.
_SELDOM, _MOST_SINGLES, _FEW_VALUES = 3.0, 3.0, 3.0
# If more than this fraction of the repeated values occurs in the other data set, these values are atoms.
_MOST_ELSEWHERE = 0.1


@dataclass(frozen=True)
class SerialDependence:
    """Statistically significant dependence of rows.

    Attributes:
        kind: ``"blocks"``: neighboring rows are similar. ``"period"``: rows at the distance of one period are similar,
            for example because sources take turns. ``"uneven"``: similar rows are at varying distances, for example
            because sources miss turns. ``"pattern"``: the period is shorter than `FEWEST_BLOCKS` rows; the period may
            be a design, and rows count as independent. ``"repeats"``: whole rows are equal.
        rows: the number of rows.
        time: the number of rows with as much information as one independent row.
        length: the number of rows in a block or in a period; 0 for repeats.
        labels: for each row, the index from 0 of its block, of its phase, or of its group of equal rows, shape (rows,).
            None for a pattern, if there are too few blocks, or if blocks do not help.
        grid: the number of rows in a line, if rows are the points of a grid, line after line, and blocks are whole
            lines; otherwise 0.
    """

    kind: Kind
    rows: int
    time: float
    length: int
    labels: Integers | None
    grid: int = 0

    @property
    def is_open(self) -> bool:
        """Whether no independent groups of rows exist, so that no standard error can be computed."""
        return self.labels is None and self.kind != "pattern"

    @property
    def effective(self) -> float:
        """The number of independent rows with the same information."""
        return self.rows / self.time

    @property
    def correction(self) -> float:
        r"""The factor for a variance computed from blocks: :math:`\tau / V_L` of an autoregressive process."""
        if self.kind != "blocks" or self.labels is None:
            return 1.0
        return 1 / (1 - (self.time - 1 / self.time) / (2 * self.length))


def number_scores(x: Floats) -> Floats:
    """Convert numbers of shape (n, d) to scores of shape (n, c), for the measurement of their dependence.

    The scores are the ranks of each unsorted column, and then the distances of the ranks from the middle. Random
    directions replace many columns. Sorted columns are left out: any column can be sorted, so the order of a
    sorted column is no evidence of dependence.
    """
    x = x[:, ~((x[1:] >= x[:-1]).all(0) | (x[1:] <= x[:-1]).all(0))]
    if x.shape[1] > _MOST_COLUMNS:
        x = np.ldexp(x, -np.frexp(np.abs(x).max(0))[1])  # the squares of huge values are infinite
        scale = x.std(0)
        directions = np.random.default_rng(0).standard_normal((x.shape[1], _MOST_COLUMNS))
        x = (x / np.where(scale > 0, scale, 1.0)) @ directions
    ranks = np.stack(list(map(_ranks, x.T)), 1) if x.shape[1] else np.zeros((len(x), 0))
    return np.concatenate([ranks, np.abs(ranks)], 1)


def category_scores(codes: Integers) -> Floats:
    """Convert categories 0, 1, ... to scores of shape (n, c), for the measurement of their dependence.

    The scores are indicators of the most frequent categories, and of random halves of all categories. If the rows are
    sorted by category, there are no scores (c = 0).
    """
    counts = np.bincount(codes)
    if np.count_nonzero(np.diff(codes)) < np.count_nonzero(counts):  # each category has one run
        return np.zeros((len(codes), 0))
    frequent = np.argsort(-counts, kind="stable")[:_MOST_CATEGORIES]
    scores = [codes == category for category in frequent if counts[category]]
    if len(counts) > _MOST_CATEGORIES:
        halves = np.random.default_rng(0).random((_HALVES, len(counts))) < 0.5
        scores += list(halves[:, codes])
    return np.stack(scores, 1).astype(float)


def serial_dependence(scores: Floats) -> SerialDependence | None:
    """Return the serial dependence of rows; None if the dependence is not statistically significant.

    Arguments:
        scores: the scores of each row from `number_scores` or `category_scores`, shape (rows, columns). Rows are
            dependent if any column is dependent.
    """
    n = len(scores)
    spread = scores.std(0) if n >= _FEWEST_ROWS else np.zeros(scores.shape[1])
    scores = (scores[:, spread > 0] - scores[:, spread > 0].mean(0)) / spread[spread > 0]
    if not scores.shape[1]:
        return None
    shape = _shape(scores)
    period = _period(scores, shape)
    if period and (dependence := _of_period(scores, period)):
        return _or_uneven(scores, dependence)
    ratios, significant = _variance_ratios(scores, shape)
    if not significant.any():
        return None
    time = max(1.0, float(ratios[:, significant].max()))
    length = block_length(n, time)
    if period:  # round up to whole periods
        length = period.rows * math.ceil(length / period.rows)
    blocks = n // length
    labels = block_labels(n, blocks) if blocks >= FEWEST_BLOCKS else None
    return _or_uneven(scores, SerialDependence("blocks", n, time, length, labels))


def _or_uneven(scores: Floats, dependence: SerialDependence) -> SerialDependence:
    """Return the dependence of sources that miss turns if such sources are likelier than a period or blocks.

    Such sources can look like blocks, because a long block has several rows of a source. But neighboring rows of such
    sources are seldom similar.
    """
    if dependence.is_open or dependence.grid:
        return dependence
    is_in_blocks = dependence.kind == "blocks"
    if is_in_blocks and (scores[1:] * scores[:-1]).mean(0).max() > _NEIGHBORS:
        return dependence
    distance = spectral_turns(scores, regular=1 if is_in_blocks else dependence.length)
    return dependence if distance is None else uneven(len(scores), distance)


def uneven(rows: int, distance: int) -> SerialDependence:
    """Return the dependence of sources that miss turns, and usually return after `distance` rows."""
    return SerialDependence("uneven", rows, rows / distance, distance, None)


def _of_period(scores: Floats, period: _Period) -> SerialDependence | None:
    """Return the dependence of rows with a period; None if only neighboring rows are similar, as in a season."""
    n, length = len(scores), period.rows
    phases = np.arange(n) % length
    sums = np.stack([np.bincount(phases, column, length) for column in scores.T])
    rest = scores - (sums / np.bincount(phases)).T[phases]
    rest = rest[:, rest.std(0) > _ROUNDING]
    rest /= rest.std(0)
    if period.smooth and length >= FEWEST_BLOCKS:
        # A season affects only the means of the phases. The lines of a grid are similar even without these means.
        is_grid = rest.shape[1] and _period(rest, _shape(rest)) and _fades(scores, length)
        return _of_grid(scores, length) if is_grid else None
    serial = bool(rest.shape[1]) and bool(_variance_ratios(rest, _shape(rest))[1].any())
    if length < FEWEST_BLOCKS:
        return None if serial else SerialDependence("pattern", n, 1.0, length, None)
    if not serial and _drifts(scores, length):
        return uneven(n, length)
    time = max(1.0, float(np.square(sums).sum(1).max()) / n)
    return SerialDependence("period", n, time, length, None if serial else phases)


def _fades(scores: Floats, period: int) -> bool:
    """Return whether the correlation of rows one period apart fades over many periods; for a season, it does not."""
    n = len(scores)
    size, lags = 1 << (2 * n - 1).bit_length(), n // 2
    power = np.square(np.abs(np.fft.rfft(scores, size, axis=0)))
    correlation = np.fft.irfft(power, size, axis=0)[: lags + 1] / (n - np.arange(lags + 1))[:, None]
    column = correlation[:, int(correlation[period].argmax())]
    far = column[-max(period, lags // 4) :].max()
    return bool(far < _FADED * column[period])


def _of_grid(scores: Floats, line: int) -> SerialDependence:
    """Return the dependence of the points of a grid, line after line. The blocks are whole lines, or layers of lines.

    Parts of a line, or a few lines, would be blocks as similar as neighboring lines. So the autocorrelation time is
    measured on the means of lines, in lines, and the block length is a number of lines. From few lines, ratios of
    variances are too small. The time of an autoregression with the correlation of neighboring lines is a bound for
    smooth fields.
    """
    n = len(scores)
    while True:
        lines = n // line
        means = scores[: lines * line].reshape(lines, line, -1).mean(1)
        spread = np.maximum(means.std(0), _ROUNDING)
        centered = (means - means.mean(0)) / spread
        layer = _period(centered, _shape(centered)) if lines >= _FEWEST_ROWS else None
        if layer is None:
            break
        line *= layer.rows
    correlation = (centered[1:] * centered[:-1]).mean(0)
    # The mean of the estimated correlation is too low by the added term (Note on bias in the estimation of
    # autocorrelation, Kendall, 1954).
    correlation = np.clip(correlation + (1 + 3 * correlation) / lines, 0.0, 1 - 1 / lines)
    times = (1 + correlation) / (1 - correlation)
    measured = np.ones_like(times)
    if lines >= _FEWEST_COMPARED:
        ratios = _variance_ratios(centered, _shape(centered))[0].max(0)
        times, measured = np.maximum(times, ratios), np.maximum(ratios, 1.0)
    time = max(1.0, float((measured * np.square(spread)).max()) * line)
    length = line * block_length(lines, float(times.max()))
    blocks = n // length
    labels = block_labels(n, blocks) if blocks >= FEWEST_BLOCKS else None
    return SerialDependence("blocks", n, time, length, labels, line)


def _drifts(scores: Floats, period: int) -> bool:
    """Return whether the phase means of the second half of the rows match the first half after a shift of phases.

    A missing row moves all later rows by one phase.
    """
    half = len(scores) // period // 2 * period
    if not half:
        return False
    first, second = (
        part.reshape(-1, period, scores.shape[1]).mean(0) for part in (scores[:half], scores[half : 2 * half])
    )
    first, second = first - first.mean(0), second - second.mean(0)
    size = np.sqrt(np.square(first).sum(0) * np.square(second).sum(0))
    spectra = np.conj(np.fft.rfft(first, axis=0)) * np.fft.rfft(second, axis=0)
    match = np.fft.irfft(spectra, period, axis=0) / np.maximum(size, _ROUNDING)
    best = int(match.max(0).argmax())
    limit = normal_quantile(1 - _FALSE_ALARMS / period) / math.sqrt(period)
    return bool(match[1:, best].max() > limit)


def block_length(
    rows: int, time: float, least: float = _FEWEST_TIMES_IN_A_BLOCK, blocks: int = _USUAL_BLOCKS
) -> int:
    """Return the block length that makes block means nearly independent, from the autocorrelation time."""
    return math.ceil(time * min(max(rows / time / blocks, least), _MOST_TIMES * least))


def block_labels(rows: int, blocks: int) -> Integers:
    """Return the block number of each row, for `blocks` blocks of neighboring rows with nearly equal lengths."""
    return np.arange(rows) * blocks // rows


def repeated_rows(x: Floats, other: Floats | None = None) -> SerialDependence | None:
    """Return the dependence from repeated rows of continuous numbers, shape (n, d); None if rows do not repeat.

    Rounded numbers and mixtures with atoms also have equal values. Rows count as repeated only if three conditions
    hold. First, no row is far more frequent than the other rows. Second, some column is continuous among the distinct
    rows: its values seldom repeat, and they are not on a lattice, where the gaps between neighboring values are equal.
    Third, all rows repeat about equally often, as independent draws do not; or the values have more digits than prices,
    and many distinct rows repeat. A few values that many rows share are atoms, even if other values have a density
    (`_are_atoms`).

    Numbers that repeat in `x` are atoms if they occur in another data set, `other`, of shape (m, 1).
    """
    n = len(x)
    if n < _FEWEST_ROWS:
        return None
    # A sum of ranks with random weights is equal only for equal rows.
    weights = np.random.default_rng(0).uniform(1, 2, x.shape[1])
    key = x[:, 0] if x.shape[1] == 1 else sum(map(np.multiply, weights, map(_ranks, x.T)))
    _, first, labels, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    again = counts[counts > 1]
    if again.sum() < _LEAST_REPEATED * n or len(again) < FEWEST_BLOCKS or again.max() > 8 * np.median(again):
        return None
    continuous = [column[first] for column in x.T if _is_continuous(column[first])]
    if not continuous:
        return None
    if not _are_even(counts, _FALSE_ALARMS):
        is_elsewhere = other is not None and np.isin(x[first[counts > 1], 0], other).mean() > _MOST_ELSEWHERE
        are_atoms = _are_atoms(counts) and not _are_even(again, _FALSE_ALARMS_OF_ATOMS)
        if is_elsewhere or are_atoms or all(map(has_few_digits, continuous)):
            return None
    time = float(np.square(counts).sum()) / n
    return SerialDependence("repeats", n, time, 0, labels.reshape(-1).astype(np.int64))


def _are_atoms(counts: Integers) -> bool:
    """Return whether the repeated values are atoms, from the number of rows of each value.

    Repeated values are atoms if there are few: fewer than a third of the square of their mean number of rows. They
    are also atoms if many other values occur only once. Values that are drawn from a density occur only once. For
    comparison, let the numbers of copies of records be geometric with mean mu. Then repeated records have mu + 1
    copies on average, and the number of single records is 1 / (mu - 1) times the number of repeated records.
    """
    again = counts[counts > 1]
    often, once = float(again.mean()), len(counts) - len(again)
    if len(again) < often**2 / _FEW_VALUES:
        return True
    return often > _SELDOM and once * (often - 2) > _MOST_SINGLES * len(again)


def _is_continuous(distinct: Floats) -> bool:
    """Return whether the values of distinct rows seldom repeat and are not multiples of one step."""
    values = np.unique(distinct)
    gaps = np.diff(values / 2)  # half the values, because their range could overflow
    if len(values) < 0.9 * len(distinct) or len(gaps) < 2:
        return False
    # For independent gaps, the smaller of two neighboring gaps is above 0.98 times the larger gap in 1 % of cases.
    alike = np.minimum(gaps[1:], gaps[:-1]) > 0.98 * np.maximum(gaps[1:], gaps[:-1])
    return bool(alike.mean() < 0.03 + 0.2 / math.sqrt(len(gaps)))


def has_few_digits(values: Floats) -> bool:
    """Return whether all values (float64 or float32) have at most two decimals, or at most six significant digits."""
    single = values.astype(np.float32)
    kind = np.float32 if (single == values).all() else np.float64
    if (np.round(values, 2).astype(kind) == values.astype(kind)).all():
        return True
    return all(kind(f"{value:.6g}") == kind(value) for value in values)


def _are_even(counts: Integers, false_alarms: float) -> bool:
    """Return whether the counts vary significantly less than truncated Poisson numbers with the same mean.

    The smallest truncated Poisson number is 1 if some value occurs once, otherwise 2. Draws of equally likely values
    have such Poisson counts.
    """
    least, mean, values = min(int(counts.min()), 2), float(counts.mean()), len(counts)
    if mean == least:
        return True
    reach = 12 * math.sqrt(mean) + 30  # larger deviations have negligible probability
    k = np.arange(max(least, math.floor(mean - reach)), math.ceil(mean + reach), dtype=np.float64)
    log_factorial = np.array([math.lgamma(number + 1) for number in k])
    shares = np.full(len(k), 1 / len(k))
    low, high = 0.0, mean  # bounds for the rate of the truncated Poisson distribution
    for _ in range(60):
        rate = (low + high) / 2
        logs = k * math.log(rate) - log_factorial
        shares = np.exp(logs - logs.max())
        shares /= shares.sum()
        low, high = (low, rate) if shares @ k > mean else (rate, high)
    variance, fourth = (float(shares @ (k - mean) ** power) for power in (2, 4))
    # The sample variance is about chi-squared distributed, with degrees of freedom that match its own variance.
    dof = 2 / (2 / (values - 1) + (fourth / variance**2 - 3) / values)
    return bool(chi_square_scores(counts.var(ddof=1) / variance, dof) < normal_quantile(false_alarms))


def _ranks(x: Floats) -> Floats:
    """Return ranks scaled to the range from -1/2 to 1/2; ties get their mean rank."""
    _, codes, counts = np.unique(x, return_inverse=True, return_counts=True)
    return ((np.cumsum(counts) - (counts + 1) / 2) / max(len(x) - 1, 1) - 0.5)[codes]


def _variance_ratios(scores: Floats, shape: tuple[Floats, Floats]) -> tuple[Floats, Flags]:
    """Return V_L for each length (rows) and column, and for each column whether any V_L is significantly above 1."""
    n, columns = scores.shape
    sums, length = scores, 1
    limit = normal_quantile(1 - _FALSE_ALARMS / columns)
    lag_one = (scores[1:] * scores[:-1]).mean(0) + 1 / n
    by_length: list[Floats] = []
    while len(sums) >= _FEWEST_COMPARED:
        blocks = len(sums)
        by_length.append((sums * sums).mean(0) / length / (1 - 1 / blocks))
        sums = sums[: blocks - 1 : 2] + sums[1::2]
        length *= 2
    ratios = np.stack(by_length)
    others = 2.0 ** np.arange(1, len(ratios))[:, None] - 1  # the number of rows in a block, minus one
    z = chi_square_scores(ratios[1:], n / others)
    z, pairs = np.vstack([lag_one * math.sqrt(n), z]), np.vstack([[n], n * others / 2])
    return ratios, np.logical_or.reduce(z > _limit(limit, *shape, pairs), axis=0)


def _shape(scores: Floats) -> tuple[Floats, Floats]:
    """Return the squared skewness and the kurtosis of columns with mean 0 and standard deviation 1."""
    square = scores * scores
    return np.square((square * scores).mean(0)), (square * square).mean(0)


def _limit(limit: float, skewness: Floats, kurtosis: Floats, pairs: Floats | float) -> Floats:
    """Correct a normal limit for sums of products of `pairs` pairs of scores, by the Cornish-Fisher expansion."""
    third = skewness / np.sqrt(pairs)
    fourth = np.maximum(np.square(kurtosis) - 3, 0) / pairs
    return limit + (limit**2 - 1) * third / 6 + (limit**3 - 3 * limit) * fourth / 24


class _Period(NamedTuple):
    """The number of rows in a period, and whether neighboring phases are also similar to each other."""

    rows: int
    smooth: bool


def _period(scores: Floats, shape: tuple[Floats, Floats]) -> _Period | None:
    """Return the period of the column with the highest correlation; None if no column has a period."""
    scores = scores[:_MOST_ROWS_FOR_PERIOD]
    n, columns = scores.shape
    size, lags = 1 << (2 * n - 1).bit_length(), n // 2
    limit = normal_quantile(1 - _FALSE_ALARMS / columns / lags)
    limits = _limit(limit, *shape, n)
    pairs, number_around = n - np.arange(lags + 1), np.convolve(np.ones(lags + 1), _AROUND)[10:-10]
    highest, period = 0.0, None
    for column, bound in zip(scores.T, limits, strict=True):
        spectrum = np.fft.rfft(column, size)
        correlation = np.fft.irfft(np.square(np.abs(spectrum)), size)[: lags + 1] / pairs
        # The first lag without correlation between rows.
        near = int(np.argmax(correlation < 2 / math.sqrt(n)))
        # The standard error of an autocorrelation of dependent rows (On the theoretical specification and sampling
        # properties of autocorrelated time-series, Bartlett, 1946).
        error = np.sqrt((1 + 2 * float(np.square(correlation[1:near]).sum())) / pairs)
        # Long-range dependence raises the correlations at all lags. A period raises them only around its own lag.
        around = np.convolve(correlation, _AROUND)[10:-10] / number_around
        clear = (correlation - np.maximum(around, 0) > bound * error) & (np.arange(lags + 1) >= near)
        if near and clear.any() and correlation[clear].max() > highest:
            highest = float(correlation[clear].max())
            peak = _first_peak(np.where(clear, correlation, 0.0))
            adjacent = correlation[[peak - 1, peak + 1] if peak < lags else [peak - 1]].mean()
            period = _Period(peak, bool(adjacent > correlation[peak] / 2))
    return period


def _first_peak(correlation: Floats) -> int:
    """Return the first lag with a correlation near the maximum, or its smallest divisor with half that correlation."""
    high = correlation > 0.7 * correlation.max()
    first = int(np.argmax(high))
    width = int(np.argmin(np.append(high[first:], False)))
    peak = first + int(correlation[first : first + width].argmax())
    divisors = (k for k in range(2, peak) if peak % k == 0 and correlation[k] > 0.5 * correlation[peak])
    return next(divisors, peak)
