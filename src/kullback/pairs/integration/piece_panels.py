"""The first panels on a piece of the line, and the batch elements whose terms diverge or underflow on the piece.

A scan evaluates the densities on a sorted grid of points v, to find the span of the panels. In the tails, one density
may round to 0 before the terms of the divergence are negligible. The panels end at the last point where float64 can
represent the terms, and the integral beyond this point is estimated.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.generators.growth import Growth
from kullback.pairs.integration.crossings import first_crossings, last_where
from kullback.pairs.integration.divergence_terms import DivergenceTerms
from kullback.pairs.integration.line import (
    NEGLIGIBLE,
    UNDERFLOW,
    first_edges,
    matters,
    out_to_ends,
    scan_points,
    span,
)
from kullback.pairs.integration.panels import Places
from kullback.pairs.integration.pieces import Piece
from kullback.pairs.support import is_divergence_finite

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
        # Near the last point that has terms, the points of the scan may be too sparse.
        v = _with_points_to_the_end(piece, v, has_terms, growth)
        log_p, log_q, has_terms = _scanned(piece, v, growth)
    either = torch.maximum(log_p, log_q)
    log_size = torch.where(has_terms, terms.log_size(log_p, log_q), -torch.inf)
    diverges = runs_away(log_size, has_terms) | runs_away(log_size.flip(-1), has_terms.flip(-1))
    # Rounding errors alone may make the terms grow in the tails, so the known decay of the tails decides.
    if bool(diverges.any()):
        diverges = diverges & (not growth.is_bounded) & ~is_divergence_finite(p, q, growth).squeeze(-1)
    log_size = torch.where(diverges.unsqueeze(-1), either, log_size)
    is_needed = either_matters(log_size, either)
    vanishing = log_p if terms.order > 1 else log_q if terms.order < 0 else either
    is_lost = (is_needed & (vanishing < UNDERFLOW) & (log_size > either)).any(-1)
    underflows = is_lost & ~diverges & (not terms.is_of_ratio and terms.log_scale is None)
    # The tails of a density that cannot be split are extrapolated, and extrapolated tails prove no divergence.
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
    """Return a mask of the points where the terms, or the densities of P or Q, are not negligible."""
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
    """Return the scan with more points on both sides, from the last point that has terms to the end of the terms."""
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
