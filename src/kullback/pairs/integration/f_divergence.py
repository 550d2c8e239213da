"""Divergences other than KL of two densities: an integral over both supports, or a sum over their integers.

On the real line, each piece between ends of supports has panels, and the panels of all pieces are refined together. On
the integers, every term is summed. The products of the weights of the nodes and the densities are the masses of two
finite distributions. The methods `total` and `derivatives` of a kind of divergence give the divergence of these
distributions, and the derivatives with respect to their masses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from kullback.pairs.clone import zero_of
from kullback.pairs.densities.density import Coordinate, Density, Points
from kullback.pairs.integration.divergence_terms import DivergenceTerms, with_derivatives
from kullback.pairs.integration.line import UNDERFLOW, Line, corner_terms, moving, span
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
    relative_errors,
)
from kullback.pairs.integration.pieces import (
    SAME,
    Both,
    Needed,
    Piece,
    crossing_terms,
    cut_at_crossings,
    either_matters,
    first_panels,
    pieces_of,
    runs_away,
)
from kullback.pairs.numerics.parameters import is_tracked
from kullback.pairs.solve_options import MASS_ERROR, Tolerance

# A node with a fraction e^-_FEW of a density's mass is negligible, because rounding errors are about e^-37.
_FEW = 60.0
# These constants limit the error of the terms' derivatives near a component of P or Q that is much narrower than the
# others. The error is relative to the integral of the absolute derivatives. Panels are refined until the error is at
# most _AIM_OF_SLOPES. A result with an error above _LARGEST_OF_SLOPES is refused. In benchmarks/panel_constants.py, all
# answers are correct if _AIM_OF_SLOPES is from 1e-13 to 1e-11.
_AIM_OF_SLOPES, _LARGEST_OF_SLOPES = 1e-12, 1e-10
# If a panel contains a corner of the terms, such as |p - q| at p = q, _OF_A_CORNER is the least relative error of the
# panel. In benchmarks/panel_constants.py, the value 0 needs 6 % fewer evaluation points than 0.03, but
# then both quadrature rules may miss a corner.
_OF_A_CORNER = 0.03

# `Shares` is a function that splits the densities of P and Q into pairs of densities. The pairs add up to P and Q, and
# each pair has a separate length scale (see densities/own_scale.py).
Shares = Callable[[Density, Density], list[Both]]


def _integral(
    p: Density,
    q: Density,
    terms: DivergenceTerms,
    log_masses: Callable[[Density, Density, Needed], tuple[Tensor, Tensor]],
    error: Callable[[Tensor, Tensor], Tensor],
    diverges: Tensor,
    second_order: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Integral:
    """Return the divergence of the masses at the nodes, with its gradient.

    `log_masses` returns the logarithms of the masses of two densities at the nodes, shape (..., nodes). From these,
    `error` returns the error of the sum of terms. `second_order` returns a 0 whose second derivatives are the
    contributions of corners. The sum over the nodes lacks these contributions. `diverges` is a mask of the elements
    with an infinite divergence.
    """
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

        # `needed_p` and `needed_q` are masks of the nodes at which the derivatives of a density are not negligible.
        with torch.no_grad():
            needed_p, needed_q = (
                finite & log.isfinite() & ((by != 0) | (log > UNDERFLOW))
                for by, log in zip(derivatives(*logs), logs, strict=True)
            )
        value = with_derivatives(value, derivatives, *log_masses(p, q, (needed_p, needed_q)))
        value = value if second_order is None else value + second_order(*logs)
        value = value if is_tracked(value) else value + zero_of([*p.tensors(), *q.tensors()])
    return Integral(torch.where(diverges, torch.inf, value), bound, unintegrated)


# ---- On the line.


def integrate_divergence(
    p: Density,
    q: Density,
    terms: DivergenceTerms,
    batch_shape: torch.Size,
    target: Tolerance,
    shares: Shares | None = None,
) -> Integral:
    """Integrate the terms of a divergence over the supports of two densities; see `integrate_kl` for the arguments.

    `shares` splits the densities into pairs, and each pair is integrated with its own center and scale. By default the
    densities are not split.
    """
    shares = shares or (lambda p, q: [(p, q)])
    tracked, has_gradient = shares(p, q), torch.is_grad_enabled()
    with torch.no_grad():
        fixed = shares(p.detached(), q.detached())
        shape = torch.Size([*batch_shape, 1])
        placed = [x for share, both in enumerate(fixed) for x in pieces_of(share, both, shape)]
        pieces = [piece for piece, _ in placed]
        first = [first_panels(piece, breakpoints, terms) for piece, breakpoints in placed]
        integrands = [partial(_integrated, piece, terms, len(fixed) > 1) for piece in pieces]
        diverges, fails = (torch.stack(flags).any(0) for flags in tuple(zip(*first, strict=True))[1:3])
        # `in_units` are the pieces of the pairs with a separate length scale. For these pairs, the derivatives are much
        # smaller than the value, so they have a separate error estimate.
        in_units = [k for k, piece in enumerate(pieces) if piece.share < len(fixed) - 1]

        def slope_error(parts: list[Panels]) -> Tensor:
            errors = (relative_errors(*parts[k].columns[4:]).sum(-1) for k in in_units)
            return sum(errors, torch.zeros(batch_shape, dtype=torch.float64, device="cpu"))

        def judge(parts: list[Panels]) -> tuple[Tensor, list[Tensor]]:
            value, error, mass_error, rounding = _sums(parts)
            has_mass = mass_error <= MASS_ERROR
            exact = (target.is_met(value, SAFETY * error) | (error <= rounding)) & has_mass
            priorities = [torch.where(has_mass.unsqueeze(-1), *part.columns[1:3]) for part in parts]
            for k in in_units:
                slopes = relative_errors(*parts[k].columns[4:])
                priorities[k] = torch.where(exact.unsqueeze(-1), slopes, priorities[k])
            return exact & (slope_error(parts) <= _AIM_OF_SLOPES), priorities

        domain = [(panels.places, columns) for panels, columns in zip(first, integrands, strict=True)]
        parts = integrate(LINE, domain, judge, target.max_evaluations * len(fixed))
        for corner in terms.growth.corners:
            cut = (
                cut_at_crossings(piece, *part.places, corner.at)
                for piece, part in zip(pieces, parts, strict=True)
            )
            parts = [
                Panels(places, columns(*places)) for places, columns in zip(cut, integrands, strict=True)
            ]
        _, error, _, rounding = _sums(parts)
        fails = fails | ((slope_error(parts) > _LARGEST_OF_SLOPES) & has_gradient)
        rest = sum(panels.rest for panels in first)
        error = torch.where(fails, torch.inf, SAFETY * error + rounding + rest)
    measured = [(piece, part.places) for piece, part in zip(pieces, parts, strict=True)]

    def log_masses(density_p: Density, density_q: Density, needed: Needed) -> tuple[Tensor, Tensor]:
        return _log_masses(measured, shares(density_p, density_q), needed)

    def second_order(log_p: Tensor, log_q: Tensor) -> Tensor:
        return torch.where(diverges, 0, _second_order(measured, tracked, terms, (log_p, log_q)))

    return _integral(p, q, terms, log_masses, lambda *_: error, diverges, second_order)


def _sums(parts: list[Panels]) -> Tensor:
    """Return four sums over all panels: the value, its error, the error of the masses, and the rounding error."""
    return torch.stack([torch.stack([x.sum(-1) for x in part.columns[:4]]) for part in parts]).sum(0)


def _integrated(
    piece: Piece, terms: DivergenceTerms, with_slopes: bool, lower: Tensor, upper: Tensor
) -> tuple[Tensor, ...]:
    """Return for each panel the integral of the terms, its error, the error of both masses, and its rounding error.

    If `with_slopes`, two tensors of shape (2, ..., panels) follow. The first tensor has the errors of the integrals of
    the derivatives with respect to log p and to log q. The second tensor has the integrals of the absolute derivatives.
    """
    v, half = panel_nodes(lower, upper)
    log_p, log_q, log_jacobian = (x.unflatten(-1, v.shape[-2:]) for x in piece.logs(v.flatten(-2)))
    f = terms.terms(log_p, log_q)
    values, errors = integrate_panels(f, half)
    for corner in terms.growth.corners:  # Gauss's and Kronrod's rules may both miss a corner
        at_ends = piece.log_ratio(torch.cat([lower, upper], -1))
        d = torch.cat([log_p - log_q, torch.stack(at_ends.chunk(2, -1), -1)], -1)
        crosses = (d > corner.at + SAME).any(-1) & (d < corner.at - SAME).any(-1)
        errors = torch.where(crosses, torch.maximum(errors, _OF_A_CORNER * values), errors)
    masses = torch.stack([torch.exp(log_p), torch.exp(log_q)])
    mass_errors = integrate_panels(masses, half)[1].sum(0)
    slopes = torch.stack(terms.sensitivities(log_p, log_q))
    by_p, by_q = sizes = slopes.abs()
    line = Line(Coordinate(None, None), piece.center, piece.width)
    roundings = line.rounding(f, [(by_p, log_p), (by_q, log_q), (f.abs(), log_jacobian)], lower, upper)
    more = (integrate_panels(slopes, half)[1], integrate_panels(sizes, half)[0]) if with_slopes else ()
    return values, errors, mass_errors, roundings, *more


def _log_masses(
    measured: list[tuple[Piece, Places]], shares: list[Both], needed: Needed
) -> tuple[Tensor, Tensor]:
    """Return log(mass of P) and log(mass of Q) at all nodes of all pieces.

    The edge and the nodes of a panel at a jump of a density have derivatives, because they depend on its position.
    """
    logs: list[Tensor] = []
    start = 0
    for piece, edges in measured:
        densities = shares[piece.share]
        breaks = [] if needed is None else piece.breaks(densities, *edges)
        v, half = panel_nodes(*(moving(x, breaks) for x in edges))
        log_half = torch.where(half > 0, torch.log(torch.where(half > 0, half, 1)), -torch.inf)
        log_weights = (torch.log(WEIGHTS_KRONROD) + log_half).flatten(-2)
        here = slice(start, start + log_weights.shape[-1])
        needed_here = None if needed is None else (needed[0][..., here], needed[1][..., here])
        log_p, log_q, _ = piece.logs(v.flatten(-2), densities, needed_here)
        logs.append(torch.stack([log_p + log_weights, log_q + log_weights]))
        start = here.stop
    log_p, log_q = torch.cat(logs, -1)
    return log_p, log_q


def _second_order(
    measured: list[tuple[Piece, Places]],
    tracked: list[Both],
    terms: DivergenceTerms,
    logs: tuple[Tensor, Tensor],
) -> Tensor:
    """Return a 0 whose second derivatives are the contributions of the corners of the densities and of the terms."""
    total = torch.zeros(logs[0].shape[:-1], dtype=torch.float64, device="cpu")
    for piece, places in measured:
        densities = tracked[piece.share]

        def derivatives(place: Tensor, piece: Piece = piece) -> tuple[Tensor, Tensor]:
            # The node at `place` is added with its masses multiplied by e^-_FEW, so the total does not change.
            at = (log - _FEW for log in piece.logs(place)[:2])
            more = (torch.cat(both, -1) for both in zip(logs, at, strict=True))
            by_p, by_q = (by[..., -1:] * math.exp(_FEW) for by in terms.derivatives(*more))
            return by_p, by_q

        total = total + corner_terms(piece.breaks(densities, *places), derivatives)
        for corner in terms.growth.corners:
            total = total + crossing_terms(piece, densities, *places, corner)
    return total


# ---- On the integers.


def sum_divergence(
    p: Density, q: Density, terms: DivergenceTerms, batch_shape: torch.Size, target: Tolerance
) -> Integral:
    """Sum the terms of a divergence over all integers with relevant terms; see `integrate_kl` for the arguments."""
    with torch.no_grad():
        n, after, most, diverges, cut_off = _window(p.detached(), q.detached(), batch_shape, terms, target)

    def log_masses(density_p: Density, density_q: Density, needed: Needed) -> tuple[Tensor, Tensor]:
        logs = _log_masses_at(density_p, density_q, torch.minimum(n, most), needed)
        return torch.where(n <= after, logs[0], -torch.inf), torch.where(n <= after, logs[1], -torch.inf)

    def error(log_p: Tensor, log_q: Tensor) -> Tensor:
        sizes = terms.terms(log_p, log_q).abs()
        if terms.log_scale is not None:  # the rounding error grows with the exponents
            sizes = sizes * (1 + sum(torch.where(log.isfinite(), log.abs(), 0) for log in (log_p, log_q)))
        return 1e-15 * sizes.sum(-1) + torch.where(cut_off & ~diverges, torch.inf, 0.0)

    return _integral(p, q, terms, log_masses, error, diverges)


def _window(
    p: Density, q: Density, batch_shape: torch.Size, terms: DivergenceTerms, target: Tolerance
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the integers to sum, the last integer with a term that is not negligible, the upper end, and two masks.

    The masks select the batch elements whose sum diverges, and those whose sum the limit on nodes truncates.
    """
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
    diverges = runs_away(log_size, there & (x < 1e14)) & most.isinf().squeeze(-1)
    diverges = diverges & (not terms.growth.is_bounded)
    before, after = span(x, either_matters(log_size, either))
    cap = 20 * max(target.max_evaluations, 100)
    count = int(torch.where(diverges.unsqueeze(-1), 0, after - before).amax().clamp(max=cap - 1)) + 1
    cut_off = (after - before).squeeze(-1) >= count
    return before + torch.arange(count, dtype=torch.float64, device="cpu"), after, most, diverges, cut_off


def _log_masses_at(p: Density, q: Density, x: Tensor, needed: Needed) -> tuple[Tensor, Tensor]:
    logs: list[Tensor] = []
    for side, density in enumerate((p, q)):
        low, high = density.ends()
        inside = (x >= low) & (x <= high) & (True if needed is None else needed[side])
        center = density.center_and_width()[0].detach().floor()
        within = torch.minimum(torch.maximum(torch.where(inside, x, center), low), high)
        logs.append(torch.where(inside, density.log_density(Points(within)), -torch.inf))
    return logs[0], logs[1]
