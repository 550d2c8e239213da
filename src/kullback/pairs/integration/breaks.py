"""Corners and jumps of an integrand that move with the parameters, and their contributions to derivatives.

The nodes of an integral are constants, and its derivatives are the derivatives of a sum over them. Where the integrand
jumps, the edges of the panels move with the jump. A corner does not affect the first derivatives. Its contribution to
the second derivatives is the change of the integrand's slope times the derivatives of the corner's place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.pairs.densities.density import Coordinate, Density
from kullback.pairs.integration.line import OUTERMOST, Line
from kullback.pairs.numerics.parameters import is_tracked

# The steps from a place at which a one-sided slope is measured, relative to the span of the panels. The same logarithm
# may have another break at any distance, so the steps go down to 8^-15, which is nearly rounding.
_STEPS = 8.0 ** -torch.arange(0, 16, dtype=torch.float64, device="cpu")
# The weights of the values after one to five equal steps, for the value and the slope at the place itself. They are
# exact for polynomials of degree 4.
_FOR_LEVEL = torch.tensor([5.0, -10.0, 10.0, -5.0, 1.0], dtype=torch.float64, device="cpu")
_FOR_SLOPE = torch.tensor([-77.0, 214.0, -234.0, 122.0, -25.0], dtype=torch.float64, device="cpu") / 12
# The absolute weights of the slope add up to 56, and each value has a rounding error of about eps.
_ROUNDING = 60 * torch.finfo(torch.float64).eps
# The smallest relative change of a logarithm that counts as a jump, not as a corner.
# benchmarks/panel_constants.py: no answer is wrong from 1e-10 to 1e-3.
_JUMP = 1e-6

# Returns log p and log q, per unit of the variable of integration.
LogDensities = Callable[[Tensor], tuple[Tensor, Tensor]]


class Break(NamedTuple):
    """A place, of shape (..., 1), at which the logarithm of a density has a corner or a jump."""

    side: int
    """0 for the density of P, 1 for the density of Q."""
    place: Tensor
    """The place in the variable of integration, with its derivatives."""
    jumps: Tensor
    """The elements of the batch that have a jump here; the others have a corner or no break."""
    bend: Tensor
    """The change of the slope of the logarithm; 0 at jumps and where there is no break."""


def find_breaks(
    densities: tuple[Density, Density], line: Line, log_densities: LogDensities, lower: Tensor, upper: Tensor
) -> list[Break]:
    """Return the breaks of two densities between the edges of panels.

    Arguments:
        densities: P and Q, with the derivatives of their parameters.
        line: the line of the panels, with derivatives too.
        log_densities: returns the log-densities of P and Q, without derivatives.
        lower: where the panels begin.
        upper: where they end.
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
            # Outside, the place is a constant: derivatives may be infinite there.
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
    """Return a function and its slope at places, extrapolated from five steps to one side.

    A step that is too large passes a break, and a step that is too small measures rounding. The chosen step, between
    `reach` and rounding, is the one whose slope agrees best with the slope of the next smaller step.

    Arguments:
        function: the function, of points along the last dimension.
        place: the places, of shape (..., places).
        reach: the largest step, with the sign of the side.
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
    """Return the edges of panels; an edge at a jump has the derivatives of the jump's place."""
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
    """Return 0 with first derivatives of 0, and with the second derivatives that the corners contribute.

    Arguments:
        breaks: the breaks of both densities.
        derivatives: returns the derivatives of the integrand by log p and by log q, at places.
    """
    total = torch.zeros((), dtype=torch.float64, device="cpu")
    for break_ in breaks:
        place = break_.place.detach()
        change = (derivatives(place)[break_.side] * break_.bend).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        total = total + (change * (break_.place - place) ** 2 / 2).squeeze(-1)
    return total
