"""`Estimate` as one line of text, as a table for notebooks, and as a plot."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import torch
from torch import Tensor

from kullback.common.display import html_table
from kullback.common.optional import load
from kullback.generators.divergence import NAMED
from kullback.results.estimate import Estimate

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


def sentence_of(estimate: Estimate) -> str:
    """Return the estimate as one line of text: divergence, value, interval, method and numbers of draws.

    Example:
        >>> import torch
        >>> interval = torch.tensor(0.07), torch.tensor(0.3)
        >>> print(Estimate(torch.tensor(0.19), None, "nearest_neighbors", interval, (1000, 1000), confidence=0.95))
        KL = 0.19 nats (95 % 0.07 to 0.3), nearest neighbors, n = 1000 + 1000
    """
    word, *parameters = estimate.kind.split(":")
    name = _KINDS.get(word, estimate.kind) + (
        f" ({', '.join(parameters)})" if parameters and word in _KINDS else ""
    )
    unit = " " + _UNITS.get(estimate.base, f"in base {estimate.base:g}" if estimate.base else "")
    if word in NAMED and not NAMED[word].logarithmic:
        unit = ""
    value = estimate.value.detach().double()
    if value.numel() == 1:
        sentence = f"{name} = {float(value):.4g}{unit}{_doubt(estimate)}"
    elif value.numel() == 0:
        sentence = f"{name} of no rows"
    else:
        shape = " x ".join(map(str, value.shape))
        sentence = f"{name} of {shape} rows: {float(value.min()):.4g} to {float(value.max()):.4g}{unit}"
        sentence += f", mean {float(value.mean()):.4g}"
    return ", ".join([sentence, estimate.method.replace("_", " "), *_sizes(estimate.n)])


def _doubt(estimate: Estimate) -> str:
    if estimate.interval is not None:
        low, high = (float(end) for end in estimate.interval)
        level = "interval" if estimate.confidence is None else f"{100 * estimate.confidence:g} %"
        return f" ({level} {low:.4g} to {high:.4g})"
    if estimate.standard_error is not None:
        return f" (standard error {float(estimate.standard_error):.2g})"
    if estimate.n is not None:
        return " (no interval)"
    return "" if estimate.error is None else f" (off by {float(estimate.error):.1g} at most)"


def _sizes(n: tuple[int | Tensor, int | Tensor] | None) -> list[str]:
    if n is None:
        return []
    shown = _ranges(n)
    without_draws = [f"{name} known" for name, x in zip("PQ", shown, strict=True) if x == "0"]
    return [f"n = {' + '.join(x for x in shown if x != '0')}", *without_draws]


def _ranges(n: tuple[int | Tensor, int | Tensor], spec: str = "") -> list[str]:
    return [
        f"{int(x.min()):{spec}} to {int(x.max()):{spec}}" if isinstance(x, Tensor) else f"{x:{spec}}"
        for x in n
    ]


_MOST_ROWS = 20


def table_of(estimate: Estimate) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the headings and rows of the table of values and errors, and the sentences below the table."""
    value = estimate.value.detach()
    columns = {"value": _numbers(value)}
    for name, numbers in (
        ("bound on the error", estimate.error),
        ("standard error", estimate.standard_error),
    ):
        if numbers is not None:
            columns[name] = _numbers(numbers)
    if estimate.interval is not None:
        ends = zip(*map(_numbers, estimate.interval), strict=True)
        columns["interval"] = [f"{low} to {high}" for low, high in ends]
    if value.ndim > 0:
        places = range(len(columns["value"]))
        columns = {"element": [_element(place, value.shape) for place in places]} | columns
    first = f"The first {_MOST_ROWS} of {value.numel():,} elements."
    sentences = [first] * (value.numel() > _MOST_ROWS) + [_origin(estimate)]
    return list(columns), [list(row) for row in zip(*columns.values(), strict=True)], sentences


def _numbers(x: Tensor) -> list[str]:
    return [f"{number:.6g}" for number in x.detach().double().flatten()[:_MOST_ROWS].tolist()]


def _element(place: int, shape: torch.Size) -> str:
    index = [int(i) for i in torch.unravel_index(torch.tensor(place), shape)]
    return ", ".join(map(str, index))


def _origin(estimate: Estimate) -> str:
    draws = "" if estimate.n is None else f", from {' and '.join(_ranges(estimate.n, ','))} draws"
    return f"by {estimate.method}{draws}"


def _floats(x: Tensor) -> list[float]:
    return x.detach().double().flatten().tolist()


def _ends(estimate: Estimate, values: list[float]) -> tuple[list[float], list[float]]:
    """Return the lower and upper limits of the values: the interval, or value +- standard error or error bound."""
    if estimate.interval is not None:
        return _floats(estimate.interval[0]), _floats(estimate.interval[1])
    spread = estimate.error if estimate.standard_error is None else estimate.standard_error
    errors = [0.0] * len(values) if spread is None else _floats(spread.expand(estimate.value.shape))
    return tuple([x + sign * e for x, e in zip(values, errors, strict=True)] for sign in (-1, 1))  # pyright: ignore[reportReturnType]


def to_notebook(estimate: Estimate) -> str:
    """Return a table in HTML, with one row per element of the batch and at most 20 rows."""
    headings, rows, sentences = table_of(estimate)
    lines = [f"<p>{escape(line)}</p>" for line in (*sentences, *estimate.notes)]
    return "\n".join([html_table(headings, rows), *lines])


def plot(estimate: Estimate, ax: Any = None) -> Any:
    """Plot the value of each element of the batch on a matplotlib axis, as `Estimate.plot`."""
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
            i,
            0.98,
            f"{values[i]:g}",
            transform=ax.get_xaxis_transform(),
            ha="center",
            va="top",
            color="C0",
        )
    ax.set(
        xlabel="element",
        ylabel="divergence",
        xticks=places if len(values) <= _MOST_ROWS else ax.get_xticks(),
    )
    ax.set_xlim(-0.5, len(values) - 0.5)
    return ax.figure, ax
