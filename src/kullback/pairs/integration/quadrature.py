"""The KL divergence of two densities on the real line: adaptive quadrature over P's support, with an error.

The nodes are constants in the variable of integration v, and a differentiable sum over the nodes gives the value. So
every parameter has a gradient, including the ends of the support. The derivatives with respect to the ends of a Uniform
P follow from the values of the integrand at the ends. If p log(p / q) falls slowly in a tail, a closed form gives the
integral over the tail beyond the range of float64.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.pairs.densities.density import Coordinate, Density, Points
from kullback.pairs.families.uniform import UniformDensity
from kullback.pairs.integration.divergence_terms import KLColumns, KLTotals, kl_forms
from kullback.pairs.integration.line import (
    NEGLIGIBLE,
    OUTERMOST,
    UNDERFLOW,
    Line,
    corner_terms,
    find_breaks,
    first_edges,
    matters,
    moving,
    out_to_ends,
    outer_edge,
    scan_points,
    span,
    with_panels,
    without_ladders,
)
from kullback.pairs.integration.panels import (
    LINE,
    SAFETY,
    WEIGHTS_KRONROD,
    Integral,
    Panels,
    Places,
    integrate,
    integrate_panels,
    panel_nodes,
)
from kullback.pairs.numerics.parameters import is_tracked
from kullback.pairs.solve_options import MASS_ERROR, Tolerance
from kullback.pairs.support import tail_margins

# At the distance e^_FARTHEST, panels end and a closed form begins. The function log q may grow as the square of the
# distance, and the square of e^_FARTHEST does not overflow float64. In benchmarks/panel_constants.py, all answers are
# correct for values from 300 to 350.
_FARTHEST = 345.0
# _NOT_A_POWER bounds the relative deviation of the tail from a pure power at the distance e^_FARTHEST = 7e149.
_NOT_A_POWER = 1e-12
# _READ is the error of a tail's power that is estimated from values of the density, as in densities/black_box.py.
_READ = 1e-7


class SlowTail(NamedTuple):
    """An end of P's support where p log(p / q) falls as a small power of the distance u, for some batch elements.

    With s = log u, the integrand is C e^(-margin s) for s > _FARTHEST. So the integral from _FARTHEST to infinity is
    the integrand at _FARTHEST divided by the margin. `side` is -1 for the lower end and 1 for the upper end. `is_slow`
    is the mask of the batch elements with such a tail, and `v` and `t` are the coordinates of the point s = _FARTHEST.
    """

    side: int
    is_slow: Tensor
    v: Tensor
    t: Tensor
    on_line: bool

    def cut(self, start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
        """Return the span of the panels, cut at the point where the closed form of the tail begins."""
        if self.side < 0:
            return torch.where(self.is_slow, torch.maximum(start, self.v), start), stop
        return start, torch.where(self.is_slow, torch.minimum(stop, self.v), stop)

    def rest(self, p: Density, q: Density, is_finite: Tensor) -> tuple[Tensor, Tensor]:
        """Return the integral beyond _FARTHEST, with its gradient, and its error; both are 0 without a slow tail."""
        margin = tail_margins(p, q)[0 if self.side < 0 else 1]
        is_slow = self.is_slow & is_finite.unsqueeze(-1)
        if margin is None:
            zero = torch.zeros_like(is_finite, dtype=torch.float64)
            return zero, zero
        coordinate = p.coordinate()
        t = torch.where(is_slow, self.t, p.center_and_width()[0].detach())
        at = coordinate.points(t)
        log_p, log_q = p.log_density(at), q.log_density(at)
        log_jacobian = coordinate.log_jacobian(t) + (torch.log(t.abs().clamp(min=1)) if self.on_line else 0)
        height = torch.exp(torch.where(is_slow, log_p + log_jacobian, -torch.inf)) * (log_p - log_q)
        integral = torch.where(is_slow, height / torch.where(is_slow, margin, 1), 0).squeeze(-1)
        is_read = not (p.is_splittable() and q.is_splittable())
        relative = _NOT_A_POWER + (_READ / margin.detach() if is_read else 0)
        return integral, torch.where(is_slow, relative * integral.detach().abs().unsqueeze(-1), 0).squeeze(-1)


def slow_tails(p: Density, q: Density, line: Line) -> list[SlowTail]:
    """Return the slow tails at the lower and at the upper end of P's support; at most two."""
    tails: list[SlowTail] = []
    on_line = line.coordinate.low is None and line.coordinate.high is None
    far = torch.full_like(line.center, _FARTHEST)
    for side, margin in zip((-1, 1), tail_margins(p, q), strict=True):
        if margin is None:
            continue
        is_slow = ((margin > 0) & (margin * _FARTHEST < NEGLIGIBLE)).expand_as(line.center)
        if bool(is_slow.any()):
            t = side * (torch.exp(far) if on_line else far)
            tails.append(SlowTail(side, is_slow, line.v(t), t, on_line))
    return tails


# _FIRST_PANELS is the number of equal panels before they are cut at breakpoints. In benchmarks/panel_constants.py, 8
# panels need 1 % more evaluation points than 16, and 32 panels need 4 % more.
_FIRST_PANELS = 16
# If log q falls below _OVERFLOW, log q = -inf farther out is an overflow, not the end of Q's support.
_OVERFLOW = -1e250
# A divergence counts as infinite if a user's q is 0 on panels with at least the share _LITTLE of P's mass.
_LITTLE = 1e-5
# _LEAST_DISTANCE is the smallest distance from an end at 0 at which q is evaluated. The square of this distance does
# not underflow.
_LEAST_DISTANCE = 1e-100


class _Pair(NamedTuple):
    """The densities of P and Q, and the `Line` of P's support."""

    p: Density
    q: Density
    line: Line

    def log_densities(self, v: Tensor, is_needed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return log(p dx/dv) and log(q dx/dv) at v; arbitrary finite numbers where `is_needed` is false."""
        at, log_jacobian = self.line.points(v if is_needed is None else torch.where(is_needed, v, 0))
        return self.p.log_density(at) + log_jacobian, self.q.log_density(at) + log_jacobian

    def clean_log_densities(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log(p dx/dv), log(q dx/dv) and log dx/dv at v, with -inf in place of NaN.

        Where log q is -inf by overflow, log p is -inf too, so that the integrand is 0.
        """
        at, log_jacobian = self.line.points(v)
        log_p, log_q = self.p.log_density(at) + log_jacobian, self.q.log_density(at) + log_jacobian
        log_p = torch.where(log_p.isnan(), -torch.inf, log_p)
        log_q = torch.where(log_q.isnan(), -torch.inf, log_q)
        overflown = (log_q == -torch.inf) & at.is_extreme()
        return torch.where(overflown, -torch.inf, log_p), log_q, log_jacobian


def integrate_kl(
    p: Density,
    q: Density,
    batch_shape: torch.Size,
    target: Tolerance,
    *,
    q_reaches_out: bool = False,
    has_derivatives: bool = True,
) -> Integral:
    """Return the integral of the terms of KL over P's support, also with exact derivatives for the ends of a Uniform P.

    If P is not Uniform, the nodes x depend on the ends of P's support. If P is Uniform, the nodes x are constants. Then
    the result includes, for each end, the integral of the terms from the end to the detached value of the end. The
    midpoint rule gives this integral as the difference of both, which is 0 but has derivatives, times the integrand at
    the midpoint. The first and second derivatives of this integral are exact. The derivatives use q next to the end,
    where the nodes may be too sparse to resolve q.

    Arguments:
        p: the density of P, with parameters of shape (..., 1): the last dimension is for the nodes.
        q: the density of Q, with parameters of shape (..., 1); its support contains P's support.
        batch_shape: the broadcast shape of the parameters, without the last dimension.
        target: the required error, and the limit on nodes.
        q_reaches_out: whether a change of a parameter may leave some of Q's mass outside P's support.
        has_derivatives: whether the derivative with respect to a parameter of P or Q may be needed.
    """
    uniform = None
    if isinstance(p, UniformDensity) and torch.is_grad_enabled():
        # An end at which q is 0 or infinite becomes a constant, because the derivative with respect to this end is
        # infinite.
        ends = ((end, end.detach()) for end in (p.lower, p.upper))
        p = uniform = UniformDensity(
            *(torch.where(q.detached().log_density(Points(x)).isfinite(), end, x) for end, x in ends)
        )
    moves_nodes = uniform is None
    fixed_p, fixed_q = (p.detached(), q.detached()) if has_derivatives else (p, q)
    with torch.no_grad():
        center, width = fixed_p.center_and_width()
        of_p, of_q = fixed_p.coordinate(), fixed_q.coordinate()
        line = Line(of_p, center.expand(*batch_shape, 1), width.expand(*batch_shape, 1))
        pair = _Pair(fixed_p, fixed_q, line)
        # If the ends of P and Q differ, Q's mass on P's support is not 1 and depends on P's ends. So the terms must be
        # p log(p / q), not p log(p / q) - p + q.
        same_ends = _have_same_ends(of_p, of_q) & (not q_reaches_out)
        tails = slow_tails(fixed_p, fixed_q, line)
        judged: list[tuple[KLTotals, Tensor]] = []  # the sums over the current panels

        def judge(parts: list[Panels]) -> tuple[Tensor, list[Tensor]]:
            columns, mass_errors = KLColumns(*parts[0].columns[:-1]), parts[0].columns[-1]
            beyond = (columns.mass_q.sum(-1) - 1).abs()  # the mass of Q outside the panels
            is_whole = same_ends & (beyond < 1e-11)
            totals = columns.totals(is_whole)
            totals = totals._replace(
                rounding=totals.rounding + torch.where(is_whole & (beyond > 1e-14), beyond, 0)
            )
            judged[:] = [(totals, is_whole)]
            has_mass = mass_errors.sum(-1) <= MASS_ERROR
            enough = totals.are_enough(target, SAFETY) & has_mass | ~totals.value.isfinite()
            return enough, [torch.where(has_mass.unsqueeze(-1), totals.errors, mass_errors)]

        marks = line.marks([(fixed_p, of_p), (fixed_q, of_q)])
        edges, overflows = _edges(pair, marks, tails)
        (panels,) = integrate(LINE, [(edges, partial(_integrated, pair))], judge, target.max_evaluations)
        totals, is_whole = judged[-1]
        unintegrated = 1 - KLColumns(*panels.columns[:-1]).mass_p.sum(-1)
        mean = totals.value.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        value = totals.value + mean * unintegrated
        is_finite = value.isfinite()
        # If log q overflows, the value is inf or NaN, but the integral may be finite.
        endless = torch.where(overflows | _is_unsure(value, p, q, panels), torch.inf, 0.0)
        error = torch.where(is_finite, SAFETY * totals.error + totals.rounding, endless)
    if torch.is_grad_enabled():
        lower, upper = panels.places
        if moves_nodes:
            lower, upper = _out_to_breakpoints(line, marks, p, lower, upper)
            if q_reaches_out:
                lower, upper = out_to_ends(line, lower, upper)
            line = line._replace(coordinate=p.coordinate())
        is_whole = is_whole & moves_nodes
        total = _differentiable_sum(_Pair(p, q, line), pair, lower, upper, is_whole, is_finite, mean)
        value = torch.where(is_finite, total if moves_nodes else value + (total - total.detach()), value)
    for tail in tails:
        rest, rest_error = tail.rest(p, q, is_finite)
        value, error = value + rest, error + rest_error
    if uniform is not None:
        mean = torch.where(value.isfinite(), value, 0).detach().unsqueeze(-1)
        for end, inwards in ((uniform.lower, 1), (uniform.upper, -1)):
            if is_tracked(end):
                value = value + (inwards * _between(end, uniform, q, mean)).squeeze(-1)
    return Integral(value, error, unintegrated.abs())


def _is_unsure(value: Tensor, p: Density, q: Density, panels: Panels) -> Tensor:
    """Return a mask of the elements with an unknown value, or with an infinite one that may be finite.

    A user's log_prob may be -inf next to an end, because x is rounded. Then q is 0 only on panels with little of P's
    mass.
    """
    unknown = value.isnan() | (value == -torch.inf)
    if bool(value.isfinite().all()) or (p.is_splittable() and q.is_splittable()):
        return unknown
    columns = KLColumns(*panels.columns[:-1])
    mass = torch.where(columns.values[1].isfinite(), 0, columns.mass_p).sum(-1)
    return unknown | (mass < _LITTLE)


def _between(end: Tensor, p: UniformDensity, q: Density, mean: Tensor) -> Tensor:
    """Return a 0 with the derivatives of the integral of p (log(p / q) - mean) from `end` to its current value."""
    fixed = end.detach()
    level = q.detached().log_density(Points(fixed))
    is_known = level.isfinite()
    middle = (p.lower + p.upper).detach() / 2
    low, high = q.detached().ends()
    # At an end of Q's support, log q may have no derivative, so log q is evaluated just inside the support.
    inside = fixed + (middle - fixed).sign() * (
        4 * torch.finfo(fixed.dtype).eps * fixed.abs() + _LEAST_DISTANCE
    )
    at = torch.where((fixed == low) | (fixed == high), inside, fixed)
    at = torch.where(is_known, at + (end - fixed) / 2, middle)
    log_q = q.log_density(Points(at))
    log_q = torch.where(is_known, level, log_q.detach()) + (log_q - log_q.detach())
    log_p = -torch.log(p.upper - p.lower)
    f = torch.exp(log_p) * (log_p - log_q - mean)
    return torch.where(is_known, (fixed - end) * f, 0)


def _have_same_ends(first: Coordinate, second: Coordinate) -> Tensor:
    same = torch.ones(1, dtype=torch.bool, device="cpu")
    for infinite, *ends in ((-torch.inf, first.low, second.low), (torch.inf, first.high, second.high)):
        if ends[0] is not ends[1]:
            end, other = (infinite if x is None else x for x in ends)
            same = same & (end == other)
    return same.squeeze(-1)


def _edges(pair: _Pair, marks: list[Tensor], tails: list[SlowTail]) -> tuple[Places, Tensor]:
    """Return the first panels where the terms are not negligible, and a mask of elements whose log q overflows."""
    v = scan_points(marks)
    log_p, log_q, _ = pair.clean_log_densities(v)
    # `log_size` is the logarithm of the approximate size of the integrand, p (1 + |log(p / q)|).
    log_size = log_p + torch.log1p((log_p - log_q).abs().nan_to_num(nan=0.0, posinf=1e300))
    overflows = (log_q < _OVERFLOW) & (log_q > -torch.inf) & (log_p > -torch.inf)
    start, stop = span(v, matters(torch.stack([log_size, log_p])).any(0))
    for tail in tails:
        start, stop = tail.cut(start, stop)
    return first_edges(start, stop, marks, _FIRST_PANELS), overflows.any(-1)


def _integrated(pair: _Pair, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
    """Return the fields of `KLColumns` for the panels, followed by the error of P's mass on each panel."""
    v, half = panel_nodes(lower, upper)
    log_p, log_q, log_jacobian = pair.clean_log_densities(v.flatten(-2))
    log_p, log_q, log_jacobian = log_p.reshape(v.shape), log_q.reshape(v.shape), log_jacobian.reshape(v.shape)
    p, q = torch.exp(log_p), torch.exp(log_q)
    f = kl_forms(log_p, log_q)
    integrals, errors = integrate_panels(torch.cat([f, torch.stack([p, q])]), half)
    # The derivative with respect to log q is q - p for the term p log(p / q) - p + q, and -p for the term p log(p / q).
    by_q = torch.stack([(p - q).abs(), p])
    by_p = p * (log_p - log_q).abs() + torch.stack([torch.zeros_like(p), p])
    changes = [(by_p, log_p), (by_q, log_q), (f.abs(), log_jacobian)]
    roundings = pair.line.rounding(f, changes, lower, upper)
    return (*KLColumns(integrals[:2], errors[:2], roundings, integrals[2], integrals[3]), errors[2])


def _out_to_breakpoints(line: Line, marks: list[Tensor], p: Density, lower: Tensor, upper: Tensor) -> Places:
    """Add panels near an end of P that depends on a parameter, if a breakpoint is closer to this end than all panels.

    P's mass there is negligible for the value, but q determines the derivative by the end.
    """
    with torch.no_grad():
        places = torch.cat(without_ladders(marks), -1)
        t = line.t(torch.where(places.abs() < OUTERMOST, places, 0))
        steps = torch.linspace(0, 1, 2 * _FIRST_PANELS + 1, dtype=t.dtype, device=t.device)
        for end, side in ((p.low, -1), (p.high, 1)):
            if end is None or not is_tracked(end):
                continue
            edge = outer_edge(lower, upper, side)
            beyond = side * (side * t).amax(-1, keepdim=True) + side * NEGLIGIBLE / 2
            more = side * torch.maximum(side * line.v(beyond), side * edge) - edge
            if bool((more != 0).any()):
                lower, upper = with_panels(lower, upper, edge + more * steps)
    return lower, upper


def _differentiable_sum(
    pair: _Pair, fixed: _Pair, lower: Tensor, upper: Tensor, is_whole: Tensor, is_finite: Tensor, mean: Tensor
) -> Tensor:
    """Return the sum of the terms over the nodes, plus `mean` times (1 - P's mass on the nodes).

    The second summand, which is about 0, changes the factor of the derivative of p from log(p / q) to log(p / q) -
    mean. Without this change, the rounding error of the derivative of P's mass would be multiplied by `mean`, which may
    be large. The result is 0 for batch elements with an infinite value.
    """
    whole = is_whole.unsqueeze(-1)
    breaks = find_breaks((pair.p, pair.q), pair.line, fixed.log_densities, lower, upper)
    v, half = panel_nodes(moving(lower, breaks), moving(upper, breaks))
    weights = (WEIGHTS_KRONROD.to(v.device) * half).flatten(-2)
    v = v.flatten(-2)
    with torch.no_grad():
        log_p, log_q, _ = fixed.clean_log_densities(v.detach())
        counted = (weights.detach() > 0) & is_finite.unsqueeze(-1)
        is_needed = (log_p > UNDERFLOW) & counted
        lone = (log_q > UNDERFLOW) & counted & ~is_needed & whole  # nodes with mass of Q only
    log_p, log_q = pair.log_densities(v, is_needed)
    f = torch.where(whole, *kl_forms(log_p, log_q))
    mass = torch.where(is_needed, torch.exp(log_p) * weights, 0).sum(-1)
    total = torch.where(is_needed, f * weights, 0).sum(-1) + mean * (1 - mass)
    if bool(lone.any()):
        _, log_q = pair.log_densities(v, lone)
        total = total + torch.where(lone, torch.exp(log_q) * weights, 0).sum(-1)

    def derivatives(place: Tensor) -> tuple[Tensor, Tensor]:
        log_p, log_q = fixed.log_densities(place)
        p, q = torch.exp(log_p), torch.exp(log_q)
        by_p = p * (log_p - log_q - mean.unsqueeze(-1))
        return torch.where(whole, by_p, by_p + p), torch.where(whole, q - p, -p)

    return total + torch.where(is_finite, corner_terms(breaks, derivatives), 0)
