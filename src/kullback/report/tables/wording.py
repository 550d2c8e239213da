"""How the reports on tables write their numbers, the same on every medium."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from kullback.report.shared.formats import count, number, percent
from kullback.tables.result import Bin, ColumnComparison, JointComparison, Quantity, TableComparison

__all__ = [
    "SIGNIFICANT",
    "Verdict",
    "p_value_text",
    "contributors",
    "differing",
    "interval",
    "name_of",
    "percentage",
    "size",
    "totals",
]

SIGNIFICANT = 0.05
Compared = ColumnComparison | JointComparison


class Verdict(NamedTuple):
    """A limit that was asked for, and how the comparison breaks it.

    Attributes:
        limit: the limit in words, such as "psi at most 0.2".
        failures: a sentence for each column beyond it; none where it holds.
    """

    limit: str
    failures: tuple[str, ...]


def interval(quantity: Quantity, digits: int = 3) -> str:
    """The ends of an interval, or n/a where there is none.

    Example:
        >>> interval(Quantity(0.1, 0.02, (0.05, float("inf")))), interval(Quantity(0.1, None, None))
        ('0.0500 to inf', 'n/a')
    """
    if quantity.interval is None:
        return "n/a"
    return " to ".join(number(end, digits) for end in quantity.interval)


def p_value_text(p_value: float) -> str:
    """A p-value, as exactly as it matters.

    Example:
        >>> [p_value_text(p) for p in (1.0, 0.8154, 0.0123, 3e-5, float("nan"))]
        ['1.00', '0.82', '0.012', '<.001', 'n/a']
    """
    if math.isnan(p_value):
        return "n/a"
    if p_value < 0.001:
        return "<.001"
    return f"{p_value:.2f}" if p_value >= 0.095 else f"{p_value:.3f}"


def name_of(compared: Compared) -> str:
    """The column, or the columns of a group."""
    return compared.name if isinstance(compared, ColumnComparison) else " × ".join(compared.columns)


def totals(compared: Compared) -> tuple[float, float]:
    """The weight of P and of Q in all bins."""
    return sum(part.p for part in compared.bins), sum(part.q for part in compared.bins)


def percentage(weight: float, total: float) -> str:
    """Return a bin's proportion in percent."""
    return percent(weight / total) if total else "n/a"


def contributors(compared: Compared, most: int) -> list[Bin]:
    """The bins that contribute most to KL(P || Q), the largest first; none that contribute nothing."""
    ranked = sorted(compared.bins, key=lambda part: -part.contribution)
    return [part for part in ranked[:most] if part.contribution > 0]


def differing(comparison: TableComparison) -> list[ColumnComparison]:
    """The columns whose difference is no chance, by the adjusted p-value, the largest PSI first."""
    return [column for column in comparison.columns if column.p_adjusted < SIGNIFICANT]


def size(comparison: TableComparison) -> str:
    """How much was compared, in a sentence."""
    columns = len(comparison.columns)
    text = (
        f"{count(columns)} column{'' if columns == 1 else 's'} of {count(comparison.p_rows)} rows of P and "
    )
    text += f"{count(comparison.q_rows)} of Q"
    text += _named(", weighted by {}", comparison.weights) + _named(", in groups of {}", comparison.cluster)
    return text + f"; numbers in at most {count(comparison.max_bins)} bins."


def _named(form: str, name: str | None) -> str:
    return "" if name is None else form.format(repr(name))


def passed(verdicts: Sequence[Verdict]) -> bool:
    """Whether no limit is broken."""
    return not any(verdict.failures for verdict in verdicts)
