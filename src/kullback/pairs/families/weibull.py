"""The family of Weibull distributions.

In the formulas, k and a are the concentrations of Weibull and Gamma distributions, and gamma is Euler's constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Exponential, Gamma, Weibull

from kullback.common.dtypes import upcast
from kullback.common.special import (
    EULER_GAMMA,
    expm1mx,
    lgamma_bregman,
    log_product,
    log_ratio,
    scaled_expm1mx,
    stirling_bregman,
    stirling_remainder,
)
from kullback.pairs.densities.density import HalfLineDensity, Points, Tail
from kullback.pairs.families.gumbel import gumbel_divergence
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, Means, Parameters, ScipyForm
from kullback.pairs.numerics.log_moments import Factor, GammaProduct, LogMoments
from kullback.pairs.registry import closed_form


@dataclass(frozen=True)
class WeibullDensity(HalfLineDensity):
    """The density (k / scale) (x / scale)^(k - 1) exp(-(x / scale)^k) with the concentration k."""

    scale: Tensor
    concentration: Tensor

    def log_density(self, at: Points) -> Tensor:
        k = self.concentration
        log_power = k * (at.log_above(0.0) - torch.log(self.scale))
        return torch.log(k) + log_power - torch.exp(log_power) - at.log_above(0.0)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        k = self.concentration
        return torch.log(self.scale) - 0.5772 / k, 1.2825 / k

    def lower_tail(self) -> Tail:
        return Tail.of_power(self.concentration)

    def upper_tail(self) -> Tail:
        return Tail(0.0, self.concentration, self.scale**-self.concentration)


@closed_form(Weibull, Weibull)
def kl_weibull_weibull(p: Weibull, q: Weibull) -> Tensor:
    """Return KL of the Gumbel distributions of -log x, with locations -log scale and scales 1 / concentration.

    Kullback-Leibler divergence between two Weibull distributions (Bauckhage, 2013)
    """
    k_p, k_q = upcast(p.concentration), upcast(q.concentration)
    return gumbel_divergence(k_q * log_ratio(upcast(p.scale), upcast(q.scale)), k_q, k_p)


@closed_form(Weibull, Exponential)
def kl_weibull_exponential(p: Weibull, q: Exponential) -> Tensor:
    """Return KL to the Weibull distribution with concentration 1, which equals Q."""
    k, rate = upcast(p.concentration), upcast(q.rate)
    return gumbel_divergence(log_product(upcast(p.scale), rate), torch.ones_like(k), k)


@closed_form(Weibull, Gamma)
def kl_weibull_gamma(p: Weibull, q: Gamma) -> Tensor:
    """Return a (x - 1 - log x) + f(k, a), with x = mean_P / mean_Q and a function f that is 0 at k = a = 1.

    Here k is P's concentration, and a is Q's. With y = 1 / k, f(k, a) = a B(1, y) + R(1, a) + (a - 1) log y. B and R
    are the Bregman divergences of lgamma and of its Stirling remainder S(x) = lgamma(x) - x log x + x. For k > 2, f is
    computed as a B(1, 1 + y) + S(a) + log k - 1 - gamma, without cancellation; gamma is Euler's constant.
    Computing the Kullback-Leibler Divergence between two Generalized Gamma Distributions (Bauckhage, 2014)
    """
    a, k, scale, rate = upcast(q.concentration), upcast(p.concentration), upcast(p.scale), upcast(q.rate)
    one = torch.ones_like(k)
    k = k.clamp(min=1e-300)  # for a smaller k, E X overflows
    y = one / k
    sharp = k > 2
    near, z, few = torch.where(sharp, 1, k), torch.where(sharp, 1, y), torch.where(sharp, y, 0)
    beyond = lgamma_bregman(one, 1 + few, few)
    log_mean = torch.where(sharp, beyond - EULER_GAMMA * few, torch.lgamma(1 + y))  # log E[X / scale]
    means = scaled_expm1mx(a, log_product(scale, rate, a) + log_mean, log_product(scale, rate) + log_mean)
    shapes = a * lgamma_bregman(one, z, (1 - near) / near) - (a - 1) * log_ratio(near, one)
    shapes = shapes + stirling_bregman(torch.ones_like(a), a)
    far = a * beyond + stirling_remainder(a) + log_ratio(k, one) - (1 + EULER_GAMMA)
    return (means + torch.where(sharp, far, shapes)).clamp(min=0)


def _of_weibull(d: Weibull) -> LogMoments:
    k = upcast(d.concentration)
    power = torch.ones_like(k) / k.clamp(min=1e-300)  # for a smaller k, the moments overflow
    return GammaProduct(
        EULER_GAMMA + 1 - torch.log(k),
        torch.log(upcast(d.scale)),
        (Factor(torch.ones_like(k), power),),
        root=k,
    )


def _to_weibull(p: LogMoments, q: Weibull) -> Tensor:
    """Return x - 1 - log x + 1 + jensen_gap(k) - log k - H(log X), with x = E (X / scale)^k.

    Here X is the variable of the moments `p`, H is the entropy, and k is Q's concentration.
    """
    k = upcast(q.concentration)
    gap = p.jensen_gap(k)
    return expm1mx(p.log_power(k) - k * torch.log(upcast(q.scale))) + 1 + gap - torch.log(k) - p.entropy


def _match(target: Means, start: Parameters, fixed: frozenset[str]) -> Parameters | None:
    if "scale" in fixed or "concentration" not in fixed:
        return None
    k, middle = start["concentration"], target.mean_log()
    power = target.mean_of(lambda at, k, m: torch.expm1(k * (at.log_above(0.0) - m)), k, middle)
    return {"scale": torch.exp(middle + torch.log1p(power) / k), "concentration": k}


register_family(Family(
    Weibull, "scale concentration", WeibullDensity, units={"scale": 1, "concentration": 0},
    log_moments=_of_weibull, from_log_moments=_to_weibull,
    scipy=[
        ScipyForm("weibull_min", lambda c, scale: Weibull(scale, c)),
        ScipyForm("rayleigh", lambda scale: Weibull(scale * math.sqrt(2), torch.full_like(scale, 2.0))),
    ],
    match=_match,
))  # fmt: skip
