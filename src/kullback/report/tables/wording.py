"""How the reports on tables write their numbers and what they mean, the same on every medium."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from kullback.errors import quoted
from kullback.report.shared.formats import count, counted, decimal, percent
from kullback.report.shared.verdicts import Verdict, headline
from kullback.tables.result import Bin, ColumnComparison, JointComparison, Quantity, TableComparison, least

__all__ = [
    "LARGE",
    "MODERATE",
    "SIGNIFICANT",
    "Compared",
    "Meaning",
    "Tone",
    "contributors",
    "differing",
    "in_order",
    "interval",
    "meaning",
    "name_of",
    "p_value_text",
    "percentage",
    "size",
    "summary",
    "tone_of",
    "totals",
    "value_text",
    "words_psi",
]

SIGNIFICANT = 0.05
# The rule of thumb of credit scoring for PSI.
MODERATE, LARGE = 0.1, 0.25
Compared = ColumnComparison | JointComparison
Tone = Literal["bad", "warning", "good", "unknown"]


class Meaning(NamedTuple):
    """What the numbers of a column mean: in a word or two, and as a color."""

    words: str
    tone: Tone


def meaning(compared: Compared, verdicts: Sequence[Verdict] = ()) -> Meaning:
    """What the numbers of a column mean, by the limits that were asked for, its p-value and its PSI.

    Example:
        >>> import pyarrow as pa
        >>> from kullback import compare_tables
        >>> before, after = pa.table({"x": ["a", "b"] * 99}), pa.table({"x": ["a", "b", "b", "b"] * 50})
        >>> meaning(compare_tables(before, after)["x"])
        Meaning(words='large shift', tone='bad')
    """
    psi = compared.psi.value
    # Without an interval few rows are what may hide a shift.
    hidden = psi is None or (compared.psi.interval is None and len(compared.bins) > 1)
    if any(compared.label in verdict.broken_by for verdict in verdicts):
        return Meaning("cannot tell" if hidden else "limit broken", "bad")
    if psi is None:
        return Meaning("cannot tell", "unknown")
    if compared.p_adjusted < SIGNIFICANT:
        psi = max(psi, words_psi(compared) or 0.0)
        if psi >= LARGE:
            return Meaning("large shift", "bad")
        return Meaning("shift", "warning") if psi >= MODERATE else Meaning("small shift", "good")
    if hidden or psi >= MODERATE:
        return Meaning("cannot tell", "unknown")
    of_text = isinstance(compared, ColumnComparison) and compared.column_type == "text"
    only_lengths = of_text and words_psi(compared) is None
    return Meaning("lengths alike", "unknown") if only_lengths else Meaning("none seen", "good")


def words_psi(compared: Compared) -> float | None:
    """The PSI of the words of a column of texts; None for other columns, and where words were not compared."""
    return compared.words if isinstance(compared, ColumnComparison) else None


def _shift(column: ColumnComparison) -> float:
    return max(least(column.psi), words_psi(column) or 0.0)


def summary(comparison: TableComparison, verdicts: Sequence[Verdict] = ()) -> str:
    """The outcome in one sentence: the limits, how many columns differ and which the most, what could not be told.

    Example:
        >>> import pyarrow as pa
        >>> from kullback import compare_tables
        >>> table = pa.table({"x": [1, 2] * 50, "y": [3] * 100})
        >>> summary(compare_tables(table, table))
        'No difference is seen in 2 columns.'
    """
    outcome = [headline(verdicts)] if verdicts else []
    words = [meaning(column).words for column in comparison.columns]
    unknown, texts = words.count("cannot tell"), words.count("lengths alike")
    outcome += _differences(comparison, unknown + texts)
    if unknown:
        outcome.append(f"of {counted(unknown, 'column')} nothing can be told")
    if texts:
        outcome.append(f"only the lengths were compared of {counted(texts, 'column')} of text")
    if comparison.not_compared:
        outcome.append(f"{counted(len(comparison.not_compared), 'column')} could not be compared")
    sentence = "; ".join(outcome)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _differences(comparison: TableComparison, unknown: int) -> list[str]:
    number = len(comparison.columns)
    if not number:
        return ["nothing was compared"]
    different = differing(comparison)
    if not different:
        return [f"no difference is seen in {counted(number - unknown, 'column')}"] if number > unknown else []
    large = sum(1 for column in different if _shift(column) >= LARGE)
    verb = "differs" if len(different) == 1 else "differ"
    text = f"{count(len(different))} of {counted(number, 'column')} {verb}"
    if large:
        text += f", {count(large)} of them by a large shift" if len(different) > 1 else " by a large shift"
    most = different[0]
    which = f"{quoted(most.name)} the most" if len(different) > 1 else quoted(most.name)
    psi = value_text(most.psi) if _shift(most) == least(most.psi) else f"of words {decimal(_shift(most))}"
    return [f"{text}: {which} (PSI {psi})"]


def tone_of(comparison: TableComparison, verdicts: Sequence[Verdict] = ()) -> Tone:
    """The color of the outcome: that of the limits where there are some, else that of the worst column."""
    if verdicts:
        return "bad" if any(verdict.failures for verdict in verdicts) else "good"
    if not comparison.columns or comparison.not_compared:
        return "bad"
    tones = {meaning(column).tone for column in comparison.columns}
    order: tuple[Tone, ...] = ("bad", "warning", "unknown", "good")
    return next(tone for tone in order if tone in tones)


def in_order(comparison: TableComparison) -> list[tuple[str, str]]:
    """The level and message of each finding: by severity, and then by how much its column differs."""
    severity = {"error": 0, "warning": 1, "note": 2}
    drift = {column.name: _shift(column) for column in differing(comparison)}
    ranked = sorted(
        comparison.findings, key=lambda each: (severity[each.level], -drift.get(each.column or "", 0.0))
    )
    return [(each.level, each.message) for each in ranked]


def interval(quantity: Quantity) -> str:
    """The ends of an interval, or n/a where there is none.

    Example:
        >>> interval(Quantity(0.1, 0.02, (0.05, float("inf")))), interval(Quantity(0.1, None, None))
        ('0.050 to inf', 'n/a')
    """
    return "n/a" if quantity.interval is None else " to ".join(map(decimal, quantity.interval))


def value_text(quantity: Quantity) -> str:
    """Return a divergence to three decimals, or n/a where it has no value.

    Example:
        >>> value_text(Quantity(0.1234, None, None)), value_text(Quantity(None, None, (0.0, 1.0)))
        ('0.123', 'n/a')
    """
    return "n/a" if quantity.value is None else decimal(quantity.value)


def p_value_text(p_value: float) -> str:
    """A p-value to three decimals; no p-value is 0.

    Example:
        >>> [p_value_text(p) for p in (1.0, 0.8154, 0.0123, 3e-5, 0.0, float("nan"))]
        ['1.000', '0.815', '0.012', '<0.001', '<0.001', 'n/a']
    """
    return decimal(p_value or 1e-300)


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
    """The bins that contribute most to KL(P || Q), the largest first; none where no difference is seen."""
    if not compared.p_adjusted < SIGNIFICANT or not compared.psi.value:
        return []
    ranked = sorted(compared.bins, key=lambda part: -part.contribution)
    return [part for part in ranked[:most] if part.contribution > 0]


def differing(comparison: TableComparison) -> list[ColumnComparison]:
    """The columns whose difference is statistically significant, the largest PSI, of values or words, first."""
    different = [column for column in comparison.columns if column.p_adjusted < SIGNIFICANT]
    return sorted(different, key=_shift, reverse=True)


def size(comparison: TableComparison) -> str:
    """How much was compared, in a sentence."""
    text = f"{counted(len(comparison.columns), 'column')} of {counted(comparison.p_rows, 'row')} of P and "
    text += f"{count(comparison.q_rows)} of Q"
    text += _named(", weighted by {}", comparison.weights) + _named(", in groups of {}", comparison.cluster)
    return text + f"; numbers in at most {count(comparison.max_bins)} bins."


def _named(form: str, name: str | None) -> str:
    return "" if name is None else form.format(quoted(name))
