"""Gates: limits that a comparison must keep, such as ``mean=0.01``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kullback.errors import ArgumentValueError
from kullback.predictions import Comparison, Summary
from kullback.predictions.measure import DIVERGENCES

__all__ = ["METRICS", "METRICS_IN_WORDS", "Gate", "Side", "limit_of", "parse_gate"]

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
class Gate:
    """A limit on one number of a comparison.

    Attributes:
        metric: which number, one of `METRICS`.
        limit: the limit.
        side: on which side of the limit the gate fails.
    """

    metric: str
    limit: float
    side: Side

    def failure(self, found: Comparison) -> str | None:
        """Say how the gate fails, or None where it holds; a number that does not exist never passes."""
        if self.metric.startswith("labels.") and found.labels is None:
            raise ArgumentValueError(
                f"--fail-{self.side} {self.metric}=...: there are no labels. Write: --labels FILE"
            )
        value = self._value(found)
        if value <= self.limit if self.side == "above" else value >= self.limit:
            return None
        by = f", {self.side} {self.limit:g} by {abs(value - self.limit):.3g}"
        return f"{self.metric} is {value:.6g}" + (", not a number" if math.isnan(value) else by)

    def _value(self, found: Comparison) -> float:
        if self.metric in OTHERS:
            return OTHERS[self.metric](found)
        name, _, statistic = self.metric.partition(".")
        if name not in DIVERGENCES:
            name, statistic = DEFAULT, self.metric
        return STATISTICS[statistic](found.divergences[name])


def parse_gate(text: str, side: Side) -> Gate:
    """Read ``METRIC=LIMIT``."""
    metric, _, number = text.partition("=")
    if metric not in METRICS:
        raise ArgumentValueError(
            f"--fail-{side} {text}: wanted METRIC=LIMIT with a METRIC among {METRICS_IN_WORDS}; got {metric!r}"
        )
    return Gate(metric, limit_of(text, side, metric, number, example=0.01), side)


def limit_of(text: str, side: Side, metric: str, number: str, *, example: float) -> float:
    """Read the LIMIT of the gate `text`."""
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if math.isnan(limit):
        raise ArgumentValueError(
            f"--fail-{side} {text}: wanted a number after '='; got {number!r}. Write: --fail-{side} {metric}={example}"
        )
    return limit
