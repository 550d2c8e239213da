"""The divergence of two densities on the integers by summation, with an error for each element of the batch.

The sum runs over a window of integers that contains all terms that are not negligible. Beyond the window, the terms
fall at least geometrically, so a geometric series bounds their sum. The window is cut into panels of integers. The
nodes are constants, and a differentiable sum over them gives the value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from kullback.common.dtypes import tensor_of
from kullback.pairs.densities.density import Density, Points
from kullback.pairs.integration.kl_terms import KLColumns, KLTotals, kl_forms
from kullback.pairs.integration.lattice import LATTICE, first_panels, nodes_of, resolved, sizes_of, sum_panels
from kullback.pairs.integration.panels import Integral, Panels, integrate
from kullback.pairs.solve_options import Tolerance

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
        places = resolved(first_panels(low, high, _is_smooth(p) and _is_smooth(q)), marks)
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


def _is_smooth(density: Density) -> bool:
    return getattr(density, "smooth", True)


def _log_densities(p: Density, q: Density, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p and log q, with _LOG_ZERO instead of -inf, and a mask of the integers where only P has mass."""
    log_p, log_q = p.log_density(Points(x)), q.log_density(Points(x))
    outside = (torch.exp(log_p) > 0) & (log_q == -torch.inf)
    replaced = (log_p < _LOG_ZERO) | (log_q == -torch.inf)
    return log_p.clamp(min=_LOG_ZERO), torch.where(replaced, log_q.clamp(min=_LOG_ZERO), log_q), outside


def _window(p: Density, q: Density, batch_shape: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first and the last integer of the window, and a bound on the sum of |terms| outside of the window.

    The integers have shape (..., 1).
    """
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
    if not _is_smooth(q):
        high = torch.maximum(high, q.ends()[1])
    return low, high, missing.squeeze(-1)


def _rate_of(density: Density) -> Tensor:
    """Return the rate r of an exponential upper tail e^(-r x), or infinity for a tail that falls faster."""
    return tensor_of(density.upper_tail().coefficient, torch.float64).nan_to_num(nan=torch.inf)


def _reach(log_size: _LogSize, start: Tensor, step: Tensor, end: Tensor) -> Tensor:
    """Return an integer between `start` and `end` beyond which all terms are negligible.

    The search visits `start` plus multiples of `step`, whose sign is the direction of `end`.
    """
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

    The ratio mean / variance is clamped to 1. The ratio is larger only for a Binomial. The rounding of a Binomial's
    mean has less effect, because the Binomial also stores the probability of failure to full precision.
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
