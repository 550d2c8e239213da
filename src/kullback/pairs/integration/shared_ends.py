"""Derivatives by an end that the supports of P and Q share, if the end of P or of Q depends on a parameter.

A divergence has one formula if the end of Q's support is outside P's support, and another formula if this end is
inside. So the derivatives with respect to a shared end are one-sided. The library returns the derivatives of the
formula for a larger support of Q. Some kinds, such as an alpha divergence of negative order, are finite only if Q's
support is smaller than P's. For these kinds, the library returns the derivatives of the other formula. An end with an
infinite derivative counts as a constant. At P = Q the derivatives are 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.common.dtypes import tensor_of
from kullback.generators import Divergence
from kullback.generators.growth import growth_of, order_of
from kullback.pairs.densities.density import DelegatingDensity, Density, Points, Tail
from kullback.pairs.densities.transformed import AffineDensity
from kullback.pairs.families.uniform import UniformDensity
from kullback.pairs.integration.divergence_terms import DivergenceTerms
from kullback.pairs.integration.line import NEAREST
from kullback.pairs.numerics.parameters import is_differentiated

# A divergence below LEAST_VALUE counts as 0, because P and Q are then equal up to rounding. In
# benchmarks/panel_constants.py, all answers are correct for values from 1e-14 to 1e-10.
LEAST_VALUE = 1e-12
# The growth of a derivative is measured between log(p / q) = _NEARER and log(p / q) = _FARTHER. A growth with an
# exponent below _LEAST_ORDER does not count as a power, because a logarithm doubles between these values, like a power
# with the exponent 0.035.
_NEARER, _FARTHER, _LEAST_ORDER = 20.0, 40.0, 0.05
# A density that is neither 0 nor infinite at its end has nearly constant derivatives next to the end. The derivatives
# at the distance _FLAT replace the derivatives at smaller distances. The unit of _FLAT is the distance of the density's
# center from the end. In benchmarks/panel_constants.py, all answers are correct for values from 1e-9 to 1e-5.
_FLAT = 1e-7


class SharedEnds(NamedTuple):
    """Densities with the same values as P and Q and with the correct derivatives with respect to shared ends."""

    p: Density
    q: Density
    terms: DivergenceTerms
    elements: Tensor
    """A mask of the batch elements with a shared end that depends on a parameter."""


def shared_ends(p: Density, q: Density, kind: Divergence) -> SharedEnds | None:
    """Return densities equal to P and Q with the module's derivatives for shared ends, or None if no such end moves."""
    fixed_p, fixed_q = p.detached(), q.detached()
    growth = growth_of(kind)
    q_is_smaller = growth.near.limit == math.inf > growth.far.limit
    elements = torch.zeros(1, dtype=torch.bool, device="cpu")
    fixed, follows_p, follows_q = [elements, elements], [elements, elements], [elements, elements]
    least = [torch.full((), NEAREST, dtype=torch.float64, device="cpu")] * 2
    for side, (a, b, at_p, at_q) in enumerate(
        (
            (p.low, q.low, fixed_p.lower_tail(), fixed_q.lower_tail()),
            (p.high, q.high, fixed_p.upper_tail(), fixed_q.upper_tail()),
        )
    ):
        if a is None or b is None or not (is_differentiated(a) or is_differentiated(b)):
            continue
        power_p, power_q = _power(at_p), _power(at_q)
        shared = (a.detach() == b.detach()) & b.detach().isfinite() & ~(power_p.isnan() | power_q.isnan())
        if q_is_smaller:
            of_q, of_p = _kept_ends(power_q, power_p, kind, q_is_smaller)
        else:
            of_p, of_q = _kept_ends(power_p, power_q, kind, q_is_smaller)
        is_finite = not growth.near.limit == growth.far.limit == math.inf
        follows_p[side], follows_q[side] = shared & of_p & is_finite, shared & of_q & is_finite
        is_flat = (power_p if q_is_smaller else power_q) == 1
        flat = math.log(_FLAT) + torch.minimum(*(_log_size(d, side) for d in (fixed_p, fixed_q)))
        least[side] = torch.where(is_flat, flat.clamp(min=NEAREST), NEAREST)
        fixed[side] = shared & ~(follows_p[side] | follows_q[side])
        elements = elements | shared
    if not bool(elements.any()):
        return None
    p, q = _with_fixed_ends(p, *fixed), _with_fixed_ends(q, *fixed)
    terms = DivergenceTerms(kind, 0 if q_is_smaller else 1)
    new_p, new_q = _following(p, q, follows_q, least), _following(q, p, follows_p, least)
    return SharedEnds(new_p, new_q, terms, elements)


def _log_size(d: Density, side: int) -> Tensor:
    """Return the logarithm of the distance of a density's center from its lower end (side 0) or upper end (side 1)."""
    center = d.coordinate().points(d.center_and_width()[0])
    log_distance = center.log_above_low if side == 0 else center.log_below_high
    return torch.zeros_like(center.x) if log_distance is None else log_distance.nan_to_num(nan=0.0)


def _power(tail: Tail) -> Tensor:
    """Return the exponent a such that the mass within the distance d of the end is about d^a.

    It is infinite for a smaller mass than every power, 0 for a larger one, and NaN for an unknown tail.
    """
    level, power, coefficient = (tensor_of(x, torch.float64) for x in tail)
    power_at_level_1 = torch.where((level == 1) & (power == 1), coefficient, torch.inf)
    return torch.where(
        (level > 1) | ((level == 1) & (power < 1)),
        0.0,
        torch.where(level.isnan(), torch.nan, power_at_level_1),
    )


def _kept_ends(inner: Tensor, outer: Tensor, kind: Divergence, q_is_smaller: bool) -> tuple[Tensor, Tensor]:
    """Return two masks of batch elements. They show how the nodes near a shared end move with the parameters.

    The inner density has the smaller support. Where the first mask is true, the nodes keep their distance from the end
    of the inner density. Where the second mask is true, the nodes keep their distance from the end of the outer
    density. Where both masks are false, the ends are constants.

    For a = `inner` and b = `outer`, at the distance d from the end, the inner density is about d^(a - 1) and the outer
    density is about d^(b - 1). The integrand of the derivative with respect to the outer end is d^(s a + (1 - s) b -
    2), where s is an order of the kind (see `_orders`). If b is 1, the derivative of the outer density is bounded, so
    the nodes keep their distance from the inner end.
    """
    near, far = _orders(kind, q_is_smaller)
    order = torch.where(inner > outer, near, torch.where(inner < outer, far, 0.0))
    of_inner = torch.where(order == 0, 0, order * inner)
    of_outer = torch.where(order == 1, 0, (1 - order) * outer)
    is_zero = order == torch.inf
    is_finite = is_zero | (of_inner + of_outer > 1)
    # The outer density is too steep for nodes with a constant distance from the inner end, unless the kind is a power
    # divergence or Renyi's.
    is_steep = (outer < 1) & (order_of(kind) is None) & ~is_zero
    return (outer == 1) | (is_finite & ~is_steep), is_finite & is_steep & (inner > 1)


def _orders(kind: Divergence, q_is_smaller: bool) -> tuple[float, float]:
    """Return an exponent s for p / q near 0, and an exponent s for p / q near infinity.

    In these limits, the derivative of the divergence with respect to log q is about p^s q^(1 - s), up to a multiple of
    q. If the derivative is a multiple of q alone, s is infinite. If Q's support is smaller than P's, P and Q are
    exchanged.
    """
    order = order_of(kind)
    if order is not None:
        return (1 - order, 1 - order) if q_is_smaller else (order, order)
    near, far = (_rate(kind, sign) for sign in (-1, 1))
    logs = [torch.tensor([x], dtype=torch.float64, device="cpu") for x in (-_NEARER, 0.0)]
    if q_is_smaller:
        logs.reverse()
    side = 0 if q_is_smaller else 1
    is_zero = kind.additive and bool(DivergenceTerms(kind, side).derivatives(*logs)[side] == 0)
    return math.inf if is_zero else 1 - (far if q_is_smaller else near), near if q_is_smaller else far


def _rate(kind: Divergence, sign: int) -> float:
    """Return r if the derivative for the smaller mass, Q's for `sign` 1, grows as (larger / smaller mass)^r; else 0."""
    d = sign * torch.tensor([_NEARER, _FARTHER], dtype=torch.float64, device="cpu")
    logs = d.clamp(max=0), -d.clamp(min=0)
    smaller = 1 if sign > 0 else 0
    by_log = DivergenceTerms(kind).sensitivities(*logs)[smaller] / torch.exp(logs[smaller])
    change = torch.log(by_log.abs()).diff().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    rate = float(change) / (_FARTHER - _NEARER)
    return rate if rate > _LEAST_ORDER else 0.0


def _with_fixed_ends(d: Density, at_low: Tensor, at_high: Tensor) -> Density:
    """Return a density whose ends are constants for the batch elements of the masks `at_low` and `at_high`."""
    if not bool((at_low | at_high).any()):
        return d
    if isinstance(d, UniformDensity):
        ends = ((at_low, d.lower), (at_high, d.upper))
        return UniformDensity(*(torch.where(fixed, end.detach(), end) for fixed, end in ends))
    low, high = d.ends()
    has_low, has_high = low.isfinite(), high.isfinite()
    low, high = torch.where(has_low, low, high), torch.where(has_high, high, low)
    new_low, new_high = (
        torch.where(fixed & has, end.detach(), end)
        for fixed, has, end in ((at_low, has_low, low), (at_high, has_high, high))
    )
    both = has_low & has_high
    width = torch.where(both, high - low, 1)
    scale = torch.where(both, (new_high - new_low) / width, 1)
    loc = torch.where(has_low, new_low - scale * low, new_high - scale * high)
    return AffineDensity(d, loc, scale, falls=False)


def _following(d: Density, other: Density, follows: list[Tensor], least: list[Tensor]) -> Density:
    if not bool((follows[0] | follows[1]).any()):
        return d
    return _FollowingDensity(d, other.low, other.high, *follows, *least)


@dataclass(frozen=True)
class _FollowingDensity(DelegatingDensity):
    """The density `part` at nodes that keep their distance from the end of another density, `lower` or `upper`.

    The end of the other density has the same value as the end of `part`. `at_low` and `at_high` are masks of the batch
    elements whose nodes keep their distance from `lower` and from `upper`. In these elements, the distance of a node
    from the end of `part` is differentiable with respect to both ends.
    """

    part: Density
    lower: Tensor | None
    upper: Tensor | None
    at_low: Tensor
    at_high: Tensor
    least_above: Tensor
    least_below: Tensor

    @property
    def low(self) -> Tensor | None:
        own = self.part.low
        return own if own is None or self.lower is None else torch.where(self.at_low, self.lower, own)

    @property
    def high(self) -> Tensor | None:
        own = self.part.high
        return own if own is None or self.upper is None else torch.where(self.at_high, self.upper, own)

    def log_density(self, at: Points) -> Tensor:
        low, high = self.part.low, self.part.high
        above, below = at.log_above_low, at.log_below_high
        if low is not None and at.low is not None and above is not None:
            above = _moved(at.log_above(low), at.low - low, self.at_low, self.least_above)
        if high is not None and at.high is not None and below is not None:
            below = _moved(at.log_below(high), high - at.high, self.at_high, self.least_below)
        return self.part.log_density(
            Points(
                at.x,
                at.low if low is None or above is None else low,
                above,
                at.high if high is None or below is None else high,
                below,
            )
        )


def _moved(log_distance: Tensor, more: Tensor, follows: Tensor, least: Tensor) -> Tensor:
    """Return log(distance + more) where `follows` is true, with at least `least`, and log(distance) elsewhere.

    The value of `more` is 0, but its derivatives are not.
    """
    follows = follows & (more.detach() == 0)
    log_distance = torch.where(follows & (log_distance < least), least, log_distance)
    return log_distance + torch.log1p(
        torch.where(follows, more, 0) * torch.exp(-log_distance.clamp(min=NEAREST))
    )
