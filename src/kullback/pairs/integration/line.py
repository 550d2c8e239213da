"""The variable of integration v for a part of the real line, and the first panels, as intervals of v.

A `Coordinate` maps the part of the line to a coordinate t that runs over all reals, and t = center + width sinh(v). The
map from v to t is nearly linear near the center, and grows fast enough to reach the end of every tail. The panels span
the part where the integrand is not negligible, and are cut where the densities have peaks.

A break is a corner or a jump of an integrand. If its position depends on the parameters, it contributes to derivatives.
The derivatives of an integral are the derivatives of the sum over the nodes. In a panel next to a jump, the edge, the
nodes and the weights depend on the position of the jump. So they have derivatives. All other nodes are
constants. A corner does not contribute to the first derivatives. The corner's contribution to the second derivative is
the change of the integrand's slope at the corner times the square of the derivative of the corner's position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.pairs.densities.density import Coordinate, Density, Points
from kullback.pairs.integration.panels import WEIGHTS_KRONROD, Places
from kullback.pairs.numerics.parameters import is_tracked

NEGLIGIBLE = 46.0
"""An integrand below e^-46 = 1e-20 of its largest value is ignored, because this fraction is far below rounding errors.

In benchmarks/panel_constants.py, the value 60 needs 7 % more evaluation points than 46.
"""
OUTERMOST = 690.0
"""The largest |v|: for |v| > 710, sinh(v) overflows float64."""
NEAREST = -345.0
"""The logarithm of the smallest distance d from an end: 1 / d^2 = e^690 does not overflow float64."""
UNDERFLOW = -700.0
"""The logarithm below which a mass counts as 0: the smallest normal float is e^-708."""
# `out_to_ends` adds _OUTER_PANELS panels between an end of the line and the nearest panel that contributes to the
# value. In benchmarks/panel_constants.py, all answers are correct for values from 8 to 48.
_OUTER_PANELS = 24
# _EPS bounds the relative rounding error of a few operations. The tests in tests/pairs/test_sweep.py compare the error
# bounds with the true errors.
_EPS = 8 * torch.finfo(torch.float64).eps
# _LADDER lists the distances of a density's breakpoints from its center, in units of the density's width. The distances
# from 40 to 5e9 are needed for the log-density of a mixture, which nearly has a corner wherever another component
# becomes the largest.
_LADDER = [1.0, 2.0, 4.0, 8.0, 16.0, 40.0, *(40 * 3.0**k for k in range(1, 18))]
_STEPS = torch.tensor([*(-x for x in reversed(_LADDER)), 0.0, *_LADDER], dtype=torch.float64, device="cpu")
# _COARSE selects the breakpoints that suffice unless a peak is narrow: the center and the points two widths from the
# center.
_MIDDLE = len(_LADDER)
_COARSE = [_MIDDLE - 2, _MIDDLE, _MIDDLE + 2]
_IS_COARSE = torch.tensor([k in _COARSE for k in range(len(_STEPS))], device="cpu")
# _NEAR selects the breakpoints up to 40 widths from the center. Farther from the center, a peak has negligible mass.
_NEAR = slice(_MIDDLE - 6, _MIDDLE + 7)
# If the densities have more than _MANY_PEAKS peaks, nearby peaks share breakpoints. In benchmarks/panel_constants.py,
# all answers are correct for values from 4 to 64.
_MANY_PEAKS = 16
# A peak is narrow if its width is less than _NARROW times the width of a panel. In benchmarks/panel_constants.py, the
# value 0.05 needs 2 % fewer evaluation points than 0.25, and the value 1 needs 3 % more.
_NARROW = 0.25
# A scan evaluates the densities on a sorted grid of points v, to find the span of the first panels. Every scan includes
# these positive points v. The spacing is 1/8 up to 10, and then geometric up to OUTERMOST.
_POSITIVE = [
    torch.arange(0.125, 10.0, 0.125, dtype=torch.float64, device="cpu"),
    torch.logspace(1.0, math.log10(OUTERMOST), 56, dtype=torch.float64, device="cpu"),
]
_GRID = torch.cat(
    [-torch.cat(_POSITIVE).flip(0), torch.zeros(1, dtype=torch.float64, device="cpu"), *_POSITIVE]
)


# `Placed` is a density with the coordinate that maps the density's support to the whole line.
Placed = tuple[Density, Coordinate]


class Line(NamedTuple):
    """A part of the real line with a coordinate t, and the map from the variable of integration v to t."""

    coordinate: Coordinate
    center: Tensor
    width: Tensor

    def t(self, v: Tensor) -> Tensor:
        """Return the coordinate t at v."""
        return self.center + self.width * torch.sinh(v)

    def v(self, t: Tensor) -> Tensor:
        """Return v at the coordinate t."""
        return torch.asinh((t - self.center) / self.width)

    def points(self, v: Tensor) -> tuple[Points, Tensor]:
        """Return the points x at v, and log dx/dv at these points."""
        t = self.t(v)
        log_cosh = v.abs() + torch.log1p(torch.exp(-2 * v.abs())) - math.log(2)
        log_jacobian = self.coordinate.log_jacobian(t) + torch.log(self.width) + log_cosh
        return self.coordinate.points(t), log_jacobian

    def marks(self, densities: Sequence[Placed], *places: Tensor) -> list[Tensor]:
        """Return, as values of v, the breakpoints of densities and further breakpoints given as x in `places`."""
        return self.within_range(breakpoints_on(self.coordinate, densities, self.center.shape, *places))

    def within_range(self, breakpoints: list[Tensor]) -> list[Tensor]:
        """Return breakpoints, given as values of t, as values of v clamped to [-OUTERMOST, OUTERMOST]."""
        v = self.v(torch.cat(breakpoints, -1)).nan_to_num(nan=0.0).clamp(-OUTERMOST, OUTERMOST)
        return list(v.split([x.shape[-1] for x in breakpoints], -1))

    def rounding(
        self, f: Tensor, changes: list[tuple[Tensor, Tensor]], lower: Tensor, upper: Tensor
    ) -> Tensor:
        """Bound the rounding error of the integral of f over panels, from the logarithms in f and from the nodes.

        `changes` has, for each logarithm in f, the derivative of f with respect to it, and the logarithm itself.
        """
        half = (upper - lower).unsqueeze(-1) / 2
        of_logs = f.abs()
        for by_log, log in changes:
            of_logs = of_logs + (by_log * (1 + log.abs())).nan_to_num(nan=0.0, posinf=0.0)
        of_logs = (of_logs * WEIGHTS_KRONROD.to(f.device) * half).sum(-1)
        # `resolution` is the rounding error of the nodes v in units of machine epsilon.
        nearest = torch.where(lower * upper < 0, 0, torch.minimum(lower.abs(), upper.abs()))
        farthest = torch.maximum(lower.abs(), upper.abs())
        resolution = 1 + farthest + self.center.abs() / (self.width * torch.cosh(nearest))
        return _EPS * (of_logs + f.diff(dim=-1).abs().sum(-1) * resolution)


def breakpoints_on(
    coordinate: Coordinate, densities: Sequence[Placed], shape: torch.Size, *places: Tensor
) -> list[Tensor]:
    """Return a list of the breakpoints of densities, as values of `coordinate`.

    The list has a tensor of shape (..., steps) for each peak of a density. For each point at which a density is not
    smooth, and for each point x in `places`, the list has a tensor of shape (..., 1).
    """
    breakpoints: list[Tensor] = []
    for density, own in densities:
        peaks = density.breakpoints(_STEPS)
        breakpoints += (
            peaks
            if own is coordinate or _is_same(own, coordinate)
            else [coordinate.of(own.points(marks).x) for marks in peaks]
        )
        breakpoints += map(coordinate.of, density.nonsmooth_points())
    breakpoints += map(coordinate.of, places)
    return [marks.expand(*shape[:-1], marks.shape[-1] if marks.ndim else 1) for marks in breakpoints]


def _is_same(coordinate: Coordinate, other: Coordinate) -> bool:
    for end, end_of_other in ((coordinate.low, other.low), (coordinate.high, other.high)):
        if end is not end_of_other and (
            end is None or end_of_other is None or not bool((end == end_of_other).all())
        ):
            return False
    return True


def scan_points(breakpoints: list[Tensor]) -> Tensor:
    """Return a sorted grid of points v, with the breakpoints, where densities are evaluated to find the needed span."""
    are_many = len(breakpoints) > _MANY_PEAKS
    marks = _snapped(breakpoints) if are_many else breakpoints
    marks = [x[..., _NEAR] if x.shape[-1] == len(_STEPS) else x for x in marks]
    grid = _GRID.to(marks[0].device).expand(*marks[0].shape[:-1], -1)
    v = torch.cat([grid, *marks], -1).sort(-1).values
    if not are_many:
        return v
    steps = v.diff(dim=-1)
    different = max(int((steps > 0).sum(-1).max()), 1)
    index = steps.topk(different, dim=-1).indices.sort(-1).values
    return torch.cat([v[..., :1], v.gather(-1, index + 1)], -1)


def first_edges(start: Tensor, stop: Tensor, breakpoints: list[Tensor], panels: int) -> Places:
    """Return the edges of the first panels: equal panels from `start` to `stop`, cut at the breakpoints in between.

    If a peak is much narrower than a panel, the panels are also cut at the breakpoints within a panel's width from the
    peak's center. Without these cuts, the peak could fall between the nodes of a panel.
    """
    size = (stop - start) / panels
    steps = torch.linspace(0, 1, panels + 1, dtype=start.dtype, device=start.device)
    edges = [start + (stop - start) * steps]
    for marks in _snapped(breakpoints) if len(breakpoints) > _MANY_PEAKS else breakpoints:
        used = marks
        if marks.shape[-1] == len(_STEPS):
            center = marks[..., _MIDDLE : _MIDDLE + 1]
            width = (marks[..., _MIDDLE + 1] - marks[..., _MIDDLE - 1]).abs().unsqueeze(-1) / 2
            inside = (marks.amax(-1, keepdim=True) > start) & (marks.amin(-1, keepdim=True) < stop)
            is_narrow = inside & (width < _NARROW * size)
            used = marks[..., _COARSE]
            if bool(is_narrow.any()):
                is_used = torch.where(is_narrow, (marks - center).abs() <= size, _IS_COARSE.to(marks.device))
                used = torch.where(is_used, marks, center)
        edges.append(torch.maximum(torch.minimum(used, stop), start))
    sorted_edges = torch.cat(edges, -1).sort(-1).values
    lower, upper = sorted_edges[..., :-1], sorted_edges[..., 1:]
    used_panels = int((upper > lower).sum(-1).max())
    if used_panels == lower.shape[-1]:
        return lower, upper
    index = (upper - lower).topk(max(used_panels, 1), dim=-1).indices
    return lower.gather(-1, index), upper.gather(-1, index)


def _snapped(breakpoints: list[Tensor]) -> list[Tensor]:
    """Round the breakpoints of each peak to a grid of about the peak's width, so that nearby peaks share breakpoints.

    The number of panels then depends on the widths of the peaks, not on the number of components of a mixture.
    """
    snapped: list[Tensor] = []
    for marks in breakpoints:
        if marks.shape[-1] == len(_STEPS):
            center = marks[..., _MIDDLE : _MIDDLE + 1]
            width = (marks[..., _MIDDLE + 1] - marks[..., _MIDDLE - 1]).abs().unsqueeze(-1) / 2
            reach = torch.maximum((marks - center).abs() / 2, width).clamp(min=1e-30)
            unit = torch.exp2(torch.floor(torch.log2(reach)))
            snapped.append(torch.round(marks / unit) * unit)
        else:
            snapped.append(marks)
    return snapped


def without_ladders(breakpoints: list[Tensor]) -> list[Tensor]:
    """Return the breakpoints, but for each peak only its center and the points two widths from the center."""
    return [x[..., _COARSE] if x.shape[-1] == len(_STEPS) else x for x in breakpoints]


def matters(log_f: Tensor) -> Tensor:
    """Return a mask of the points where f is not negligible relative to its largest value, from `log_f` = log f."""
    return log_f > log_f.amax(-1, keepdim=True) - NEGLIGIBLE


def span(v: Tensor, is_needed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last point of a sorted grid before all needed points, and the first after them, shape (..., 1)."""
    last = v.shape[-1] - 1
    first = is_needed.to(torch.uint8).argmax(-1, keepdim=True)
    final = last - is_needed.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
    return v.gather(-1, (first - 1).clamp(min=0)), v.gather(-1, (final + 1).clamp(max=last))


def out_to_ends(line: Line, lower: Tensor, upper: Tensor) -> Places:
    """Return the panels, and additional panels up to the distance e^NEAREST from each finite end of the line.

    The additional panels have almost no mass, but may contribute most of the derivative with respect to an end.
    """
    steps = torch.linspace(0, 1, _OUTER_PANELS + 1, dtype=lower.dtype, device=lower.device)
    for end, side in ((line.coordinate.low, -1), (line.coordinate.high, 1)):
        if end is None:
            continue
        edge = outer_edge(lower, upper, side)
        t = line.t(edge)
        farthest = torch.where(end.isfinite(), side * (side * t).clamp(min=-NEAREST), t)
        edges = line.v(t + (farthest - t) * steps)
        lower, upper = with_panels(lower, upper, edge + side * (side * (edges - edge)).clamp(min=0))
    return lower, upper


def outer_edge(lower: Tensor, upper: Tensor, side: int) -> Tensor:
    """Return the lowest edge of each batch element's panels if `side` is -1, else the highest edge; shape (..., 1)."""
    return lower.amin(-1, keepdim=True) if side < 0 else upper.amax(-1, keepdim=True)


def with_panels(lower: Tensor, upper: Tensor, edges: Tensor) -> Places:
    """Return the panels from `lower` to `upper`, followed by panels between consecutive `edges`."""
    edges = edges.sort(-1).values
    return torch.cat([lower, edges[..., :-1]], -1), torch.cat([upper, edges[..., 1:]], -1)


# _STEP_SIZES are the step sizes of the finite differences for one-sided slopes, relative to the span of the panels. The
# log-density may have another break at any distance, so the smallest step is 8^-15, which is close to rounding.
_STEP_SIZES = 8.0 ** -torch.arange(0, 16, dtype=torch.float64, device="cpu")
# _FOR_LEVEL and _FOR_SLOPE are weights of a function's values at x + h, ..., x + 5 h. The weighted sums extrapolate the
# value at x, and h times the slope at x. The extrapolation is exact for polynomials of degree 4.
_FOR_LEVEL = torch.tensor([5.0, -10.0, 10.0, -5.0, 1.0], dtype=torch.float64, device="cpu")
_FOR_SLOPE = torch.tensor([-77.0, 214.0, -234.0, 122.0, -25.0], dtype=torch.float64, device="cpu") / 12
# The absolute values of _FOR_SLOPE add up to 56, and each value has a relative rounding error near eps. So _ROUNDING
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

    The densities and the line are differentiable, unlike `log_densities`. The edges have shape (..., panels).
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
    step = reach.unsqueeze(-1) * _STEP_SIZES.to(place.device)
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
