"""Panels of the line for adaptive quadrature: their first positions, the rule on a panel, and how panels are split.

The variable of integration v runs over all reals, and the line's own coordinate is t = center + width sinh(v). This is
linear near the center, and grows fast enough far out to reach the end of any tail. Every panel has the 15 nodes of
Gauss and Kronrod. All elements of a batch have the same number of panels. Each element splits the panels where its own
error is largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.pairs.densities.density import Coordinate, Density, Points
from kullback.pairs.integration.gauss_kronrod import NODES, WEIGHTS, WEIGHTS_KRONROD

NEGLIGIBLE = 46.0
"""An integrand that is this much below its largest value, in logarithms, is ignored."""
OUTERMOST = 690.0
"""The largest |v|: beyond it sinh overflows."""
NEAREST = -345.0
"""The square of the inverse of a distance with this logarithm is a float."""
SAFETY = 4.0
"""The reported error is this many times the estimate: on some panels the rules agree by chance."""
# The number of panels between the end of the line and the nearest panel that matters for the value.
_OUTER_PANELS = 24
_SPLITS = 4
# The precision of `last_where` in bits, and the most intervals that it cuts into four parts at once.
_BITS, _FEW_INTERVALS = 56, 1000
_EPS = 8 * torch.finfo(torch.float64).eps
# Breakpoints of a density, in widths from its center. The far ones are for the logarithm of a mixture, which has a
# corner wherever another component becomes the largest.
_LADDER = [1.0, 2.0, 4.0, 8.0, 16.0, 40.0, *(40 * 3.0**k for k in range(1, 18))]
_STEPS = torch.tensor([*(-x for x in reversed(_LADDER)), 0.0, *_LADDER], dtype=torch.float64, device="cpu")
# The breakpoints that suffice unless a density is a narrow peak: the center and the points two widths from it.
_MIDDLE = len(_LADDER)
_COARSE = [_MIDDLE - 2, _MIDDLE, _MIDDLE + 2]
# The breakpoints where a peak has mass.
_NEAR = slice(_MIDDLE - 6, _MIDDLE + 7)
# With more peaks than this, peaks share breakpoints.
_MANY_PEAKS = 16
# A peak is narrow if its width is less than this fraction of a panel.
_NARROW = 0.25


class Line(NamedTuple):
    """A part of the line in its own coordinate, and the map from the variable of integration."""

    coordinate: Coordinate
    center: Tensor
    width: Tensor

    def t(self, v: Tensor) -> Tensor:
        """Return the coordinate at v."""
        return self.center + self.width * torch.sinh(v)

    def v(self, t: Tensor) -> Tensor:
        """Return v at the coordinate."""
        return torch.asinh((t - self.center) / self.width)

    def resolution(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Return how far rounding moves the nodes of panels in v, in units of machine epsilon."""
        nearest = torch.where(lower * upper < 0, 0, torch.minimum(lower.abs(), upper.abs()))
        farthest = torch.maximum(lower.abs(), upper.abs())
        return 1 + farthest + self.center.abs() / (self.width * torch.cosh(nearest))

    def points(self, v: Tensor) -> tuple[Points, Tensor]:
        """Return the points at v, and log dx/dv there."""
        t = self.t(v)
        log_cosh = v.abs() + torch.log1p(torch.exp(-2 * v.abs())) - math.log(2)
        log_jacobian = self.coordinate.log_jacobian(t) + torch.log(self.width) + log_cosh
        return self.coordinate.points(t), log_jacobian


class Panels(NamedTuple):
    """Panels from `lower` to `upper`, along the last dimension, and columns with the measurements of each panel."""

    lower: Tensor
    upper: Tensor
    columns: tuple[Tensor, ...]

    def split(self, priorities: Tensor, measure: Measure) -> Panels:
        """Halve the panels with the largest priorities of each element."""
        count = min(_SPLITS, priorities.shape[-1])
        worst = priorities.topk(count, dim=-1).indices
        left, right = self.lower.gather(-1, worst), self.upper.gather(-1, worst)
        middle = (left + right) / 2
        new = measure(torch.cat([left, middle], -1), torch.cat([middle, right], -1))
        both = zip((*self[:2], *self.columns), (*new[:2], *new.columns), strict=True)
        lower, upper, *columns = [with_halves(old, worst, fresh) for old, fresh in both]
        return Panels(lower, upper, tuple(columns))


def with_halves(old: Tensor, places: Tensor, halves: Tensor) -> Tensor:
    """Return numbers of panels after halving some: left halves replace them in their places, right halves follow."""
    count, index = places.shape[-1], places.expand(*old.shape[:-1], -1)
    return torch.cat([old.scatter(-1, index, halves[..., :count]), halves[..., count:]], -1)


# Measures the panels between these edges.
Measure = Callable[[Tensor, Tensor], Panels]
# Returns which elements of the batch are exact enough, and the priorities of the panels of each part.
Assess = Callable[[list[Panels]], tuple[Tensor, list[Tensor]]]


def refine(parts: list[Panels], measures: list[Measure], assess: Assess, max_evaluations: int) -> None:
    """Split panels of all parts, in place, until every element is exact enough or has the maximum number of nodes."""
    while True:
        enough, priorities = assess(parts)
        if bool(enough.all()):
            return
        panels = sum(part.lower.shape[-1] for part in parts) + _SPLITS * len(parts)
        if panels * NODES.numel() > max_evaluations:
            return
        for index, (measure, priority) in enumerate(zip(measures, priorities, strict=True)):
            parts[index] = parts[index].split(priority, measure)


# ---- The first panels.


def breakpoints_on(coordinate: Coordinate, densities: tuple[Density, ...], shape: torch.Size) -> list[Tensor]:
    """Return the breakpoints of densities in a coordinate: (..., steps) for each peak, (..., 1) for other points."""
    breakpoints: list[Tensor] = []
    for density in densities:
        own = density.coordinate()
        is_same = same_coordinate(own, coordinate)
        peaks = density.breakpoints(_STEPS)
        breakpoints += peaks if is_same else [coordinate.of(own.points(marks).x) for marks in peaks]
        breakpoints += map(coordinate.of, density.nonsmooth_points())
    return [marks.expand(*shape[:-1], marks.shape[-1] if marks.ndim else 1) for marks in breakpoints]


def same_coordinate(a: Coordinate, b: Coordinate) -> bool:
    """Return whether two coordinates are the same variable."""
    if a.low is b.low and a.high is b.high:
        return True
    return all(
        x is y or (x is not None and y is not None and bool((x == y).all()))
        for x, y in ((a.low, b.low), (a.high, b.high))
    )


def scan_points(breakpoints: list[Tensor]) -> Tensor:
    """Return a sorted grid over all v, on which to search for the span where the integrand is not negligible."""
    near = torch.arange(0.0, 10.0, 0.125, dtype=torch.float64, device="cpu")
    far = torch.logspace(1.0, math.log10(OUTERMOST), 56, dtype=torch.float64, device="cpu")
    positive = torch.cat([near[1:], far])
    grid = torch.cat([-positive.flip(0), near[:1], positive]).to(breakpoints[0].device)
    peaks = _snapped(breakpoints)
    marks = [x[..., _NEAR] if x.shape[-1] == len(_STEPS) else x for x in peaks]
    v = torch.cat([grid.expand(*marks[0].shape[:-1], -1), *marks], -1).sort(-1).values
    if len(breakpoints) <= _MANY_PEAKS:
        return v
    steps = v.diff(dim=-1)
    different = max(int((steps > 0).sum(-1).max()), 1)
    index = steps.topk(different, dim=-1).indices.sort(-1).values
    return torch.cat([v[..., :1], v.gather(-1, index + 1)], -1)


def out_to_ends(line: Line, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Add panels towards the finite ends of the line, as far as the square of the inverse distance is a float.

    They have almost no mass, but may have a large part of the derivative by an end.
    """
    steps = torch.linspace(0, 1, _OUTER_PANELS + 1, dtype=lower.dtype, device=lower.device)
    for end, side in ((line.coordinate.low, -1), (line.coordinate.high, 1)):
        if end is None:
            continue
        edge = lower.amin(-1, keepdim=True) if side < 0 else upper.amax(-1, keepdim=True)
        t = line.t(edge)
        farthest = torch.where(end.isfinite(), side * (side * t).clamp(min=-NEAREST), t)
        edges = line.v(t + (farthest - t) * steps)
        edges = (edge + side * (side * (edges - edge)).clamp(min=0)).sort(-1).values
        lower, upper = torch.cat([lower, edges[..., :-1]], -1), torch.cat([upper, edges[..., 1:]], -1)
    return lower, upper


def _snapped(breakpoints: list[Tensor]) -> list[Tensor]:
    """Round the breakpoints of many peaks to grids of the size of each peak, so that near peaks share breakpoints.

    The number of panels then depends on the widths of the peaks, not on the number of components of a mixture.
    """
    if len(breakpoints) <= _MANY_PEAKS:
        return breakpoints
    snapped: list[Tensor] = []
    for marks in breakpoints:
        if marks.shape[-1] != len(_STEPS):
            snapped.append(marks)
            continue
        center = marks[..., _MIDDLE : _MIDDLE + 1]
        width = (marks[..., _MIDDLE + 1] - marks[..., _MIDDLE - 1]).abs().unsqueeze(-1) / 2
        reach = torch.maximum((marks - center).abs() / 2, width).clamp(min=1e-30)
        unit = torch.exp2(torch.floor(torch.log2(reach)))
        snapped.append(torch.round(marks / unit) * unit)
    return snapped


def without_ladders(breakpoints: list[Tensor]) -> list[Tensor]:
    """Return the breakpoints; a peak keeps only its center and the points two widths from it."""
    return [x[..., _COARSE] if x.shape[-1] == len(_STEPS) else x for x in breakpoints]


def matters(log_f: Tensor) -> Tensor:
    """Return where f is not negligible relative to its largest value, from log f."""
    return log_f > log_f.amax(-1, keepdim=True) - NEGLIGIBLE


def either_matters(log_size: Tensor, either: Tensor) -> Tensor:
    """Return which terms, or masses of P or Q, are not negligible."""
    return (log_size > log_size.amax(-1, keepdim=True) - NEGLIGIBLE) | (either > -NEGLIGIBLE)


def span(v: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last point before the kept points of a sorted grid, and the first point after them."""
    last = v.shape[-1] - 1
    first_kept = kept.to(torch.uint8).argmax(-1, keepdim=True)
    last_kept = last - kept.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
    return v.gather(-1, (first_kept - 1).clamp(min=0)), v.gather(-1, (last_kept + 1).clamp(max=last))


def runs_away(log_size: Tensor, there: Tensor) -> Tensor:
    """Return where the terms do not fall up to the last point at which a density is known."""
    log_size = torch.where(there, log_size, -torch.inf)
    count = there.shape[-1]
    last = count - 1 - there.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
    end, before = (log_size.gather(-1, (last - k).clamp(min=0)).squeeze(-1) for k in (0, 12))
    return (end >= before) & (end >= log_size.amax(-1) - NEGLIGIBLE) & there.any(-1)


def last_where(holds: Callable[[Tensor], Tensor], first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return neighbors between two points: a condition holds at the first, and no longer at the second.

    `holds` gets the same number of points of each interval, one interval after the other along the last dimension. Few
    intervals are cut into four parts at a step: half as many calls take less time. Many are bisected.
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


def first_edges(start: Tensor, stop: Tensor, breakpoints: list[Tensor], panels: int) -> tuple[Tensor, Tensor]:
    """Return the ends of the first panels: equal panels from `start` to `stop`, cut at the breakpoints between.

    A peak that is much narrower than a panel is cut at all its breakpoints, on its own scale. Otherwise all nodes of a
    panel that begins next to the peak could miss it.
    """
    size = (stop - start) / panels
    edges = [
        start + (stop - start) * torch.linspace(0, 1, panels + 1, dtype=start.dtype, device=start.device)
    ]
    for marks in _snapped(breakpoints):
        if marks.shape[-1] == len(_STEPS):
            center = marks[..., _MIDDLE : _MIDDLE + 1]
            width = (marks[..., _MIDDLE + 1] - marks[..., _MIDDLE - 1]).abs().unsqueeze(-1) / 2
            inside = (marks.amax(-1, keepdim=True) > start) & (marks.amin(-1, keepdim=True) < stop)
            is_narrow = inside & (width < _NARROW * size)
            if bool(is_narrow.any()):
                ladder = torch.where((marks - center).abs() > size, center, marks)
                coarse = torch.full_like(marks, torch.nan)  # for elements without a narrow peak
                coarse[..., _COARSE] = marks[..., _COARSE]
                marks = torch.where(is_narrow, ladder, torch.where(coarse.isnan(), center, coarse))  # noqa: PLW2901
            else:
                marks = marks[..., _COARSE]  # noqa: PLW2901
        edges.append(torch.maximum(torch.minimum(marks, stop), start))
    sorted_edges = torch.cat(edges, -1).sort(-1).values
    lower, upper = sorted_edges[..., :-1], sorted_edges[..., 1:]
    used = int((upper > lower).sum(-1).max())
    if used == lower.shape[-1]:
        return lower, upper
    index = (upper - lower).topk(max(used, 1), dim=-1).indices
    return lower.gather(-1, index), upper.gather(-1, index)


# ---- The rule.


def panel_nodes(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes of panels, shape (..., panels, 15), and half the panels' widths."""
    half = (upper - lower).unsqueeze(-1) / 2
    return (upper + lower).unsqueeze(-1) / 2 + half * NODES.to(half.device), half


def integrate_panels(f: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Return Kronrod's integrals over the panels and their errors.

    The error is QUADPACK's power of the difference from Gauss's rule, which falls as fast as the error of a smooth
    integrand. If this difference is not smaller than the difference from a third rule of lower degree, the integrand
    has a corner. Then the error is the difference itself.
    """
    weights = WEIGHTS.to(f.device)
    fine, coarse, other = (torch.matmul(f, weights) * half).unbind(-1)
    size = torch.matmul(f.abs(), weights[:, 0]) * half.squeeze(-1)
    difference = (coarse - fine).abs()
    powered = size * (200 * difference / size.clamp(min=1e-300)) ** 1.5
    cornered = 100 * difference**2 / (other - fine).abs().clamp(min=1e-300)
    return fine, torch.minimum(difference, torch.maximum(powered, cornered)) + 2e-16 * size


def relative_errors(errors: Tensor, sizes: Tensor) -> Tensor:
    """Return the largest error of each panel in units of the sum of the sizes over all panels."""
    return (errors / sizes.sum(-1, keepdim=True).clamp(min=1e-300)).amax(0)


def rounding_error(
    line: Line, f: Tensor, changes: list[tuple[Tensor, Tensor]], lower: Tensor, upper: Tensor
) -> Tensor:
    """Bound the rounding error of the integral of f over panels: from logarithms, and from the places of the nodes.

    Arguments:
        line: the line of the panels.
        f: the integrand at the nodes.
        changes: the derivative of f by a logarithm, and that logarithm, for each logarithm in f.
        lower: where the panels begin.
        upper: where they end.
    """
    half = (upper - lower).unsqueeze(-1) / 2
    of_logs = f.abs()
    for by_log, log in changes:
        of_logs = of_logs + (by_log * (1 + log.abs())).nan_to_num(nan=0.0, posinf=0.0)
    of_logs = (of_logs * WEIGHTS_KRONROD.to(f.device) * half).sum(-1)
    of_places = f.diff(dim=-1).abs().sum(-1) * line.resolution(lower, upper)
    return _EPS * (of_logs + of_places)
