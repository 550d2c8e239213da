"""Closed forms between Uniform, Beta, ContinuousBernoulli, Kumaraswamy and others."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    ContinuousBernoulli,
    Exponential,
    Gamma,
    Gumbel,
    HalfNormal,
    Kumaraswamy,
    Laplace,
    Normal,
    Pareto,
    Uniform,
)

from kullback.common.dtypes import upcast
from kullback.common.special import (
    HALF_LOG_2PI,
    bounded_exp,
    log_product,
    log_ratio,
    polynomial,
    scaled_expm1mx,
    stirling_remainder,
    within_floats,
)
from kullback.kernels.codes import ElementForm
from kullback.pairs.closed_forms.bounded import (
    continuous_bernoulli_divergence,
    continuous_bernoulli_variance,
    log_mean_decay,
    logits_of,
    mean_from_end,
)
from kullback.pairs.closed_forms.dirichlet import concentrations, dirichlet_divergence
from kullback.pairs.closed_forms.positive_log_moments import log_moments_of
from kullback.pairs.registry import closed_form

__all__: list[str] = []


def _log_room(q: Uniform) -> Tensor:
    """Return log(high - low) for an interval that contains [0, 1]."""
    room = (upcast(q.high) - 1) - upcast(q.low)
    return torch.log1p(torch.where(room >= 0, room, 0))


def _ends(p: Uniform, *, least: float = -math.inf, most: float = math.inf) -> tuple[Tensor, Tensor]:
    """Return the ends of P's interval, or of an arbitrary interval within the bounds where P exceeds them."""
    low, high = upcast(p.low), upcast(p.high)
    inside = (low >= least) & (high <= most)
    return torch.where(inside, low, max(least, 0.25)), torch.where(inside, high, min(most, 0.75))


def _log_deficit(t: Tensor, start: Tensor) -> Tensor:
    """Return E log(X / E X) for X uniform on an interval from 1 - t = `start` to 1 + t in units of its middle.

    It is ((1 + t) log(1 + t) - (1 - t) log(1 - t)) / (2 t) - 1. Its derivative is infinite at t = 1, where the interval
    begins at 0; there the gradient is the finite part.
    """
    series = (-1 / 6, -1 / 20, -1 / 42, -1 / 72, -1 / 110)
    small = t.clamp(max=0.05)
    square = small * small
    large = t.clamp(min=0.05)
    below = torch.where(start > 0, start, 1)
    formula = ((1 + large) * torch.log1p(large) - below * torch.log(below)) / (2 * large) - 1
    return torch.where(t < 0.05, square * polynomial(series, square), formula)


def _relative(low: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return twice the middle of an interval above 0, and half its width and its start in units of the middle."""
    twice = 2 * low + width  # not the middle, which may be rounded
    start = 2 * low / twice
    from_end = start < 0.5
    t = torch.where(from_end, 1, width) / torch.where(from_end, 1, twice)
    return twice, torch.where(from_end, 1 - start, t), start


# Uniform || ...


@closed_form(Uniform, Normal, native=ElementForm.UNIFORM_NORMAL)
def kl_uniform_normal(p: Uniform, q: Normal) -> Tensor:
    """Return log(2 pi s^2) / 2 - log w + (w^2 / 12 + d^2) / (2 s^2), with width w and d from the middle to m."""
    return _from_uniform_to_normal(p, upcast(q.loc), upcast(q.scale))


@closed_form(Uniform, HalfNormal)
def kl_uniform_half_normal(p: Uniform, q: HalfNormal) -> Tensor:
    """Return KL to the Normal distribution of mean 0, minus log 2."""
    return _from_uniform_to_normal(p, 0.0, upcast(q.scale)) - math.log(2)


def _from_uniform_to_normal(p: Uniform, loc: Tensor | float, scale: Tensor) -> Tensor:
    low, high = upcast(p.low), upcast(p.high)
    width = (high - low) / scale
    shift = ((low - loc) + (high - low) / 2) / scale
    return (width * width / 12 + shift * shift) / 2 - log_ratio(high - low, scale) + HALF_LOG_2PI


@closed_form(Uniform, Laplace)
def kl_uniform_laplace(p: Uniform, q: Laplace) -> Tensor:
    """Return log(2 b / w) + E|x - m| / b; for m inside, u and v from the ends, E|x - m| = (u^2 + v^2) / 2w."""
    start, end, loc, scale = upcast(p.low), upcast(p.high), upcast(q.loc), upcast(q.scale)
    across = (start < loc) & (end > loc)
    below, above = start - loc, end - loc
    u, v, width = (torch.where(across, x, 1) for x in (below, above, end - start))
    distance = torch.where(across, u * (u / width) + v * (v / width), (below + above).abs()) / 2
    return distance / scale + math.log(2) - log_ratio(end - start, scale)


@closed_form(Uniform, Gumbel, native=ElementForm.UNIFORM_GUMBEL)
def kl_uniform_gumbel(p: Uniform, q: Gumbel) -> Tensor:
    """Return log(s / w) + E z + E e^-z, where E e^-z = e^-z_low (1 - e^-y) / y with y = w / s."""
    start, end, scale = upcast(p.low), upcast(p.high), upcast(q.scale)
    low, width = within_floats((start - upcast(q.loc)) / scale), (end - start) / scale
    return low + width / 2 + bounded_exp(log_mean_decay(width) - low) - log_ratio(end - start, scale)


@closed_form(Uniform, Exponential, native=ElementForm.UNIFORM_EXPONENTIAL)
def kl_uniform_exponential(p: Uniform, q: Exponential) -> Tensor:
    """Return r (low + high) / 2 - log(r w)."""
    start, rate = upcast(p.low), upcast(q.rate)
    width = upcast(p.high) - start
    return start * rate + width * rate / 2 - log_product(width, rate)


@closed_form(Uniform, Gamma, native=ElementForm.UNIFORM_GAMMA)
def kl_uniform_gamma(p: Uniform, q: Gamma) -> Tensor:
    """Return a (x - 1 - log x) - (a - 1) E log(X / E X) + lgamma(a) - a log a + a - log(w / E X), x = E X / mean_Q."""
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
    """Return (alpha + 1) E log X - alpha log s - log(alpha w)."""
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
    """Return log B(a, b) - log w - (a - 1) E log X - (b - 1) E log(1 - X).

    Its large terms are (a + b) KL(mean_Q || mean_P), between the probabilities of two classes.
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
    """Return A(l) - l E X - log w, with A(l) = log((e^l - 1) / l)."""
    low, high = upcast(p.low), upcast(p.high)
    half = (high - low) / 2
    return (_from_uniform(logits_of(q), low + half, (1 - high) + half) - torch.log(2 * half)).clamp(min=0)


def _from_uniform(logits: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """Return A(l) - l m with A(l) = log((e^l - 1) / l), for a mean m = `below` = 1 - `above`."""
    down = logits < 0
    size = torch.where(down, -logits, logits)
    small = size < 1
    few = torch.where(small, logits, 0)
    near = continuous_bernoulli_divergence(torch.zeros_like(few), few, few) + few * (above - below) / 2
    return torch.where(small, near, size * torch.where(down, below, above) + log_mean_decay(size))


# Beta, Kumaraswamy || ...


def _from_beta_to_unit(p: Beta) -> Tensor:
    """Return KL to the uniform distribution on [0, 1]."""
    own = concentrations(p)
    return dirichlet_divergence(own, torch.ones_like(own))


@closed_form(Beta, Uniform, native=ElementForm.BETA_UNIFORM)
def kl_beta_uniform(p: Beta, q: Uniform) -> Tensor:
    """Return KL to Beta(1, 1), plus log(high - low)."""
    return _from_beta_to_unit(p) + _log_room(q)


@closed_form(Beta, ContinuousBernoulli, native=ElementForm.BETA_CONTINUOUS_BERNOULLI_LOGITS)
def kl_beta_continuous_bernoulli(p: Beta, q: ContinuousBernoulli) -> Tensor:
    """Return KL to Beta(1, 1), plus A(l) - l E X."""
    a, b = upcast(p.concentration1), upcast(p.concentration0)
    value = _from_beta_to_unit(p) + _from_uniform(logits_of(q), a / (a + b), b / (a + b))
    return value.clamp(min=0)


@closed_form(Kumaraswamy, Uniform)
def kl_kumaraswamy_uniform(p: Kumaraswamy, q: Uniform) -> Tensor:
    """Return -H(X) + log(high - low)."""
    moments = log_moments_of(Kumaraswamy)(p)
    return (_log_room(q) - moments.entropy - moments.mean()).clamp(min=0)


@closed_form(Kumaraswamy, ContinuousBernoulli)
def kl_kumaraswamy_continuous_bernoulli(p: Kumaraswamy, q: ContinuousBernoulli) -> Tensor:
    """Return -H(X) + A(l) - l E X."""
    moments = log_moments_of(Kumaraswamy)(p)
    mean = torch.exp(moments.log_mean())
    return (_from_uniform(logits_of(q), mean, 1 - mean) - moments.entropy - moments.mean()).clamp(min=0)


# ContinuousBernoulli || ...


def _mean_and_negative_entropy(p: ContinuousBernoulli) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits, E X and -H(X) = l E X - A(l), which is KL to the ContinuousBernoulli of logit 0."""
    logits = logits_of(p)
    down = logits < 0
    from_end = mean_from_end(torch.where(down, -logits, logits))
    negative_entropy = continuous_bernoulli_divergence(logits, torch.zeros_like(logits), -logits)
    return logits, torch.where(down, from_end, 1 - from_end), negative_entropy


@closed_form(ContinuousBernoulli, Uniform, native=ElementForm.CONTINUOUS_BERNOULLI_LOGITS_UNIFORM)
def kl_continuous_bernoulli_uniform(p: ContinuousBernoulli, q: Uniform) -> Tensor:
    """Return KL to the ContinuousBernoulli of logit 0, plus log(high - low)."""
    return _mean_and_negative_entropy(p)[2] + _log_room(q)


@closed_form(ContinuousBernoulli, Normal, native=ElementForm.CONTINUOUS_BERNOULLI_LOGITS_NORMAL)
def kl_continuous_bernoulli_normal(p: ContinuousBernoulli, q: Normal) -> Tensor:
    """Return log(2 pi s^2) / 2 + (Var X + (E X - m)^2) / (2 s^2) - H(X)."""
    logits, mean, negative_entropy = _mean_and_negative_entropy(p)
    scale = upcast(q.scale)
    shift = (mean - upcast(q.loc)) / scale
    spread = continuous_bernoulli_variance(logits) / scale / scale + shift * shift
    return spread / 2 + torch.log(scale) + HALF_LOG_2PI + negative_entropy


@closed_form(ContinuousBernoulli, Exponential, native=ElementForm.CONTINUOUS_BERNOULLI_LOGITS_EXPONENTIAL)
def kl_continuous_bernoulli_exponential(p: ContinuousBernoulli, q: Exponential) -> Tensor:
    """Return r E X - log r - H(X)."""
    _, mean, negative_entropy = _mean_and_negative_entropy(p)
    rate = upcast(q.rate)
    return rate * mean - torch.log(rate) + negative_entropy


@closed_form(ContinuousBernoulli, Gumbel)
def kl_continuous_bernoulli_gumbel(p: ContinuousBernoulli, q: Gumbel) -> Tensor:
    """Return log s + E z + E e^-z - H(X), where log E e^(-x / s) = A(l - 1 / s) - A(l)."""
    logits, mean, negative_entropy = _mean_and_negative_entropy(p)
    scale, loc = upcast(q.scale), upcast(q.loc)
    log_decay = _log_normalizer(logits - 1 / scale) - _log_normalizer(logits)
    return torch.log(scale) + (mean - loc) / scale + bounded_exp(loc / scale + log_decay) + negative_entropy


def _log_normalizer(logits: Tensor) -> Tensor:
    """Return A(l) = log((e^l - 1) / l)."""
    down = logits < 0
    size = torch.where(down, -logits, logits)
    return torch.where(down, 0, size) + log_mean_decay(size)
