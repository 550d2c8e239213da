"""Plots as inline SVG that takes its colors and its font from the page.

matplotlib draws with marker colors, which become CSS variables in the SVG, so that one drawing serves light and dark.
Its settings change only inside its own context manager, pyplot is not imported, and the output is deterministic.
"""

from __future__ import annotations

import io
import math
import re
from typing import TYPE_CHECKING

from kullback.common.optional import load
from kullback.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

# The marker colors of matplotlib, and the CSS variables that replace them.
INK, FAINT, FIRST, SECOND = "#000001", "#000002", "#000003", "#000004"
COLORS = {INK: "var(--ink)", FAINT: "var(--faint)", FIRST: "var(--first)", SECOND: "var(--second)"}

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SIZE = (5.0, 3.2)  # inches: small, so that 11-point text stays legible at a phone's width
STYLE = {
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), FAINT),
    **dict.fromkeys(
        ("axes.labelcolor", "legend.labelcolor", "text.color", "xtick.labelcolor", "ytick.labelcolor"), INK
    ),
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that every machine measures alike
    "font.size": 11.0,
    "grid.linewidth": 0.6,
    "legend.borderaxespad": 0.2,
    "legend.columnspacing": 1.4,
    "legend.fontsize": 11.0,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and copied
}


def power_of_ten(value: float) -> str:
    """Write a power of ten on a logarithmic axis, and nothing for other numbers.

    Example:
        >>> [power_of_ten(value) for value in (1e-12, 0.1, 1.0, 1000.0, 20.0)]
        ['10⁻¹²', '10⁻¹', '1', '10³', '']
    """
    exponent = round(math.log10(value)) if value > 0 else 0
    if not math.isclose(value, 10.0**exponent):
        return ""
    return f"10{str(exponent).translate(SUPERSCRIPTS)}" if exponent else "1"


def plain(text: str) -> str:
    """Return the text without what matplotlib would read as mathematics."""
    return text.replace("$", r"\$")


def shortened(name: str, longest: int = 12) -> str:
    """Return the beginning of a name, as text that matplotlib can draw."""
    text = printable(name)
    return plain(text if len(text) <= longest else f"{text[: longest - 1]}…")


def draw_legend(axes: Axes) -> None:
    """Draw the legend above the plot."""
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(handles))


def draw_svg(name: str, draw: Callable[[Axes], None]) -> str:
    """Draw a figure and return it as an SVG element."""
    style, svg, figures = (
        load(f"matplotlib.{module}", "the plots of the page")
        for module in ("style", "backends.backend_svg", "figure")
    )
    # From matplotlib's defaults, not the user's style sheet.
    with style.context(["default", {**STYLE, "svg.hashsalt": name}]):
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
    for marker, color in COLORS.items():
        svg = svg.replace(marker, color)
    return svg
