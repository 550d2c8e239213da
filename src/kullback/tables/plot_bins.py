"""Histograms of the numbers of P and Q for drawings, with a bin for each value or with bins of equal width.

These bins are only for display. The compared bins end at P's quantiles, so a drawing of them would show P as flat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kullback.common.arrays import Flags, Floats
from kullback.tables.columns.column_profile import ColumnProfile
from kullback.tables.columns.log_grid import bucket_ends, integers_in
from kullback.tables.table_results import HistogramBin

MOST_VALUES = 24  # at most this many values have a bin each
FEWEST_BINS, MOST_BINS = 8, 40
TAIL = 0.005  # the proportion of P and of Q that a tail may hold if the histogram leaves it out
FAR = 2.0  # tails are left out if they make the range more than this many times as long
# Positive values have bins of equal ratio if they span more than DECADES powers of ten, and their middle half spans
# less than CENTER of the range.
DECADES = 3.0
CENTER = 0.05
# Buckets nearer to the center than this are narrower than 1. If they all begin at integers, the values are integers.
WHOLE = 32.0


def histogram(p: ColumnProfile, q: ColumnProfile) -> tuple[HistogramBin, ...]:
    """Return the weights of P's and Q's finite numbers in bins for drawings; an empty tuple for categories.

    If there are few different integers, each has a bin. Integers far from the grid's center share a bin if they share a
    bucket.

    If there are more values, the weight of each bucket of the grid is spread evenly over the bucket. The first bin
    begins at -inf if the lower tail is left out. The last bin ends at inf if the upper tail is left out.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables import profile_table
        >>> ages = profile_table(pa.table({"age": [1, 1, 2]})).columns["age"]
        >>> [(each.low, each.p, each.q) for each in histogram(ages, ages)]
        [(1, 2.0, 2.0), (2, 1.0, 1.0)]
    """
    sides = [each for each in (p, q) if each.buckets]
    if not sides or not sides[0].gridded or len({each.center for each in sides}) > 1:
        return ()
    column = _Buckets.of(sides)
    weights = [column.weights(each) for each in (p, q)]
    single = column.first == column.last
    dated = sides[0].column_type == "datetime"
    if len(single) <= MOST_VALUES and (
        single.all() or (column.integer and not dated and column.apart(single))
    ):
        return tuple(map(HistogramBin, column.values, column.ends, *(each.tolist() for each in weights)))
    edges = _edges(column, weights, min(sum(each.buckets.values()) for each in sides))
    if edges is None:
        return ()
    counts = [column.spread(each, edges) for each in weights]
    ends = edges.tolist()
    bins = map(HistogramBin, ends[:-1], ends[1:], *(each.tolist() for each in counts))
    return tuple(each for each in bins if math.isfinite(each.high - each.low) or each.p or each.q)


@dataclass(frozen=True)
class _Buckets:
    """The occupied buckets of both sides in ascending order, limited to the range of the values.

    `values` and `ends`, ints for integers, are equal for a single value; `first` and `last` are the same as floats.
    """

    buckets: Sequence[int]
    values: Sequence[float]
    ends: Sequence[float]
    first: Floats
    last: Floats
    integer: bool

    @classmethod
    def of(cls, sides: Sequence[ColumnProfile]) -> _Buckets:
        center = sides[0].center
        buckets = sorted({bucket for each in sides for bucket in each.buckets})
        least = min(each.minimum for each in sides if each.minimum is not None)
        most = max(each.maximum for each in sides if each.maximum is not None)
        integer = sides[0].column_type == "text" or all(each.integer for each in sides)
        if not integer and _begin_at_integers(buckets, center):
            nearest = [bucket_ends(bucket, center)[bucket < 0] for bucket in buckets]
            ends = [(value, value) for value in nearest]
        elif integer:
            ends = [integers_in(bucket, center) for bucket in buckets]
            ends = [(low, high if low == high else high + 1) for low, high in ends]
        else:
            ends = [bucket_ends(bucket, center) for bucket in buckets]
        clipped = [(max(low, least), max(low, least, min(high, most + integer))) for low, high in ends]
        # The bucket of the largest integer may hold only this integer.
        clipped = [(low, low if integer and high == low + 1 else high) for low, high in clipped]
        first, last = np.array(clipped, np.float64).T
        return cls(buckets, [low for low, _ in clipped], [high for _, high in clipped], first, last, integer)

    def apart(self, single: Flags) -> bool:
        """Whether no bucket of several values touches another bucket, so that every bucket may hold one value only."""
        return all(
            after > before + 1 or (alone and alone_too)
            for (before, alone), (after, alone_too) in pairwise(zip(self.buckets, single, strict=True))
        )

    def weights(self, column: ColumnProfile) -> Floats:
        """Return the weight of each bucket in the profile of one side."""
        return np.array([column.buckets.get(bucket, 0.0) for bucket in self.buckets])

    def spread(self, weights: Floats, edges: Floats) -> Floats:
        """Return the weight between each edge and the next edge."""
        # The last bucket that begins below each edge.
        place = np.searchsorted(self.first, edges, side="left") - 1
        width = np.where(self.last > self.first, self.last - self.first, 1.0)
        with np.errstate(invalid="ignore"):
            inside = np.clip((edges - self.first[place]) / width[place], 0.0, 1.0)
        inside = np.where(self.last[place] > self.first[place], inside, 1.0)
        below = np.where(place >= 0, np.cumsum(weights)[place] - weights[place] * (1 - inside), 0.0)
        below[-1] = weights.sum()  # the last bin includes its upper end
        return np.diff(below)

    def quantile(self, weights: Floats, probability: float) -> tuple[float, float]:
        """Return the ends of the bucket that holds a quantile."""
        reached = np.cumsum(weights)
        place = min(int(np.searchsorted(reached, probability * reached[-1])), len(reached) - 1)
        return float(self.first[place]), float(self.last[place])


def _begin_at_integers(buckets: Sequence[int], center: float) -> bool:
    """Whether the buckets of a column of floats suggest that all values are integers."""
    if len(buckets) > MOST_VALUES or not float(center).is_integer():
        return False
    nearest = [bucket_ends(bucket, center)[bucket < 0] - center for bucket in buckets]
    return all(abs(value) < WHOLE and value.is_integer() for value in nearest)


def _edges(column: _Buckets, weights: Sequence[Floats], rows: float) -> Floats | None:
    """Return the edges of the bins; None if the range is empty, infinite, or too narrow for different float64 edges."""
    least, most = float(column.first.min()), float(column.last.max())
    there = [each for each in weights if each.sum() > 0]
    low = min(column.quantile(each, TAIL)[0] for each in there)
    high = max(column.quantile(each, 1 - TAIL)[1] for each in there)
    number = int(np.clip(round(2 * rows ** (1 / 3)), FEWEST_BINS, MOST_BINS))
    middle = max(column.quantile(each, 0.75)[1] - column.quantile(each, 0.25)[0] for each in there)
    if least > 0 and high > low * 10**DECADES and middle < CENTER * (high - low):
        return np.geomspace(least, most, number + 1)
    if not (math.isfinite(most - least) and most > least):
        return None
    if most - least <= FAR * (high - low) or high <= low:
        low, high = least, most
    step = (high - low) / number
    if column.integer:
        step = max(1.0, math.ceil(step))
        number = math.ceil((high - low) / step)
    edges = low + step * np.arange(number + 1)
    if not column.integer:
        edges[-1] = high
    if len(np.unique(edges)) < len(edges):
        return None
    head = [-math.inf] if low > least else []
    tail = [math.inf] if edges[-1] < most else []
    return np.array([*head, *edges.tolist(), *tail])
