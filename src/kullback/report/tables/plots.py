"""The plots of the page on tables: the proportions of P and Q in the bins of each column of numbers."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from kullback.report.shared.plots import FIRST, SECOND, Plot, draw_legend, draw_svg
from kullback.report.tables.wording import percentage, totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from kullback.tables.result import Bin, ColumnComparison

__all__ = ["draw_column"]

TICKS = 4
WIDEST = 8  # characters of a tick's label; wider ones are fewer
UNITS = {
    "numeric": "bins at quantiles of P",
    "datetime": "bins at quantiles of P",
    "text": "length in characters",
}


def draw_column(column: ColumnComparison, name: str) -> Plot | None:
    """The proportions of P and Q in the bins of a column; None for one of categories, and for one with a single bin.

    Nothing of the user's is written in the drawing.

    Arguments:
        column: the column.
        name: an id for the drawing, unlike any other on the page.
    """
    bins = [part for part in column.bins if part.low is not None]
    if len(bins) < 2:
        return None
    of_p, of_q = totals(column)

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator, PercentFormatter

        edges = [place - 0.5 for place in range(len(bins) + 1)]
        axes.stairs([100 * part.p / of_p for part in bins], edges, fill=True, color=FIRST, alpha=0.35)
        axes.stairs([100 * part.p / of_p for part in bins], edges, color=FIRST, linewidth=2, label="P")
        axes.stairs([100 * part.q / of_q for part in bins], edges, color=SECOND, linewidth=2, label="Q")
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.yaxis.set_major_formatter(PercentFormatter(decimals=None))
        axes.set_xticks(*_ticks(bins, column.column_type))
        axes.set(
            xlabel=UNITS[column.column_type],
            ylabel="percentage of rows",
            xlim=(edges[0], edges[-1]),
            ylim=(0, None),
        )
        axes.grid(visible=False, axis="x")
        draw_legend(axes)

    rest = [part for part in column.bins if part.low is None]
    outside = (
        f"{part.label}: {percentage(part.p, of_p)} of P, {percentage(part.q, of_q)} of Q" for part in rest
    )
    caption = "; ".join(outside)
    return Plot(name, column.name, f"Not drawn: {caption}." if caption else "", draw_svg(name, draw))


def _ticks(bins: Sequence[Bin], kind: str) -> tuple[list[float], list[str]]:
    """Where bins begin, at as many places as there is room for."""
    edges = [part.low for part in bins[1:] if part.low is not None]
    written = _timestamps(edges) if kind == "datetime" else _numbers(edges)
    most = TICKS if max(map(len, written)) <= WIDEST else TICKS - 2
    step = max(1, math.ceil(len(edges) / most))
    places = range((len(edges) - 1) % step // 2, len(edges), step)
    return [place + 0.5 for place in places], [written[place] for place in places]


def _numbers(edges: Sequence[float]) -> list[str]:
    """With as few digits as tell the edges apart, at least three."""
    written: list[str] = []
    for digits in range(3, 18):
        written = [f"{edge:.{digits}g}" for edge in edges]
        if len(set(written)) == len(edges):
            break
    return [text.replace("-", "−") for text in written]


def _timestamps(edges: Sequence[float]) -> list[str]:
    """Days where they tell the edges apart, else times of day; edges are microseconds since 1970."""
    try:
        timestamps = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=edge) for edge in edges]
    except OverflowError:
        return _numbers(edges)
    span = timestamps[-1] - timestamps[0]
    form = "%Y" if span > timedelta(days=3650) else "%Y-%m-%d" if span > timedelta(days=3) else "%d %H:%M"
    return [timestamp.strftime(form) for timestamp in timestamps]
