"""The ladder: a mean divergence among reference values that were measured for known changes of one model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kullback.common.formats import Unit
from kullback.report.document import Plot
from kullback.report.plots.svg import FIRST, SECOND, is_drawable, make_logarithmic, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Mean KL(P||Q) in nats per byte; P is examples/data/float32.npy.
REFERENCES = {
    "weights in int8": 0.00020178,
    "temperature 0.9": 0.0077343,
    "temperature 0.5": 0.33195,
    "no context": 2.0522,
}
SOURCE = (
    "Orange values show orders of magnitude; they are not limits. They compare the byte model of kullback's examples "
    "(478,976 parameters, Python's help topics) with itself: its weights in int8, another temperature, or its mean "
    "prediction everywhere. They are nats per byte; other models and tokens have other values."
)


def place_on_ladder(mean: float) -> str:
    """Return a sentence with the reference values next to a mean divergence; empty for a mean of 0 or +inf.

    Example:
        >>> place_on_ladder(0.001)
        'It is between weights in int8 (202 µnat) and temperature 0.9 (7.73 mnat), as measured on a small byte model.'
    """
    if not is_drawable(mean):
        return ""
    rungs = {f"{name} ({Unit.of(value).text(value)})": value for name, value in REFERENCES.items()}
    below = [name for name, value in rungs.items() if value <= mean]
    above = [name for name, value in rungs.items() if value > mean]
    where = f"below {above[0]}" if not below else f"above {below[-1]}"
    if below and above:
        where = f"between {below[-1]} and {above[0]}"
    return f"It is {where}, as measured on a small byte model."


def draw_ladder(means: Sequence[tuple[str, float]]) -> list[Plot]:
    """Return the plot of named means in nats among the reference values; empty if none is positive and finite."""
    own = [(mean, name, FIRST) for name, mean in means if is_drawable(mean)]
    if not own:
        return []
    rungs = sorted([*own, *((mean, name, SECOND) for name, mean in REFERENCES.items())])

    def draw(axes: Axes) -> None:
        axes.scatter(
            [mean for mean, _, _ in rungs], range(len(rungs)), color=[color for _, _, color in rungs]
        )
        low, high = math.log10(rungs[0][0]), math.log10(rungs[-1][0])
        axes.set_xlim(10.0 ** math.floor(low - 0.2), 10.0 ** math.ceil(high + 0.2))
        make_logarithmic(axes, axes.xaxis)
        axes.set_ylim(-0.6, len(rungs) - 0.4)
        axes.set_yticks(range(len(rungs)), [plain(name) for _, name, _ in rungs])
        axes.set(xlabel="mean KL(P‖Q), nats")

    values = "; ".join(f"{name} {Unit.of(mean).text(mean)}" for mean, name, _ in rungs)
    return [Plot("ladder", "How large is that?", f"{values}. {SOURCE}", draw)]
