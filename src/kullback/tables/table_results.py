"""The result of a comparison of two tables, as frozen dataclasses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, overload

from kullback.common.display import Shown
from kullback.errors import LONGEST_NAME, ColumnNotFoundError, printable, quoted, safe_repr
from kullback.results.finding import Finding
from kullback.results.value import Value
from kullback.tables.columns.types import ColumnType

Content = Literal["numbers-as-text", "identifier"]


def least(quantity: Value[float | None]) -> float:
    """Return the value of a divergence, or the lower end of its interval if it has no value."""
    if quantity.value is not None:
        return quantity.value
    return quantity.interval[0] if quantity.interval else 0.0


@dataclass(frozen=True)
class Bin:
    """A bin of a column: an interval of numbers, a category, the missing values; or a combination of several columns'.

    Attributes:
        label: the bin in words.
        low: the lower end of an interval, -inf for the first one; None for other bins.
        high: the upper end, which is not in the interval; +inf for the last one; None for other bins.
        p: the weight of P's rows in it; the number of rows where there are no weights.
        q: likewise for Q.
        contribution: its term of KL(P || Q), in nats: p log(p / q) - p + q of the proportions p and q, 0 where they are
            equal.

    Example:
        >>> import pyarrow as pa
        >>> from kullback import compare_tables
        >>> before = pa.table({"plan": ["a"] * 60 + ["b"] * 40, "size": [1] * 50 + [2] * 50})
        >>> after = pa.table({"plan": ["a"] * 30 + ["b"] * 70, "size": [1] * 50 + [2] * 50})
        >>> bin = compare_tables(before, after).columns[0].bins[0]
        >>> bin.label, bin.p, bin.q
        ('b', 40.0, 70.0)
    """

    label: str
    low: float | None
    high: float | None
    p: float
    q: float
    contribution: float


@dataclass(frozen=True)
class HistogramBin:
    """A bin of the histogram that shows a column of numbers at its own scale.

    Attributes:
        low: its lower end; -inf where the histogram leaves out a tail.
        high: its upper end, which is not in the bin but for the last one of bins that follow each other; `low` where
            the bin holds a single value.
        p: the weight of P's rows in it, up to the rounding of the grid that values are counted on.
        q: likewise for Q.

    Example:
        >>> import pyarrow as pa
        >>> from kullback import compare_tables
        >>> comparison = compare_tables(pa.table({"x": [0, 0, 1]}), pa.table({"x": [0, 1, 1]}))
        >>> [(each.low, each.p, each.q) for each in comparison["x"].histogram]
        [(0, 2.0, 1.0), (1, 1.0, 2.0)]
    """

    low: float
    high: float
    p: float
    q: float


@dataclass(frozen=True, repr=False)
class Divergences:
    """The divergences between the bins of one column, or between the joint bins of several columns."""

    kl_pq: Value[float | None]
    kl_qp: Value[float | None]
    js: Value[float | None]
    psi: Value[float | None]
    tv: Value[float | None]
    p_value: float
    p_adjusted: float
    bins: tuple[Bin, ...]
    notes: tuple[str, ...]


class _Comparison(Divergences, ABC):
    """Divergences with the names of their columns."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The name of the column, or the names of the columns separated by commas."""

    def __repr__(self) -> str:
        psi = "None" if self.psi.value is None else f"{self.psi.value:.4g}"
        return f"{type(self).__name__}({quoted(self.label)}, psi={psi}, p_adjusted={self.p_adjusted:.4g})"


@dataclass(frozen=True, repr=False)
class ColumnComparison(_Comparison):
    """The comparison of one column: the divergences of `kullback.tables.JointComparison`, and the content of the
    column.

    Attributes:
        name: the column.
        column_type: ``"numeric"``, ``"datetime"``, ``"boolean"``, ``"categorical"``, or ``"text"``, whose divergences
            compare the lengths.
        missing_p: the proportion of P's weight whose value is missing.
        missing_q: likewise for Q.
        new: categories that only Q has, the most frequent first, 100 at most.
        vanished: likewise those that only P has.
        bins: intervals in the order of their numbers; categories, the most frequent first, and at most 50 of them: the
            last bin holds the others.
        histogram: P and Q at the scale of their numbers, for drawings; empty for categories.
        words: of texts, the PSI of the group of words that differs most significantly, between the rows with and
            without its words; 0 where the test of words does not reject. None for other types, and where words were
            not compared; findings say so. `p_value` combines the tests of lengths and words.
        ks: the Kolmogorov-Smirnov distance of numbers, timestamps or lengths: the largest difference of P's and Q's
            cumulative proportions, from 0 to 1; None for categories. `p_value` combines the test of the bins and the
            Cramer-von Mises test, which sees the order of the numbers.
        content: ``"numbers-as-text"`` for text whose values are mostly numbers or dates and are compared as categories,
            ``"identifier"`` where nearly every row has its own value; else None. The divergences of such columns say
            little; findings say why.

    Example:
        >>> import pyarrow as pa
        >>> from kullback import compare_tables
        >>> before = pa.table({"plan": ["a"] * 60 + ["b"] * 40, "size": [1] * 50 + [2] * 50})
        >>> after = pa.table({"plan": ["a"] * 30 + ["b"] * 70, "size": [1] * 50 + [2] * 50})
        >>> column = compare_tables(before, after).columns[0]
        >>> column.name, column.column_type, round(column.psi.value, 3)
        ('plan', 'categorical', 0.352)
    """

    name: str
    column_type: ColumnType
    missing_p: float
    missing_q: float
    new: tuple[str, ...]
    vanished: tuple[str, ...]
    histogram: tuple[HistogramBin, ...]
    ks: float | None = None
    words: float | None = None
    content: Content | None = None

    @property
    def label(self) -> str:
        """The name of the column."""
        return self.name


@dataclass(frozen=True, repr=False)
class JointComparison(_Comparison):
    """The comparison of several columns together, by the combinations of their bins.

    Attributes:
        columns: the columns.
        kl_pq: KL(P || Q).
        kl_qp: KL(Q || P).
        js: the Jensen-Shannon divergence, at most log 2.
        psi: the population stability index, KL(P || Q) + KL(Q || P).
        tv: the total variation, from 0 to 1.
        p_value: the p-value of the test that P and Q are the same distribution; 1 where there is one bin only.
        p_adjusted: the p-value after Benjamini and Hochberg's correction for the number of tests in this comparison, or
            in all batches of one `kullback watch`.
        bins: the combinations, the most frequent first, and at most 50 of them: the last bin holds the others.
        notes: what limits these values, one sentence each.

    Example:
        >>> import pyarrow as pa
        >>> from kullback import compare_tables
        >>> before = pa.table({"plan": ["a"] * 60 + ["b"] * 40, "size": [1] * 50 + [2] * 50})
        >>> after = pa.table({"plan": ["a"] * 30 + ["b"] * 70, "size": [1] * 50 + [2] * 50})
        >>> [together] = compare_tables(before, after, joint=[("plan", "size")]).joint
        >>> together.columns, [bin.label for bin in together.bins][:2]
        (('plan', 'size'), ['plan: a, size: 1', 'plan: b, size: 2'])
    """

    columns: tuple[str, ...]

    @property
    def label(self) -> str:
        """The names of the columns, separated by commas."""
        return ",".join(self.columns)


# The codes of findings about a column, or a group of columns, that was not compared.
NOT_COMPARED = ("column-missing", "column-skipped", "type-changed", "group-skipped")


@dataclass(frozen=True, repr=False)
class TableComparison(Shown):
    """The comparison of two tables, made by `kullback.compare_tables`.

    ``print`` shows it as text, a notebook as a table; `to_html`, `to_json`, `to_dict`
    and `to_pandas` write it.
    ``comparison["column"]`` is the comparison of a column, and ``comparison["a", "b"]`` that of columns together.

    Attributes:
        p_name: the name of P: a path, or the type of the table.
        q_name: the name of Q.
        p_rows: P's number of rows.
        q_rows: Q's number of rows.
        columns: a comparison for each column that both have, the largest PSI first.
        joint: a comparison for each group of columns that was asked for, in that order.
        findings: missing columns, changed types, new categories and whatever else limits or explains the values.
        confidence: the confidence level of the intervals.
        max_bins: the largest number of bins of numbers.
        weights: the column of the rows' weights, or None.
        cluster: the column of the groups of dependent rows, or None.

    Example:
        >>> import pyarrow as pa
        >>> from kullback import compare_tables
        >>> before = pa.table({"plan": ["a"] * 60 + ["b"] * 40, "size": [1] * 50 + [2] * 50})
        >>> after = pa.table({"plan": ["a"] * 30 + ["b"] * 70, "size": [1] * 50 + [2] * 50})
        >>> comparison = compare_tables(before, after)
        >>> comparison.p_rows, [column.name for column in comparison.columns]
        (100, ['plan', 'size'])
        >>> comparison["plan"]
        ColumnComparison('plan', psi=0.351..., p_adjusted=3.69...e-05)
    """

    p_name: str
    q_name: str
    p_rows: int
    q_rows: int
    columns: tuple[ColumnComparison, ...]
    joint: tuple[JointComparison, ...]
    findings: tuple[Finding, ...]
    confidence: float
    max_bins: int
    weights: str | None
    cluster: str | None

    @overload
    def __getitem__(self, name: str) -> ColumnComparison: ...
    @overload
    def __getitem__(self, name: tuple[str, ...]) -> JointComparison: ...
    def __getitem__(self, name: str | tuple[str, ...]) -> ColumnComparison | JointComparison:
        """Return the comparison of a column, or of a group of columns.

        Raises:
            ColumnNotFoundError: no such column was compared.
        """
        for column in self.columns:
            if column.name == name:
                return column
        for group in self.joint:
            if group.columns == name:
                return group
        reasons = [
            finding.message
            for finding in self.findings
            if finding.column == name and name in self.not_compared
        ]
        there = ", ".join(quoted(column.name) for column in self.columns[:10])
        asked = quoted(name) if isinstance(name, str) else printable(safe_repr(name), LONGEST_NAME)
        raise ColumnNotFoundError.at(
            f"no comparison of {asked}",
            wanted=f"one of {there or 'no columns'}",
            got=reasons[0] if reasons else asked,
            instead="a column that both tables have",
            wording="{got}" if reasons else "wanted {wanted}",
        )

    def __repr__(self) -> str:
        most = "" if not self.columns else f", largest psi: {self.columns[0]!r}"
        size = f"{self.p_rows} and {self.q_rows} rows, {len(self.columns)} columns"
        return f"TableComparison({quoted(self.p_name)}, {quoted(self.q_name)}, {size}{most})"

    @property
    def not_compared(self) -> tuple[str, ...]:
        """The requested columns and groups of columns that could not be compared; findings give the reasons."""
        return tuple(
            finding.column
            for finding in self.findings
            if finding.code in NOT_COMPARED and finding.column is not None
        )
