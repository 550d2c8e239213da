"""Gates: limits on the numbers of a comparison, such as ``mean=0.01``."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kullback.errors import ArgumentValueError, quoted
from kullback.results.verdict import Verdict
from kullback.words import DIVERGENCE_NAMES, TABLE_DIVERGENCE_NAMES

if TYPE_CHECKING:
    from kullback.predictions import Comparison, LabelStatistics, Mean, Proportion, Summary
    from kullback.tables.result import ColumnComparison, JointComparison, TableComparison

__all__ = [
    "METRICS",
    "METRICS_IN_WORDS",
    "TABLE_METRICS_IN_WORDS",
    "Gate",
    "Limit",
    "Side",
    "TableGate",
    "parse_gate",
    "parse_limit",
    "parse_table_gate",
]

Side = Literal["above", "below"]
# The candidate's name, the comparison, and of lower bounds, for each divergence, the least and the most of its mean.
Compared = tuple["str | None", "Comparison", "Mapping[str, tuple[float, float]] | None"]

STATISTICS: dict[str, Callable[[Summary], float]] = {
    "mean": lambda summary: summary.mean,
    "min": lambda summary: summary.minimum,
    "p0.1": lambda summary: summary.p001,
    "p1": lambda summary: summary.p01,
    "p5": lambda summary: summary.p05,
    "p10": lambda summary: summary.p10,
    "median": lambda summary: summary.median,
    "p90": lambda summary: summary.p90,
    "p95": lambda summary: summary.p95,
    "p99": lambda summary: summary.p99,
    "p99.9": lambda summary: summary.p999,
    "max": lambda summary: summary.maximum,
    "upper": lambda summary: summary.interval[1] if summary.interval else math.nan,
}
DEFAULT = "kl_pq"
# The means beside the divergences, of all rows and of those with a label.
MEANS: dict[str, Callable[[Comparison], Mean | Proportion]] = {
    "top1": lambda found: found.top1_agreement,
    "acceptance": lambda found: found.acceptance_rate,
}
LABEL_MEANS: dict[str, Callable[[LabelStatistics], Mean]] = {
    "ppl_ratio": lambda labels: labels.perplexity_ratio,
    "ppl_difference": lambda labels: labels.perplexity_difference,
    "labels.difference": lambda labels: labels.difference,
    "labels.delta_prob_rms": lambda labels: labels.delta_prob_rms,
}
ENDS = {"lower": 0, "upper": 1}
DELTA_PROB = "labels.delta_prob"
OTHERS = (
    *(name + end for name in (*MEANS, *LABEL_MEANS) for end in ("", *(f".{end}" for end in ENDS))),
    *(f"{DELTA_PROB}.{statistic}" for statistic in STATISTICS),
)
METRICS = (
    *STATISTICS,
    *(f"{name}.{statistic}" for name in DIVERGENCE_NAMES for statistic in STATISTICS),
    *OTHERS,
)
METRICS_IN_WORDS = (
    f"{', '.join(STATISTICS)} (all of KL(P||Q)); {', '.join(f'{name}.mean' for name in DIVERGENCE_NAMES)} and so on; "
    f"{', '.join((*MEANS, *LABEL_MEANS))} and {DELTA_PROB}.p1 and so on; upper and lower (top1.lower) are ends of the "
    "95 % interval"
)
P_VALUES = ("p_value", "p_adjusted")
WHOLE = "findings"
ESTIMATE = ".value"
ESTIMATES = tuple(f"{name}{ESTIMATE}" for name in TABLE_DIVERGENCE_NAMES)
TABLE_METRICS_IN_WORDS = (
    f"{', '.join((*TABLE_DIVERGENCE_NAMES, *P_VALUES))} (of every column and joint group; of one: psi[COLUMN]), "
    f"{WHOLE} (their number); a limit on a divergence holds for the end of its interval, one on psi{ESTIMATE} for the "
    "estimate alone"
)
SIDES: dict[Side, str] = {"above": "upper", "below": "lower"}


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

    @property
    def words(self) -> str:
        """The limit in words: ``mean at most 0.01``."""
        what = self.metric if self.column is None else f"{self.metric} of {quoted(self.column)}"
        return f"{what} {'at most' if self.side == 'above' else 'at least'} {self.limit:g}"

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
        ArgumentValueError: there is no such metric, or the limit is not a finite number.
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
    if not math.isfinite(limit):  # no number is above infinity: such a gate could not fail
        raise ArgumentValueError(
            f"--fail-{side} {text}: wanted a finite number after '='; got {number!r}. Write: "
            f"--fail-{side} {name}={example}"
        )
    return Limit(metric, column[:-1] if bracket else None, limit, side)


@dataclass(frozen=True)
class Gate:
    """A limit on a number of a comparison of predictions."""

    limit: Limit

    def verdict(self, compared: Sequence[Compared]) -> Verdict:
        """Return the limit in words and how the comparisons violate it.

        Arguments:
            compared: of each comparison the candidate's name, the result, and `certain` of `failure`.
        """
        failed = {
            name: failure
            for name, found, certain in compared
            if (failure := self.failure(found, certain)) is not None
        }
        sentences = [
            f"{name}: {failure}" if len(compared) > 1 else failure for name, failure in failed.items()
        ]
        return Verdict(self.limit.words, tuple(sentences), tuple(name for name in failed if name is not None))

    def failure(
        self, found: Comparison, certain: Mapping[str, tuple[float, float]] | None = None
    ) -> str | None:
        """Return how the gate fails, or None where it holds.

        Arguments:
            found: the comparison.
            certain: where its divergences are lower bounds, for each the least and the most that its mean can be.
        """
        metric = self.limit.metric
        if metric.startswith((*LABEL_MEANS, DELTA_PROB)) and found.labels is None:
            raise ArgumentValueError(
                f"--fail-{self.limit.side} {metric}=...: there are no labels. Write: --labels FILE"
            )
        value, mean = self._number(found)
        failure = self.limit.failure(metric, value)
        if failure is None and certain is not None:
            failure = self._uncertain(metric, value, certain)
        return failure or self._undetermined(metric, value, mean)

    def _uncertain(self, metric: str, value: float, certain: Mapping[str, tuple[float, float]]) -> str | None:
        """Return the failure of a limit that a lower bound of a divergence keeps, and the divergence may not."""
        first, _, statistic = metric.partition(".")
        name, statistic = (first, statistic) if first in DIVERGENCE_NAMES else (DEFAULT, metric)
        remedy = "; the model itself, or a mean with an upper bound (tv.mean), can be checked"
        if metric == "acceptance" and self.limit.side == "below":
            least = 1 - certain["tv"][1]
            if least < self.limit.limit:
                return f"{metric} is only known to be {least:.6g} to {1 - certain['tv'][0]:.6g}"
        # Ends of an interval take what is not known into account: it reaches up to that of the rows' upper bounds.
        if statistic not in STATISTICS or statistic == "upper" or self.limit.side == "below":
            return None
        if statistic != "mean":
            return f"{metric} cannot be told, as of each row only a lower bound is known{remedy}"
        most = certain[name][1]
        if most <= self.limit.limit:
            return None
        above = "nothing bounds it from above" if math.isinf(most) else f"at most {most:.6g}"
        return (
            f"{metric} is only known to be at least {value:.6g}, {above}{remedy if math.isinf(most) else ''}"
        )

    def _number(self, found: Comparison) -> tuple[float, Mean | Proportion | None]:
        """Return the number, and the estimate whose error it has, if it is a mean."""
        metric, labels = self.limit.metric, found.labels
        of, _, end = metric.rpartition(".")
        name = of if end in ENDS else metric
        mean = MEANS[name](found) if name in MEANS else None
        if name in LABEL_MEANS and labels is not None:
            mean = LABEL_MEANS[name](labels)
        if mean is not None and name == metric:
            return getattr(mean, "value" if name == "top1" else "mean"), mean
        if mean is not None:
            return mean.interval[ENDS[end]] if mean.interval else math.nan, None
        name, _, statistic = metric.partition(".")
        if name not in DIVERGENCE_NAMES:
            name, statistic = DEFAULT, metric
        summary = found.divergences[name]
        if metric.startswith(f"{DELTA_PROB}.") and labels is not None:
            summary, statistic = labels.delta_prob, metric.removeprefix(f"{DELTA_PROB}.")
        differs = summary.minimum < 0 or summary.maximum > 0
        mean = summary if statistic == "mean" and differs else None
        return STATISTICS[statistic](summary), mean

    def _undetermined(self, metric: str, value: float, mean: Mean | Proportion | None) -> str | None:
        """Return the failure of a mean whose interval is open on the side of the limit; rows that are equal pass."""
        if mean is None or mean.reason is None:
            return None
        end = None if mean.interval is None else mean.interval[self.limit.side == "above"]
        if end is not None and end not in (math.inf, 1.0, math.log(2), 0.0, -1.0, -math.inf):
            return None
        return (
            f"{metric} is {value:.6g}, but its error cannot be told ({mean.reason}): more rows or clusters are needed; "
            "--bootstrap 0 checks the value alone"
        )


def parse_gate(text: str, side: Side) -> Gate:
    """Parse ``METRIC=LIMIT`` for a comparison of predictions."""
    return Gate(parse_limit(text, side, METRICS, METRICS_IN_WORDS, example=0.01))


@dataclass(frozen=True)
class TableGate:
    """A limit on a number of every column, or of one."""

    limit: Limit

    def verdict(self, found: TableComparison) -> Verdict:
        """Return the limit in words and how the comparison violates it; what is not known violates it too."""
        metric, column, words = self.limit.metric, self.limit.column, self.limit.words
        if metric == WHOLE:
            failure = self.limit.failure(WHOLE, float(len(found.findings)))
            return Verdict(words, () if failure is None else (failure,))
        compared = {each.label: each for each in (*found.columns, *found.joint)}
        looked = {
            name: self._failure(name, each) for name, each in compared.items() if column in (None, name)
        }
        failures = {name: failure for name, failure in looked.items() if failure is not None}
        unknown = [name for name in found.not_compared if column in (None, name)]
        if column is not None and column not in compared and not unknown:
            unknown = [column]
        sentences = list(failures.values())
        if unknown:
            sentences.append(f"{metric} is not known of {', '.join(map(quoted, unknown))}: not compared")
        elif not looked:
            sentences.append(f"{metric} is not known: nothing was compared")
        return Verdict(words, tuple(sentences), tuple(failures))

    def _failure(self, name: str, compared: ColumnComparison | JointComparison) -> str | None:
        metric = self.limit.metric.removesuffix(ESTIMATE)
        what, found = f"{metric} of {quoted(name)}", getattr(compared, metric)
        value = found if self.limit.metric in P_VALUES else found.value
        if value is None or math.isnan(value):
            return f"{what} is not known: most values are too rare to be compared"
        failure = self._failure_of_words(name, compared) or self.limit.failure(what, value)
        if failure is not None or self.limit.metric in P_VALUES or len(compared.bins) < 2:
            return failure
        if found.interval is None:
            return f"{what} is not known: too few independent rows or clusters"
        if metric != self.limit.metric:
            return None
        end = found.interval[self.limit.side == "above"]
        return self.limit.failure(
            f"{what} is {value:.6g}, but the {SIDES[self.limit.side]} end of its interval", end
        )

    def _failure_of_words(self, name: str, compared: ColumnComparison | JointComparison) -> str | None:
        """Return how the words of a column of texts, whose divergences are those of lengths, violate the limit."""
        metric, psi = self.limit.metric.removesuffix(ESTIMATE), getattr(compared, "words", None)
        if not psi or self.limit.side != "above" or metric in P_VALUES:
            return None
        # PSI = KL(P||Q) + KL(Q||P) >= 4 JS and 4 TV^2.
        bound = {"js": psi / 4, "tv": math.sqrt(psi) / 2}.get(metric, psi)
        what = f"{metric} of the words of {quoted(name)}"
        return self.limit.failure(what if metric == "psi" else f"the upper bound of {what}", bound)


def parse_table_gate(text: str, side: Side) -> TableGate:
    """Parse ``METRIC=LIMIT`` or ``METRIC[COLUMN]=LIMIT``."""
    of_columns = (*TABLE_DIVERGENCE_NAMES, *ESTIMATES, *P_VALUES)
    metrics = (*of_columns, WHOLE)
    return TableGate(
        parse_limit(text, side, metrics, TABLE_METRICS_IN_WORDS, example=0.2, columns=of_columns)
    )
