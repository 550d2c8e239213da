"""The divergence of two densities on the integers by summation, with an error for each element of the batch.

The sum runs over a window of integers that contains all terms that are not negligible. Beyond the window, the terms
fall at least geometrically, so a geometric series bounds their sum. The window is cut into panels of integers. The
nodes are constants, and a differentiable sum over them gives the value.

A panel has 16 2^k consecutive integers. A panel of 16 integers is summed term by term. Such a panel has no error and is
never halved. A larger panel is summed at 16 nodes with the weights of Gauss's rule for sums, which is exact for
polynomials of degree 31. The rule's orthogonal polynomials are Chebyshev's polynomials on equidistant points.

Calculation of Gauss Quadrature Rules (Golub and Welsch, 1969)
Orthogonal Polynomials: Computation and Approximation (Gautschi, 2004), on discrete Chebyshev polynomials
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.common.dtypes import tensor_of
from kullback.pairs.densities.density import Density, Points
from kullback.pairs.integration.divergence_terms import KLColumns, KLTotals, kl_forms
from kullback.pairs.integration.panels import Integral, Panels, Places, Rule, integrate
from kullback.pairs.solve_options import Tolerance

_NODES = 16
# Before any panel is halved, a window has at most about _PANELS panels. In benchmarks/panel_constants.py, all answers
# are correct for values from 8 to 128.
_PANELS = 32
# The widest window, 34 panels of 2^220 integers, has 6e67 integers. If the support of a density needs more integers,
# the caller finds a mass below 1.
_LARGEST_POWER = 220


class _Tables(NamedTuple):
    """The rules, indexed by the kind of a panel: kind 0 is an empty panel, kind k has 16 2^(k - 1) integers."""

    sizes: Tensor
    nodes: Tensor
    weights: Tensor
    # The product of `details` and the terms gives the coefficients of the orthogonal polynomials of degrees 14 and 15.
    details: Tensor


@functools.cache
def _tables() -> _Tables:
    k = torch.arange(1, _NODES, dtype=torch.float64, device="cpu")
    one_by_one = torch.arange(_NODES, dtype=torch.float64, device="cpu")
    nodes, weights = [one_by_one] * 2, [torch.zeros_like(one_by_one), torch.ones_like(one_by_one)]
    details = [torch.zeros(2, _NODES, dtype=torch.float64, device="cpu")] * 2
    sizes = [2.0**power for power in range(4, _LARGEST_POWER + 1)]
    for size in sizes[1:]:
        # `beta` are the recurrence coefficients of the polynomials that are orthogonal on `size` equidistant points.
        beta = torch.sqrt(k**2 * (1 - (k / size) ** 2) / (4 * (4 * k**2 - 1)))
        eigenvalues, vectors = torch.linalg.eigh(torch.diag(beta, 1) + torch.diag(beta, -1))
        nodes.append((size - 1) / 2 + size * eigenvalues)
        weights.append(size * vectors[0] ** 2)
        details.append(vectors[-2:] * vectors[0] * size**0.5)
    table = torch.tensor([0.0, *sizes], dtype=torch.float64, device="cpu")
    return _Tables(table, torch.stack(nodes), torch.stack(weights), torch.stack(details))


def sizes_of(kinds: Tensor) -> Tensor:
    """Return the numbers of integers in panels of the given kinds, in the shape of `kinds`."""
    return _tables().sizes.to(kinds.device)[kinds]


def first_panels(low: Tensor, high: Tensor, smooth: bool) -> Places:
    """Return the first integers and the kinds of panels that contain all integers from `low` to `high`.

    If `smooth` is false, all panels have 16 integers, so that every term is summed.
    """
    kind = torch.ones_like(low, dtype=torch.long)
    if smooth:
        halvings = torch.ceil(torch.log2((high - low + 1) / (_PANELS * _NODES)))
        kind = halvings.clamp(0, _LARGEST_POWER - 4).long() + 1
    size = sizes_of(kind)
    first = torch.floor(low / size)
    count = torch.floor(high / size) - first + 1
    # A window with more than _PANELS + 2 panels is clamped. The caller finds that the mass of the window is below 1.
    if smooth:
        count = count.clamp(max=_PANELS + 2)
    index = torch.arange(int(count.max()) if count.numel() else 1, dtype=low.dtype, device=low.device)
    starts = (first + index) * size
    # The panels become smaller towards 0, where the probabilities may have a corner.
    kinds = torch.where(starts == 0, 1, kind)
    kinds = torch.where(index < count, kinds, 0)
    smaller = torch.arange(1, int(kind.max()) if count.numel() else 1, device=low.device)
    more = torch.where((smaller < kind) & (first == 0), smaller, 0)
    return torch.cat([starts, sizes_of(smaller).expand_as(more)], -1), torch.cat([kinds, more], -1)


def _halves(starts: Tensor, kinds: Tensor, priorities: Tensor) -> Places:
    """Return the halves of panels; the right half of a panel of priority 0 or of 16 integers is empty."""
    is_halved = (kinds > 1) & (priorities > 0)
    half = torch.where(is_halved, kinds - 1, kinds)
    middle = starts + torch.where(is_halved, sizes_of(half), 0)
    return torch.cat([starts, middle], -1), torch.cat([half, torch.where(is_halved, half, 0)], -1)


LATTICE = Rule(_NODES, lambda priorities: max(4, priorities.shape[-1] // 4), _halves)
"""The rule for panels of integers. The `Places` of such panels have the first integer and the kind of each panel."""
# This rule halves all panels with a positive priority at once.
_TOGETHER = LATTICE._replace(halvings=lambda priorities: int((priorities > 0).sum(-1).max()))


def resolved(places: Places, marks: Tensor) -> Places:
    """Halve panels until no breakpoint in a panel is closer than 1/4 of the panel's width to the next breakpoint."""
    distances = (marks.unsqueeze(-1) - marks.unsqueeze(-2)).abs()
    distances = torch.where(distances > 0, distances, torch.inf).amin(-1)

    def judge(parts: list[Panels]) -> tuple[Tensor, list[Tensor]]:
        starts, kinds = (x.unsqueeze(-1) for x in parts[0].places)
        size, mark = sizes_of(kinds), marks.unsqueeze(-2)
        inside = (mark >= starts) & (mark < starts + size)
        is_wide = (inside & (size > 4 * distances.unsqueeze(-2))).any(-1) & (parts[0].places[1] > 1)
        return ~is_wide.any(-1), [is_wide.to(starts.dtype)]

    return integrate(_TOGETHER, [(places, lambda starts, kinds: ())], judge, math.inf)[0].places


def nodes_of(starts: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes of panels and their weights, both of shape (..., panels, 16)."""
    tables = _tables()
    device = kinds.device
    return starts.unsqueeze(-1) + tables.nodes.to(device)[kinds], tables.weights.to(device)[kinds]


def sum_panels(f: Tensor, weights: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of f over panels, and error estimates that ignore infinite values of f.

    The coefficients of f in orthogonal polynomials are assumed to fall geometrically. So the power 3/2 of the
    coefficients of degrees 14 and 15, as in QUADPACK, estimates the coefficient of degree 32. The rule has no error for
    lower degrees.
    """
    values = (f * weights).sum(-1)
    f = torch.where(f.isinf(), 0, f)
    norm = torch.sqrt((f * f * weights).sum(-1))
    details = _tables().details.to(kinds.device)[kinds]
    detail = torch.sqrt(((details * f.unsqueeze(-2)).sum(-1) ** 2).sum(-1))
    fraction = torch.where(norm > 0, detail / torch.where(norm > 0, norm, 1), 0)
    return values, torch.sqrt(weights.sum(-1)) * norm * fraction**1.5


# Terms are ignored if p (1 + |log(p / q)|) times P's width is less than e^_NEGLIGIBLE = 1e-61, so a sum of 1e-40 is
# exact to 20 digits. In benchmarks/panel_constants.py, all answers are correct for values from -70 to -280.
_NEGLIGIBLE = -140.0
# _LOG_ZERO replaces log 0, because e^-700 is negligible but does not round to 0.
_LOG_ZERO = -700.0
# _HUGE is the largest width of a density. As a lower bound on the log-ratio of successive terms, -_HUGE means that
# there is no bound.
_HUGE = 1e60
# _STEPS are the distances of a density's breakpoints from its center, in units of the density's width.
_STEPS = torch.tensor([-2.0, 0.0, 2.0], dtype=torch.float64, device="cpu")

_LogSize = Callable[[Tensor], Tensor]


def sum_terms(p: Density, q: Density, batch_shape: torch.Size, target: Tolerance) -> Integral:
    """Return the sum of the terms of KL over the integers where P has mass; see `integrate_kl` for the arguments.

    If every term has to be summed, the number of nodes may exceed the limit.
    """
    fixed_p, fixed_q = p.detached(), q.detached()
    with torch.no_grad():
        low, high, missing = _window(fixed_p, fixed_q, batch_shape)
        # `marks` are the breakpoints of the peaks of P and Q, with NaN in place of infinite breakpoints.
        peaks = [marks for density in (fixed_p, fixed_q) for marks in density.breakpoints(_STEPS)]
        marks = torch.cat([marks.expand(*batch_shape, len(_STEPS)) for marks in peaks], -1)
        marks = torch.where(marks.isfinite(), marks, torch.nan)
        places = resolved(first_panels(low, high, p.smooth and q.smooth), marks)
        rest_of_q = _mass_outside(fixed_q, *places)

        def totals(panels: Panels) -> tuple[KLTotals, Tensor]:
            columns = KLColumns(*panels.columns)
            # If Q's mass outside the panels is negligible, p log(p / q) - p + q has the same sum as p log(p / q).
            is_negligible = rest_of_q <= (1e-13 * columns.values[0].sum(-1)).clamp(min=1e-40)
            is_whole = is_negligible & ((columns.mass_q.sum(-1) - 1).abs() < 1e-8)
            return columns.totals(is_whole), is_whole

        def judge(parts: list[Panels]) -> tuple[Tensor, list[Tensor]]:
            sums, _ = totals(parts[0])
            return sums.are_enough(target, 1.0), [sums.errors]

        parts = [(places, partial(_summed, fixed_p, fixed_q))]
        (panels,) = integrate(LATTICE, parts, judge, target.max_evaluations)
        (value, error, rounding, _), is_whole = totals(panels)
        unintegrated = (KLColumns(*panels.columns).mass_p.sum(-1) - 1).abs()
        error = error + rounding + missing + torch.where(is_whole, rest_of_q, 0)
        error = error + torch.where(value.isinf(), 0, unintegrated * value.abs())
    if torch.is_grad_enabled():
        x, weights = (of_panels.flatten(-2) for of_panels in nodes_of(*panels.places))
        log_p, log_q, _ = _log_densities(p, q, x)
        total = (torch.where(is_whole.unsqueeze(-1), *kl_forms(log_p, log_q)) * weights).sum(-1)
        value = torch.where(value.isinf(), value, total)
    return Integral(value, error, unintegrated)


def _summed(p: Density, q: Density, starts: Tensor, kinds: Tensor) -> KLColumns:
    x, weights = nodes_of(starts, kinds)
    log_p, log_q, outside = _log_densities(p, q, x.flatten(-2))
    # The derivative with respect to log q is q - p for the term p log(p / q) - p + q, and -p for the term p log(p / q).
    logs = 1 + log_p.abs() + log_q.abs() + _drift(p, x.flatten(-2)) + _drift(q, x.flatten(-2))
    masses = torch.stack([torch.exp(log_p), torch.exp(log_q)])
    changes = torch.stack([(masses[0] - masses[1]).abs(), masses[0]]) * logs
    log_q_or_none = torch.where(outside, -torch.inf, log_q)
    f = kl_forms(log_p, log_q_or_none)
    f, changes, masses = (numbers.unflatten(-1, x.shape[-2:]) for numbers in (f, changes, masses))
    f = torch.where(weights > 0, f, 0)
    values, errors = sum_panels(f, weights, kinds)
    sizes = ((torch.where(f.isinf(), 0, f).abs() + changes) * weights).sum(-1)
    return KLColumns(values, errors, 4 * torch.finfo(f.dtype).eps * sizes, *(masses * weights).sum(-1))


def _log_densities(p: Density, q: Density, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p and log q, with _LOG_ZERO instead of -inf, and a mask of the integers where only P has mass."""
    log_p, log_q = p.log_density(Points(x)), q.log_density(Points(x))
    outside = (torch.exp(log_p) > 0) & (log_q == -torch.inf)
    replaced = (log_p < _LOG_ZERO) | (log_q == -torch.inf)
    return log_p.clamp(min=_LOG_ZERO), torch.where(replaced, log_q.clamp(min=_LOG_ZERO), log_q), outside


def _window(p: Density, q: Density, batch_shape: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first and last integer of the window, shape (..., 1), and a bound on the sum of |terms| outside."""
    shape = (*batch_shape, 1)
    peaks = [marks.expand(*batch_shape, len(_STEPS)) for marks in p.breakpoints(_STEPS)]
    marks = torch.floor(torch.cat(peaks, -1))
    least, most = p.ends()
    top = marks.amax(-1, keepdim=True).clamp(least, most)
    bottom = marks.amin(-1, keepdim=True).clamp(least, most)

    def log_size(x: Tensor) -> Tensor:
        within = x.clamp(least, most)
        log_p, log_q, _ = _log_densities(p, q, within)
        size = p.log_density(Points(within)) + torch.log1p((log_p - log_q).abs())
        return torch.where((x < least) | (x > most), -torch.inf, size)

    width = torch.ceil(p.center_and_width()[1].expand(shape).clamp(1, _HUGE))
    low, high = _reach(log_size, bottom, -width, least), _reach(log_size, top, width, most)
    rate = _rate_of(p)
    # |log(p / q)| grows at most as x^2. So the ratio of successive terms may be as large as e^-rate (1 + 1 / x)^2.
    log_slowest = 2 * torch.log1p(1 / (high + 1)) - rate
    missing = _rest(log_size, low, -1.0, -_HUGE) + _rest(log_size, high, 1.0, log_slowest)
    if not q.smooth:
        high = torch.maximum(high, q.ends()[1])
    return low, high, missing.squeeze(-1)


def _rate_of(density: Density) -> Tensor:
    """Return the rate r of an exponential upper tail e^(-r x), or infinity for a tail that falls faster."""
    return tensor_of(density.upper_tail().coefficient, torch.float64).nan_to_num(nan=torch.inf)


def _reach(log_size: _LogSize, start: Tensor, step: Tensor, end: Tensor) -> Tensor:
    """Return an integer beyond which all terms are negligible, at `start` plus a multiple of `step`, up to `end`."""
    doubling = 2.0 ** torch.arange(0, 63, dtype=start.dtype, device=start.device)
    negligible = _NEGLIGIBLE - torch.log(step.abs())
    matters = log_size(start + step * doubling) > negligible
    last = torch.where(matters, doubling, 0).amax(-1, keepdim=True)
    # The terms become negligible between the distances `last` and 2 `last`. A linear search finds a nearer integer.
    linear = torch.ceil(last * torch.linspace(1, 2, 33, dtype=start.dtype, device=start.device))
    matters = log_size(start + step * linear) > negligible
    distance = torch.where(matters, linear + torch.ceil(last / 32), 0).amax(-1, keepdim=True)
    reached = start + step * torch.where(last > 0, distance, 1)
    return torch.where(step > 0, torch.minimum(reached, end), torch.maximum(reached, end))


def _rest(log_size: _LogSize, edge: Tensor, sign: float, log_slowest: Tensor | float) -> Tensor:
    """Bound the sum of the terms e^log_size beyond an edge by a geometric series.

    The ratio of successive terms is at most their first ratio beyond the edge, or e^log_slowest if this is larger.
    """
    # Far from 0, successive terms are nearly equal, and successive integers may be the same float. So blocks of
    # integers replace single integers.
    block = 2.0 ** torch.floor(torch.log2(edge.abs().clamp(min=1)) - 20).clamp(min=0)
    first, second = log_size(edge + sign * block), log_size(edge + 2 * sign * block)
    empty = first == -torch.inf
    log_ratio = (second - torch.where(empty, 0, first)).clamp(min=log_slowest * block)
    # Each term of a block is at most the term at the end of the block divided by the ratio of successive blocks.
    largest = torch.exp(first - torch.where(block > 1, log_ratio.clamp(min=_LOG_ZERO), 0))
    bound = block * largest / -torch.expm1(log_ratio)
    return torch.where(empty, 0, torch.where(log_ratio < 0, bound, torch.inf))


def _drift(density: Density, x: Tensor) -> Tensor:
    """Return |x - mean| mean / variance, the derivative of the log-density at x with respect to the log of the mean.

    The ratio is clamped to 1. Only a Binomial's is larger, which stores the probability of failure to full precision.
    """
    mean, deviation = density.center_and_width()
    return ((x - mean).abs() * (mean / deviation / deviation).clamp(max=1)).nan_to_num(nan=0.0, posinf=0.0)


def _mass_outside(q: Density, starts: Tensor, kinds: Tensor) -> Tensor:
    """Bound Q's mass outside the panels; the bound is infinite if Q's probabilities may not fall outside."""
    first = torch.where(kinds > 0, starts, torch.inf).amin(-1, keepdim=True)
    last = torch.where(kinds > 0, starts + sizes_of(kinds) - 1, 0).amax(-1, keepdim=True)
    least, most = q.ends()

    def log_size(x: Tensor) -> Tensor:
        return torch.where((x < least) | (x > most), -torch.inf, q.log_density(Points(x.clamp(least, most))))

    rate = _rate_of(q)
    return (_rest(log_size, first, -1.0, -_HUGE) + _rest(log_size, last, 1.0, -rate)).squeeze(-1)
