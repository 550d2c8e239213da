"""Corners and jumps of an integrand whose positions depend on the parameters, and their contributions to derivatives.

The derivatives of an integral are the derivatives of the sum over the nodes. In a panel next to a jump, the position of
the jump determines the edge, the nodes and the weights of the panel, so they have derivatives. All other nodes are
constants. A corner does not contribute to the first derivatives. The corner's contribution to the second derivative is
the change of the integrand's slope at the corner times the square of the derivative of the corner's position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.pairs.densities.density import Coordinate, Density
from kullback.pairs.integration.line import OUTERMOST, Line
from kullback.pairs.numerics.parameters import is_tracked

# _STEPS are the step sizes of the finite differences for one-sided slopes, relative to the span of the panels. The
# log-density may have another break at any distance, so the smallest step is 8^-15, which is close to rounding.
_STEPS = 8.0 ** -torch.arange(0, 16, dtype=torch.float64, device="cpu")
# _FOR_LEVEL and _FOR_SLOPE are weights of a function's values at x + h, ..., x + 5 h. The weighted sums extrapolate the
# value at x, and h times the slope at x. The extrapolation is exact for polynomials of degree 4.
_FOR_LEVEL = torch.tensor([5.0, -10.0, 10.0, -5.0, 1.0], dtype=torch.float64, device="cpu")
_FOR_SLOPE = torch.tensor([-77.0, 214.0, -234.0, 122.0, -25.0], dtype=torch.float64, device="cpu") / 12
# The absolute values of _FOR_SLOPE add up to 56, and each value has a relative rounding error near eps, so _ROUNDING
# bounds the sum of the errors.
_ROUNDING = 60 * torch.finfo(torch.float64).eps
# A break is a jump if the relative change of the log-density exceeds _JUMP; otherwise the break is a corner. In
# benchmarks/panel_constants.py, all answers are correct for values from 1e-10 to 1e-3.
_JUMP = 1e-6

# `LogDensities` is a function of v, the variable of integration, that returns log(p dx/dv) and log(q dx/dv).
LogDensities = Callable[[Tensor], tuple[Tensor, Tensor]]


class Break(NamedTuple):
    """A point at which the log-density of P or Q has a corner or a jump; all tensors have shape (..., 1)."""

    side: int
    """The value 0 for a break of P's log-density, or 1 for a break of Q's log-density."""
    place: Tensor
    """The position of the break as a value of v, with derivatives with respect to the parameters."""
    jumps: Tensor
    """A mask of the batch elements that have a jump at `place`; other elements have a corner or no break."""
    bend: Tensor
    """The change of the slope of the log-density; 0 for batch elements with a jump or no break."""


def find_breaks(
    densities: tuple[Density, Density], line: Line, log_densities: LogDensities, lower: Tensor, upper: Tensor
) -> list[Break]:
    """Return the breaks of two densities that are inside the panels and depend on a parameter.

    The densities and the ends of the line are differentiable with respect to their parameters; `log_densities` has no
    derivatives. `lower` and `upper` are the edges of the panels, shape (..., panels).
    """
    breaks: list[Break] = []
    edges = torch.cat([lower, upper], -1).detach()
    for side, density in enumerate(densities):
        for point in density.nonsmooth_points():
            fixed = line.v(line.coordinate.of(point)).detach().expand(*edges.shape[:-1], 1)
            inside = (fixed > edges.amin(-1, keepdim=True)) & (fixed < edges.amax(-1, keepdim=True))
            inside = inside & (fixed.abs() < OUTERMOST)
            if not bool(inside.any()):
                continue
            # A break outside the panels gets a constant position, because the position may have infinite derivatives.
            low, high = line.coordinate.low, line.coordinate.high
            low = low if low is None else torch.where(inside, low, 0.0)
            high = high if high is None else torch.where(inside, high, 1.0)
            place = line.v(Coordinate(low, high).of(torch.where(inside, point, 0.5)))
            if not is_tracked(place):
                continue
            fixed = torch.where(inside, fixed, 0)
            reach = (edges - fixed).abs().amax(-1, keepdim=True)

            def log_density(v: Tensor, side: int = side) -> Tensor:
                return log_densities(v)[side]

            level, slope = zip(
                *(one_sided(log_density, fixed, sign * reach) for sign in (-1, 1)), strict=True
            )
            change = level[1] - level[0]
            jumps = ~(change.abs() <= _JUMP * (1 + level[0].abs())) & inside
            bend = torch.where(inside & ~jumps, slope[1] - slope[0], 0)
            breaks.append(Break(side, torch.where(inside, place, 0), jumps, bend))
    return breaks


def one_sided(function: Callable[[Tensor], Tensor], place: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """Return the one-sided limits of a function and of its slope at points, extrapolated from five values.

    A step that is too large crosses another break, and a step that is too small measures rounding. The slope is taken
    from the step size whose slope agrees best with the slope of the next larger step size.

    `place` has shape (..., points), and `reach` is the largest step; it is negative for limits from the left.
    """
    step = reach.unsqueeze(-1) * _STEPS.to(place.device)
    at = place[..., None, None] + step.unsqueeze(-1) * torch.arange(1, 6, device=place.device)
    values = function(at.flatten(-3)).unflatten(-1, at.shape[-3:])
    level, slope = values @ _FOR_LEVEL.to(place.device), values @ _FOR_SLOPE.to(place.device) / step
    rounding = _ROUNDING * (1 + level.abs() + (place.unsqueeze(-1) * slope).abs()) / step.abs()
    change = slope.diff(dim=-1).abs() + rounding[..., 1:]
    best = change.nan_to_num(nan=torch.inf).argmin(-1, keepdim=True) + 1
    return level.gather(-1, best).squeeze(-1), slope.gather(-1, best).squeeze(-1)


def moving(edges: Tensor, breaks: list[Break]) -> Tensor:
    """Return the edges of panels; an edge at a jump gets the derivatives of the jump's position."""
    moved = torch.zeros_like(edges, dtype=torch.bool)
    result = edges
    for break_ in breaks:
        if not bool(break_.jumps.any()):
            continue
        place = break_.place.detach()
        at_jump = break_.jumps & (edges == place) & ~moved
        result = result + torch.where(at_jump, break_.place - place, 0)
        moved = moved | at_jump
    return result


def corner_terms(breaks: list[Break], derivatives: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    """Return a 0 whose second derivatives are the contributions of corners to the second derivatives of an integral.

    The first derivatives are 0. `derivatives` returns the derivatives of the integrand with respect to log p and log q.
    """
    total = torch.zeros((), dtype=torch.float64, device="cpu")
    for break_ in breaks:
        place = break_.place.detach()
        change = (derivatives(place)[break_.side] * break_.bend).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        total = total + (change * (break_.place - place) ** 2 / 2).squeeze(-1)
    return total
