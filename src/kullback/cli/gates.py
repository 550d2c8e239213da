"""Gates: limits on the numbers of a comparison, such as ``mean=0.01``."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from kullback.common.words import DIVERGENCE_NAMES, TABLE_DIVERGENCE_NAMES
from kullback.errors import BY_CALL, ArgumentValueError, quoted
from kullback.results.verdict import Verdict

if TYPE_CHECKING:
    from kullback.predictions import Comparison
    from kullback.results.value import Value
    from kullback.tables.table_results import ColumnComparison, JointComparison, TableComparison

Side = Literal["above", "below"]
AnyGate = TypeVar("AnyGate")
# The candidate's name, the comparison, and of lower bounds, for each divergence, the least and the most of its mean.
Compared = tuple["str | None", "Comparison", "Mapping[str, tuple[float, float]] | None"]


class Metric(NamedTuple):
    """A number of a comparison of predictions.

    Attributes:
        path: the divergence, or the attributes, that lead to a value with its error.
        part: its attribute, or the end of its interval: ``"lower"`` or ``"upper"``.
    """

    path: str
    part: str

    def read(self, found: Comparison) -> tuple[float, Value[float] | None]:
        """Return the number and, of a mean that can have an error, the mean."""
        of = found.divergences.get(self.path) or attrgetter(self.path)(found)
        if self.part in ENDS:
            return (of.interval[ENDS.index(self.part)] if of.interval else math.nan), None
        # Rows that are all equal have no error.
        has_error = self.part == "value" and (self.path in MEANS.values() or of.minimum < 0 or of.maximum > 0)
        return getattr(of, self.part), of if has_error else None


# The numbers of a summary, by their attributes, and means, by the attributes that lead to them.
STATISTICS = {
    "mean": "value", "min": "minimum", "p0.1": "p001", "p1": "p01", "p5": "p05", "p10": "p10", "median": "median",
    "p90": "p90", "p95": "p95", "p99": "p99", "p99.9": "p999", "max": "maximum", "upper": "upper",
}  # fmt: skip
MEANS = {
    "top1": "top1_agreement",
    "acceptance": "acceptance_rate",
    "ppl_ratio": "labels.perplexity_ratio",
    "ppl_difference": "labels.perplexity_difference",
    "labels.difference": "labels.difference",
    "labels.delta_prob_rms": "labels.delta_prob_rms",
}
ENDS = ("lower", "upper")
DELTA_PROB = "labels.delta_prob"
METRICS = {
    **{name: Metric("kl_pq", part) for name, part in STATISTICS.items()},
    **{
        f"{of}.{name}": Metric(of, part)
        for of in (*DIVERGENCE_NAMES, DELTA_PROB)
        for name, part in STATISTICS.items()
    },
    **{name: Metric(path, "value") for name, path in MEANS.items()},
    **{f"{name}.{end}": Metric(path, end) for name, path in MEANS.items() for end in ENDS},
}
METRICS_IN_WORDS = (
    f"{', '.join(STATISTICS)} (all of KL(P||Q)); {', '.join(f'{name}.mean' for name in DIVERGENCE_NAMES)} and so on; "
    f"{', '.join(MEANS)} and {DELTA_PROB}.p1 and so on; upper and lower (top1.lower) are ends of the 95 % interval"
)


class TableNumber(NamedTuple):
    """A number of a column: its attribute, and whether limits apply to its value or to the end of its interval."""

    attribute: str
    checks: Literal["number", "estimate", "interval"]


# The numbers of each column of a comparison of tables.
TABLE_METRICS = {
    **{name: TableNumber(name, "interval") for name in TABLE_DIVERGENCE_NAMES},
    **{f"{name}.value": TableNumber(name, "estimate") for name in TABLE_DIVERGENCE_NAMES},
    **{name: TableNumber(name, "number") for name in ("p_value", "p_adjusted")},
}
WHOLE = "findings"
TABLE_METRICS_IN_WORDS = (
    f"{', '.join((*TABLE_DIVERGENCE_NAMES, 'p_value', 'p_adjusted'))} (for every column and joint group; for one: "
    f"psi[COLUMN]), {WHOLE} (their number); a limit on a divergence is compared with the end of its interval, one "
    "on psi.value with the estimate"
)


@dataclass(frozen=True)
class Limit:
    """A limit on one number.

    Attributes:
        metric: the number.
        column: the column of a table that it is about; None for every column, or if there are none.
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
        """Return how `value` violates the limit, or None if it does not; NaN always does."""
        if value <= self.limit if self.side == "above" else value >= self.limit:
            return None
        by = f", {self.side} {self.limit:g} by {abs(value - self.limit):.3g}"
        return f"{what} is {value:.6g}" + (", not a number" if math.isnan(value) else by)


def _parse(
    text: str,
    side: Side,
    metrics: Collection[str],
    in_words: str,
    *,
    example: float,
    columns: Collection[str] = (),
) -> Limit:
    """Parse ``METRIC=LIMIT`` or, of the metrics in `columns`, ``METRIC[COLUMN]=LIMIT``.

    Raises:
        ArgumentValueError: there is no such metric, or the limit is not a finite number.
    """
    name, _, number = text.rpartition("=") if "=" in text else (text, "", "")
    metric, bracket, column = name.partition("[")
    if metric not in metrics or (bracket and not (metric in columns and column[:-1] and column[-1] == "]")):
        raise ArgumentValueError.at(
            f"--fail-{side} {text}",
            f"--fail-{side}",
            wanted=f"METRIC=LIMIT with a METRIC among {in_words}",
            got=repr(name),
            instead="one of these",
            wording="wanted {wanted}; got {got}",
        )
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):  # no number is above infinity: such a gate could not fail
        raise ArgumentValueError.at(
            f"--fail-{side} {text}",
            f"--fail-{side}",
            wanted="a finite number after '='",
            got=f"{number!r}",
            instead=f"--fail-{side} {name}={example}",
            wording=BY_CALL,
        )
    return Limit(metric, column[:-1] if bracket else None, limit, side)


@dataclass(frozen=True)
class Gate:
    """A limit on a number of a comparison of predictions."""

    limit: Limit

    def verdict(self, compared: Sequence[Compared]) -> Verdict:
        """Return the limit in words and how the comparisons violate it.

        Arguments:
            compared: for each comparison, the candidate's name, the result, and the argument `certain` of `failure`.
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
        """Return how the gate fails, or None if it holds.

        Arguments:
            found: the comparison.
            certain: if its divergences are lower bounds, the least and the largest possible mean of each.
        """
        name, metric = self.limit.metric, METRICS[self.limit.metric]
        if metric.path.startswith("labels.") and found.labels is None:
            raise ArgumentValueError.at(
                f"--fail-{self.limit.side} {name}=...",
                f"--fail-{self.limit.side}",
                wanted="labels",
                got="there are no labels",
                instead="--labels FILE",
                wording="{got}. Write: {instead}",
            )
        value, mean = metric.read(found)
        failure = self.limit.failure(name, value)
        if failure is None and certain is not None:
            failure = self._uncertain(metric, value, certain)
        return failure or self._undetermined(value, mean)

    def _uncertain(
        self, metric: Metric, value: float, certain: Mapping[str, tuple[float, float]]
    ) -> str | None:
        """Return the failure of a limit that a divergence may exceed although its lower bound does not."""
        name, limit = self.limit.metric, self.limit.limit
        remedy = "; the model itself, or a mean with an upper bound (tv.mean), can be checked"
        if self.limit.side == "below":
            least, most = (1 - end for end in reversed(certain["tv"]))
            if name == "acceptance" and least < limit:
                return f"{name} is only known to be {least:.6g} to {most:.6g}"
            return None
        # An interval reaches up to the interval of the rows' upper bounds, so its ends need no further check.
        if metric.path not in DIVERGENCE_NAMES or metric.part == "upper":
            return None
        if metric.part != "value":
            return f"{name} is unknown: only a lower bound of each row is known{remedy}"
        most = certain[metric.path][1]
        if most <= limit:
            return None
        above = f"nothing bounds it from above{remedy}" if math.isinf(most) else f"at most {most:.6g}"
        return f"{name} is only known to be at least {value:.6g}, {above}"

    def _undetermined(self, value: float, mean: Value[float] | None) -> str | None:
        """Return the failure of a mean whose interval is infinite on the side of the limit; equal rows pass."""
        if mean is None or mean.reason is None:
            return None
        end = None if mean.interval is None else mean.interval[self.limit.side == "above"]
        if end is not None and end not in (math.inf, 1.0, math.log(2), 0.0, -1.0, -math.inf):
            return None
        return (
            f"{self.limit.metric} is {value:.6g}, but it has no interval ({mean.reason}): more rows or "
            "clusters are needed; --bootstrap 0 checks the value alone"
        )


def parse_gate(text: str, side: Side) -> Gate:
    """Parse ``METRIC=LIMIT`` for a comparison of predictions."""
    return Gate(_parse(text, side, METRICS, METRICS_IN_WORDS, example=0.01))


@dataclass(frozen=True)
class TableGate:
    """A limit on a number of every column, or of one."""

    limit: Limit

    def verdict(self, found: TableComparison) -> Verdict:
        """Return the limit in words and how the comparison violates it; an unknown number violates it too."""
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
            sentences.append(f"{metric} is unknown: {', '.join(map(quoted, unknown))} could not be compared")
        elif not looked:
            sentences.append(f"{metric} is unknown: nothing was compared")
        return Verdict(words, tuple(sentences), tuple(failures))

    def _failure(self, name: str, compared: ColumnComparison | JointComparison) -> str | None:
        metric, checks = TABLE_METRICS[self.limit.metric]
        what, found = f"{metric} of {quoted(name)}", getattr(compared, metric)
        value = found if checks == "number" else found.value
        if value is None or math.isnan(value):
            return f"{what} is unknown: most values are too rare to be compared"
        if checks == "number":
            return self.limit.failure(what, value)
        failure = self._failure_of_words(metric, name, compared) or self.limit.failure(what, value)
        if failure is not None or len(compared.bins) < 2:
            return failure
        if found.interval is None:
            return f"{what} is unknown: too few independent rows or clusters"
        if checks == "estimate":
            return None
        side, end = ("upper", 1) if self.limit.side == "above" else ("lower", 0)
        return self.limit.failure(
            f"{what} is {value:.6g}, but the {side} end of its interval", found.interval[end]
        )

    def _failure_of_words(
        self, metric: str, name: str, compared: ColumnComparison | JointComparison
    ) -> str | None:
        """Return how the words of a column of texts violate the limit; its divergences compare lengths."""
        psi = getattr(compared, "words", None)
        if not psi or self.limit.side != "above":
            return None
        # PSI = KL(P||Q) + KL(Q||P) >= 4 JS and 4 TV^2.
        bound = {"js": psi / 4, "tv": math.sqrt(psi) / 2}.get(metric, psi)
        what = f"{metric} of the words of {quoted(name)}"
        return self.limit.failure(what if metric == "psi" else f"the upper bound of {what}", bound)


def parse_table_gate(text: str, side: Side) -> TableGate:
    """Parse ``METRIC=LIMIT`` or ``METRIC[COLUMN]=LIMIT``."""
    metrics = (*TABLE_METRICS, WHOLE)
    return TableGate(_parse(text, side, metrics, TABLE_METRICS_IN_WORDS, example=0.2, columns=TABLE_METRICS))


def parse_limits(
    parse: Callable[[str, Side], AnyGate], above: Sequence[str], below: Sequence[str]
) -> list[AnyGate]:
    """Return the gates of ``--fail-above`` and of ``--fail-below``."""
    return [*(parse(text, "above") for text in above), *(parse(text, "below") for text in below)]
