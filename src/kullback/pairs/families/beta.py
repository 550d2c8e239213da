"""The family of Beta distributions, and `PowersAtEnds`, the base class of the Beta and Kumaraswamy densities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Beta, ContinuousBernoulli, Uniform

from kullback.common.dtypes import upcast
from kullback.common.roots import log_root
from kullback.common.special import digamma, stirling_remainder, trigamma
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import Points, Tail, UnitDensity, breakpoints_around, log_mean_exp
from kullback.pairs.families.continuous_bernoulli import cross_entropy_to, log_room, logits_of
from kullback.pairs.families.dirichlet import concentrations, dirichlet_divergence
from kullback.pairs.families.gamma import log_gamma_entropy
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, Means, Parameters, ScipyForm
from kullback.pairs.numerics.log_moments import Exact, Factor, GammaProduct, LogMoments
from kullback.pairs.registry import closed_form


@dataclass(frozen=True)
class PowersAtEnds(UnitDensity):
    """A density that is about x^(a - 1) near 0 and (1 - x)^(b - 1) near 1."""

    a: Tensor
    b: Tensor

    def lower_tail(self) -> Tail:
        return Tail.of_power(self.a)

    def upper_tail(self) -> Tail:
        return Tail.of_power(self.b)


class BetaDensity(PowersAtEnds):
    """The density x^(a - 1) (1 - x)^(b - 1) / B(a, b)."""

    def log_density(self, at: Points) -> Tensor:
        a, b = self.a, self.b
        n, log_x, log_rest = a + b, at.log_above(0.0), at.log_below(1.0)
        # u is the logit of x minus the logit of the mean. As a function of u, the log-density has no large terms for
        # large concentrations.
        u = log_x - log_rest - torch.log(a) + torch.log(b)
        shape = a * log_mean_exp(a / n, b / n, -u) + b * log_mean_exp(b / n, a / n, u)
        return (
            stirling_remainder(n) - stirling_remainder(a) - stirling_remainder(b) - shape - log_x - log_rest
        )

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        a, b = self.a, self.b
        width = torch.sqrt(torch.polygamma(1, a) + torch.polygamma(1, b))
        return torch.digamma(a) - torch.digamma(b), width

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        return breakpoints_around(
            *self.center_and_width(), torch.log(self.a + 1) - torch.log(self.b + 1), steps
        )


def _from_beta_to_unit(p: Beta) -> Tensor:
    """Return KL from a Beta distribution to the uniform distribution on [0, 1]."""
    own = concentrations(p)
    return dirichlet_divergence(own, torch.ones_like(own))


@closed_form(Beta, Uniform, native=ElementForm.BETA_UNIFORM)
def kl_beta_uniform(p: Beta, q: Uniform) -> Tensor:
    """Return KL(P || Beta(1, 1)) + log(high - low) for Q = Uniform(low, high)."""
    return _from_beta_to_unit(p) + log_room(q)


@closed_form(Beta, ContinuousBernoulli, native=ElementForm.BETA_CONTINUOUS_BERNOULLI_LOGITS)
def kl_beta_continuous_bernoulli(p: Beta, q: ContinuousBernoulli) -> Tensor:
    """Return KL(P || Beta(1, 1)) + A(l) - l E X, where X ~ P, l is Q's logit, and A(l) = log((e^l - 1) / l)."""
    a, b = upcast(p.concentration1), upcast(p.concentration0)
    value = _from_beta_to_unit(p) + cross_entropy_to(logits_of(q), a / (a + b), b / (a + b))
    return value.clamp(min=0)


def _of_beta(d: Beta) -> LogMoments:
    a, b = upcast(d.concentration1), upcast(d.concentration0)
    total = a + b
    exact = Exact((a, total), (b / (total + 1), a))
    return GammaProduct(
        log_beta_entropy(a, b), torch.zeros_like(total), (Factor(a), Factor(total, 1.0, -1)), exact
    )


def log_beta_entropy(a: Tensor, b: Tensor) -> Tensor:
    """Return the entropy of log X for X ~ Beta(a, b)."""
    total = a + b
    of_odds = log_gamma_entropy(a) + log_gamma_entropy(b) - log_gamma_entropy(total)
    return of_odds + digamma(b) - digamma(total)


def _match(target: Means, start: Parameters, fixed: frozenset[str]) -> Parameters:
    g1 = target.mean_log()
    g0 = target.mean_of(lambda at: at.log_below(1.0))
    a, b = start["concentration1"], start["concentration0"]
    if {"concentration1", "concentration0"} <= fixed:
        return {"concentration1": a, "concentration0": b}
    if "concentration1" in fixed:
        b = log_root(lambda b: digamma(b) - digamma(a + b) - g0, g0)
    elif "concentration0" in fixed:
        a = log_root(lambda a: digamma(a) - digamma(a + b) - g1, g1)
    else:
        a, b = dirichlet_from_mean_logs(torch.stack([g1, g0], -1)).unbind(-1)
    return {"concentration1": a, "concentration0": b}


def dirichlet_from_mean_logs(mean_logs: Tensor) -> Tensor:
    """Return the concentrations a of a Dirichlet distribution of x with given `mean_logs`, E log x_k of each class k.

    Newton's method solves digamma(a_k) - digamma(sum a) = E log x_k, the condition for the maximum of a concave
    function. The result is NaN if no concentrations solve it, because only a point mass has these mean logarithms.
    """
    a = torch.full_like(mean_logs, 0.1)
    for _ in range(200):
        gradient = digamma(a.sum(-1, keepdim=True)) - digamma(a) + mean_logs
        q = -trigamma(a)
        z = trigamma(a.sum(-1, keepdim=True))
        shared = (gradient / q).sum(-1, keepdim=True) / (1 / z + (1 / q).sum(-1, keepdim=True))
        step = -(gradient - shared) / q
        # A step changes a concentration by a factor of at most 10.
        new = torch.minimum(torch.maximum(a + step, a / 10), 10 * a)
        if bool(((new - a).abs() <= 1e-16 * a).all()):
            break
        a = new
    missed = (digamma(a.sum(-1, keepdim=True)) - digamma(a) + mean_logs).abs() > 1e-9 * (1 + mean_logs.abs())
    return torch.where((missed | ~a.isfinite()).any(-1, keepdim=True), torch.nan, a)


register_family(Family(
    Beta, "concentration1 concentration0", BetaDensity, tensors="_dirichlet.concentration",
    log_moments=_of_beta, scipy=[ScipyForm("beta", Beta, takes="")], match=_match,
))  # fmt: skip
