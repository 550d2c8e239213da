"""Closed forms between different families on the half-line, from the moments of log X.

Most such X are products of powers of independent Gamma variables. Then log E X^k is a sum of lgamma terms, and the
Jensen gap log E X^k - k E log X is a sum of Bregman divergences of lgamma. In terms of Jensen gaps and e^d - 1 - d, the
divergences have no large terms that cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Distribution,
    Exponential,
    FisherSnedecor,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Kumaraswamy,
    Laplace,
    LogNormal,
    Normal,
    Pareto,
    Weibull,
)

from kullback.common.dtypes import upcast
from kullback.common.special import (
    EULER_GAMMA,
    HALF_LOG_2PI,
    bounded_exp,
    clamped_quotient,
    digamma,
    digamma_minus_log,
    expm1mx,
    harmonic_number,
    log_product,
    log_ratio,
    scaled_expm1mx,
    stirling_remainder,
    within_floats,
)
from kullback.kernels.codes import ElementForm
from kullback.pairs.closed_forms.log_moments import (
    Exact,
    Factor,
    GammaProduct,
    KumaraswamyLog,
    LogMoments,
    NormalLog,
)
from kullback.pairs.closed_forms.positive import shape_and_rate
from kullback.pairs.registry import closed_form


def _positive(x: Tensor) -> Tensor:
    """Return x where it is positive, and 1 elsewhere."""
    return torch.where(x > 0, x, 1)


def _gamma_entropy(a: Tensor) -> Tensor:
    """Return the entropy of log G, which is lgamma(a) - a digamma(a) + a, and near 1 - log a for tiny a."""
    tiny = a < 1e-75
    b = torch.where(tiny, 1, a)
    limit = 1 - torch.log(torch.where(tiny, a, 1))
    return torch.where(tiny, limit, stirling_remainder(b) - b * digamma_minus_log(b))


def _of_gamma(d: Gamma | Exponential) -> LogMoments:
    return _gamma_moments(*shape_and_rate(d))


def _gamma_moments(a: Tensor, rate: Tensor) -> LogMoments:
    return GammaProduct(
        _gamma_entropy(a), -torch.log(rate), (Factor(a),), Exact((a, rate), (torch.ones_like(a), a))
    )


def _of_inverse_gamma(d: InverseGamma) -> LogMoments:
    a, rate = upcast(d.concentration), upcast(d.rate)
    exact = Exact((rate, _positive(a - 1)), (torch.ones_like(a), _positive(a - 2)))
    return GammaProduct(_gamma_entropy(a), torch.log(rate), (Factor(a, -1.0),), exact)


def _of_weibull(d: Weibull) -> LogMoments:
    k = upcast(d.concentration)
    power = torch.ones_like(k) / k.clamp(min=1e-300)  # for a smaller k, the moments overflow
    return GammaProduct(
        EULER_GAMMA + 1 - torch.log(k),
        torch.log(upcast(d.scale)),
        (Factor(torch.ones_like(k), power),),
        root=k,
    )


def _of_half_normal(d: HalfNormal) -> LogMoments:
    return _half_normal_moments(upcast(d.scale))


def _half_normal_moments(scale: Tensor) -> LogMoments:
    half = torch.full_like(scale, 0.5)
    entropy = torch.full_like(scale, (math.log(math.pi) + 1 + EULER_GAMMA) / 2)
    mean = scale, torch.full_like(scale, math.sqrt(math.pi / 2))
    exact = Exact(mean, (half * (math.pi - 2), torch.ones_like(half)))
    return GammaProduct(entropy, torch.log(scale) + math.log(2) / 2, (Factor(half, 0.5),), exact, root=2.0)


def _of_half_cauchy(d: HalfCauchy) -> LogMoments:
    scale = upcast(d.scale)
    half = torch.full_like(scale, 0.5)
    factors = Factor(half, 0.5), Factor(half, -0.5)
    return GammaProduct(torch.full_like(scale, 2 * HALF_LOG_2PI), torch.log(scale), factors, root=2.0)


def _of_pareto(d: Pareto) -> LogMoments:
    scale, a = upcast(d.scale), upcast(d.alpha)
    exact = Exact((scale, _positive(1 - 1 / a)), (1 / a, _positive(a - 2)))
    return GammaProduct(1 - torch.log(a), torch.log(scale), (Factor(a, -1.0), Factor(a + 1, -1.0, -1)), exact)


def _of_beta(d: Beta) -> LogMoments:
    a, b = upcast(d.concentration1), upcast(d.concentration0)
    total = a + b
    exact = Exact((a, total), (b / (total + 1), a))
    return GammaProduct(
        _beta_entropy(a, b), torch.zeros_like(total), (Factor(a), Factor(total, 1.0, -1)), exact
    )


def _beta_entropy(a: Tensor, b: Tensor) -> Tensor:
    total = a + b
    of_odds = _gamma_entropy(a) + _gamma_entropy(b) - _gamma_entropy(total)
    return of_odds + digamma(b) - digamma(total)


def _of_kumaraswamy(d: Kumaraswamy) -> LogMoments:
    a, b = upcast(d.concentration1), upcast(d.concentration0)
    small = torch.where(b < 0.5, b, 1)
    of_power = torch.where(
        b < 0.5,
        1 - 1 / small - torch.log(small) + harmonic_number(small),
        _beta_entropy(torch.ones_like(b), b),
    )
    return KumaraswamyLog(of_power - torch.log(a), a, b)


def _of_fisher_snedecor(d: FisherSnedecor) -> LogMoments:
    df1, df2 = upcast(d.df1), upcast(d.df2)
    a, b = df1 / 2, df2 / 2
    entropy = _gamma_entropy(a) + _gamma_entropy(b) - _gamma_entropy(a + b)
    exact = Exact((b, _positive(b - 1)), ((a + b - 1) / a, _positive(b - 2)))
    return GammaProduct(entropy, torch.log(df2) - torch.log(df1), (Factor(a), Factor(b, -1.0)), exact)


def _of_log_normal(d: LogNormal) -> LogMoments:
    loc, scale = upcast(d.loc), upcast(d.scale)
    return NormalLog(torch.log(scale) + (HALF_LOG_2PI + 0.5), loc, scale)


_MOMENTS: dict[type[Distribution], Callable[[Any], LogMoments]] = {
    Gamma: _of_gamma,
    Exponential: _of_gamma,
    InverseGamma: _of_inverse_gamma,
    Weibull: _of_weibull,
    LogNormal: _of_log_normal,
    HalfNormal: _of_half_normal,
    HalfCauchy: _of_half_cauchy,
    Pareto: _of_pareto,
    Beta: _of_beta,
    Kumaraswamy: _of_kumaraswamy,
    FisherSnedecor: _of_fisher_snedecor,
}


def log_moments_of(family: type[Distribution]) -> Callable[[Any], LogMoments]:
    """Return the function that reads the moments of log X from a distribution of this family."""
    return _MOMENTS[family]


def _to_gamma(p: LogMoments, q: Gamma) -> Tensor:
    """Return a (x - 1 - log x) + a jensen_gap(1) + lgamma(a) - a log a + a - H(log X), at x = E X / mean_Q."""
    a = upcast(q.concentration)
    log_mean, rate = p.log_mean(), upcast(q.rate)
    means = scaled_expm1mx(a, log_mean + log_ratio(rate, a), log_mean + torch.log(rate))
    return means + a * p.jensen_gap(1.0) + stirling_remainder(a) - p.entropy


def _to_exponential(p: LogMoments, q: Exponential) -> Tensor:
    """Return KL to the Gamma distribution of concentration 1."""
    return expm1mx(p.log_mean() + torch.log(upcast(q.rate))) + p.jensen_gap(1.0) + 1 - p.entropy


def _to_inverse_gamma(p: LogMoments, q: InverseGamma) -> Tensor:
    """Return KL from 1 / X to the Gamma distribution."""
    a = upcast(q.concentration)
    gap, rate = p.jensen_gap(-1.0), upcast(q.rate)
    log_mean = p.log_power(-1.0)  # of 1 / X
    means = scaled_expm1mx(a, log_mean + log_ratio(rate, a), log_mean + torch.log(rate))
    return means + a * gap + stirling_remainder(a) - p.entropy


def _to_weibull(p: LogMoments, q: Weibull) -> Tensor:
    """Return x - 1 - log x + 1 + jensen_gap(k) - log k - H(log X), at x = E (X / scale)^k."""
    k = upcast(q.concentration)
    gap = p.jensen_gap(k)
    return expm1mx(p.log_power(k) - k * torch.log(upcast(q.scale))) + 1 + gap - torch.log(k) - p.entropy


def _to_log_normal(p: LogMoments, q: LogNormal) -> Tensor:
    """Return log(2 pi s^2) / 2 + (Var log X + (E log X - m)^2) / (2 s^2) - H(log X)."""
    scale = upcast(q.scale)
    shift = (p.mean() - upcast(q.loc)) / scale
    return (p.variance(scale) + shift * shift) / 2 + torch.log(scale) + HALF_LOG_2PI - p.entropy


def _to_half_normal(p: LogMoments, q: HalfNormal) -> Tensor:
    """Return (x - 1 - log x + 1 + jensen_gap(2) + log(pi / 2)) / 2 - H(log X), at x = E (X / scale)^2."""
    gap = p.jensen_gap(2.0)
    log_square = p.log_square() - 2 * torch.log(upcast(q.scale))
    return (expm1mx(log_square) + gap + (1 + math.log(math.pi / 2))) / 2 - p.entropy


def _to_normal(p: LogMoments, q: Normal) -> Tensor:
    """Return log(2 pi s^2) / 2 + (Var X + (E X - m)^2) / (2 s^2) - H(X)."""
    scale = upcast(q.scale)
    mean, variance = p.first_two(scale)
    infinite = mean.isinf() | variance.isinf()
    shift = mean - upcast(q.loc) / scale
    spread = torch.where(infinite, 0, variance) + shift * shift
    return torch.where(
        infinite, torch.inf, spread / 2 + torch.log(scale) - p.mean() + HALF_LOG_2PI - p.entropy
    )


_TARGETS: dict[type[Distribution], Callable[[LogMoments, Any], Tensor]] = {
    Gamma: _to_gamma,
    Exponential: _to_exponential,
    InverseGamma: _to_inverse_gamma,
    Weibull: _to_weibull,
    LogNormal: _to_log_normal,
    HalfNormal: _to_half_normal,
    Normal: _to_normal,
}

# These pairs have their own closed forms, in positive.py and real.py.
_OWN_CLOSED_FORM: set[tuple[type[Distribution], type[Distribution]]] = {
    *((family, family) for family in (Gamma, Exponential, InverseGamma, Weibull, LogNormal, HalfNormal)),
    (Exponential, Gamma),
    (Gamma, Exponential),
    (Exponential, Weibull),
    (Weibull, Exponential),
    (Weibull, Gamma),
}
# These are +inf for all parameters, because E X or E 1 / X is infinite.
_INFINITE: set[tuple[type[Distribution], type[Distribution]]] = {
    *((HalfCauchy, family) for family in (Gamma, Exponential, InverseGamma, HalfNormal, Normal)),
    (Exponential, InverseGamma),
    (HalfNormal, InverseGamma),
}


# The kernels of pairs.
_NATIVE: dict[tuple[type[Distribution], type[Distribution]], ElementForm] = {
    (Gamma, Normal): ElementForm.GAMMA_NORMAL,
    (Exponential, Normal): ElementForm.EXPONENTIAL_NORMAL,
    (Beta, Gamma): ElementForm.BETA_GAMMA,
    (Beta, Exponential): ElementForm.BETA_EXPONENTIAL,
    (Beta, Normal): ElementForm.BETA_NORMAL,
    (Pareto, Gamma): ElementForm.PARETO_GAMMA,
    (Pareto, Exponential): ElementForm.PARETO_EXPONENTIAL,
    (Pareto, Normal): ElementForm.PARETO_NORMAL,
}


def _enter(family: type[Distribution], target: type[Distribution]) -> None:
    moments_of, divergence = _MOMENTS[family], _TARGETS[target]

    def kl_by_log_moments(p: Distribution, q: Distribution) -> Tensor:
        return divergence(moments_of(p), q).clamp(min=0)

    kl_by_log_moments.__doc__ = divergence.__doc__
    closed_form(family, target, native=_NATIVE.get((family, target)))(kl_by_log_moments)


for _family in _MOMENTS:
    for _target in _TARGETS:
        if (_family, _target) not in _OWN_CLOSED_FORM | _INFINITE:
            _enter(_family, _target)


@closed_form(Gamma, Gumbel, native=ElementForm.GAMMA_GUMBEL)
@closed_form(Exponential, Gumbel, native=ElementForm.EXPONENTIAL_GUMBEL)
def kl_gamma_gumbel(p: Gamma | Exponential, q: Gumbel) -> Tensor:
    """Return log s + E z + E e^-z - H(X), where E e^(-x / s) = (1 + 1 / (r s))^-a."""
    (a, rate), loc, scale = shape_and_rate(p), upcast(q.loc), upcast(q.scale)
    unit = torch.ones_like(rate) / rate / scale
    return _to_gumbel(_gamma_moments(a, rate), loc, scale, a * unit, -a * torch.log1p(unit))


@closed_form(HalfNormal, Gumbel)
def kl_half_normal_gumbel(p: HalfNormal, q: Gumbel) -> Tensor:
    """Return log s + E z + E e^-z - H(X), where E e^(-x / s) = e^(t^2) erfc(t) at t = s_p / (s sqrt 2)."""
    loc, scale, scale_p = upcast(q.loc), upcast(q.scale), upcast(p.scale)
    t = scale_p / scale * math.sqrt(0.5)
    mean = t * (2 / math.sqrt(math.pi))
    return _to_gumbel(_half_normal_moments(scale_p), loc, scale, mean, torch.log(torch.special.erfcx(t)))


def _to_gumbel(p: LogMoments, loc: Tensor, scale: Tensor, mean: Tensor, log_decay: Tensor) -> Tensor:
    """Return KL from E X / s and log E e^(-x / s)."""
    start = within_floats(loc / scale)
    return mean - start + bounded_exp(start + log_decay) + torch.log(scale) - p.mean() - p.entropy


@closed_form(Exponential, Laplace)
def kl_exponential_laplace(p: Exponential, q: Laplace) -> Tensor:
    """Return log(2 b r) - 1 + E|x - m| / b, where E|x - m| is m - 1 / r + 2 e^(-r m) / r for m > 0."""
    scale = upcast(q.scale)
    rate = upcast(p.rate)
    spread = (torch.ones_like(rate) / rate / scale).clamp(max=1e308)
    start = within_floats(upcast(q.loc) / scale)
    inside = start.clamp(min=0)
    # A smaller spread adds nothing to the logarithms, and its quotient has no derivative in floats.
    is_large = spread > 1e-300
    divisor = torch.where(is_large, spread, 1)
    decay = torch.where(is_large, 2 * divisor * torch.exp(-clamped_quotient(inside, divisor, 745)), 0)
    distance = 2 * inside - start - spread + decay
    return distance + log_product(rate, scale) + (math.log(2) - 1)
