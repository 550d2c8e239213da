"""Plots as inline SVG with the colors and the font of the page.

A drawing names its colors by their places in matplotlib's cycle, so that `Shown.plot` draws in the user's colors. For
the page, the cycle has marker colors. In the SVG, CSS variables replace these colors, so that a drawing suits light and
dark mode. The settings of matplotlib change only inside a context manager. pyplot is not imported. The output is
deterministic.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from kullback.common.formats import power_of_ten, shortened
from kullback.common.optional import load
from kullback.errors import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# Places in the cycle of colors: P or the numbers, Q or a second curve, and further lines. In matplotlib's own style,
# these colors are blue, orange and gray.
FIRST, SECOND, THIRD = "C0", "C1", "C7"
# The marker colors of matplotlib, and the CSS variables that replace them.
_INK, _FAINT, _FIRST, _SECOND = "#000001", "#000002", "#000003", "#000004"
_VARIABLES = {_INK: "var(--ink)", _FAINT: "var(--faint)", _FIRST: "var(--first)", _SECOND: "var(--second)"}

SIZE = (5.0, 3.2)  # inches: small, so that 11-point text stays legible at a phone's width
STYLE = {
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), _FAINT),
    **dict.fromkeys(
        ("axes.labelcolor", "legend.labelcolor", "text.color", "xtick.labelcolor", "ytick.labelcolor"), _INK
    ),
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # is part of matplotlib, so text has the same width everywhere
    "font.size": 11.0,
    "grid.linewidth": 0.6,
    "legend.columnspacing": 1.4,
    "legend.fontsize": 11.0,
    "legend.handlelength": 1.6,
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and copied
}


def plain(text: str, longest: int | None = None) -> str:
    """Return a text, at most `longest` characters, with escapes for control characters and for formulas ($)."""
    shown = printable(text)
    return (shown if longest is None else shortened(shown, longest)).replace("$", r"\$")


def is_drawable(value: float) -> bool:
    """Return whether a logarithmic axis can show the value."""
    return 0 < value < math.inf


def make_logarithmic(axes: Axes, axis: Axis) -> None:
    """Make an axis logarithmic, with labels at two powers of ten or more."""
    from matplotlib.ticker import LogLocator

    along_x = axis is axes.xaxis
    (axes.set_xscale if along_x else axes.set_yscale)("log")
    low, high = map(math.log10, axis.get_view_interval())
    if math.floor(high) <= math.ceil(low):
        set_limits = axes.set_xlim if along_x else axes.set_ylim
        set_limits(10.0 ** math.floor(low), 10.0 ** math.ceil(high))
    axis.set_major_locator(LogLocator(numticks=6))
    axis.set_major_formatter(lambda value, _: power_of_ten(value))
    axes.minorticks_off()


def draw_legend(axes: Axes) -> None:
    """Draw the legend above the plot."""
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1), ncols=len(handles), frameon=False, borderaxespad=0.2
        )


def draw_svg(name: str, draw: Callable[[Axes], None]) -> str:
    """Draw a figure and return it as an SVG element."""
    style, svg, figures, cycler = (
        load(module, "the plots of the page")
        for module in ("matplotlib.style", "matplotlib.backends.backend_svg", "matplotlib.figure", "cycler")
    )
    cycle = cycler.cycler(color=[_FIRST, _SECOND, *[_INK] * 6])
    # The settings begin with matplotlib's defaults, because the user's style sheet must have no effect.
    with style.context(["default", {**STYLE, "axes.prop_cycle": cycle, "svg.hashsalt": name}]):
        figure = figures.Figure(figsize=SIZE)
        draw(figure.add_subplot())
        text = io.StringIO()
        unstated = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        svg.FigureCanvasSVG(figure).print_svg(text, metadata=unstated)
    return _inlined(text.getvalue(), name)


def _inlined(document: str, name: str) -> str:
    """Return the SVG element of a document, with ids that are unique on the page and the colors of the page."""
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<style.*?</style>|<metadata.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for marker, color in _VARIABLES.items():
        svg = svg.replace(marker, color)
    return svg
