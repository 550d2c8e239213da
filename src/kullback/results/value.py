"""A value with its error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Literal, TypeAlias, TypeVar

Interval: TypeAlias = tuple[float, float]
Reason: TypeAlias = Literal["few units", "few nonzero units", "heavy tail", "not bounded"]
Number = TypeVar("Number", float, "float | None")


@dataclass(frozen=True)
class Value(Generic[Number]):
    """A mean, proportion or divergence with its standard error and confidence interval.

    Attributes:
        value: the value; a mean is +inf if a row is infinite. `value` is None if the data do not determine it.
        standard_error: the standard error of `value`. It treats clusters as independent. Without cluster ids, it treats
            blocks of rows as independent if neighboring rows are dependent, else single rows. It is +inf if a row is
            infinite, and NaN (None for tables) if there are too few rows.
        interval: the confidence interval. If the data do not determine an end, this end is the bound of the quantity,
            such as +inf for KL and cross-entropy. The interval is None if neither end is determined, or no interval was
            requested.
        reason: why an end is not determined, else None. A unit is a cluster, block or row. ``"few units"``: there are
            fewer than 10 units. ``"few nonzero units"``: too few units are not 0. ``"heavy tail"``: the largest units
            contribute too much of the mean. ``"not bounded"``: the known part of a model's predictions does not bound
            the mean of a difference.

    Example:
        >>> Value(0.1, 0.02, (0.07, 0.15)).interval
        (0.07, 0.15)
    """

    value: Number
    standard_error: Number
    interval: Interval | None
    reason: Reason | None = field(default=None, kw_only=True)

    @property
    def mean(self) -> Number:
        """The same as `value`, for a value that is a mean."""
        return self.value
