"""Pieces of the line for two densities: each lies entirely inside or entirely outside each support.

The line is cut where a support begins or ends. On each piece the variable of integration runs over all reals.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from kullback.pairs.densities.density import Coordinate, Density, Points
from kullback.pairs.integration.breaks import Break, find_breaks
from kullback.pairs.integration.line import Line, breakpoints_on, without_ladders

# Where |log dx/dv| is larger, log p and log dx/dv nearly cancel, and their rounding, 0.02, destroys the sum.
_FARTHEST = 1e14
# The scale of the line may exceed the width of a density by at most this factor. benchmarks/panel_constants.py and
# test_narrow_partners.py: no answer is wrong from 1e2 to 1e6.
_NARROW = 1e4
# Marks closer than this fraction of the narrowest density are one place.
# benchmarks/panel_constants.py: no answer is wrong from 1e-4 to 1.
_ONE_PLACE = 1e-2

Both = tuple[Density, Density]
"""P and Q."""
Ends = tuple[Tensor | None, Tensor | None]
"""Where a piece begins and ends, None at infinity."""
Needed = tuple[Tensor, Tensor] | None
"""Where each density has to be evaluated; everywhere if None."""


@dataclass(frozen=True)
class Piece:
    """A part of the line that each support contains or excludes as a whole, and its variable of integration."""

    share: int
    """The place of P and Q in the list of pairs that add up to the densities."""
    number: int
    """The place of the piece among those of the line, from left to right."""
    exists: Tensor
    """The elements of the batch that have this piece."""
    center: Tensor
    width: Tensor
    fixed: Both
    """P and Q without derivatives."""
    fixed_ends: Ends

    def line(self, densities: Both | None = None) -> Line:
        """Return the line of this piece, between ends that have the derivatives of the densities' parameters."""
        ends = self.fixed_ends
        if densities is not None:
            ends = _pieces(densities, self.center.shape)[self.number]
        low, high = (
            end if end is None else torch.where(self.exists, end, other)
            for end, other in zip(ends, (0.0, 1.0), strict=True)
        )
        return Line(Coordinate(low, high), self.center, self.width)

    def breaks(self, densities: Both, lower: Tensor, upper: Tensor) -> list[Break]:
        """Return the breaks of the densities on this piece."""
        return find_breaks(densities, self.line(densities), lambda v: self.logs(v)[:2], lower, upper)

    def logs(
        self, v: Tensor, densities: Both | None = None, needed: Needed = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logarithms of p dx/dv and q dx/dv, -inf where they are 0 or not needed, and log dx/dv.

        Without densities, these are P and Q without derivatives.
        """
        line = self.line(densities)
        at, log_jacobian = line.points(v)
        is_accurate = log_jacobian.abs() < _FARTHEST
        logs = [
            _density_on(density, line, at, self.exists if needed is None else self.exists & needed[side])
            for side, density in enumerate(self.fixed if densities is None else densities)
        ]
        log_p, log_q = (torch.where(is_accurate, log + log_jacobian, -torch.inf) for log in logs)
        return log_p, log_q, log_jacobian

    def log_ratio(self, v: Tensor, densities: Both | None = None) -> Tensor:
        """Return log p - log q."""
        log_p, log_q, _ = self.logs(v, densities)
        return log_p - log_q


def pieces_of(share: int, both: Both, shape: torch.Size) -> list[tuple[Piece, list[Tensor]]]:
    """Return the pieces of the line, from left to right, and their breakpoints in the variable of integration."""
    placed: list[tuple[Piece, list[Tensor]]] = []
    densities = [(density, density.coordinate()) for density in both]
    for number, (low, high) in enumerate(_pieces(both, shape)):
        exists = torch.ones(shape, dtype=torch.bool, device="cpu") if low is None else low.isfinite()
        exists = exists if high is None or low is None else exists & (low < high)
        if bool(exists.any()):
            coordinate = Coordinate(low, high)
            breakpoints = breakpoints_on(coordinate, densities, shape)
            center, width = _center_and_width(both, coordinate, breakpoints)
            piece = Piece(share, number, exists, center, width, both, (low, high))
            placed.append((piece, Line(coordinate, center, width).within_range(breakpoints)))
    return placed


def _pieces(both: Both, shape: torch.Size) -> list[Ends]:
    """Return the ends of the pieces, from left to right."""
    supports = [_ends(density) for density in both]
    ends = [end.expand(shape) for support in supports for end in support if end is not None]
    cuts = list(torch.stack(ends).sort(0).values) if ends else []
    open_left, open_right = (any(support[side] is None for support in supports) for side in (0, 1))
    return list(itertools.pairwise([*([None] if open_left else []), *cuts, *([None] if open_right else [])]))


def _ends(density: Density) -> Ends:
    """Return the ends of a support; the upper end may be infinite for some elements of a batch. None means no end."""
    high = density.high()
    return density.low(), None if high is None or bool(high.isinf().all()) else high


def _center_and_width(both: Both, coordinate: Coordinate, breakpoints: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the center and the scale of a piece: the middle of its breakpoints and their distance from it."""
    coarse = [torch.where(x.abs() < 1e300, x, torch.nan) for x in without_ladders(breakpoints)]
    marks = torch.cat(coarse, -1)
    center = marks.nanmedian(-1, keepdim=True).values.nan_to_num(nan=0.0)
    reach = (marks - center).abs().nanmedian(-1, keepdim=True).values.nan_to_num(nan=1.0)
    width = torch.where(reach > 0, reach / 2, 1.0)
    # Several marks may be one place after rounding. Their distances are then no scale of the densities.
    spans = [(x[..., -1:] - x[..., :1]).nan_to_num(nan=torch.inf) for x in coarse if x.shape[-1] > 1]
    narrowest = torch.stack(spans).amin(0) if spans else torch.full_like(reach, torch.inf)
    width = torch.where((reach < _ONE_PLACE * narrowest) & narrowest.isfinite(), narrowest / 4, width)
    if coordinate.low is not None or coordinate.high is not None:
        return center, width
    # Otherwise rounding would move the nodes next to a density that is far narrower.
    (center_p, width_p), (center_q, width_q) = (
        [x.expand_as(center) for x in density.center_and_width()] for density in both
    )
    by_p = width_p <= width_q
    narrowest, scale = torch.where(by_p, center_p, center_q), torch.where(by_p, width_p, width_q)
    is_narrow = torch.maximum((center - narrowest).abs(), width) > _NARROW * scale
    return torch.where(is_narrow, narrowest, center), torch.where(is_narrow, scale, width)


def _density_on(density: Density, line: Line, at: Points, needed: Tensor) -> Tensor:
    """Return the logarithm of a density at the needed points of a piece; -inf without a gradient at the others."""
    (begins, ends), (low, high) = _ends(density), (line.coordinate.low, line.coordinate.high)
    lives = needed
    if begins is not None:
        lives = lives & (low >= begins) if low is not None else torch.zeros_like(needed)
    if ends is not None:
        lives = lives & ((high <= ends) if high is not None else ends.isinf())
    if not bool(lives.any()):
        return torch.full_like(at.x, -torch.inf)
    if not bool(lives.all()):
        at = _elsewhere_at_center(density, at, lives)
    log_density = density.log_density(at)
    return torch.where(lives & ~log_density.detach().isnan(), log_density, -torch.inf)


def _elsewhere_at_center(density: Density, at: Points, lives: Tensor) -> Points:
    """Replace the points outside `lives` by the center of a density, where it has a logarithm and derivatives."""
    center = density.coordinate().points(density.center_and_width()[0].detach())

    def replaced(x: Tensor | None, own: Tensor | None, otherwise: Tensor | float) -> Tensor | None:
        return None if x is None else torch.where(lives, x, otherwise if own is None else own.detach())

    x = center.x.detach()
    return Points(
        torch.where(lives, at.x, x),
        replaced(at.low, center.low, x - 1),
        replaced(at.log_above_low, center.log_above_low, 0.0),
        replaced(at.high, center.high, x + 1),
        replaced(at.log_below_high, center.log_below_high, 0.0),
    )
