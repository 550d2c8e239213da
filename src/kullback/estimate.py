"""A value together with how it was obtained and how far it may be off."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor

from kullback.short_repr import ShortRepr

__all__ = ["Estimate", "sentence_of"]

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
# Kinds without a logarithm, and so without a unit.
_PURE = ("tv", "hellinger", "chi2", "alpha")
_UNITS: dict[float | None, str] = {None: "nats", 2: "bits", 10: "hartleys"}


@dataclass(frozen=True, repr=False)
class Estimate(ShortRepr):
    """A divergence, the method that gave it, and a bound or standard error for it.

    Arguments:
        value: the divergence, one for each element of the batch, in nats unless a base was asked for.
        error: a bound on how far `value` may be off, same shape and unit. None where there is none: for an estimate
            from draws, and for a rule that states none, as third parties' do not.
        method: how it was obtained, as the ``method=`` of the call takes it: ``"closed_form"``, ``"quadrature"`` ...
        interval: for an estimate from draws, the two ends of its confidence interval; an end is infinite where it
            bounds one side only. None for exact methods, and where none can be honest: then `notes` say why.
        n: for an estimate from draws, how many there were of P and of Q: 0 of a side that is known, a tensor where the
            rows of a batch differ.
        notes: what a reader has to know about this value, one sentence each.
        standard_error: for an estimate from draws, the standard error of `value`. None for exact methods, and where
            there is none.
        kind: the name of the divergence, as ``"kl"``.
        base: the base of its logarithm; None for nats.
        confidence: how often the interval covers; None where it is not known.

    `print` writes one line, `float` returns the value, and a format such as ``f"{estimate:.3f}"`` is that of the value.

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
            errors = import_module("kullback.errors")
            raise errors.invalid_type(
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
        """Return the fields for copies and other processes, without the graph that gradients go back through."""
        return {
            name: value.detach() if isinstance(value, Tensor) and not value.is_leaf else value
            for name, value in self.__dict__.items()
        }

    def _repr_html_(self) -> str:
        """Return a table for notebooks: a row for each element of the batch, 20 at most."""
        return import_module("kullback.report.estimates").render_table(self)

    def plot(self, ax: Any = None) -> Any:
        """Plot the value of each element of the batch, with its interval, standard error or bound.

        An interval that is open above ends in an arrow, and an infinite value is written at the upper edge.

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
        return import_module("kullback.report.estimates").plot(self, ax)


def sentence_of(found: Estimate) -> str:
    """Return the estimate in one line: kind, value, how far it may be off, method and numbers of draws.

    Example:
        >>> import torch
        >>> interval = torch.tensor(0.07), torch.tensor(0.3)
        >>> print(Estimate(torch.tensor(0.19), None, "nearest_neighbors", interval, (1000, 1000), confidence=0.95))
        KL = 0.19 nats (95 % 0.07 to 0.3), nearest neighbors, n = 1000 + 1000
    """
    word, *parameters = found.kind.split(":")
    name = _KINDS.get(word, found.kind) + (
        f" ({', '.join(parameters)})" if parameters and word in _KINDS else ""
    )
    unit = (
        "" if word in _PURE else " " + _UNITS.get(found.base, f"in base {found.base:g}" if found.base else "")
    )
    value = found.value.detach().double()
    if value.numel() == 1:
        said = f"{name} = {float(value):.4g}{unit}{_doubt(found)}"
    elif value.numel() == 0:
        said = f"{name} of no rows"
    else:
        shape = " x ".join(map(str, value.shape))
        said = f"{name} of {shape} rows: {float(value.min()):.4g} to {float(value.max()):.4g}{unit}"
        said += f", mean {float(value.mean()):.4g}"
    return ", ".join([said, found.method.replace("_", " "), *_sizes(found.n)])


def _doubt(found: Estimate) -> str:
    if found.interval is not None:
        low, high = (float(end) for end in found.interval)
        level = "interval" if found.confidence is None else f"{100 * found.confidence:g} %"
        return f" ({level} {low:.4g} to {high:.4g})"
    if found.standard_error is not None:
        return f" (standard error {float(found.standard_error):.2g})"
    if found.n is not None:
        return " (no interval)"
    return "" if found.error is None else f" (off by {float(found.error):.1g} at most)"


def _sizes(n: tuple[int | Tensor, int | Tensor] | None) -> list[str]:
    if n is None:
        return []
    shown = [f"{int(x.min())} to {int(x.max())}" if isinstance(x, Tensor) else str(x) for x in n]
    known = [name for name, x in zip("PQ", n, strict=True) if isinstance(x, int) and x == 0]
    return [f"n = {' + '.join(x for x in shown if x != '0')}", *(f"{name} known" for name in known)]
