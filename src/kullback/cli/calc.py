"""The command ``kullback calc``."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import click

from kullback.cli.option import Option
from kullback.cli.option_command import command
from kullback.cli.settings import Settings, in_options
from kullback.common.constraints import Number
from kullback.common.formats import unit_of_base
from kullback.errors import ArgumentValueError, KullbackError, NoRuleError, printable

if TYPE_CHECKING:
    from torch import Tensor

    from kullback.cli.expressions import Operand
    from kullback.generators import Divergence

LONGEST = 1_000

OPTIONS = (
    Option(
        "--base",
        "The base of the logarithm: 2 gives bits. Without it: nats.",
        accepts=Number(above=1, below=math.inf, example=2),
    ),
    Option(
        "--kind",
        "The divergence: kl, reverse_kl, jeffreys, js:0.5, skew:0.1, tv, hellinger, chi2, alpha:0.5, renyi:2, ...",
        into="kind",
        default="kl",
    ),
)


@command(click.Argument(["p"]), click.Argument(["q"]), options=OPTIONS)
def calc(p: str, q: str, settings: Settings) -> None:
    """Print KL(P || Q) and KL(Q || P) of two distributions, such as 'Normal(0, 1)' and 'Laplace(0, 1)'.

    \b
    kullback calc 'Normal(0, 1)' 'Laplace(0, 1)'
    kullback calc 'Gamma(2, rate=3)' 'Weibull(1, 2)' --base 2
    kullback calc 'Probs([0.2, 0.8])' 'Counts([3, 5])'

    P and Q are distributions of torch.distributions, with numbers, lists and keyword arguments; or Probs([...]),
    Logits([...]), LogProbs([...]) or Counts([...]). Numbers are converted to float64.
    """
    from kullback.cli.expressions import parse_distribution
    from kullback.generators import KL, as_divergence

    base = settings["--base"]
    with in_options(settings.flags):
        divergence = as_divergence("calc", settings["--kind"])
    called = "KL" if divergence == KL() else divergence.name

    warnings.simplefilter("ignore")  # torch warns about parameters at the edge of their range
    first, second = parse_distribution(p), parse_distribution(q)
    names = printable(p, LONGEST), printable(q, LONGEST)
    values = {
        f"{called}({a} || {b})": _describe(f"{called}({a} || {b})", x, y, base, divergence)
        for a, b, x, y in ((*names, first, second), (*reversed(names), second, first))
    }
    if not any(values.values()):
        wanted, instead = "a pair with a rule", "kullback pairs, which shows the rules"
        got = f"there is no rule for {called} between {names[0]} and {names[1]}, in neither direction"
        raise ArgumentValueError.at("", "P, Q", wanted=wanted, got=got, instead=instead, wording="{got}")
    for name, value in values.items():
        click.echo(f"{name} = {value or 'not known: there is no rule for this pair'}")


def _undefined(place: str, got: str, wording: str) -> ArgumentValueError:
    wanted, instead = "distributions with a divergence in float64", "other parameters"
    return ArgumentValueError.at(place, "P, Q", wanted=wanted, got=got, instead=instead, wording=wording)


def _describe(name: str, p: Operand, q: Operand, base: float | None, kind: Divergence) -> str | None:
    """Return the divergence as text, for KL with its method and error bound, or None if there is no rule."""
    from kullback.dispatch import divergence, kl_estimate
    from kullback.generators import KL
    from kullback.results.estimate import Estimate

    try:
        if kind == KL():
            estimate = kl_estimate(p, q, base=base)
        else:
            estimate = Estimate(divergence(p, q, kind, base=base), None, "")
    except NoRuleError:
        return None
    except KullbackError:
        raise
    except Exception as error:  # torch accepted the parameters, but cannot compute with them
        reason = " ".join(str(error).split()) or type(error).__name__
        raise _undefined(f"{name} cannot be computed", reason, "{got}") from error
    if estimate.value.numel() == 0:
        raise _undefined(name, "an empty batch", "wanted at least one distribution on each side; got {got}")
    if bool(estimate.value.isnan().any()):
        reason = "its parameters are too small or too large"
        raise _undefined(f"{name} is beyond the range of float64", reason, "{got}")
    unit = f" {unit_of_base(base)}" if kind.logarithmic else ""
    method = estimate.method.replace("_", " ")
    error = "" if estimate.error is None else f", error at most {float(estimate.error.max()):.1g}"
    return f"{_numbers(estimate.value)}{unit}" + (f" ({method}{error})" if method else "")


def _numbers(value: Tensor) -> str:
    """Format a number, or the numbers of a batch in brackets."""
    if value.ndim == 0:
        return f"{float(value):.10g}"
    return "[" + ", ".join(map(_numbers, value)) + "]"
