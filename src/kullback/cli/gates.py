"""Gates: limits on the numbers of a comparison, such as ``mean=0.01``, which pass, fail, or cannot tell.

A limit on NAME is compared with the whole interval of the number. It passes if the whole interval is on the right side
of the limit, and fails if the whole interval is beyond the limit. Otherwise, or without an interval, the data do not
decide. A limit on NAME.value is compared with the estimate alone. It is the only form for numbers without an interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from kullback.common.row_statistics import FURTHER
from kullback.common.words import DIVERGENCE_NAMES, TABLE_DIVERGENCE_NAMES
from kullback.errors import BY_CALL, ArgumentValueError, quoted
from kullback.results.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from kullback.predictions import Comparison
    from kullback.results.value import Interval
    from kullback.tables.table_results import ColumnComparison, JointComparison, TableComparison

Side = Literal["above", "below"]
AnyGate = TypeVar("AnyGate")
# The candidate's name, the comparison, and of lower bounds, for each divergence, the least and the most of its mean.
Compared = tuple["str | None", "Comparison", "Mapping[str, Interval] | None"]


class Metric(NamedTuple):
    """A number of a comparison of predictions.

    Attributes:
        path: the divergence, or the attributes, that lead to a value or a summary.
        part: the attribute of the value or summary.
    """

    path: str
    part: str = "value"


# Numbers without an interval: attributes of the summary of a divergence's rows.
STATISTICS = {
    "min": "minimum", "p0.1": "p001", "p1": "p01", "p5": "p05", "p10": "p10", "median": "median", "p90": "p90",
    "p95": "p95", "p99": "p99", "p99.9": "p999", "max": "maximum",
}  # fmt: skip
DELTA_PROB = "labels.delta_prob"
# Numbers with an interval, by the attributes that lead to them.
MEANS = {
    "mean": Metric("kl_pq"),
    **{f"{of}.mean": Metric(of) for of in (*DIVERGENCE_NAMES, DELTA_PROB)},
    "top1": Metric("top1_agreement"),
    "acceptance": Metric("acceptance_rate"),
    "ppl_ratio": Metric("labels.perplexity_ratio"),
    "ppl_difference": Metric("labels.perplexity_difference"),
    "labels.difference": Metric("labels.difference"),
    "labels.delta_prob_rms": Metric("labels.delta_prob_rms"),
}
ESTIMATES = {
    **{f"{name}.value": metric for name, metric in MEANS.items()},
    **{f"{name}.value": Metric("kl_pq", part) for name, part in STATISTICS.items()},
    **{
        f"{of}.{name}.value": Metric(of, part)
        for of in (*DIVERGENCE_NAMES, DELTA_PROB)
        for name, part in STATISTICS.items()
    },
}
_OWN_MEANS = tuple(name for name in MEANS if not name.endswith("mean"))
METRICS_IN_WORDS = (
    f"mean (of KL(P||Q)); {', '.join(f'{name}.mean' for name in DIVERGENCE_NAMES)}; {', '.join(_OWN_MEANS)}, whose "
    f"whole interval has to be on the right side; mean.value, top1.value and so on, the estimate alone; "
    f"{', '.join(f'{name}.value' for name in STATISTICS)} (of KL(P||Q)), js.p99.value and so on, which have no interval"
)

# The numbers of each column of a comparison of tables: with an interval, and without one.
P_VALUES = ("p_value", "p_adjusted")
WHOLE = "findings.value"
TABLE_ESTIMATES = {f"{name}.value": name for name in (*TABLE_DIVERGENCE_NAMES, *P_VALUES)}
TABLE_METRICS_IN_WORDS = (
    f"{', '.join(TABLE_DIVERGENCE_NAMES)}, whose whole interval has to be on the right side; psi.value and so on, the "
    f"estimate alone; {', '.join(f'{name}.value' for name in P_VALUES)} (each for every column and joint group; for "
    f"one: psi[COLUMN], psi.value[COLUMN]); {WHOLE}, the number of findings"
)


class Judgment(NamedTuple):
    """The outcome of a limit for one number, and a sentence on it; the sentence of a limit that passes is empty."""

    outcome: Outcome
    sentence: str = ""


PASSED = Judgment("passed")


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
        name = self.metric if self.column is None else f"{self.metric} of {quoted(self.column)}"
        return f"{name} {'at most' if self.side == 'above' else 'at least'} {self.limit:g}"

    def is_kept_by(self, value: float) -> bool:
        """Return whether a number is on the right side of the limit; the limit itself is."""
        return value <= self.limit if self.side == "above" else value >= self.limit

    def judgment_of_estimate(self, what: str, value: float) -> Judgment:
        """Return the outcome for an estimate alone; NaN decides nothing."""
        if math.isnan(value):
            return Judgment("unclear", f"{what} is {value:.6g}, not a number")
        if self.is_kept_by(value):
            return PASSED
        by = f"{self.side} {self.limit:g} by {abs(value - self.limit):.3g}"
        return Judgment("failed", f"{what} is {value:.6g}, {by}")

    def judgment_of_interval(
        self, what: str, value: float, interval: Interval, name: str = "its interval"
    ) -> Judgment:
        """Return the outcome for a number that can be anywhere in an interval."""
        low, high = interval
        inside = self.is_kept_by(low), self.is_kept_by(high)
        if math.isnan(value) or math.isnan(low) or math.isnan(high):
            return Judgment("unclear", f"{what} is {value:.6g}, not a number")
        if all(inside):
            return PASSED
        number = f"{what} is {value:.6g}, but" if any(inside) else f"{what} is {value:.6g}, and"
        whole = "contains the limit" if any(inside) else f"is {self.side}"
        return Judgment(
            "unclear" if any(inside) else "failed",
            f"{number} {name}, {low:.6g} to {high:.6g}, {whole} {self.limit:g}",
        )

    def without_interval(self, what: str, value: float, reason: str) -> Judgment:
        """Return that the outcome is unclear, with the remedy, for a number that has no interval."""
        alone = f"--fail-{self.side} {self.metric}.value={self.limit:g} checks the estimate alone"
        return Judgment("unclear", f"{what} is {value:.6g} without an interval ({reason}); {alone}")


def _parse(
    text: str,
    side: Side,
    means: Collection[str],
    estimates: Collection[str],
    in_words: str,
    *,
    example: float,
    columns: bool = False,
) -> Limit:
    """Parse ``METRIC=LIMIT`` or, of tables, ``METRIC[COLUMN]=LIMIT``.

    Raises:
        ArgumentValueError: there is no such metric, or the limit is not a finite number.
    """
    name, _, number = text.rpartition("=") if "=" in text else (text, "", "")
    metric, bracket, column = name.partition("[")
    has_column = not bracket or (columns and metric != WHOLE and column[:-1] and column[-1] == "]")
    if not has_column or not (metric in means or metric in estimates):
        changed = _new_form(metric, means, estimates) if has_column else None
        raise ArgumentValueError.at(
            f"--fail-{side} {text}",
            f"--fail-{side}",
            wanted=f"METRIC=LIMIT with a METRIC among {in_words}",
            got=repr(name),
            instead=f"--fail-{side} {changed}{bracket}{column}={number}" if changed else "one of these",
            wording="wanted {wanted}; got {got}" + "; write {instead}" * bool(changed),
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


def _new_form(metric: str, means: Collection[str], estimates: Collection[str]) -> str | None:
    """Return the present name of a metric that had another form: p99 is p99.value, and an end of top1 is top1."""
    if f"{metric}.value" in estimates:
        return f"{metric}.value"
    of, _, end = metric.rpartition(".")
    if end not in ("upper", "lower"):
        return None
    return next((name for name in (of or "mean", f"{of}.mean") if name in means), None)


@dataclass(frozen=True)
class Gate:
    """A limit on a number of a comparison of predictions."""

    limit: Limit

    def verdict(self, compared: Sequence[Compared]) -> Verdict:
        """Return the limit in words, and how the comparisons break it or leave it open.

        Arguments:
            compared: for each comparison, the candidate's name, the result, and the argument `certain` of `judgment`.
        """
        judged = [(name, self.judgment(found, certain)) for name, found, certain in compared]

        def sentences(outcome: Outcome) -> tuple[str, ...]:
            return tuple(
                f"{name}: {each.sentence}" if len(compared) > 1 else each.sentence
                for name, each in judged
                if each.outcome == outcome
            )

        broken_by = tuple(name for name, each in judged if each.outcome == "failed" and name is not None)
        return Verdict(self.limit.words, sentences("failed"), broken_by, sentences("unclear"))

    def judgment(self, found: Comparison, certain: Mapping[str, Interval] | None = None) -> Judgment:
        """Return the outcome of the limit for a comparison.

        Arguments:
            found: the comparison.
            certain: if its divergences are lower bounds, the least and the largest possible mean of each.
        """
        limit, name = self.limit, self.limit.metric
        metric = _means().get(name) or _estimates()[name]
        if metric.path in FURTHER and metric.path not in found.further:
            return Judgment("unclear", f"{name} is unknown, because not all classes are known")
        if metric.path.startswith("labels.") and found.labels is None:
            raise ArgumentValueError.at(
                f"--fail-{limit.side} {name}=...",
                f"--fail-{limit.side}",
                wanted="labels",
                got="there are no labels",
                instead="--labels FILE",
                wording="{got}. Write: {instead}",
            )
        of = (found.further if metric.path in FURTHER else found.divergences).get(metric.path)
        of = of or attrgetter(metric.path)(found)
        value = getattr(of, metric.part)
        if name in _estimates():
            bounds = None if certain is None else _possible(metric, value, certain)
            if bounds is None:
                return limit.judgment_of_estimate(name, value)
            return limit.judgment_of_interval(name, value, bounds, "its bounds")
        # One infinite row makes the mean infinite, and equal predictions have no error.
        are_equal = metric.path in found.divergences and of.minimum == of.maximum == 0
        if are_equal or (math.isinf(value) and not limit.is_kept_by(value)):
            return limit.judgment_of_estimate(name, value)
        if of.interval is not None:
            return limit.judgment_of_interval(name, value, of.interval)
        return limit.without_interval(name, value, of.reason or "none was asked for")


def _possible(metric: Metric, value: float, certain: Mapping[str, Interval]) -> Interval | None:
    """Return the least and the largest possible value of a number if divergences are lower bounds; None if exact."""
    if metric.path == "acceptance_rate":
        least, most = certain["tv"]
        return 1 - most, 1 - least
    if metric.path not in DIVERGENCE_NAMES:
        return None
    return certain[metric.path] if metric.part == "value" else (value, math.inf)


def parse_gate(text: str, side: Side) -> Gate:
    """Parse ``METRIC=LIMIT`` for a comparison of predictions."""
    return Gate(_parse(text, side, _means(), _estimates(), METRICS_IN_WORDS, example=0.01))


def _means() -> dict[str, Metric]:
    """Return the numbers with an interval, with those of the user's statistics."""
    return {**{name: Metric(name) for name in FURTHER}, **MEANS}


def _estimates() -> dict[str, Metric]:
    return {**{f"{name}.value": Metric(name) for name in FURTHER}, **ESTIMATES}


@dataclass(frozen=True)
class TableGate:
    """A limit on a number of every column, or of one."""

    limit: Limit

    def verdict(self, found: TableComparison) -> Verdict:
        """Return the limit in words, and which columns break it or leave it open; an unknown number leaves it open."""
        metric, column, words = self.limit.metric, self.limit.column, self.limit.words
        if metric == WHOLE:
            failure = self.limit.judgment_of_estimate(WHOLE, float(len(found.findings))).sentence
            return Verdict(words, (failure,) if failure else ())
        compared = {each.label: each for each in (*found.columns, *found.joint)}
        judged = {
            name: self._judgment(name, each) for name, each in compared.items() if column in (None, name)
        }
        failed = {name: each.sentence for name, each in judged.items() if each.outcome == "failed"}
        unclear = [each.sentence for each in judged.values() if each.outcome == "unclear"]
        unknown = [name for name in found.not_compared if column in (None, name)]
        if column is not None and column not in compared and not unknown:
            unknown = [column]
        if unknown:
            unclear.append(f"{metric} is unknown: {', '.join(map(quoted, unknown))} could not be compared")
        elif not judged:
            unclear.append(f"{metric} is unknown: nothing was compared")
        return Verdict(words, tuple(failed.values()), tuple(failed), tuple(unclear))

    def _judgment(self, name: str, compared: ColumnComparison | JointComparison) -> Judgment:
        limit, of_estimate = self.limit, self.limit.metric in TABLE_ESTIMATES
        metric = TABLE_ESTIMATES.get(limit.metric, limit.metric)
        what, number = f"{limit.metric} of {quoted(name)}", getattr(compared, metric)
        value = number if metric in P_VALUES else number.value
        if value is None or math.isnan(value):
            return Judgment("unclear", f"{what} is unknown: most values are too rare to be compared")
        of_words = self._judgment_of_words(metric, name, compared)
        if of_words.outcome == "failed":
            return of_words
        if of_estimate or len(compared.bins) < 2:  # a single value in both tables has no error
            judgment = limit.judgment_of_estimate(what, value)
        elif number.interval is None:
            judgment = limit.without_interval(what, value, "too few independent rows or clusters")
        else:
            judgment = limit.judgment_of_interval(what, value, number.interval)
        return judgment if judgment.outcome != "passed" else of_words

    def _judgment_of_words(
        self, metric: str, name: str, compared: ColumnComparison | JointComparison
    ) -> Judgment:
        """Return the outcome for the words of a column of texts; the divergences compare only the lengths."""
        psi = getattr(compared, "words", None)
        if not psi or self.limit.side != "above" or metric in P_VALUES:
            return PASSED
        if metric == "psi":
            return self.limit.judgment_of_estimate(f"psi of the words of {quoted(name)}", psi)
        # PSI = KL(P||Q) + KL(Q||P) >= 4 JS and 4 TV^2, so PSI bounds the others from above.
        bound = {"js": psi / 4, "tv": math.sqrt(psi) / 2}.get(metric, psi)
        if self.limit.is_kept_by(bound):
            return PASSED
        return Judgment(
            "unclear",
            f"{metric} of the words of {quoted(name)} is at most {bound:.6g}, above {self.limit.limit:g}",
        )


def parse_table_gate(text: str, side: Side) -> TableGate:
    """Parse ``METRIC=LIMIT`` or ``METRIC[COLUMN]=LIMIT``."""
    estimates = (*TABLE_ESTIMATES, WHOLE)
    return TableGate(
        _parse(
            text, side, TABLE_DIVERGENCE_NAMES, estimates, TABLE_METRICS_IN_WORDS, example=0.2, columns=True
        )
    )


def parse_limits(
    parse: Callable[[str, Side], AnyGate], above: Sequence[str], below: Sequence[str]
) -> list[AnyGate]:
    """Return the gates of ``--fail-above`` and of ``--fail-below``."""
    return [*(parse(text, "above") for text in above), *(parse(text, "below") for text in below)]
