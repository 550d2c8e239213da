"""A value together with how it was obtained and how far it may be off."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor

from kullback.short_repr import ShortRepr

__all__ = ["Estimate"]


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
