"""Pieces of the real line: no piece is partly inside and partly outside the support of P, or the support of Q.

The real line is cut at the ends of the supports. On each piece, the variable of integration runs over all reals.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from kullback.pairs.densities.density import Coordinate, Density, Points
from kullback.pairs.integration.breaks import Break, find_breaks
from kullback.pairs.integration.line import Line, breakpoints_on, without_ladders

# Points where |log dx/dv| exceeds _FARTHEST are dropped, because log p and log dx/dv nearly cancel at these points, and
# each has a rounding error of 0.02.
_FARTHEST = 1e14
# The width of a `Line` may exceed the width of a density by at most the factor _NARROW. In
# benchmarks/panel_constants.py and test_narrow_partners.py, all answers are correct for values from 1e2 to 1e6.
_NARROW = 1e4
# Breakpoints count as equal if their distance is below _ONE_PLACE times the width of the narrowest density. In
# benchmarks/panel_constants.py, all answers are correct for values from 1e-4 to 1.
_ONE_PLACE = 1e-2

Both = tuple[Density, Density]
"""The densities of P and Q."""
Ends = tuple[Tensor | None, Tensor | None]
"""The lower and the upper end of a piece or of a support, each None if it is infinite."""
Needed = tuple[Tensor, Tensor] | None
"""A mask for P and a mask for Q of the nodes at which the density is evaluated, or None for all nodes."""


@dataclass(frozen=True)
class Piece:
    """A part of the real line that is inside or outside each support, and the variable of integration for this part."""

    share: int
    """The index of `fixed` in the list of pairs of densities that add up to P and Q."""
    number: int
    """The index of the piece on the real line, from left to right."""
    exists: Tensor
    """A mask of the batch elements that have this piece."""
    center: Tensor
    width: Tensor
    fixed: Both
    """The densities of P and Q, without derivatives."""
    fixed_ends: Ends

    def line(self, densities: Both | None = None) -> Line:
        """Return the `Line` of this piece.

        If `densities` are given, the ends of the line are differentiable with respect to the parameters of the
        densities.
        """
        ends = self.fixed_ends
        if densities is not None:
            ends = _pieces(densities, self.center.shape)[self.number]
        low, high = (
            end if end is None else torch.where(self.exists, end, other)
            for end, other in zip(ends, (0.0, 1.0), strict=True)
        )
        return Line(Coordinate(low, high), self.center, self.width)

    def breaks(self, densities: Both, lower: Tensor, upper: Tensor) -> list[Break]:
        """Return the breaks of the densities on this piece, between the edges of its panels."""
        return find_breaks(densities, self.line(densities), lambda v: self.logs(v)[:2], lower, upper)

    def logs(
        self, v: Tensor, densities: Both | None = None, needed: Needed = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log(p dx/dv), log(q dx/dv) and log dx/dv at v.

        A log-density is -inf where `needed` is false. By default, the densities are P and Q without derivatives.
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
        """Return log p - log q at v."""
        log_p, log_q, _ = self.logs(v, densities)
        return log_p - log_q


def pieces_of(share: int, both: Both, shape: torch.Size) -> list[tuple[Piece, list[Tensor]]]:
    """Return the pieces of the real line from left to right, each with its breakpoints as values of v."""
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
    """Return the lower and upper ends of the pieces, from left to right."""
    supports = [_ends(density) for density in both]
    ends = [end.expand(shape) for support in supports for end in support if end is not None]
    cuts = list(torch.stack(ends).sort(0).values) if ends else []
    open_left, open_right = (any(support[side] is None for support in supports) for side in (0, 1))
    return list(itertools.pairwise([*([None] if open_left else []), *cuts, *([None] if open_right else [])]))


def _ends(density: Density) -> Ends:
    """Return the ends of a support. The upper end is None if it is infinite in all batch elements."""
    high = density.high
    return density.low, None if high is None or bool(high.isinf().all()) else high


def _center_and_width(both: Both, coordinate: Coordinate, breakpoints: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the center and the width of a piece, from its breakpoints as values of the coordinate.

    The center is the median of the breakpoints, and the width is half their median distance from the center. On an
    infinite piece, a density that is far narrower than this width determines both the center and the width.
    """
    coarse = [torch.where(x.abs() < 1e300, x, torch.nan) for x in without_ladders(breakpoints)]
    marks = torch.cat(coarse, -1)
    center = marks.nanmedian(-1, keepdim=True).values.nan_to_num(nan=0.0)
    reach = (marks - center).abs().nanmedian(-1, keepdim=True).values.nan_to_num(nan=1.0)
    width = torch.where(reach > 0, reach / 2, 1.0)
    # Several breakpoints may be equal after rounding. The median distance then does not measure the widths of the
    # densities, so the width of the narrowest density is used.
    spans = [(x[..., -1:] - x[..., :1]).nan_to_num(nan=torch.inf) for x in coarse if x.shape[-1] > 1]
    narrowest = torch.stack(spans).amin(0) if spans else torch.full_like(reach, torch.inf)
    width = torch.where((reach < _ONE_PLACE * narrowest) & narrowest.isfinite(), narrowest / 4, width)
    if coordinate.low is not None or coordinate.high is not None:
        return center, width
    # Near a density that is far narrower than `width`, rounding would shift the nodes, so this density sets the width.
    (center_p, width_p), (center_q, width_q) = (
        [x.expand_as(center) for x in density.center_and_width()] for density in both
    )
    by_p = width_p <= width_q
    narrowest, scale = torch.where(by_p, center_p, center_q), torch.where(by_p, width_p, width_q)
    is_narrow = torch.maximum((center - narrowest).abs(), width) > _NARROW * scale
    return torch.where(is_narrow, narrowest, center), torch.where(is_narrow, scale, width)


def _density_on(density: Density, line: Line, at: Points, needed: Tensor) -> Tensor:
    """Return a log-density at the needed points of a piece; -inf without a gradient at all other points."""
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
    """Return the points, replaced by the density's center where `lives` is false, so that the log-density is finite."""
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
