"""The families of Beta, Kumaraswamy and FisherSnedecor distributions.

A FisherSnedecor variable is a multiple of the odds of a Beta variable: the ratio of two chi-squared variables, each
divided by its mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Beta, ContinuousBernoulli, FisherSnedecor, Kumaraswamy, Uniform

from kullback.common.dtypes import upcast
from kullback.common.roots import log_root
from kullback.common.special import digamma, harmonic_number, stirling_remainder, trigamma
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import (
    HalfLineDensity,
    Points,
    Tail,
    UnitDensity,
    breakpoints_around,
    log_mean_exp,
)
from kullback.pairs.families.categorical import concentrations, dirichlet_divergence
from kullback.pairs.families.gamma import log_gamma_entropy
from kullback.pairs.families.registration import register_family
from kullback.pairs.families.uniform import cross_entropy_to, log_room, logits_of
from kullback.pairs.family import Family, Means, Parameters, ScipyForm
from kullback.pairs.numerics.log_moments import (
    Exact,
    Factor,
    GammaProduct,
    KumaraswamyLog,
    LogMoments,
    positive,
)
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


@dataclass(frozen=True)
class FisherSnedecorDensity(HalfLineDensity):
    """The density of (X / df1) / (Y / df2) for chi-squared X and Y with df1 and df2 degrees of freedom."""

    df1: Tensor
    df2: Tensor

    def log_density(self, at: Points) -> Tensor:
        a, b = self.df1 / 2, self.df2 / 2
        n, log_x = a + b, at.log_above(0.0)
        shape = a * log_mean_exp(a / n, b / n, -log_x) + b * log_mean_exp(b / n, a / n, log_x)
        return stirling_remainder(n) - stirling_remainder(a) - stirling_remainder(b) - shape - log_x

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        a, b = self.df1 / 2, self.df2 / 2
        center = torch.digamma(a) - torch.digamma(b) + torch.log(self.df2) - torch.log(self.df1)
        return center, torch.sqrt(torch.polygamma(1, a) + torch.polygamma(1, b))

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        a, b = self.df1 / 2, self.df2 / 2
        return breakpoints_around(
            *self.center_and_width(), torch.log((a + 1) / a) - torch.log((b + 1) / b), steps
        )

    def lower_tail(self) -> Tail:
        return Tail.of_power(self.df1 / 2)

    def upper_tail(self) -> Tail:
        return Tail.of_power(self.df2 / 2)


def _of_fisher_snedecor(d: FisherSnedecor) -> LogMoments:
    df1, df2 = upcast(d.df1), upcast(d.df2)
    a, b = df1 / 2, df2 / 2
    entropy = log_gamma_entropy(a) + log_gamma_entropy(b) - log_gamma_entropy(a + b)
    exact = Exact((b, positive(b - 1)), ((a + b - 1) / a, positive(b - 2)))
    return GammaProduct(entropy, torch.log(df2) - torch.log(df1), (Factor(a), Factor(b, -1.0)), exact)


register_family(Family(
    FisherSnedecor, "df1 df2", FisherSnedecorDensity, log_moments=_of_fisher_snedecor,
    scipy=[ScipyForm("f", FisherSnedecor, takes="")],
))  # fmt: skip
