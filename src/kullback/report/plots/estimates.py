"""The plot of an `Estimate`: the value of each element of the batch, with its interval or error."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from kullback.common.optional import load
from kullback.generators.divergence import NAMED
from kullback.results.estimate import Estimate

MOST_TICKS = 20
_KINDS = {
    "kl": "KL",
    "reverse_kl": "reverse KL",
    "jeffreys": "Jeffreys divergence",
    "js": "JS",
    "skew": "skew KL",
    "renyi": "Renyi divergence",
    "tv": "total variation",
    "hellinger": "squared Hellinger distance",
    "chi2": "chi-squared divergence",
    "alpha": "alpha divergence",
}
_UNITS: dict[float | None, str] = {None: "nats", 2: "bits", 10: "hartleys"}


class _Point(NamedTuple):
    """An element of the batch: its position on the axis, its value, and the limits of its interval."""

    place: int
    value: float
    low: float
    high: float


def draw(estimate: Estimate, ax: Any = None) -> Any:
    """Plot the value of each element of the batch on a matplotlib axis, for `Estimate.plot`."""
    pyplot = load("matplotlib.pyplot", "Estimate.plot")
    if ax is None:
        _, ax = pyplot.subplots()
    points = _points(estimate)
    finite = [point for point in points if math.isfinite(point.value)]
    ax.plot([point.place for point in finite], [point.value for point in finite], "o", color="C0")
    for place, value, low, high in finite:
        if math.isfinite(high) and math.isfinite(low):
            ax.plot([place, place], [low, high], color="C0")
        elif math.isfinite(low):
            length = max(value - low, 0.1 * abs(value))
            ax.errorbar([place], [low], yerr=[length], lolims=True, color="C0")
    at_top = {"transform": ax.get_xaxis_transform(), "ha": "center", "va": "top", "color": "C0"}
    for place, value, _, _ in points:
        if not math.isfinite(value):
            ax.text(place, 0.98, f"{value:g}", **at_top)
    label = ", ".join(filter(None, name_and_unit(estimate)))
    ends = meaning_of_ends(estimate)
    ax.set(xlabel="element", ylabel=f"{label} ({ends})" if ends else label, xlim=(-0.5, len(points) - 0.5))
    ax.ticklabel_format(axis="y", useOffset=False)  # an offset would hide the size of the values
    if len(points) <= MOST_TICKS:
        ax.set_xticks(range(len(points)))
    return ax.figure, ax


def name_and_unit(estimate: Estimate) -> tuple[str, str]:
    """Return the name of the divergence and its unit, which is empty for a divergence without a logarithm."""
    word, *parameters = estimate.kind.split(":")
    name = _KINDS.get(word, estimate.kind)
    if parameters and word in _KINDS:
        name += f" ({', '.join(parameters)})"
    if word in NAMED and not NAMED[word].logarithmic:
        return name, ""
    return name, _UNITS.get(estimate.base, f"in base {estimate.base:g}" if estimate.base else "")


def meaning_of_ends(estimate: Estimate) -> str:
    """Return the meaning of the ends at each value in a plot; nothing without ends."""
    if estimate.interval is not None:
        return "interval" if estimate.confidence is None else f"{100 * estimate.confidence:g} % interval"
    if estimate.standard_error is not None:
        return "± standard error"
    return "" if estimate.error is None else "± bound on the error"


def _points(estimate: Estimate) -> list[_Point]:
    """Return the points; without an interval, the limits are the value +- its standard error or error bound."""
    values = _floats(estimate.value)
    if estimate.interval is None:
        spread = estimate.error if estimate.standard_error is None else estimate.standard_error
        errors = [0.0] * len(values) if spread is None else _floats(spread.expand(estimate.value.shape))
        ends = [(value - error, value + error) for value, error in zip(values, errors, strict=True)]
    else:
        ends = list(zip(*map(_floats, estimate.interval), strict=True))
    return [
        _Point(place, value, *limits) for place, (value, limits) in enumerate(zip(values, ends, strict=True))
    ]


def _floats(x: Tensor) -> list[float]:
    return x.detach().double().flatten().tolist()
