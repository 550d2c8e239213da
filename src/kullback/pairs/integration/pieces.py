"""Pieces of the real line: no piece is partly inside and partly outside the support of P, or the support of Q.

The real line is cut at the ends of the supports. On each piece, the variable of integration runs over all reals.

A scan evaluates the densities on a sorted grid of points v, to find the span of the panels. In the tails, one density
may round to 0 before the terms of the divergence are negligible. The panels end at the last point where float64 can
represent the terms, and the integral beyond this point is estimated.

A crossing is a point where log p - log q crosses a level at which the terms have a corner. The panels are cut at
crossings. If the position of a crossing depends on a parameter, the corner contributes to the second derivatives.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.generators.growth import Corner, Growth
from kullback.pairs.densities.density import Coordinate, Density, Points
from kullback.pairs.integration.divergence_terms import DivergenceTerms
from kullback.pairs.integration.line import (
    NEGLIGIBLE,
    UNDERFLOW,
    Break,
    Line,
    breakpoints_on,
    find_breaks,
    first_edges,
    matters,
    one_sided,
    out_to_ends,
    scan_points,
    span,
    without_ladders,
)
from kullback.pairs.integration.panels import Places, panel_nodes
from kullback.pairs.support import is_divergence_finite

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
        """Return the `Line` of this piece, with ends that are differentiable if `densities` are given."""
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


SAME = 1e-11
"""If |log p - log q| is below SAME, the sign of log p - log q is rounding error: a change of sign is no crossing.

In benchmarks/panel_constants.py, 1e-13 needs 13 % more evaluation points than 1e-11, and all answers are correct for
values up to 1e-9.
"""
# A scan (see `line.scan_points`) cuts a piece at no more than _CROSSINGS crossings. In benchmarks/panel_constants.py,
# the value 2 needs 12 % more evaluation points than 8.
_CROSSINGS = 8
# `last_where` divides the width of an interval by 2^_BITS, a little more than the precision of float64. Each step cuts
# fewer than _FEW_INTERVALS intervals into four parts, and more intervals into two parts. In
# benchmarks/panel_constants.py, one pair takes 8 % more time if `last_where` always cuts into two parts.
_BITS, _FEW_INTERVALS = 56, 1000


def first_crossings(piece: Piece, v: Tensor, log_p: Tensor, log_q: Tensor, level: float) -> Tensor:
    """Return the points v where log p - log q crosses `level` on a piece, shape (..., crossings), padded arbitrarily.

    `log_p` and `log_q` are the log-densities at the sorted points `v` of a scan.
    """
    above = log_p > log_q + level
    changes = (above[..., 1:] != above[..., :-1]).to(torch.uint8)
    index = changes.topk(min(_CROSSINGS, int(changes.sum(-1).max())), dim=-1).indices
    return _bisected(piece, v.gather(-1, index), v.gather(-1, index + 1), ~above.gather(-1, index), level)


def cut_at_crossings(piece: Piece, lower: Tensor, upper: Tensor, level: float) -> Places:
    """Return the panels of a piece; each panel is cut at the first point where log p - log q crosses `level`.

    A crossing is found only if log p - log q is on different sides of `level` at successive nodes.
    """
    v, _ = panel_nodes(lower, upper)
    v = torch.cat([lower.unsqueeze(-1), v.sort(-1).values, upper.unsqueeze(-1)], -1)
    log_p, log_q, _ = (x.unflatten(-1, v.shape[-2:]) for x in piece.logs(v.flatten(-2)))
    above = log_p > log_q + level
    changes = above[..., 1:] != above[..., :-1]
    count = int(changes.any(-1).sum(-1).max())
    if count == 0:
        return lower, upper
    panel = changes.any(-1).to(torch.uint8).topk(count, dim=-1).indices
    place = changes.to(torch.uint8).argmax(-1, keepdim=True)
    before, after, first = (
        x.squeeze(-1).gather(-1, panel)
        for x in (v.gather(-1, place), v.gather(-1, place + 1), above.gather(-1, place))
    )
    ends = upper.gather(-1, panel)
    cut = torch.where(changes.any(-1).gather(-1, panel), _bisected(piece, before, after, ~first, level), ends)
    return torch.cat([lower, cut], -1), torch.cat([upper.scatter(-1, panel, cut), ends], -1)


def crossing_terms(piece: Piece, densities: Both, lower: Tensor, upper: Tensor, corner: Corner) -> Tensor:
    """Return a 0 whose second derivatives are the contributions of crossings to the second derivatives of an integral.

    The terms q f(p / q) have a corner where log p - log q crosses `corner.at`. Let s be the slope of log p - log q at a
    crossing. The contribution is p / |s| times the change of f' at the corner, times the square of the derivative of
    log p - log q by a parameter. See also `corner_terms`.
    """
    v = panel_nodes(lower, upper)[0].flatten(-2).sort(-1).values
    d = piece.log_ratio(v) - corner.at
    # Where |d| is at most SAME, the sign of d is rounding error.
    is_reliable = (d.abs() > SAME) & d.isfinite()
    last = torch.where(is_reliable, torch.arange(d.shape[-1], device=d.device), 0).cummax(-1).values
    last = torch.cat([torch.zeros_like(last[..., :1]), last[..., :-1]], -1)
    crosses = is_reliable & is_reliable.gather(-1, last) & ((d > 0) != (d.gather(-1, last) > 0))
    count = int(crosses.sum(-1).max())
    if count == 0:
        return torch.zeros((), dtype=torch.float64, device="cpu")
    index = crosses.to(torch.uint8).topk(count, dim=-1).indices
    low, high = v.gather(-1, last.gather(-1, index)), v.gather(-1, index)
    place = _bisected(piece, low, high, d.gather(-1, index) > 0, corner.at)
    before, after = (one_sided(piece.log_ratio, place, side * (high - low))[1] for side in (-1, 1))
    slope = ((before + after) / 2).abs()
    size = corner.change * torch.exp(piece.logs(place)[0]) / torch.where(slope > 0, slope, 1)
    size = torch.where(crosses.gather(-1, index) & (slope > 0) & size.isfinite(), size, 0)
    moves = piece.log_ratio(place, densities)
    moves = torch.where(size > 0, moves - moves.detach(), 0)
    return (size * moves**2 / 2).sum(-1)


def _bisected(piece: Piece, lower: Tensor, upper: Tensor, rises: Tensor, level: float) -> Tensor:
    """Return v between `lower` and `upper` where log p - log q crosses `level`, upwards where `rises` is true."""

    def is_left(v: Tensor) -> Tensor:
        at_points = rises.repeat_interleave(v.shape[-1] // rises.shape[-1], -1)
        return (piece.log_ratio(v) > level) != at_points

    return last_where(is_left, lower, upper)[1]


def last_where(holds: Callable[[Tensor], Tensor], first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each interval, the last point where the condition `holds` is true, and the next float.

    The condition is true at the end `first` of an interval, and false at its end `second`. The function `holds` gets
    the same number of points of each interval, one interval after the other along the last dimension. Each step
    bisects many intervals, or cuts few intervals into four parts. The second way calls `holds` half as often, with more
    points.
    """
    if not first.numel():
        return first, second
    bits = 2 if first.numel() < _FEW_INTERVALS else 1
    steps = torch.arange(1, 2**bits, dtype=first.dtype, device=first.device) / 2**bits
    for _ in range(_BITS // bits):
        inside = first.unsqueeze(-1) + (second - first).unsqueeze(-1) * steps
        is_before = holds(inside.flatten(-2)).unflatten(-1, inside.shape[-2:])
        reached = is_before.to(torch.int64).cumprod(-1).sum(-1, keepdim=True)
        marks = torch.cat([first.unsqueeze(-1), inside, second.unsqueeze(-1)], -1)
        first, second = (marks.gather(-1, reached + k).squeeze(-1) for k in (0, 1))
    return first, second


# _FIRST_PANELS is the number of equal panels before they are cut at breakpoints. In benchmarks/panel_constants.py, 6
# panels need 13 % more evaluation points than 12, and 24 panels need 18 % more.
_FIRST_PANELS = 12
# A scan gets _POINTS_TO_THE_END additional points between its last point that has terms and the exact end of the terms.
# In benchmarks/panel_constants.py, all answers are correct for 6 to 100 points.
_POINTS_TO_THE_END = 25
# The decay of the terms is measured over _FALL points of a scan. In benchmarks/panel_constants.py, all answers are
# correct for 6 to 24 points.
_FALL = 12


class FirstPanels(NamedTuple):
    """Panels where the terms are not negligible, and masks of the batch elements whose terms diverge or underflow."""

    places: Places
    diverges: Tensor
    underflows: Tensor
    rest: Tensor
    """The approximate integral of the terms beyond the last points at which float64 can represent the densities."""


def first_panels(piece: Piece, breakpoints: list[Tensor], terms: DivergenceTerms) -> FirstPanels:
    """Return panels over the part of a piece where terms are not negligible, cut at breakpoints and crossings."""
    p, q = piece.fixed
    growth = terms.growth
    v = scan_points(breakpoints)
    log_p, log_q, has_terms = _scanned(piece, v, growth)
    if not growth.is_bounded and not bool(has_terms.all()):
        # Near the last point that has terms, the points of the scan may be too sparse, so points are added.
        v = _with_points_to_the_end(piece, v, has_terms, growth)
        log_p, log_q, has_terms = _scanned(piece, v, growth)
    either = torch.maximum(log_p, log_q)
    log_size = torch.where(has_terms, terms.log_size(log_p, log_q), -torch.inf)
    diverges = runs_away(log_size, has_terms) | runs_away(log_size.flip(-1), has_terms.flip(-1))
    # Rounding errors alone may make the terms grow in the tails. So a divergence that is finite by the formulas of both
    # tails does not count as infinite.
    if bool(diverges.any()):
        diverges = diverges & (not growth.is_bounded) & ~is_divergence_finite(p, q, growth).squeeze(-1)
    log_size = torch.where(diverges.unsqueeze(-1), either, log_size)
    is_needed = either_matters(log_size, either)
    vanishing = log_p if terms.order > 1 else log_q if terms.order < 0 else either
    is_lost = (is_needed & (vanishing < UNDERFLOW) & (log_size > either)).any(-1)
    underflows = is_lost & ~diverges & (not terms.is_of_ratio and terms.log_scale is None)
    # A density with `is_splittable()` false has extrapolated tails, which do not prove that the integral diverges.
    if not (p.is_splittable() and q.is_splittable()):
        underflows, diverges = underflows | diverges, torch.zeros_like(diverges)
    start, stop = span(v, is_needed)
    rest = torch.zeros_like(diverges, dtype=v.dtype)
    if not growth.is_bounded and not bool(has_terms.all()):
        lower, rest_below = _beyond(v.flip(-1), has_terms.flip(-1), log_size.flip(-1))
        upper, rest_above = _beyond(v, has_terms, log_size)
        cut = ~diverges.unsqueeze(-1) & has_terms.any(-1, keepdim=True)
        start = torch.where(cut, torch.maximum(start, lower), start)
        stop = torch.where(cut, torch.minimum(stop, upper), stop)
        rest = torch.where(cut, rest_below + rest_above, 0).squeeze(-1)
    cuts = [first_crossings(piece, v, log_p, log_q, corner.at) for corner in growth.corners]
    places = first_edges(start, stop, [*breakpoints, *cuts], _FIRST_PANELS)
    places = places if terms.beyond is None else out_to_ends(piece.line(), *places)
    return FirstPanels(places, diverges, underflows, rest)


def either_matters(log_size: Tensor, either: Tensor) -> Tensor:
    """Return a mask of the points where the terms, or `either`, the larger log-density, are not negligible."""
    return matters(log_size) | (either > -NEGLIGIBLE)


def runs_away(log_size: Tensor, has_terms: Tensor) -> Tensor:
    """Return a mask of the batch elements whose terms do not decrease towards the last point that has terms."""
    log_size = torch.where(has_terms, log_size, -torch.inf)
    last = _last(has_terms)
    end, before = (log_size.gather(-1, (last - k).clamp(min=0)).squeeze(-1) for k in (0, _FALL))
    return (end >= before) & (end >= log_size.amax(-1) - NEGLIGIBLE) & has_terms.any(-1)


def _last(there: Tensor) -> Tensor:
    return there.shape[-1] - 1 - there.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)


def _scanned(piece: Piece, v: Tensor, growth: Growth) -> tuple[Tensor, Tensor, Tensor]:
    """Return both log-densities and a mask of the points that have terms.

    A point has no terms if both densities are 0, or if one density is 0 by underflow and the terms would be infinite.
    """
    log_p, log_q, _ = piece.logs(v)
    both = (log_p > -torch.inf).any(-1, keepdim=True) & (log_q > -torch.inf).any(-1, keepdim=True)
    is_finite = ~(_is_infinite(log_p, log_q, growth) & both)
    return log_p, log_q, is_finite & (torch.maximum(log_p, log_q) > -torch.inf)


def _is_infinite(log_p: Tensor, log_q: Tensor, growth: Growth) -> Tensor:
    """Return a mask of the points where only one density is 0, which makes the terms infinite."""
    some_p, some_q = log_p > -torch.inf, log_q > -torch.inf
    without_q = some_p & ~some_q & (growth.far.limit == math.inf)
    return without_q | (some_q & ~some_p & (growth.near.limit == math.inf))


def _with_points_to_the_end(piece: Piece, v: Tensor, has_terms: Tensor, growth: Growth) -> Tensor:
    """Return the points v with more points on both sides, from the last point that has terms to their exact end."""
    count = v.shape[-1]
    ordered, has_terms = (torch.stack([x, x.flip(-1)], -2) for x in (v, has_terms))
    last = _last(has_terms)
    inner, outer = (ordered.gather(-1, (last + k).clamp(max=count - 1)).squeeze(-1) for k in (0, 1))

    def is_inside(x: Tensor) -> Tensor:
        log_p, log_q, _ = piece.logs(x)
        return (torch.maximum(log_p, log_q) > -torch.inf) & ~_is_infinite(log_p, log_q, growth)

    end, _ = last_where(is_inside, inner, outer)
    steps = torch.linspace(0, 1, _POINTS_TO_THE_END + 1, dtype=v.dtype, device=v.device)[1:]
    apart = (end - inner).abs() > 1e-9 * inner.abs()
    more = inner.unsqueeze(-1) + (end - inner).unsqueeze(-1) * steps
    more = torch.where(apart.unsqueeze(-1), more, v[..., count // 2, None, None])
    return torch.cat([v, more.flatten(-2)], -1).sort(-1).values


def _beyond(v: Tensor, has_terms: Tensor, log_size: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last point that has terms, and twice the estimated integral of the terms beyond this point."""
    last = _last(has_terms)
    before = (last - _FALL).clamp(min=0)
    end, size = v.gather(-1, last), log_size.gather(-1, last)
    fall = (log_size.gather(-1, before) - size) / (end - v.gather(-1, before)).abs().clamp(min=1e-300)
    counts = (size > log_size.amax(-1, keepdim=True) - NEGLIGIBLE) & (fall > 0)
    return end, torch.where(counts, 2 * torch.exp(size) / torch.where(fall > 0, fall, 1), 0)
