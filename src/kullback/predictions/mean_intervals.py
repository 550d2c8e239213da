"""Standard errors and confidence intervals of means over rows, which may depend on each other within clusters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kullback.common.arrays import Floats
from kullback.common.inference import student_quantile, wilson_interval
from kullback.common.serial_dependence import (
    FEWEST_BLOCKS,
    SerialDependence,
    block_labels,
    number_scores,
    serial_dependence,
)
from kullback.results.value import Reason

# The order of the first `_FIRST_ROWS` rows is examined row by row. If there are more rows, the order of at most
# `_MOST_PARTS` sums of consecutive rows is examined too.
_FIRST_ROWS, _MOST_PARTS = 1 << 16, 1 << 13
_LARGEST_SCORE = 1e300


class RowBlocks:
    """The sums of consecutive rows, in parts whose length doubles when there are too many parts.

    The last column counts rows. The order of rows is examined for dependence in the columns `examined`.
    """

    def __init__(self, columns: int, examined: Sequence[int]) -> None:
        self._examined = list(examined)
        self._sums = torch.zeros(_MOST_PARTS, columns, dtype=torch.float64, device="cpu")
        self._rows, self._length = 0, 1
        self._first: list[Floats] = []

    def add(self, table: Tensor) -> None:
        """Add the next rows, shape (rows, columns)."""
        room = _FIRST_ROWS - self._rows
        if room > 0:
            self._first.append(table[:room, self._examined].numpy().copy())
        parts = torch.arange(self._rows, self._rows + len(table), device="cpu")
        self._rows += len(table)
        while self._rows > self._length * _MOST_PARTS:
            halves = self._sums.view(-1, 2, self._sums.shape[1]).sum(1)
            self._sums = torch.cat([halves, torch.zeros_like(halves)])
            self._length *= 2
        self._sums.index_add_(0, parts // self._length, table)

    def combine(self, weights: Mapping[int, float]) -> None:
        """Insert the weighted sum of some columns before the last column."""
        self._sums = with_combined(self._sums, weights)

    def dependence(self) -> SerialDependence | None:
        """Return the serial dependence of the first rows and of all parts, with the block of each part, if any."""
        if not self._first or not self._examined:
            return None
        near = serial_dependence(number_scores(finite(np.concatenate(self._first))))
        far = None
        if self._rows > _FIRST_ROWS:
            whole = self._sums[: self._rows // self._length].numpy()
            far = serial_dependence(number_scores(finite(whole[:, self._examined] / self._length)))
        if near is None and far is None:
            return None
        time = (1.0 if near is None else near.time) * (1.0 if far is None else far.time)
        kind = "blocks" if near is None or (near.kind == "pattern" and far is not None) else near.kind
        lengths = [0 if near is None else near.length, 0 if far is None else far.length * self._length]
        dependence = SerialDependence(kind, self._rows, time, max(lengths), None)
        parts = math.ceil(self._rows / self._length)
        blocks = parts // math.ceil(dependence.length / self._length)
        if kind != "blocks" or blocks < FEWEST_BLOCKS:
            return dependence
        return replace(dependence, labels=block_labels(parts, blocks))

    def sums(self, dependence: SerialDependence) -> Floats:
        """Return the sums of the blocks, shape (blocks, columns), as `sums_of_blocks` does."""
        return sums_of_blocks(self._sums[: math.ceil(self._rows / self._length)].numpy(), dependence)


def with_combined(sums: Tensor, weights: Mapping[int, float]) -> Tensor:
    """Return sums with the weighted sum of some columns inserted before the last column."""
    *columns, rows = sums.unbind(-1)
    combined = torch.stack([weight * columns[place] for place, weight in weights.items()]).sum(0)
    return torch.stack([*columns, combined, rows], -1)


def sums_of_blocks(parts: Floats, dependence: SerialDependence) -> Floats:
    """Return the sums of the parts in each block, shape (blocks, columns); too few blocks have no intervals."""
    labels = block_labels(len(parts), FEWEST_BLOCKS - 1) if dependence.labels is None else dependence.labels
    sums = np.zeros((int(labels.max()) + 1, parts.shape[1]))
    np.add.at(sums, labels, parts)
    return sums


def finite(x: Any) -> Floats:
    """Return numbers with infinities replaced by the largest magnitude `_LARGEST_SCORE`, and NaN replaced by 0."""
    return np.nan_to_num(x, nan=0.0, posinf=_LARGEST_SCORE, neginf=-_LARGEST_SCORE)


# The largest number of groups. Further units join random groups, which preserves the variance of the mean.
GROUPS = 10_000
DRAWN_AT_ONCE = 1_000_000
# The fewest units that have an interval.
FEWEST_UNITS = 10
# The fewest units with a nonzero sum that bound the mean from above.
FEWEST_NONZERO = 10
# `TAIL` is the nominal probability beyond an end of the interval. `TAIL_IF_SKEWED` is used toward a long tail, where
# the studentized bootstrap covers less than its nominal coverage. The skewness of the mean interpolates between both.
TAIL, TAIL_IF_SKEWED = 0.025, 0.0025
SKEWNESS_OF_MEAN = 0.1, 0.2
# If the tail index, estimated from the largest units, is above this limit, the upper end is open. The first limit is
# for 100 units or fewer. The second limit is for 1,000 units or more, whose estimate is more precise.
HEAVIEST_TAILS = 0.75, 0.7
# An end stays open if Hill's estimate exceeds that limit by more than `CERTAINLY_HEAVY` standard errors. An end beyond
# `FARTHEST_END` times the mean absolute value carries no information and is replaced by an open
# end.
CERTAINLY_HEAVY, FARTHEST_END = 1.64, 1000.0
# The smallest degrees of freedom for Student's t. With fewer, the quantiles grow without bound (measured).
FEWEST_DEGREES = 1.5
# Sums of units from this value on count as infinite, because their cubes may overflow float64.
LARGEST = 1e100
# Units differ only by the rounding of sums if their relative differences from the mean are at most this.
ROUNDING = 1e-13


class RatioOfSums(NamedTuple):
    """A mean to estimate: the sum of a column divided by the sum of another column.

    Attributes:
        column: the column in the numerator.
        per: the column in the denominator; -1 for the number of rows.
        low, high: the smallest and the largest value that a row can have; infinite if there is no limit.
        binary: whether every value is 0 or 1.
    """

    column: int
    per: int = -1
    low: float = -math.inf
    high: float = math.inf
    binary: bool = False


class MeanEstimate(NamedTuple):
    """A standard error and a 95 % interval.

    Attributes:
        standard_error: the standard error; NaN for a single unit, +inf if a value is infinite.
        interval: the ends of the 95 % interval. An end that the data do not determine is the bound of the quantity,
            which is infinite for an unbounded quantity. None if neither end is determined or if no interval was
            requested.
        reason: the reason why an end is not determined; None if both ends are determined.
    """

    standard_error: float
    interval: tuple[float, float] | None = None
    reason: Reason | None = None


class MeanEstimator:
    r"""Standard errors and 95 % intervals of means :math:`m = \sum_u S_u / \sum_u n_u` over units (clusters, or rows).

    The standard error comes from the delete-one jackknife over units. The interval is the wider of two intervals:
    Student's t with this error, and the studentized bootstrap. The bootstrap resamples units, and divides the deviation
    of each draw by the draw's own linearized standard error. For nonnegative quantities, the bootstrap does so on the
    scale of the logarithm. Toward a long tail, the tail probability is smaller.

    Student's t interval with Satterthwaite's degrees of freedom is the least width of the interval, if units have
    different sizes or sums of clusters are heavy-tailed. These degrees follow from the units' influences on the mean:

    .. math:: \nu = \Bigl(\sum_u l_u^2\Bigr)^2 \Big/ \sum_u l_u^4, \qquad l_u = m_{(-u)} - \overline{m_{(-u)}}

    If the tail is even heavier, or there are too few units, the end is open (infinite).

    Arguments:
        draws: the number of bootstrap draws; 0 for no intervals.
        generator: the random generator of the bootstrap; None for a generator with a fixed seed.
        clusters: the number of the cluster of each row, shape (rows,), or None if each row is a unit.
        examined: the columns for examining the order of rows, or of clusters by their numbers. If the order
            shows dependence, blocks of rows or clusters are the units.

    References:
        The Jackknife, the Bootstrap and Other Resampling Plans (Efron, 1982)
        Bootstrap Methods and Their Application, sections 2.4, 3.8 and 5.2 (Davison and Hinkley, 1997)
        A Simple General Approach to Inference About the Tail of a Distribution (Hill, 1975)
        An Approximate Distribution of Estimates of Variance Components (Satterthwaite, 1946)
    """

    def __init__(
        self,
        columns: int,
        draws: int,
        generator: torch.Generator | None,
        clusters: Tensor | None,
        examined: Sequence[int] = (),
    ) -> None:
        generator = generator or torch.Generator().manual_seed(0)
        self._seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        self._draws, self._random = draws, np.random.default_rng(self._seed)
        # The last column counts rows.
        self._sums = torch.zeros(GROUPS, columns + 1, dtype=torch.float64, device="cpu")
        self._rows = 0
        self._group_of_row, self._examined = None, list(examined)
        self._blocks = RowBlocks(columns + 1, examined) if clusters is None and examined else None
        if clusters is not None:
            count = int(clusters.max()) + 1
            ordered = torch.arange(count, device="cpu") * min(count, GROUPS) // count
            self._group_of_row = (ordered if examined else self._new_groups(0, count))[clusters]

    def add(self, table: Tensor) -> None:
        """Add the next rows, shape (rows, columns)."""
        stop = self._rows + len(table)
        if self._group_of_row is None:
            groups = self._new_groups(self._rows, len(table))
        else:
            groups = self._group_of_row[self._rows : stop]
        counted = torch.nn.functional.pad(table, (0, 1), value=1.0)
        self._sums.index_add_(0, groups, counted)
        if self._blocks is not None:
            self._blocks.add(counted)
        self._rows = stop

    @cached_property
    def dependence(self) -> SerialDependence | None:
        """The serial dependence of the rows or clusters; None if there is no dependence, or if it was not examined."""
        if self._blocks is not None:
            return self._blocks.dependence()
        if self._group_of_row is None or not self._examined:
            return None
        units = self._units()
        means = units[:, self._examined] / units[:, -1:]
        return serial_dependence(number_scores(finite(means)))

    def _units(self) -> Floats:
        """Return the sums of the rows, or of the clusters."""
        return self._sums[self._sums[:, -1] > 0].numpy()

    def combine(self, weights: Mapping[int, float]) -> int:
        """Add a column with the weighted sum of other columns, after all rows are added, and return its index."""
        if self._blocks is not None:
            self._blocks.combine(weights)
        self._sums = with_combined(self._sums, weights)
        return self._sums.shape[1] - 2

    def independent_units(self) -> Floats:
        """Return the sums of the units that intervals assume to be independent, shape (units, columns + 1)."""
        units, dependence = self._units(), self.dependence
        if dependence is None or dependence.kind == "pattern":
            return units
        return sums_of_blocks(units, dependence) if self._blocks is None else self._blocks.sums(dependence)

    def estimates(self, quantities: Sequence[RatioOfSums], units: Floats | None = None) -> list[MeanEstimate]:
        """Return the estimate of each quantity, all from the same draws. `units` are other columns of the independent
        units; with them, every call has the same draws.
        """
        random = self._random if units is None else np.random.default_rng(self._seed)
        units, dependence = self.independent_units() if units is None else units, self.dependence
        in_blocks = dependence is not None and dependence.kind != "pattern"
        wider = math.sqrt(dependence.correction) if dependence is not None else 1.0
        clustered = self._group_of_row is not None or in_blocks
        of_rows = not clustered and self._rows > GROUPS  # random groups, whose sizes mean nothing
        ratios = [
            _Ratio(units, quantity, clustered=clustered, of_rows=of_rows, wider=wider)
            for quantity in quantities
        ]
        drawn = [ratio for ratio in ratios if self._draws and ratio.needs_draws]
        sums = self._drawn_sums(len(units), [ratio.products() for ratio in drawn], random)
        sums_of = dict(zip(map(id, drawn), sums, strict=True))
        return [ratio.estimate(sums_of.get(id(ratio)), asked=self._draws > 0) for ratio in ratios]

    def _drawn_sums(self, units: int, products: list[Floats], random: np.random.Generator) -> list[Floats]:
        """For each matrix of shape (units, 5), return the sums over the units of each draw, shape (draws, 5)."""
        if not products:
            return []
        table = np.concatenate(products, -1)
        drawn_sums = np.empty((self._draws, table.shape[1]))
        step = DRAWN_AT_ONCE // units  # at least 100: there are at most GROUPS units
        for first in range(0, self._draws, step):
            here = drawn_sums[first : first + step]
            picked = random.integers(units, size=(len(here), units))
            picked += units * np.arange(len(here))[:, None]
            times = np.bincount(picked.ravel(), minlength=len(here) * units).reshape(len(here), units)
            here[:] = times @ table
        return np.split(drawn_sums, len(products), -1)

    def _new_groups(self, first: int, count: int) -> Tensor:
        """Return the groups of `count` units from unit `first` on; those beyond `GROUPS` have random groups."""
        units = torch.arange(first, first + count, device="cpu")
        drawn = torch.from_numpy(self._random.integers(GROUPS, size=count))
        return torch.where(units < GROUPS, units, drawn)


class _Ratio:
    """The sums of one quantity over units. They give the standard error and the interval."""

    def __init__(
        self, units: Floats, quantity: RatioOfSums, *, clustered: bool, of_rows: bool, wider: float
    ) -> None:
        self._quantity, self._clustered = quantity, clustered
        sizes = units[:, quantity.per]
        used = sizes > 0
        self._sums, self._sizes = units[used, quantity.column], sizes[used]
        self._used, self.count = used, int(used.sum())
        self.finite = bool((np.abs(self._sums) < LARGEST).all())
        self._flipped = self.needs_draws = False
        if not self.finite or self.count < 2:
            return
        low, high = quantity.low, quantity.high
        # A quantity closer to its upper bound than to 0 is skewed to the left, so its complement is estimated instead.
        if low == 0 and math.isfinite(high) and self._sums.sum() / self._sizes.sum() > high / 2:
            self._flipped = True
            self._sums = high * self._sizes - self._sums
        self._low, self._high, self._positive = low, high, low == 0
        self._unlike = not of_rows and bool(self._sizes.max() > self._sizes.min())
        total = self._sizes.sum()
        self._mean = float(self._sums.sum() / total)
        self._deviations = self._sums - self._mean * self._sizes
        if (np.abs(self._deviations) <= ROUNDING * np.abs(self._sums)).all():  # every row has the same value
            self._deviations[:] = 0
        left_out = self._deviations / (total - self._sizes)
        self._left_out = left_out - left_out.mean()
        self.error = wider * math.sqrt((self.count - 1) / self.count * float(np.square(self._left_out).sum()))
        exact = quantity.binary and not clustered
        self.needs_draws = self.count >= FEWEST_UNITS and self.error > 0 and not exact

    def products(self) -> Floats:
        """Return deviations, sizes and their products for all units, shape (units, 5)."""
        products = np.zeros((len(self._used), 5))
        d, n = self._deviations, self._sizes
        products[self._used] = np.stack([d, n, d * d, d * n, n * n], -1)
        return products

    def estimate(self, drawn: Floats | None, *, asked: bool) -> MeanEstimate:
        """Return the estimate from the sums of `products` in each draw, with an interval if requested."""
        if not self.finite:
            return MeanEstimate(math.inf)
        if self.count < 2:
            return MeanEstimate(math.nan, None, "few units" if asked else None)
        if not asked:
            return MeanEstimate(self.error)
        if self.count < FEWEST_UNITS:
            return MeanEstimate(self.error, None, "few units")
        reason: Reason | None = None
        if drawn is not None:
            low, high, reason = self._ends(drawn)
        elif self._quantity.binary:
            low, high = self._proportion(self._mean)
        else:  # every row has the same value
            low = high = self._mean
            if self._positive and self._mean == 0:
                high, reason = self._few_nonzero()
        if self._flipped:
            low, high = self._quantity.high - high, self._quantity.high - low
        return MeanEstimate(self.error, (low, high), reason)

    def _ends(self, drawn: Floats) -> tuple[float, float, Reason | None]:
        skewness = np.mean(self._left_out**3) / np.mean(self._left_out**2) ** 1.5 / math.sqrt(self.count)
        tails = _tail_probability(-skewness), _tail_probability(skewness)
        below, above = self._studentized(drawn, tails)
        mean, error = self._mean, self.error
        if self._positive:
            ends = mean * math.exp(below * error / mean), mean * math.exp(min(above * error / mean, 700.0))
        else:
            ends = mean + below * error, mean + above * error
        low = min(ends[0], mean - student_quantile(1 - tails[0], self.count - 1) * error)
        high = max(ends[1], mean + student_quantile(1 - tails[1], self.count - 1) * error)
        farther = self._by_influence(tails)
        if self._unlike:
            low, high = min(low, farther[0]), max(high, farther[1])
        reason: Reason | None = None
        nonzero = self._sums != 0
        spread = (np.abs(self._sums).sum() / self._sizes.sum() * self._sizes)[nonzero]
        deviations = self._deviations[nonzero]
        if self._positive and len(spread) < FEWEST_NONZERO:
            high, reason = self._few_nonzero()
        elif _heavy_tailed(spread + deviations):
            high, reason = self._beyond_heavy_tail(1, high, farther[1])
        if not self._positive and _heavy_tailed(spread - deviations):
            low, reason_below = self._beyond_heavy_tail(-1, low, farther[0])
            reason = reason or reason_below
        if high > FARTHEST_END * self._scale() and math.isinf(self._high):
            high, reason = math.inf, reason or "heavy tail"
        return max(self._low, low), min(self._high, high), reason

    def _by_influence(self, tails: tuple[float, float]) -> tuple[float, float]:
        """Return the ends by Student's t, with degrees of freedom from the units' influences."""
        squares = np.square(self._left_out)
        dof = max(FEWEST_DEGREES, float(squares.sum() ** 2 / np.square(squares).sum()))
        below, above = (student_quantile(1 - tail, dof) * self.error for tail in tails)
        if not self._positive:
            return self._mean - below, self._mean + above
        return (
            self._mean * math.exp(-min(below / self._mean, 700.0)),
            self._mean * math.exp(min(above / self._mean, 700.0)),
        )

    def _beyond_heavy_tail(self, sign: int, end: float, farther: float) -> tuple[float, Reason | None]:
        """Return an end for heavy-tailed sums of units, and the reason if the end is open.

        Sums of clusters may be heavy-tailed only because clusters differ in size. So the end for clusters is open only
        if two quantities have a significantly heavy tail: the means of clusters, and the deviations of the sums from
        the values expected for their sizes.
        """
        if not (self._clustered or self._unlike):
            return (self._high if sign > 0 else self._low), "heavy tail"
        means = self._sums / self._sizes
        from_mean = means - means.mean()
        deviations = np.abs(self._sums).mean() + sign * self._deviations
        certain = _heavy_tailed(deviations, CERTAINLY_HEAVY) and _heavy_tailed(
            np.abs(means).mean() + sign * from_mean, CERTAINLY_HEAVY
        )
        reached = max(end, farther) if sign > 0 else min(end, farther)
        if certain or abs(reached) > FARTHEST_END * self._scale():
            return (self._high if sign > 0 else self._low), "heavy tail"
        return reached, None

    def _scale(self) -> float:
        """Return the mean of absolute values."""
        return float(np.abs(self._sums).sum() / self._sizes.sum())

    def _few_nonzero(self) -> tuple[float, Reason | None]:
        """Return the upper end for few nonzero units: a bound from their number, if the quantity itself is bounded.

        The bootstrap gives no such end, because a draw without any nonzero unit has no standard error.
        """
        if math.isinf(self._high):
            return self._high, "few nonzero units"
        return self._high * self._proportion(np.count_nonzero(self._sums) / self.count)[1], None

    def _studentized(self, drawn: Floats, tails: tuple[float, float]) -> tuple[float, float]:
        """Return the signed distances of the interval's ends from the mean, in standard errors of the mean.

        For a quantity that is never negative, the logarithm of the mean replaces the mean.
        """
        total = drawn[:, 1]
        with np.errstate(all="ignore"):
            shift = drawn[:, 0] / total
            variance = drawn[:, 2] - 2 * shift * drawn[:, 3] + shift**2 * drawn[:, 4]
            error = np.sqrt(np.maximum(variance, 0) * self.count / (self.count - 1)) / total
            ratio = shift / error
            if self._positive:
                ratio = np.log1p(shift / self._mean) / (error / (self._mean + shift))
            ratio = np.where(np.isfinite(ratio), ratio, np.copysign(np.inf, shift))
        ordered = np.sort(ratio[total > 0])
        first = max(0, int(tails[1] * (len(ordered) + 1)) - 1)
        last = min(len(ordered) - 1, len(ordered) - int(tails[0] * (len(ordered) + 1)))
        return -float(ordered[last]), -float(ordered[first])

    def _proportion(self, of_units: float) -> tuple[float, float]:
        """Return the ends of the interval for a proportion of units.

        With clusters, the upper end allows for the case that the counted units are the largest clusters.
        """
        if not self._clustered:
            return wilson_interval(of_units, float(self._sizes.sum()), 1 - 2 * TAIL)
        high = wilson_interval(of_units, self.count, 1 - 2 * TAIL)[1]
        return 0.0, min(1.0, high * float(self._sizes.max() / self._sizes.mean()))


def _tail_probability(skewness: float) -> float:
    """Return the probability beyond an end of the interval, given the skewness of the mean toward that end."""
    least, most = SKEWNESS_OF_MEAN
    weight = min(1.0, max(0.0, (skewness - least) / (most - least)))
    return TAIL * (TAIL_IF_SKEWED / TAIL) ** weight


def _heavy_tailed(values: Floats, errors: float = 0.0) -> bool:
    """Return whether Hill's estimate of the tail index is too large by more than `errors` of its standard errors."""
    top = max(5, int(1.5 * math.sqrt(len(values))))
    largest = np.sort(values)[::-1][: top + 1]
    few, many = HEAVIEST_TAILS
    if len(largest) <= top:
        return True
    limit = few + (many - few) * min(1.0, max(0.0, math.log10(len(values) / 100)))
    limit *= 1 + errors / math.sqrt(top)
    return bool(largest[-1] <= 0 or np.log(largest[:-1] / largest[-1]).mean() > limit)
