"""The family of Laplace distributions.

In the formulas, m_p and m_q are the locations of P and Q, and s_p and s_q are the scales.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Gumbel, Laplace, Normal

from kullback.common.dtypes import upcast
from kullback.common.special import (
    HALF_LOG_2PI,
    bounded_exp,
    clamped_quotient,
    expm1mx,
    itakura_saito,
    log_ratio,
    within_floats,
)
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import LocationScaleDensity, Points, Tail
from kullback.pairs.densities.mapped import LAPLACE
from kullback.pairs.densities.maps import standardized
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, Means, Parameters, ScipyForm, symmetric_image
from kullback.pairs.registry import closed_form


class LaplaceDensity(LocationScaleDensity):
    """The density exp(-|z|) / (2 scale) with z = (x - loc) / scale."""

    def log_density(self, at: Points) -> Tensor:
        return -self.standard(at).abs() - torch.log(2 * self.scale)

    def nonsmooth_points(self) -> list[Tensor]:
        return [self.loc]

    def tail_factor(self) -> float:
        return 0.0

    def lower_tail(self) -> Tail:
        return Tail(0.0, 1.0, 1 / self.scale)

    upper_tail = lower_tail


@closed_form(Laplace, Laplace, native=ElementForm.LAPLACE)
def kl_laplace_laplace(p: Laplace, q: Laplace) -> Tensor:
    """Return r - 1 - log r + r (e^-y - 1 + y), with r = s_p / s_q and y = |m_p - m_q| / s_p.

    For y > 2, r and -r are omitted, because rounding would leave a difference between their derivatives.
    """
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    shift = upcast(p.loc) - upcast(q.loc)
    # The derivative of torch.abs is 0 at 0, which would make the second derivative of KL at equal locations 0.
    distance = torch.where(shift < 0, -shift, shift)
    # The product r y may be finite although y or r overflows, so y is clamped.
    y = clamped_quotient(distance, scale_p, 1000)
    far = y > 2
    scaled = torch.where(far, distance + torch.exp(-y) * scale_p, expm1mx(-y) * scale_p) / scale_q
    near = itakura_saito(torch.where(far, scale_q, scale_p), scale_q)
    return scaled + torch.where(far, -log_ratio(scale_p, scale_q) - 1, near)


@closed_form(Laplace, Normal, native=ElementForm.LAPLACE_NORMAL)
def kl_laplace_normal(p: Laplace, q: Normal) -> Tensor:
    """Return log(2 pi s_q^2) / 2 + (2 s_p^2 + (m_p - m_q)^2) / (2 s_q^2) - 1 - log(2 s_p)."""
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    ratio = scale_p / scale_q
    shift = (upcast(p.loc) - upcast(q.loc)) / scale_q
    return ratio * ratio - log_ratio(scale_p, scale_q) + shift * shift / 2 + (HALF_LOG_2PI - 1 - math.log(2))


@closed_form(Laplace, Gumbel)
def kl_laplace_gumbel(p: Laplace, q: Gumbel) -> Tensor:
    """Return t + e^-t / (1 - r^2) - log(2 r) - 1 for r = s_p / s_q < 1 and t = (m_p - m_q) / s_q; else +inf."""
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    ratio = scale_p / scale_q
    light = ratio < 1
    shift = within_floats((upcast(p.loc) - upcast(q.loc)) / scale_q)
    # `room` is 1 - r^2, accurate even for nearly equal scales.
    room = torch.where(light, (scale_q - scale_p) / scale_q * (1 + ratio), 1)
    return shift + bounded_exp(-shift - torch.log(room)) - log_ratio(scale_p, scale_q) - (1 + math.log(2))


def _match(target: Means, start: Parameters, fixed: frozenset[str]) -> Parameters:
    loc = start["loc"] if "loc" in fixed else target.median()  # the location that minimizes E|x - loc|
    if "scale" in fixed:
        return {"loc": loc, "scale": start["scale"]}
    scale = target.mean_of(lambda at, center: (at.x - center).abs(), loc, corner=loc)
    return {"loc": loc, "scale": scale}


register_family(Family(
    Laplace, "loc scale", LaplaceDensity, units={"loc": 1, "scale": 1}, image=symmetric_image,
    cdf=standardized, curve=LAPLACE, scipy=[ScipyForm("laplace", Laplace, "loc scale")], match=_match,
))  # fmt: skip
