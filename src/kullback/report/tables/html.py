"""A comparison of tables as one self-contained page: numbers, the two distributions of each column, findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kullback.report.shared.page import render_page
from kullback.report.tables.plots import draw_column
from kullback.report.tables.wording import (
    SIGNIFICANT,
    Verdict,
    contributors,
    differing,
    interval,
    name_of,
    p_value_text,
    passed,
    percentage,
    size,
    totals,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kullback.report.shared.plots import Plot
    from kullback.report.tables.wording import Compared
    from kullback.tables.result import Bin, ColumnComparison, TableComparison

__all__ = ["MOST_DRAWN", "render"]

FILTERS: tuple[Callable[..., str], ...] = (p_value_text, interval, name_of, percentage)
MOST_DRAWN = 40  # columns whose distributions are shown: a page of some hundred KB
MOST_BINS = 8  # categories of a column that are shown
MOST_CONTRIBUTORS = 3


class _Picture(NamedTuple):
    """A column's distributions: a drawing of its bins, or its largest categories."""

    column: ColumnComparison
    anchor: str
    plot: Plot | None
    bins: list[Bin]
    others: int
    contributors: list[Bin]


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
    return render_page(
        "tables.html.j2",
        FILTERS,
        comparison=comparison,
        size=size(comparison),
        verdicts=verdicts,
        passed=passed(verdicts),
        differing=differing(comparison),
        significant=SIGNIFICANT,
        pictures=[_picture(column, f"column-{place}") for place, column in enumerate(drawn, 1)],
        totals=totals,
        largest_proportion=_largest_proportion,
        joint=[(group, _largest(group, MOST_BINS)) for group in comparison.joint],
    )


def _picture(column: ColumnComparison, anchor: str) -> _Picture:
    plot = draw_column(column, anchor)
    bins = [] if plot else _largest(column, MOST_BINS)
    others = 0 if plot else len(column.bins) - len(bins)
    return _Picture(
        column, anchor, plot, bins, others, contributors(column, MOST_CONTRIBUTORS) if plot else []
    )


def _largest(compared: Compared, most: int) -> list[Bin]:
    """The bins that contribute most, and then the most frequent, in their own order."""
    chosen = sorted(compared.bins, key=lambda part: (-part.contribution, -part.p - part.q))[:most]
    return [part for part in compared.bins if part in chosen]


def _largest_proportion(bins: Sequence[Bin], sums: tuple[float, float]) -> float:
    """What the longest bar stands for."""
    return max((max(part.p / sums[0], part.q / sums[1]) for part in bins), default=1.0) or 1.0
