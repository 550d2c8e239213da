"""Divergences other than KL of two densities: an integral over both supports, or a sum over their integers.

The line is cut where a support begins or ends. A piece lies entirely inside or entirely outside each support. On each
piece the variable of integration runs over all reals.
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
from kullback.pairs.clone import zero_of
from kullback.pairs.densities.density import Coordinate, Density, Points
from kullback.pairs.integration.breaks import Break, corner_terms, find_breaks, moving, one_sided
from kullback.pairs.integration.divergence_terms import DivergenceTerms, with_derivatives
from kullback.pairs.integration.gauss_kronrod import WEIGHTS_KRONROD
from kullback.pairs.integration.panels import (
    NEGLIGIBLE,
    OUTERMOST,
    SAFETY,
    Line,
    Panels,
    breakpoints_on,
    either_matters,
    first_edges,
    integrate_panels,
    last_where,
    out_to_ends,
    panel_nodes,
    refine,
    relative_errors,
    rounding_error,
    runs_away,
    scan_points,
    span,
    without_ladders,
)
from kullback.pairs.integration.quadrature import Integral
from kullback.pairs.numerics.parameters import is_tracked
from kullback.pairs.solve_options import MASS_ERROR, Tolerance
from kullback.pairs.support import is_divergence_finite

# Below this logarithm a mass rounds to 0 or nearly to 0.
_UNDERFLOW = -700.0
# A node with e^-60 of a density's mass is negligible.
_FEW = 60.0
_FIRST_PANELS = 12
_FARTHEST = 1e14
# The largest number of crossings of the densities.
_CROSSINGS = 8
# Differences of log-densities below this are rounding, not crossings.
_SAME = 1e-11
# The scale of the line may exceed the width of a density by at most this factor.
_NARROW = 1e4
# Marks closer than this fraction of the narrowest density are one place.
_ONE_PLACE = 1e-2
# The target error of derivatives near a narrow component, relative to the sum of their sizes, and the largest one.
_AIM_OF_SLOPES, _LARGEST_OF_SLOPES = 1e-12, 1e-10
# The relative error of a panel that contains the corner of |p - q|.
_OF_A_CORNER = 0.03

# Where each density has to be evaluated; everywhere if None.
_Needed = tuple[Tensor, Tensor] | None
# P and Q.
_Both = tuple[Density, Density]
# Cuts two densities into pairs that add up to them, each in a unit of its own.
Shares = Callable[[Density, Density], list[_Both]]


def _integral(
    p: Density,
    q: Density,
    terms: DivergenceTerms,
    log_masses: Callable[[Density, Density, _Needed], tuple[Tensor, Tensor]],
    error: Callable[[Tensor, Tensor], Tensor],
    diverges: Tensor,
    second_order: Callable[[Tensor, Tensor], Tensor],
) -> Integral:
    """Return the divergence of the masses at the nodes, with its gradient."""
    with torch.no_grad():
        logs = log_masses(p.detached(), q.detached(), None)
        value = terms.total(*logs)
        bound = torch.where(diverges, 0.0, terms.error(value, error(*logs), *logs))
        unintegrated = torch.stack([(torch.exp(log).sum(-1) - 1).abs() for log in logs]).amax(0)
        unintegrated = torch.where(diverges, 0.0, unintegrated)
    if torch.is_grad_enabled():
        finite = ~diverges.unsqueeze(-1)

        def derivatives(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
            by_p, by_q = terms.derivatives(log_p, log_q)
            return torch.where(finite, by_p, 0), torch.where(finite, by_q, 0)

        with torch.no_grad():
            by_p, by_q = derivatives(*logs)
            needed = _needed(by_p, logs[0]) & finite, _needed(by_q, logs[1]) & finite
        value = with_derivatives(value, derivatives, *log_masses(p, q, needed))
        value = value + second_order(*logs)
        value = value if is_tracked(value) else value + zero_of([*p.tensors(), *q.tensors()])
    return Integral(torch.where(diverges, torch.inf, value), bound, unintegrated)


def _needed(by: Tensor, log: Tensor) -> Tensor:
    """Return the nodes at which a mass has first or second derivatives that are not negligible."""
    return log.isfinite() & ((by != 0) | (log > _UNDERFLOW))


# ---- On the line.


@dataclass(frozen=True)
class _Piece:
    """A part of the line that is inside or outside each support as a whole, and its variable of integration."""

    share: int
    number: int
    exists: Tensor
    center: Tensor
    width: Tensor
    fixed: _Both
    fixed_ends: tuple[Tensor | None, Tensor | None]

    def ends(self, p: Density, q: Density) -> tuple[Tensor | None, Tensor | None]:
        """Return the ends of this piece by the parameters of two densities."""
        is_fixed = p is self.fixed[0] and q is self.fixed[1]
        return self.fixed_ends if is_fixed else _pieces(p, q, self.center.shape)[self.number]

    def line(self, low: Tensor | None, high: Tensor | None) -> Line:
        """Return the line between two ends; some elements of a batch may lack this piece."""
        low = low if low is None else torch.where(self.exists, low, 0.0)
        high = high if high is None else torch.where(self.exists, high, 1.0)
        return Line(Coordinate(low, high), self.center, self.width)

    def breaks(self, densities: _Both, lower: Tensor, upper: Tensor) -> list[Break]:
        """Return the breaks of the densities on this piece."""
        line = self.line(*self.ends(*densities))

        def log_densities(v: Tensor) -> tuple[Tensor, Tensor]:
            log_p, log_q, _ = self.log_densities(*self.fixed, v)
            return log_p, log_q

        return find_breaks(densities, line, log_densities, lower, upper)

    def log_densities(
        self, p: Density, q: Density, v: Tensor, needed: _Needed = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logarithms of p dx/dv and q dx/dv, -inf where they are 0 or not needed, and log dx/dv."""
        line = self.line(*self.ends(p, q))
        low, high = line.coordinate.low, line.coordinate.high
        at, log_jacobian = line.points(v)
        log_p, log_q = (
            _density_on(density, low, high, at, self.exists if needed is None else self.exists & needed[side])
            for side, density in enumerate((p, q))
        )
        # Farther out, log p and log dx/dv nearly cancel, and rounding destroys their sum.
        is_accurate = log_jacobian.abs() < _FARTHEST
        log_p, log_q = (torch.where(is_accurate, x + log_jacobian, -torch.inf) for x in (log_p, log_q))
        return log_p, log_q, log_jacobian


def _pieces(p: Density, q: Density, shape: torch.Size) -> list[tuple[Tensor | None, Tensor | None]]:
    """Return the ends of the pieces, from left to right."""
    ends = [end.expand(shape) for density in (p, q) for end in _ends(density) if end is not None]
    cuts = list(torch.stack(ends).sort(0).values) if ends else []
    open_left, open_right = (any(_ends(density)[side] is None for density in (p, q)) for side in (0, 1))
    marks = [*([None] if open_left else []), *cuts, *([None] if open_right else [])]
    return list(itertools.pairwise(marks))


def _ends(density: Density) -> tuple[Tensor | None, Tensor | None]:
    """Return the ends of a support; the upper end may be infinite for some elements of a batch. None means no end."""
    high = density.high()
    return density.low(), None if high is None or bool(high.isinf().all()) else high


def _density_on(
    density: Density, low: Tensor | None, high: Tensor | None, at: Points, needed: Tensor
) -> Tensor:
    """Return the logarithm of a density at the needed points of a piece; -inf without a gradient at the others."""
    begins, ends = _ends(density)
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


def integrate_divergence(
    p: Density,
    q: Density,
    terms: DivergenceTerms,
    batch_shape: torch.Size,
    target: Tolerance,
    shares: Shares | None = None,
) -> Integral:
    """Integrate the terms of a divergence over the supports of two densities on the line.

    Arguments:
        p: the density of P, with parameters of shape (..., 1): the last dimension is for the nodes.
        q: the density of Q, likewise.
        terms: the terms of the divergence.
        batch_shape: the broadcast shape of the parameters, without the last dimension.
        target: the required error, and the limit on nodes.
        shares: cuts the densities into pairs, each integrated along a line of its own; None leaves them whole.
    """
    shape = torch.Size([*batch_shape, 1])
    shares = shares or (lambda p, q: [(p, q)])
    tracked, fixed, has_gradient = shares(p, q), shares(p.detached(), q.detached()), torch.is_grad_enabled()
    pieces: list[_Piece] = []
    parts: list[Panels] = []
    measures: list[Callable[[Tensor, Tensor], Panels]] = []
    diverges, fails = torch.zeros(2, *batch_shape, dtype=torch.bool, device="cpu")
    rest = torch.zeros(batch_shape, dtype=torch.float64, device="cpu")
    with torch.no_grad():
        places = [
            (k, n, *ends) for k, both in enumerate(fixed) for n, ends in enumerate(_pieces(*both, shape))
        ]
        for share, number, low, high in places:
            exists = torch.ones(shape, dtype=torch.bool, device="cpu") if low is None else low.isfinite()
            exists = exists if high is None or low is None else exists & (low < high)
            if not bool(exists.any()):
                continue
            piece, breakpoints = _placed(share, number, *fixed[share], Coordinate(low, high), exists)
            first = _first_panels(piece, breakpoints, terms)

            def measure(lower: Tensor, upper: Tensor, piece: _Piece = piece) -> Panels:
                return Panels(lower, upper, _measured(piece, lower, upper, terms, len(fixed) > 1))

            pieces.append(piece)
            parts.append(measure(*_edges(first, piece.line(low, high), terms)))
            measures.append(measure)
            diverges, fails, rest = diverges | first.diverges, fails | first.underflows, rest + first.rest

        # The derivatives of a share in its own unit are much smaller than its value, so they have a separate error.
        in_units = [k for k, piece in enumerate(pieces) if piece.share < len(fixed) - 1]

        def slope_error(parts: list[Panels]) -> Tensor:
            errors = (relative_errors(*parts[k].columns[4:]).sum(-1) for k in in_units)
            return sum(errors, torch.zeros_like(rest))

        def assess(parts: list[Panels]) -> tuple[Tensor, list[Tensor]]:
            value, error, mass_error, rounding = _sums(parts)
            met = mass_error <= MASS_ERROR
            exact = (target.is_met(value, SAFETY * error) | (error <= rounding)) & met
            priorities = [torch.where(met.unsqueeze(-1), *part.columns[1:3]) for part in parts]
            for k in in_units:
                slopes = relative_errors(*parts[k].columns[4:])
                priorities[k] = torch.where(exact.unsqueeze(-1), slopes, priorities[k])
            return exact & (slope_error(parts) <= _AIM_OF_SLOPES), priorities

        refine(parts, measures, assess, target.max_evaluations * len(fixed))
        for corner in terms.corners:
            parts[:] = [
                measure(*_cut_at_crossings(piece, part.lower, part.upper, corner.at))
                for piece, part, measure in zip(pieces, parts, measures, strict=True)
            ]
        _, error, _, rounding = _sums(parts)
        fails = fails | ((slope_error(parts) > _LARGEST_OF_SLOPES) & has_gradient)
        error = torch.where(fails, torch.inf, SAFETY * error + rounding + rest)

    def log_masses(density_p: Density, density_q: Density, needed: _Needed) -> tuple[Tensor, Tensor]:
        return _log_masses(pieces, parts, shares(density_p, density_q), needed)

    def second_order(log_p: Tensor, log_q: Tensor) -> Tensor:
        return torch.where(diverges, 0, _of_breaks(pieces, parts, tracked, terms, (log_p, log_q)))

    return _integral(p, q, terms, log_masses, lambda *_: error, diverges, second_order)


def _log_masses(
    pieces: list[_Piece], parts: list[Panels], tracked: list[_Both], needed: _Needed
) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the masses at all nodes; jumps of the densities move the nodes."""
    logs: list[tuple[Tensor, Tensor]] = []
    start = 0
    for piece, part in zip(pieces, parts, strict=True):
        lower, upper = part.lower, part.upper
        densities = tracked[piece.share]
        if needed is not None:
            breaks = piece.breaks(densities, lower, upper)
            lower, upper = moving(lower, breaks), moving(upper, breaks)
        v, half = panel_nodes(lower, upper)
        log_half = torch.where(half > 0, torch.log(torch.where(half > 0, half, 1)), -torch.inf)
        log_weights = (torch.log(WEIGHTS_KRONROD) + log_half).flatten(-2)
        stop = start + log_weights.shape[-1]
        needed_in_part = None if needed is None else (needed[0][..., start:stop], needed[1][..., start:stop])
        log_p, log_q, _ = piece.log_densities(*densities, v.flatten(-2), needed_in_part)
        logs.append((log_p + log_weights, log_q + log_weights))
        start = stop
    return torch.cat([a for a, _ in logs], -1), torch.cat([b for _, b in logs], -1)


def _of_breaks(
    pieces: list[_Piece],
    parts: list[Panels],
    tracked: list[_Both],
    terms: DivergenceTerms,
    logs: tuple[Tensor, Tensor],
) -> Tensor:
    """Return 0 with the second derivatives that the corners of the densities and of the terms contribute."""
    total = torch.zeros(logs[0].shape[:-1], dtype=torch.float64, device="cpu")
    for piece, part in zip(pieces, parts, strict=True):
        densities = tracked[piece.share]

        def derivatives(place: Tensor, piece: _Piece = piece) -> tuple[Tensor, Tensor]:
            # The derivatives at an additional node whose mass is negligible.
            at = (log - _FEW for log in piece.log_densities(*piece.fixed, place)[:2])
            more = (torch.cat(both, -1) for both in zip(logs, at, strict=True))
            by_p, by_q = (by[..., -1:] * math.exp(_FEW) for by in terms.derivatives(*more))
            return by_p, by_q

        total = total + corner_terms(piece.breaks(densities, part.lower, part.upper), derivatives)
        for corner in terms.corners:
            total = total + _of_crossings(piece, densities, part, corner)
    return total


def _of_crossings(piece: _Piece, densities: _Both, part: Panels, corner: Corner) -> Tensor:
    """Return 0 with the second derivatives from the crossings of a corner of the terms; see `corner_terms`.

    If log p - log q has the slope s at a crossing, these are p / s times the change of f' times the square of the
    derivative of log p - log q.
    """
    v = panel_nodes(part.lower, part.upper)[0].flatten(-2).sort(-1).values
    d = _log_ratio(piece, piece.fixed, v) - corner.at
    is_reliable = (d.abs() > _SAME) & d.isfinite()  # at a crossing rounding decides the sign
    last = torch.where(is_reliable, torch.arange(d.shape[-1], device=d.device), 0).cummax(-1).values
    last = torch.cat([torch.zeros_like(last[..., :1]), last[..., :-1]], -1)
    crosses = is_reliable & is_reliable.gather(-1, last) & ((d > 0) != (d.gather(-1, last) > 0))
    count = int(crosses.sum(-1).max())
    if count == 0:
        return torch.zeros((), dtype=torch.float64, device="cpu")
    index = crosses.to(torch.uint8).topk(count, dim=-1).indices
    low, high = v.gather(-1, last.gather(-1, index)), v.gather(-1, index)
    place = _bisected(piece, low, high, d.gather(-1, index) > 0, corner.at)

    def log_ratio(v: Tensor) -> Tensor:
        return _log_ratio(piece, piece.fixed, v)

    before, after = (one_sided(log_ratio, place, side * (high - low))[1] for side in (-1, 1))
    slope = ((before + after) / 2).abs()
    log_p, _, _ = piece.log_densities(*piece.fixed, place)
    size = corner.change * torch.exp(log_p) / torch.where(slope > 0, slope, 1)
    size = torch.where(crosses.gather(-1, index) & (slope > 0) & size.isfinite(), size, 0)
    moves = _log_ratio(piece, densities, place)
    moves = torch.where(size > 0, moves - moves.detach(), 0)
    return (size * moves**2 / 2).sum(-1)


def _log_ratio(piece: _Piece, densities: _Both, v: Tensor) -> Tensor:
    log_p, log_q, _ = piece.log_densities(*densities, v)
    return log_p - log_q


def _sums(parts: list[Panels]) -> Tensor:
    """Return the value, its error, the error of the masses and the rounding error, over all panels of all pieces."""
    return torch.stack([torch.stack([x.sum(-1) for x in part.columns[:4]]) for part in parts]).sum(0)


def _placed(
    share: int, number: int, p: Density, q: Density, coordinate: Coordinate, exists: Tensor
) -> tuple[_Piece, list[Tensor]]:
    """Return a piece whose variable is centered and scaled by its breakpoints, and the breakpoints in that variable."""
    breakpoints = breakpoints_on(coordinate, (p, q), exists.shape)
    coarse = [torch.where(x.abs() < 1e300, x, torch.nan) for x in without_ladders(breakpoints)]
    marks = torch.cat(coarse, -1)
    center = marks.nanmedian(-1, keepdim=True).values.nan_to_num(nan=0.0)
    reach = (marks - center).abs().nanmedian(-1, keepdim=True).values.nan_to_num(nan=1.0)
    width = torch.where(reach > 0, reach / 2, 1.0)
    # Several marks may be one place after rounding. Their distances are then no scale of the densities.
    spans = [(x[..., -1:] - x[..., :1]).nan_to_num(nan=torch.inf) for x in coarse if x.shape[-1] > 1]
    narrowest = torch.stack(spans).amin(0) if spans else torch.full_like(reach, torch.inf)
    width = torch.where((reach < _ONE_PLACE * narrowest) & narrowest.isfinite(), narrowest / 4, width)
    if coordinate.low is None and coordinate.high is None:
        # So that rounding does not move the nodes near a far narrower density.
        (center_p, width_p), (center_q, width_q) = (
            [x.expand_as(center) for x in density.center_and_width()] for density in (p, q)
        )
        by_p = width_p <= width_q
        narrowest, scale = torch.where(by_p, center_p, center_q), torch.where(by_p, width_p, width_q)
        is_narrow = torch.maximum((center - narrowest).abs(), width) > _NARROW * scale
        center, width = torch.where(is_narrow, narrowest, center), torch.where(is_narrow, scale, width)
    piece = _Piece(share, number, exists, center, width, (p, q), (coordinate.low, coordinate.high))
    line = Line(coordinate, center, piece.width)
    return piece, [line.v(x).nan_to_num(nan=0.0).clamp(-OUTERMOST, OUTERMOST) for x in breakpoints]


class _FirstPanels(NamedTuple):
    """Panels over the part that is not negligible, and flags for terms that diverge or underflow."""

    lower: Tensor
    upper: Tensor
    diverges: Tensor
    underflows: Tensor
    rest: Tensor
    """The approximate integral of the terms beyond the last points at which float64 can represent the densities."""


def _first_panels(piece: _Piece, breakpoints: list[Tensor], terms: DivergenceTerms) -> _FirstPanels:
    p, q = piece.fixed
    growth = terms.growth
    v = scan_points(breakpoints)
    log_p, log_q, has_terms = _scanned(piece, v, growth)
    if not growth.is_bounded and not bool(has_terms.all()):
        # The scan may be far too coarse near the last point that has terms.
        v = _with_points_to_the_end(piece, v, has_terms, growth)
        log_p, log_q, has_terms = _scanned(piece, v, growth)
    either = torch.maximum(log_p, log_q)
    log_size = torch.where(has_terms, terms.log_size(log_p, log_q), -torch.inf)
    diverges = runs_away(log_size, has_terms) | runs_away(log_size.flip(-1), has_terms.flip(-1))
    if bool(diverges.any()):  # possibly by rounding far out
        diverges = diverges & (not growth.is_bounded) & ~is_divergence_finite(p, q, growth).squeeze(-1)
    log_size = torch.where(diverges.unsqueeze(-1), either, log_size)
    kept = either_matters(log_size, either)
    vanishing = log_p if terms.order > 1 else log_q if terms.order < 0 else either
    underflows = (
        (kept & (vanishing < _UNDERFLOW) & (log_size > either)).any(-1)
        & ~diverges
        & (not terms.is_of_ratio and terms.log_scale is None)
    )
    if not (p.is_splittable() and q.is_splittable()):  # their densities are extrapolated far out
        underflows, diverges = underflows | diverges, torch.zeros_like(diverges)
    start, stop = span(v, kept)
    rest = torch.zeros_like(diverges, dtype=v.dtype)
    if not growth.is_bounded and not bool(has_terms.all()):
        lower, rest_below = _beyond(v.flip(-1), has_terms.flip(-1), log_size.flip(-1))
        upper, rest_above = _beyond(v, has_terms, log_size)
        cut = ~diverges.unsqueeze(-1) & has_terms.any(-1, keepdim=True)
        start = torch.where(cut, torch.maximum(start, lower), start)
        stop = torch.where(cut, torch.minimum(stop, upper), stop)
        rest = torch.where(cut, rest_below + rest_above, 0).squeeze(-1)
    for (
        corner
    ) in terms.corners:  # where log p - log q crosses its level between two points; unused ones are arbitrary
        above = log_p > log_q + corner.at
        changes = (above[..., 1:] != above[..., :-1]).to(torch.uint8)
        index = changes.topk(min(_CROSSINGS, int(changes.sum(-1).max())), dim=-1).indices
        edges = v.gather(-1, index), v.gather(-1, index + 1)
        breakpoints = [*breakpoints, _bisected(piece, *edges, ~above.gather(-1, index), corner.at)]
    return _FirstPanels(*first_edges(start, stop, breakpoints, _FIRST_PANELS), diverges, underflows, rest)


def _edges(first: _FirstPanels, line: Line, terms: DivergenceTerms) -> tuple[Tensor, Tensor]:
    edges = first.lower, first.upper
    return edges if terms.beyond is None else out_to_ends(line, *edges)


def _scanned(piece: _Piece, v: Tensor, growth: Growth) -> tuple[Tensor, Tensor, Tensor]:
    """Return both logarithms, and where they give the terms: not where an underflow would make the terms infinite."""
    log_p, log_q, _ = piece.log_densities(*piece.fixed, v)
    both = (log_p > -torch.inf).any(-1, keepdim=True) & (log_q > -torch.inf).any(-1, keepdim=True)
    is_finite = ~(_is_infinite(log_p, log_q, growth) & both)
    return log_p, log_q, is_finite & (torch.maximum(log_p, log_q) > -torch.inf)


def _is_infinite(log_p: Tensor, log_q: Tensor, growth: Growth) -> Tensor:
    """Return where a density of 0 makes the terms infinite."""
    some_p, some_q = log_p > -torch.inf, log_q > -torch.inf
    infinite = torch.zeros_like(some_p)
    if growth.far.limit == math.inf:
        infinite = infinite | (some_p & ~some_q)
    return infinite | (some_q & ~some_p) if growth.near.limit == math.inf else infinite


def _with_points_to_the_end(piece: _Piece, v: Tensor, has_terms: Tensor, growth: Growth) -> Tensor:
    """Add points to a scan, on both sides, from the last point that has terms to the place where they end."""
    count = v.shape[-1]
    ordered, has_terms = (torch.stack([x, x.flip(-1)], -2) for x in (v, has_terms))
    last = count - 1 - has_terms.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
    inner, outer = (ordered.gather(-1, (last + k).clamp(max=count - 1)).squeeze(-1) for k in (0, 1))

    def is_inside(x: Tensor) -> Tensor:
        log_p, log_q, _ = piece.log_densities(*piece.fixed, x)
        return (torch.maximum(log_p, log_q) > -torch.inf) & ~_is_infinite(log_p, log_q, growth)

    end, _ = last_where(is_inside, inner, outer)
    steps = torch.linspace(0, 1, 26, dtype=v.dtype, device=v.device)[1:]
    apart = (end - inner).abs() > 1e-9 * inner.abs()
    more = inner.unsqueeze(-1) + (end - inner).unsqueeze(-1) * steps
    more = torch.where(apart.unsqueeze(-1), more, v[..., count // 2, None, None])
    return torch.cat([v, more.flatten(-2)], -1).sort(-1).values


def _beyond(v: Tensor, has_terms: Tensor, log_size: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last point that has terms, and the approximate integral of the terms beyond it."""
    last = has_terms.shape[-1] - 1 - has_terms.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
    before = (last - 12).clamp(min=0)
    end, size = v.gather(-1, last), log_size.gather(-1, last)
    fall = (log_size.gather(-1, before) - size) / (end - v.gather(-1, before)).abs().clamp(min=1e-300)
    matters = (size > log_size.amax(-1, keepdim=True) - NEGLIGIBLE) & (fall > 0)
    return end, torch.where(matters, 2 * torch.exp(size) / torch.where(fall > 0, fall, 1), 0)


def _cut_at_crossings(piece: _Piece, lower: Tensor, upper: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Cut the panels where log p - log q crosses a level between their nodes: there the terms have a corner."""
    v, _ = panel_nodes(lower, upper)
    v = torch.cat([lower.unsqueeze(-1), v.sort(-1).values, upper.unsqueeze(-1)], -1)
    logs = piece.log_densities(*piece.fixed, v.flatten(-2))
    log_p, log_q, _ = (x.unflatten(-1, v.shape[-2:]) for x in logs)
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


def _bisected(piece: _Piece, lower: Tensor, upper: Tensor, rises: Tensor, level: float) -> Tensor:
    """Return where log p - log q crosses a level between two points, at which it `rises` or falls."""

    def is_left(v: Tensor) -> Tensor:
        at_points = rises.repeat_interleave(v.shape[-1] // rises.shape[-1], -1)
        return (_log_ratio(piece, piece.fixed, v) > level) != at_points

    return last_where(is_left, lower, upper)[1]


def _measured(
    piece: _Piece, lower: Tensor, upper: Tensor, terms: DivergenceTerms, with_slopes: bool
) -> tuple[Tensor, ...]:
    """Return the integral of the terms over panels, its error, the error of both masses, and the rounding error.

    With slopes, also the errors and the sizes of the integrals of the derivatives by log p and by log q.
    """
    v, half = panel_nodes(lower, upper)
    logs = piece.log_densities(*piece.fixed, v.flatten(-2))
    log_p, log_q, log_jacobian = (x.unflatten(-1, v.shape[-2:]) for x in logs)
    f = terms.terms(log_p, log_q)
    values, errors = integrate_panels(f, half)
    for corner in terms.corners:  # both rules may miss a corner at a crossing
        at_ends = piece.log_densities(*piece.fixed, torch.cat([lower, upper], -1))
        d = torch.cat([log_p - log_q, torch.stack((at_ends[0] - at_ends[1]).chunk(2, -1), -1)], -1)
        crosses = (d > corner.at + _SAME).any(-1) & (d < corner.at - _SAME).any(-1)
        errors = torch.where(crosses, torch.maximum(errors, _OF_A_CORNER * values), errors)
    masses = torch.stack([torch.exp(log_p), torch.exp(log_q)])
    mass_errors = integrate_panels(masses, half)[1].sum(0)
    slopes = torch.stack(terms.sensitivities(log_p, log_q))
    by_p, by_q = sizes = slopes.abs()
    line = Line(Coordinate(None, None), piece.center, piece.width)
    changes = [(by_p, log_p), (by_q, log_q), (f.abs(), log_jacobian)]
    roundings = rounding_error(line, f, changes, lower, upper)
    more = (integrate_panels(slopes, half)[1], integrate_panels(sizes, half)[0]) if with_slopes else ()
    return values, errors, mass_errors, roundings, *more


# ---- On the integers.


def sum_divergence(
    p: Density, q: Density, terms: DivergenceTerms, batch_shape: torch.Size, target: Tolerance
) -> Integral:
    """Sum the terms of a divergence over every integer that matters; for the arguments see `integrate_divergence`."""
    fixed_p, fixed_q = p.detached(), q.detached()
    with torch.no_grad():
        n, after, most, diverges, cut_off = _window(fixed_p, fixed_q, batch_shape, terms, target)

    def log_masses(density_p: Density, density_q: Density, needed: _Needed) -> tuple[Tensor, Tensor]:
        logs = _log_masses_at(density_p, density_q, torch.minimum(n, most), needed)
        return torch.where(n <= after, logs[0], -torch.inf), torch.where(n <= after, logs[1], -torch.inf)

    def error(log_p: Tensor, log_q: Tensor) -> Tensor:
        sizes = terms.terms(log_p, log_q).abs()
        if terms.log_scale is not None:  # the exponents are large, and so is their rounding
            sizes = sizes * (1 + sum(torch.where(log.isfinite(), log.abs(), 0) for log in (log_p, log_q)))
        return 1e-15 * sizes.sum(-1) + torch.where(cut_off & ~diverges, torch.inf, 0.0)

    return _integral(
        p, q, terms, log_masses, error, diverges, lambda *logs: torch.zeros_like(logs[0][..., 0])
    )


def _window(
    p: Density, q: Density, batch_shape: torch.Size, terms: DivergenceTerms, target: Tolerance
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the integers to sum, the last that matters, the last of all, and where the sum diverges or is cut off."""
    shape = torch.Size([*batch_shape, 1])
    doubling = 2.0 ** torch.arange(0, 50, dtype=torch.float64, device="cpu")
    offsets = torch.cat([-doubling.flip(0), torch.zeros(1, dtype=torch.float64, device="cpu"), doubling])
    centers = [density.center_and_width()[0].expand(shape).floor() for density in (p, q)]
    ends = p.ends(), q.ends()
    least = torch.minimum(ends[0][0], ends[1][0]).expand(shape)
    most = torch.maximum(ends[0][1], ends[1][1]).expand(shape)
    x = torch.cat(
        [*(center + offsets for center in centers), least.clamp(min=-1e15), most.clamp(max=1e15)], -1
    )
    x = torch.minimum(torch.maximum(x, least), most).sort(-1).values
    log_p, log_q = _log_masses_at(p, q, x, None)
    either = torch.maximum(log_p, log_q)
    there = either > -torch.inf
    log_size = torch.where(there, terms.log_size(log_p, log_q), -torch.inf)
    diverges = (
        runs_away(log_size, there & (x < 1e14)) & most.isinf().squeeze(-1) & (not terms.growth.is_bounded)
    )
    before, after = span(x, either_matters(log_size, either))
    cap = 20 * max(target.max_evaluations, 100)
    count = int(torch.where(diverges.unsqueeze(-1), 0, after - before).amax().clamp(max=cap - 1)) + 1
    cut_off = (after - before).squeeze(-1) >= count
    return before + torch.arange(count, dtype=torch.float64, device="cpu"), after, most, diverges, cut_off


def _log_masses_at(p: Density, q: Density, x: Tensor, needed: _Needed) -> tuple[Tensor, Tensor]:
    logs: list[Tensor] = []
    for side, density in enumerate((p, q)):
        low, high = density.ends()
        inside = (x >= low) & (x <= high) & (True if needed is None else needed[side])
        center = density.center_and_width()[0].detach().floor()
        within = torch.minimum(torch.maximum(torch.where(inside, x, center), low), high)
        logs.append(torch.where(inside, density.log_density(Points(within)), -torch.inf))
    return logs[0], logs[1]
