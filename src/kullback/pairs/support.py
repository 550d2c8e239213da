"""The tests for an infinite divergence, if P has mass outside of Q's support or -log q grows too fast in P's tail."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, constraints

from kullback.common.dtypes import tensor_of
from kullback.errors import P, Q, invalid_value
from kullback.generators.growth import End as EndOfTerms, Growth
from kullback.pairs.densities.density import Density, Points, Tail
from kullback.pairs.family import FAMILIES, End, Family
from kullback.pairs.registry import Plan, plan_for, space_of
from kullback.pairs.torch_registry import PLANS

_Pair = tuple[Tensor | None, Tensor | None]
_Ends = tuple[Tensor | None, Tensor | None, Tail, Tail]

# If the terms of a divergence grow at least as log(p / q) to the power _NO_LESS_THAN_KL, the divergence counts as
# infinite wherever KL is infinite. Powers are rounded to tenths, so 0.95 separates the power 1, which KL has, from 0.9.
_NO_LESS_THAN_KL = 0.95
# Two tail coefficients count as equal up to the relative difference _ROUNDING, because they are rounded products.
_ROUNDING = 1e-12
# The number of points beyond an end of Q at which a user's density is evaluated.
_BEYOND = 100


def check_comparable(call: str, p: Distribution, q: Distribution, plan: Plan | None = None) -> None:
    """Raise unless P and Q are distributions over the same space, with batch shapes that broadcast."""
    if isinstance(p, Categorical) and isinstance(q, Categorical):
        classes = [d.param_shape[-1] for d in (p, q)]
        if classes[0] != classes[1]:
            raise invalid_value(
                call,
                "p, q",
                wanted=("as many classes in ", Q, " as in ", P, f", {classes[0]}"),
                got=f"{classes[1]}",
                instead="probs of 0, or logits of -inf, for the classes that one side lacks",
            )
    if p.event_shape != q.event_shape:
        raise invalid_value(
            call,
            "p, q",
            wanted="events of one shape",
            got=f"{_event(p)} and {_event(q)}",
            instead="Independent(d, 1) to make the last batch dimension an event dimension, or equally many classes",
        )
    plan = plan or plan_for(type(p), type(q))
    if plan.is_comparable and p.batch_shape == q.batch_shape:
        return
    (discrete_p, space_p), (discrete_q, space_q) = space_of(p), space_of(q)
    if None not in (discrete_p, discrete_q) and discrete_p != discrete_q:
        names = ["a discrete distribution" if d else "a continuous one" for d in (discrete_p, discrete_q)]
        raise invalid_value(
            call,
            "p, q",
            wanted="two discrete distributions or two continuous ones",
            got=f"{names[0]}, {type(p).__name__}, and {names[1]}, {type(q).__name__}",
            instead="a discretized or relaxed version of one of them",
        )
    if space_p != space_q:
        raise invalid_value(
            call,
            "p, q",
            wanted="densities over the same space",
            got=f"{space_p} in {type(p).__name__} and {space_q} in {type(q).__name__}",
            instead="a transform of one of them onto the space of the other",
        )
    try:
        torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    except RuntimeError:
        raise invalid_value(
            call,
            "p, q",
            wanted="batch shapes that broadcast",
            got=(f"{tuple(p.batch_shape)} in ", P, f" and {tuple(q.batch_shape)} in ", Q),
            instead=(P, ".expand(...) or parameters with a dimension of size 1"),
        ) from None


def _event(d: Distribution) -> str:
    return f"{type(d).__name__} with event_shape {tuple(d.event_shape)}"


def is_always_infinite(p: Family, q: Family) -> bool:
    """Return whether KL is +inf for all parameters of two families, by supports or by tails without parameters."""
    if not p.is_full or p.has_integers is None or p.has_integers != q.has_integers:
        return False
    tails = _constant_tails(p), _constant_tails(q)
    for side, end_p, end_q, tail, other in zip((-1, 1), p.support, q.support, *tails, strict=True):
        if _is_beyond(end_p, end_q, q, side) or (
            isinstance(end_p, float) and end_p == end_q and bool(_diverges(tail, other))
        ):
            return True
    return False


def is_always_finite(p: type, q: type) -> bool:
    """Return whether KL is finite for all parameters of two families, because no test of `is_infinite` applies."""
    key = ("finite", p, q)
    if key not in PLANS and not torch.compiler.is_compiling():
        densities = [_unknown_density(FAMILIES[kind]) if kind in FAMILIES else None for kind in (p, q)]
        PLANS[key] = None not in densities and is_infinite(*cast("Any", densities)) is None
    return PLANS.get(key, False)


def _unknown_density(family: Family) -> Density | None:
    """Return a family's density with unknown parameters (NaN), or None if `family.density` is not a class."""
    if not isinstance(family.density, type):
        return None
    unknown = torch.full((), math.nan, dtype=torch.float64, device="cpu")
    return family.density(*[unknown] * len(family.parameters.split()))


def _constant_tails(family: Family) -> tuple[Tail, Tail]:
    """Return the lower and the upper tail of a family; a field that depends on the parameters is NaN."""
    density = _unknown_density(family)
    tails = () if density is None else (density.lower_tail(), density.upper_tail())
    constant = [Tail(*(math.nan if isinstance(x, Tensor) else x for x in tail)) for tail in tails]
    return (constant[0], constant[1]) if constant else (Tail(), Tail())


def _is_beyond(end_p: End, end_q: End, q: Family, side: int) -> bool:
    """Return whether P's support always extends beyond an end of Q's; an end that is a parameter counts as finite."""
    if not isinstance(end_p, float) or end_q is None:
        return False
    if isinstance(end_q, str):
        is_above_0 = q.range_of(end_q) is constraints.positive
        return end_p == side * math.inf or (side < 0 and end_p <= 0 and is_above_0)
    return side * end_p > side * end_q


def is_infinite(p: Density, q: Density) -> Tensor | None:
    """Return a mask of the batch elements where KL is certainly +inf, or None if no test applies to the densities."""
    if p.has_equal_tails and q.has_equal_tails:
        return _diverges_at(None, None, p.lower_tail(), q.lower_tail())
    lower, upper = _both_ends(p, q)
    outside = _has_mass_outside(p, q, lower[:2], upper[:2])
    return _any(outside, _diverges_at(*lower), _diverges_at(*upper))


def _both_ends(p: Density, q: Density) -> list[_Ends]:
    """Return (end of P, end of Q, tail of P, tail of Q) at the lower ends, and the same at the upper ends."""
    return [(p.low, q.low, p.lower_tail(), q.lower_tail()), (p.high, q.high, p.upper_tail(), q.upper_tail())]


def _any(*tests: Tensor | None) -> Tensor | None:
    """Return the elementwise `or` of the masks that are not None, or None if all masks are None."""
    mask: Tensor | None = None
    for test in tests:
        if test is not None:
            mask = test if mask is None else mask | test
    return mask


def tail_margins(p: Density, q: Density) -> tuple[Tensor | None, Tensor | None]:
    """Return a - b for P's tail u^-a and -log q ~ u^b, at the lower ends and at the upper ends of both supports.

    Here u is |x| at an infinite end, and 1 / distance at a finite end. The difference is infinite where the ends of P
    and Q differ, or where a tail is not of this form. If this is true of all elements of the batch, the result is None.
    """
    lower, upper = p.lower_tail(), p.upper_tail()
    of_lower = of_upper = None
    if isinstance(lower.level, Tensor) or lower.level == 1.0:
        of_lower = _margin(p.low, q.low, lower, q.lower_tail())
    if isinstance(upper.level, Tensor) or upper.level == 1.0:
        of_upper = _margin(p.high, q.high, upper, q.upper_tail())
    return of_lower, of_upper


def _margin(end_p: Tensor | None, end_q: Tensor | None, tail: Tail, other: Tail) -> Tensor | None:
    if not isinstance(other.level, Tensor) and other.level != 0.0:
        return None
    both = _same_end(end_p, end_q)
    if both is None:
        return None
    is_power = tensor_of(
        (tensor_of(tail.level) == 1) & (tensor_of(tail.power) == 1) & (tensor_of(other.level) == 0)
    )
    return torch.where(both & is_power, tensor_of(tail.coefficient - other.power, torch.float64), torch.inf)


def _has_mass_outside(p: Density, q: Density, lower: _Pair, upper: _Pair) -> Tensor | None:
    """Return a mask of the elements where P has mass outside of Q's support, or None if there are none."""
    below, above = _reaches_out(*lower, below=True), _reaches_out(*upper, below=False)
    # A user's class may declare a support that is too large.
    if (below is not None or above is not None) and not p.is_splittable():
        below, above = _with_mass(p, lower[1], below, -1), _with_mass(p, upper[1], above, 1)
    return _any(below, above, _reaches_into_gaps(p, q))


def _with_mass(p: Density, end: Tensor | None, reaches: Tensor | None, side: int) -> Tensor | None:
    """Return the mask `reaches` where P's density is positive at any of many points beyond an end of Q."""
    if reaches is None or end is None or not bool(reaches.any()):
        return reaches
    with torch.no_grad():
        _, width = p.center_and_width()
        distances = torch.logspace(-6, 6, _BEYOND, dtype=torch.float64, device="cpu")
        x = end.unsqueeze(-1) + side * width.unsqueeze(-1) * distances
        log_p = p.mapped(lambda x: x.unsqueeze(-1)).log_density(Points(x))
        return reaches & (log_p > -torch.inf).any(-1)


def _reaches_into_gaps(p: Density, q: Density) -> Tensor | None:
    """Return a mask of the elements where P's support overlaps a gap in Q's support, or None if Q's is one interval."""
    pieces = q.pieces()
    if pieces is None or p.integer:
        return None
    low, high = (x.detach() for x in pieces)
    low, order = low.sort(-1)
    end = high.gather(-1, order).cummax(-1).values
    gap = end[..., :-1].unsqueeze(-1), low[..., 1:].unsqueeze(-1)
    whole = [x.detach().unsqueeze(-1) for x in p.ends()]
    first, last = (x.unsqueeze(-2) for x in p.pieces() or whole)
    return (torch.maximum(first, gap[0]) < torch.minimum(last, gap[1])).any(-1).any(-1)


def _reaches_out(end_p: Tensor | None, end_q: Tensor | None, *, below: bool) -> Tensor | None:
    """Return a mask of the elements where P's support exceeds Q's end; an end that is None is infinite."""
    if end_q is None:
        return None
    if end_p is None:
        return torch.isfinite(end_q)
    return end_p < end_q if below else end_p > end_q


def _diverges_at(end_p: Tensor | None, end_q: Tensor | None, tail: Tail, other: Tail) -> Tensor | None:
    """Return a mask of the elements where both supports share the end and E_P[-log q] diverges there, or None."""
    if not (isinstance(tail.level, Tensor) or isinstance(other.level, Tensor) or other.level < tail.level):
        return None
    if end_p is end_q is None:
        return _diverges(tail, other)
    both = _same_end(end_p, end_q)
    return None if both is None else _diverges(tail, other) & both


def _same_end(end_p: Tensor | None, end_q: Tensor | None) -> Tensor | None:
    """Return a mask of the elements where two ends on the same side are equal. An end that is None is infinite."""
    if end_p is None and end_q is None:
        return torch.ones((), dtype=torch.bool, device="cpu")
    if end_p is None or end_q is None:
        end = end_q if end_p is None else end_p
        return None if end is None else end.isinf()
    return end_p == end_q


def _diverges(tail: Tail, other: Tail) -> Tensor:
    """Return a mask of the elements where the mean of -log q over P's tail is infinite.

    `tail` is P's tail, and `other` is Q's tail. The mean is infinite if -log q grows at least as fast as
    1 / (P's mass beyond x).
    """
    (level, power, coefficient), (level_q, power_q, _) = tail, other
    of_power = (level_q < level - 1) | ((level_q == level - 1) & (power_q >= coefficient))
    diverges = (
        ((power == 1) & of_power)
        | ((power < 1) & (level_q <= level - 1))
        | ((power > 1) & (level_q <= level - 2))
    )
    return tensor_of(diverges, torch.bool)


def is_divergence_infinite(p: Density, q: Density, growth: Growth) -> Tensor | None:
    """Return a mask of the batch elements where a divergence is certainly +inf, or None if no test applies."""
    return _any(_is_infinite_as(p, q, growth.far), _is_infinite_as(q, p, growth.near))


def _is_infinite_as(p: Density, q: Density, end: EndOfTerms) -> Tensor | None:
    """Return a mask of the elements where the integral of the terms is infinite, or None if no test applies.

    `end` describes the growth of the terms as q / p falls to 0.
    """
    if end.limit < math.inf:
        return None
    if 0 < end.rate < math.inf:
        return is_power_infinite(p, q, 1 + end.rate)
    if end.rate == 0 and end.power > _NO_LESS_THAN_KL:
        return is_infinite(p, q)
    return _has_mass_outside(p, q, (p.low, q.low), (p.high, q.high))


def is_power_infinite(p: Density, q: Density, alpha: float) -> Tensor | None:
    """Return a mask of the elements where the integral of p^alpha q^(1 - alpha) is certainly +inf, or None."""
    if 0 <= alpha <= 1:
        return None
    if alpha < 0:
        return is_power_infinite(q, p, 1 - alpha)
    factor = alpha * p.tail_factor() - (alpha - 1) * q.tail_factor()
    lower, upper = _both_ends(p, q)
    return _any(
        _has_mass_outside(p, q, lower[:2], upper[:2]),
        _power_diverges_at(*lower, alpha, factor),
        _power_diverges_at(*upper, alpha, factor),
    )


def _power_diverges_at(
    end_p: Tensor | None, end_q: Tensor | None, tail: Tail, other: Tail, alpha: float, factor: Tensor | float
) -> Tensor | None:
    """Return a mask of the elements where the integral of p^alpha q^(1 - alpha) diverges at P's end, for alpha > 1.

    `tail` is P's tail, and `other` is Q's tail. For `factor` see `_outgrows`.
    """
    same_end = _same_end(end_p, end_q)
    diverges = None if same_end is None else _outgrows(tail, other, alpha, factor) & same_end
    if end_p is None:
        return diverges
    inside = end_p.isfinite() if same_end is None else end_p.isfinite() & ~same_end
    # Inside of its support, q is finite, like a tail of power 1.
    return _any(diverges, inside & _outgrows(tail, Tail.of_power(1.0), alpha, factor))


def _outgrows(tail: Tail, other: Tail, alpha: float, factor: Tensor | float) -> Tensor:
    """Return a mask of the elements where the integral of p^alpha q^(1 - alpha), for alpha > 1, diverges in the tails.

    P(x) and Q(x) are the masses beyond x, described by `tail` and `other`. The integral diverges if Q(x)^(1 - alpha)
    grows faster than P(x)^-alpha. If both grow alike in tails of level 0, the integrand is about u^factor, whose
    integral diverges for a factor from -1 on. At level 1, the integrand is then about 1 / u, whose integral diverges;
    so do the integrals at higher levels. At lower levels, the comparison is unknown, and the result is false.
    """
    level, power = (tensor_of(x, torch.float64) for x in tail[:2])
    diverges = tensor_of(factor, torch.float64) >= -1
    tie = ((level >= 1) | ((level == 0) & diverges)) & (power == 1)
    larger, smaller = (alpha - 1) * tensor_of(other.coefficient), alpha * tensor_of(tail.coefficient)
    same = (level == other.level) & (power == other.power)
    return (_order(tail, other, alpha) < 0) | (tie & same & (larger == smaller))


def _order(tail: Tail, other: Tail, alpha: float) -> Tensor:
    """Return the limit of the sign of (alpha - 1) log Q(x) - alpha log P(x) for masses beyond x; 0 if it is unknown."""
    level, power, coefficient, level_q, power_q, coefficient_q = (
        tensor_of(x, torch.float64) for x in (*tail, *other)
    )
    least = alpha * coefficient - (alpha - 1) * coefficient_q
    least = torch.where(least.abs() > _ROUNDING * alpha * coefficient.abs(), least, 0)
    sign = torch.where(
        level != level_q, level_q - level, torch.where(power != power_q, power - power_q, least)
    )
    return torch.where(level.isnan() | level_q.isnan(), 0, sign.sign().nan_to_num(nan=0.0))


def is_divergence_finite(p: Density, q: Density, growth: Growth) -> Tensor:
    """Return a mask of the elements where a divergence whose terms grow as powers of p / q is certainly finite."""
    result = torch.tensor(p.is_splittable() and q.is_splittable(), device="cpu")
    for first, second, end in ((p, q, growth.far), (q, p, growth.near)):
        if end.limit < math.inf:
            continue
        for end_p, end_q, tail, other in _both_ends(first, second):
            same_end = _same_end(end_p, end_q)
            if same_end is None or not 0 < end.rate < math.inf:
                return torch.zeros_like(result)
            result = result & same_end & (_order(tail, other, 1 + end.rate) > 0)
    return result
