"""A comparison of tables as one self-contained page: numbers, the two distributions of each column, findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kullback.errors import quoted
from kullback.report.shared.page import render_page
from kullback.report.tables.plots import draw_column
from kullback.report.tables.wording import (
    LARGE,
    MODERATE,
    SIGNIFICANT,
    Meaning,
    contributors,
    differing,
    in_order,
    interval,
    meaning,
    name_of,
    p_value_text,
    percentage,
    size,
    summary,
    tone_of,
    totals,
    value_text,
    words_psi,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kullback.report.shared.plots import Plot
    from kullback.report.shared.verdicts import Verdict
    from kullback.report.tables.wording import Compared
    from kullback.tables.result import Bin, ColumnComparison, TableComparison

__all__ = ["MOST_DRAWN", "render", "render_table"]

FILTERS: tuple[Callable[..., str], ...] = (p_value_text, interval, name_of, percentage, value_text)
MOST_DRAWN = 40  # columns whose distributions are shown: a page of some hundred KB
MOST_BINS = 8  # categories of a column that are shown
MOST_CONTRIBUTORS = 2


class _Picture(NamedTuple):
    """A column's distributions: a drawing of its bins, or its largest categories."""

    column: ColumnComparison
    meaning: Meaning
    anchor: str
    plot: Plot | None
    bins: list[Bin]
    others: int


def render(comparison: TableComparison, verdicts: Sequence[Verdict] = ()) -> str:
    """Build the page: one HTML document that needs no other file, no network and no script.

    It adapts to the width of a phone, to light and dark, and to paper; the same comparison always gives the same text.

    Arguments:
        comparison: what `compare_tables` found.
        verdicts: the limits that were asked for.

    Returns:
        The document; `kullback.report.write` puts it into a file.

    Raises:
        OptionalDependencyError: jinja2 or matplotlib is not installed.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables import compare_tables
        >>> table = pa.table({"x": [1, 2] * 50})
        >>> page = render(compare_tables(table, table))
        >>> page.startswith("<!doctype html>"), "<script" in page
        (True, False)
    """
    drawn = comparison.columns[:MOST_DRAWN]
    pictures = [_picture(column, f"column-{place}", verdicts) for place, column in enumerate(drawn, 1)]
    return render_page(
        "tables.html.j2",
        FILTERS,
        comparison=comparison,
        outcome=summary(comparison, verdicts),
        tone=tone_of(comparison, verdicts),
        meanings=_meanings(comparison, verdicts),
        size=size(comparison),
        verdicts=verdicts,
        remarks=_remarks(comparison, pictures),
        significant=SIGNIFICANT,
        moderate=MODERATE,
        large=LARGE,
        pictures=pictures,
        totals=totals,
        largest_proportion=_largest_proportion,
        joint=[(group, _largest(group, MOST_BINS)) for group in comparison.joint],
    )


def render_table(comparison: TableComparison) -> str:
    """Build the outcome and the table of columns as a fragment of HTML, for notebooks.

    Arguments:
        comparison: what `compare_tables` found.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables import compare_tables
        >>> table = pa.table({"x": [1, 2] * 50})
        >>> "No difference is seen" in render_table(compare_tables(table, table))
        True
    """
    return render_page(
        "tables_table.html.j2",
        FILTERS,
        comparison=comparison,
        outcome=summary(comparison),
        meanings=_meanings(comparison, ()),
        pictures=[],
    )


def _meanings(comparison: TableComparison, verdicts: Sequence[Verdict]) -> dict[str, Meaning]:
    return {each.label: meaning(each, verdicts) for each in (*comparison.columns, *comparison.joint)}


class _Remark(NamedTuple):
    """A finding on the page: its level, what it says, its heading, and the distribution that shows it."""

    level: str
    message: str
    heading: str
    anchor: str | None = None


def _remarks(comparison: TableComparison, pictures: Sequence[_Picture]) -> list[_Remark]:
    """The findings by severity; of those of one severity, columns that differ come first."""
    levels = {"large shift": "error", "shift": "warning"}
    anchors = {picture.column.name: picture.anchor for picture in pictures}
    found = [_Remark(level, message, level) for level, message in in_order(comparison)]
    drift: list[_Remark] = []
    for column in differing(comparison):
        words = meaning(column).words
        sums = totals(column)
        text = f"{quoted(column.name)}: PSI {value_text(column.psi)} ({interval(column.psi)})"
        if of_words := words_psi(column):
            text += f", PSI of its words {of_words:.3f}"
        if parts := contributors(column, MOST_CONTRIBUTORS):
            text += ", most of it in " + ", ".join(
                f"{part.label} ({percentage(part.p, sums[0])} → {percentage(part.q, sums[1])})"
                for part in parts
            )
        drift.append(_Remark(levels.get(words, "note"), text, words, anchors.get(column.name)))
    errors = [remark for remark in found if remark.level == "error"]
    order = ("error", "warning", "note")
    return errors + sorted(
        [*drift, *(remark for remark in found if remark.level != "error")],
        key=lambda remark: order.index(remark.level),
    )


def _picture(column: ColumnComparison, anchor: str, verdicts: Sequence[Verdict]) -> _Picture:
    plot = draw_column(column, anchor)
    bins = [] if plot else _largest(column, MOST_BINS)
    others = 0 if plot else len(column.bins) - len(bins)
    return _Picture(column, meaning(column, verdicts), anchor, plot, bins, others)


def _largest(compared: Compared, most: int) -> list[Bin]:
    """The bins that contribute most, and then the most frequent, in their own order."""
    chosen = sorted(compared.bins, key=lambda part: (-part.contribution, -part.p - part.q))[:most]
    return [part for part in compared.bins if part in chosen]


def _largest_proportion(bins: Sequence[Bin], sums: tuple[float, float]) -> float:
    """What the longest bar stands for."""
    return max((max(part.p / sums[0], part.q / sums[1]) for part in bins), default=1.0) or 1.0
