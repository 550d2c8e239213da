"""The Cauchy family, and the HalfCauchy family of absolute values of Cauchy variables.

In the formulas, m_q is the location of Q, and s_p and s_q are the scales of P and Q.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Cauchy, HalfCauchy, StudentT
from torch.nn.functional import logsigmoid

from kullback.common.dtypes import tensor_of, upcast
from kullback.common.special import HALF_LOG_2PI, log1p_quotient, log_ratio, stirling_remainder
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import (
    HalfLineDensity,
    LocationScaleDensity,
    Points,
    Tail,
    log_one_plus_square,
)
from kullback.pairs.densities.mapped import CAUCHY
from kullback.pairs.densities.maps import folded, standardized
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, ScipyForm, symmetric_image
from kullback.pairs.numerics.log_moments import Factor, GammaProduct, LogMoments
from kullback.pairs.registry import closed_form


class CauchyDensity(LocationScaleDensity):
    """The density 1 / (pi scale (1 + z^2)) with z = (x - loc) / scale."""

    def log_density(self, at: Points) -> Tensor:
        return -log_one_plus_square(self.standard(at)) - torch.log(self.scale) - math.log(math.pi)

    def lower_tail(self) -> Tail:
        return Tail.of_power(1.0)

    upper_tail = lower_tail


@dataclass(frozen=True)
class HalfCauchyDensity(HalfLineDensity):
    """The density 2 / (pi scale (1 + z^2)) with z = x / scale."""

    scale: Tensor

    def log_density(self, at: Points) -> Tensor:
        log_z = at.log_above(0.0) - torch.log(self.scale)
        return math.log(2 / math.pi) + logsigmoid(-2 * log_z) - torch.log(self.scale)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return torch.log(self.scale), torch.full_like(self.scale, math.pi / 2)

    def upper_tail(self) -> Tail:
        return Tail.of_power(1.0)


@closed_form(Cauchy, Cauchy, native=ElementForm.CAUCHY)
def kl_cauchy_cauchy(p: Cauchy, q: Cauchy) -> Tensor:
    """Return log(1 + ((s_p - s_q)^2 + (m_p - m_q)^2) / (4 s_p s_q)) for the locations m and the scales s.

    A closed-form formula for the Kullback-Leibler divergence between Cauchy distributions (Chyzak and Nielsen, 2019)
    """
    return cauchy_divergence(upcast(p.loc) - upcast(q.loc), upcast(p.scale), upcast(q.scale))


def cauchy_divergence(shift: Tensor | float, scale_p: Tensor, scale_q: Tensor) -> Tensor:
    """Return KL between Cauchy distributions whose locations differ by `shift`.

    Let s_p and s_q be the scales, and d = `shift`. If KL is below 0.5, it is computed as
    log(1 + ((s_p - s_q)^2 + d^2) / (4 s_p s_q)), to full precision near 0. Otherwise KL is computed as
    log(((s_p + s_q)^2 + d^2) / 4) - log s_p - log s_q, where no square overflows.
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


@closed_form(HalfCauchy, HalfCauchy, native=ElementForm.HALF_CAUCHY)
def kl_half_cauchy_half_cauchy(p: HalfCauchy, q: HalfCauchy) -> Tensor:
    """Return log((s_p + s_q)^2 / (4 s_p s_q)) for the scales s_p and s_q, as for Cauchy distributions at location 0."""
    return cauchy_divergence(0.0, upcast(p.scale), upcast(q.scale))


@closed_form(Cauchy, StudentT)
def kl_cauchy_student_t(p: Cauchy, q: StudentT) -> Tensor:
    """Return E_P[-log q] - log(4 pi s_p), from E_P log((x - m_q)^2 + c^2) = log(d^2 + (s_p + c)^2).

    Here c = s_q sqrt(df) for Q's degrees of freedom df, and d is the difference of the locations.
    """
    half, scale_p = upcast(q.df) / 2, upcast(p.scale)
    reach = upcast(q.scale) * torch.sqrt(2 * half)
    distance = upcast(p.loc) - upcast(q.loc)
    # `step` is lgamma(h + 1/2) - lgamma(h) - log(h) / 2 for h = `half`.
    step = (
        (half + 0.5) * log1p_quotient(torch.full_like(half, 0.5), half)
        - 0.5
        + stirling_remainder(half + 0.5)
        - stirling_remainder(half)
    )
    # `log_square` is log(shift^2 + (1 + ratio)^2), computed so that neither square overflows.
    large = torch.maximum(distance.abs(), scale_p).detach() > 1e8 * reach
    shift, ratio = (torch.where(large, 0, x) / reach for x in (distance, scale_p))
    near = torch.log1p(shift * shift + ratio * (2 + ratio))
    size = torch.hypot(torch.where(large, scale_p / 2 + reach / 2, 1), torch.where(large, distance / 2, 1))
    log_square = torch.where(large, 2 * (log_ratio(size, reach) + math.log(2)), near)
    value = (half + 0.5) * log_square - step - log_ratio(scale_p, reach) - torch.log(16 * math.pi * half) / 2
    return value.clamp(min=0)


def _of_half_cauchy(d: HalfCauchy) -> LogMoments:
    scale = upcast(d.scale)
    half = torch.full_like(scale, 0.5)
    factors = Factor(half, 0.5), Factor(half, -0.5)
    return GammaProduct(torch.full_like(scale, 2 * HALF_LOG_2PI), torch.log(scale), factors, root=2.0)


register_family(Family(
    Cauchy, "loc scale", CauchyDensity, units={"loc": 1, "scale": 1}, image=symmetric_image,
    cdf=standardized, curve=CAUCHY, scipy=[ScipyForm("cauchy", Cauchy, "loc scale")],
))  # fmt: skip
register_family(Family(
    HalfCauchy, "base_dist.scale", HalfCauchyDensity, units={"scale": 1},
    log_moments=_of_half_cauchy, cdf=folded(Cauchy), scipy=[ScipyForm("halfcauchy", HalfCauchy)],
))  # fmt: skip
