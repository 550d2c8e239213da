"""The plots of a comparison of language models: the ladder, and divergence against size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kullback.report.document import Plot
from kullback.report.plots.ladder import draw_ladder
from kullback.report.plots.svg import FIRST, plain, power_of_ten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kullback.models import Candidate, ModelComparison

LONGEST_NAME = 18
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


def draw_plots(found: ModelComparison) -> list[Plot]:
    """Return the ladder, and the plot of mean KL against size on disk, where two or more candidates have both."""
    means = [(_label(each), each.comparison.divergences["kl_pq"].mean) for each in found.candidates]
    if found.noise_floor is not None:
        means.append(("rounding noise", found.noise_floor.comparison.divergences["kl_pq"].mean))
    return [*draw_ladder(means), *_sizes(found)]


def _label(candidate: Candidate) -> str:
    """Return the last part of a candidate's name, short enough for a plot."""
    label = candidate.model.name.rstrip("/").rsplit("/", 1)[-1]
    return label if len(label) <= LONGEST_NAME else f"…{label[1 - LONGEST_NAME :]}"


def _sizes(found: ModelComparison) -> list[Plot]:
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
            label = f"{'≥ ' * candidate.is_lower_bound}{_label(candidate)}"
            axes.annotate(plain(label), (size, kl.mean), (6, 4), textcoords="offset points", fontsize=9)
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
