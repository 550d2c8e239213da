"""The plots of a comparison of language models: the ladder, and the divergence against the size of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.common.formats import byte_unit, level_of
from kullback.report.document import Plot
from kullback.report.plots.ladder import draw_ladder
from kullback.report.plots.points import Point, draw_interval
from kullback.report.plots.svg import FIRST, is_drawable, make_logarithmic, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kullback.models import Candidate, ModelComparison

LONGEST_NAME = 18


def draw_plots(result: ModelComparison) -> list[Plot]:
    """Return the plot of mean KL and, for at least two candidates with a size, the plot of KL against size on disk."""
    means = [(name_of(each, result), each.comparison.divergences["kl_pq"].mean) for each in result.candidates]
    if result.noise_floor is not None:
        means.append(("rounding noise", result.noise_floor.comparison.divergences["kl_pq"].mean))
    return [*draw_ladder(means), *_sizes(result)]


def name_of(candidate: Candidate, result: ModelComparison) -> str:
    """Return the last part of a candidate's name, or the name if others have this part, short enough for a plot."""
    last, *others = (
        each.model.name.rstrip("/").rsplit("/", 1)[-1] for each in (candidate, *result.candidates)
    )
    label = last if others.count(last) == 1 else candidate.model.name
    return label if len(label) <= LONGEST_NAME else f"…{label[1 - LONGEST_NAME :]}"


def _sizes(result: ModelComparison) -> list[Plot]:
    points = [
        (candidate.model.file_bytes, candidate.comparison.divergences["kl_pq"], candidate)
        for candidate in result.candidates
        if candidate.model.file_bytes
    ]
    points = [point for point in points if is_drawable(point[1].mean)]
    if len(points) < 2:
        return []

    largest = max(point[0] for point in points)
    unit, name_of_unit = byte_unit(largest)
    level = level_of(0.95 if result.until_sure is None else result.until_sure.confidence)

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for file_bytes, kl, candidate in points:
            size = file_bytes / unit
            axes.plot([size], [kl.mean], "o", color=FIRST)
            draw_interval(axes, size, Point.of(kl, ""), along_x=False)
            label = f"{'≥ ' * candidate.is_lower_bound}{name_of(candidate, result)}"
            axes.annotate(plain(label), (size, kl.mean), (6, 4), textcoords="offset points", fontsize=9)
        make_logarithmic(axes, axes.yaxis)
        axes.set_xlim(0, 1.25 * largest / unit)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.set(xlabel=f"size of the weights, {name_of_unit}", ylabel=f"mean KL(P‖Q), nats\n({level})")

    caption = f"Mean divergence from the base, with its {level}, against the size of the weights on disk."
    if any(candidate.is_lower_bound for _, _, candidate in points):
        caption += " Of those marked ≥ it is a lower bound."
    return [Plot("sizes", "Mean KL and size", caption, draw)]
