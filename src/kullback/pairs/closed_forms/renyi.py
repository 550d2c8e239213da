"""Closed forms of Renyi divergences of orders from 1/2 on; smaller orders follow by exchanging P and Q.

If the density of R is proportional to p^a q^(1 - a), the divergence is KL(R || Q) + a / (1 - a) KL(R || P), at every
order a except 0 and 1. No log-normalizer appears alone in it, so nearly equal P and Q lose no digits. With natural
parameters n_P and n_Q, R has the natural parameters a n_P + (1 - a) n_Q. If these are not valid, the integral of
p^a q^(1 - a) is infinite.

Each formula takes the order `alpha` and `rest` = 1 - alpha, which has full precision if alpha is near 1.

Rényi Divergence and Kullback-Leibler Divergence (van Erven and Harremoës, 2014), proposition 2 and theorem 30
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Dirichlet,
    Distribution,
    Exponential,
    Gamma,
    HalfNormal,
    Independent,
    InverseGamma,
    LogNormal,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    Poisson,
)

from kullback.common.dtypes import upcast
from kullback.common.inputs import can_inspect
from kullback.common.special import LARGEST_EXPONENT, log1pmx, log_ratio
from kullback.pairs.closed_forms.dirichlet import concentrations, dirichlet_divergence
from kullback.pairs.closed_forms.multivariate_normal import moments, rounding_error
from kullback.pairs.closed_forms.positive import gamma_divergence, shape_and_rate
from kullback.pairs.numerics.bernoulli import generalized_kl
from kullback.pairs.numerics.cholesky import mixed_with_one, relative, whitened
from kullback.pairs.overrides import overrides_density

# The square of a ratio of scales above this may overflow.
_WIDE = 1e150
_ROUNDING = 1e-13


def renyi_in_closed_form(
    p: Distribution, q: Distribution, alpha: float, rest: float, *, wants_error: bool
) -> tuple[Tensor, Tensor | None] | None:
    """Return Renyi's divergence of an order from 1/2 on other than 1, and its error if `wants_error`, else None.

    If there is no formula, return None alone.
    """
    if overrides_density(p) or overrides_density(q):
        return None
    for families, rule in _RULES:
        if isinstance(p, families) and isinstance(q, families):
            value = rule(p, q, alpha, rest)
            if value is None:
                return None
            if not wants_error:
                return value, None
            fixed = value.detach()
            error = rounding_error(p, q, fixed) if rule is _of_gaussians else _ROUNDING * (1 + fixed)
            return value, torch.where(fixed.isinf(), 0, error)
    return None


def _by_kl(to_p: Tensor, to_q: Tensor, finite: Tensor, alpha: float, rest: float) -> Tensor:
    """Return the divergence from KL(R || P) and KL(R || Q)."""
    return _where_finite(finite, to_q + alpha / rest * to_p)


def _where_finite(finite: Tensor, value: Tensor) -> Tensor:
    return torch.where(finite, value.clamp(min=0), torch.inf)


def _of_gammas(p: Any, q: Any, alpha: float, rest: float) -> Tensor:
    """Return the divergence of Gamma or InverseGamma distributions."""
    (a, rate_p), (b, rate_q) = shape_and_rate(p), shape_and_rate(q)
    c, rate = a + rest * (b - a), rate_p + rest * (rate_q - rate_p)
    finite = (c > 0) & (rate > 0)
    c, rate = torch.where(finite, c, 1), torch.where(finite, rate, 1)
    more, faster = torch.where(finite, b - a, 0), torch.where(finite, rate_q - rate_p, 0)
    a, b, rate_p, rate_q = (torch.where(finite, x, 1) for x in (a, b, rate_p, rate_q))
    to_p = gamma_divergence(c, rate, a, rate_p, rest * more, rest * faster)
    to_q = gamma_divergence(c, rate, b, rate_q, -alpha * more, -alpha * faster)
    return _by_kl(to_p, to_q, finite, alpha, rest)


def _of_dirichlets(p: Any, q: Any, alpha: float, rest: float) -> Tensor:
    """Return the divergence of Dirichlet distributions; over two classes they are Beta distributions."""
    a, b = concentrations(p), concentrations(q)
    c = a + rest * (b - a)
    finite = (c > 0).all(-1)
    there = finite.unsqueeze(-1)
    c, more = torch.where(there, c, 1), torch.where(there, b - a, 0)
    a, b = torch.where(there, a, 1), torch.where(there, b, 1)
    to_p = dirichlet_divergence(c, a, -rest * more)
    to_q = dirichlet_divergence(c, b, alpha * more)
    return _by_kl(to_p, to_q, finite, alpha, rest)


def _of_poissons(p: Any, q: Any, alpha: float, rest: float) -> Tensor:
    """Return the sum of the two KL, where R has the rate m_P^alpha m_Q^(1 - alpha).

    If a rate is 0, the result is its limit: m_Q + alpha / (1 - alpha) m_P for orders below 1. For orders above 1 it is
    m_Q if m_P is 0, and +inf otherwise.
    """
    rate_p, rate_q = upcast(p.rate), upcast(q.rate)
    empty = (rate_p == 0) | (rate_q == 0)
    mean_p, mean_q = torch.where(empty, 1, rate_p), torch.where(empty, 1, rate_q)
    d = log_ratio(mean_p, mean_q)
    finite = torch.log(mean_p) - rest * d < LARGEST_EXPONENT
    d = torch.where(finite, d, 0)
    half = torch.exp(-rest / 2 * d)
    mean = mean_p * half * half
    to_p, to_q = generalized_kl(mean, mean_p, -rest * d), generalized_kl(mean, mean_q, alpha * d)
    limit = rate_q + (alpha / rest * rate_p if alpha < 1 else torch.where(rate_p > 0, torch.inf, 0))
    return torch.where(empty, limit, _by_kl(to_p, to_q, finite, alpha, rest))


def _of_normals(p: Any, q: Any, alpha: float, rest: float) -> Tensor:
    """Return alpha d^2 / 2 S + log(b / a) + log(S / b^2) / (2 rest), with S = alpha b^2 + rest a^2.

    The scales are a and b, and the means differ by d. LogNormal and HalfNormal variables are maps of Normal ones.
    With r = (a / b)^2 - 1 and g(x) = x - log(1 + x), the logarithmic terms are (g(r) - g(rest r) / rest) / 2.

    Rényi divergence measures for commonly used univariate continuous distributions (Gil, Alajaji and Linder, 2013)
    """
    p, q = (getattr(x, "base_dist", x) for x in (p, q))
    a, b, shift = upcast(p.scale), upcast(q.scale), upcast(p.loc) - upcast(q.loc)
    wide = a > _WIDE * b
    narrow = torch.where(wide, b, a)
    r = (narrow - b) / b * ((narrow + b) / b)
    finite = (1 + rest * r > 0) & ~(wide & (rest < 0))
    grown = torch.where(finite, rest * r, 0)
    near = ~wide & (r.abs() < 0.5 / (1 + alpha))
    small = torch.where(near, r, 0)
    close = (log1pmx(rest * small) / rest - log1pmx(small)) / 2
    log = log_ratio(a, b)
    log_shared = torch.where(wide, 2 * log + math.log(abs(rest)), torch.log1p(grown))
    logs = torch.where(near, close, log_shared / (2 * rest) - log)
    root = torch.where(wide, a * math.sqrt(abs(rest)), b * torch.sqrt(1 + grown))
    finite = finite & (shift.abs() < _WIDE * root)
    z = torch.where(finite, shift, 0) / root
    return _where_finite(finite, alpha / 2 * z * z + logs)


def _of_gaussians(p: Any, q: Any, alpha: float, rest: float) -> Tensor | None:
    """Return alpha |T^-1 v|^2 / 2 + (log det T T^T / rest - log det M M^T) / 2 for T T^T = alpha + rest M M^T.

    M = K^-1 L and v = K^-1 (m_P - m_Q) are the matrices in KL. Because tr T T^T - d = rest (tr M M^T - d), the
    logarithmic terms are D(M) - D(T) / rest, where D is KL of the covariances. Small terms are computed in this form.
    The result is None if M M^T is too large.
    """
    left, right = moments(p), moments(q)
    if left is None or right is None:
        return None
    m = relative(left[1], right[1])
    mixed = mixed_with_one(m, rest)
    size = torch.maximum(m.diagonal.detach().amax(-1), m.below.detach().abs().amax((-2, -1)))
    if can_inspect(size) and not bool((size < _WIDE).all()):
        return None
    steps = whitened((left[0] - right[0]).unsqueeze(-1), right[1])
    steps = torch.linalg.solve_triangular(mixed.root, steps, upper=False)
    near = (m.squares_minus_one.detach() ** 2).sum(-1) + (m.below.detach() ** 2).sum((-2, -1)) < 0.5
    close = m.divergence() - mixed.relative.divergence() / rest
    far = mixed.log_det / rest - 2 * torch.log(m.diagonal).sum(-1)
    logs = torch.where(near, close, far / 2)
    return _where_finite(mixed.exists, alpha / 2 * (steps**2).sum((-2, -1)) + logs)


_RULES: tuple[
    tuple[tuple[type[Distribution], ...], Callable[[Any, Any, float, float], Tensor | None]], ...
] = (
    ((MultivariateNormal, LowRankMultivariateNormal, Independent), _of_gaussians),
    ((Normal,), _of_normals),
    ((LogNormal,), _of_normals),
    ((HalfNormal,), _of_normals),
    ((Gamma, Exponential), _of_gammas),
    ((InverseGamma,), _of_gammas),
    ((Dirichlet,), _of_dirichlets),
    ((Beta,), _of_dirichlets),
    ((Poisson,), _of_poissons),
)
