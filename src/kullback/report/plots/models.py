"""The plot of a comparison of language models: divergence against size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kullback.report.document import Plot
from kullback.report.plots.svg import FIRST, power_of_ten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kullback.models import ModelComparison

LONGEST_NAME = 18
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


def draw_plots(found: ModelComparison) -> list[Plot]:
    """Return the plot of mean KL against size on disk, where two or more candidates have both."""
    points = [
        (candidate.model.file_bytes, candidate.comparison.divergences["kl_pq"], candidate)
        for candidate in found.candidates
        if candidate.model.file_bytes
    ]
    points = [point for point in points if 0 < point[1].mean < math.inf]
    if len(points) < 2:
        return []

    largest = max(point[0] for point in points)
    unit, name_of_unit = next((size, name) for size, name in UNITS if largest >= size)

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for file_bytes, kl, candidate in points:
            size = file_bytes / unit
            low, high = kl.interval or (kl.mean, kl.mean)
            upper = high - kl.mean if high < math.inf else 0
            axes.errorbar([size], [kl.mean], [[kl.mean - low], [upper]], fmt="o", color=FIRST, capsize=3)
            label = candidate.model.name.rstrip("/").rsplit("/", 1)[-1]
            label = label if len(label) <= LONGEST_NAME else f"…{label[1 - LONGEST_NAME :]}"
            label = f"≥ {label}" if candidate.is_lower_bound else label
            axes.annotate(_plain(label), (size, kl.mean), (6, 4), textcoords="offset points", fontsize=9)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: power_of_ten(value))
        axes.minorticks_off()
        axes.set_xlim(0, 1.25 * largest / unit)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.set(xlabel=f"size of the weights, {name_of_unit}", ylabel="mean KL(P‖Q), nats")

    caption = "Mean divergence from the base, with its 95% interval, against the size of the weights on disk."
    if any(candidate.is_lower_bound for _, _, candidate in points):
        caption += " Of those marked ≥ it is a lower bound."
    return [Plot("sizes", "Mean KL and size", caption, draw)]


def _plain(text: str) -> str:
    """Return the text without what matplotlib would read as mathematics."""
    return text.replace("$", r"\$")
