"""The family of Uniform distributions.

In the formulas, X is a draw from P, and E is the mean under P.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    ContinuousBernoulli,
    Exponential,
    Gamma,
    Gumbel,
    HalfNormal,
    Laplace,
    Normal,
    Pareto,
    Uniform,
)

from kullback.common.dtypes import upcast
from kullback.common.special import (
    HALF_LOG_2PI,
    bounded_exp,
    log1p_quotient,
    log_mean_decay,
    log_product,
    log_ratio,
    polynomial,
    scaled_expm1mx,
    stirling_remainder,
    within_floats,
)
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import Points, PositiveAtEnds
from kullback.pairs.densities.maps import exact, scaling, shift
from kullback.pairs.families.continuous_bernoulli import cross_entropy_to, logits_of
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, Means, Parameters, ScipyForm
from kullback.pairs.registry import closed_form


@dataclass(frozen=True)
class UniformDensity(PositiveAtEnds):
    """The density 1 / (upper - lower)."""

    lower: Tensor
    upper: Tensor
    support = "lower", "upper"

    def log_density(self, at: Points) -> Tensor:
        return -torch.log(self.upper - self.lower) + 0 * at.x

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(self.upper), torch.full_like(self.upper, 1.8)


@closed_form(Uniform, Uniform, native=ElementForm.UNIFORM)
def kl_uniform_uniform(p: Uniform, q: Uniform) -> Tensor:
    """Return log(1 + room / width), where `width` is the width of P's interval, and `room` is Q's width minus P's.

    At P = Q the gradient is 0, although the one-sided derivatives are not 0.
    """
    low, high = upcast(p.low), upcast(p.high)
    room = (low - upcast(q.low)) + (upcast(q.high) - high)
    return log1p_quotient(torch.where(room > 0, room, 0), high - low)


def _ends(p: Uniform, *, least: float = -math.inf, most: float = math.inf) -> tuple[Tensor, Tensor]:
    """Return the ends of P's interval, or arbitrary ends where it exceeds `least` or `most`, so that KL is infinite."""
    low, high = upcast(p.low), upcast(p.high)
    inside = (low >= least) & (high <= most)
    return torch.where(inside, low, max(least, 0.25)), torch.where(inside, high, min(most, 0.75))


def _log_deficit(t: Tensor, start: Tensor) -> Tensor:
    """Return E log Y for Y = X / E X, where Y is uniform on the interval from 1 - t = `start` to 1 + t.

    The formula is ((1 + t) log(1 + t) - (1 - t) log(1 - t)) / (2 t) - 1. At t = 1, where the interval begins at 0, the
    derivative is infinite. The gradient is then the finite part of the derivative.
    """
    series = (-1 / 6, -1 / 20, -1 / 42, -1 / 72, -1 / 110)
    small = t.clamp(max=0.05)
    square = small * small
    large = t.clamp(min=0.05)
    below = torch.where(start > 0, start, 1)
    formula = ((1 + large) * torch.log1p(large) - below * torch.log(below)) / (2 * large) - 1
    return torch.where(t < 0.05, square * polynomial(series, square), formula)


def _relative(low: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return 2 m, width / (2 m) and low / m, where m is the middle of the interval from `low` >= 0 to low + width."""
    twice = 2 * low + width  # 2 m is computed, because m may be rounded
    start = 2 * low / twice
    from_end = start < 0.5
    t = torch.where(from_end, 1, width) / torch.where(from_end, 1, twice)
    return twice, torch.where(from_end, 1 - start, t), start


@closed_form(Uniform, Normal, native=ElementForm.UNIFORM_NORMAL)
def kl_uniform_normal(p: Uniform, q: Normal) -> Tensor:
    """Return log(2 pi s^2) / 2 - log w + (w^2 / 12 + (E X - m)^2) / (2 s^2), w = high - low and Q = Normal(m, s)."""
    return _from_uniform_to_normal(p, upcast(q.loc), upcast(q.scale))


@closed_form(Uniform, HalfNormal)
def kl_uniform_half_normal(p: Uniform, q: HalfNormal) -> Tensor:
    """Return KL to the Normal distribution with mean 0 and Q's scale, minus log 2."""
    return _from_uniform_to_normal(p, 0.0, upcast(q.scale)) - math.log(2)


def _from_uniform_to_normal(p: Uniform, loc: Tensor | float, scale: Tensor) -> Tensor:
    low, high = upcast(p.low), upcast(p.high)
    width = (high - low) / scale
    shift = ((low - loc) + (high - low) / 2) / scale
    return (width * width / 12 + shift * shift) / 2 - log_ratio(high - low, scale) + HALF_LOG_2PI


@closed_form(Uniform, Laplace)
def kl_uniform_laplace(p: Uniform, q: Laplace) -> Tensor:
    """Return log(2 b / w) + E|X - m| / b for X ~ P = Uniform(low, high) and Q = Laplace(m, b), with w = high - low.

    If m is inside of P's interval, E|X - m| is (u^2 + v^2) / (2 w) with u = low - m and v = high - m.
    """
    start, end, loc, scale = upcast(p.low), upcast(p.high), upcast(q.loc), upcast(q.scale)
    across = (start < loc) & (end > loc)
    below, above = start - loc, end - loc
    u, v, width = (torch.where(across, x, 1) for x in (below, above, end - start))
    distance = torch.where(across, u * (u / width) + v * (v / width), (below + above).abs()) / 2
    return distance / scale + math.log(2) - log_ratio(end - start, scale)


@closed_form(Uniform, Gumbel, native=ElementForm.UNIFORM_GUMBEL)
def kl_uniform_gumbel(p: Uniform, q: Gumbel) -> Tensor:
    """Return log(s / w) + E z + E e^-z for X ~ P of width w and Q = Gumbel(m, s), with z = (X - m) / s.

    E e^-z = e^-z_low (1 - e^-y) / y with y = w / s, where z_low is z at the lower end.
    """
    start, end, scale = upcast(p.low), upcast(p.high), upcast(q.scale)
    low, width = within_floats((start - upcast(q.loc)) / scale), (end - start) / scale
    return low + width / 2 + bounded_exp(log_mean_decay(width) - low) - log_ratio(end - start, scale)


@closed_form(Uniform, Exponential, native=ElementForm.UNIFORM_EXPONENTIAL)
def kl_uniform_exponential(p: Uniform, q: Exponential) -> Tensor:
    """Return r (low + high) / 2 - log(r (high - low)) for P = Uniform(low, high) and Q's rate r."""
    start, rate = upcast(p.low), upcast(q.rate)
    width = upcast(p.high) - start
    return start * rate + width * rate / 2 - log_product(width, rate)


@closed_form(Uniform, Gamma, native=ElementForm.UNIFORM_GAMMA)
def kl_uniform_gamma(p: Uniform, q: Gamma) -> Tensor:
    """Return a (x - 1 - log x) - (a - 1) E log(X / E X) + lgamma(a) - a log a + a - log(w / E X).

    Here X ~ P, x = E X / mean_Q, a is Q's concentration, and w is the width of P's interval.
    """
    low, high = _ends(p, least=0.0)
    a, rate = upcast(q.concentration), upcast(q.rate)
    twice, t, start = _relative(low, high - low)
    log_mean = log_product(twice, rate) - math.log(2)
    return (
        scaled_expm1mx(a, log_product(twice, rate, 2 * a), log_mean)
        - (a - 1) * _log_deficit(t, start)
        + stirling_remainder(a)
        - torch.log(2 * t)
    )


@closed_form(Uniform, Pareto, native=ElementForm.UNIFORM_PARETO)
def kl_uniform_pareto(p: Uniform, q: Pareto) -> Tensor:
    """Return (alpha + 1) E log X - alpha log s - log(alpha w) for X ~ P with width w, and Q = Pareto(s, alpha)."""
    low, high = _ends(p, least=0.0)
    alpha = upcast(q.alpha)
    twice, t, start = _relative(low, high - low)
    return (
        (alpha + 1) * _log_deficit(t, start)
        + alpha * (log_ratio(twice, upcast(q.scale)) - math.log(2))
        - torch.log(2 * t * alpha)
    )


@closed_form(Uniform, Beta, native=ElementForm.UNIFORM_BETA)
def kl_uniform_beta(p: Uniform, q: Beta) -> Tensor:
    """Return log B(a, b) - log w - (a - 1) E log X - (b - 1) E log(1 - X) for X ~ P and Q = Beta(a, b).

    Here B is the beta function, and w is the width of P's interval. The terms that are large for large a and b add up
    to (a + b) KL((m_Q, 1 - m_Q) || (m_P, 1 - m_P)), where m_P and m_Q are the means.
    """
    low, high = _ends(p, least=0.0, most=1.0)
    a, b = upcast(q.concentration1), upcast(q.concentration0)
    width, total = high - low, a + b
    value = -torch.log(width) - stirling_remainder(total)
    for c, from_end in ((a, low), (b, 1 - high)):
        twice, t, start = _relative(from_end, width)
        log_mean = log_product(twice, total) - math.log(2)
        value = (
            value
            + scaled_expm1mx(c, log_product(twice, total, 2 * c), log_mean)
            - (c - 1) * _log_deficit(t, start)
        )
        value = value + (torch.log(twice) - math.log(2)) + stirling_remainder(c)
    return value.clamp(min=0)


@closed_form(Uniform, ContinuousBernoulli, native=ElementForm.UNIFORM_CONTINUOUS_BERNOULLI_LOGITS)
def kl_uniform_continuous_bernoulli(p: Uniform, q: ContinuousBernoulli) -> Tensor:
    """Return A(l) - l E X - log w for X ~ P with width w, and Q's logit l, with A(l) = log((e^l - 1) / l)."""
    low, high = upcast(p.low), upcast(p.high)
    half = (high - low) / 2
    return (cross_entropy_to(logits_of(q), low + half, (1 - high) + half) - torch.log(2 * half)).clamp(min=0)


def _match(target: Means, start: Parameters, fixed: frozenset[str]) -> Parameters | None:
    low, high = target.extreme(-1), target.extreme(1)
    if low is None or high is None:
        return None
    ends = {"low": low, "high": high}
    return {name: start[name] if name in fixed else end for name, end in ends.items()}


register_family(Family(
    Uniform, "low high", UniformDensity, units={"low": 1, "high": 1},
    cdf=lambda d: [shift(-exact(d.low)), scaling(1 / (exact(d.high) - exact(d.low)))],
    scipy=[
        ScipyForm("uniform", lambda loc, scale: Uniform(loc, loc + scale), "loc scale"),
        ScipyForm("Uniform", Uniform, reads="a b"),
    ],
    match=_match, start={"low": 0.0, "high": 1.0},
))  # fmt: skip
