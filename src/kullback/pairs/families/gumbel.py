"""The family of Gumbel distributions.

In the formulas, m_p and m_q are the locations of P and Q, s_p and s_q are the scales, H is the entropy, and gamma is
Euler's constant.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Distribution,
    ExpTransform,
    Gumbel,
    Laplace,
    Normal,
    Transform,
    TransformedDistribution,
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
    log_ratio,
    polynomial,
    scaled_e1_from_2,
    within_floats,
)
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import LocationScaleDensity, Points, Tail
from kullback.pairs.densities.maps import exact, scaling, shift
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, ScipyForm
from kullback.pairs.numerics.log_moments import LogMoments
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

    This is (e^d - 1 - d) + B, with d = t + lgamma(1 + r) and the Bregman divergence B of lgamma from 1 to r.
    """
    ratio, more = (x.clamp(max=1e308) for x in (scale_p / scale_q, (scale_p - scale_q) / scale_q))
    small = ratio < 0.5  # for a small r, 1 / r may overflow
    beyond = _lgamma_beyond_two(more)
    far = beyond + EULER_GAMMA * more - log_ratio(scale_p, scale_q)
    one = torch.ones_like(ratio)
    near = lgamma_bregman(one, torch.where(small, one, ratio), torch.where(small, 0, more))
    return expm1mx(shift + beyond) + torch.where(small, far, near)


def _lgamma_beyond_two(z: Tensor) -> Tensor:
    """Return lgamma(2 + z), near 0 by its Taylor series with the coefficients (-1)^k (zeta(k) - 1) / k."""
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
    """Return log(2 pi) / 2 - log r - gamma - 1 + (pi^2 r^2 / 6 + t^2) / 2; r = s_p / s_q, t = (E_P x - m_q) / s_q."""
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    ratio = scale_p / scale_q
    shift = (upcast(p.loc) - upcast(q.loc)) / scale_q + EULER_GAMMA * ratio
    variance = math.pi**2 / 6 * ratio * ratio
    return (variance + shift * shift) / 2 - log_ratio(scale_p, scale_q) + (HALF_LOG_2PI - EULER_GAMMA - 1)


@closed_form(Gumbel, Laplace)
def kl_gumbel_laplace(p: Gumbel, q: Laplace) -> Tensor:
    """Return log(2 / r) - gamma - 1 + r E|t - c|, with r = s_p / s_q, c = (m_q - m_p) / s_p and a standard Gumbel t.

    With y = e^-c, E max(c - t, 0) is E1(y) = Ein(y) - log y - gamma. Hence
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
    """Return KL(P || Gumbel(loc, scale)) for a positive X ~ P with the moments `p` of log X.

    `mean` is E X / scale, and `log_decay` is log E e^(-X / scale).
    """
    start = within_floats(loc / scale)
    return mean - start + bounded_exp(start + log_decay) + torch.log(scale) - p.mean() - p.entropy


def _cdf(d: Gumbel) -> list[Transform]:
    """Return the steps of e^-e^-z, z = (x - loc) / scale; torch's own steps start from a Uniform with rounded ends."""
    z = [shift(-exact(d.loc)), scaling(-1 / exact(d.scale))]
    return [*z, ExpTransform(), scaling(-1.0), ExpTransform()]


def _reflected(loc: Tensor, scale: Tensor) -> Distribution:
    minus = AffineTransform(torch.zeros_like(loc), -torch.ones_like(loc))
    return TransformedDistribution(Gumbel(-loc, scale), [minus])


register_family(Family(
    Gumbel, "loc scale", GumbelDensity, units={"loc": 1, "scale": 1}, cdf=_cdf,
    scipy=[ScipyForm("gumbel_r", Gumbel, "loc scale"), ScipyForm("gumbel_l", _reflected, "loc scale")],
))  # fmt: skip
