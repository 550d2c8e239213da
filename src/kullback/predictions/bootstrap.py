"""Bootstrap confidence intervals of means over rows or clusters of rows."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

__all__ = ["Resampler"]

# Units beyond so many share a group at random, which leaves the spread of the mean as it is.
GROUPS = 10_000
DRAWN_AT_ONCE = 1_000_000
TAILS = (0.025, 0.975)


class Resampler:
    r"""Bootstrap of ratios of sums, resampling whole units: clusters, or rows.

    A draw takes as many units as there are, with replacement; the mean of a column is then
    :math:`\sum_u S_u / \sum_u n_u` over the units drawn.

    Arguments:
        columns: how many columns there are.
        draws: how many times to draw; 0 for no intervals.
        generator: the source of the draws; None for one with a fixed seed.
        clusters: the number of the cluster of each row, shape (rows,), or None where each row is a unit.

    References:
        Bootstrap Methods and Their Application, sections 2.4 and 3.8 (Davison and Hinkley, 1997)
    """

    def __init__(
        self, columns: int, draws: int, generator: torch.Generator | None, clusters: Tensor | None
    ) -> None:
        generator = generator or torch.Generator().manual_seed(0)
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        self._draws, self._random = draws, np.random.default_rng(seed)
        self._sums = torch.zeros(GROUPS, columns + 1, dtype=torch.float64)  # the last column counts rows
        self._rows = 0
        self._group_of_row = None
        if clusters is not None:
            self._group_of_row = self._new_groups(0, int(clusters.max()) + 1)[clusters]

    def add(self, table: Tensor) -> None:
        """Add the next rows, shape (rows, columns)."""
        stop = self._rows + len(table)
        if self._group_of_row is None:
            groups = self._new_groups(self._rows, len(table))
        else:
            groups = self._group_of_row[self._rows : stop]
        self._sums.index_add_(0, groups, torch.nn.functional.pad(table, (0, 1), value=1.0))
        self._rows = stop

    def interval(self, column: int, per: int = -1) -> tuple[float, float] | None:
        """Return the 95 % interval of the sum of `column` divided by that of `per`, as a rule the number of rows."""
        if self._drawn is None or not bool(self._sums[:, column].isfinite().all()):
            return None
        counted = self._drawn[:, per] > 0  # a draw may hold no labeled row
        ratios = self._drawn[counted, column] / self._drawn[counted, per]
        if len(ratios) == 0:
            return None
        low, high = np.quantile(ratios, TAILS)
        return float(low), float(high)

    @cached_property
    def _drawn(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]] | None:
        """The sums of all columns in each draw, shape (draws, columns)."""
        sums = self._sums[self._sums[:, -1] > 0].numpy()
        units = len(sums)
        if self._draws == 0 or units < 2:
            return None
        found = np.empty((self._draws, sums.shape[1]))
        step = max(1, DRAWN_AT_ONCE // units)
        for first in range(0, self._draws, step):
            here = found[first : first + step]
            picked = self._random.integers(units, size=(len(here), units))
            picked += units * np.arange(len(here))[:, None]
            times = np.bincount(picked.ravel(), minlength=len(here) * units).reshape(len(here), units)
            # A column with an infinite sum gives NaN here, and no interval.
            with np.errstate(invalid="ignore"):
                here[:] = times @ sums
        return found

    def _new_groups(self, first: int, count: int) -> Tensor:
        """Return the groups of units `first`, `first` + 1, ...: one for each while there are groups, then any."""
        units = torch.arange(first, first + count)
        chance = torch.from_numpy(self._random.integers(GROUPS, size=count))
        return torch.where(units < GROUPS, units, chance)
