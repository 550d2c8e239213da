"""The family of continuous Bernoulli distributions, whose density on [0, 1] is proportional to e^(logit x).

In the formulas, E X, Var X and H(X) are the mean, the variance and the entropy of a draw X from P.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import ContinuousBernoulli, Exponential, Gumbel, Normal, Uniform

from kullback.common.dtypes import upcast
from kullback.common.roots import log_root
from kullback.common.special import (
    HALF_LOG_2PI,
    bounded_exp,
    bregman_by_quadrature,
    log_mean_decay,
    log_ratio,
    logit_difference,
    polynomial,
)
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import Density, Points, UnitDensity
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import CHOICE, UNIT, Family, Means, Parameters
from kullback.pairs.numerics.parameters import given_logits
from kullback.pairs.registry import closed_form


@dataclass(frozen=True)
class ContinuousBernoulliDensity(UnitDensity):
    """The density C e^(logit x), with C = logit / (e^logit - 1)."""

    logits: Tensor

    def log_density(self, at: Points) -> Tensor:
        rising = self.logits >= 0
        size = torch.where(rising, self.logits, -self.logits)  # abs has no derivative at 0
        flat = size < 1e-3
        safe = torch.where(flat, 1, size)
        # `constant` is log(size / (1 - e^-size)), computed from a series where the quotient is near 1.
        series = size / 2 - size**2 / 24 + size**4 / 2880
        constant = torch.where(flat, series, torch.log(safe) - torch.log(-torch.expm1(-safe)))
        distance = torch.exp(torch.where(rising, at.log_below(1.0), at.log_above(0.0)))
        return constant - size * distance

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        size = torch.log1p(self.logits.abs() / 2)
        return torch.sign(self.logits) * size, torch.full_like(size, 1.8)


@closed_form(ContinuousBernoulli, ContinuousBernoulli, native=ElementForm.CONTINUOUS_BERNOULLI_LOGITS)
def kl_continuous_bernoulli(p: ContinuousBernoulli, q: ContinuousBernoulli) -> Tensor:
    """Return the Bregman divergence of A(l) = log((e^l - 1) / l) from P's logit to Q's logit.

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
    """Return the Bregman divergence of A(l) = log((e^l - 1) / l) from a to b = a + distance.

    A(l) is l / 2 plus an even function, which for large |l| is |l| / 2 - log |l|. The Bregman divergence of |l| is
    2 |b| if a and b have different signs, and 0 otherwise. The divergence of the remainder has no large terms.
    """
    down_a, down_b = a < 0, b < 0
    # torch.abs is not used, because its derivative at 0 is 0, which equals neither one-sided derivative.
    size_a, size_b = torch.where(down_a, -a, a), torch.where(down_b, -b, b)
    near = distance.abs() < 0.05 * (size_a + size_b + 6)
    close = bregman_by_quadrature(continuous_bernoulli_variance, a, torch.where(near, distance, 0))
    crossed = torch.where(down_a == down_b, 0, size_b)
    tangent = torch.where(down_a, distance, -distance) * mean_from_end(size_a)
    return torch.where(near, close, crossed + log_mean_decay(size_b) - log_mean_decay(size_a) - tangent)


def mean_from_end(x: Tensor) -> Tensor:
    """Return 1 / x - 1 / (e^x - 1) for x >= 0, which is 1 - E T for the ContinuousBernoulli T with logit x."""
    series = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)
    small = x.clamp(max=0.5)
    large = x.clamp(min=0.5)
    near = 0.5 - small * polynomial(series, small * small)
    decay = torch.exp(-large)
    return torch.where(x < 0.5, near, 1 / large - decay / (1 - decay))


def continuous_bernoulli_variance(x: Tensor) -> Tensor:
    """Return the variance 1 / x^2 - 1 / (4 sinh^2(x / 2)) of the ContinuousBernoulli with logit x, 1 / 12 at x = 0."""
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


def cross_entropy_to(logits: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """Return A(l) - l m with A(l) = log((e^l - 1) / l), for the logits l and the mean m = `below` = 1 - `above`."""
    down = logits < 0
    size = torch.where(down, -logits, logits)
    small = size < 1
    few = torch.where(small, logits, 0)
    near = continuous_bernoulli_divergence(torch.zeros_like(few), few, few) + few * (above - below) / 2
    return torch.where(small, near, size * torch.where(down, below, above) + log_mean_decay(size))


def _mean_and_negative_entropy(p: ContinuousBernoulli) -> tuple[Tensor, Tensor, Tensor]:
    """Return P's logit, E X and -H(X) for X ~ P, where -H(X) is KL from P to the ContinuousBernoulli with logit 0."""
    logits = logits_of(p)
    down = logits < 0
    from_end = mean_from_end(torch.where(down, -logits, logits))
    negative_entropy = continuous_bernoulli_divergence(logits, torch.zeros_like(logits), -logits)
    return logits, torch.where(down, from_end, 1 - from_end), negative_entropy


def log_room(q: Uniform) -> Tensor:
    """Return log(high - low) for Q = Uniform(low, high) with an interval that contains [0, 1]."""
    room = (upcast(q.high) - 1) - upcast(q.low)
    return torch.log1p(torch.where(room >= 0, room, 0))


@closed_form(ContinuousBernoulli, Uniform, native=ElementForm.CONTINUOUS_BERNOULLI_LOGITS_UNIFORM)
def kl_continuous_bernoulli_uniform(p: ContinuousBernoulli, q: Uniform) -> Tensor:
    """Return KL(P || R) + log(high - low) for Q = Uniform(low, high) and the ContinuousBernoulli R with logit 0."""
    return _mean_and_negative_entropy(p)[2] + log_room(q)


@closed_form(ContinuousBernoulli, Normal, native=ElementForm.CONTINUOUS_BERNOULLI_LOGITS_NORMAL)
def kl_continuous_bernoulli_normal(p: ContinuousBernoulli, q: Normal) -> Tensor:
    """Return log(2 pi s^2) / 2 + (Var X + (E X - m)^2) / (2 s^2) - H(X) for X ~ P and Q = Normal(m, s)."""
    logits, mean, negative_entropy = _mean_and_negative_entropy(p)
    scale = upcast(q.scale)
    shift = (mean - upcast(q.loc)) / scale
    spread = continuous_bernoulli_variance(logits) / scale / scale + shift * shift
    return spread / 2 + torch.log(scale) + HALF_LOG_2PI + negative_entropy


@closed_form(ContinuousBernoulli, Exponential, native=ElementForm.CONTINUOUS_BERNOULLI_LOGITS_EXPONENTIAL)
def kl_continuous_bernoulli_exponential(p: ContinuousBernoulli, q: Exponential) -> Tensor:
    """Return r E X - log r - H(X) for X ~ P, where r is Q's rate and H is the entropy."""
    _, mean, negative_entropy = _mean_and_negative_entropy(p)
    rate = upcast(q.rate)
    return rate * mean - torch.log(rate) + negative_entropy


@closed_form(ContinuousBernoulli, Gumbel)
def kl_continuous_bernoulli_gumbel(p: ContinuousBernoulli, q: Gumbel) -> Tensor:
    """Return log s + E z + E e^-z - H(X) for X ~ P and Q = Gumbel(m, s), with z = (X - m) / s and the entropy H.

    The code uses log E e^(-X / s) = A(l - 1 / s) - A(l), where l is P's logit and A(l) = log((e^l - 1) / l).
    """
    logits, mean, negative_entropy = _mean_and_negative_entropy(p)
    scale, loc = upcast(q.scale), upcast(q.loc)
    log_decay = _log_normalizer(logits - 1 / scale) - _log_normalizer(logits)
    return torch.log(scale) + (mean - loc) / scale + bounded_exp(loc / scale + log_decay) + negative_entropy


def _log_normalizer(logits: Tensor) -> Tensor:
    """Return A(l) = log((e^l - 1) / l) for the logits l."""
    down = logits < 0
    size = torch.where(down, -logits, logits)
    return torch.where(down, 0, size) + log_mean_decay(size)


def _match(target: Means, start: Parameters, fixed: frozenset[str]) -> Parameters:
    mean = target.mean()
    rest = target.mean_of(lambda at: torch.exp(at.log_below(1.0)))
    smaller = torch.minimum(mean, rest)
    middle = (rest - mean) / 2  # 1/2 - smaller, up to the sign

    def excess(y: Tensor) -> Tensor:
        """Return min(E X, 1 - E X) minus the mean at logit -y, 1/2 - L(y/2)/2 with L(h) = coth h - 1/h."""
        near = y < 0.5
        h = torch.where(near, y, 0) / 2
        langevin = (
            h / 3 - h**3 / 45 + 2 * h**5 / 945 - h**7 / 4725 + 2 * h**9 / 93555 - 1382 * h**11 / 638512875
        )
        far = torch.where(near, 1, y)
        mean_far = 1 / far - 1 / torch.expm1(far)
        return torch.where(near, langevin / 2 - middle.abs(), smaller - mean_far)

    size = log_root(excess, mean, -60.0, 690.0)
    logits = torch.where(middle > 0, -size, size)
    return {"logits": torch.where(smaller > 0, logits, torch.nan)}


def _density(d: ContinuousBernoulli) -> Density:
    logits = upcast(d.logits) if given_logits(d) else torch.special.logit(upcast(d.probs))
    return ContinuousBernoulliDensity(logits)


register_family(Family(ContinuousBernoulli, CHOICE, _density, UNIT, tensors="_param", match=_match))
