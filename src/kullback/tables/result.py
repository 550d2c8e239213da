"""What a comparison of two tables finds: plain frozen values, which the reports turn into tables and pages."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cell", "ColumnComparison", "Finding", "JointComparison", "Quantity", "TableComparison"]

Interval = tuple[float, float]


@dataclass(frozen=True)
class Quantity:
    """A divergence over the cells of a column, and how sure it is.

    Attributes:
        value: the estimate, corrected for the bias that counts of few rows have; never below 0.
        error: its standard error; None where there are too few rows to tell.
        interval: the confidence interval, whose upper end is infinite where one side misses a cell of the other;
            None where no interval can be honest: then the column's notes say why.

    Example:
        >>> from kullback.tables import Quantity
        >>> Quantity(0.1, 0.02, (0.07, 0.15)).interval
        (0.07, 0.15)
    """

    value: float
    error: float | None
    interval: Interval | None


@dataclass(frozen=True)
class Cell:
    """One cell of a column: a bin of numbers, a category, the missing values, or several columns' cells together.

    Attributes:
        label: the cell in words.
        low: where a bin of numbers begins, -inf for the first one; None for what is no bin.
        high: where it ends, itself not included; +inf for the last one.
        p: the weight of P's rows in it; the number of rows where there are no weights.
        q: likewise for Q.
        contribution: what it adds to KL(P || Q), in nats: p log(p / q) - p + q, which is 0 where shares agree.
    """

    label: str
    low: float | None
    high: float | None
    p: float
    q: float
    contribution: float


@dataclass(frozen=True)
class _Divergences:
    """The divergences of one comparison, over a column's cells or over those of several columns together.

    Attributes:
        kl_pq: KL(P || Q).
        kl_qp: KL(Q || P).
        js: the Jensen-Shannon divergence, at most log 2.
        psi: the population stability index, KL(P || Q) + KL(Q || P).
        tv: the total variation, from 0 to 1.
        p_value: how often rows of one and the same distribution would differ as much; 1 where there is one cell only.
        p_adjusted: the same after Benjamini and Hochberg's correction for the number of tests in this comparison.
        cells: bins in the order of their numbers; categories, the most frequent first, and at most 50 of them: a last
            cell holds the others.
        notes: what a reader has to know about these values, one sentence each.
    """

    kl_pq: Quantity
    kl_qp: Quantity
    js: Quantity
    psi: Quantity
    tv: Quantity
    p_value: float
    p_adjusted: float
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ColumnComparison(_Divergences):
    """How far Q's column is from P's: the divergences of `kullback.tables.JointComparison`, for one column.

    Attributes:
        name: the column.
        kind: ``"numeric"``, ``"datetime"``, ``"boolean"``, ``"categorical"``, or ``"text"``, of which the length is
            compared.
        missing_p: the share of P's weight whose value is missing.
        missing_q: likewise for Q.
        new: categories that only Q has, the most frequent first, 100 at most.
        vanished: likewise those that only P has.
    """

    name: str
    kind: str
    missing_p: float
    missing_q: float
    new: tuple[str, ...]
    vanished: tuple[str, ...]


@dataclass(frozen=True)
class JointComparison(_Divergences):
    """How far Q is from P over the cells of several columns together.

    Attributes:
        columns: the columns.
        kl_pq: KL(P || Q), like all divergences of the cells that the columns' own cells make together.
        kl_qp: KL(Q || P).
        js: the Jensen-Shannon divergence, at most log 2.
        psi: the population stability index, KL(P || Q) + KL(Q || P).
        tv: the total variation, from 0 to 1.
        p_value: how often rows of one and the same distribution would differ as much; 1 where there is one cell only.
        p_adjusted: the same after Benjamini and Hochberg's correction for the number of tests in this comparison.
        cells: the combinations, the most frequent first, at most 50: a last cell holds the others.
        notes: what a reader has to know about these values, one sentence each.
    """

    columns: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """Something that a number does not say.

    Attributes:
        column: the column it is about; None for the tables as a whole.
        kind: a stable code, one of `kullback.tables.FINDINGS`.
        message: the finding in a sentence.
    """

    column: str | None
    kind: str
    message: str


@dataclass(frozen=True)
class TableComparison:
    """All that a comparison of two tables found; made by `kullback.compare_tables`.

    Attributes:
        p_name: what P was read from.
        q_name: what Q was read from.
        p_rows: P's number of rows.
        q_rows: Q's number of rows.
        columns: a comparison for each column that both have, the largest PSI first.
        joint: a comparison for each group of columns that was asked for, in that order.
        findings: what the numbers do not say: missing columns, changed types, new categories and the like.
        confidence: what share of the intervals is to cover.
        bins: into how many bins at most numbers were sorted.
        weights: the column that the rows were weighted by, or None.
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
    bins: int
    weights: str | None
    cluster: str | None
