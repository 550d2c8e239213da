"""Derivatives for supports of P and Q that share an end, if a parameter moves the end of one of them.

The divergence has different formulas for an end inside and outside the other support, so its derivatives are one-sided.
They belong to the side where Q's support is larger, and are computed from a Q that begins or ends slightly further out.
For a kind that is finite only on the other side, such as reverse KL, Q's support is smaller instead. Infinite
derivatives, and derivatives at P = Q, are 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kullback.common.dtypes import tensor_of
from kullback.generators import Divergence
from kullback.generators.growth import growth_of
from kullback.pairs.densities.density import Density, Tail
from kullback.pairs.densities.transformed import AffineDensity
from kullback.pairs.numerics.parameters import is_differentiated

__all__ = ["widened"]

# How far an end moves, in units of P's width and in spacings of floats at the end.
_STEP, _SPACINGS = 1e-14, 4
# The largest step, in units of P's width.
_LARGEST_STEP = 1e-10
# Derivatives near P = Q are about the root of the value: a step of this part of it is a relative error of as much.
_RELATIVE_ERROR = 1e-8


def widened(p: Density, q: Density, kind: Divergence) -> tuple[Density, Tensor] | None:
    """Return Q with a slightly larger support, and the value above which its derivatives are used; None if nowhere.

    The derivatives of a smaller value, of nearly equal P and Q, would be wrong by the step.
    """
    fixed_p, fixed_q = p.detached(), q.detached()
    moves = torch.zeros(1, dtype=torch.bool, device="cpu")
    for a, b, place, at_p, at_q in (
        (p.low(), q.low(), fixed_p.low(), fixed_p.lower_tail(), fixed_q.lower_tail()),
        (p.high(), q.high(), fixed_p.high(), fixed_p.upper_tail(), fixed_q.upper_tail()),
    ):
        if (
            a is not None
            and b is not None
            and place is not None
            and (is_differentiated(a) or is_differentiated(b))
        ):
            same = (place == b.detach()) & place.isfinite()
            moves = moves | (same & _has_slope(_power(at_p), _power(at_q), kind))
    if not bool(moves.any()):
        return None
    size = _size(fixed_p)
    low, high = fixed_q.ends()
    spacing = torch.finfo(torch.float64).eps * torch.maximum(
        low.abs().nan_to_num(posinf=0), high.abs().nan_to_num(posinf=0)
    )
    step = torch.maximum(_STEP * size, _SPACINGS * spacing)
    # Where the spacing of floats at the end is not far below P's width, no end can move by a small step.
    moves = moves & (step < _LARGEST_STEP * size)
    if not bool(moves.any()):
        return None
    growth = growth_of(kind)
    outwards = -1.0 if growth.near.limit == torch.inf and growth.far.limit < torch.inf else 1.0
    least = torch.where(moves, (step / size / _RELATIVE_ERROR).square(), torch.inf)
    return _further_out(low, high, q, outwards * torch.where(moves, step, 0)), least


def _power(tail: Tail) -> Tensor:
    """Return a for a mass of d^a within the distance d; infinite if it is less than any power, NaN if unknown."""
    level, power, coefficient = (tensor_of(x, torch.float64) for x in tail)
    power_at_level_1 = torch.where((level == 1) & (power == 1), coefficient, torch.inf)
    return torch.where(
        (level > 1) | ((level == 1) & (power < 1)),
        0.0,
        torch.where(level.isnan(), torch.nan, power_at_level_1),
    )


def _has_slope(at_p: Tensor, at_q: Tensor, kind: Divergence) -> Tensor:
    """Return whether the derivative by an end is finite, from the powers a and b of both tails there.

    At the distance d, p is about d^(a - 1) and q about d^(b - 1). If b is 1, log q has a finite derivative by d.
    """
    growth = growth_of(kind)
    orders = [1 + growth.far.rate] if growth.far.limit == torch.inf else []
    orders += [-growth.near.rate] if growth.near.limit == torch.inf else []
    finite = torch.ones_like(at_q, dtype=torch.bool)
    for order in orders or [0.0]:
        of_p = 0 * torch.ones_like(at_p) if order == 0 else order * at_p
        of_q = 0 * torch.ones_like(at_q) if order == 1 else (1 - order) * at_q
        finite = finite & (of_p + of_q > 1)
    return finite | (at_q == 1)


def _size(p: Density) -> Tensor:
    """Return the width of a support, or about the distance of the mass from its only end."""
    low, high = p.ends()
    center = p.center_and_width()[0]
    one_sided = torch.where(low.isinf(), torch.exp(-center), torch.exp(center))
    return torch.where(low.isinf() | high.isinf(), one_sided, high - low).nan_to_num(posinf=0)


def _further_out(low: Tensor, high: Tensor, q: Density, step: Tensor) -> Density:
    bounded = low.isfinite() & high.isfinite()
    scale = torch.where(bounded, 1 + 2 * step / torch.where(bounded, high - low, 1), 1)
    loc = torch.where(low.isinf(), step, low - step - scale * low)
    return AffineDensity(q, loc, scale, falls=False)
