"""The family of Kumaraswamy distributions."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import ContinuousBernoulli, Kumaraswamy, Uniform

from kullback.common.dtypes import upcast
from kullback.common.special import harmonic_number
from kullback.pairs.densities.density import Points
from kullback.pairs.families.beta import PowersAtEnds, log_beta_entropy
from kullback.pairs.families.continuous_bernoulli import cross_entropy_to, log_room, logits_of
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family
from kullback.pairs.numerics.log_moments import KumaraswamyLog, LogMoments
from kullback.pairs.registry import closed_form


class KumaraswamyDensity(PowersAtEnds):
    """The density a b x^(a - 1) (1 - x^a)^(b - 1)."""

    def log_density(self, at: Points) -> Tensor:
        a, b = self.a, self.b
        log_x, log_rest = at.log_above(0.0), at.log_below(1.0)
        # Near x = 1, log x has lost digits, so log x is computed from log(1 - x).
        log_x = torch.where(log_rest < -1, torch.log1p(-torch.exp(log_rest.clamp(max=-1))), log_x)
        # Where 1 - x^a underflows, a (1 - x) replaces 1 - x^a.
        tiny = a * log_x > -1e-100
        inner = torch.log(-torch.expm1(torch.where(tiny, -1, a * log_x)))
        inner = torch.where(tiny, torch.log(a) + log_rest, inner)
        return torch.log(a) + torch.log(b) + (a - 1) * log_x + (b - 1) * inner

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        # If v is uniform, x with x^a = 1 - v^(1/b) has this density. The median of x is the center, and the distance
        # between the first and the last decile gives the width.
        def logit_at(v: float) -> Tensor:
            inner = -torch.expm1(math.log(v) / self.b)
            log_x = torch.log(inner) / self.a
            return log_x - torch.log(-torch.expm1(log_x)).nan_to_num(neginf=-700.0)

        low, middle, high = logit_at(0.9), logit_at(0.5), logit_at(0.1)
        width = ((high - low) / 2.5).nan_to_num(nan=1.0).clamp(1e-3, 1e6)
        return middle.nan_to_num(nan=0.0).clamp(-1e6, 1e6), width


@closed_form(Kumaraswamy, Uniform)
def kl_kumaraswamy_uniform(p: Kumaraswamy, q: Uniform) -> Tensor:
    """Return -H(X) + log(high - low) for X ~ P and Q = Uniform(low, high), with the entropy H."""
    moments = _of_kumaraswamy(p)
    return (log_room(q) - moments.entropy - moments.mean()).clamp(min=0)


@closed_form(Kumaraswamy, ContinuousBernoulli)
def kl_kumaraswamy_continuous_bernoulli(p: Kumaraswamy, q: ContinuousBernoulli) -> Tensor:
    """Return -H(X) + A(l) - l E X for X ~ P and Q's logit l, with the entropy H and A(l) = log((e^l - 1) / l)."""
    moments = _of_kumaraswamy(p)
    mean = torch.exp(moments.log_mean())
    return (cross_entropy_to(logits_of(q), mean, 1 - mean) - moments.entropy - moments.mean()).clamp(min=0)


def _of_kumaraswamy(d: Kumaraswamy) -> LogMoments:
    a, b = upcast(d.concentration1), upcast(d.concentration0)
    small = torch.where(b < 0.5, b, 1)
    of_power = torch.where(
        b < 0.5,
        1 - 1 / small - torch.log(small) + harmonic_number(small),
        log_beta_entropy(torch.ones_like(b), b),
    )
    return KumaraswamyLog(of_power - torch.log(a), a, b)


register_family(Family(
    Kumaraswamy, "concentration1 concentration0", KumaraswamyDensity, log_moments=_of_kumaraswamy,
))  # fmt: skip
