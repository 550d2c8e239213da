"""Where two laws are looked at together: nodes over both supports, as many as the terms of a divergence ask for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kullback.pairs.densities.base import Coordinate, Law, Points
from kullback.pairs.integration.gauss_kronrod import NODES, WEIGHTS_GAUSS, WEIGHTS_KRONROD
from kullback.pairs.options import Options

__all__ = ["Nodes", "Size", "integer_nodes", "line_nodes"]

# What is this much below the largest term, in logarithms, is nothing.
_NEGLIGIBLE = 46.0
# Below this, in logarithms, a mass is rounded to 0 or nearly so.
_UNDERFLOW = -700.0
_SPLITS = 4
_MASS_TOLERANCE = 1e-10
# Distances from the middle of a law, in its widths, that are edges of panels at first.
_WIDTHS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 40.0)
_UNIFORM_PANELS = 12
# Crossings of the densities that are looked for, and halvings that find one.
_CROSSINGS = 8
_BISECTIONS = 55
# Logarithms of densities that differ by less than this cross nowhere else.
_SAME = 1e-11
# What part of the sum over a panel its nodes may miss by if |p - q| has its corner there.
_OF_A_CORNER = 0.03


class Size(Protocol):
    """What the search for nodes has to know of a divergence."""

    @property
    def alpha(self) -> float:
        """The order of a power divergence; from 0 to 1 for every other kind."""
        ...

    @property
    def is_bounded(self) -> bool:
        """Whether the divergence is finite for all pairs."""
        ...

    @property
    def is_smooth(self) -> bool:
        """Whether the terms have no corner where the densities cross."""
        ...

    def terms(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return the terms of masses given by their logarithms."""
        ...

    def log_size(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return about how large a term is, as a logarithm, also where it would over- or underflow."""
        ...


@dataclass(frozen=True)
class Nodes:
    """The nodes: the logarithms of both laws' masses at them, and what is known of the sum of the terms."""

    log_masses: Callable[[Law, Law], tuple[Tensor, Tensor]]
    error: Tensor
    diverges: Tensor


# ---- On the line.


@dataclass(frozen=True)
class _Piece:
    """A part of the line on which each law lives throughout or not at all, and its variable v; see `quadrature`."""

    number: int
    exists: Tensor
    center: Tensor
    width: Tensor

    def log_densities(self, p: Law, q: Law, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithms of p dx/dv and q dx/dv, -inf where a law does not live here."""
        low, high = _pieces(p, q, self.center.shape)[self.number]
        # Some elements of a batch may lack this piece.
        low = low if low is None else torch.where(self.exists, low, 0.0)
        high = high if high is None else torch.where(self.exists, high, 1.0)
        coordinate = Coordinate(low, high)
        t = self.center + self.width * torch.sinh(v)
        at = coordinate.points(t)
        log_cosh = v.abs() + torch.log1p(torch.exp(-2 * v.abs())) - math.log(2)
        log_speed = coordinate.log_speed(t) + torch.log(self.width) + log_cosh
        return tuple(_density_on(law, low, high, at, self.exists) + log_speed for law in (p, q))  # pyright: ignore[reportReturnType]


def _pieces(p: Law, q: Law, shape: torch.Size) -> list[tuple[Tensor | None, Tensor | None]]:
    """Return the ends of the pieces, from left to right."""
    ends = [end.expand(shape) for law in (p, q) for end in _ends(law) if end is not None]
    cuts = list(torch.stack(ends).sort(0).values) if ends else []
    open_left, open_right = (any(_ends(law)[side] is None for law in (p, q)) for side in (0, 1))
    marks = [*([None] if open_left else []), *cuts, *([None] if open_right else [])]
    return list(itertools.pairwise(marks))


def _ends(law: Law) -> tuple[Tensor | None, Tensor | None]:
    """Return the ends of a support; a high one may be infinite, for some elements of a batch or for all."""
    high = law.high()
    return law.low(), None if high is None or bool(high.isinf().all()) else high


def _density_on(law: Law, low: Tensor | None, high: Tensor | None, at: Points, exists: Tensor) -> Tensor:
    begins, ends = _ends(law)
    lives = exists
    if begins is not None:
        lives = lives & (low >= begins) if low is not None else torch.zeros_like(exists)
    if ends is not None:
        lives = lives & ((high <= ends) if high is not None else ends.isinf())
    if not bool(lives.any()):
        return torch.full_like(at.x, -torch.inf)
    if not bool(lives.all()):
        inside = law.coordinate().points(law.spread()[0]).x.detach()
        at = Points(torch.where(lives, at.x, inside))
    found = law.log_density(at)
    return torch.where(lives & ~found.detach().isnan(), found, -torch.inf)


def line_nodes(p: Law, q: Law, batch_shape: torch.Size, size: Size, options: Options) -> Nodes:
    """Return nodes for two laws on the line.

    Arguments:
        p: the law of P, its parameters of shape (..., 1): nodes go along the last dimension.
        q: the law of Q, likewise.
        batch_shape: what the parameters broadcast to, without the last dimension.
        size: the divergence.
        options: the tolerances and the limit on nodes.
    """
    shape = torch.Size([*batch_shape, 1])
    parts: list[_Panels] = []
    diverges = torch.zeros(batch_shape, dtype=torch.bool)
    unseen = torch.zeros(batch_shape, dtype=torch.bool)
    for number, (low, high) in enumerate(_pieces(p, q, shape)):
        exists = torch.ones(shape, dtype=torch.bool) if low is None else low.isfinite()
        exists = exists if high is None or low is None else exists & (low < high)
        if not bool(exists.any()):
            continue
        piece = _placed(number, p, q, low, high, exists)
        panels, runs_away, is_lost = _first_panels(piece, p, q, low, high, size)
        parts.append(panels)
        diverges, unseen = diverges | runs_away, unseen | is_lost
    error = _refine(parts, p, q, size, options)
    error = torch.where(unseen, torch.inf, error)

    def log_masses(law_p: Law, law_q: Law) -> tuple[Tensor, Tensor]:
        found = [part.log_masses(law_p, law_q) for part in parts]
        return torch.cat([a for a, _ in found], -1), torch.cat([b for _, b in found], -1)

    return Nodes(log_masses, error, diverges)


def _placed(number: int, p: Law, q: Law, low: Tensor | None, high: Tensor | None, exists: Tensor) -> _Piece:
    """Choose the middle and the scale of the piece's variable: those of the marks that lie on it."""
    marks = _marks_on(p, q, low, high, exists.shape)
    center = marks.nanmedian(-1, keepdim=True).values.nan_to_num(nan=0.0)
    reach = (marks - center).abs().nanmedian(-1, keepdim=True).values.nan_to_num(nan=1.0)
    return _Piece(number, exists, center, torch.where(reach > 0, reach / 4, 1.0))


def _marks_on(p: Law, q: Law, low: Tensor | None, high: Tensor | None, shape: torch.Size) -> Tensor:
    """Return where the laws have their middles, widths and kinks, in the piece's coordinate; NaN for those outside."""
    here = Coordinate(low, high)
    found: list[Tensor] = []
    for law in (p, q):
        center, width = law.spread()
        own = law.coordinate()
        marks = [center + sign * steps * width for steps in _WIDTHS for sign in (-1, 1)] + list(
            law.landmarks()
        )
        if _same(own.low, low) and _same(own.high, high):
            found += marks
        else:
            found += [here.of(own.points(mark).x) for mark in marks]
        found += [here.of(kink) for kink in law.kinks()]
    marks = torch.cat([mark.expand(shape) for mark in found], -1)
    return torch.where(marks.abs() < 1e300, marks, torch.nan)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else bool((a == b).all())


@dataclass(frozen=True)
class _Panels:
    """The panels of a piece: where they begin and end, and what the terms add up to on each."""

    piece: _Piece
    lower: Tensor
    upper: Tensor
    values: Tensor
    errors: Tensor
    mass_errors: Tensor

    def log_masses(self, p: Law, q: Law) -> tuple[Tensor, Tensor]:
        v, half = _nodes(self.lower, self.upper)
        log_weights = torch.log(WEIGHTS_KRONROD * half).flatten(-2)
        log_p, log_q = self.piece.log_densities(p, q, v.flatten(-2))
        return log_p + log_weights, log_q + log_weights


def _nodes(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    half = (upper - lower).unsqueeze(-1) / 2
    return (upper + lower).unsqueeze(-1) / 2 + half * NODES, half


def _first_panels(
    piece: _Piece, p: Law, q: Law, low: Tensor | None, high: Tensor | None, size: Size
) -> tuple[_Panels, Tensor, Tensor]:
    """Return panels over all that is not negligible, and where the terms do not fall, or are lost to underflow."""
    near, far = torch.arange(0.125, 10.0, 0.125), torch.logspace(1.0, math.log10(690.0), 56)
    positive = torch.cat([near, far]).double()
    grid = torch.cat([-positive.flip(0), torch.zeros(1, dtype=torch.float64), positive]).expand(
        *piece.exists.shape[:-1], -1
    )
    marks = _marks_on(p, q, low, high, piece.exists.shape)
    marks = torch.asinh((marks - piece.center) / piece.width).nan_to_num(nan=0.0).clamp(-690, 690)
    v = torch.cat([grid, marks], -1).sort(-1).values
    log_p, log_q = piece.log_densities(p, q, v)
    either = torch.maximum(log_p, log_q)
    there = either > -torch.inf
    log_size = torch.where(there, size.log_size(log_p, log_q), -torch.inf)
    diverges = _runs_away(log_size, there) | _runs_away(log_size.flip(-1), there.flip(-1))
    diverges = diverges & (not size.is_bounded)
    log_size = torch.where(diverges.unsqueeze(-1), either, log_size)
    kept = log_size > log_size.amax(-1, keepdim=True) - _NEGLIGIBLE
    vanishing = log_p if size.alpha > 1 else log_q if size.alpha < 0 else either
    lost = (kept & (vanishing < _UNDERFLOW) & (log_size > either)).any(-1) & ~diverges
    last = v.shape[-1] - 1
    first_kept = kept.to(torch.uint8).argmax(-1, keepdim=True)
    last_kept = last - kept.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
    start, stop = v.gather(-1, (first_kept - 1).clamp(min=0)), v.gather(-1, (last_kept + 1).clamp(max=last))
    steps = torch.linspace(0, 1, _UNIFORM_PANELS + 1, dtype=torch.float64)
    edges = torch.cat([start + (stop - start) * steps, torch.maximum(torch.minimum(marks, stop), start)], -1)
    if not size.is_smooth:
        edges = torch.cat([edges, _crossings(piece, p, q, v, log_p, log_q)], -1)
        edges = torch.maximum(torch.minimum(edges, stop), start)
    edges = edges.sort(-1).values
    return _measured(piece, p, q, edges[..., :-1], edges[..., 1:], size), diverges, lost


def _crossings(piece: _Piece, p: Law, q: Law, v: Tensor, log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return where the densities cross between points of a grid, by bisection; any point where they do not."""
    above = log_p > log_q
    changes = (above[..., 1:] != above[..., :-1]).to(torch.uint8)
    index = changes.topk(min(_CROSSINGS, changes.shape[-1]), dim=-1).indices
    lower, upper, rises = v.gather(-1, index), v.gather(-1, index + 1), ~above.gather(-1, index)
    for _ in range(_BISECTIONS):
        middle = (lower + upper) / 2
        log_p, log_q = piece.log_densities(p, q, middle)
        is_left = (log_p > log_q) != rises
        lower, upper = torch.where(is_left, middle, lower), torch.where(is_left, upper, middle)
    return upper


def _runs_away(log_size: Tensor, there: Tensor) -> Tensor:
    """Tell where the terms do not fall up to the last point at which a density can be told."""
    count = there.shape[-1]
    last = count - 1 - there.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
    end, before = (log_size.gather(-1, (last - k).clamp(min=0)).squeeze(-1) for k in (0, 12))
    return (end >= before) & (end >= log_size.amax(-1) - _NEGLIGIBLE) & there.any(-1)


def _measured(piece: _Piece, p: Law, q: Law, lower: Tensor, upper: Tensor, size: Size) -> _Panels:
    v, half = _nodes(lower, upper)
    log_p, log_q = (x.unflatten(-1, v.shape[-2:]) for x in piece.log_densities(p, q, v.flatten(-2)))
    f = size.terms(log_p, log_q)
    masses = torch.stack([torch.exp(log_p), torch.exp(log_q)])
    values, errors = _compared(f, half)
    if not size.is_smooth:  # a corner at a crossing may deceive both rules alike
        at_ends = piece.log_densities(p, q, torch.cat([lower, upper], -1))
        d = torch.cat([log_p - log_q, torch.stack((at_ends[0] - at_ends[1]).chunk(2, -1), -1)], -1)
        crosses = (d > _SAME).any(-1) & (d < -_SAME).any(-1)
        errors = torch.where(crosses, torch.maximum(errors, _OF_A_CORNER * values), errors)
    mass_errors = _compared(masses, half)[1].sum(0)
    return _Panels(piece, lower, upper, values, errors, mass_errors)


def _compared(f: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Return Kronrod's sums and, by QUADPACK's power law from the distance to Gauss's, their errors."""
    fine, coarse = ((f * weights * half).sum(-1) for weights in (WEIGHTS_KRONROD, WEIGHTS_GAUSS))
    size = (f.abs() * WEIGHTS_KRONROD * half).sum(-1)
    difference = (coarse - fine).abs()
    powered = size * (200 * difference / size.clamp(min=1e-300)) ** 1.5
    return fine, torch.minimum(difference, powered) + 2e-16 * size


def _refine(parts: list[_Panels], p: Law, q: Law, size: Size, options: Options) -> Tensor:
    """Halve panels, in place, until the sum over all pieces is exact enough; return its error."""
    rtol = options.rtol if options.rtol is not None else 1e-10
    while True:
        value, error, mass_error = (
            torch.stack([getattr(part, name).sum(-1) for part in parts]).sum(0)
            for name in ("values", "errors", "mass_errors")
        )
        exact = (error <= (rtol * value.abs()).clamp(min=max(options.atol, 1e-15))) & (
            mass_error <= _MASS_TOLERANCE
        )
        count = sum(part.lower.shape[-1] for part in parts)
        if bool(exact.all()) or (count + _SPLITS * len(parts)) * NODES.numel() > options.max_evaluations:
            return error
        needs_mass = (mass_error > _MASS_TOLERANCE).unsqueeze(-1)
        for index, part in enumerate(parts):
            parts[index] = _split(part, p, q, torch.where(needs_mass, part.mass_errors, part.errors), size)


def _split(part: _Panels, p: Law, q: Law, errors: Tensor, size: Size) -> _Panels:
    """Halve the panels of each element that have its largest errors."""
    worst = errors.topk(min(_SPLITS, errors.shape[-1]), dim=-1).indices
    left, right = part.lower.gather(-1, worst), part.upper.gather(-1, worst)
    middle = (left + right) / 2
    new = _measured(part.piece, p, q, torch.cat([left, middle], -1), torch.cat([middle, right], -1), size)
    count = worst.shape[-1]

    def replaced(name: str) -> Tensor:
        old, fresh = getattr(part, name), getattr(new, name)
        return torch.cat([old.scatter(-1, worst, fresh[..., :count]), fresh[..., count:]], -1)

    return _Panels(part.piece, *map(replaced, ("lower", "upper", "values", "errors", "mass_errors")))


# ---- On the integers.


def integer_nodes(p: Law, q: Law, batch_shape: torch.Size, size: Size, options: Options) -> Nodes:
    """Return every integer that matters for two laws on the integers; the arguments are those of `line_nodes`."""
    shape = torch.Size([*batch_shape, 1])
    doubling = 2.0 ** torch.arange(0, 50, dtype=torch.float64)
    offsets = torch.cat([-doubling.flip(0), torch.zeros(1, dtype=torch.float64), doubling])
    centers = [law.spread()[0].expand(shape).floor() for law in (p, q)]
    ends = [(_finite_end(law.low(), shape, -1), _finite_end(law.high(), shape, 1)) for law in (p, q)]
    least, most = torch.minimum(ends[0][0], ends[1][0]), torch.maximum(ends[0][1], ends[1][1])
    x = torch.cat([center + offsets for center in centers], -1)
    x = torch.minimum(
        torch.maximum(torch.cat([x, least.clamp(min=-1e15), most.clamp(max=1e15)], -1), least), most
    )
    x = x.sort(-1).values
    log_p, log_q = _log_masses_at(p, q, x)
    there = torch.maximum(log_p, log_q) > -torch.inf
    log_size = torch.where(there, size.log_size(log_p, log_q), -torch.inf)
    diverges = _runs_away(log_size, there & (x < 1e14)) & most.isinf().squeeze(-1) & (not size.is_bounded)
    kept = log_size > log_size.amax(-1, keepdim=True) - _NEGLIGIBLE
    before, after = (x.gather(-1, _index_of_border(kept, side)) for side in (-1, 1))
    cap = 20 * max(options.max_evaluations, 100)
    count = int(torch.where(diverges.unsqueeze(-1), 0, after - before).amax().clamp(max=cap - 1)) + 1
    cut_off = (after - before).squeeze(-1) >= count
    n = before + torch.arange(count, dtype=torch.float64)

    def log_masses(law_p: Law, law_q: Law) -> tuple[Tensor, Tensor]:
        found = _log_masses_at(law_p, law_q, torch.minimum(n, most))
        return torch.where(n <= after, found[0], -torch.inf), torch.where(n <= after, found[1], -torch.inf)

    terms = size.terms(*log_masses(p, q))
    error = 1e-15 * terms.abs().sum(-1) + torch.where(cut_off & ~diverges, torch.inf, 0.0)
    return Nodes(log_masses, error, diverges)


def _finite_end(end: Tensor | None, shape: torch.Size, side: int) -> Tensor:
    return torch.full(shape, side * torch.inf, dtype=torch.float64) if end is None else end.expand(shape)


def _index_of_border(kept: Tensor, side: int) -> Tensor:
    """Return the index of the point next to the first, or the last, that is kept."""
    last = kept.shape[-1] - 1
    if side < 0:
        return (kept.to(torch.uint8).argmax(-1, keepdim=True) - 1).clamp(min=0)
    return (last - kept.flip(-1).to(torch.uint8).argmax(-1, keepdim=True) + 1).clamp(max=last)


def _log_masses_at(p: Law, q: Law, x: Tensor) -> tuple[Tensor, Tensor]:
    found: list[Tensor] = []
    for law in (p, q):
        low, high = _finite_end(law.low(), x.shape, -1), _finite_end(law.high(), x.shape, 1)
        inside = (x >= low) & (x <= high)
        logs = law.log_density(Points(torch.minimum(torch.maximum(x, low), high)))
        found.append(torch.where(inside, logs, -torch.inf))
    return found[0], found[1]
