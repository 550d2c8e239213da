"""The errors of `solve`: for the pair before any rule, for a pair without a rule, and for a result that is not exact.

Transforms may be applied outside of their domain, and parameters may be invalid or impossible to read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import cast

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    MixtureSameFamily,
    TransformedDistribution,
    constraints,
)

from kullback.common.bijective import check_bijective
from kullback.common.dtypes import tensor_of, upcast
from kullback.common.inputs import can_inspect, can_inspect_all, is_traced
from kullback.errors import Explanation, Name, NoRuleError, P, Q, explain, invalid_value, no_rule, safe_repr
from kullback.generators import KL, Divergence
from kullback.pairs.clone import parts_of
from kullback.pairs.densities.black_box import Ends, ends_after
from kullback.pairs.densities.maps import inverted_by, parts_of_maps
from kullback.pairs.family import FAMILIES, lacks, overrides_density, support_of
from kullback.pairs.monte_carlo import from_draws
from kullback.pairs.numerics.parameters import is_batched
from kullback.pairs.registry import names_of
from kullback.pairs.solve_options import SolveOptions
from kullback.results.estimate import Estimate

# An end of a support may be outside of the domain of a transform by _ROUNDING times 1 + |end of the domain|. The limit
# is a few times the rounding error of float32, because users compute ends in float32.
_ROUNDING = 1e-6
# _NUMBERS are the names of parameters that have to be finite and, except for `loc`, positive.
_NUMBERS = ("loc", "df", "df1", "df2", "concentration", "concentration1", "concentration0", "rate", "scale")
_OF_TRIALS = ("total_count", "probs")
_LARGEST_PROBABILITY = 1 + 1e-6  # rounding may bring a probability above 1


def check_domains(call: str, p: Distribution, q: Distribution) -> None:
    """Raise if a transform is not one-to-one, or gets mass outside of its domain, like the logarithm of a Normal."""
    for argument, d in (("p", p), ("q", q)):
        if type(d) in FAMILIES and not isinstance(d, TransformedDistribution):
            continue  # a family without maps
        check_bijective(call, argument, d)
        inner = _unwrapped(d)
        if isinstance(inner, TransformedDistribution):
            _checked_ends(call, argument, inner)


def _unwrapped(d: Distribution) -> Distribution:
    """Return the distribution inside all outer `Independent` wrappers and mixtures."""
    while isinstance(d, Independent | MixtureSameFamily):
        d = d.base_dist if isinstance(d, Independent) else d.component_distribution
    return d


def _checked_ends(call: str, argument: str, d: Distribution) -> Ends | None:
    """Check all transforms in a distribution, and return the ends of its support, or None if they are unknown."""
    d = _unwrapped(d)
    if not isinstance(d, TransformedDistribution):
        return _ends_of(support_of(d))
    ends = _checked_ends(call, argument, d.base_dist)
    for step in parts_of_maps(d.transforms):
        domain = _ends_of(step.domain)
        if (
            ends is None
            or domain is None
            or not can_inspect_all(x for x in (*ends, *domain) if x is not None)
        ):
            return None
        if not _is_inside(ends, domain):
            inverse = inverted_by(step)
            name = type(step).__name__ if inverse is None else f"{type(inverse).__name__}().inv"
            raise invalid_value(
                call,
                argument,
                wanted=f"a base distribution with all of its mass in {_interval(domain)}, the domain of {name}",
                got=f"{type(d.base_dist).__name__} with mass in {_interval(ends)} there",
                instead="a base distribution, or a transform before this one, that stays in the domain; for the "
                "logarithm LogNormal or Gamma, not Normal",
            )
        ends = ends_after(ends, step)
    return ends


def _ends_of(constraint: object) -> Ends | None:
    """Return the two ends of an interval; an infinite end is None. Return None for a set that is not an interval."""
    while hasattr(constraint, "base_constraint"):
        constraint = getattr(constraint, "base_constraint")  # noqa: B009
    ends = (getattr(constraint, name, None) for name in ("lower_bound", "upper_bound"))
    low, high = (None if x is None else upcast(tensor_of(x, torch.float64)) for x in ends)
    if (low is None and high is None and constraint is not constraints.real) or getattr(
        constraint, "is_discrete", True
    ):
        return None
    return low, high


def _is_inside(ends: Ends, domain: Ends) -> bool:
    for end, edge, side in zip(ends, domain, (1, -1), strict=True):
        if edge is None or bool(edge.isinf().all()):
            continue
        if end is None or bool((side * (end - edge) < -_ROUNDING * (1 + edge.abs())).any()):
            return False
    return True


def _interval(ends: Ends) -> str:
    low, high = ("" if x is None else f"{float(x.detach().flatten()[0]):g}" for x in ends)
    return f"({low or '-inf'}, {high or 'inf'})"


def check_integrable(call: str, p: Distribution, q: Distribution) -> None:
    """Raise if a parameter is invalid, or if a sum or an integral cannot read the values of the parameters."""
    parameters = _parameters(p, q)
    are_readable = can_inspect_all(map(itemgetter(-1), parameters))
    if is_traced() or (
        not are_readable and any(not can_inspect(x) and is_batched(x) for *_, x in parameters)
    ):
        own_call = Name(call), "(", P, ", ", Q, ")"
        place, instead = "vmap", (*own_call, " without vmap for distributions with a batch shape")
        if is_traced():
            place = "linearize or make_fx"
            instead = "torch.func.jvp, or ", *own_call, " outside of the traced function"
        raise no_rule(
            call,
            "p, q",
            wanted="parameters whose values an integral or a sum can read",
            got=f"{names_of(type(p), type(q))} inside of torch.func.{place}",
            instead=instead,
        )
    for owner, name, x in parameters:
        if name not in (*_NUMBERS, *_OF_TRIALS) or not (are_readable or can_inspect(x)):
            continue
        is_wrong, allowed = x.isinf(), "a finite"
        if name in _OF_TRIALS:
            is_wrong = is_wrong | (x < 0) | ((x > _LARGEST_PROBABILITY) & (name == "probs"))
            allowed = "a finite and non-negative" if name == "total_count" else "numbers from 0 to 1 as"
        if name in _NUMBERS and name != "loc" and (allows := _range_of(owner, name)) is not constraints.real:
            is_wrong = is_wrong | (x < 0 if allows is constraints.nonnegative else x <= 0)
            allowed = "a finite and positive"
        if bool(is_wrong.any()):
            index = tuple(int(i) for i in is_wrong.nonzero()[0])
            at = f" at {list(index)}" if index else ""
            raise invalid_value(
                call,
                "p" if any(owner is part for part in parts_of(p)) else "q",
                wanted=f"{allowed} {name} in {type(owner).__name__}",
                got=f"{float(x[index].detach())}{at}",
                instead=(
                    *(P, " and ", Q, " without these elements of the batch"),
                    ", or a small positive number in place of 0" if name in _NUMBERS else "",
                ),
            )


def _range_of(owner: Distribution, name: str) -> object:
    """Return the declared range of a parameter, or None if it is not declared."""
    try:
        return owner.arg_constraints.get(name)
    except NotImplementedError:
        return None


def _parameters(p: Distribution, q: Distribution) -> list[tuple[Distribution, str, Tensor]]:
    """Return (distribution, name, tensor) for each parameter of P and Q and of the distributions in them."""
    parameters: list[tuple[Distribution, str, Tensor]] = []
    for part in parts_of(p, q):
        for name, x in vars(part).items():
            if isinstance(x, Tensor) and x.is_floating_point():
                parameters.append((part, name, x))
    return parameters


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
            "scales of P below 1e150 times Q's), Dirichlet or Independent",
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
        got=f"{names}, which have no exact rule",
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
