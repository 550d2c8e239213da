"""The families of Gumbel and Weibull distributions: -log x of a Weibull variable x is a Gumbel variable.

In the formulas, m_p and m_q are the locations of P and Q, s_p and s_q are the scales, H is the entropy, gamma is
Euler's constant, and k and a are the concentrations of Weibull and Gamma distributions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Distribution,
    Exponential,
    ExpTransform,
    Gamma,
    Gumbel,
    Laplace,
    Normal,
    Transform,
    TransformedDistribution,
    Weibull,
)

from kullback.common.dtypes import upcast
from kullback.common.special import (
    EULER_GAMMA,
    HALF_LOG_2PI,
    bounded_exp,
    clamped_quotient,
    ein,
    expm1mx,
    lgamma_bregman,
    log_product,
    log_ratio,
    polynomial,
    scaled_e1_from_2,
    scaled_expm1mx,
    stirling_bregman,
    stirling_remainder,
    within_floats,
)
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import HalfLineDensity, LocationScaleDensity, Points, Tail
from kullback.pairs.densities.maps import exact, scaling, shift
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, Means, Parameters, ScipyForm
from kullback.pairs.numerics.log_moments import Factor, GammaProduct, LogMoments
from kullback.pairs.registry import closed_form


class GumbelDensity(LocationScaleDensity):
    """The density exp(-z - e^-z) / scale with z = (x - loc) / scale."""

    def log_density(self, at: Points) -> Tensor:
        z = self.standard(at)
        return -z - torch.exp(-z) - torch.log(self.scale)

    def lower_tail(self) -> Tail:
        return Tail(-1.0, 1 / self.scale, torch.exp(self.loc / self.scale))

    def upper_tail(self) -> Tail:
        return Tail(0.0, 1.0, 1 / self.scale)


@closed_form(Gumbel, Gumbel, native=ElementForm.GUMBEL)
def kl_gumbel_gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    """Return `gumbel_divergence` for the shift (m_q - m_p) / s_q, with the locations m_p and m_q and Q's scale s_q."""
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    return gumbel_divergence(within_floats((upcast(q.loc) - upcast(p.loc)) / scale_q), scale_p, scale_q)


def gumbel_divergence(shift: Tensor, scale_p: Tensor, scale_q: Tensor) -> Tensor:
    """Return e^(t + lgamma(1 + r)) - 1 - t + gamma (r - 1) - log r for t = `shift` and r = `scale_p` / `scale_q`.

    Here gamma is Euler's constant. The result is computed as (e^d - 1 - d) + B, with d = t + lgamma(1 + r) and the
    Bregman divergence B of lgamma from 1 to r.
    """
    ratio, more = (x.clamp(max=1e308) for x in (scale_p / scale_q, (scale_p - scale_q) / scale_q))
    small = ratio < 0.5  # for a small r, 1 / r may overflow
    beyond = _lgamma_beyond_two(more)
    far = beyond + EULER_GAMMA * more - log_ratio(scale_p, scale_q)
    one = torch.ones_like(ratio)
    near = lgamma_bregman(one, torch.where(small, one, ratio), torch.where(small, 0, more))
    return expm1mx(shift + beyond) + torch.where(small, far, near)


def _lgamma_beyond_two(z: Tensor) -> Tensor:
    """Return lgamma(2 + z), to full precision near its zero at z = 0.

    Near 0 the result is the Taylor series with the coefficients (-1)^k (zeta(k) - 1) / k.
    """
    series = (
        1 - EULER_GAMMA,
        0.32246703342411321824,
        -0.067352301053198095133,
        0.020580808427784547880,
        -0.0073855510286739852663,
        0.0028905103307415232858,
    )
    small = z.clamp(-0.004, 0.004)
    return torch.where(small == z, small * polynomial(series, small), torch.lgamma(2 + z))


@closed_form(Gumbel, Normal, native=ElementForm.GUMBEL_NORMAL)
def kl_gumbel_normal(p: Gumbel, q: Normal) -> Tensor:
    """Return log(2 pi) / 2 - log r - gamma - 1 + (pi^2 r^2 / 6 + t^2) / 2, with t = (E_P x - m) / s_q.

    Here m is Q's location, r = s_p / s_q, s_p and s_q are the scales, and gamma is Euler's constant.
    """
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    ratio = scale_p / scale_q
    shift = (upcast(p.loc) - upcast(q.loc)) / scale_q + EULER_GAMMA * ratio
    variance = math.pi**2 / 6 * ratio * ratio
    return (variance + shift * shift) / 2 - log_ratio(scale_p, scale_q) + (HALF_LOG_2PI - EULER_GAMMA - 1)


@closed_form(Gumbel, Laplace)
def kl_gumbel_laplace(p: Gumbel, q: Laplace) -> Tensor:
    """Return log(2 / r) - gamma - 1 + r E|t - c|, with r = s_p / s_q and c = (m_q - m_p) / s_p.

    Here m_p and m_q are the locations, s_p and s_q are the scales, gamma is Euler's constant, and t is a standard
    Gumbel variable. With y = e^-c, E max(c - t, 0) is E1(y) = Ein(y) - log y - gamma. Hence
    E|t - c| = gamma - c + 2 E1(y) = c - gamma + 2 Ein(y).
    """
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    quotient, further = scale_p / scale_q, upcast(q.loc) - upcast(p.loc)
    ratio = torch.where(quotient.isinf(), 0, quotient)
    c = clamped_quotient(further, scale_p, 1000)
    above = c > -math.log(2)  # y < 2
    y = torch.exp(-torch.where(above, c, 0))
    far = torch.exp(-torch.where(above, -1, c).clamp(min=-7))
    e1 = torch.exp(-far) * scaled_e1_from_2(far)
    side = torch.where(above, 1, -1)
    distance = side * (further / scale_q - EULER_GAMMA * ratio) + 2 * ratio * torch.where(above, ein(y), e1)
    value = distance - log_ratio(scale_p, scale_q) + (math.log(2) - EULER_GAMMA - 1)
    return torch.where(quotient.isinf(), torch.inf, value)


def kl_to_gumbel(p: LogMoments, loc: Tensor, scale: Tensor, mean: Tensor, log_decay: Tensor) -> Tensor:
    """Return KL(P || Gumbel(loc, scale)) for a positive X ~ P.

    `p` are the moments of log X, `mean` is E X / scale, and `log_decay` is log E e^(-X / scale).
    """
    start = within_floats(loc / scale)
    return mean - start + bounded_exp(start + log_decay) + torch.log(scale) - p.mean() - p.entropy


def _cdf(d: Gumbel) -> list[Transform]:
    """Return the elementary steps of the distribution function e^-e^-z with z = (x - loc) / scale.

    Torch's own steps start from a Uniform with rounded ends, so they are not used.
    """
    z = [shift(-exact(d.loc)), scaling(-1 / exact(d.scale))]
    return [*z, ExpTransform(), scaling(-1.0), ExpTransform()]


def _reflected(loc: Tensor, scale: Tensor) -> Distribution:
    minus = AffineTransform(torch.zeros_like(loc), -torch.ones_like(loc))
    return TransformedDistribution(Gumbel(-loc, scale), [minus])


register_family(Family(
    Gumbel, "loc scale", GumbelDensity, units={"loc": 1, "scale": 1}, cdf=_cdf,
    scipy=[ScipyForm("gumbel_r", Gumbel, "loc scale"), ScipyForm("gumbel_l", _reflected, "loc scale")],
))  # fmt: skip


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
