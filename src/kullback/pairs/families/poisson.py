"""The family of Poisson distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Poisson

from kullback.common.dtypes import upcast
from kullback.common.special import HALF_LOG_2PI, LARGEST_EXPONENT, log_ratio
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import Points, Tail
from kullback.pairs.densities.integer import IntegerDensity, deviance, last_integer, stirling_error
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import POSITIVE, Family, ScipyForm, match_of_mean
from kullback.pairs.numerics.bernoulli import generalized_kl, generalized_kl_of, rate_of
from kullback.pairs.registry import closed_form
from kullback.pairs.renyi import mixed, renyi_form


@dataclass(frozen=True)
class PoissonDensity(IntegerDensity):
    """The probability rate^x e^-rate / x!."""

    rate: Tensor

    @property
    def high(self) -> Tensor | None:
        return last_integer(self.rate == 0, self.rate)

    def log_density(self, at: Points) -> Tensor:
        x = at.x
        inner = (x > 0) & (self.rate > 0)
        a, rate = torch.where(inner, x, 1), torch.where(inner, self.rate, 1)
        exponent = -stirling_error(a) - deviance(a, rate, torch.log(rate))
        at_zero = torch.where(x == 0, -self.rate, -torch.inf)
        return torch.where(inner, exponent - torch.log(a) / 2 - HALF_LOG_2PI, at_zero)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return self.rate, torch.sqrt(self.rate)

    def upper_tail(self) -> Tail:
        return Tail(0.0, 1.0, math.inf)  # the tail falls faster than any exponential


@closed_form(Poisson, Poisson, native=ElementForm.POISSON)
def kl_poisson_poisson(p: Poisson, q: Poisson) -> Tensor:
    """Return a log(a / b) - a + b for the rates a of P and b of Q."""
    a, b = rate_of(p), rate_of(q)
    return generalized_kl_of(a, b)


@renyi_form(Poisson)
def _renyi(p: Any, q: Any, alpha: float, rest: float) -> Tensor:
    """Return Renyi's divergence from KL(R || P) and KL(R || Q) for the Poisson distribution R (see `mixed`).

    R has the rate m_P^alpha m_Q^(1 - alpha), where m_P and m_Q are the rates of P and Q. If a rate is 0, the result is
    the limit of the formula. For orders alpha below 1, this limit is m_Q + alpha / (1 - alpha) m_P. For orders above 1,
    the limit is m_Q if m_P is 0, and +inf otherwise.
    """
    rate_p, rate_q = upcast(p.rate), upcast(q.rate)
    empty = (rate_p == 0) | (rate_q == 0)
    mean_p, mean_q = torch.where(empty, 1, rate_p), torch.where(empty, 1, rate_q)
    d = log_ratio(mean_p, mean_q)
    finite = torch.log(mean_p) - rest * d < LARGEST_EXPONENT
    d = torch.where(finite, d, 0)
    half = torch.exp(-rest / 2 * d)
    mean = mean_p * half * half
    to_p, to_q = generalized_kl(mean, mean_p, -rest * d), generalized_kl(mean, mean_q, alpha * d)
    limit = rate_q + (alpha / rest * rate_p if alpha < 1 else torch.where(rate_p > 0, torch.inf, 0))
    return torch.where(empty, limit, mixed(to_p, to_q, finite, alpha, rest))


register_family(Family(
    Poisson, "rate", lambda d: PoissonDensity(rate_of(d)), POSITIVE, is_full="rate",
    scipy=[ScipyForm("poisson", Poisson)], match=match_of_mean("rate", lambda mean, _: mean),
))  # fmt: skip
