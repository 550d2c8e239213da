"""Gates: limits on the numbers of a comparison, such as ``mean=0.01``."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from kullback.errors import ArgumentValueError
from kullback.predictions import Comparison, Summary
from kullback.predictions.measure import DIVERGENCES

__all__ = ["METRICS", "METRICS_IN_WORDS", "Gate", "Limit", "Side", "parse_gate", "parse_limit"]

Side = Literal["above", "below"]

STATISTICS: dict[str, Callable[[Summary], float]] = {
    "mean": lambda summary: summary.mean,
    "median": lambda summary: summary.median,
    "p90": lambda summary: summary.p90,
    "p95": lambda summary: summary.p95,
    "p99": lambda summary: summary.p99,
    "p99.9": lambda summary: summary.p999,
    "max": lambda summary: summary.maximum,
}
DEFAULT = "kl_pq"
OTHERS: dict[str, Callable[[Comparison], float]] = {
    "top1": lambda found: found.top1_agreement.value,
    "labels.difference": lambda found: found.labels.difference.mean if found.labels else math.nan,
    "labels.delta_prob_rms": lambda found: found.labels.delta_prob_rms.mean if found.labels else math.nan,
}
METRICS = (*STATISTICS, *(f"{name}.{statistic}" for name in DIVERGENCES for statistic in STATISTICS), *OTHERS)
METRICS_IN_WORDS = (
    f"{', '.join(STATISTICS)} (all of KL(P||Q)); {', '.join(f'{name}.mean' for name in DIVERGENCES)} and so on; "
    f"{', '.join(OTHERS)}"
)


@dataclass(frozen=True)
class Limit:
    """A limit on one number.

    Attributes:
        metric: the number.
        column: the column of a table that it is about; None for every column, or where there are none.
        limit: the limit.
        side: the side of the limit on which the gate fails.
    """

    metric: str
    column: str | None
    limit: float
    side: Side

    def failure(self, what: str, value: float) -> str | None:
        """Return how `value` violates the limit, or None where it does not; NaN always does."""
        if value <= self.limit if self.side == "above" else value >= self.limit:
            return None
        by = f", {self.side} {self.limit:g} by {abs(value - self.limit):.3g}"
        return f"{what} is {value:.6g}" + (", not a number" if math.isnan(value) else by)


def parse_limit(
    text: str,
    side: Side,
    metrics: Collection[str],
    in_words: str,
    *,
    example: float,
    columns: Collection[str] = (),
) -> Limit:
    """Parse ``METRIC=LIMIT`` or ``METRIC[COLUMN]=LIMIT``.

    Arguments:
        text: what was written after ``--fail-above`` or ``--fail-below``.
        side: which of the two.
        metrics: the metrics there are.
        in_words: their description, for the error.
        example: a limit, for the error.
        columns: those of the metrics that exist for single columns.

    Raises:
        ArgumentValueError: there is no such metric, or the limit is not a number.
    """
    name, _, number = text.rpartition("=") if "=" in text else (text, "", "")
    metric, bracket, column = name.partition("[")
    if metric not in metrics or (bracket and not (metric in columns and column[:-1] and column[-1] == "]")):
        raise ArgumentValueError(
            f"--fail-{side} {text}: wanted METRIC=LIMIT with a METRIC among {in_words}; got {name!r}"
        )
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if math.isnan(limit):
        raise ArgumentValueError(
            f"--fail-{side} {text}: wanted a number after '='; got {number!r}. Write: --fail-{side} {name}={example}"
        )
    return Limit(metric, column[:-1] if bracket else None, limit, side)


@dataclass(frozen=True)
class Gate:
    """A limit on a number of a comparison of predictions."""

    limit: Limit

    def failure(self, found: Comparison) -> str | None:
        """Return how the gate fails, or None where it holds."""
        metric = self.limit.metric
        if metric.startswith("labels.") and found.labels is None:
            raise ArgumentValueError(
                f"--fail-{self.limit.side} {metric}=...: there are no labels. Write: --labels FILE"
            )
        return self.limit.failure(metric, self._value(found))

    def _value(self, found: Comparison) -> float:
        metric = self.limit.metric
        if metric in OTHERS:
            return OTHERS[metric](found)
        name, _, statistic = metric.partition(".")
        if name not in DIVERGENCES:
            name, statistic = DEFAULT, metric
        return STATISTICS[statistic](found.divergences[name])


def parse_gate(text: str, side: Side) -> Gate:
    """Parse ``METRIC=LIMIT`` for a comparison of predictions."""
    return Gate(parse_limit(text, side, METRICS, METRICS_IN_WORDS, example=0.01))
