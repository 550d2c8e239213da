"""Closed forms of families on the real line: Normal, Laplace, Cauchy, Gumbel and StudentT."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Cauchy, Gumbel, Laplace, LogNormal, Normal, StudentT, Weibull

from kullback.common.dtypes import tensor_of, upcast
from kullback.common.special import (
    EULER_GAMMA,
    HALF_LOG_2PI,
    bounded_exp,
    clamped_quotient,
    ein,
    expm1mx,
    itakura_saito,
    lgamma_bregman,
    log1p_quotient,
    log_ratio,
    polynomial,
    scaled_e1_from_2,
    stirling_remainder,
    within_floats,
)
from kullback.kernels.codes import ElementForm
from kullback.pairs.registry import closed_form

__all__: list[str] = []


@closed_form(Normal, Normal, native=ElementForm.NORMAL)
@closed_form(LogNormal, LogNormal, native=ElementForm.NORMAL)
def kl_normal_normal(p: Normal | LogNormal, q: Normal | LogNormal) -> Tensor:
    """Return (d / s_q)^2 / 2 + (r^2 - 1) / 2 - log r, with d the difference of the means and r = s_p / s_q."""
    return normal_divergence(upcast(p.loc) - upcast(q.loc), upcast(p.scale), upcast(q.scale))


def normal_divergence(distance: Tensor | float, scale_p: Tensor, scale_q: Tensor) -> Tensor:
    """Return KL between Normal distributions whose means differ by `distance`."""
    shift, more = distance / scale_q, (scale_p - scale_q) / scale_q
    return (shift * shift + more * more) / 2 + itakura_saito(scale_p, scale_q)


@closed_form(Laplace, Laplace, native=ElementForm.LAPLACE)
def kl_laplace_laplace(p: Laplace, q: Laplace) -> Tensor:
    """Return r - 1 - log r + r (e^-y - 1 + y), with r = s_p / s_q and y the distance of the medians in units of s_p.

    If the medians are far apart, r and -r are removed from the formula, so their derivatives do not cancel either.
    """
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    shift = upcast(p.loc) - upcast(q.loc)
    distance = torch.where(shift < 0, -shift, shift)  # unlike |shift| it has second derivatives at 0
    # y and r may overflow where r y does not
    y = clamped_quotient(distance, scale_p, 1000)
    far = y > 2
    scaled = torch.where(far, distance + torch.exp(-y) * scale_p, expm1mx(-y) * scale_p) / scale_q
    near = itakura_saito(torch.where(far, scale_q, scale_p), scale_q)
    return scaled + torch.where(far, -log_ratio(scale_p, scale_q) - 1, near)


@closed_form(Cauchy, Cauchy, native=ElementForm.CAUCHY)
def kl_cauchy_cauchy(p: Cauchy, q: Cauchy) -> Tensor:
    """Return log(1 + ((s_p - s_q)^2 + d^2) / (4 s_p s_q)).

    A closed-form formula for the Kullback-Leibler divergence between Cauchy distributions (Chyzak and Nielsen, 2019)
    """
    return cauchy_divergence(upcast(p.loc) - upcast(q.loc), upcast(p.scale), upcast(q.scale))


def cauchy_divergence(shift: Tensor | float, scale_p: Tensor, scale_q: Tensor) -> Tensor:
    """Return KL between Cauchy distributions whose locations differ by `shift`.

    Far from 0, the logarithm of ((s_p + s_q)^2 + d^2) / (4 s_p s_q) is computed in parts that do not overflow.
    """
    more, shift = scale_p - scale_q, tensor_of(shift)
    far = (
        2 * torch.log(torch.hypot((scale_p + scale_q) / 2, shift / 2))
        - torch.log(scale_p)
        - torch.log(scale_q)
    )
    near = far.detach() < 0.5
    more, shift = torch.where(near, more, 0), torch.where(near, shift, 0)
    squares = (more / scale_p) * (more / scale_q) + (shift / scale_p) * (shift / scale_q)
    return torch.where(near, torch.log1p(squares / 4), far)


@closed_form(Gumbel, Gumbel, native=ElementForm.GUMBEL)
def kl_gumbel_gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    """Return `gumbel_divergence` at ratio s_p / s_q and shift (m_q - m_p) / s_q."""
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    return gumbel_divergence(within_floats((upcast(q.loc) - upcast(p.loc)) / scale_q), scale_p, scale_q)


@closed_form(Weibull, Weibull)
def kl_weibull_weibull(p: Weibull, q: Weibull) -> Tensor:
    """Return KL of the Gumbel distributions of -log x, with locations -log scale and scales 1 / concentration.

    Kullback-Leibler divergence between two Weibull distributions (Bauckhage, 2013)
    """
    k_p, k_q = upcast(p.concentration), upcast(q.concentration)
    return gumbel_divergence(k_q * log_ratio(upcast(p.scale), upcast(q.scale)), k_q, k_p)


def gumbel_divergence(shift: Tensor, scale_p: Tensor, scale_q: Tensor) -> Tensor:
    """Return e^(t + lgamma(1 + r)) - 1 - t + gamma (r - 1) - log r at shift t and r = s_p / s_q.

    It is e^d - 1 - d at d = t + lgamma(1 + r), and Bregman's divergence of lgamma from 1 to r.
    """
    ratio, more = (x.clamp(max=1e308) for x in (scale_p / scale_q, (scale_p - scale_q) / scale_q))
    small = ratio < 0.5  # where 1 / r may overflow
    beyond = _lgamma_beyond_two(more)
    far = beyond + EULER_GAMMA * more - log_ratio(scale_p, scale_q)
    one = torch.ones_like(ratio)
    near = lgamma_bregman(one, torch.where(small, one, ratio), torch.where(small, 0, more))
    return expm1mx(shift + beyond) + torch.where(small, far, near)


def _lgamma_beyond_two(z: Tensor) -> Tensor:
    """Return lgamma(2 + z), to full precision near its zero at z = 0.

    It uses the Taylor series with the coefficients (-1)^k (zeta(k) - 1) / k.
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


@closed_form(Normal, Laplace, native=ElementForm.NORMAL_LAPLACE)
def kl_normal_laplace(p: Normal, q: Laplace) -> Tensor:
    """Return log(2 b) - log(2 pi e s^2) / 2 + E|x - m| / b.

    The mean of a folded Normal is s sqrt(2 / pi) e^(-t^2 / 2) + d erf(t / sqrt 2), at t = d / s.
    The Folded Normal Distribution (Leone, Nelson and Nottingham, 1961)
    """
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    distance = upcast(p.loc) - upcast(q.loc)
    shift = clamped_quotient(distance, scale_p, 1000)
    near = scale_p * (math.sqrt(2 / math.pi) * torch.exp(-shift * shift / 2))
    folded = (near + distance * torch.erf(shift * math.sqrt(0.5))) / scale_q
    return folded - log_ratio(scale_p, scale_q) + (math.log(2) - HALF_LOG_2PI - 0.5)


@closed_form(Laplace, Normal, native=ElementForm.LAPLACE_NORMAL)
def kl_laplace_normal(p: Laplace, q: Normal) -> Tensor:
    """Return log(2 pi s^2) / 2 + (2 b^2 + d^2) / (2 s^2) - 1 - log(2 b)."""
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    ratio = scale_p / scale_q
    shift = (upcast(p.loc) - upcast(q.loc)) / scale_q
    return ratio * ratio - log_ratio(scale_p, scale_q) + shift * shift / 2 + (HALF_LOG_2PI - 1 - math.log(2))


@closed_form(Normal, Gumbel, native=ElementForm.NORMAL_GUMBEL)
def kl_normal_gumbel(p: Normal, q: Gumbel) -> Tensor:
    """Return t + e^(r^2 / 2 - t) - log r - log(2 pi e) / 2, with t = (m_p - m_q) / s_q and r = s_p / s_q."""
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    ratio = scale_p / scale_q
    shift = within_floats((upcast(p.loc) - upcast(q.loc)) / scale_q)
    return shift + bounded_exp(ratio * ratio / 2 - shift) - log_ratio(scale_p, scale_q) - (HALF_LOG_2PI + 0.5)


@closed_form(Gumbel, Normal, native=ElementForm.GUMBEL_NORMAL)
def kl_gumbel_normal(p: Gumbel, q: Normal) -> Tensor:
    """Return log(2 pi) / 2 - log r - gamma - 1 + (pi^2 r^2 / 6 + t^2) / 2, with t = (E_P x - m) / s_q."""
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    ratio = scale_p / scale_q
    shift = (upcast(p.loc) - upcast(q.loc)) / scale_q + EULER_GAMMA * ratio
    variance = math.pi**2 / 6 * ratio * ratio
    return (variance + shift * shift) / 2 - log_ratio(scale_p, scale_q) + (HALF_LOG_2PI - EULER_GAMMA - 1)


@closed_form(Laplace, Gumbel)
def kl_laplace_gumbel(p: Laplace, q: Gumbel) -> Tensor:
    """Return t + e^-t / (1 - r^2) - log(2 r) - 1, with t = (m_p - m_q) / s_q and r = s_p / s_q below 1."""
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    ratio = scale_p / scale_q
    light = ratio < 1
    shift = within_floats((upcast(p.loc) - upcast(q.loc)) / scale_q)
    # 1 - r^2, accurate for nearly equal scales too
    room = torch.where(light, (scale_q - scale_p) / scale_q * (1 + ratio), 1)
    return shift + bounded_exp(-shift - torch.log(room)) - log_ratio(scale_p, scale_q) - (1 + math.log(2))


@closed_form(Gumbel, Laplace)
def kl_gumbel_laplace(p: Gumbel, q: Laplace) -> Tensor:
    """Return log(2 / r) - gamma - 1 + r E|t - c|, with r = s_p / s_q, c = (m_q - m_p) / s_p and y = e^-c.

    E|t - c| = gamma - c + 2 E1(y) = c - gamma + 2 Ein(y), because E1(y) = Ein(y) - log y - gamma is E(c - t)+.
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


@closed_form(StudentT, Normal)
def kl_student_t_normal(p: StudentT, q: Normal) -> Tensor:
    """Return (v - 1 - log v + (d / s_q)^2) / 2 plus KL to the Normal of P's mean and variance; v = Var P / s_q^2."""
    half = upcast(p.df) / 2
    half = torch.where(half > 1, half, 2)
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    ratio = scale_p / scale_q
    more = (scale_p - scale_q) / scale_q
    shift = (upcast(p.loc) - upcast(q.loc)) / scale_q
    # If the square of the ratio underflows, its logarithm is used; if it overflows, it is infinite.
    tiny, huge = ratio < 1e-100, ratio > 1e150
    log_variance = 2 * log_ratio(scale_p, scale_q) + torch.log(half / (half - 1))
    ratio, more = torch.where(tiny | huge, 1, ratio), torch.where(tiny | huge, 0, more)
    square = ratio * ratio
    variance = square * half / (half - 1)
    spread = itakura_saito(variance, torch.ones_like(variance), more * (2 + more) + square / (half - 1))
    spread = torch.where(tiny, -1 - log_variance, torch.where(huge, torch.inf, spread))
    return (spread + shift * shift) / 2 + _from_normal(half)


def _from_normal(half: Tensor) -> Tensor:
    """Return KL of a standard StudentT with 2 `half` degrees of freedom to the Normal of its mean and variance.

    For many degrees of freedom it is an asymptotic series, from Stirling's series.
    """
    series = (3 / 16, 3 / 16, 17 / 128, 29 / 320, 61 / 768, 0.080915178571428571429)
    series += (0.066650390625, 0.038736979166666666667, 0.042431640625, 0.091463955965909090909)
    inverse = 1 / half.clamp(min=12)
    few = half.clamp(max=12)
    entropy = (
        (few + 0.5) * (torch.digamma(few + 0.5) - torch.digamma(few))
        + torch.lgamma(few)
        - torch.lgamma(few + 0.5)
    )
    direct = (1 - torch.log1p(-1 / few)) / 2 - torch.log(few) / 2 - entropy
    return torch.where(half > 12, inverse * inverse * polynomial(series, inverse), direct)


@closed_form(Cauchy, StudentT)
def kl_cauchy_student_t(p: Cauchy, q: StudentT) -> Tensor:
    """Return E_P[-log q] - log(4 pi s_p), where E log((x - m)^2 + c^2) = log(d^2 + (s_p + c)^2)."""
    half, scale_p = upcast(q.df) / 2, upcast(p.scale)
    reach = upcast(q.scale) * torch.sqrt(2 * half)
    distance = upcast(p.loc) - upcast(q.loc)
    # lgamma(h + 1/2) - lgamma(h) - log(h) / 2
    step = (
        (half + 0.5) * log1p_quotient(torch.full_like(half, 0.5), half)
        - 0.5
        + stirling_remainder(half + 0.5)
        - stirling_remainder(half)
    )
    # log(shift^2 + (1 + ratio)^2), where neither square may overflow
    large = torch.maximum(distance.abs(), scale_p).detach() > 1e8 * reach
    shift, ratio = (torch.where(large, 0, x) / reach for x in (distance, scale_p))
    near = torch.log1p(shift * shift + ratio * (2 + ratio))
    size = torch.hypot(torch.where(large, scale_p / 2 + reach / 2, 1), torch.where(large, distance / 2, 1))
    log_square = torch.where(large, 2 * (log_ratio(size, reach) + math.log(2)), near)
    value = (half + 0.5) * log_square - step - log_ratio(scale_p, reach) - torch.log(16 * math.pi * half) / 2
    return value.clamp(min=0)
