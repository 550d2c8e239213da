"""The divergence of two densities on the integers by summation, with an error for each element of the batch.

The window contains all integers that matter. Beyond it the terms fall at least geometrically, which bounds the rest.
The window is cut into panels of 16 2^k integers. A panel of 16 integers is summed term by term. A larger panel is
summed at 16 nodes, with the weights of Gauss's rule for sums (Chebyshev's orthogonal polynomials on equidistant
points), which is exact for polynomials of degree 31. Panels with a large error are halved, down to 16 integers, which
have no error. The nodes are constants, and one differentiable sum over them gives the value.

Calculation of Gauss Quadrature Rules (Golub and Welsch, 1969)
Orthogonal Polynomials: Computation and Approximation (Gautschi, 2004), on discrete Chebyshev polynomials
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.common.dtypes import tensor_of
from kullback.pairs.densities.density import Density, Points
from kullback.pairs.integration.panels import with_halves
from kullback.pairs.integration.quadrature import Integral, kl_integrand
from kullback.pairs.solve_options import Tolerance

_NODES = 16
# Terms are ignored where p (1 + |log p / q|), times P's width, is less than e to this power.
_NEGLIGIBLE = -140.0
# The approximate maximum of panels in a window before any panel is halved.
_PANELS = 32
# Replaces log 0: the number e^-700 is negligible, but does not round to 0.
_LOG_ZERO = -700.0
_HUGE = 1e60
# Breakpoints of a density, in widths from its center.
_STEPS = torch.tensor([-2.0, 0.0, 2.0], dtype=torch.float64, device="cpu")
_LARGEST_POWER = 220

_LogSize = Callable[[Tensor], Tensor]


class _Rules(NamedTuple):
    """The rules by kind: kind 0 is an empty panel, kind k is a panel of 16 2^(k - 1) integers."""

    sizes: Tensor
    nodes: Tensor
    weights: Tensor
    details: Tensor  # times the terms, the coefficients of the two polynomials of highest degree


@functools.cache
def _rules() -> _Rules:
    k = torch.arange(1, _NODES, dtype=torch.float64, device="cpu")
    one_by_one = torch.arange(_NODES, dtype=torch.float64, device="cpu")
    nodes, weights = [one_by_one] * 2, [torch.zeros_like(one_by_one), torch.ones_like(one_by_one)]
    details = [torch.zeros(2, _NODES, dtype=torch.float64, device="cpu")] * 2
    sizes = [2.0**power for power in range(4, _LARGEST_POWER + 1)]
    for size in sizes[1:]:
        # The recurrence of the monic polynomials that are orthogonal on `size` equidistant points, in units of `size`.
        beta = torch.sqrt(k**2 * (1 - (k / size) ** 2) / (4 * (4 * k**2 - 1)))
        eigenvalues, vectors = torch.linalg.eigh(torch.diag(beta, 1) + torch.diag(beta, -1))
        nodes.append((size - 1) / 2 + size * eigenvalues)
        weights.append(size * vectors[0] ** 2)
        details.append(vectors[-2:] * vectors[0] * size**0.5)
    table = torch.tensor([0.0, *sizes], dtype=torch.float64, device="cpu")
    return _Rules(table, torch.stack(nodes), torch.stack(weights), torch.stack(details))


def _size(kinds: Tensor) -> Tensor:
    """Return the number of integers in panels of these kinds."""
    return _rules().sizes.to(kinds.device)[kinds]


class _Panels(NamedTuple):
    """The starts and kinds of the panels, and their sums in both forms of the terms."""

    starts: Tensor
    kinds: Tensor
    values: Tensor
    errors: Tensor
    sizes: Tensor
    mass_p: Tensor
    mass_q: Tensor


def sum_terms(p: Density, q: Density, batch_shape: torch.Size, target: Tolerance) -> Integral:
    """Sum the terms of KL over the integers where P has mass.

    Arguments:
        p: the density of P, with parameters of shape (..., 1): the last dimension is for the nodes.
        q: the density of Q, likewise.
        batch_shape: the broadcast shape of the parameters, without the last dimension.
        target: the required error, and the limit on nodes, which may be exceeded where every term has to be summed.
    """
    fixed_p, fixed_q = p.detached(), q.detached()
    with torch.no_grad():
        low, high, missing = _window(fixed_p, fixed_q, batch_shape)
        starts, kinds = _cut(low, high, _is_smooth(p) and _is_smooth(q))
        # The places where both densities rise and fall; NaN if there is none.
        peaks = [marks for density in (fixed_p, fixed_q) for marks in density.breakpoints(_STEPS)]
        marks = torch.cat([marks.expand(*batch_shape, len(_STEPS)) for marks in peaks], -1)
        marks = torch.where(marks.isfinite(), marks, torch.nan)
        panels = _measure(fixed_p, fixed_q, *_resolved(starts, kinds, marks))
        rest_of_q = _mass_outside(fixed_q, panels)
        while True:
            # If Q's mass outside the panels is negligible in the sum, the terms may include - p + q.
            with_q = panels.values[0].sum(-1)
            is_whole = (rest_of_q <= (1e-13 * with_q).clamp(min=1e-40)) & (
                (panels.mass_q.sum(-1) - 1).abs() < 1e-8
            )
            totals = (x.sum(-1) for x in (panels.values, panels.errors, panels.sizes))
            value, error, size = (torch.where(is_whole, x[0], x[1]) for x in totals)
            rounding = 4 * torch.finfo(value.dtype).eps * size
            enough = target.is_met(value, error) | (error <= rounding)
            splits = max(4, panels.starts.shape[-1] // 4)
            if bool(enough.all()) or (panels.starts.shape[-1] + splits) * _NODES > target.max_evaluations:
                break
            panels = _split(fixed_p, fixed_q, panels, is_whole, splits)
        unintegrated = (panels.mass_p.sum(-1) - 1).abs()
        error = error + rounding + missing + torch.where(is_whole, rest_of_q, 0)
        error = error + torch.where(value.isinf(), 0, unintegrated * value.abs())
    if torch.is_grad_enabled():
        weights = _rules().weights.to(panels.starts.device)[panels.kinds].flatten(-2)
        log_p, log_q, _ = _log_densities(p, q, _nodes(panels.starts, panels.kinds))
        forms = (kl_integrand(log_p, log_q, whole) for whole in (True, False))
        total = (torch.where(is_whole.unsqueeze(-1), *forms) * weights).sum(-1)
        value = torch.where(value.isinf(), value, total)
    return Integral(value, error, unintegrated)


def _is_smooth(density: Density) -> bool:
    return getattr(density, "smooth", True)


def _log_densities(p: Density, q: Density, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p and log q, finite even where there is no mass, and where P has mass but Q has none."""
    log_p, log_q = p.log_density(Points(x)), q.log_density(Points(x))
    outside = (torch.exp(log_p) > 0) & (log_q == -torch.inf)
    replaced = (log_p < _LOG_ZERO) | (log_q == -torch.inf)
    return log_p.clamp(min=_LOG_ZERO), torch.where(replaced, log_q.clamp(min=_LOG_ZERO), log_q), outside


def _window(p: Density, q: Density, batch_shape: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first and last integers that matter, (..., 1), and a bound on the sum of |terms| outside them."""
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
    # |log p / q| is at most of order x^2, and slows the fall of the terms by this factor.
    log_slowest = 2 * torch.log1p(1 / (high + 1)) - rate
    missing = _rest(log_size, low, -1.0, -_HUGE) + _rest(log_size, high, 1.0, log_slowest)
    if not _is_smooth(q):
        high = torch.maximum(high, q.ends()[1])
    return low, high, missing.squeeze(-1)


def _rate_of(density: Density) -> Tensor:
    """Return the rate at which a tail falls; it is infinite for tails that fall faster than every exponential."""
    return tensor_of(density.upper_tail().coefficient, torch.float64).nan_to_num(nan=torch.inf)


def _reach(log_size: _LogSize, start: Tensor, step: Tensor, end: Tensor) -> Tensor:
    """Return an integer, in direction `step` from `start`, beyond which all is negligible; `end` if that is nearer."""
    doubling = 2.0 ** torch.arange(0, 63, dtype=start.dtype, device=start.device)
    negligible = _NEGLIGIBLE - torch.log(step.abs())
    kept = log_size(start + step * doubling) > negligible
    last = torch.where(kept, doubling, 0).amax(-1, keepdim=True)
    # There may be a nearer integer between the last distance that is kept and its double.
    linear = torch.ceil(last * torch.linspace(1, 2, 33, dtype=start.dtype, device=start.device))
    kept = log_size(start + step * linear) > negligible
    distance = torch.where(kept, linear + torch.ceil(last / 32), 0).amax(-1, keepdim=True)
    reached = start + step * torch.where(last > 0, distance, 1)
    return torch.where(step > 0, torch.minimum(reached, end), torch.maximum(reached, end))


def _rest(log_size: _LogSize, edge: Tensor, sign: float, log_slowest: Tensor | float) -> Tensor:
    """Bound the sum beyond an edge by a geometric series: the ratio of successive terms does not grow."""
    # Far out, successive terms differ little and integers exceed the precision of floats: blocks replace single terms.
    block = 2.0 ** torch.floor(torch.log2(edge.abs().clamp(min=1)) - 20).clamp(min=0)
    first, second = log_size(edge + sign * block), log_size(edge + 2 * sign * block)
    empty = first == -torch.inf
    log_ratio = (second - torch.where(empty, 0, first)).clamp(min=log_slowest * block)
    # A term of a block exceeds the term at its end by a factor of at most one over the ratio.
    largest = torch.exp(first - torch.where(block > 1, log_ratio.clamp(min=_LOG_ZERO), 0))
    bound = block * largest / -torch.expm1(log_ratio)
    return torch.where(empty, 0, torch.where(log_ratio < 0, bound, torch.inf))


def _cut(low: Tensor, high: Tensor, smooth: bool) -> tuple[Tensor, Tensor]:
    """Return the starts and kinds of panels that contain all integers from `low` to `high`."""
    kind = torch.ones_like(low, dtype=torch.long)
    if smooth:
        halvings = torch.ceil(torch.log2((high - low + 1) / (_PANELS * _NODES)))
        kind = halvings.clamp(0, _LARGEST_POWER - 4).long() + 1
    size = _size(kind)
    first = torch.floor(low / size)
    count = torch.floor(high / size) - first + 1
    if smooth:  # the missing mass shows a window that is too wide even for the largest panels
        count = count.clamp(max=_PANELS + 2)
    index = torch.arange(int(count.max()) if count.numel() else 1, dtype=low.dtype, device=low.device)
    starts = (first + index) * size
    # The panels become smaller towards 0, where the probabilities may have a corner.
    kinds = torch.where(starts == 0, 1, kind)
    kinds = torch.where(index < count, kinds, 0)
    smaller = torch.arange(1, int(kind.max()) if count.numel() else 1, device=low.device)
    more = torch.where((smaller < kind) & (first == 0), smaller, 0)
    return torch.cat([starts, _size(smaller).expand_as(more)], -1), torch.cat([kinds, more], -1)


def _resolved(starts: Tensor, kinds: Tensor, marks: Tensor) -> tuple[Tensor, Tensor]:
    """Halve the panels that are too wide to resolve the distance from a breakpoint in them to the next one."""
    distances = (marks.unsqueeze(-1) - marks.unsqueeze(-2)).abs()
    distances = torch.where(distances > 0, distances, torch.inf).amin(-1)
    while True:
        size = _size(kinds)
        inside = (marks.unsqueeze(-2) >= starts.unsqueeze(-1)) & (
            marks.unsqueeze(-2) < (starts + size).unsqueeze(-1)
        )
        narrow = (inside & (size.unsqueeze(-1) > 4 * distances.unsqueeze(-2))).any(-1) & (kinds > 1)
        count = int(narrow.sum(-1).max()) if narrow.numel() else 0
        if count == 0:
            return starts, kinds
        _, starts, kinds = _halved(starts, kinds, narrow.to(starts.dtype), count)


def _halved(starts: Tensor, kinds: Tensor, priority: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Halve the `count` panels of the highest priority; panels of priority 0 or of 16 integers do not change.

    Returns the indices of the halved panels, and all starts and kinds. The left halves stay at these indices, and the
    right halves are appended.
    """
    top = priority.topk(count, dim=-1)
    first, kind = starts.gather(-1, top.indices), kinds.gather(-1, top.indices)
    large = (kind > 1) & (top.values > 0)
    half = torch.where(large, kind - 1, kind)
    middle = first + torch.where(large, _size(half), 0)
    starts = torch.cat([starts, middle], -1)
    kinds = torch.cat([kinds.scatter(-1, top.indices, half), torch.where(large, half, 0)], -1)
    return top.indices, starts, kinds


def _nodes(starts: Tensor, kinds: Tensor) -> Tensor:
    return (starts.unsqueeze(-1) + _rules().nodes.to(starts.device)[kinds]).flatten(-2)


def _measure(p: Density, q: Density, starts: Tensor, kinds: Tensor) -> _Panels:
    rules = _Rules(*(table.to(starts.device)[kinds] for table in _rules()))
    x = _nodes(starts, kinds)
    log_p, log_q, outside = _log_densities(p, q, x)
    shape = (*kinds.shape[-1:], _NODES)
    mass_p, mass_q = ((torch.exp(log).unflatten(-1, shape) * rules.weights).sum(-1) for log in (log_p, log_q))
    log_q_or_none = torch.where(outside, -torch.inf, log_q)
    f = torch.stack([kl_integrand(log_p, log_q_or_none, whole) for whole in (True, False)])
    f = torch.where(rules.weights > 0, f.unflatten(-1, shape), 0)
    infinite = f.isinf()
    values = (f * rules.weights).sum(-1)
    f = torch.where(infinite, 0, f)
    # Coefficients fall geometrically: the power of QUADPACK estimates the coefficient of degree 32, the first missing.
    norm = torch.sqrt((f * f * rules.weights).sum(-1))
    detail = torch.sqrt(((rules.details * f.unsqueeze(-2)).sum(-1) ** 2).sum(-1))
    fraction = torch.where(norm > 0, detail / torch.where(norm > 0, norm, 1), 0)
    errors = torch.sqrt(rules.weights.sum(-1)) * norm * fraction**1.5
    # The rounding of a logarithm changes a term by |p - q| if the term includes Q's mass, and by p otherwise.
    logs = 1 + log_p.abs() + log_q.abs() + _drift(p, x) + _drift(q, x)
    changes = torch.stack([(torch.exp(log_p) - torch.exp(log_q)).abs(), torch.exp(log_p)]) * logs
    sizes = ((f.abs() + changes.unflatten(-1, shape)) * rules.weights).sum(-1)
    return _Panels(starts, kinds, values, errors, sizes, mass_p, mass_q)


def _drift(density: Density, x: Tensor) -> Tensor:
    """Return (x - mean) mean / variance, the change of the logarithm at x by a relative change of the mean.

    Only the Binomial's mean exceeds its variance; it stores the probability of failure too.
    """
    mean, deviation = density.center_and_width()
    return ((x - mean).abs() * (mean / deviation / deviation).clamp(max=1)).nan_to_num(nan=0.0, posinf=0.0)


def _mass_outside(q: Density, panels: _Panels) -> Tensor:
    """Bound Q's mass outside the panels; the bound is infinite if Q is not known to fall there."""
    used = panels.kinds > 0
    first = torch.where(used, panels.starts, torch.inf).amin(-1, keepdim=True)
    ends = panels.starts + _size(panels.kinds) - 1
    last = torch.where(used, ends, 0).amax(-1, keepdim=True)
    least, most = q.ends()

    def log_size(x: Tensor) -> Tensor:
        return torch.where((x < least) | (x > most), -torch.inf, q.log_density(Points(x.clamp(least, most))))

    rate = _rate_of(q)
    return (_rest(log_size, first, -1.0, -_HUGE) + _rest(log_size, last, 1.0, -rate)).squeeze(-1)


def _split(p: Density, q: Density, panels: _Panels, is_whole: Tensor, count: int) -> _Panels:
    """Halve the panels with the largest errors of each element."""
    errors = torch.where(is_whole.unsqueeze(-1), panels.errors[0], panels.errors[1])
    count = min(count, errors.shape[-1])
    places, starts, kinds = _halved(panels.starts, panels.kinds, errors, count)
    halves = (torch.cat([x.gather(-1, places), x[..., -count:]], -1) for x in (starts, kinds))
    both = zip(panels, _measure(p, q, *halves), strict=True)
    return _Panels(*(with_halves(old, places, fresh) for old, fresh in both))
