"""Closed forms of families on a half-line with themselves, and of Gamma and Weibull with those they contain."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import (
    Exponential,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Pareto,
    Weibull,
)

from kullback.pairs.closed_forms.real import cauchy_divergence, weibull_divergence
from kullback.pairs.numerics.parameters import wide
from kullback.pairs.numerics.special import (
    excess,
    lgamma_bregman,
    lgamma_remainder,
    log_ratio,
    log_ratio_excess,
)
from kullback.pairs.registry import closed_form

__all__: list[str] = []


@closed_form(Exponential, Exponential)
def kl_exponential_exponential(p: Exponential, q: Exponential) -> Tensor:
    """Return x - 1 - log x at x = r_q / r_p."""
    return log_ratio_excess(wide(q.rate), wide(p.rate))


@closed_form(Gamma, Gamma)
@closed_form(InverseGamma, InverseGamma)
def kl_gamma_gamma(p: Gamma | InverseGamma, q: Gamma | InverseGamma) -> Tensor:
    """Return a_q (x - 1 - log x) at x = mean_P / mean_Q, plus Bregman's divergence of lgamma(a) - a log a + a.

    Without the regrouping: KL-Divergences of Normal, Gamma, Dirichlet and Wishart densities (Penny, 2001)
    """
    return gamma_divergence(wide(p.concentration), wide(p.rate), wide(q.concentration), wide(q.rate))


@closed_form(Gamma, Exponential)
def kl_gamma_exponential(p: Gamma, q: Exponential) -> Tensor:
    """Return KL to the Gamma distribution of concentration 1."""
    a = wide(p.concentration)
    return gamma_divergence(a, wide(p.rate), torch.ones_like(a), wide(q.rate))


@closed_form(Exponential, Gamma)
def kl_exponential_gamma(p: Exponential, q: Gamma) -> Tensor:
    """Return KL from the Gamma distribution of concentration 1."""
    a = wide(q.concentration)
    return gamma_divergence(torch.ones_like(a), wide(p.rate), a, wide(q.rate))


def gamma_divergence(
    a_p: Tensor,
    rate_p: Tensor,
    a_q: Tensor,
    rate_q: Tensor,
    more: Tensor | None = None,
    faster: Tensor | None = None,
) -> Tensor:
    """Return KL between Gamma distributions with concentrations a.

    `more` is a_p - a_q and `faster` is rate_p - rate_q where those are known better than from the parameters.
    """
    log_means = log_ratio(a_p, a_q, more) - log_ratio(rate_p, rate_q, faster)
    return a_q * excess(log_means) + lgamma_remainder(a_p, a_q, None if more is None else -more)


@closed_form(Weibull, Exponential)
def kl_weibull_exponential(p: Weibull, q: Exponential) -> Tensor:
    """Return KL to the Weibull distribution of concentration 1."""
    scale = 1 / wide(q.rate)
    return weibull_divergence(wide(p.scale), wide(p.concentration), scale, torch.ones_like(scale))


@closed_form(Exponential, Weibull)
def kl_exponential_weibull(p: Exponential, q: Weibull) -> Tensor:
    """Return KL from the Weibull distribution of concentration 1."""
    scale = 1 / wide(p.rate)
    return weibull_divergence(scale, torch.ones_like(scale), wide(q.scale), wide(q.concentration))


@closed_form(Weibull, Gamma)
def kl_weibull_gamma(p: Weibull, q: Gamma) -> Tensor:
    """Return a_q (x - 1 - log x) at x = mean_P / mean_Q, plus what shapes add, which is 0 at k = a = 1.

    With y = 1 / k: a B(1 -> y) + R(1 -> a) + (a - 1) log y, with B and R the divergences of lgamma and its remainder.
    Computing the Kullback-Leibler Divergence between two Generalized Gamma Distributions (Bauckhage, 2014)
    """
    a, k, scale = wide(q.concentration), wide(p.concentration), wide(p.scale)
    one = torch.ones_like(k)
    y = 1 / k
    log_means = log_ratio(scale * wide(q.rate), a) + torch.lgamma(1 + y)
    shapes = a * lgamma_bregman(one, y, (1 - k) / k) - (a - 1) * log_ratio(k, one)
    return (a * excess(log_means) + shapes + lgamma_remainder(torch.ones_like(a), a)).clamp(min=0)


@closed_form(HalfNormal, HalfNormal)
def kl_half_normal_half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    """Return (r^2 - 1) / 2 - log r at r = s_p / s_q: that of Normal distributions with mean 0."""
    scale_p, scale_q = wide(p.scale), wide(q.scale)
    more = (scale_p - scale_q) / scale_q
    return more * more / 2 + log_ratio_excess(scale_p, scale_q)


@closed_form(HalfCauchy, HalfCauchy)
def kl_half_cauchy_half_cauchy(p: HalfCauchy, q: HalfCauchy) -> Tensor:
    """Return log((s_p + s_q)^2 / (4 s_p s_q)): that of Cauchy distributions with location 0."""
    return cauchy_divergence(0.0, wide(p.scale), wide(q.scale))


@closed_form(Pareto, Pareto)
def kl_pareto_pareto(p: Pareto, q: Pareto) -> Tensor:
    """Return x - 1 - log x at x = alpha_q / alpha_p, plus alpha_q log(s_p / s_q).

    For P = Q that is the least value: the gradient is 0, though the derivative inwards is not.
    """
    alpha_p, alpha_q, scale_p, scale_q = wide(p.alpha), wide(q.alpha), wide(p.scale), wide(q.scale)
    equal = (scale_p == scale_q) & (alpha_p == alpha_q)
    shift = torch.where(equal, 0, log_ratio(scale_p, scale_q))
    return log_ratio_excess(alpha_q, alpha_p) + alpha_q * shift
