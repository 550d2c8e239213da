"""The class `Value`: a number with its standard error and confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeAlias, TypeVar

Interval: TypeAlias = tuple[float, float]
Reason: TypeAlias = Literal["few units", "few nonzero units", "heavy tail", "not bounded"]
Number = TypeVar("Number", float, "float | None")


@dataclass(frozen=True)
class Value(Generic[Number]):
    """A mean, proportion or divergence with its standard error and confidence interval.

    Attributes:
        value: the number; a mean is +inf if the value of a row is infinite. `value` is None if the data do not
            determine it.
        standard_error: the standard error of `value` under the assumption that units are independent. A unit is a
            cluster. Without cluster ids, a unit is a block of rows if neighboring rows are dependent, and otherwise a
            single row. The standard error is +inf if the value of a row is infinite. The standard error is NaN (None
            for tables) if there are too few rows.
        interval: the confidence interval. If the data do not determine a limit of the interval, this limit is the bound
            of the quantity, such as +inf for KL and cross-entropy. The interval is None if the data determine neither
            limit, or if no interval was requested.
        reason: the reason why a limit is not determined; None if both are determined. ``"few units"``: there are fewer
            than 10 units. ``"few nonzero units"``: too few units have a value other than 0. ``"heavy tail"``: the
            largest units contribute too large a part of the mean. ``"not bounded"``: the known part of a model's
            predictions does not bound the mean of a difference.

    Example:
        >>> Value(0.1, 0.02, (0.07, 0.15)).interval
        (0.07, 0.15)
    """

    value: Number
    standard_error: Number
    interval: Interval | None
    reason: Reason | None = field(default=None, kw_only=True)

    @property
    def ends(self) -> Interval:
        """The limits of the interval; two NaN if there is no interval."""
        return self.interval or (math.nan, math.nan)

    @property
    def mean(self) -> Number:
        """Another name of `value`, for a value that is a mean."""
        return self.value
