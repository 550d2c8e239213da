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
        value: the value; a mean is +inf if a row is infinite. None if the data do not determine it.
        standard_error: the standard error over independent clusters; without cluster ids over blocks of rows where
            these depend on their order, else over rows. It is +inf where a row is infinite, and NaN (of tables None)
            where there are too few rows.
        interval: the confidence interval. An end that the data do not determine is the bound of the quantity, +inf for
            KL and cross-entropy. None if neither end is determined, or no interval was requested.
        reason: why an end is not determined: ``"few units"`` (fewer than 10 clusters, blocks or rows),
            ``"few nonzero units"``, ``"heavy tail"`` (the largest units carry too much of the mean), ``"not bounded"``
            (of a difference: what is known of a model does not bound its mean); else None.

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
        """The value of a mean."""
        return self.value
