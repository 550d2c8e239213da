"""The plots of a comparison of predictions: ladder, distribution, quantiles, segments of rows, and P's confidence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kullback.common.formats import count, number, significant
from kullback.predictions import Comparison
from kullback.report.document import Plot
from kullback.report.plots.ladder import draw_ladder
from kullback.report.plots.svg import FIRST, SECOND, draw_legend, is_drawable, make_logarithmic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KL_PQ = "kl_pq"
KL_OF_A_ROW = "KL(P‖Q), nats"
MARKED_SEGMENTS = 40  # up to this number, segments have dots: a line through a single point is invisible
QUANTILE_TICKS = (0.5, 0.9, 0.99, 0.999, 0.9999)


def draw_plots(comparison: Comparison) -> list[Plot]:
    """Return the plots that have positive finite values to draw; identical predictions give no plots."""
    plots = [draw(comparison) for draw in (_distribution, _quantiles, _segments, _by_confidence)]
    ladder = draw_ladder([("this comparison", comparison.divergences[KL_PQ].mean)])
    return ladder + [plot for plot in plots if plot is not None]


def _distribution(comparison: Comparison) -> Plot | None:
    bins = [part for part in comparison.histogram if is_drawable(part[0]) and is_drawable(part[1])]
    if not bins:
        return None
    summary = comparison.divergences[KL_PQ]
    marks = {
        "median": (summary.median, "-"),
        "mean": (summary.mean, "--"),
        "99% quantile": (summary.p99, ":"),
    }

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        lows, highs, rows = zip(*bins, strict=True)
        widths = [high - low for low, high in zip(lows, highs, strict=True)]
        axes.bar(lows, rows, widths, align="edge", color=FIRST)
        for name, (value, line) in marks.items():
            if is_drawable(value):
                axes.axvline(value, color=SECOND, linestyle=line, linewidth=2, label=name)
        make_logarithmic(axes, axes.xaxis)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.set(xlabel=KL_OF_A_ROW, ylabel="rows")
        axes.grid(visible=False, axis="x")
        draw_legend(axes)

    zeros = sum(rows for _, high, rows in comparison.histogram if high == 0)
    infinite = comparison.infinite.get(KL_PQ, 0)
    caption = "How many rows have which divergence."
    if zeros or infinite:
        caption += f" Not drawn: {count(zeros)} rows at exactly 0 and {count(infinite)} at infinity."
    return Plot("distribution", "Distribution of the divergence", caption, draw)


def _quantiles(comparison: Comparison) -> Plot | None:
    points = [(share, kl) for share, kl in comparison.quantiles if share < 1 and is_drawable(kl)]
    if len(points) < 2:
        return None

    def draw(axes: Axes) -> None:
        shares, values = zip(*points, strict=True)
        axes.plot(shares, values, color=FIRST, linewidth=2)
        # The axis has equal steps from 90% to 99% to 99.9%, because models differ in the tail.
        scale = (lambda share: -np.log10(1 - np.minimum(share, 1 - 1e-12)), lambda scaled: 1 - 10.0**-scaled)
        axes.set_xscale("function", functions=scale)
        axes.set_xlim(0, shares[-1])
        ticks = [tick for tick in QUANTILE_TICKS if tick <= shares[-1]]
        axes.set_xticks(ticks if len(ticks) > 1 else [0, shares[-1]])
        axes.xaxis.set_major_formatter(lambda share, _: f"{significant(100 * share)}%")
        make_logarithmic(axes, axes.yaxis)
        axes.set(xlabel="proportion of rows at or below", ylabel=KL_OF_A_ROW)

    summary = comparison.divergences[KL_PQ]
    caption = (
        f"Half of the rows are at or below {number(summary.median)} nats, 99% at or below {number(summary.p99)}; "
        f"the largest is {number(summary.maximum)}."
    )
    return Plot("quantiles", "Quantiles", caption, draw)


def _segments(comparison: Comparison) -> Plot | None:
    segments = comparison.segments
    if len(segments) < 2 or not any(is_drawable(segment.kl_max) for segment in segments):
        return None
    middles = [(segment.start + segment.stop) / 2 for segment in segments]
    infinite = [middle for middle, part in zip(middles, segments, strict=True) if math.isinf(part.kl_max)]

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        largest = [_or_gap(segment.kl_max) for segment in segments]
        means = [_or_gap(segment.kl_mean) for segment in segments]
        marker = "o" if len(segments) <= MARKED_SEGMENTS else ""
        axes.plot(middles, largest, marker=marker, markersize=4, color=SECOND, linewidth=0.9, label="largest")
        axes.plot(middles, means, marker=marker, markersize=4, color=FIRST, linewidth=1.6, label="mean")
        if infinite:
            top = axes.get_xaxis_transform()
            marks = axes.plot(
                infinite, [1] * len(infinite), "^", color=SECOND, label="infinite", transform=top
            )
            marks[0].set_clip_on(False)
        make_logarithmic(axes, axes.yaxis)
        axes.set_xlim(0, comparison.rows)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.xaxis.set_major_formatter(lambda row, _: count(round(row)))
        axes.set(xlabel="row", ylabel=KL_OF_A_ROW)
        axes.grid(visible=False, axis="x")
        draw_legend(axes)

    caption = f"Mean and largest divergence in {count(len(segments))} segments of consecutive rows."
    if infinite:
        caption += " Triangles mark infinite rows."
    return Plot("segments", "By position", caption, draw)


def _by_confidence(comparison: Comparison) -> Plot | None:
    parts = comparison.by_confidence
    if not any(is_drawable(part.kl_mean) for part in parts):
        return None

    def draw(axes: Axes) -> None:
        lefts = range(len(parts))
        rights = range(1, len(parts) + 1)
        p99 = [_or_gap(part.kl_p99) for part in parts]
        means = [_or_gap(part.kl_mean) for part in parts]
        axes.hlines(p99, lefts, rights, color=SECOND, linewidth=2, label="99% quantile")
        axes.hlines(means, lefts, rights, color=FIRST, linewidth=5, label="mean")
        axes.set_xticks([*lefts, len(parts)], [f"{edge:g}" for edge in (*(part.low for part in parts), 1.0)])
        make_logarithmic(axes, axes.yaxis)
        axes.set(xlabel="probability of P's top class", ylabel=KL_OF_A_ROW)
        draw_legend(axes)

    caption = "The divergence where the probability of P's top class is low (left) and high (right)."
    if any(math.isinf(part.kl_mean) for part in parts):
        caption += " Infinite values are not drawn."
    return Plot("confidence", "By P's confidence", caption, draw)


def _or_gap(value: float) -> float:
    return value if is_drawable(value) else math.nan
