"""When to stop reading: after each unit, `Question` asks whether the goal of the run is reached for a candidate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from torch import Tensor

from kullback.common.arrays import Floats
from kullback.common.betting import exceeds, lower_end, upper_end
from kullback.common.row_statistics import BUILT_IN
from kullback.predictions.measure import COLUMNS
from kullback.predictions.run import Goal
from kullback.results.value import Interval

_BOUNDS = {each.name: (each.low, each.high) for each in BUILT_IN}
# The smallest bound on a unit's mean KL is `_CAP_OF_LIMIT` times the limit, or `_CAP_OF_PILOT` times the largest of the
# first `_PILOT` units, which have no bets. The number of units that an upper end needs is proportional to this bound.
# Of 1,000 log-normal means (sigma 0.5) with a fifth of the limit as their mean, 59 decide. In 7 % of such texts, some
# unit is above four times the largest of the first eight. Then the bound is doubled.
_CAP_OF_LIMIT, _CAP_OF_PILOT, _PILOT = 10.0, 4.0, 8
_LARGEST_RATIO = 1e300  # of bounds, whose parts of the error rate float64 can hold
# The goal is examined again when this many times as many units are read. Fewer looks make no interval wrong.
_NEXT_LOOK = 1.02


class Bounds(NamedTuple):
    """An interval of a mean over all units, which holds at every look.

    The upper end assumes the bound `cap` on an unread unit's mean. At most the share `above` of the units may be above
    this bound. Both are None without such an assumption.
    """

    low: float
    high: float
    cap: float | None = None
    above: float | None = None


class _Cap(NamedTuple):
    """A bound on a unit's mean that no unit read so far exceeds, and the error rate of intervals that assume it."""

    cap: float
    error: float
    first: int  # the number of units before the first bet


class Question:
    r"""The sums of all units read so far, and their consequences for the goal of the run.

    Several intervals may be looked at: two ends, every candidate or every pair of candidates. Each has an equal part of
    the error rate. A bound on KL is doubled whenever a unit exceeds it, and the k-th bound has the part
    :math:`2^{-k}` of the error rate of its end.

    Arguments:
        goal: the goal.
        units: the number of the unit of each row, not decreasing, shape (rows,).
        most_rows: the number of rows after which the run ends, even if the goal is not reached.
        confidence: the probability that all decisions and intervals of the goal are right, at all looks.
    """

    def __init__(
        self, goal: Goal, units: Tensor, candidates: int, *, most_rows: int, confidence: float = 0.95
    ) -> None:
        self.goal, self.confidence, self._most_rows = goal, confidence, most_rows
        self._units = units.numpy()
        self.sizes = np.bincount(self._units).astype(np.float64)
        self._ends = np.cumsum(self.sizes)
        pairs = candidates * (candidates - 1) // 2
        self._error = (1 - confidence) / 2 / max(1, pairs if goal.kind == "order" else candidates)
        self._sums = [np.zeros((len(self.sizes), len(COLUMNS))) for _ in range(candidates)]
        self._rows = [0] * candidates
        self._open = list(range(candidates))
        self._unclear = list(combinations(range(candidates), 2))
        self._next_look = 1

    def add(self, place: int, table: Tensor) -> None:
        """Add the next measured rows of a candidate."""
        stop = self._rows[place] + len(table)
        rows = table[:, : len(COLUMNS)].numpy()
        np.add.at(self._sums[place], self._units[self._rows[place] : stop], rows)
        self._rows[place] = stop

    def remaining(self, rows: int) -> Sequence[int]:
        """Return the candidates that need more than the first `rows` rows."""
        units = int(np.searchsorted(self._ends, rows)) + 1
        is_last = rows >= min(self._most_rows, self._ends[-1])
        if self._ends[units - 1] == rows and (units >= self._next_look or is_last):
            self._next_look = max(units + 1, math.ceil(_NEXT_LOOK * units))
            if self.goal.kind == "order":
                self._unclear = [pair for pair in self._unclear if not self._is_ordered(*pair)]
                self._open = [place for place in self._open if any(place in pair for pair in self._unclear)]
            else:
                self._open = [place for place in self._open if not self._is_reached(place)]
        return self._open if rows < self._most_rows else ()

    def read(self, place: int) -> int:
        """Return the number of units that were read for a candidate."""
        return int(np.searchsorted(self._ends, self._rows[place], side="right"))

    def is_decided(self, place: int) -> bool:
        """Return whether the goal is reached for a candidate."""
        # An order may become unclear again: units that are read for another pair may exceed the bound of this pair.
        if self.goal.kind == "order":
            return all(self._is_ordered(place, other) for other in range(len(self._sums)) if other != place)
        return place not in self._open

    @property
    def is_open(self) -> bool:
        """Whether more units could still be read for the goal."""
        return bool(self._open) and max(self._rows) < self._ends[-1]

    def bounds(self, place: int, statistic: str = "", *, with_share: bool = False) -> Bounds:
        """Return the interval of a statistic's mean, by default the goal's; `Bounds.above` only `with_share`."""
        statistic = statistic or self.goal.statistic
        sums = self._of(place, statistic)
        least = lower_end(sums, self.sizes, low=_BOUNDS[statistic][0], error=self._error)
        if len(sums) == len(self.sizes):
            return Bounds(least, least)
        cap, error, first = self._cap(sums, statistic)
        most = upper_end(sums, self.sizes, high=cap, error=error, first=first)
        if self.goal.kind == "limit" and statistic == self.goal.statistic:
            # The ends are less precise than the decision, which they must not contradict.
            limit = self.goal.number
            if self._is_above(sums):
                least = max(least, math.nextafter(limit, math.inf))
            elif self._is_below(sums):
                most = min(most, limit)
        if math.isinf(cap) or math.isfinite(_BOUNDS[statistic][1]):
            return Bounds(least, most)
        if not with_share:
            return Bounds(least, most, cap)
        none, ones = np.zeros(len(sums)), np.ones(len(self.sizes))
        return Bounds(least, most, cap, upper_end(none, ones, high=1.0, error=2 * error, first=first))

    def difference(self, nearer: int, farther: int) -> Interval:
        """Return the interval of the mean KL of `farther` minus the mean KL of `nearer`, over the units of both."""
        return self._excess(nearer, farther), -self._excess(farther, nearer)

    def _excess(self, nearer: int, farther: int) -> float:
        """Return a lower end for the mean KL of `farther` minus the mean KL of `nearer`."""
        excess, (cap, error, first) = self._excess_by_unit(nearer, farther)
        if math.isinf(cap):
            return -math.inf
        return lower_end(excess, self.sizes, low=-cap, error=error, first=first)

    def _excess_by_unit(self, nearer: int, farther: int) -> tuple[Floats, _Cap]:
        """Return the sums of the differences, and the bound on the nearer candidate's unread units, if there is one."""
        read = min(self.read(nearer), self.read(farther))
        a, b = (self._of(place, "kl_pq")[:read] for place in (nearer, farther))
        if np.isinf(a).any():
            return np.zeros(read), _Cap(math.inf, 0.0, 0)
        return b - a, self._cap(a, "kl_pq")

    def _is_ordered(self, a: int, b: int) -> bool:
        return self._is_nearer(a, b) or self._is_nearer(b, a)

    def _is_nearer(self, nearer: int, farther: int) -> bool:
        excess, (cap, error, first) = self._excess_by_unit(nearer, farther)
        return math.isfinite(cap) and exceeds(excess, self.sizes, 0.0, low=-cap, error=error, first=first)

    def _is_reached(self, place: int) -> bool:
        sums = self._of(place, self.goal.statistic)
        if self.goal.kind == "limit":
            return len(sums) == len(self.sizes) or self._is_above(sums) or self._is_below(sums)
        low, high, *_ = self.bounds(place)
        mean = sums.sum() / self._rows[place]
        return low == high or high - low <= self.goal.number * (mean if self.goal.is_share else 1)

    def _is_above(self, sums: Floats) -> bool:
        """Return whether the mean of the goal's statistic exceeds the limit for certain."""
        low = _BOUNDS[self.goal.statistic][0]
        return exceeds(sums, self.sizes, self.goal.number, low=low, error=self._error)

    def _is_below(self, sums: Floats) -> bool:
        cap, error, first = self._cap(sums, self.goal.statistic)
        return math.isfinite(cap) and exceeds(
            -sums, self.sizes, -self.goal.number, low=-cap, error=error, first=first
        )

    def _of(self, place: int, statistic: str) -> Floats:
        return self._sums[place][: self.read(place), COLUMNS.index(statistic)]

    def _cap(self, sums: Floats, statistic: str) -> _Cap:
        """Return the bound of a bounded statistic. Otherwise, return the smallest bound in the sequence that no unit
        read so far exceeds; infinite if there is none yet.
        """
        if math.isfinite(_BOUNDS[statistic][1]):
            return _Cap(_BOUNDS[statistic][1], self._error, 0)
        means = sums / self.sizes[: len(sums)]
        of_limit = self.goal.kind == "limit" and statistic == self.goal.statistic
        first = 0 if of_limit else _PILOT
        if len(means) == len(self.sizes):
            return _Cap(float(means.max()), self._error, first)  # all units are read
        if len(means) <= first:
            return _Cap(math.inf, 0.0, first)
        smallest = (
            _CAP_OF_LIMIT * self.goal.number if of_limit else _CAP_OF_PILOT * float(means[:first].max())
        )
        largest = float(means.max())
        ratio = largest / smallest if smallest else math.inf
        if not ratio <= _LARGEST_RATIO:  # of two infinite means, the ratio is NaN
            return _Cap(math.inf, 0.0, first)
        step = math.ceil(math.log2(max(ratio, 1)))
        return _Cap(smallest * 2**step, self._error / 2 ** (step + 1), first)
