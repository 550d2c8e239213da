"""The plot of numbers with their intervals: the elements of a batch, or named numbers such as columns and models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kullback.common.formats import level_of
from kullback.report.document import Plot
from kullback.report.plots.svg import FIRST, plain
from kullback.results.value import Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_TICKS = 20
MOST_NAMES = 20
LONGEST_NAME = 24


class Point(NamedTuple):
    """A number with the ends of its interval, which may be infinite or NaN, and its name."""

    value: float
    low: float
    high: float
    name: str = ""

    @classmethod
    def of(cls, value: Value[float] | Value[float | None], name: str) -> Point:
        """Return the point of a number; without an interval, its ends are NaN."""
        return cls(math.nan if value.value is None else value.value, *value.ends, name)


def plot_points(
    name: str, title: str, points: Sequence[Point], quantity: str, confidence: float | None
) -> Plot:
    """Return the plot of numbers; its axis shows the `quantity` with its unit, and the confidence of the intervals."""
    has_ends = not all(math.isnan(point.low) for point in points)
    label = f"{quantity} ({level_of(confidence) if has_ends else 'no interval'})"
    return Plot(name, title, "", partial(draw_points, points, label))


def draw_points(points: Sequence[Point], label: str, axes: Axes) -> None:
    """Draw numbers with their intervals: from left to right, or from top to bottom if they have names.

    An arrow marks an infinite end. A number that is infinite or not known is written at the edge.
    """
    named = any(point.name for point in points)
    shown = points[:MOST_NAMES] if named else points
    sizes = (abs(end) for point in shown for end in point[:3] if math.isfinite(end))
    # The length of an arrow at a number that equals its known end.
    least = 0.1 * max(sizes, default=1.0) or 0.1
    finite = [(place, point.value) for place, point in enumerate(shown) if math.isfinite(point.value)]
    places, values = ([pair[side] for pair in finite] for side in (0, 1))
    axes.plot(*((values, places) if named else (places, values)), "o", color=FIRST)
    for place, point in enumerate(shown):
        if math.isfinite(point.value):
            draw_interval(axes, place, point, along_x=named, least=least)
        else:
            _write(axes, place, "n/a" if math.isnan(point.value) else f"{point.value:g}", named=named)
    if named:
        rest = f"; the first {MOST_NAMES} of {len(points)}" if len(points) > MOST_NAMES else ""
        axes.set(xlabel=plain(f"{label}{rest}"), ylim=(len(shown) - 0.5, -0.5))
        axes.set_yticks(range(len(shown)), [plain(point.name, LONGEST_NAME) for point in shown])
    else:
        several = len(shown) > 1
        axes.set(xlabel="element" * several, ylabel=plain(label), xlim=(-0.5, max(len(shown), 1) - 0.5))
        if len(shown) <= MOST_TICKS:
            axes.set_xticks(range(len(shown)) if several else [])
    # An offset on the axis would hide the size of the values.
    axes.ticklabel_format(axis="x" if named else "y", useOffset=False)


def draw_interval(
    axes: Axes, place: float, point: Point, color: str = FIRST, *, along_x: bool, least: float = 0.1
) -> None:
    """Draw the interval of a finite number as a line. An arrow marks an infinite end; `least` is its length at 0."""
    value, low, high, _ = point
    if math.isfinite(low) and math.isfinite(high):
        ends, twice = [low, high], [place, place]
        axes.plot(*((ends, twice) if along_x else (twice, ends)), color=color)
    elif math.isfinite(low) or math.isfinite(high):
        end, side = (low, "lolims") if math.isfinite(low) else (high, "uplims")
        length = [1.25 * abs(value - end) or 0.1 * abs(value) or least]
        arrow: Any = {f"x{side}" if along_x else side: True, "xerr" if along_x else "yerr": [length]}
        axes.errorbar(*([end], [place]) if along_x else ([place], [end]), color=color, **arrow)


def _write(axes: Axes, place: int, text: str, *, named: bool) -> None:
    """Write a text at the end of the axis of the numbers."""
    if named:
        across = axes.get_yaxis_transform()
        axes.text(0.98, place, text, transform=across, ha="right", va="center", color=FIRST)
    else:
        across = axes.get_xaxis_transform()
        axes.text(place, 0.98, text, transform=across, ha="center", va="top", color=FIRST)
