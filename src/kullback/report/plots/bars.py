"""The plot of the bars of P and Q, which the page draws without matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.report.document import Bars
from kullback.report.plots.svg import FIRST, SECOND, draw_legend, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST_NAME = 24


def draw_bars(bars: Bars, axes: Axes) -> None:
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
