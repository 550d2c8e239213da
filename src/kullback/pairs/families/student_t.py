"""The family of Student's t distributions.

In the formulas, d is the difference of the locations of P and Q, and s_q is Q's scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Normal, StudentT

from kullback.common.dtypes import upcast
from kullback.common.special import HALF_LOG_2PI, itakura_saito, log_ratio, polynomial, stirling_remainder
from kullback.pairs.densities.density import LocationScaleDensity, Points, Tail, log_one_plus_square
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, ScipyForm, symmetric_image
from kullback.pairs.registry import closed_form


@dataclass(frozen=True)
class StudentTDensity(LocationScaleDensity):
    """The density proportional to (1 + z^2 / df)^(-(df + 1) / 2), with z = (x - loc) / scale."""

    df: Tensor

    def log_density(self, at: Points) -> Tensor:
        z = (at.x - self.loc) / (self.scale * torch.sqrt(self.df))
        half = self.df / 2
        # `step` is lgamma(half + 1/2) - lgamma(half) - log(half) / 2, which is near 0 for large `half`.
        step = (
            (half + 0.5) * torch.log1p(0.5 / half)
            - 0.5
            + stirling_remainder(half + 0.5)
            - stirling_remainder(half)
        )
        constant = step - HALF_LOG_2PI - torch.log(self.scale)
        return constant - (half + 0.5) * log_one_plus_square(z)

    def lower_tail(self) -> Tail:
        return Tail.of_power(self.df)

    upper_tail = lower_tail


@closed_form(StudentT, Normal)
def kl_student_t_normal(p: StudentT, q: Normal) -> Tensor:
    """Return (v - 1 - log v + (d / s_q)^2) / 2 + KL(P || R), where R is the Normal with P's mean and variance.

    Here v = Var P / s_q^2, s_q is Q's scale, and d is the difference of the locations.
    """
    half = upcast(p.df) / 2
    half = torch.where(half > 1, half, 2)
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    ratio = scale_p / scale_q
    more = (scale_p - scale_q) / scale_q
    shift = (upcast(p.loc) - upcast(q.loc)) / scale_q
    # If ratio^2 underflows, the formula uses the logarithm of ratio^2; if ratio^2 overflows, KL is +inf.
    tiny, huge = ratio < 1e-100, ratio > 1e150
    log_variance = 2 * log_ratio(scale_p, scale_q) + torch.log(half / (half - 1))
    ratio, more = torch.where(tiny | huge, 1, ratio), torch.where(tiny | huge, 0, more)
    square = ratio * ratio
    variance = square * half / (half - 1)
    spread = itakura_saito(variance, torch.ones_like(variance), more * (2 + more) + square / (half - 1))
    spread = torch.where(tiny, -1 - log_variance, torch.where(huge, torch.inf, spread))
    return (spread + shift * shift) / 2 + _from_normal(half)


def _from_normal(half: Tensor) -> Tensor:
    """Return KL from a StudentT with 2 `half` degrees of freedom to the Normal with the same mean and variance.

    For more than 24 degrees of freedom, the result is an asymptotic series that follows from Stirling's series.
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


register_family(Family(
    StudentT, "loc scale df", StudentTDensity, units={"df": 0, "loc": 1, "scale": 1},
    image=symmetric_image, scipy=[ScipyForm("t", StudentT, "loc scale")],
))  # fmt: skip
