"""Closed forms for the Pareto families, whose tails are too heavy for a quadrature near the edge of finite moments."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Exponential, GeneralizedPareto, HalfNormal, Laplace, Normal, Pareto

from kullback.pairs.numerics.parameters import wide
from kullback.pairs.numerics.special import log1p_excess, log_ratio, log_ratio_excess
from kullback.pairs.registry import closed_form

__all__ = ["expm1_ratio"]

_HALF_LOG_TAU = math.log(2 * math.pi) / 2


@closed_form(GeneralizedPareto, Exponential)
def kl_generalized_pareto_exponential(p: GeneralizedPareto, q: Exponential) -> Tensor:
    """Return m - 1 - log m - c - log(1 - c) + rate loc, with m = rate scale / (1 - c) and c the concentration."""
    scale, rate, c = wide(p.scale), wide(q.rate), _below(wide(p.concentration), 1.0)
    return log_ratio_excess(rate * scale, 1 - c) + log1p_excess(-c) + rate * wide(p.loc)


@closed_form(GeneralizedPareto, Normal)
def kl_generalized_pareto_normal(p: GeneralizedPareto, q: Normal) -> Tensor:
    """Return log(s_q / s_p) - c - 1 + log(2 pi) / 2 + (variance + (mean - loc)^2) / (2 s_q^2)."""
    scale_q = wide(q.scale)
    deviation, spread = _moments(p, scale_q, wide(q.loc))
    return (
        log_ratio(scale_q, wide(p.scale))
        - wide(p.concentration)
        - 1
        + _HALF_LOG_TAU
        + (spread + deviation) / 2
    )


@closed_form(GeneralizedPareto, HalfNormal)
def kl_generalized_pareto_half_normal(p: GeneralizedPareto, q: HalfNormal) -> Tensor:
    """Return the divergence from the Normal distribution of which Q is the half, less log 2."""
    scale_q = wide(q.scale)
    deviation, spread = _moments(p, scale_q, torch.zeros_like(scale_q))
    normalizer = _HALF_LOG_TAU - math.log(2)
    return (
        log_ratio(scale_q, wide(p.scale)) - wide(p.concentration) - 1 + normalizer + (spread + deviation) / 2
    )


def _moments(p: GeneralizedPareto, unit: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
    """Return the square of the mean's distance from `center`, and the variance, in units of `unit`."""
    c = _below(wide(p.concentration), 0.5)
    size = wide(p.scale) / unit / (1 - c)
    mean = (wide(p.loc) - center) / unit + size
    return mean * mean, size * size / (1 - 2 * c)


def _below(c: Tensor, limit: float) -> Tensor:
    """Return c, and 0 where the moment that exists below `limit` is infinite."""
    return torch.where(c < limit, c, 0)


@closed_form(Pareto, Laplace)
def kl_pareto_laplace(p: Pareto, q: Laplace) -> Tensor:
    """Return log(2 b alpha / s) - 1 / alpha - 1 + E|x - loc| / b.

    With L = log(loc / s), or 0 where loc < s, E|x - loc| = mean - loc + 2 E(loc - x)+ and
    E(loc - x)+ = s (e^L - 1 - (e^((1 - alpha) L) - 1) / (1 - alpha)).
    """
    scale, loc, width = wide(p.scale), wide(q.loc), wide(q.scale)
    alpha = wide(p.alpha)
    heavy = torch.where(alpha > 1, alpha, 2)
    inside = loc > scale
    reach = torch.where(inside, log_ratio(torch.where(inside, loc, scale), scale), 0)
    below = torch.expm1(reach) - expm1_ratio(1 - heavy, reach)
    mean_distance = (scale - loc) + scale / (heavy - 1) + 2 * scale * below
    return math.log(2) + log_ratio(width * alpha, scale) - 1 / alpha - 1 + mean_distance / width


def expm1_ratio(k: Tensor, x: Tensor) -> Tensor:
    """Return (e^(k x) - 1) / k, which is x at k = 0."""
    y = k * x
    small = y.abs() < 1e-3
    series = x * (1 + y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5))))
    return torch.where(small, series, torch.expm1(torch.where(small, 1, y)) / torch.where(k == 0, 1, k))
