"""Where P's mass lies outside Q's support, or falls too slowly for Q: the divergence is +inf there, for every pair."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    TransformedDistribution,
    constraints,
)

from kullback.errors import invalid_value
from kullback.generators.growth import End, Growth
from kullback.numeric import tensor_of
from kullback.pairs.densities.base import Density, Tail, TailOrder

__all__ = ["check_comparable", "is_divergence_infinite", "is_infinite", "is_plain", "tail_margins"]


# Pairs of types that were found to be comparable, as their parameters change nothing of that.
_OF_ONE_KIND: set[tuple[type, type]] = set()
# Terms that grow by at least this power of log(p / q) are infinite wherever those of KL are.
_NO_LESS_THAN_KL = 0.95
_WRAPPERS = (Independent, MixtureSameFamily, TransformedDistribution)
# Sets of events whose densities are by measures of their own, and what to call them.
_SURFACES: dict[type, str] = {
    type(constraints.simplex): "vectors of probabilities",
    type(constraints.corr_cholesky): "Cholesky factors of correlation matrices",
    type(constraints.positive_definite): "positive-definite matrices",
}


def is_plain(family: type) -> bool:
    """Tell whether a class of torch's alone says what its distributions are, not a part that they wrap."""
    return family.__module__.startswith("torch.distributions.") and family not in _WRAPPERS


def check_comparable(call: str, p: Distribution, q: Distribution) -> None:
    """Raise unless P and Q are distributions of the same kind of thing, with batch shapes that broadcast."""
    if isinstance(p, Categorical) and isinstance(q, Categorical):
        classes = [d.param_shape[-1] for d in (p, q)]
        if classes[0] != classes[1]:
            raise invalid_value(
                call,
                "p, q",
                wanted=f"as many classes in q as in p, {classes[0]}",
                got=f"{classes[1]}",
                instead="probs of 0, or logits of -inf, for the classes that one side lacks",
            )
    if p.event_shape != q.event_shape:
        raise invalid_value(
            call,
            "p, q",
            wanted=f"events of one shape; {_event(p)}",
            got=_event(q),
            instead="Independent(d, 1) to count the last batch dimension to the event, or as many classes in both",
        )
    if p.batch_shape == q.batch_shape and (type(p), type(q)) in _OF_ONE_KIND:
        return
    discrete = [_is_discrete(d) for d in (p, q)]
    if None not in discrete and discrete[0] != discrete[1]:
        names = ["a discrete distribution" if d else "a continuous one" for d in discrete]
        raise invalid_value(
            call,
            "p, q",
            wanted="two discrete distributions, or two continuous ones, which alone have densities to compare",
            got=f"{names[0]}, {type(p).__name__}, and {names[1]}, {type(q).__name__}",
            instead="a discretized or relaxed version of one of them",
        )
    spaces = [_space(d) for d in (p, q)]
    if spaces[0] != spaces[1]:
        raise invalid_value(
            call,
            "p, q",
            wanted="densities over one space",
            got=f"{spaces[0]} in {type(p).__name__} and {spaces[1]} in {type(q).__name__}",
            instead="a transform of one of them onto the space of the other",
        )
    if is_plain(type(p)) and is_plain(type(q)) and not torch.compiler.is_compiling():
        # A set that changes while a function is compiled would fail the guard on what it held before.
        _OF_ONE_KIND.add((type(p), type(q)))
    try:
        torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    except RuntimeError:
        raise invalid_value(
            call,
            "p, q",
            wanted="batch shapes that broadcast",
            got=f"{tuple(p.batch_shape)} in p and {tuple(q.batch_shape)} in q",
            instead="p.expand(...) or parameters with a dimension of size 1",
        ) from None


def _event(d: Distribution) -> str:
    return f"{type(d).__name__} with event_shape {tuple(d.event_shape)}"


def _is_discrete(d: Distribution) -> bool | None:
    try:
        return d.support.is_discrete if d.support is not None else None
    except (NotImplementedError, AttributeError):
        return None


def _space(d: Distribution) -> str:
    try:
        return _SURFACES.get(type(d.support), "arrays of numbers")
    except (NotImplementedError, AttributeError):
        return "arrays of numbers"


def is_infinite(p: Density, q: Density) -> Tensor | None:
    """Tell for which elements of the batch KL is +inf for certain; None where it never is."""
    tests = [
        _reaches_out(p.low(), q.low(), below=True),
        _reaches_out(p.high(), q.high(), below=False),
        _diverges_at(p.low(), q.low(), p.lower_tail(), q.lower_order()),
        _diverges_at(p.high(), q.high(), p.upper_tail(), q.upper_order()),
    ]
    found = [test for test in tests if test is not None]
    if not found:
        return None
    result = found[0]
    for test in found[1:]:
        result = result | test
    return result


def tail_margins(p: Density, q: Density) -> tuple[Tensor | None, Tensor | None]:
    """Return by what power of the distance P's tail outruns -log q at the lower and the upper end of both supports.

    Infinite where the tail is no power, or -log q of no power; None where that is so for all.
    """
    return (
        _margin(p.low(), q.low(), p.lower_tail(), q.lower_order()),
        _margin(p.high(), q.high(), p.upper_tail(), q.upper_order()),
    )


def _margin(end_p: Tensor | None, end_q: Tensor | None, tail: Tail, order: TailOrder) -> Tensor | None:
    is_heavy = isinstance(tail.power, Tensor) or tail.power < torch.inf
    if not (is_heavy and (isinstance(order.power, Tensor) or order.power > 0)):
        return None
    both = _same_end(end_p, end_q)
    if both is None:
        return None
    margin = tensor_of(tail.power - order.power, torch.float64)
    return torch.where(both & tensor_of(order.power > 0), margin, torch.inf)


def _reaches_out(end_p: Tensor | None, end_q: Tensor | None, *, below: bool) -> Tensor | None:
    """Tell where P's support extends beyond an end of Q's."""
    if end_q is None:
        return None
    if end_p is None:
        return torch.isfinite(end_q)
    return end_p < end_q if below else end_p > end_q


def _diverges_at(end_p: Tensor | None, end_q: Tensor | None, tail: Tail, order: TailOrder) -> Tensor | None:
    """Tell where both supports end at the same place and E_P[-log q] diverges there."""
    is_heavy, has_rate = (isinstance(x, Tensor) or x < torch.inf for x in tail)
    is_power, is_super_exponential = (isinstance(x, Tensor) or x > 0 for x in order)
    if not ((is_heavy and (is_power or is_super_exponential)) or (has_rate and is_super_exponential)):
        return None
    both = _same_end(end_p, end_q)
    return None if both is None else _diverges(tail, order) & both


def _same_end(end_p: Tensor | None, end_q: Tensor | None) -> Tensor | None:
    """Tell where two ends are the same, None being an infinite one; None where they never are."""
    if end_p is None and end_q is None:
        return torch.ones((), dtype=torch.bool, device="cpu")
    if end_p is None or end_q is None:
        end = end_q if end_p is None else end_p
        return None if end is None else end.isinf()
    return end_p == end_q


def _diverges(tail: Tail, order: TailOrder) -> Tensor:
    """Tell where the mean of -log q over P's tail is infinite."""
    power, rate, order_power, order_rate = (tensor_of(x, torch.float64) for x in (*tail, *order))
    of_power = (order_power >= power) | (order_rate > 0)
    return torch.where(power < torch.inf, of_power, (order_rate > 0) & (order_rate >= rate))


def is_divergence_infinite(p: Density, q: Density, growth: Growth) -> Tensor | None:
    """Tell for which elements of the batch a divergence is +inf for certain; None where it never is."""
    tests = [
        _is_infinite_as(p, q, growth.far),
        _is_infinite_as(q, p, growth.near),
    ]
    found = [test for test in tests if test is not None]
    return torch.stack(torch.broadcast_tensors(*found)).any(0) if found else None


def _is_infinite_as(p: Density, q: Density, end: End) -> Tensor | None:
    """Tell where terms that grow so where q is the smaller mass have an infinite sum."""
    if end.limit < math.inf:
        return None
    if 0 < end.rate < math.inf:
        return is_power_infinite(p, q, 1 + end.rate)
    if end.rate == 0 and end.power > _NO_LESS_THAN_KL:
        return is_infinite(p, q)
    outside = [_reaches_out(p.low(), q.low(), below=True), _reaches_out(p.high(), q.high(), below=False)]
    found = [test for test in outside if test is not None]
    return torch.stack(torch.broadcast_tensors(*found)).any(0) if found else None


def is_power_infinite(p: Density, q: Density, alpha: float) -> Tensor | None:
    """Tell for which elements of the batch the integral of p^alpha q^(1 - alpha) is +inf for certain; None for none."""
    if 0 <= alpha <= 1:
        return None
    if alpha < 0:
        return is_power_infinite(q, p, 1 - alpha)
    tests = [
        _reaches_out(p.low(), q.low(), below=True),
        _reaches_out(p.high(), q.high(), below=False),
        _power_diverges_at(
            (p.low(), p.lower_tail(), p.lower_order()), (q.low(), q.lower_tail(), q.lower_order()), alpha
        ),
        _power_diverges_at(
            (p.high(), p.upper_tail(), p.upper_order()), (q.high(), q.upper_tail(), q.upper_order()), alpha
        ),
    ]
    found = [test for test in tests if test is not None]
    return torch.stack(torch.broadcast_tensors(*found)).any(0) if found else None


_End = tuple[Tensor | None, Tail, TailOrder]


def _power_diverges_at(p: _End, q: _End, alpha: float) -> Tensor:
    """Tell where the integral of p^alpha q^(1 - alpha), of an order above 1, diverges next to an end of P."""
    power, rate, order_p, order_rate_p, power_q, rate_q, order_q, order_rate_q = (
        tensor_of(x, torch.float64) for x in (*p[1], *p[2], *q[1], *q[2])
    )
    heavy, heavy_q = power < torch.inf, power_q < torch.inf
    has_rate, has_rate_q = rate < torch.inf, rate_q < torch.inf
    faster = ~heavy_q & (
        has_rate_q | (order_q > 0) | (order_rate_q > 0)
    )  # q falls, for certain, as no power does
    of_powers = (power_q > 0) & (alpha * power <= (alpha - 1) * torch.where(heavy_q, power_q, 0))
    of_rates = alpha * rate < (alpha - 1) * torch.where(has_rate_q, rate_q, 0)
    of_rates = torch.where(has_rate_q, of_rates, (order_q > 1) | (order_rate_q > 0))
    of_orders = (order_p > 0) & ~(order_rate_p > 0) & ((order_q > order_p) | (order_rate_q > 0))
    light = ~heavy_q & torch.where(has_rate, of_rates, of_orders)
    at_both = torch.where(heavy, torch.where(heavy_q, of_powers, faster), light)
    end = p[0]
    together = _same_end(end, q[0])
    together = torch.zeros((), dtype=torch.bool, device="cpu") if together is None else together
    diverges = at_both & together
    if end is not None:  # inside Q's support q is some positive number at that end
        diverges = diverges | (end.isfinite() & ~together & heavy & (alpha * power <= alpha - 1))
    return diverges
