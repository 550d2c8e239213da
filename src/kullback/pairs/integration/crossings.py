"""Crossings: points where log p - log q crosses a level at which the terms of a divergence have a corner.

The panels are cut at crossings. If the position of a crossing depends on a parameter, the corner contributes to the
second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kullback.generators.growth import Corner
from kullback.pairs.integration.breaks import one_sided
from kullback.pairs.integration.gauss_kronrod import panel_nodes
from kullback.pairs.integration.panels import Places
from kullback.pairs.integration.pieces import Both, Piece

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
    """Return the points v where log p - log q crosses `level` on a piece, shape (..., crossings).

    The arguments `log_p` and `log_q` are the log-densities at the sorted points `v` of a scan.

    Batch elements with fewer crossings than other elements are padded with arbitrary points.
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
    """Return the points v between `lower` and `upper` where log p - log q crosses `level`.

    The difference crosses the level upwards where `rises` is true, and downwards elsewhere.
    """

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
