"""Closed forms of pairs within the Gamma, Weibull, half-normal, half-Cauchy and Pareto families."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Exponential,
    Gamma,
    GeneralizedPareto,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Laplace,
    Normal,
    Pareto,
    Weibull,
)

from kullback.common.dtypes import upcast
from kullback.common.special import (
    EULER_GAMMA,
    HALF_LOG_2PI,
    expm1_ratio,
    expm1mx,
    itakura_saito,
    lgamma_bregman,
    log1pmx,
    log_product,
    log_ratio,
    scaled_expm1mx,
    stirling_bregman,
    stirling_remainder,
    within_floats,
)
from kullback.kernels.codes import ElementForm
from kullback.pairs.closed_forms.real import cauchy_divergence, gumbel_divergence, normal_divergence
from kullback.pairs.registry import closed_form

__all__: list[str] = []


@closed_form(Exponential, Exponential, native=ElementForm.EXPONENTIAL)
def kl_exponential_exponential(p: Exponential, q: Exponential) -> Tensor:
    """Return x - 1 - log x at x = r_q / r_p."""
    return itakura_saito(upcast(q.rate), upcast(p.rate))


def shape_and_rate(d: Any) -> tuple[Tensor, Tensor]:
    """Return the concentration and the rate of a Gamma or InverseGamma; an Exponential has the concentration 1."""
    rate = upcast(d.rate)
    return (upcast(d.concentration) if hasattr(d, "concentration") else torch.ones_like(rate)), rate


@closed_form(Gamma, Gamma, native=ElementForm.GAMMA)
@closed_form(InverseGamma, InverseGamma, native=ElementForm.GAMMA)
@closed_form(Gamma, Exponential, native=ElementForm.GAMMA_EXPONENTIAL)
@closed_form(Exponential, Gamma, native=ElementForm.EXPONENTIAL_GAMMA)
def kl_gamma_gamma(p: Gamma | InverseGamma | Exponential, q: Gamma | InverseGamma | Exponential) -> Tensor:
    """Return a_q (x - 1 - log x) at x = mean_P / mean_Q, plus Bregman's divergence of lgamma(a) - a log a + a.

    Without the regrouping: KL-Divergences of Normal, Gamma, Dirichlet and Wishart densities (Penny, 2001)
    """
    return gamma_divergence(*shape_and_rate(p), *shape_and_rate(q))


def gamma_divergence(
    a_p: Tensor,
    rate_p: Tensor,
    a_q: Tensor,
    rate_q: Tensor,
    more: Tensor | None = None,
    faster: Tensor | None = None,
) -> Tensor:
    """Return KL between Gamma distributions with concentrations a.

    `more` is a_p - a_q and `faster` is rate_p - rate_q, if the caller knows them more exactly than the parameters.
    """
    log_rates = log_ratio(rate_p, rate_q, faster)
    log_means = log_ratio(a_p, a_q, more) - log_rates
    return scaled_expm1mx(a_q, log_means, torch.log(a_p) - log_rates) + stirling_bregman(
        a_p, a_q, None if more is None else -more
    )


@closed_form(Weibull, Exponential)
def kl_weibull_exponential(p: Weibull, q: Exponential) -> Tensor:
    """Return KL to the Weibull distribution of concentration 1."""
    k, rate = upcast(p.concentration), upcast(q.rate)
    return gumbel_divergence(log_product(upcast(p.scale), rate), torch.ones_like(k), k)


@closed_form(Exponential, Weibull)
def kl_exponential_weibull(p: Exponential, q: Weibull) -> Tensor:
    """Return KL from the Weibull distribution of concentration 1."""
    k, rate = upcast(q.concentration), upcast(p.rate)
    return gumbel_divergence(-k * log_product(upcast(q.scale), rate), k, torch.ones_like(k))


@closed_form(Weibull, Gamma)
def kl_weibull_gamma(p: Weibull, q: Gamma) -> Tensor:
    """Return a (x - 1 - log x) at x = mean_P / mean_Q, plus a term of the shapes that is 0 at k = a = 1.

    With y = 1 / k this term is a B(1 -> y) + R(1 -> a) + (a - 1) log y. B and R are the Bregman divergences of lgamma
    and of its Stirling remainder. For large k it is a B(1 -> 1 + y) + R(a) + log k - 1 - gamma, without cancellation.
    Computing the Kullback-Leibler Divergence between two Generalized Gamma Distributions (Bauckhage, 2014)
    """
    a, k, scale, rate = upcast(q.concentration), upcast(p.concentration), upcast(p.scale), upcast(q.rate)
    one = torch.ones_like(k)
    k = k.clamp(min=1e-300)  # for a smaller k, E X overflows
    y = one / k
    sharp = k > 2
    near, z, few = torch.where(sharp, 1, k), torch.where(sharp, 1, y), torch.where(sharp, y, 0)
    beyond = lgamma_bregman(one, 1 + few, few)
    log_mean = torch.where(sharp, beyond - EULER_GAMMA * few, torch.lgamma(1 + y))  # of X / scale
    means = scaled_expm1mx(a, log_product(scale, rate, a) + log_mean, log_product(scale, rate) + log_mean)
    shapes = a * lgamma_bregman(one, z, (1 - near) / near) - (a - 1) * log_ratio(near, one)
    shapes = shapes + stirling_bregman(torch.ones_like(a), a)
    far = a * beyond + stirling_remainder(a) + log_ratio(k, one) - (1 + EULER_GAMMA)
    return (means + torch.where(sharp, far, shapes)).clamp(min=0)


@closed_form(HalfNormal, HalfNormal, native=ElementForm.HALF_NORMAL)
def kl_half_normal_half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    """Return (r^2 - 1) / 2 - log r at r = s_p / s_q, as for Normal distributions with mean 0."""
    return normal_divergence(0.0, upcast(p.scale), upcast(q.scale))


@closed_form(HalfCauchy, HalfCauchy, native=ElementForm.HALF_CAUCHY)
def kl_half_cauchy_half_cauchy(p: HalfCauchy, q: HalfCauchy) -> Tensor:
    """Return log((s_p + s_q)^2 / (4 s_p s_q)), as for Cauchy distributions with location 0."""
    return cauchy_divergence(0.0, upcast(p.scale), upcast(q.scale))


@closed_form(Pareto, Pareto, native=ElementForm.PARETO)
def kl_pareto_pareto(p: Pareto, q: Pareto) -> Tensor:
    """Return x - 1 - log x at x = alpha_q / alpha_p, plus alpha_q log(s_p / s_q).

    At P = Q the gradient is 0, although the one-sided derivative by s_P is not.
    """
    alpha_p, alpha_q, scale_p, scale_q = upcast(p.alpha), upcast(q.alpha), upcast(p.scale), upcast(q.scale)
    equal = (scale_p == scale_q) & (alpha_p == alpha_q)
    shift = torch.where(equal, 0, log_ratio(scale_p, scale_q))
    return itakura_saito(alpha_q, alpha_p) + alpha_q * shift


# Pareto families: their tails are too heavy for quadrature where a moment is barely finite.


@closed_form(GeneralizedPareto, Exponential)
def kl_generalized_pareto_exponential(p: GeneralizedPareto, q: Exponential) -> Tensor:
    """Return m - 1 - log m - c - log(1 - c) + rate loc, with m = rate scale / (1 - c) and c the concentration."""
    scale, rate, c = upcast(p.scale), upcast(q.rate), _below(upcast(p.concentration), 1.0)
    return expm1mx(log_product(scale, rate, 1 - c)) - log1pmx(-c) + rate * upcast(p.loc)


@closed_form(GeneralizedPareto, Normal)
def kl_generalized_pareto_normal(p: GeneralizedPareto, q: Normal) -> Tensor:
    """Return log(s_q / s_p) - c - 1 + log(2 pi) / 2 + (variance + (mean - loc)^2) / (2 s_q^2)."""
    return _generalized_pareto_normal(p, upcast(q.loc), upcast(q.scale))


@closed_form(GeneralizedPareto, HalfNormal)
def kl_generalized_pareto_half_normal(p: GeneralizedPareto, q: HalfNormal) -> Tensor:
    """Return KL to the Normal distribution of the same scale and mean 0, minus log 2."""
    scale_q = upcast(q.scale)
    return _generalized_pareto_normal(p, torch.zeros_like(scale_q), scale_q) - math.log(2)


def _generalized_pareto_normal(p: GeneralizedPareto, loc_q: Tensor, scale_q: Tensor) -> Tensor:
    scale, concentration = upcast(p.scale), upcast(p.concentration)
    c = _below(concentration, 0.5)
    size = within_floats(scale / scale_q / (1 - c))
    shift = within_floats((upcast(p.loc) - loc_q) / scale_q) + size
    squares = shift * shift + size * size / (1 - 2 * c)
    return log_ratio(scale_q, scale) - concentration - 1 + HALF_LOG_2PI + squares / 2


def _below(c: Tensor, limit: float) -> Tensor:
    """Return c where it is below `limit`, else 0, which replaces an infinite moment by a finite one."""
    return torch.where(c < limit, c, 0)


@closed_form(Pareto, Laplace)
def kl_pareto_laplace(p: Pareto, q: Laplace) -> Tensor:
    """Return log(2 b alpha / s) - 1 / alpha - 1 + E|x - loc| / b.

    With L = log(loc / s), or 0 if loc < s: E|x - loc| = mean - loc + 2 E(loc - x)+ and
    E(loc - x)+ = (loc - s)+ - s (e^((1 - alpha) L) - 1) / (1 - alpha).
    """
    scale, loc, width = upcast(p.scale), upcast(q.loc), upcast(q.scale)
    alpha = upcast(p.alpha)
    heavy = torch.where(alpha > 1, alpha, 2)
    inside = loc > scale
    reach = torch.where(inside, log_ratio(torch.where(inside, loc, scale), scale), 0)
    below = torch.where(inside, loc - scale, 0) - scale * expm1_ratio(1 - heavy, reach)
    mean_distance = (scale - loc) + scale / (heavy - 1) + 2 * below
    return math.log(2) + log_product(width, alpha, scale) - 1 / alpha - 1 + mean_distance / width
