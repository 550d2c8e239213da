"""An `Estimate` as a table for notebooks, and as a plot."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kullback.optional import load
from kullback.shown import html_table

if TYPE_CHECKING:
    from kullback.estimate import Estimate

__all__ = ["plot", "render_table"]

_MOST_ROWS = 20


def render_table(estimate: Estimate) -> str:
    """Return a table of the values and how far they may be off, with the method and the notes below."""
    value = estimate.value.detach()
    is_batch = value.ndim > 0
    header = ["element"] * is_batch + ["value"]
    columns = [_numbers(value)]
    for name, numbers in (
        ("bound on the error", estimate.error),
        ("standard error", estimate.standard_error),
    ):
        if numbers is not None:
            header.append(name)
            columns.append(_numbers(numbers))
    if estimate.interval is not None:
        header.append("interval")
        columns.append(
            [f"{low} to {high}" for low, high in zip(*map(_numbers, estimate.interval), strict=True)]
        )
    rows: list[list[str]] = [list(row) for row in zip(*columns, strict=True)]
    if is_batch:
        rows = [[_element(i, value.shape), *row] for i, row in enumerate(rows)]
    lines = [html_table(header, rows), f"<p>{_origin(estimate)}</p>"]
    if value.numel() > _MOST_ROWS:
        lines.insert(1, f"<p>The first {_MOST_ROWS} of {value.numel():,} elements.</p>")
    return "\n".join([*lines, *(f"<p>{escape(note)}</p>" for note in estimate.notes)])


def _numbers(x: Tensor) -> list[str]:
    return [f"{number:.6g}" for number in x.detach().double().flatten()[:_MOST_ROWS].tolist()]


def _element(place: int, shape: torch.Size) -> str:
    index = [int(i) for i in torch.unravel_index(torch.tensor(place), shape)]
    return ", ".join(map(str, index))


def _origin(estimate: Estimate) -> str:
    origin = f"by {escape(estimate.method)}"
    if estimate.n is None:
        return origin
    first, second = (
        f"{int(x.min()):,} to {int(x.max()):,}" if isinstance(x, Tensor) else f"{x:,}" for x in estimate.n
    )
    return f"{origin}, from {first} and {second} draws"


def plot(estimate: Estimate, ax: Any = None) -> Any:
    """Draw the values over their places in the batch, with what is known of their errors."""
    pyplot = load("matplotlib.pyplot", "Estimate.plot")
    if ax is None:
        _, ax = pyplot.subplots()
    values = _floats(estimate.value)
    ends = _ends(estimate, values)
    places = range(len(values))
    finite = [i for i in places if math.isfinite(values[i])]
    ax.plot(finite, [values[i] for i in finite], "o", color="C0")
    for i in finite:
        low, high = (end[i] for end in ends)
        if math.isfinite(high) and math.isfinite(low):
            ax.plot([i, i], [low, high], color="C0")
        elif math.isfinite(low):
            ax.errorbar(
                [i], [low], yerr=[max(values[i] - low, 0.1 * abs(values[i]))], lolims=True, color="C0"
            )
    for i in set(places) - set(finite):
        ax.text(
            i, 0.98, f"{values[i]:g}", transform=ax.get_xaxis_transform(), ha="center", va="top", color="C0"
        )
    ax.set(
        xlabel="element", ylabel="divergence", xticks=places if len(values) <= _MOST_ROWS else ax.get_xticks()
    )
    ax.set_xlim(-0.5, len(values) - 0.5)
    return ax.figure, ax


def _floats(x: Tensor) -> list[float]:
    return x.detach().double().flatten().tolist()


def _ends(estimate: Estimate, values: list[float]) -> tuple[list[float], list[float]]:
    """Return the lower and the upper end for each value: of the interval, or one standard error or bound away."""
    if estimate.interval is not None:
        return _floats(estimate.interval[0]), _floats(estimate.interval[1])
    spread = estimate.error if estimate.standard_error is None else estimate.standard_error
    errors = [0.0] * len(values) if spread is None else _floats(spread.expand(estimate.value.shape))
    return tuple([x + sign * e for x, e in zip(values, errors, strict=True)] for sign in (-1, 1))  # pyright: ignore[reportReturnType]
