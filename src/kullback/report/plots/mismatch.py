"""The plots of a mismatch of engine and trainer: its causes as bars, and k3 along the sequence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kullback.mismatch import Mismatch
from kullback.report.document import Plot
from kullback.report.plots.points import Point, draw_interval
from kullback.report.plots.svg import FIRST, THIRD

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_parts(result: Mismatch) -> list[Plot]:
    """Return the bars of the separable causes, with their intervals; empty if a cause is infinite."""
    parts = [(part.name, part.value) for part in result.parts if part.value is not None]
    if not all(math.isfinite(value.value) for _, value in parts):
        return []

    def draw(axes: Axes) -> None:
        places = range(len(parts))
        axes.barh(list(places), [value.value for _, value in parts], color=FIRST, height=0.6)
        for place, (_, value) in zip(places, parts, strict=True):
            draw_interval(axes, place, Point.of(value, ""), THIRD, along_x=True)
        axes.set_yticks(list(places), [name for name, _ in parts])
        axes.invert_yaxis()
        axes.set(xlabel="part of k3, nats per token (95% CI)")
        axes.grid(visible=False, axis="y")

    caption = "The causes are taken out in this order, and add up to k3 as it is logged."
    return [Plot("causes", "Causes of the mismatch", caption, draw)]


def draw_positions(result: Mismatch) -> list[Plot]:
    """Return k3 by position, with its interval; empty with fewer than two ranges of positions."""
    buckets = [bucket for bucket in result.by.get("position", ()) if math.isfinite(bucket.k3.value)]
    if len(buckets) < 2:
        return []

    def draw(axes: Axes) -> None:
        axes.plot(range(len(buckets)), [bucket.k3.value for bucket in buckets], "o", color=FIRST)
        for place, bucket in enumerate(buckets):
            draw_interval(axes, place, Point.of(bucket.k3, ""), along_x=False)
        axes.set_xticks(range(len(buckets)), [bucket.name.split(" ")[0] for bucket in buckets])
        axes.set(xlabel="position, from", ylabel="k3, nats per token (95% CI)", ylim=(0, None))

    return [Plot("positions", "k3 along the sequence", "Ranges of positions between powers of 4.", draw)]
