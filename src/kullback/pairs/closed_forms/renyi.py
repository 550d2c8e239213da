"""Renyi divergences in closed form: of normal distributions, and of other exponential families from their KL.

For R in proportion to p^a q^(1 - a) it is KL(R || Q) + a / (1 - a) KL(R || P), at every order a but 0 and 1: no
log-normalizer stands alone in it, so that nearly equal P and Q keep their digits. The natural parameters of R are
a times those of P plus 1 - a times those of Q; where these are not valid parameters, the integral of p^a q^(1 - a) is
infinite.

Rényi Divergence and Kullback-Leibler Divergence (van Erven and Harremoës, 2014), theorem 30
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
    InverseGamma,
    LogNormal,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    Poisson,
)

from kullback.numeric import upcast
from kullback.pairs.closed_forms.dirichlet import dirichlet_divergence
from kullback.pairs.closed_forms.positive import gamma_divergence
from kullback.special import expm1mx, log1pmx, log_ratio

__all__ = ["renyi_in_closed_form"]


def renyi_in_closed_form(p: Distribution, q: Distribution, alpha: float) -> Tensor | None:
    """Return Renyi's divergence of an order other than 0 and 1, None where there is no formula.

    Below order 0 it is not positive, and -inf where the integral is infinite.
    """
    for families, rule in _RULES:
        if isinstance(p, families) and isinstance(q, families):
            return rule(p, q, alpha)
    return None


def _by_kl(to_p: Tensor, to_q: Tensor, finite: Tensor, alpha: float) -> Tensor:
    """Return the divergence from KL(R || P) and KL(R || Q)."""
    return _with_sign(to_q + alpha / (1 - alpha) * to_p, finite, alpha)


def _mixed(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Return alpha a + (1 - alpha) b, which is a where b is."""
    return a + (1 - alpha) * (b - a) if alpha > 0.5 else b + alpha * (a - b)


def _of_gammas(p: Any, q: Any, alpha: float) -> Tensor:
    """Return the divergence of Gamma distributions, or of the inverses of such variables."""
    (a, rate_p), (b, rate_q) = _of_gamma(p), _of_gamma(q)
    c, rate = _mixed(a, b, alpha), _mixed(rate_p, rate_q, alpha)
    finite = (c > 0) & (rate > 0)
    c, rate = torch.where(finite, c, 1), torch.where(finite, rate, 1)
    more, faster = torch.where(finite, b - a, 0), torch.where(finite, rate_q - rate_p, 0)
    a, b, rate_p, rate_q = (torch.where(finite, x, 1) for x in (a, b, rate_p, rate_q))
    to_p = gamma_divergence(c, rate, a, rate_p, (1 - alpha) * more, (1 - alpha) * faster)
    to_q = gamma_divergence(c, rate, b, rate_q, -alpha * more, -alpha * faster)
    return _by_kl(to_p, to_q, finite, alpha)


def _of_gamma(d: Any) -> tuple[Tensor, Tensor]:
    rate = upcast(d.rate)
    return (torch.ones_like(rate) if isinstance(d, Exponential) else upcast(d.concentration)), rate


def _of_dirichlets(p: Any, q: Any, alpha: float) -> Tensor:
    """Return the divergence of Dirichlet distributions; those over two classes are Betas."""
    a, b = _concentrations(p), _concentrations(q)
    c = _mixed(a, b, alpha)
    finite = (c > 0).all(-1)
    there = finite.unsqueeze(-1)
    c, more = torch.where(there, c, 1), torch.where(there, b - a, 0)
    a, b = torch.where(there, a, 1), torch.where(there, b, 1)
    to_p = dirichlet_divergence(c, a, (alpha - 1) * more)
    to_q = dirichlet_divergence(c, b, alpha * more)
    return _by_kl(to_p, to_q, finite, alpha)


def _concentrations(d: Any) -> Tensor:
    if isinstance(d, Dirichlet):
        return upcast(d.concentration)
    return torch.stack(torch.broadcast_tensors(upcast(d.concentration1), upcast(d.concentration0)), -1)


def _of_poissons(p: Any, q: Any, alpha: float) -> Tensor:
    """Return m (e(a d) - a e(d)) / (a - 1) with m the mean of Q, d = log(m_P / m_Q) and e(x) = e^x - 1 - x.

    Means of 0 have their limits: alone of P it leaves m, alone of Q nothing, or +inf from order 1 on.
    """
    rate_p, rate_q = upcast(p.rate), upcast(q.rate)
    empty = (rate_p == 0) | (rate_q == 0)
    mean_p, mean_q = torch.where(empty, 1, rate_p), torch.where(empty, 1, rate_q)
    d = log_ratio(mean_p, mean_q)
    small = d.clamp(-1, 1)
    near = mean_q * (expm1mx(alpha * small) - alpha * expm1mx(small)) / (alpha - 1)
    mixed = torch.exp(alpha * torch.log(mean_p) + (1 - alpha) * torch.log(mean_q))
    far = (mixed - alpha * mean_p - (1 - alpha) * mean_q) / (alpha - 1)
    value = torch.where(small == d, near, far)
    limit = rate_q + alpha / (1 - alpha) * rate_p
    gone = (rate_q == 0) & (rate_p > 0) if alpha > 1 else (rate_p == 0) & (rate_q > 0) if alpha < 0 else None
    finite = torch.ones((), dtype=torch.bool, device=rate_p.device) if gone is None else ~gone
    return _with_sign(torch.where(empty, limit, value), finite, alpha)


def _of_normals(p: Any, q: Any, alpha: float) -> Tensor:
    """Return the divergence of Normal distributions, or of variables whose logarithms are."""
    shift = (upcast(p.loc) - upcast(q.loc)) / upcast(q.scale)
    return _of_scales(upcast(p.scale), upcast(q.scale), shift, alpha)


def _of_half_normals(p: Any, q: Any, alpha: float) -> Tensor:
    """Return the divergence of the Normal distributions with mean 0."""
    scale_q = upcast(q.scale)
    return _of_scales(upcast(p.scale), scale_q, torch.zeros_like(scale_q), alpha)


def _of_scales(a: Tensor, b: Tensor, shift: Tensor, alpha: float) -> Tensor:
    """Return the same as `_of_gaussians` for one dimension, where nearly equal variances keep their digits.

    With r = Sp / Sq - 1, y = (1 - alpha) r and g(x) = x - log(1 + x) the logarithms are
    (g(r) + g(y) / (alpha - 1)) / 2.
    """
    r = (a - b) / b * ((a + b) / b)
    y = (1 - alpha) * r
    finite, near = 1 + y > 0, r.abs() < 0.5 / (1 + abs(alpha))
    small, shared = torch.where(near, r, 0), torch.where(finite, 1 + y, 1)
    close = (-log1pmx(small) - log1pmx((1 - alpha) * small) / (alpha - 1)) / 2
    far = torch.log(b / a) - torch.log(shared) / (2 * (alpha - 1))
    value = alpha / 2 * shift**2 / shared + torch.where(near, close, far)
    return _with_sign(value, finite, alpha)


def _of_gaussians(p: Any, q: Any, alpha: float) -> Tensor:
    """Return alpha/2 m' S^-1 m - log(|S| / |Sp|^(1 - alpha) |Sq|^alpha) / 2 (alpha - 1), S = alpha Sq + (1 - alpha) Sp.

    With Sq = L L' and e the eigenvalues of L^-1 Sp L^-T it is a sum over dimensions; +inf where S is not positive.

    Rényi divergence measures for commonly used univariate continuous distributions (Gil, Alajaji and Linder, 2013)
    """
    chol_p, chol_q = (upcast(d.scale_tril) for d in (p, q))
    whitened = torch.linalg.solve_triangular(chol_q, chol_p, upper=False)
    difference = upcast(p.loc) - upcast(q.loc)
    difference = torch.linalg.solve_triangular(chol_q, difference.unsqueeze(-1), upper=False).squeeze(-1)
    covariance = whitened @ whitened.mT
    mixed = (1 - alpha) * covariance + alpha * torch.eye(covariance.shape[-1], dtype=covariance.dtype)
    factor, info = torch.linalg.cholesky_ex(mixed)
    finite = info == 0
    safe = torch.where(
        finite[..., None, None], mixed, torch.eye(covariance.shape[-1], dtype=covariance.dtype)
    )
    factor = torch.linalg.cholesky(safe)
    shift = torch.linalg.solve_triangular(factor, difference.unsqueeze(-1), upper=False).squeeze(-1)
    log_mixed = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    log_p = whitened.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    value = alpha / 2 * (shift**2).sum(-1) - (log_mixed - (1 - alpha) * log_p) / (alpha - 1)
    return _with_sign(value, finite, alpha)


def _with_sign(value: Tensor, finite: Tensor, alpha: float) -> Tensor:
    """Give Renyi's divergence its sign, which is that of the order, and its infinities."""
    sign = math.copysign(1.0, alpha)
    return sign * torch.where(finite, (sign * value).clamp(min=0), torch.inf)


_RULES: tuple[tuple[tuple[type[Distribution], ...], Callable[[Any, Any, float], Tensor]], ...] = (
    ((MultivariateNormal, LowRankMultivariateNormal), _of_gaussians),
    ((Normal,), _of_normals),
    ((LogNormal,), _of_normals),
    ((HalfNormal,), _of_half_normals),
    ((Gamma, Exponential), _of_gammas),
    ((InverseGamma,), _of_gammas),
    ((Dirichlet,), _of_dirichlets),
    ((Beta,), _of_dirichlets),
    ((Poisson,), _of_poissons),
)
