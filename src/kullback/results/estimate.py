"""An estimate: a value with its method and its error, in a line, as a table for notebooks, and as a plot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from torch import Tensor

from kullback.common.display import Shown, html_table
from kullback.common.optional import load
from kullback.common.short_repr import ShortRepr
from kullback.errors import invalid_type
from kullback.generators.divergence import NAMED

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


@dataclass(frozen=True, repr=False)
class Estimate(ShortRepr, Shown):
    """A divergence, its method, and an error bound or standard error.

    Arguments:
        value: the divergence, one for each element of the batch, in nats unless you pass a base.
        error: a bound on the numerical error of `value`, in the same shape and unit. None for estimates from draws, and
            for rules without a bound, such as third-party rules.
        method: the name of the method, as in the ``method=`` of the call: ``"closed_form"``, ``"quadrature"`` ...
        interval: for an estimate from draws, the lower and upper limits of its confidence interval. A one-sided
            interval has an infinite limit. None for exact methods, and where no valid interval exists; then `notes`
            explain the reason.
        n: for an estimate from draws, the numbers of draws of P and of Q. It is 0 for a known distribution, and a
            tensor if the rows of a batch differ.
        notes: sentences that you should read together with the value.
        standard_error: for an estimate from draws, the standard error of `value`. None for exact methods, and if it is
            not available.
        kind: the name of the divergence, such as ``"kl"``.
        base: the base of its logarithm; None for nats.
        confidence: the coverage probability of the interval; None if unknown.

    `print` writes one line, `float` returns the value, and ``f"{estimate:.3f}"`` formats the value. `to_html`,
    `to_json`, `to_dict` and `to_pandas` write it as other results.

    Example:
        >>> import torch
        >>> from kullback import Probs, kl_estimate
        >>> p, q = torch.tensor([0.36, 0.48, 0.16]), torch.full((3,), 1 / 3)
        >>> estimate = kl_estimate(Probs(p), Probs(q))
        >>> estimate.method, bool(estimate.error < 1e-7)
        ('summation', True)
    """

    value: Tensor
    error: Tensor | None
    method: str
    interval: tuple[Tensor, Tensor] | None = None
    n: tuple[int | Tensor, int | Tensor] | None = None
    notes: tuple[str, ...] = ()
    standard_error: Tensor | None = None
    kind: str = "kl"
    base: float | None = None
    confidence: float | None = None

    def __str__(self) -> str:
        return sentence_of(self)

    def __float__(self) -> float:
        if self.value.numel() != 1:
            raise invalid_type(
                "float",
                "estimate",
                wanted="an estimate of one value",
                got=f"{self.value.numel()} values of shape {tuple(self.value.shape)}",
                instead="estimate.value.tolist()",
            )
        return float(self.value.detach())

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for copies and other processes, without the autograd graph."""
        return {
            name: value.detach() if isinstance(value, Tensor) and not value.is_leaf else value
            for name, value in self.__dict__.items()
        }

    def _repr_html_(self) -> str:
        """Return a table for notebooks, with one row per element of the batch and at most 20 rows."""
        headings, rows, sentences = table_of(self)
        lines = [f"<p>{escape(line)}</p>" for line in (*sentences, *self.notes)]
        return "\n".join([html_table(headings, rows), *lines])

    def plot(self, ax: Any = None) -> Any:
        """Plot the value of each element of the batch, with its interval, standard error or bound.

        An interval without an upper limit ends in an arrow. An infinite value is a text at the upper edge.

        Arguments:
            ax: a matplotlib axis to draw on; by default a new one.

        Returns:
            the figure and the axis.

        Raises:
            OptionalDependencyError: matplotlib is not installed.

        Example:
            >>> import torch
            >>> from kullback import Logits, kl_estimate
            >>> figure, axis = kl_estimate(Logits(torch.eye(3)), Logits(torch.zeros(3))).plot()
            >>> axis.get_ylabel()
            'divergence'
        """
        pyplot = load("matplotlib.pyplot", "Estimate.plot")
        if ax is None:
            _, ax = pyplot.subplots()
        values = _floats(self.value)
        ends = _ends(self, values)
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


def sentence_of(estimate: Estimate) -> str:
    """Return the estimate in one line: kind, value, error, method and numbers of draws.

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
    known = [f"{name} known" for name, x in zip("PQ", shown, strict=True) if x == "0"]
    return [f"n = {' + '.join(x for x in shown if x != '0')}", *known]


def _ranges(n: tuple[int | Tensor, int | Tensor], spec: str = "") -> list[str]:
    return [
        f"{int(x.min()):{spec}} to {int(x.max()):{spec}}" if isinstance(x, Tensor) else f"{x:{spec}}"
        for x in n
    ]


_MOST_ROWS = 20


def table_of(estimate: Estimate) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the headings and the rows of the table of the values and their errors, and sentences below it."""
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
    """Return the lower and the upper end for each value: of the interval, or one standard error or bound away."""
    if estimate.interval is not None:
        return _floats(estimate.interval[0]), _floats(estimate.interval[1])
    spread = estimate.error if estimate.standard_error is None else estimate.standard_error
    errors = [0.0] * len(values) if spread is None else _floats(spread.expand(estimate.value.shape))
    return tuple([x + sign * e for x, e in zip(values, errors, strict=True)] for sign in (-1, 1))  # pyright: ignore[reportReturnType]
