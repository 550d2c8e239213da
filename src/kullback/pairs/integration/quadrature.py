"""The divergence of two laws on the line by adaptive quadrature, with an error for each element of the batch.

The integral runs over v, where P's own coordinate is t = center + width sinh(v): near the middle of P a straight
line, far out fast enough to meet any tail. The panels of each element of the batch are split where its own error is
largest; all elements have as many. The nodes found are then constants, and one differentiable sum over them gives the
value: the gradient reaches every parameter, the ends of the support included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.pairs.densities.base import Coordinate, Law
from kullback.pairs.integration.gauss_kronrod import NODES, WEIGHTS_GAUSS, WEIGHTS_KRONROD

__all__ = ["Integral", "Terms", "integrate"]

# What is this much below the largest integrand, in logarithms, is nothing.
_NEGLIGIBLE = 46.0
# How far v goes: sinh has room for no more.
_OUTERMOST = 690.0
_UNIFORM_PANELS = 16
_SPLITS = 4
# How well P's own mass has to be met, whatever the value: a value of 0 may be one that the nodes did not see.
_MASS_TOLERANCE = 1e-10

# The integrand from log p and log q; the flag says whether all of Q's mass is on the nodes.
Terms = Callable[[Tensor, Tensor, bool], Tensor]


class Integral(NamedTuple):
    """A sum over nodes: its value, an estimate of its error, and how much of P's mass the nodes missed."""

    value: Tensor
    error: Tensor
    missed: Tensor


class _Line(NamedTuple):
    """The variable of integration v, and what both laws are along it."""

    p: Law
    q: Law
    coordinate: Coordinate
    center: Tensor
    width: Tensor

    def t(self, v: Tensor) -> Tensor:
        return self.center + self.width * torch.sinh(v)

    def v(self, t: Tensor) -> Tensor:
        return torch.asinh((t - self.center) / self.width)

    def log_densities(self, v: Tensor, alive: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the logarithms of p dx/dv and q dx/dv; where not `alive`, something finite."""
        if alive is not None:
            v = torch.where(alive, v, 0)
        t = self.t(v)
        at = self.coordinate.points(t)
        log_cosh = v.abs() + torch.log1p(torch.exp(-2 * v.abs())) - math.log(2)
        log_speed = self.coordinate.log_speed(t) + torch.log(self.width) + log_cosh
        return self.p.log_density(at) + log_speed, self.q.log_density(at) + log_speed

    def clean_log_densities(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same without a gradient; both -inf at points so far out that q overflows there."""
        log_p, log_q = (torch.where(x.isnan(), -torch.inf, x) for x in self.log_densities(v))
        overflown = (log_q == -torch.inf) & self.coordinate.points(self.t(v)).is_extreme()
        return torch.where(overflown, -torch.inf, log_p), log_q


def integrate(
    p: Law, q: Law, terms: Terms, batch_shape: torch.Size, *, rtol: float, atol: float, max_evaluations: int
) -> Integral:
    """Integrate `terms` of two laws over P's support.

    Arguments:
        p: the law of P, its parameters of shape (..., 1): nodes go along the last dimension.
        q: the law of Q, likewise; its support contains that of P.
        terms: the integrand, per dv.
        batch_shape: what the parameters broadcast to, without the last dimension.
        rtol: the relative error wanted.
        atol: the absolute error that is good enough.
        max_evaluations: how many nodes an element of the batch may have.
    """
    with torch.no_grad():
        line = _line(p, q, batch_shape)
        same_ends = _same_ends(p, q).squeeze(-1)
        edges = _edges(line)
        lower, upper = edges[..., :-1], edges[..., 1:]
        panels = _measure(line, lower, upper, terms)
        while True:
            value, error, is_whole = panels.sums(same_ends)
            enough = (error <= atol) | (error <= rtol * value.abs())
            enough = enough & (panels.mass_errors.sum(-1) <= _MASS_TOLERANCE)
            if bool(enough.all()) or (lower.shape[-1] + _SPLITS) * NODES.numel() > max_evaluations:
                break
            lower, upper, panels = _split(line, lower, upper, panels, is_whole, terms)
        missed = 1 - panels.mass_p.sum(-1)
        mean = value.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        value = value + mean * missed
    if torch.is_grad_enabled():
        lower, upper = _out_to_marks(line, lower, upper)
        value = _differentiable_sum(
            line._replace(p=p, q=q, coordinate=p.coordinate()), lower, upper, is_whole, terms, mean
        )
    return Integral(value, error, missed.abs())


class _Panels(NamedTuple):
    """What the panels give, each in both forms of the integrand: with Q's mass and without."""

    values: Tensor
    errors: Tensor
    mass_p: Tensor
    mass_q: Tensor
    mass_errors: Tensor

    def sums(self, same_ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        is_whole = same_ends & ((self.mass_q.sum(-1) - 1).abs() < 1e-11)
        with_q, without = self.values.sum(-1)
        error_with, error_without = self.errors.sum(-1)
        return (
            torch.where(is_whole, with_q, without),
            torch.where(is_whole, error_with, error_without),
            is_whole,
        )


def _line(p: Law, q: Law, batch_shape: torch.Size) -> _Line:
    center, width = (x.expand(*batch_shape, 1) for x in p.spread())
    return _Line(p, q, p.coordinate(), center, width)


def _same_ends(p: Law, q: Law) -> Tensor:
    """Tell where both supports are the same: else Q's mass on that of P is not 1, and changes with P's ends."""
    same = torch.ones(1, dtype=torch.bool)
    for a, b in ((p.low(), q.low()), (p.high(), q.high())):
        if a is not None or b is not None:
            ends = (torch.full((1,), torch.inf, dtype=torch.float64) if x is None else x for x in (a, b))
            same = same & torch.eq(*ends)
    return same


def _scan_grid() -> Tensor:
    near = torch.arange(0.0, 10.0, 0.125, dtype=torch.float64)
    far = torch.logspace(1.0, math.log10(_OUTERMOST), 56, dtype=torch.float64)
    positive = torch.cat([near[1:], far])
    return torch.cat([-positive.flip(0), near[:1], positive])


def _edges(line: _Line) -> Tensor:
    """Return panel edges that span what is not negligible, and meet every landmark."""
    marks = _marks(line)
    grid = _scan_grid().to(marks.device).expand(*marks.shape[:-1], -1)
    v = torch.cat([grid, marks], -1).sort(-1).values
    log_p, log_q = line.clean_log_densities(v)
    kept = _matters(_log_size(log_p, log_q), _NEGLIGIBLE) | _matters(log_p, _NEGLIGIBLE)
    last = v.shape[-1] - 1
    first_kept = kept.to(torch.uint8).argmax(-1, keepdim=True)
    last_kept = last - kept.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
    start, stop = v.gather(-1, (first_kept - 1).clamp(min=0)), v.gather(-1, (last_kept + 1).clamp(max=last))
    steps = torch.linspace(0, 1, _UNIFORM_PANELS + 1, dtype=v.dtype, device=v.device)
    return torch.cat([start + (stop - start) * steps, marks.clamp(start, stop)], -1).sort(-1).values


def _matters(log_f: Tensor, negligible: float) -> Tensor:
    """Tell where f is not negligible beside its largest value, both in logarithms."""
    return log_f > log_f.amax(-1, keepdim=True) - negligible


def _log_size(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the logarithm of about how large the integrand is: of p (1 + |log p / q|)."""
    return log_p + torch.log1p((log_p - log_q).abs().nan_to_num(nan=0.0, posinf=1e300))


def _marks(line: _Line) -> Tensor:
    """Return the v of both laws' landmarks and kinks."""
    own = line.coordinate
    marks = list(line.p.landmarks())
    of_q = line.q.coordinate()
    for mark in line.q.landmarks():
        at = of_q.points(mark)
        marks.append(_translate(own, of_q, mark, at.x))
    marks += [own.of(kink) for law in (line.p, line.q) for kink in law.kinks()]
    shape = line.center.shape
    return torch.cat(
        [line.v(mark.expand(shape)).nan_to_num(nan=0.0).clamp(-_OUTERMOST, _OUTERMOST) for mark in marks], -1
    )


def _translate(own: Coordinate, other: Coordinate, t: Tensor, x: Tensor) -> Tensor:
    """Return P's coordinate of a point given by Q's: the same where the ends are, else by way of x."""
    same = [
        (a is None) == (b is None) and (a is None or b is None or bool((a == b).all()))
        for a, b in ((own.low, other.low), (own.high, other.high))
    ]
    return t if all(same) else own.of(x)


def _nodes(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes of all panels, shape (..., panels, 15), and half their widths."""
    half = (upper - lower).unsqueeze(-1) / 2
    return (upper + lower).unsqueeze(-1) / 2 + half * NODES.to(lower.device), half


def _measure(line: _Line, lower: Tensor, upper: Tensor, terms: Terms) -> _Panels:
    v, half = _nodes(lower, upper)
    shape = v.shape[-2:]
    log_p, log_q = line.clean_log_densities(v.flatten(-2))
    kronrod, gauss = WEIGHTS_KRONROD.to(v.device), WEIGHTS_GAUSS.to(v.device)
    densities = [torch.exp(x).unflatten(-1, shape) * half for x in (log_p, log_q)]
    mass_p, mass_q = ((x * kronrod).sum(-1) for x in densities)
    mass_errors = _finer(((densities[0] * gauss).sum(-1) - mass_p).abs(), mass_p)
    f = torch.stack([terms(log_p, log_q, whole) for whole in (True, False)]).unflatten(-1, shape)
    values = (f * kronrod * half).sum(-1)
    difference = ((f * gauss * half).sum(-1) - values).abs()
    size = (f.abs() * kronrod * half).sum(-1)
    return _Panels(values, _finer(difference, size) + 2e-16 * size, mass_p, mass_q, mass_errors)


def _finer(difference: Tensor, size: Tensor) -> Tensor:
    """Turn the difference of the rules, the error of the coarser, into that of the finer by QUADPACK's power law."""
    return torch.minimum(difference, size * (200 * difference / size.clamp(min=1e-300)) ** 1.5)


def _split(
    line: _Line, lower: Tensor, upper: Tensor, panels: _Panels, is_whole: Tensor, terms: Terms
) -> tuple[Tensor, Tensor, _Panels]:
    """Halve the panels of each element that have its largest errors."""
    errors = torch.where(is_whole.unsqueeze(-1), panels.errors[0], panels.errors[1])
    unmet = panels.mass_errors.sum(-1, keepdim=True) > _MASS_TOLERANCE
    errors = torch.where(unmet, panels.mass_errors, errors)
    worst = errors.topk(_SPLITS, dim=-1).indices
    left, right = lower.gather(-1, worst), upper.gather(-1, worst)
    middle = (left + right) / 2
    new = _measure(line, torch.cat([left, middle], -1), torch.cat([middle, right], -1), terms)

    def replaced(old: Tensor, fresh: Tensor) -> Tensor:
        kept = old.scatter(-1, worst.expand(*old.shape[:-1], -1), fresh[..., :_SPLITS])
        return torch.cat([kept, fresh[..., _SPLITS:]], -1)

    lower = torch.cat([lower, middle], -1)
    upper = torch.cat([upper.scatter(-1, worst, middle), right], -1)
    return lower, upper, _Panels(*(replaced(old, fresh) for old, fresh in zip(panels, new, strict=True)))


def _out_to_marks(line: _Line, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Add panels next to an end of P that a parameter moves, if Q changes there on a far smaller scale than P.

    They hold too little of P's mass for the value, but what Q does there decides the derivative by that end.
    """
    with torch.no_grad():
        marks = _marks(line)
        marks = line.t(torch.where(marks.abs() < _OUTERMOST, marks, 0))  # those outside the support are there
        reach = _NEGLIGIBLE / 2
        for end, side in ((line.p.low(), -1), (line.p.high(), 1)):
            if end is None or not end.requires_grad:
                continue
            edge = lower.amin(-1, keepdim=True) if side < 0 else upper.amax(-1, keepdim=True)
            beyond = side * (side * marks).amax(-1, keepdim=True) + side * reach
            more = side * torch.maximum(side * line.v(beyond), side * edge) - edge
            if not bool((more != 0).any()):
                continue
            steps = torch.linspace(0, 1, 2 * _UNIFORM_PANELS + 1, dtype=edge.dtype, device=edge.device)
            edges = (edge + more * steps).sort(-1).values
            lower, upper = torch.cat([lower, edges[..., :-1]], -1), torch.cat([upper, edges[..., 1:]], -1)
    return lower, upper


def _differentiable_sum(
    line: _Line, lower: Tensor, upper: Tensor, is_whole: Tensor, terms: Terms, mean: Tensor
) -> Tensor:
    """Return the sum, plus `mean` times P's missing mass, which is 0.

    With it the integrand that meets the derivative of p is log(p / q) less its mean: where that is large and the rest
    is small, the derivative would otherwise be lost in the rounding of a derivative of P's mass.
    """
    v, half = _nodes(lower, upper)
    weights = (WEIGHTS_KRONROD.to(v.device) * half).flatten(-2)
    v = v.flatten(-2)
    with torch.no_grad():
        log_p, log_q = line.clean_log_densities(v)
        alive = (log_p > -700) & (weights > 0)
    log_p, log_q = line.log_densities(v, alive)
    f = torch.where(is_whole.unsqueeze(-1), terms(log_p, log_q, True), terms(log_p, log_q, False))
    mass = torch.where(alive, torch.exp(log_p) * weights, 0).sum(-1)
    return torch.where(alive, f * weights, 0).sum(-1) + mean * (1 - mass)
