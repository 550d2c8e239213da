"""The Normal family, and the families of e^X (LogNormal) and |X| (HalfNormal) for a Normal variable X.

In the formulas, m_p and m_q are the locations of P and Q, s_p and s_q are the scales, and H is the entropy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Gumbel, HalfNormal, Laplace, LogNormal, Normal

from kullback.common.dtypes import upcast
from kullback.common.special import (
    EULER_GAMMA,
    HALF_LOG_2PI,
    bounded_exp,
    clamped_quotient,
    expm1mx,
    itakura_saito,
    log1pmx,
    log_ratio,
    within_floats,
)
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import HalfLineDensity, LocationScaleDensity, Points, Tail
from kullback.pairs.densities.mapped import NORMAL
from kullback.pairs.densities.maps import folded, standardized
from kullback.pairs.families.gumbel import kl_to_gumbel
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, Means, Parameters, ScipyForm, symmetric_image
from kullback.pairs.numerics.log_moments import Exact, Factor, GammaProduct, LogMoments, NormalLog
from kullback.pairs.registry import WIDE_RATIO, closed_form, renyi_form, where_finite


class NormalDensity(LocationScaleDensity):
    """The density exp(-z^2 / 2) / (scale sqrt(2 pi)) with z = (x - loc) / scale."""

    def log_density(self, at: Points) -> Tensor:
        return -(self.standard(at) ** 2) / 2 - torch.log(self.scale) - HALF_LOG_2PI

    def lower_tail(self) -> Tail:
        return Tail(0.0, 2.0, 1 / (2 * self.scale**2))

    upper_tail = lower_tail


@dataclass(frozen=True)
class LogNormalDensity(HalfLineDensity):
    """The density exp(-z^2 / 2) / (x scale sqrt(2 pi)) with z = (log x - loc) / scale."""

    loc: Tensor
    scale: Tensor

    def log_density(self, at: Points) -> Tensor:
        log_x = at.log_above(0.0)
        return -(((log_x - self.loc) / self.scale) ** 2) / 2 - torch.log(self.scale) - HALF_LOG_2PI - log_x

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return self.loc, self.scale

    def lower_tail(self) -> Tail:
        return Tail(1.0, 2.0, 1 / (2 * self.scale**2))

    upper_tail = lower_tail


@dataclass(frozen=True)
class HalfNormalDensity(HalfLineDensity):
    """The density 2 exp(-z^2 / 2) / (scale sqrt(2 pi)) with z = x / scale."""

    scale: Tensor

    def log_density(self, at: Points) -> Tensor:
        log_z = at.log_above(0.0) - torch.log(self.scale)
        return math.log(2) - HALF_LOG_2PI - torch.exp(2 * log_z) / 2 - torch.log(self.scale)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return torch.log(self.scale) - 0.635, torch.full_like(self.scale, 1.11)

    def upper_tail(self) -> Tail:
        return Tail(0.0, 2.0, 1 / (2 * self.scale**2))


@closed_form(Normal, Normal, native=ElementForm.NORMAL)
@closed_form(LogNormal, LogNormal, native=ElementForm.NORMAL)
def kl_normal_normal(p: Normal | LogNormal, q: Normal | LogNormal) -> Tensor:
    """Return ((m_p - m_q) / s_q)^2 / 2 + (r^2 - 1) / 2 - log r, with r = s_p / s_q."""
    return normal_divergence(upcast(p.loc) - upcast(q.loc), upcast(p.scale), upcast(q.scale))


def normal_divergence(distance: Tensor | float, scale_p: Tensor, scale_q: Tensor) -> Tensor:
    """Return KL between Normal distributions whose means differ by `distance`."""
    shift, more = distance / scale_q, (scale_p - scale_q) / scale_q
    return (shift * shift + more * more) / 2 + itakura_saito(scale_p, scale_q)


@closed_form(HalfNormal, HalfNormal, native=ElementForm.HALF_NORMAL)
def kl_half_normal_half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    """Return (r^2 - 1) / 2 - log r for the ratio r of P's scale to Q's, as for Normal distributions with mean 0."""
    return normal_divergence(0.0, upcast(p.scale), upcast(q.scale))


@closed_form(Normal, Laplace, native=ElementForm.NORMAL_LAPLACE)
def kl_normal_laplace(p: Normal, q: Laplace) -> Tensor:
    """Return log(2 b) - log(2 pi e s^2) / 2 + E|X - m| / b for X ~ P, where s is P's scale, and Q = Laplace(m, b).

    E|X - m| = s sqrt(2 / pi) e^(-t^2 / 2) + d erf(t / sqrt 2) with t = d / s and the difference d of the means.
    The Folded Normal Distribution (Leone, Nelson and Nottingham, 1961)
    """
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    distance = upcast(p.loc) - upcast(q.loc)
    shift = clamped_quotient(distance, scale_p, 1000)
    near = scale_p * (math.sqrt(2 / math.pi) * torch.exp(-shift * shift / 2))
    folded = (near + distance * torch.erf(shift * math.sqrt(0.5))) / scale_q
    return folded - log_ratio(scale_p, scale_q) + (math.log(2) - HALF_LOG_2PI - 0.5)


@closed_form(Normal, Gumbel, native=ElementForm.NORMAL_GUMBEL)
def kl_normal_gumbel(p: Normal, q: Gumbel) -> Tensor:
    """Return t + e^(r^2 / 2 - t) - log r - log(2 pi e) / 2, with t = (m_p - m_q) / s_q and r = s_p / s_q."""
    scale_p, scale_q = upcast(p.scale), upcast(q.scale)
    ratio = scale_p / scale_q
    shift = within_floats((upcast(p.loc) - upcast(q.loc)) / scale_q)
    return shift + bounded_exp(ratio * ratio / 2 - shift) - log_ratio(scale_p, scale_q) - (HALF_LOG_2PI + 0.5)


@closed_form(HalfNormal, Gumbel)
def kl_half_normal_gumbel(p: HalfNormal, q: Gumbel) -> Tensor:
    """Return log s + E z + E e^-z - H(X) for X ~ P and Q = Gumbel(m, s), with z = (X - m) / s and the entropy H.

    E e^(-X / s) = e^(t^2) erfc(t) with t = s_p / (s sqrt 2), where s_p is P's scale.
    """
    # Each parameter is converted only once. A parameter that is converted twice would get two gradients, each rounded
    # to float32, and the sum of both might be inf - inf.
    loc, scale, scale_p = upcast(q.loc), upcast(q.scale), upcast(p.scale)
    t = scale_p / scale * math.sqrt(0.5)
    mean = t * (2 / math.sqrt(math.pi))
    return kl_to_gumbel(_half_normal_moments(scale_p), loc, scale, mean, torch.log(torch.special.erfcx(t)))


@renyi_form(Normal)
@renyi_form(LogNormal)
@renyi_form(HalfNormal)
def _renyi(p: Any, q: Any, alpha: float, rest: float) -> Tensor:
    """Return alpha d^2 / (2 S) + log(b / a) + log(S / b^2) / (2 rest), with S = alpha b^2 + rest a^2.

    Here a and b are the scales of P and Q, d is the difference of their means, and `rest` is 1 - alpha. The formula
    also applies to two LogNormal or two HalfNormal distributions. With r = (a / b)^2 - 1 and g(x) = x - log(1 + x), the
    sum of the terms with logarithms is (g(r) - g(rest r) / rest) / 2.

    Rényi divergence measures for commonly used univariate continuous distributions (Gil, Alajaji and Linder, 2013)
    """
    p, q = (getattr(x, "base_dist", x) for x in (p, q))
    a, b, shift = upcast(p.scale), upcast(q.scale), upcast(p.loc) - upcast(q.loc)
    wide = a > WIDE_RATIO * b
    narrow = torch.where(wide, b, a)
    r = (narrow - b) / b * ((narrow + b) / b)
    finite = (1 + rest * r > 0) & ~(wide & (rest < 0))
    grown = torch.where(finite, rest * r, 0)
    near = ~wide & (r.abs() < 0.5 / (1 + alpha))
    small = torch.where(near, r, 0)
    close = (log1pmx(rest * small) / rest - log1pmx(small)) / 2
    log = log_ratio(a, b)
    log_shared = torch.where(wide, 2 * log + math.log(abs(rest)), torch.log1p(grown))
    logs = torch.where(near, close, log_shared / (2 * rest) - log)
    root = torch.where(wide, a * math.sqrt(abs(rest)), b * torch.sqrt(1 + grown))
    finite = finite & (shift.abs() < WIDE_RATIO * root)
    z = torch.where(finite, shift, 0) / root
    return where_finite(finite, alpha / 2 * z * z + logs)


def _of_log_normal(d: LogNormal) -> LogMoments:
    loc, scale = upcast(d.loc), upcast(d.scale)
    return NormalLog(torch.log(scale) + (HALF_LOG_2PI + 0.5), loc, scale)


def _half_normal_moments(scale: Tensor) -> LogMoments:
    half = torch.full_like(scale, 0.5)
    entropy = torch.full_like(scale, (math.log(math.pi) + 1 + EULER_GAMMA) / 2)
    mean = scale, torch.full_like(scale, math.sqrt(math.pi / 2))
    exact = Exact(mean, (half * (math.pi - 2), torch.ones_like(half)))
    return GammaProduct(entropy, torch.log(scale) + math.log(2) / 2, (Factor(half, 0.5),), exact, root=2.0)


def _to_log_normal(p: LogMoments, q: LogNormal) -> Tensor:
    """Return log(2 pi s^2) / 2 + (Var log X + (E log X - m)^2) / (2 s^2) - H(log X) for Q = LogNormal(m, s).

    Here X is the variable of the moments `p`, and H is the entropy.
    """
    scale = upcast(q.scale)
    shift = (p.mean() - upcast(q.loc)) / scale
    return (p.variance(scale) + shift * shift) / 2 + torch.log(scale) + HALF_LOG_2PI - p.entropy


def _to_half_normal(p: LogMoments, q: HalfNormal) -> Tensor:
    """Return (x - 1 - log x + 1 + jensen_gap(2) + log(pi / 2)) / 2 - H(log X), with x = E (X / scale)^2.

    Here X is the variable of the moments `p`, H is the entropy, and `scale` is Q's scale.
    """
    gap = p.jensen_gap(2.0)
    log_square = p.log_square() - 2 * torch.log(upcast(q.scale))
    return (expm1mx(log_square) + gap + (1 + math.log(math.pi / 2))) / 2 - p.entropy


def _to_normal(p: LogMoments, q: Normal) -> Tensor:
    """Return log(2 pi s^2) / 2 + (Var X + (E X - m)^2) / (2 s^2) - H(X) for Q = Normal(m, s).

    Here X is the variable of the moments `p`, and H is the entropy.
    """
    scale = upcast(q.scale)
    mean, variance = p.first_two(scale)
    infinite = mean.isinf() | variance.isinf()
    shift = mean - upcast(q.loc) / scale
    spread = torch.where(infinite, 0, variance) + shift * shift
    return torch.where(
        infinite, torch.inf, spread / 2 + torch.log(scale) - p.mean() + HALF_LOG_2PI - p.entropy
    )


def _match(target: Means, start: Parameters, fixed: frozenset[str], *, of_log: bool = False) -> Parameters:
    both = None if of_log or fixed & {"loc", "scale"} else target.mean_and_deviation()
    if both is not None:
        return {"loc": both[0], "scale": both[1]}
    loc = start["loc"] if "loc" in fixed else target.mean_log() if of_log else target.mean()
    return {"loc": loc, "scale": start["scale"] if "scale" in fixed else target.deviation(loc, of_log=of_log)}


register_family(Family(
    Normal, "loc scale", NormalDensity, units={"loc": 1, "scale": 1}, from_log_moments=_to_normal,
    image=symmetric_image, cdf=standardized, curve=NORMAL,
    scipy=[
        ScipyForm("norm", Normal, "loc scale"),
        ScipyForm("Normal", Normal, reads="mu sigma"),
        ScipyForm("StandardNormal", Normal, reads="mu sigma"),
    ],
    match=_match,
))  # fmt: skip
register_family(Family(
    LogNormal, "base_dist.loc base_dist.scale", LogNormalDensity, log_moments=_of_log_normal,
    from_log_moments=_to_log_normal,
    scipy=[ScipyForm("lognorm", lambda s, scale: LogNormal(torch.log(scale), s))],
    match=partial(_match, of_log=True),
))  # fmt: skip
register_family(Family(
    HalfNormal, "base_dist.scale", HalfNormalDensity, units={"scale": 1},
    log_moments=lambda d: _half_normal_moments(upcast(d.scale)), from_log_moments=_to_half_normal, cdf=folded(Normal),
    scipy=[ScipyForm("halfnorm", HalfNormal)],
    match=lambda target, start, _: {"scale": target.deviation(torch.zeros_like(start["scale"]))},
))  # fmt: skip
