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
    """A bin of a column (an interval of numbers, a category, or missing values), or a combination of columns' bins.

    Attributes:
        label: the description of the bin.
        low: the lower end of an interval; -inf for the first interval, None for bins that are not intervals.
        high: the upper end of an interval, which the interval excludes; inf for the last interval, None for bins that
            are not intervals.
        p: the weight of P's rows in the bin; the number of rows if rows have no weights.
        q: the weight of Q's rows in the bin.
        contribution: the estimated term of the bin in KL(P || Q), in nats. For proportions p and q, the term is
            p log(p / q) - p + q, which is 0 if p = q.

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
        low: the lower end of the bin; -inf if the histogram leaves out the lower tail.
        high: the upper end of the bin; `low` if the bin holds a single value, inf if the histogram leaves out the upper
            tail. Only the last of adjoining bins includes its upper end.
        p: the weight of P's rows in the bin. It is approximate, because values are counted on a grid.
        q: the weight of Q's rows in the bin, with the same precision.

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


DIVERGENCES = ("kl_pq", "kl_qp", "js", "psi", "tv")


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
    """The comparison of one column: the divergences of `kullback.tables.JointComparison`, and properties of the column.

    Attributes:
        name: the name of the column.
        column_type: ``"numeric"``, ``"datetime"``, ``"boolean"``, ``"categorical"``, or ``"text"``, whose divergences
            compare the lengths.
        missing_p: the proportion of P's weight in rows where the value is missing.
        missing_q: the proportion of Q's weight in rows where the value is missing.
        new: the categories that only Q has, the most frequent first; at most 100 categories.
        vanished: the categories that only P has, the most frequent first; at most 100 categories.
        bins: all intervals in ascending order, or at most 50 bins of categories, the most frequent first. If there are
            more categories, one bin holds the rest.
        histogram: the weights of P and Q in bins for drawings; empty for categories.
        words: for texts, the PSI between rows with and rows without a word of one group, which is the group of words
            that differs most significantly. It is 0 if the test of words does not reject. It is None for other types,
            and if words were not compared, which a finding reports. `p_value` combines the tests of lengths and words.
        ks: the Kolmogorov-Smirnov distance of numbers, timestamps or lengths: the largest difference of P's and Q's
            cumulative proportions, from 0 to 1; None for categories. `p_value` combines the test of the bins and the
            Cramer-von Mises test, which uses the order of the numbers.
        content: ``"numbers-as-text"`` for text that is mostly numbers or dates but is compared as categories.
            ``"identifier"`` if nearly every row has its own value. None for other columns. If it is not None, the
            divergences have little meaning, and a finding gives the reason.

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
        columns: the names of the columns.
        kl_pq: KL(P || Q).
        kl_qp: KL(Q || P).
        js: the Jensen-Shannon divergence, at most log 2.
        psi: the population stability index, KL(P || Q) + KL(Q || P).
        tv: the total variation, from 0 to 1.
        p_value: the p-value of the test that P and Q are the same distribution; 1 if there is only one bin.
        p_adjusted: the p-value after Benjamini and Hochberg's correction for the number of tests in this comparison, or
            in all batches of one `kullback watch`.
        bins: at most 50 combinations, the most frequent first. If there are more combinations, one bin holds the rest.
        notes: sentences that limit or explain these values.

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


# The codes of the findings that a column or a group of columns was not compared.
NOT_COMPARED = ("column-missing", "column-skipped", "type-changed", "unseparated", "group-skipped")


@dataclass(frozen=True, repr=False)
class TableComparison(Shown):
    """The comparison of two tables, made by `kullback.compare_tables`.

    ``print`` shows the comparison as text, and a notebook shows it as a table. `to_html`, `to_json`, `to_dict` and
    `to_pandas` convert it, and `plot` draws it. ``comparison["column"]`` is the comparison of one column, and
    ``comparison["a", "b"]`` is the comparison of two columns together.

    Attributes:
        p_name: the name of P: a path, or the type of the table.
        q_name: the name of Q.
        p_rows: P's number of rows.
        q_rows: Q's number of rows.
        columns: a comparison for each column that both tables have, the largest PSI first and identifiers last.
        joint: a comparison for each requested group of columns, in the order of the request.
        findings: sentences on missing columns, changed types, new categories and all else that limits or explains the
            values.
        confidence: the confidence level of the intervals.
        max_bins: the approximate largest number of bins of numbers.
        weights: the column of the rows' weights; None if rows have no weights.
        cluster: the column of the groups of dependent rows; None if rows have no groups.

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
            ColumnNotFoundError: this column or group of columns was not compared.
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
