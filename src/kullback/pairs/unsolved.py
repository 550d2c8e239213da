"""The errors for a pair without a rule, and for a sum or an integral that did not reach its tolerance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily

from kullback.errors import Explanation, NoRuleError, P, Q, explain, no_rule, safe_repr
from kullback.generators import KL, Divergence
from kullback.pairs.clone import parts_of
from kullback.pairs.density_overrides import lacks, overrides_density
from kullback.pairs.monte_carlo import from_draws
from kullback.pairs.registry import names_of
from kullback.pairs.solve_options import SolveOptions
from kullback.results.estimate import Estimate

_IN_A_CLASS = {
    "log_prob": "a method log_prob(value)",
    "sample": "a method sample(sample_shape)",
    "support": "a support such as torch.distributions.constraints.positive",
}


def not_converged(
    call: str, names: str, result: Estimate, short: Tensor, kind: Divergence, options: SolveOptions
) -> Explanation:
    """Return the message for a result with elements, in the mask `short`, that did not reach the required error."""
    is_kl, error = isinstance(kind, KL), cast("Tensor", result.error)
    again = f"{call}({'p, q' if is_kl else 'p, q, kind'}, max_evaluations={10 * options.max_evaluations})"
    return explain(
        call,
        "p, q" if is_kl else "p, q, kind",
        wanted=f"a relative error of {options.required():g}",
        got=f"{int(short.sum())} of {short.numel()} results of {result.method} that did not reach it for "
        f"{'' if is_kl else f'{kind!r} of '}{names} in "
        f"at most {options.max_evaluations} evaluations; the largest error is "
        f"{float(torch.where(error.isnan(), math.inf, error).max()):.3g} (error.estimate has all errors)",
        instead=f"{again}, a larger rtol or atol{_by_random_draws(kind)}",
    )


def _by_random_draws(kind: Divergence) -> str:
    """Return the last remedy of a message, random draws, or "" if draws cannot estimate this divergence."""
    return ", or method='monte_carlo' for an estimate from draws" if from_draws.serves(kind) else ""


def unserved(
    call: str, p: Distribution, q: Distribution, kind: Divergence, options: SolveOptions
) -> NoRuleError:
    """Return the error for a pair without a rule."""
    names = names_of(type(p), type(q))
    own = next((d for d in parts_of(p, q) if overrides_density(d)), None)
    if own is not None and options.method == "auto":
        rule = f"@register_kl{names} above a function of p and q, " if isinstance(kind, KL) else ""
        return no_rule(
            call,
            "p, q" if isinstance(kind, KL) else "p, q, kind",
            wanted="the log_prob of the family, or a log_prob of single numbers, continuous or on finitely many "
            "integers from 0 on",
            got=f"{names}, where {type(own).__name__} overrides log_prob",
            instead=f"{rule}the family's own class where log_prob is the same{_by_random_draws(kind)}",
        )
    lacking = {
        type(d).__name__: methods
        for d in (p, q)
        if not d.event_shape and (methods := lacks(d, [*_IN_A_CLASS]))
    }
    if lacking and options.method != "monte_carlo":
        return _without_methods(call, names, lacking, kind)
    if not isinstance(kind, KL):
        return no_rule(
            call,
            "p, q, kind",
            wanted="univariate or categorical distributions, or a power divergence of MultivariateNormal (with "
            "scales of P below 1e150 times those of Q), Dirichlet or Independent",
            got=f"{kind!r} of {names} by {options.method}",
            instead="KL(), ReverseKL() or Jeffreys(), which more pairs have"
            + ("" if options.method == "monte_carlo" else _by_random_draws(kind)),
        )
    if options.method != "auto":
        return no_rule(
            call,
            "method",
            wanted=f"a method that serves {names}",
            got=safe_repr(options.method),
            instead="method='auto', or method='monte_carlo' for an estimate from draws",
        )
    is_mixed = isinstance(p, MixtureSameFamily) or isinstance(q, MixtureSameFamily)
    bounds = ("kl_bounds(", P, ", ", Q, ") for guaranteed bounds, ") if is_mixed else ()
    return no_rule(
        call,
        "p, q",
        wanted="a pair of distributions with a known divergence",
        got=f"{names}, for which there is no exact rule",
        instead=(
            *bounds,
            "method='monte_carlo' for an estimate with a standard error, ",
            f"or @register_kl{names} above a function of p and q, if you know the formula",
        ),
    )


def _without_methods(
    call: str, names: str, lacking: Mapping[str, Sequence[str]], kind: Divergence
) -> NoRuleError:
    """Return the error for univariate distributions of classes without the methods in `lacking`, by class."""
    texts = [f"{name} has no {' and no '.join(methods)}" for name, methods in lacking.items()]
    added = [
        f"{' and '.join(map(_IN_A_CLASS.__getitem__, methods))} in the class {name}"
        for name, methods in lacking.items()
    ]
    is_kl, is_drawn = isinstance(kind, KL), all(methods == ["support"] for methods in lacking.values())
    others = [f"@register_kl{names} above a function of p and q"] * is_kl
    others += ["method='monte_carlo' for an estimate from draws"] * (is_kl and is_drawn)
    return no_rule(
        call,
        "p, q" if is_kl else "p, q, kind",
        wanted="distributions on the line with log_prob, sample and support, which are integrated",
        got=f"{names}, where {', and '.join(texts)}",
        instead=", or ".join([", and ".join(added), *others]),
    )
