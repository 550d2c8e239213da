"""The Gamma, Exponential, InverseGamma and Chi2 families, which share one formula.

Exponential and Chi2 variables are Gamma variables. An InverseGamma variable is 1 / X for a Gamma variable X. In the
formulas, a is a concentration, r is a rate, m and s are the location and scale of Q, and H is the entropy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Chi2,
    Exponential,
    ExpTransform,
    Gamma,
    Gumbel,
    InverseGamma,
    Laplace,
    Weibull,
)

from kullback.common.dtypes import upcast
from kullback.common.roots import log_root
from kullback.common.special import (
    clamped_quotient,
    digamma,
    digamma_minus_log,
    expm1mx,
    itakura_saito,
    log_product,
    log_ratio,
    scaled_expm1mx,
    stirling_bregman,
    stirling_remainder,
    within_floats,
)
from kullback.kernels.codes import ElementForm
from kullback.kernels.native.native_closed_forms import Form
from kullback.pairs.densities.density import (
    DelegatingDensity,
    HalfLineDensity,
    Points,
    Tail,
    breakpoints_around,
)
from kullback.pairs.densities.maps import exact, scaling
from kullback.pairs.families.gumbel import gumbel_divergence, kl_to_gumbel
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import POSITIVE, Family, Means, Parameters, ScipyForm, match_of_mean
from kullback.pairs.numerics.log_moments import Exact, Factor, GammaProduct, LogMoments, positive
from kullback.pairs.registry import closed_form, mixed, native_form, renyi_form


def log_gamma_density(c: Tensor, log_y: Tensor) -> Tensor:
    """Return c log y - y - lgamma(c), without large terms near y = c for a large c."""
    d = log_y - torch.log(c)
    return torch.where(d > 709, -torch.inf, -scaled_expm1mx(c, d) - stirling_remainder(c))


@dataclass(frozen=True)
class GammaDensity(HalfLineDensity):
    """The density rate^c x^(c - 1) e^(-rate x) / Gamma(c)."""

    # The variable x^power has a Gamma distribution.
    power: ClassVar[int] = 1

    concentration: Tensor
    rate: Tensor

    def log_density(self, at: Points) -> Tensor:
        log_x = at.log_above(0.0)
        return log_gamma_density(self.concentration, torch.log(self.rate) + self.power * log_x) - log_x

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        c = self.concentration
        return self.power * (torch.digamma(c) - torch.log(self.rate)), torch.sqrt(torch.polygamma(1, c))

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        bend = self.power * (torch.log(self.concentration + 1) - torch.log(self.rate))
        return breakpoints_around(*self.center_and_width(), bend, steps)

    def tail_factor(self) -> Tensor:
        return self.concentration - 1

    def lower_tail(self) -> Tail:
        return Tail.of_power(self.concentration)

    def upper_tail(self) -> Tail:
        return Tail(0.0, 1.0, self.rate)


class InverseGammaDensity(GammaDensity):
    """The density rate^c x^(-c - 1) e^(-rate / x) / Gamma(c)."""

    power: ClassVar[int] = -1
    lower_tail, upper_tail = GammaDensity.upper_tail, GammaDensity.lower_tail


@dataclass(frozen=True)
class ExponentialDensity(DelegatingDensity):
    """The Gamma density of concentration 1, which is positive at 0."""

    rate: Tensor
    support = POSITIVE

    @property
    def part(self) -> GammaDensity:  # pyright: ignore[reportIncompatibleVariableOverride]
        """This density as a `GammaDensity` with concentration 1."""
        return GammaDensity(torch.ones_like(self.rate), self.rate)

    def tail_factor(self) -> float:
        return 0.0

    def lower_tail(self) -> Tail:
        return Tail.of_power(1.0)


@closed_form(Exponential, Exponential, native=ElementForm.EXPONENTIAL)
def kl_exponential_exponential(p: Exponential, q: Exponential) -> Tensor:
    """Return x - 1 - log x at x = rate_q / rate_p."""
    return itakura_saito(upcast(q.rate), upcast(p.rate))


def shape_and_rate(d: Any) -> tuple[Tensor, Tensor]:
    """Return the concentration and the rate of a Gamma or InverseGamma; an Exponential has the concentration 1."""
    rate = upcast(d.rate)
    return (upcast(d.concentration) if hasattr(d, "concentration") else torch.ones_like(rate)), rate


@closed_form(Gamma, Gamma, native=ElementForm.GAMMA)
@closed_form(InverseGamma, InverseGamma, native=ElementForm.GAMMA)
@closed_form(Gamma, Exponential, native=ElementForm.GAMMA_EXPONENTIAL)
@closed_form(Exponential, Gamma, native=ElementForm.EXPONENTIAL_GAMMA)
def kl_gamma_gamma(p: Gamma | InverseGamma | Exponential, q: Gamma | InverseGamma | Exponential) -> Tensor:
    """Return a_q (x - 1 - log x) + R(a_p, a_q) with x = mean_P / mean_Q and the concentrations a_p and a_q.

    R is the Bregman divergence of lgamma(a) - a log a + a. For InverseGamma variables X, mean_P and mean_Q are means of
    1 / X. The terms are regrouped from the formula in
    KL-Divergences of Normal, Gamma, Dirichlet and Wishart densities (Penny, 2001)
    """
    return gamma_divergence(*shape_and_rate(p), *shape_and_rate(q))


def kernel_of_gammas() -> Form:
    """Return the kernel of KL between Gamma distributions."""
    return native_form(Gamma, Gamma)


def gamma_divergence(
    a_p: Tensor,
    rate_p: Tensor,
    a_q: Tensor,
    rate_q: Tensor,
    more: Tensor | None = None,
    faster: Tensor | None = None,
) -> Tensor:
    """Return KL(Gamma(a_p, rate_p) || Gamma(a_q, rate_q)), for exact differences `more` of a and `faster` of rates."""
    log_rates = log_ratio(rate_p, rate_q, faster)
    log_means = log_ratio(a_p, a_q, more) - log_rates
    return scaled_expm1mx(a_q, log_means, torch.log(a_p) - log_rates) + stirling_bregman(
        a_p, a_q, None if more is None else -more
    )


@closed_form(Exponential, Weibull)
def kl_exponential_weibull(p: Exponential, q: Weibull) -> Tensor:
    """Return KL(R || Q) for the Weibull distribution R with concentration 1, which equals P."""
    k, rate = upcast(q.concentration), upcast(p.rate)
    return gumbel_divergence(-k * log_product(upcast(q.scale), rate), k, torch.ones_like(k))


@closed_form(Gamma, Gumbel, native=ElementForm.GAMMA_GUMBEL)
@closed_form(Exponential, Gumbel, native=ElementForm.EXPONENTIAL_GUMBEL)
def kl_gamma_gumbel(p: Gamma | Exponential, q: Gumbel) -> Tensor:
    """Return log s + E z + E e^-z - H(X) for X ~ P and Q = Gumbel(m, s), with z = (X - m) / s and the entropy H.

    E e^(-X / s) = (1 + 1 / (r s))^-a, where a and r are P's concentration and rate.
    """
    (a, rate), loc, scale = shape_and_rate(p), upcast(q.loc), upcast(q.scale)
    unit = torch.ones_like(rate) / rate / scale
    return kl_to_gumbel(_of_gamma(p), loc, scale, a * unit, -a * torch.log1p(unit))


@closed_form(Exponential, Laplace)
def kl_exponential_laplace(p: Exponential, q: Laplace) -> Tensor:
    """Return log(2 b r) - 1 + E|X - m| / b for X ~ P with the rate r, and Q = Laplace(m, b).

    For m > 0, E|X - m| is m - 1 / r + 2 e^(-r m) / r.
    """
    scale = upcast(q.scale)
    rate = upcast(p.rate)
    spread = (torch.ones_like(rate) / rate / scale).clamp(max=1e308)
    start = within_floats(upcast(q.loc) / scale)
    inside = start.clamp(min=0)
    # For a smaller spread, the derivative of the quotient overflows, and `decay` is negligible, so `decay` is set to 0.
    is_large = spread > 1e-300
    divisor = torch.where(is_large, spread, 1)
    decay = torch.where(is_large, 2 * divisor * torch.exp(-clamped_quotient(inside, divisor, 745)), 0)
    distance = 2 * inside - start - spread + decay
    return distance + log_product(rate, scale) + (math.log(2) - 1)


@renyi_form(Gamma, Exponential)
@renyi_form(InverseGamma)
def _renyi(p: Any, q: Any, alpha: float, rest: float) -> Tensor:
    """Return Renyi's divergence of order alpha = 1 - rest of two Gamma, Exponential or InverseGamma distributions."""
    (a, rate_p), (b, rate_q) = shape_and_rate(p), shape_and_rate(q)
    c, rate = a + rest * (b - a), rate_p + rest * (rate_q - rate_p)
    finite = (c > 0) & (rate > 0)
    c, rate = torch.where(finite, c, 1), torch.where(finite, rate, 1)
    more, faster = torch.where(finite, b - a, 0), torch.where(finite, rate_q - rate_p, 0)
    a, b, rate_p, rate_q = (torch.where(finite, x, 1) for x in (a, b, rate_p, rate_q))
    to_p = gamma_divergence(c, rate, a, rate_p, rest * more, rest * faster)
    to_q = gamma_divergence(c, rate, b, rate_q, -alpha * more, -alpha * faster)
    return mixed(to_p, to_q, finite, alpha, rest)


def log_gamma_entropy(a: Tensor) -> Tensor:
    """Return the entropy of log G for G ~ Gamma(a, 1): lgamma(a) - a digamma(a) + a, or 1 - log a for a tiny a."""
    tiny = a < 1e-75
    b = torch.where(tiny, 1, a)
    limit = 1 - torch.log(torch.where(tiny, a, 1))
    return torch.where(tiny, limit, stirling_remainder(b) - b * digamma_minus_log(b))


def _of_gamma(d: Gamma | Exponential) -> LogMoments:
    a, rate = shape_and_rate(d)
    exact = Exact((a, rate), (torch.ones_like(a), a))
    return GammaProduct(log_gamma_entropy(a), -torch.log(rate), (Factor(a),), exact)


def _of_inverse_gamma(d: InverseGamma) -> LogMoments:
    a, rate = upcast(d.concentration), upcast(d.rate)
    exact = Exact((rate, positive(a - 1)), (torch.ones_like(a), positive(a - 2)))
    return GammaProduct(log_gamma_entropy(a), torch.log(rate), (Factor(a, -1.0),), exact)


def _to_gamma(p: LogMoments, q: Gamma) -> Tensor:
    """Return a (x - 1 - log x) + a jensen_gap(1) + lgamma(a) - a log a + a - H(log X), with x = E X / mean_Q.

    Here X is the variable of the moments `p`, H is the entropy, and a is Q's concentration.
    """
    a = upcast(q.concentration)
    log_mean, rate = p.log_mean(), upcast(q.rate)
    means = scaled_expm1mx(a, log_mean + log_ratio(rate, a), log_mean + torch.log(rate))
    return means + a * p.jensen_gap(1.0) + stirling_remainder(a) - p.entropy


def _to_exponential(p: LogMoments, q: Exponential) -> Tensor:
    """Return KL to the Gamma distribution with concentration 1, which equals Q."""
    return expm1mx(p.log_mean() + torch.log(upcast(q.rate))) + p.jensen_gap(1.0) + 1 - p.entropy


def _to_inverse_gamma(p: LogMoments, q: InverseGamma) -> Tensor:
    """Return KL from 1 / X, for X ~ P, to the Gamma distribution of 1 / Y, for Y ~ Q."""
    a = upcast(q.concentration)
    gap, rate = p.jensen_gap(-1.0), upcast(q.rate)
    log_mean = p.log_power(-1.0)  # log E[1 / X]
    means = scaled_expm1mx(a, log_mean + log_ratio(rate, a), log_mean + torch.log(rate))
    return means + a * gap + stirling_remainder(a) - p.entropy


def _match(target: Means, start: Parameters, fixed: frozenset[str], *, power: int = 1) -> Parameters:
    """Return the parameters that match E[x^power] and E[log x] of the target."""

    def log_x(at: Points) -> Tensor:
        return power * at.log_above(0.0)

    mean = target.mean() if power == 1 else target.mean_of(lambda at: torch.exp(log_x(at)))
    if "rate" in fixed:
        mean_log = target.mean_of(log_x) + start["rate"].log()
        a = start["concentration"]
        if "concentration" not in fixed:
            a = log_root(lambda a: digamma(a) - mean_log, mean_log)
        return {"concentration": a, "rate": start["rate"]}
    if "concentration" in fixed:
        return {"concentration": start["concentration"], "rate": start["concentration"] / mean}

    def gap(at: Points, log_mean: Tensor) -> Tensor:
        d = log_x(at) - log_mean
        # This statistic is not negative, and its mean is log E[y] - E[log y] for y = x^power.
        return torch.expm1(d) - d

    s = target.mean_of(gap, mean.log())
    a = log_root(lambda a: s + digamma_minus_log(a), s)
    return {"concentration": a, "rate": a / mean}


def _match_chi2(target: Means, start: Parameters, fixed: frozenset[str]) -> Parameters:
    mean_log = target.mean_log() - math.log(2)
    return {"df": 2 * log_root(lambda a: digamma(a) - mean_log, mean_log)}


register_family(Family(
    Gamma, "concentration rate", GammaDensity, units={"concentration": 0, "rate": -1},
    log_moments=_of_gamma, from_log_moments=_to_gamma,
    scipy=[
        ScipyForm("gamma", lambda a, scale: Gamma(a, 1 / scale)),
        ScipyForm("erlang", lambda a, scale: Gamma(a, 1 / scale)),
        ScipyForm("chi2", lambda k, scale: Gamma(k / 2, 0.5 / scale)),
    ],
    match=_match,
))  # fmt: skip
register_family(Family(
    Exponential, "rate", ExponentialDensity, units={"rate": -1},
    cdf=lambda d: [scaling(-exact(d.rate)), ExpTransform(), AffineTransform(1.0, -1.0)],
    log_moments=_of_gamma, from_log_moments=_to_exponential,
    scipy=[ScipyForm("expon", lambda scale: Exponential(1 / scale))],
    match=match_of_mean("rate", lambda mean, _: 1 / mean),
))  # fmt: skip
register_family(Family(
    InverseGamma, "base_dist.concentration base_dist.rate", InverseGammaDensity,
    units={"concentration": 0, "rate": 1}, log_moments=_of_inverse_gamma, from_log_moments=_to_inverse_gamma,
    scipy=[
        ScipyForm("invgamma", InverseGamma),
        ScipyForm("levy", lambda scale: InverseGamma(torch.full_like(scale, 0.5), scale / 2)),
    ],
    match=partial(_match, power=-1),
))  # fmt: skip
register_family(Family(Chi2, match=_match_chi2))  # the record of the base class Gamma has the other fields
