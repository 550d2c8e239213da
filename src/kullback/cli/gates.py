"""Gates: limits on the numbers of a comparison, such as ``mean=0.01``. A gate passes, fails, or is unclear.

For a limit on NAME, the limit is compared with the confidence interval of the number. The gate passes if the whole
interval is on the right side of the limit, and fails if the whole interval is beyond the limit. Otherwise, or without
an interval, the gate is unclear. For a limit on NAME.value, the limit is compared with the estimate alone. Numbers
without an interval have only this form.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kullback.cli.option import invalid_option
from kullback.common.row_statistics import FURTHER
from kullback.common.words import DIVERGENCE_NAMES, TABLE_DIVERGENCE_NAMES
from kullback.errors import LONGEST_NAME, ArgumentValueError, printable, quoted
from kullback.results.verdict import Outcome, Verdict, rows_to_decide

if TYPE_CHECKING:
    from kullback.cli.settings import Settings
    from kullback.mismatch import Mismatch
    from kullback.predictions import Comparison
    from kullback.results.value import Interval, Value
    from kullback.tables.table_results import ColumnComparison, JointComparison, TableComparison

Side = Literal["above", "below"]


class Compared(NamedTuple):
    """A comparison of predictions.

    Attributes:
        name: the name of the candidate; None if there is only one candidate.
        comparison: the result of `compare_predictions`.
        certain: the smallest and the largest possible mean of each divergence, if the divergences of `comparison` are
            lower bounds; otherwise None.
        floor: the mean KL of P from itself with rounding noise; 0 if it was not measured.
        certain_in_groups: `certain` of each group, by name.
    """

    name: str | None
    comparison: Comparison
    certain: Mapping[str, Interval] | None = None
    floor: float = 0.0
    certain_in_groups: Mapping[str, Mapping[str, Interval]] = MappingProxyType({})


class Metric(NamedTuple):
    """A number of a comparison of predictions.

    Attributes:
        path: the name of a divergence, or the attributes (joined by dots) that lead to a value or a summary.
        part: the attribute of the value or summary that is compared with a limit.
    """

    path: str
    part: str = "value"


# Numbers without an interval, and the attributes of `Summary` that contain these numbers.
STATISTICS = {
    "min": "minimum", "p0.1": "p001", "p1": "p01", "p5": "p05", "p10": "p10", "median": "median", "p90": "p90",
    "p95": "p95", "p99": "p99", "p99.9": "p999", "max": "maximum",
}  # fmt: skip
# This many times the noise floor is above the floor, even if it is rounded to two digits.
_LEAST_ABOVE_NOISE = 1.06
DELTA_PROB = "labels.delta_prob"
# The names of numbers with an interval, and where a `Comparison` contains these numbers.
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
_ROWS_IN_WORDS = (
    f"mean (of KL(P||Q)); {', '.join(f'{name}.mean' for name in DIVERGENCE_NAMES)}; {', '.join(_OWN_MEANS)}, whose "
    f"whole interval has to be on the right side; mean.value, top1.value and so on, the estimate alone; "
    f"{', '.join(f'{name}.value' for name in STATISTICS)} (of KL(P||Q)), js.p99.value and so on, which have no interval"
    "; mean[GROUP] and so on, of a group"
)

# In a comparison of tables, each column has `P_VALUES`, which have no interval. `WHOLE` is a number of the whole
# comparison.
P_VALUES, WHOLE = ("p_value", "p_adjusted"), "findings.value"
TABLE_ESTIMATES = {f"{name}.value": name for name in (*TABLE_DIVERGENCE_NAMES, *P_VALUES, "findings")}
_TABLES_IN_WORDS = (
    f"{', '.join(TABLE_DIVERGENCE_NAMES)}, whose whole interval has to be on the right side; psi.value and so on, the "
    f"estimate alone; {', '.join(f'{name}.value' for name in P_VALUES)} (each for every column and joint group; for "
    f"one: psi[COLUMN], psi.value[COLUMN]); {WHOLE}, the number of findings"
)


class Judgment(NamedTuple):
    """The outcome of a limit for one number, and a sentence with the reason; for "passed", the sentence is empty."""

    outcome: Outcome
    sentence: str = ""


PASSED = Judgment("passed")


@dataclass(frozen=True)
class Limit:
    """A limit on one number.

    Attributes:
        column: the column of a table, or the group of rows, that the limit applies to; None for all columns or rows.
        limit: the largest or the smallest number that passes.
        side: the side of the limit where the gate fails.
        place: the file and the key that state the limit; None for a limit of the command line.
    """

    metric: str
    column: str | None
    limit: float
    side: Side
    place: str | None = None

    @property
    def number(self) -> str:
        """The limit as text, short but exact."""
        short = f"{self.limit:g}"
        return short if float(short) == self.limit else repr(self.limit)

    @property
    def words(self) -> str:
        """The limit in words: ``mean at most 0.01``."""
        name = self.metric if self.column is None else f"{self.metric} of {quoted(self.column)}"
        return f"{name} {'at most' if self.side == 'above' else 'at least'} {self.number}"

    def is_kept_by(self, value: float) -> bool:
        """Return whether a number is on the right side of the limit, or equal to the limit."""
        return value <= self.limit if self.side == "above" else value >= self.limit

    def judgment(
        self, what: str, of: Value[Any], value: float, reason: str, *, rows: int = 0, is_exact: bool = False
    ) -> Judgment:
        """Return the outcome for a number that may have an interval.

        `reason` explains a missing interval. The interval comes from `rows` rows. If `is_exact`, there is no sampling
        error.
        """
        # No interval is needed if an infinite number is beyond the limit.
        is_beyond = math.isinf(value) and not self.is_kept_by(value)
        if is_exact or is_beyond or self.metric.endswith(".value"):
            return self.judgment_of_estimate(what, value)
        if of.interval is None and not math.isnan(value):
            return self.without_interval(what, value, reason)
        return self.judgment_of_interval(what, value, of.interval or (value, value), rows=rows)

    def judgment_of_estimate(self, what: str, value: float) -> Judgment:
        """Return the outcome for an estimate without its interval; for NaN, the outcome is unclear."""
        if math.isnan(value):
            return Judgment("unclear", f"{what} is {value:.6g}, not a number")
        if self.is_kept_by(value):
            return PASSED
        by = f"{self.side} {self.number} by {abs(value - self.limit):.3g}"
        return Judgment("failed", f"{what} is {value:.6g}, {by}")

    def judgment_of_interval(
        self, what: str, value: float, interval: Interval, name: str = "its interval", *, rows: int = 0
    ) -> Judgment:
        """Return the outcome for a number whose true value may be anywhere in an interval.

        If the outcome is unclear and the interval comes from `rows` rows, the sentence has the number of rows that
        would decide.
        """
        low, high = interval
        inside = self.is_kept_by(low), self.is_kept_by(high)
        if math.isnan(value) or math.isnan(low) or math.isnan(high):
            return Judgment("unclear", f"{what} is {value:.6g}, not a number")
        if all(inside):
            return PASSED
        number = f"{what} is {value:.6g}, but" if any(inside) else f"{what} is {value:.6g}, and"
        whole = "contains the limit" if any(inside) else f"is {self.side}"
        needed = rows_to_decide(value, interval, self.limit, rows) if any(inside) and rows else None
        return Judgment(
            "unclear" if any(inside) else "failed",
            f"{number} {name}, {low:.6g} to {high:.6g}, {whole} {self.number}"
            + (f"; about {needed:,} rows would decide" if needed else ""),
        )

    def judgment_above_noise(self, judgment: Judgment, low: float, floor: float) -> Judgment:
        """Return the outcome for a mean KL, given the mean KL `floor` of rounding noise: no limit below can be checked.
        A mean that is above the noise, as is `low`, the lower end of its interval, may fail.
        """
        if self.side != "above" or self.limit >= floor or (judgment.outcome == "failed" and low > floor):
            return judgment
        return Judgment(
            "unclear",
            f"{self.words} is below the noise floor: rounding alone moves P by {floor:.3g}; "
            f"--fail-above {self.metric}={_LEAST_ABOVE_NOISE * floor:.2g} can be checked",
        )

    def without_interval(self, what: str, value: float, reason: str) -> Judgment:
        """Return an unclear outcome for a number without an interval; the sentence has the reason and a remedy."""
        column = "" if self.column is None else f"[{self.column}]"
        alone = f"--fail-{self.side} {self.metric}.value{column}={self.number} checks the estimate alone"
        return Judgment("unclear", f"{what} is {value:.6g} without an interval ({reason}); {alone}")


class Judged(NamedTuple):
    """The outcomes of a limit for a result.

    Attributes:
        outcomes: pairs of a name and an outcome, for each column or candidate. The name is None if there is only one
            number.
        unclear: further reasons why the limit is unclear, such as columns that could not be compared.
    """

    outcomes: Sequence[tuple[str | None, Judgment]]
    unclear: tuple[str, ...] = ()


@dataclass(frozen=True)
class Metrics:
    """The numbers of a subject (predictions or tables) that can have limits.

    Attributes:
        means: the names of the numbers with an interval.
        estimates: the names of estimates that are compared without an interval.
        in_words: a description of all names, for help and error messages.
        have_columns: whether a limit may apply to one column or group, as in ``psi[COLUMN]``.
        judge: the function that returns the outcomes of a limit for a result.
    """

    means: Collection[str]
    estimates: Collection[str]
    in_words: str
    example: float
    have_columns: bool
    judge: Callable[[Limit, Any], Judged]


@dataclass(frozen=True)
class Gate:
    """A limit, and the `Metrics` that contain its number."""

    limit: Limit
    metrics: Metrics

    def verdict(self, result: TableComparison | Mismatch | Sequence[Compared]) -> Verdict:
        """Return the limit in words, with a sentence for each number that breaks the limit or is unclear."""
        outcomes, unclear = self.metrics.judge(self.limit, result)
        sentences = {
            outcome: tuple(judgment.sentence for _, judgment in outcomes if judgment.outcome == outcome)
            for outcome in ("failed", "unclear")
        }
        broken_by, unclear_for = (
            tuple(name for name, judgment in outcomes if judgment.outcome == outcome and name)
            for outcome in sentences
        )
        every_unclear = (*sentences["unclear"], *unclear)
        return Verdict(self.limit.words, sentences["failed"], broken_by, every_unclear, unclear_for)


def judge_rows(limit: Limit, compared: Sequence[Compared]) -> Judged:
    """Return the outcomes of a limit for comparisons of predictions; if there are several, sentences have names."""
    judged = [
        (
            each.name,
            judge_comparison(limit, *each[1:4]) if limit.column is None else _judge_group(limit, each),
        )
        for each in (Compared(*row) for row in compared)
    ]
    if len(judged) > 1:
        judged = [
            (name, judgment._replace(sentence=f"{name}: {judgment.sentence}")) for name, judgment in judged
        ]
    return Judged(judged)


def _judge_group(limit: Limit, compared: Compared) -> Judgment:
    name, groups = str(limit.column), compared.comparison.groups
    if name not in groups:
        names = ", ".join(map(quoted, groups)) or "there are none (--group)"
        return Judgment("unclear", f"{limit.metric} is unknown: no group is {quoted(name)}; groups: {names}")
    certain = compared.certain and compared.certain_in_groups.get(name)
    judgment = judge_comparison(limit, groups[name], certain, compared.floor)
    sentence = judgment.sentence and f"in group {quoted(name)}, {judgment.sentence}"
    return judgment._replace(sentence=sentence)


def judge_comparison(
    limit: Limit, comparison: Comparison, certain: Mapping[str, Interval] | None = None, floor: float = 0.0
) -> Judgment:
    """Return the outcome of a limit for a comparison of predictions; `Compared` describes the arguments."""
    judgment, kl = _judged_without_noise(limit, comparison, certain), comparison.divergences["kl_pq"]
    if floor and MEANS.get(limit.metric, Metric("")).path == "kl_pq" and kl.maximum > 0:
        return limit.judgment_above_noise(judgment, kl.ends[0], floor)
    return judgment


def _judged_without_noise(
    limit: Limit, comparison: Comparison, certain: Mapping[str, Interval] | None
) -> Judgment:
    name = limit.metric
    metric = MEANS.get(name) or ESTIMATES.get(name) or Metric(name.removesuffix(".value"))
    further = comparison.further if metric.path in FURTHER else {}
    if metric.path in FURTHER and metric.path not in further:
        return Judgment("unclear", f"{name} is unknown, because not all classes are known")
    if metric.path.startswith("labels.") and comparison.labels is None:
        raise ArgumentValueError.at(
            f"{limit.place}: {name}=..." if limit.place else f"--fail-{limit.side} {name}=...",
            f"--fail-{limit.side}",
            wanted="labels",
            got="there are no labels",
            instead="--labels FILE",
            wording="{got}. Write: {instead}",
        )
    of = further.get(metric.path) or comparison.divergences.get(metric.path)
    of = of or attrgetter(metric.path)(comparison)
    value = getattr(of, metric.part)
    if name.endswith(".value"):
        bounds = None if certain is None else _possible(metric, value, certain)
        if bounds is None:
            return limit.judgment_of_estimate(name, value)
        return limit.judgment_of_interval(name, value, bounds, "its bounds")
    summary = comparison.divergences.get(metric.path)
    are_equal = summary is not None and summary.minimum == summary.maximum == 0
    if are_equal and certain is not None:
        # Lower bounds of 0 do not say that the sides are equal.
        are_equal = certain[metric.path][1] == 0
    reason = of.reason or "none was asked for"
    return limit.judgment(name, of, value, reason, rows=comparison.rows, is_exact=are_equal)


def _possible(metric: Metric, value: float, certain: Mapping[str, Interval]) -> Interval | None:
    """Return the smallest and the largest possible value of a number, if divergences are lower bounds.

    Return None if the number is known exactly.
    """
    if metric.path == "acceptance_rate":
        least, most = certain["tv"]
        return 1 - most, 1 - least
    if metric.path not in DIVERGENCE_NAMES:
        return None
    return certain[metric.path] if metric.part == "value" else (value, math.inf)


def judge_tables(limit: Limit, comparison: TableComparison) -> Judged:
    """Return the outcomes of a limit for the columns, and groups of columns, of a comparison of tables.

    If a number is unknown, the limit is unclear.
    """
    metric, column = limit.metric, limit.column
    if metric == WHOLE:
        return Judged([(None, limit.judgment_of_estimate(WHOLE, float(len(comparison.findings))))])
    compared = {each.label: each for each in (*comparison.columns, *comparison.joint)}
    outcomes = [
        (name, _judge_column(limit, name, each, comparison.p_rows + comparison.q_rows))
        for name, each in compared.items()
        if column in (None, name)
    ]
    unknown = [name for name in comparison.not_compared if column in (None, name)]
    if column is not None and column not in compared and not unknown:
        unknown = [column]
    if unknown:
        names = ", ".join(map(quoted, unknown))
        return Judged(outcomes, (f"{metric} is unknown: {names} could not be compared",))
    return Judged(outcomes, () if outcomes else (f"{metric} is unknown: nothing was compared",))


def _judge_column(
    limit: Limit, name: str, compared: ColumnComparison | JointComparison, rows: int
) -> Judgment:
    metric = TABLE_ESTIMATES.get(limit.metric, limit.metric)
    what, number = f"{limit.metric} of {quoted(name)}", getattr(compared, metric)
    value = number if metric in P_VALUES else number.value
    if value is None or math.isnan(value):
        return Judgment("unclear", f"{what} is unknown: most values are too rare to be compared")
    of_words = _judge_words(limit, metric, name, compared)
    if of_words.outcome == "failed":
        return of_words
    # If both tables contain only one value, the number has no sampling error.
    is_exact, reason = len(compared.bins) < 2, "too few independent rows or clusters"
    judgment = limit.judgment(what, number, value, reason, rows=rows, is_exact=is_exact)
    return judgment if judgment.outcome != "passed" else of_words


def _judge_words(
    limit: Limit, metric: str, name: str, compared: ColumnComparison | JointComparison
) -> Judgment:
    """Return the outcome for the words of a column of texts, because the divergences compare only the lengths."""
    psi = getattr(compared, "words", None)
    if not psi or limit.side != "above" or metric in P_VALUES:
        return PASSED
    if metric == "psi":
        return limit.judgment_of_estimate(f"psi of the words of {quoted(name)}", psi)
    # PSI = KL(P||Q) + KL(Q||P) >= 4 JS and 4 TV^2, so PSI gives an upper bound of each other divergence.
    bound = {"js": psi / 4, "tv": math.sqrt(psi) / 2}.get(metric, psi)
    if limit.is_kept_by(bound):
        return PASSED
    return Judgment(
        "unclear", f"{metric} of the words of {quoted(name)} is at most {bound:.6g}, above {limit.number}"
    )


OF_ROWS = Metrics(MEANS, ESTIMATES, _ROWS_IN_WORDS, 0.01, have_columns=True, judge=judge_rows)
OF_TABLES = Metrics(
    TABLE_DIVERGENCE_NAMES, TABLE_ESTIMATES, _TABLES_IN_WORDS, 0.2, have_columns=True, judge=judge_tables
)

# The numbers of a mismatch that can have limits. All but the mean ratio have the name of their field.
_OF_MISMATCH = ("k1", "k3", "naive_k3", "ratio", "effective_share", "sequence_effective_share", "past")


def judge_mismatch(limit: Limit, mismatch: Mismatch) -> Judged:
    """Return the outcome of a limit for a mismatch of engine and trainer."""
    name = limit.metric.removesuffix(".value")
    of = mismatch.mean_ratio if name == "ratio" else getattr(mismatch, name)
    # If both sides gave every token one probability, every estimate of KL is 0.
    k3 = mismatch.naive_k3 if name == "naive_k3" else mismatch.k3
    are_equal = name.endswith(("k1", "k3")) and k3.value == 0
    reason = of.reason or "not finite"
    return Judged([(None, limit.judgment(limit.metric, of, of.value, reason, is_exact=are_equal))])


_PROPORTIONS = {
    "tv", "top1", "acceptance", "delta_prob_rms", *P_VALUES, "effective_share", "sequence_effective_share", "past",
}  # fmt: skip
OF_MISMATCH = Metrics(
    _OF_MISMATCH,
    [f"{name}.value" for name in _OF_MISMATCH],
    f"{', '.join(_OF_MISMATCH)}, whose whole interval has to be on the right side; k3.value and so on, the estimate "
    "alone",
    0.001,
    have_columns=False,
    judge=judge_mismatch,
)


def parse_gate(text: str, side: Side, metrics: Metrics = OF_ROWS, place: str | None = None) -> Gate:
    """Return the gate that a text describes: ``METRIC=LIMIT`` or ``METRIC[COLUMN]=LIMIT``, with a column or group.

    `place` is the file and the key that contain the text; None for the command line.
    """

    def written(gate: str) -> str:
        return f"fail-{side} = [{json.dumps(gate, ensure_ascii=False)}]" if place else f"--fail-{side} {gate}"

    where = f"{place}: {printable(text, LONGEST_NAME)}" if place else f"--fail-{side} {text}"
    name, _, number = text.rpartition("=") if "=" in text else (text, "", "")
    metric, bracket, column = name.partition("[")
    has_column = not bracket or (
        metrics.have_columns and metric != WHOLE and column[:-1] and column[-1] == "]"
    )
    is_of_user = metrics.judge is judge_rows and metric.removesuffix(".value") in FURTHER
    if not has_column or not (metric in metrics.means or metric in metrics.estimates or is_of_user):
        changed = _new_form(metric, metrics) if has_column else None
        raise ArgumentValueError.at(
            where,
            f"--fail-{side}",
            wanted=f"METRIC=LIMIT with a METRIC among {metrics.in_words}",
            got=repr(name),
            instead=written(f"{changed}{bracket}{column}={number}") if changed else "one of these",
            wording="wanted {wanted}; got {got}" + "; write {instead}" * bool(changed),
        )
    try:
        limit = math.nan if "_" in number else float(number)  # float("0_1") is 1
    except ValueError:
        limit = math.nan
    least, most = _range_of(metric)
    # A gate with an infinite limit, or another limit that no number reaches, could never fail, or never pass.
    if not (math.isfinite(limit) and least <= limit <= most):
        ends = "" if least == -math.inf else f" of {least:g} or more"
        ends = ends if most == math.inf else f" from {least:g} to {most:.6g}"
        wanted, instead = f"a finite number{ends} after '='", written(f"{name}={min(metrics.example, most)}")
        raise invalid_option(f"--fail-{side}", wanted=wanted, got=f"{number!r}", instead=instead, place=where)
    return Gate(Limit(metric, column[:-1] if bracket else None, limit, side, place), metrics)


def _range_of(metric: str) -> Interval:
    """Return the smallest and the largest number that a metric can be."""
    name = metric.removesuffix(".value")
    names = name.split(".")
    if name in FURTHER or {"k1", "difference", "ppl_difference"}.intersection(names):
        return -math.inf, math.inf
    if "delta_prob" in names:
        return -1.0, 1.0
    if _PROPORTIONS.intersection(names):
        return 0.0, 1.0
    return 0.0, math.log(2) if "js" in names else math.inf


def _new_form(metric: str, metrics: Metrics) -> str | None:
    """Return the current name for an old name, such as p99.value for p99, or the name nearest to a misspelled one."""
    if f"{metric}.value" in metrics.estimates:
        return f"{metric}.value"
    of, _, end = metric.rpartition(".")
    if end in ("upper", "lower"):
        return next((name for name in (of or "mean", f"{of}.mean") if name in metrics.means), None)
    if metric in ("kl", "kl.mean", "kl_pq", "kl_pq.mean") and "mean" in metrics.means:
        return "mean"  # KL(P || Q), whose name the reverse direction resembles
    return next(iter(difflib.get_close_matches(metric, [*metrics.means, *metrics.estimates], n=1)), None)


def gates_of(settings: Settings, metrics: Metrics) -> list[Gate]:
    """Return the gates of the options ``--fail-above`` and ``--fail-below``, also if a file states them."""
    sides: tuple[Side, ...] = ("above", "below")
    gates: list[Gate] = []
    for side in sides:
        flag = f"--fail-{side}"
        place = settings.place_of(flag)
        in_file = None if place == flag else place
        gates += [parse_gate(text, side, metrics, in_file) for text in settings[flag]]
    return gates
