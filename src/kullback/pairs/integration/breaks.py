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
from kullback.pairs.integration.panels import OUTERMOST, Line
from kullback.pairs.numerics.parameters import is_tracked

# The step from a break at which the logarithm of a density is evaluated, in distances to the next edge.
_STEP = 1e-4
# Edges closer to a break than this, relative to its place, are the break itself after rounding.
_SAME_PLACE = 1e-10
# The smallest relative change of a logarithm that counts as a jump, not as a corner.
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
            distances = (edges - fixed).abs()
            apart = distances > _SAME_PLACE * (1 + fixed.abs())
            step = _STEP * torch.where(apart, distances, torch.inf).amin(-1, keepdim=True)
            level, slope = zip(
                *(_one_sided(log_densities, side, fixed, sign * step) for sign in (-1, 1)), strict=True
            )
            change = level[1] - level[0]
            jumps = ~(change.abs() <= _JUMP * (1 + level[0].abs())) & inside
            bend = torch.where(inside & ~jumps, slope[1] - slope[0], 0)
            breaks.append(Break(side, torch.where(inside, place, 0), jumps, bend))
    return breaks


def _one_sided(log_densities: LogDensities, side: int, place: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithm of a density and its slope at a place, extrapolated from three steps to one side."""
    at = place + step * torch.tensor([1.0, 2.0, 3.0], dtype=step.dtype, device=step.device)
    first, second, third = log_densities(at)[side].split(1, -1)
    return 3 * first - 3 * second + third, (-5 * first + 8 * second - 3 * third) / (2 * step)


def moving(edges: Tensor, breaks: list[Break]) -> Tensor:
    """Return the edges of panels; an edge at a jump has the derivatives of the jump's place."""
    moved = torch.zeros_like(edges, dtype=torch.bool)
    result = edges
    for each in breaks:
        if not bool(each.jumps.any()):
            continue
        at_jump = each.jumps & (edges == each.place.detach()) & ~moved
        result = result + torch.where(at_jump, each.place - each.place.detach(), 0)
        moved = moved | at_jump
    return result


def corner_terms(breaks: list[Break], derivatives: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    """Return a sum that is 0 and has first derivatives of 0; its second derivatives come from the corners.

    Arguments:
        breaks: the breaks of both densities.
        derivatives: returns the derivatives of the integrand at given places, by log p and by log q.
    """
    total = torch.zeros((), dtype=torch.float64, device="cpu")
    for each in breaks:
        place = each.place.detach()
        change = (derivatives(place)[each.side] * each.bend).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        total = total + (change * (each.place - place) ** 2 / 2).squeeze(-1)
    return total
