"""The commands ``kullback calc`` and ``kullback backends``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.table import Table

from kullback.cli.expressions import Operand, parse_distribution
from kullback.dispatch import kl_estimate
from kullback.errors import ArgumentValueError, NoRuleError
from kullback.kernels.backends import Backend, backends

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

__all__ = ["print_backends", "print_divergences"]

UNITS = {None: "nats", 2.0: "bits", 10.0: "hartleys"}


def print_divergences(p: str, q: str, base: float | None) -> None:
    """Print KL(P || Q) and KL(Q || P) of two distributions written as text.

    Arguments:
        p: P.
        q: Q.
        base: the base of the logarithm, None for nats.

    Raises:
        ArgumentValueError: a text cannot be read, the two cannot be compared, or neither direction is known.
    """
    first, second = parse_distribution(p), parse_distribution(q)
    found = {
        f"KL({p} || {q})": _describe(first, second, base),
        f"KL({q} || {p})": _describe(second, first, base),
    }
    if not any(found.values()):
        raise ArgumentValueError(f"there is no rule for KL between {p} and {q}, in neither direction")
    for name, value in found.items():
        click.echo(f"{name} = {value or 'not known: there is no rule for this pair'}")


def _describe(p: Operand, q: Operand, base: float | None) -> str | None:
    """Say what KL(P || Q) is and how it was obtained, or None where there is no rule."""
    try:
        estimate = kl_estimate(p, q, base=base)
    except NoRuleError:
        return None
    unit = UNITS.get(base, f"in base {base:g}") if base else "nats"
    method = estimate.method.replace("_", " ")
    error = "" if estimate.error is None else f", error at most {float(estimate.error.max()):.1g}"
    return f"{_numbers(estimate.value)} {unit} ({method}{error})"


def _numbers(value: Tensor) -> str:
    """One number, or those of a batch in brackets."""
    if value.ndim == 0:
        return f"{float(value):.10g}"
    return "[" + ", ".join(map(_numbers, value)) + "]"


def print_backends(console: Console) -> None:
    """Print which implementations there are, and why one does not run.

    Arguments:
        console: the rich console to print on.
    """
    table = Table("backend", "runs", "devices", "dtypes", "computes", "why")
    for cells in map(_cells, backends()):
        table.add_row(*cells)
    console.print(table)


def _cells(backend: Backend) -> list[str]:
    lists = (", ".join(names) or "-" for names in (backend.devices, backend.dtypes, backend.operations))
    return [backend.name, "yes" if backend.available else "no", *lists, backend.reason]
