"""The errors for transforms applied outside of their domain, and for parameters that are invalid or cannot be read."""

from __future__ import annotations

from operator import itemgetter

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
from kullback.errors import Name, P, Q, invalid_value, no_rule
from kullback.pairs.clone import parts_of
from kullback.pairs.densities.black_box import Ends, ends_after
from kullback.pairs.densities.maps import inverted_by, parts_of_maps
from kullback.pairs.family import FAMILIES, support_of
from kullback.pairs.numerics.parameters import is_batched
from kullback.pairs.registry import names_of

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
    """Return the two ends of an interval, each None if it is infinite; return None for a set that is no interval."""
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
    if is_traced():
        raise no_rule(
            call,
            "p, q",
            wanted="parameters whose values an integral or a sum can read",
            got=f"{names_of(type(p), type(q))} inside of torch.func.linearize or make_fx",
            instead=("torch.func.jvp, or ", *_call_of(call), " outside of the traced function"),
        )
    if not are_readable and any(not can_inspect(x) and is_batched(x) for *_, x in parameters):
        raise no_rule(
            call,
            "p, q",
            wanted="parameters whose values an integral or a sum can read",
            got=f"{names_of(type(p), type(q))} inside of torch.func.vmap",
            instead=(*_call_of(call), " without vmap for distributions with a batch shape"),
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


def _call_of(call: str) -> tuple[str, ...]:
    return Name(call), "(", P, ", ", Q, ")"


def _parameters(p: Distribution, q: Distribution) -> list[tuple[Distribution, str, Tensor]]:
    """Return (distribution, name, tensor) for each parameter of P and Q and of the distributions in them."""
    parameters: list[tuple[Distribution, str, Tensor]] = []
    for part in parts_of(p, q):
        for name, x in vars(part).items():
            if isinstance(x, Tensor) and x.is_floating_point():
                parameters.append((part, name, x))
    return parameters
