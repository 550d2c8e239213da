"""The command ``kullback calc``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kullback.cli.expressions import Operand, parse_distribution
from kullback.dispatch import kl_estimate
from kullback.errors import ArgumentValueError, NoRuleError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["calc"]

UNITS = {None: "nats", 2.0: "bits", 10.0: "hartleys"}


@click.command()
@click.argument("p")
@click.argument("q")
@click.option("--base", type=float, help="The base of the logarithm: 2 gives bits. Without it: nats.")
def calc(p: str, q: str, base: float | None) -> None:
    """Print KL(P || Q) and KL(Q || P) of two distributions, such as 'Normal(0, 1)' and 'Laplace(0, 1)'.

    Any distribution of torch.distributions, with numbers, lists and keyword arguments; or Probs([...]), Logits([...]),
    LogProbs([...]), Counts([...]). Numbers are taken in float64.
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
