"""Groups of rows. The statistics of a comparison are also computed in each group, and against all other rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kullback.common.arrays import Floats
from kullback.common.row_statistics import RowStatistic
from kullback.errors import invalid_value, quoted
from kullback.predictions.mean_intervals import MeanEstimate, MeanEstimator, RatioOfSums
from kullback.results.value import Value

# More groups are taken for clusters. Each group has statistics of its own, of some megabytes.
MOST_GROUPS = 32
CLUSTERS = "cluster=... (--cluster) for documents whose rows may depend on each other"


class Groups(NamedTuple):
    """The group of each row, as numbers from 0, and the names of the groups."""

    numbers: Tensor
    names: list[str]

    @classmethod
    def of(cls, call: str, argument: str, values: np.ndarray[Any, Any], instead: str = CLUSTERS) -> Groups:
        """Return groups of equal values in the order of the values; `instead` is the remedy for too many."""
        unique, numbers = np.unique(values, return_inverse=True)
        names = [str(value) for value in unique[: MOST_GROUPS + 1]]
        require_few(call, argument, len(unique), names, instead)
        return cls(torch.from_numpy(numbers.astype("int64")), names)

    @classmethod
    def named(cls, numbers: Tensor, names: Sequence[str]) -> Groups:
        """Return the groups that have rows, in the order of `names`; a number is a place in `names`."""
        unique, numbers = numbers.unique(return_inverse=True)
        present: list[int] = unique.tolist()
        return cls(numbers, [names[number] for number in present])

    def at(self, rows: Tensor | slice) -> Groups:
        """Return the groups of some rows."""
        return self._replace(numbers=self.numbers[rows])

    def masks(self) -> dict[str, Tensor]:
        """Return which rows are in each group, by name."""
        return {name: self.numbers == number for number, name in enumerate(self.names)}


def require_few(call: str, argument: str, count: int, names: Sequence[str], instead: str) -> None:
    """Refuse more groups than `MOST_GROUPS`; `names` are the first of `count` names, `instead` is the remedy."""
    if count > MOST_GROUPS:
        raise invalid_value(
            call,
            argument,
            wanted=f"at most {MOST_GROUPS} groups",
            got=f"{count:,}, such as {quoted(names[0])} and {quoted(names[1])}",
            instead=instead,
        )


class AgainstRest:
    r"""The means of a group minus the means of all other rows.

    A unit, such as a window, may have rows in a group and rows outside, so both means may be correlated. With the
    intervals :math:`[l_g, u_g]` and :math:`[l_r, u_r]` of the means :math:`m_g` and :math:`m_r`, and the correlation
    :math:`\rho` of their influences over units, the interval of the difference begins at

    .. math::
        m_g - m_r - \sqrt{(m_g - l_g)^2 + (u_r - m_r)^2 - 2 \rho\,(m_g - l_g)(u_r - m_r)}

    and ends likewise. So it is as skewed, and as open, as the two intervals.

    References:
        Construction of Confidence Limits About Effect Measures: A General Approach (Zou and Donner, 2008)
    """

    def __init__(self, groups: Groups, columns: Sequence[str], paired: Sequence[RowStatistic]) -> None:
        self._names, self._paired, self._own = groups.names, paired, len(columns)
        self._kept = [columns.index(each.name) for each in paired]
        self._kept += [columns.index("labeled")] if "labeled" in columns else []
        # Each group has the kept columns, and a column that counts its rows.
        self._width = len(self._kept) + 1
        self.columns = len(columns) + len(groups.names) * self._width

    def table(self, table: Tensor, groups: Groups) -> Tensor:
        """Return the next rows with the columns of all groups, shape (rows, `columns`)."""
        kept = torch.nn.functional.pad(table[:, self._kept], (0, 1), value=1.0)
        parts = [torch.where(rows[:, None], kept, 0) for rows in groups.masks().values()]
        return torch.cat([table, *parts], -1)

    def values(self, estimator: MeanEstimator) -> dict[str, dict[str, Value[float]]]:
        """Return the differences by the names of groups and statistics, from an estimator with all rows of `table`."""
        units = estimator.independent_units()
        parts = units[:, self._own : self.columns].reshape(len(units), len(self._names), self._width)
        return {
            name: self._differences(
                estimator, parts[:, place], np.delete(parts, place, 1).sum(1), units[:, -1:]
            )
            for place, name in enumerate(self._names)
        }

    def _differences(
        self, estimator: MeanEstimator, group: Floats, rest: Floats, rows: Floats
    ) -> dict[str, Value[float]]:
        # The last column but one counts labeled rows, if there are labels.
        kept = [
            each for each in self._paired if all(part[:, -1 - each.of_labels].any() for part in (group, rest))
        ]
        quantities = [
            RatioOfSums(
                first + self._paired.index(each),
                first + self._width - 1 - each.of_labels,
                each.low,
                each.high,
                binary=each.binary,
            )
            for each in kept
            for first in (0, self._width)
        ]
        if not kept:
            return {}
        units = np.concatenate([group, rest, rows], -1)
        estimates = estimator.estimates(quantities, units)
        pairs = zip(quantities[::2], quantities[1::2], estimates[::2], estimates[1::2], strict=True)
        return {each.name: _difference(units, *pair) for each, pair in zip(kept, pairs, strict=True)}


def _difference(
    units: Floats, of_group: RatioOfSums, of_rest: RatioOfSums, group: MeanEstimate, rest: MeanEstimate
) -> Value[float]:
    means, influences = zip(*(_influences(units, of) for of in (of_group, of_rest)), strict=True)
    difference = means[0] - means[1]
    errors = group.standard_error, rest.standard_error
    if not math.isfinite(difference) or math.inf in errors:
        return Value(difference, math.inf, None)
    spread = math.sqrt(float(np.square(influences[0]).sum() * np.square(influences[1]).sum()))
    correlation = float(influences[0] @ influences[1]) / spread if spread else 0.0
    error = _root_of_sum(*errors, correlation)
    reason = group.reason or rest.reason
    if group.interval is None or rest.interval is None:
        return Value(difference, error, None, reason=reason)
    (low, high), (low_rest, high_rest) = group.interval, rest.interval
    below = _root_of_sum(means[0] - low, high_rest - means[1], correlation)
    above = _root_of_sum(high - means[0], means[1] - low_rest, correlation)
    interval = difference - below, difference + above
    return Value(difference, error, None if all(map(math.isinf, interval)) else interval, reason=reason)


def _influences(units: Floats, of: RatioOfSums) -> tuple[float, Floats]:
    """Return a mean, and the influence of each unit on it."""
    sums, sizes = units[:, of.column], units[:, of.per]
    with np.errstate(invalid="ignore"):  # sums may be infinite or unknown
        mean = float(sums.sum() / sizes.sum())
        return mean, (sums - mean * sizes) / sizes.sum()


def _root_of_sum(a: float, b: float, correlation: float) -> float:
    """Return the standard deviation of the difference of two values, or the distance of its end."""
    if math.isinf(a) or math.isinf(b):
        return math.inf
    square = a * a + b * b - 2 * correlation * a * b
    return 0.0 if square < 0 else math.sqrt(square)  # NaN stays NaN
