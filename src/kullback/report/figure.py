"""Draws a plot of a result on matplotlib axes, in the user's style."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any, cast

from kullback.common.optional import load
from kullback.common.words import nearest
from kullback.errors import invalid_value, quoted
from kullback.report.document import Bars, Document, Plot, drawings
from kullback.report.plots.svg import FIRST, SECOND, draw_legend, plain
from kullback.report.subjects import document

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_LINE = 70  # characters of a title in matplotlib's default width
MOST_LISTED = 12
LONGEST_NAME = 24


def draw(result: Any, ax: Axes | None = None, name: str | None = None) -> tuple[Figure, Axes]:
    """Draw the main numbers of a result with their intervals, or one of the drawings of its page.

    `name` is the name of a drawing of the page, such as ``"quantiles"``, or of a column; None is the main plot.
    """
    pyplot = load("matplotlib.pyplot", f"{type(result).__name__}.plot")
    page = document(result)
    drawing = _chosen(type(result).__name__, page, name)
    axes: Axes = pyplot.subplots(layout="constrained")[1] if ax is None else ax
    if isinstance(drawing, Bars):
        _draw_bars(drawing, axes)
    else:
        drawing.draw(axes)
    title = page.outcome if name is None else drawing.title
    unbroken = plain(title).replace(" || ", "\xa0‖\xa0")  # no line ends inside of "KL(to ‖ q)"
    lines = textwrap.fill(unbroken, LONGEST_LINE).replace("\xa0", " ").replace("||", "‖")
    legend_height = 18 if axes.get_legend() else 0  # in points, between the plot and its title
    axes.set_title(lines, fontsize="medium", pad=6 + legend_height)
    return cast("Figure", axes.figure), axes


def _chosen(result: str, page: Document, name: str | None) -> Plot | Bars:
    """Return the drawing with this name; a numbered drawing, such as ``column-1``, is known by its title."""
    named = {item.title if re.search(r"-\d+$", item.name) else item.name: item for item in drawings(page)}
    first = page.plot or next(iter(named.values()), None)
    chosen = first if name is None else named.get(name)
    if chosen is None:
        listed = ", ".join(quoted(each) for each in list(named)[:MOST_LISTED]) or "no drawing"
        close = nearest(name, named) if name else None
        wanted = f"one of {listed}" + ", ..." * (len(named) > MOST_LISTED) if named else "no name"
        got = "no plot" if name is None else quoted(name)
        instead = "no name, for the main numbers" if close is None else f"name={close!r}"
        raise invalid_value(f"{result}.plot", "name", wanted=wanted, got=got, instead=instead)
    return chosen


def _draw_bars(bars: Bars, axes: Axes) -> None:
    """Draw two bars for each category or class, from top to bottom, with their proportions as text."""
    places = range(len(bars.bars))
    for label, shift, color in (("P", -0.2, FIRST), ("Q", 0.2, SECOND)):
        side = label.lower()
        lengths = [getattr(bar, side) for bar in bars.bars]
        drawn = axes.barh([place + shift for place in places], lengths, 0.4, color=color, label=label)
        axes.bar_label(drawn, [getattr(bar, f"{side}_text") for bar in bars.bars], padding=3)
    names = [plain(" ".join(filter(None, (bar.label, bar.token))), LONGEST_NAME) for bar in bars.bars]
    axes.set_yticks(places, names)
    axes.set_xticks([])  # the bars are relative to the longest one; their texts have the proportions
    axes.set(
        xlabel="probability" if bars.heading == "class" else "percentage of rows",
        ylabel=bars.heading,
        xlim=(0, 1.2 * max((max(bar.p, bar.q) for bar in bars.bars), default=1.0) or 1.0),
        ylim=(len(bars.bars) - 0.5, -0.5),
    )
    draw_legend(axes)
