"""The result of a comparison of two tables, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass

from kullback.findings import Finding
from kullback.tables.columns.types import ColumnType

__all__ = ["Bin", "ColumnComparison", "JointComparison", "Quantity", "TableComparison"]

Interval = tuple[float, float]


@dataclass(frozen=True)
class Quantity:
    """The estimate of a divergence between the bins of two columns.

    Attributes:
        value: the estimate, corrected for the bias of counts of few rows; at least 0.
        standard_error: its standard error; None where there are too few rows to tell.
        interval: the confidence interval, whose upper end is infinite where one side has no row in a bin of the other;
            None where there is none: the column's notes say why.

    Example:
        >>> from kullback.tables import Quantity
        >>> Quantity(0.1, 0.02, (0.07, 0.15)).interval
        (0.07, 0.15)
    """

    value: float
    standard_error: float | None
    interval: Interval | None


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
    """

    label: str
    low: float | None
    high: float | None
    p: float
    q: float
    contribution: float


@dataclass(frozen=True)
class _Divergences:
    """The divergences between the bins of one column, or between those of several columns together."""

    kl_pq: Quantity
    kl_qp: Quantity
    js: Quantity
    psi: Quantity
    tv: Quantity
    p_value: float
    p_adjusted: float
    bins: tuple[Bin, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ColumnComparison(_Divergences):
    """The comparison of one column: the divergences of `kullback.tables.JointComparison`, and what the column holds.

    Attributes:
        name: the column.
        column_type: ``"numeric"``, ``"datetime"``, ``"boolean"``, ``"categorical"``, or ``"text"``, of which the length
            is compared.
        missing_p: the proportion of P's weight whose value is missing.
        missing_q: likewise for Q.
        new: categories that only Q has, the most frequent first, 100 at most.
        vanished: likewise those that only P has.
        bins: intervals in the order of their numbers; categories, the most frequent first, and at most 50 of them: the
            last bin holds the others.
    """

    name: str
    column_type: ColumnType
    missing_p: float
    missing_q: float
    new: tuple[str, ...]
    vanished: tuple[str, ...]


@dataclass(frozen=True)
class JointComparison(_Divergences):
    """The comparison of several columns together, by the combinations of their bins.

    Attributes:
        columns: the columns.
        kl_pq: KL(P || Q).
        kl_qp: KL(Q || P).
        js: the Jensen-Shannon divergence, at most log 2.
        psi: the population stability index, KL(P || Q) + KL(Q || P).
        tv: the total variation, from 0 to 1.
        p_value: the p-value of the test that P and Q are the same distribution; 1 where there is one bin only.
        p_adjusted: the p-value after Benjamini and Hochberg's correction for the number of tests in this comparison.
        bins: the combinations, the most frequent first, and at most 50 of them: the last bin holds the others.
        notes: what limits these values, one sentence each.
    """

    columns: tuple[str, ...]


@dataclass(frozen=True)
class TableComparison:
    """The comparison of two tables, made by `kullback.compare_tables`.

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
