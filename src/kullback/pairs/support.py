"""Where P's mass lies outside Q's support, or falls too slowly for Q: the divergence is +inf there, for every pair."""

from __future__ import annotations

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

from kullback.errors import ArgumentValueError, explain
from kullback.pairs.densities.base import Growth, Law, Tail

__all__ = ["check_comparable", "is_infinite", "is_plain", "is_power_infinite", "unreached"]


# Pairs of types that were found to be comparable, as their parameters change nothing of that.
_OF_ONE_KIND: set[tuple[type, type]] = set()
# The logarithm of the greatest number that has a square.
_FARTHEST = 350.0
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
            raise _refusal(
                call,
                wanted=f"as many classes in q as in p, {classes[0]}",
                got=f"{classes[1]}",
                instead="probs of 0, or logits of -inf, for the classes that one side lacks",
            )
    if p.event_shape != q.event_shape:
        raise _refusal(
            call,
            wanted=f"events of one shape; {_event(p)}",
            got=_event(q),
            instead="Independent(d, 1) to count the last batch dimension to the event, or as many classes in both",
        )
    if p.batch_shape == q.batch_shape and (type(p), type(q)) in _OF_ONE_KIND:
        return
    discrete = [_is_discrete(d) for d in (p, q)]
    if None not in discrete and discrete[0] != discrete[1]:
        names = ["a discrete distribution" if d else "a continuous one" for d in discrete]
        raise _refusal(
            call,
            wanted="two discrete distributions, or two continuous ones, which alone have densities to compare",
            got=f"{names[0]}, {type(p).__name__}, and {names[1]}, {type(q).__name__}",
            instead="a discretized or relaxed version of one of them",
        )
    spaces = [_space(d) for d in (p, q)]
    if spaces[0] != spaces[1]:
        raise _refusal(
            call,
            wanted="densities over one space",
            got=f"{spaces[0]} in {type(p).__name__} and {spaces[1]} in {type(q).__name__}",
            instead="a transform of one of them onto the space of the other",
        )
    if is_plain(type(p)) and is_plain(type(q)):
        _OF_ONE_KIND.add((type(p), type(q)))
    try:
        torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    except RuntimeError:
        raise _refusal(
            call,
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


def _refusal(call: str, *, wanted: str, got: str, instead: str) -> ArgumentValueError:
    return ArgumentValueError(explain(call, "p, q", wanted=wanted, got=got, instead=instead))


def is_infinite(p: Law, q: Law) -> Tensor | None:
    """Tell for which elements of the batch KL is +inf for certain; None where it never is."""
    tests = [
        _reaches_out(p.low(), q.low(), below=True),
        _reaches_out(p.high(), q.high(), below=False),
        _meets(p.low(), q.low(), p.lower_tail(), q.lower_growth()),
        _meets(p.high(), q.high(), p.upper_tail(), q.upper_growth()),
    ]
    found = [test for test in tests if test is not None]
    if not found:
        return None
    result = found[0]
    for test in found[1:]:
        result = result | test
    return result


def unreached(p: Law, q: Law) -> Tensor | None:
    """Return about what part of E_P[-log q] lies so far out that float64 has no numbers for it; None for nothing."""
    parts = [
        _far_part(p.low(), q.low(), p.lower_tail(), q.lower_growth()),
        _far_part(p.high(), q.high(), p.upper_tail(), q.upper_growth()),
    ]
    found = [part for part in parts if part is not None]
    return None if not found else found[0] if len(found) == 1 else found[0] + found[1]


def _far_part(end_p: Tensor | None, end_q: Tensor | None, tail: Tail, growth: Growth) -> Tensor | None:
    is_heavy = isinstance(tail.power, Tensor) or tail.power < torch.inf
    grows = isinstance(growth.power, Tensor) or growth.power > 0
    if not (is_heavy and grows):
        return None
    excess = torch.as_tensor(tail.power - growth.power, dtype=torch.float64)
    part = torch.exp(-_FARTHEST * excess.clamp(min=0))
    both = _meet_where(end_p, end_q)
    return None if both is None else torch.where(both, part, 0)


def _reaches_out(end_p: Tensor | None, end_q: Tensor | None, *, below: bool) -> Tensor | None:
    if end_q is None:
        return None
    if end_p is None:
        return torch.isfinite(end_q)
    return end_p < end_q if below else end_p > end_q


def _meets(end_p: Tensor | None, end_q: Tensor | None, tail: Tail, growth: Growth) -> Tensor | None:
    """Tell where both supports end at the same place and E_P[-log q] diverges there."""
    grows, races = (isinstance(x, Tensor) or x > 0 for x in growth)
    is_heavy, has_rate = (isinstance(x, Tensor) or x < torch.inf for x in tail)
    if not ((is_heavy and (grows or races)) or (has_rate and races)):
        return None
    both = _meet_where(end_p, end_q)
    return None if both is None else _diverges(tail, growth) & both


def _meet_where(end_p: Tensor | None, end_q: Tensor | None) -> Tensor | None:
    """Tell where two ends are the same, None being an infinite one; None where they never are."""
    if end_p is None and end_q is None:
        return torch.ones((), dtype=torch.bool)
    if end_p is None or end_q is None:
        end = end_q if end_p is None else end_p
        return None if end is None else end.isinf()
    return end_p == end_q


def _diverges(tail: Tail, growth: Growth) -> Tensor:
    power, rate, grows, races = (torch.as_tensor(x, dtype=torch.float64) for x in (*tail, *growth))
    heavy = power < torch.inf
    return torch.where(heavy, (grows >= power) | (races > 0), (races > 0) & (races >= rate))


def is_power_infinite(p: Law, q: Law, alpha: float) -> Tensor | None:
    """Tell for which elements of the batch the integral of p^alpha q^(1 - alpha) is +inf for certain; None for none."""
    if 0 <= alpha <= 1:
        return None
    if alpha < 0:
        return is_power_infinite(q, p, 1 - alpha)
    tests = [
        _reaches_out(p.low(), q.low(), below=True),
        _reaches_out(p.high(), q.high(), below=False),
        _power_meets(
            (p.low(), p.lower_tail(), p.lower_growth()), (q.low(), q.lower_tail(), q.lower_growth()), alpha
        ),
        _power_meets(
            (p.high(), p.upper_tail(), p.upper_growth()), (q.high(), q.upper_tail(), q.upper_growth()), alpha
        ),
    ]
    found = [test for test in tests if test is not None]
    return torch.stack(torch.broadcast_tensors(*found)).any(0) if found else None


_End = tuple[Tensor | None, Tail, Growth]


def _power_meets(p: _End, q: _End, alpha: float) -> Tensor:
    """Tell where the integral of p^alpha q^(1 - alpha), of an order above 1, diverges next to an end of P."""
    power, rate, grows_p, races_p, power_q, rate_q, grows, races = (
        torch.as_tensor(x, dtype=torch.float64) for x in (*p[1], *p[2], *q[1], *q[2])
    )
    heavy, heavy_q = power < torch.inf, power_q < torch.inf
    has_rate, has_rate_q = rate < torch.inf, rate_q < torch.inf
    faster = ~heavy_q & (has_rate_q | (grows > 0) | (races > 0))  # q falls, for certain, as no power does
    of_powers = alpha * power <= (alpha - 1) * torch.where(heavy_q, power_q, 0)
    of_rates = alpha * rate < (alpha - 1) * torch.where(has_rate_q, rate_q, 0)
    of_rates = torch.where(has_rate_q, of_rates, (grows > 1) | (races > 0))
    of_growths = (grows_p > 0) & ~(races_p > 0) & ((grows > grows_p) | (races > 0))
    light = ~heavy_q & torch.where(has_rate, of_rates, of_growths)
    at_both = torch.where(heavy, torch.where(heavy_q, of_powers, faster), light)
    end = p[0]
    together = _meet_where(end, q[0])
    together = torch.zeros((), dtype=torch.bool) if together is None else together
    diverges = at_both & together
    if end is not None:  # inside Q's support q is some positive number at that end
        diverges = diverges | (end.isfinite() & ~together & heavy & (alpha * power <= alpha - 1))
    return diverges
