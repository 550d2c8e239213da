"""Closed forms of two Uniform, ContinuousBernoulli or VonMises distributions."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import ContinuousBernoulli, Uniform, VonMises

from kullback.common.dtypes import upcast
from kullback.common.special import (
    bregman_by_quadrature,
    log1p_quotient,
    log_ratio,
    logit_difference,
    polynomial,
)
from kullback.kernels.codes import ElementForm
from kullback.pairs.numerics.parameters import given_logits
from kullback.pairs.registry import closed_form

__all__: list[str] = []


@closed_form(Uniform, Uniform, native=ElementForm.UNIFORM)
def kl_uniform_uniform(p: Uniform, q: Uniform) -> Tensor:
    """Return log(1 + room / width), with P's width and the room between its ends and Q's.

    At P = Q the gradient is 0, although the one-sided derivatives are not.
    """
    low, high = upcast(p.low), upcast(p.high)
    room = (low - upcast(q.low)) + (upcast(q.high) - high)
    return log1p_quotient(torch.where(room > 0, room, 0), high - low)


@closed_form(ContinuousBernoulli, ContinuousBernoulli, native=ElementForm.CONTINUOUS_BERNOULLI_LOGITS)
def kl_continuous_bernoulli(p: ContinuousBernoulli, q: ContinuousBernoulli) -> Tensor:
    """Return Bregman's divergence, from P's logit to Q's, of A(l) = log((e^l - 1) / l).

    The continuous Bernoulli: fixing a pervasive error in variational autoencoders (Loaiza-Ganem and Cunningham, 2019)
    """
    logit_p, logit_q = logits_of(p), logits_of(q)
    if given_logits(p) or given_logits(q):
        return continuous_bernoulli_divergence(logit_p, logit_q, logit_q - logit_p)
    return continuous_bernoulli_divergence(
        logit_p, logit_q, logit_difference(upcast(q.probs), upcast(p.probs))
    )


def logits_of(d: ContinuousBernoulli) -> Tensor:
    """Return the logits of a ContinuousBernoulli, from its logits or probs as the user passed them."""
    if given_logits(d):
        return upcast(d.logits)
    probs = upcast(d.probs)
    return log_ratio(probs, 1 - probs, 2 * probs - 1)


def continuous_bernoulli_divergence(a: Tensor, b: Tensor, distance: Tensor) -> Tensor:
    """Return Bregman's divergence of A from a to b = a + distance.

    A(l) is l / 2 plus an even function, which for large |l| is |l| / 2 - log |l|. The divergence of |l| is 2 |b| if the
    signs differ, and 0 otherwise. The divergence of the remainder has no large terms.
    """
    down_a, down_b = a < 0, b < 0
    # Not abs(), whose derivative at 0 is not a one-sided derivative.
    size_a, size_b = torch.where(down_a, -a, a), torch.where(down_b, -b, b)
    near = distance.abs() < 0.05 * (size_a + size_b + 6)
    close = bregman_by_quadrature(continuous_bernoulli_variance, a, torch.where(near, distance, 0))
    crossed = torch.where(down_a == down_b, 0, size_b)
    tangent = torch.where(down_a, distance, -distance) * mean_from_end(size_a)
    return torch.where(near, close, crossed + log_mean_decay(size_b) - log_mean_decay(size_a) - tangent)


def log_mean_decay(x: Tensor) -> Tensor:
    """Return log((1 - e^-x) / x) for x >= 0: the logarithm of the mean of e^-xt over t in [0, 1]."""
    tiny = x < 1e-4
    safe = torch.where(tiny, 1, x)
    small = torch.where(tiny, x, 0)
    return torch.where(tiny, small * (small / 24 - 0.5), torch.log(-torch.expm1(-safe) / safe))


def mean_from_end(x: Tensor) -> Tensor:
    """Return 1 / x - 1 / (e^x - 1) for x >= 0: 1 minus the mean of t on [0, 1] with a density proportional to e^xt."""
    series = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)
    small = x.clamp(max=0.5)
    large = x.clamp(min=0.5)
    near = 0.5 - small * polynomial(series, small * small)
    decay = torch.exp(-large)
    return torch.where(x < 0.5, near, 1 / large - decay / (1 - decay))


def continuous_bernoulli_variance(x: Tensor) -> Tensor:
    """Return A'', the variance: 1 / x^2 - 1 / (4 sinh^2(x / 2)), an even function that is 1 / 12 at 0."""
    series = (1 / 12, -1 / 240, 1 / 6048, -1 / 172800, 1 / 5322240, -691 / 118879488000, 1 / 5748019200)
    size = x.abs()
    small = torch.where(size < 0.7, x, 0)
    large = size.clamp(min=0.7)
    decay = torch.exp(-large)
    return torch.where(
        size < 0.7,
        polynomial(series, small * small),
        1 / (large * large) - decay / ((1 - decay) * (1 - decay)),
    )


@closed_form(VonMises, VonMises)
def kl_von_mises_von_mises(p: VonMises, q: VonMises) -> Tensor:
    """Return B(k_p -> k_q) + 2 A(k_p) k_q sin^2(d / 2), with B Bregman's divergence of log I0 and A = I1 / I0.

    Directional Statistics (Mardia and Jupp, 2000), for the family and its moments
    """
    k_p, k_q = upcast(p.concentration), upcast(q.concentration)
    sine = torch.sin((upcast(p.loc) - upcast(q.loc)) / 2)
    return 2 * mean_cosine(k_p) * k_q * sine * sine + log_i0_bregman(k_p, k_q)


def mean_cosine(k: Tensor) -> Tensor:
    """Return A = I1(k) / I0(k)."""
    small = k.clamp(max=_LARGE)
    of_small = torch.special.i1e(small) / torch.special.i0e(small)
    return torch.where(k < _LARGE, of_small, 1 + _log_i0_minus_k_derivative(k))


# log I0(k) = k - log(2 pi k) / 2 + sum_n c_n k^-n, for k beyond _LARGE
_LARGE = 40.0
_LOG_I0 = (1 / 8, 1 / 16, 25 / 384, 13 / 128, 1073 / 5120, 103 / 192, 1.6380658830915178571, 5.809814453125)
_LOG_I0_DERIVATIVE = tuple((n + 1) * c for n, c in enumerate(_LOG_I0))
_LOG_I0_CURVATURE = tuple((n + 2) * c for n, c in enumerate(_LOG_I0_DERIVATIVE))


def log_i0_bregman(a: Tensor, b: Tensor) -> Tensor:
    """Return Bregman's divergence of log I0 from a to b, near (x - 1 - log x) / 2 at x = b / a for large a and b."""
    distance = b - a
    near = distance.abs() < 0.05 * (a + b + 2)
    close = bregman_by_quadrature(_log_i0_curvature, a, torch.where(near, distance, 0))
    return torch.where(
        near, close, _log_i0_minus_k(b) - _log_i0_minus_k(a) - distance * _log_i0_minus_k_derivative(a)
    )


def _log_i0_minus_k(k: Tensor) -> Tensor:
    """Return log I0(k) - k."""
    small, inverse = k.clamp(max=_LARGE), 1 / k.clamp(min=_LARGE)
    series = torch.log(inverse / (2 * math.pi)) / 2 + inverse * polynomial(_LOG_I0, inverse)
    return torch.where(k < _LARGE, torch.log(torch.special.i0e(small)), series)


def _log_i0_minus_k_derivative(k: Tensor) -> Tensor:
    """Return I1(k) / I0(k) - 1."""
    small, inverse = k.clamp(max=_LARGE), 1 / k.clamp(min=_LARGE)
    series = -inverse / 2 - inverse * inverse * polynomial(_LOG_I0_DERIVATIVE, inverse)
    return torch.where(k < _LARGE, torch.special.i1e(small) / torch.special.i0e(small) - 1, series)


def _log_i0_curvature(k: Tensor) -> Tensor:
    """Return the derivative of A = I1 / I0, which is 1 - A^2 - A / k."""
    small, inverse = k.clamp(max=_LARGE), 1 / k.clamp(min=_LARGE)
    mean = torch.special.i1e(small) / torch.special.i0e(small)
    square = inverse * inverse
    series = square / 2 + inverse * square * polynomial(_LOG_I0_CURVATURE, inverse)
    return torch.where(k < _LARGE, 1 - mean * mean - mean / small, series)
