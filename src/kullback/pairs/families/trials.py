"""The Bernoulli, Binomial, Geometric and NegativeBinomial families, which count the outcomes of repeated trials.

KL is a multiple of the sum of p log(p / q) - p + q over the two outcomes of a single trial. No term is negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Binomial, Geometric, NegativeBinomial, Poisson

from kullback.common.dtypes import upcast
from kullback.common.special import HALF_LOG_2PI, expm1mx, itakura_saito, polynomial
from kullback.generators.divergence import times
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import Density, Points, Tail
from kullback.pairs.densities.integer import IntegerDensity, deviance, last_integer, log_power, stirling_error
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import CHOICE, POSITIVE, UNIT, Family, ScipyForm, match_of_mean
from kullback.pairs.numerics.bernoulli import (
    Probabilities,
    generalized_kl,
    generalized_kl_of,
    log_ratios,
    probabilities_of,
    rate_of,
)
from kullback.pairs.numerics.parameters import all_equal, is_differentiated
from kullback.pairs.registry import closed_form


def _log_split(a: Tensor, b: Tensor, trials: _Trials) -> Tensor:
    """Return log((a + b)! / (a! b!) p^a (1 - p)^b) for a, b > 0, where 0 < p < 1 is the probability of success."""
    n = a + b
    log_n = torch.log(n)
    exponent = stirling_error(n) - stirling_error(a) - stirling_error(b)
    exponent = exponent - deviance(a, n * trials.success, log_n + trials.log_success)
    exponent = exponent - deviance(b, n * trials.failure, log_n + trials.log_failure)
    return exponent + (log_n - torch.log(a) - torch.log(b)) / 2 - HALF_LOG_2PI


@dataclass(frozen=True)
class _Trials(IntegerDensity):
    total_count: Tensor
    success: Tensor
    failure: Tensor
    log_success: Tensor
    log_failure: Tensor

    def certain(self) -> Tensor:
        """Return a mask of the elements where one of the two outcomes is impossible."""
        return (self.log_success == -torch.inf) | (self.log_failure == -torch.inf)

    def uncertain(self) -> _Trials:
        """Return the density, with 1/2 in place of the probabilities 0 and 1, so that all logarithms are finite."""
        certain = self.certain()
        half = (0.5, 0.5, math.log(0.5), math.log(0.5))
        own = (self.success, self.failure, self.log_success, self.log_failure)
        probabilities = (torch.where(certain, a, b) for a, b in zip(half, own, strict=True))
        return type(self)(self.total_count, *probabilities)


class BinomialDensity(_Trials):
    """The probability n! / (x! (n - x)!) p^x (1 - p)^(n - x) for n = `total_count` and the probability p of success."""

    @property
    def low(self) -> Tensor | None:
        return torch.where(self.log_failure == -torch.inf, self.total_count, 0.0)

    @property
    def high(self) -> Tensor | None:
        return torch.where(self.log_success == -torch.inf, 0.0, self.total_count)

    def log_density(self, at: Points) -> Tensor:
        n, x = self.total_count, at.x
        within = (x > 0) & (x < n)
        middle = _log_split(torch.where(within, x, 1), torch.where(within, n - x, 1), self.uncertain())
        ends = torch.where(x == 0, log_power(n, self.log_failure), -torch.inf)
        ends = torch.where((x == n) & (n > 0), log_power(n, self.log_success), ends)
        return torch.where(within & ~self.certain(), middle, ends)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        mean = self.total_count * self.success
        return mean, torch.sqrt(mean * self.failure)


class NegativeBinomialDensity(_Trials):
    """The probability (x + r - 1)! / (x! (r - 1)!) p^x (1 - p)^r for r = `total_count`.

    As in torch, x counts the successes, and p is the probability of success.
    """

    @property
    def high(self) -> Tensor | None:
        return last_integer((self.log_success == -torch.inf) | (self.total_count == 0), self.total_count)

    def log_density(self, at: Points) -> Tensor:
        r, x = self.total_count, at.x
        within = (x > 0) & (r > 0)
        a, b = torch.where(within, x, 1), torch.where(within, r, 1)
        middle = _log_split(a, b, self.uncertain()) + torch.log(b) - torch.log(a + b)
        at_zero = torch.where(x == 0, log_power(r, self.log_failure), -torch.inf)
        return torch.where(within & ~self.certain(), middle, at_zero)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        odds = torch.exp(self.log_success - self.log_failure)
        mean = self.total_count * odds
        return mean, torch.sqrt(mean * (1 + odds))

    def upper_tail(self) -> Tail:
        return Tail(0.0, 1.0, -self.log_success)


@dataclass(frozen=True)
class GeometricDensity(IntegerDensity):
    """The probability p (1 - p)^x of x failures before the first success, where p is the probability of success."""

    log_success: Tensor
    log_failure: Tensor

    @property
    def high(self) -> Tensor | None:
        return last_integer(self.log_failure == -torch.inf, self.log_failure)

    def log_density(self, at: Points) -> Tensor:
        return self.log_success + log_power(at.x, self.log_failure)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        mean = torch.exp(self.log_failure - self.log_success)
        return mean, torch.sqrt(mean * (1 + mean))

    def tail_factor(self) -> float:
        return 0.0

    def upper_tail(self) -> Tail:
        return Tail(0.0, 1.0, -self.log_failure)


# _ENTROPY_SERIES are the coefficients in (1 - p) log(1 - p) + p = p^2 (1/2 + p/6 + p^2/12 + ...).
_ENTROPY_SERIES = [1.0 / ((k + 1) * (k + 2)) for k in range(30)]
# _LOG_HUGE is the largest exponent of exp without overflow. If both probabilities of success are below _TINY, KL of
# Geometric distributions is computed from the ratio of the probabilities.
_LOG_HUGE = 709.0
_TINY = 1e-30
_EVEN = (0.5, 0.5, -math.log(2), -math.log(2))  # `Probabilities` of a fair coin


def _one_trial(p: Probabilities, q: Probabilities) -> Tensor:
    """Return KL of the outcomes of one trial with the probabilities `p` and `q`."""
    success, failure = log_ratios(p, q)
    if p.logits is None and q.logits is None:
        of_success = generalized_kl_of(p.success, q.success)
    else:
        of_success = generalized_kl(p.success, q.success, success)
    return of_success + generalized_kl(p.failure, q.failure, failure)


@closed_form(Bernoulli, Bernoulli, native=ElementForm.BERNOULLI_LOGITS)
def kl_bernoulli_bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    """Return p log(p / q) + (1 - p) log((1 - p) / (1 - q)) for the probabilities p and q of 1."""
    return _one_trial(probabilities_of(p), probabilities_of(q))


@closed_form(Binomial, Binomial, native=ElementForm.BINOMIAL_LOGITS)
def kl_binomial_binomial(p: Binomial, q: Binomial) -> Tensor | None:
    """Return `total_count` times KL of one trial, or None if the values of `total_count` differ."""
    counts = upcast(p.total_count), upcast(q.total_count)
    if not all_equal(*counts, "total_count"):
        return None
    return counts[0] * _one_trial(probabilities_of(p), probabilities_of(q))


@closed_form(Geometric, Geometric, native=ElementForm.GEOMETRIC_LOGITS)
def kl_geometric_geometric(p: Geometric, q: Geometric) -> Tensor:
    """Return KL of one trial times the mean number of trials 1 / p, where p is P's probability of success."""
    a, b = probabilities_of(p), probabilities_of(q)
    # For tiny probabilities of success, the odds against success may overflow, and KL depends only on the ratio of the
    # two probabilities. If both P and Q were made from logits, the general formula gives this ratio more exactly.
    tiny = (a.success < _TINY) & (b.success < _TINY) & (a.success > 0) & (b.success > 0)
    tiny = tiny & (a.logits is None or b.logits is None)
    left, right = (
        Probabilities(
            *(torch.where(tiny, y, x) for x, y in zip(d[:4], _EVEN, strict=True)),
            logits=None if d.logits is None else torch.where(tiny, 0, d.logits),
        )
        for d in (a, b)
    )
    success, failure = log_ratios(left, right)
    of_odds = (x.log_failure - left.log_success for x in (left, right))
    many = _trials_until(success, failure, *of_odds)
    few = itakura_saito(torch.where(tiny, b.success, 1), torch.where(tiny, a.success, 1))
    return torch.where(tiny, few, many)


@closed_form(NegativeBinomial, NegativeBinomial)
def kl_negative_binomial_negative_binomial(p: NegativeBinomial, q: NegativeBinomial) -> Tensor | None:
    """Return KL of one trial times the mean number of trials r / (1 - p), for P's probability p and r = `total_count`.

    The result is None if the values of r differ or need derivatives.
    """
    counts = upcast(p.total_count), upcast(q.total_count)
    if any(map(is_differentiated, counts)) or not all_equal(*counts, "total_count"):
        return None
    a, b = probabilities_of(p), probabilities_of(q)
    success, failure = log_ratios(a, b)
    return counts[0] * _trials_until(
        failure, success, a.log_success - a.log_failure, b.log_success - a.log_failure
    )


def _trials_until(last: Tensor, others: Tensor, log_odds: Tensor, log_odds_of_q: Tensor) -> Tensor:
    """Return KL of the number of trials until an outcome occurs: KL of one trial divided by P's probability of it.

    `last` and `others` are log(p / q) of this outcome and of the other one. `log_odds` is the logarithm of P(other
    outcome) / P(this outcome), and `log_odds_of_q` of Q(other outcome) / P(this outcome).
    """
    # The term of the other outcome is proportional to the odds, which may overflow although the term is finite. So the
    # odds are divided by e^beyond, and the term is multiplied by e^beyond.
    beyond = (log_odds - _LOG_HUGE).clamp(0, 100)
    odds, odds_of_q = (torch.exp((x - beyond).clamp(max=_LOG_HUGE)) for x in (log_odds, log_odds_of_q))
    return expm1mx(-last) + generalized_kl(odds, odds_of_q, others) * torch.exp(beyond)


@closed_form(Bernoulli, Poisson, native=ElementForm.BERNOULLI_LOGITS_POISSON)
def kl_bernoulli_poisson(p: Bernoulli, q: Poisson) -> Tensor:
    """Return (p log(p / b) - p + b) + ((1 - p) log(1 - p) + p) for P's probability p of 1 and Q's rate b."""
    probabilities, rate = probabilities_of(p), rate_of(q)
    success, failure = probabilities.success, probabilities.failure
    near = success < 0.3
    small = torch.where(near, success, 0)
    far = times(failure, probabilities.log_failure) + success
    rest = torch.where(near, small * small * polynomial(_ENTROPY_SERIES, small), far)
    return generalized_kl_of(success, rate) + rest


def _of_one_trial(d: Bernoulli) -> Density:
    probabilities = probabilities_of(d)
    return BinomialDensity(torch.ones_like(probabilities.success), *probabilities[:4])


register_family(Family(
    Bernoulli, CHOICE, _of_one_trial, UNIT, is_full=False, tensors="_param",
    scipy=[ScipyForm("bernoulli", Bernoulli)], match=match_of_mean("probs", lambda mean, _: mean),
))  # fmt: skip
register_family(Family(
    Binomial, f"total_count {CHOICE}",
    lambda d: BinomialDensity(upcast(d.total_count), *probabilities_of(d)[:4]), (0.0, "total_count"),
    is_full=False, tensors="total_count _param",
    scipy=[ScipyForm("binom", Binomial), ScipyForm("Binomial", Binomial, reads="n p")],
    match=match_of_mean("probs", lambda mean, start: mean / start["total_count"]),
))  # fmt: skip
register_family(Family(
    Geometric, CHOICE, lambda d: GeometricDensity(*probabilities_of(d)[2:4]), POSITIVE, is_full=False,
    scipy=[ScipyForm("geom", Geometric, first=1.0)],
    match=match_of_mean("probs", lambda mean, _: 1 / (1 + mean)),
))  # fmt: skip
# SciPy's nbinom counts failures, and its p is the probability of success. Torch counts successes, so p becomes 1 - p.
register_family(Family(
    NegativeBinomial, f"total_count {CHOICE}",
    lambda d: NegativeBinomialDensity(upcast(d.total_count), *probabilities_of(d)[:4]), POSITIVE,
    is_full=False,
    scipy=[ScipyForm("nbinom", lambda n, p: NegativeBinomial(n, logits=torch.log1p(-p) - torch.log(p)))],
    match=match_of_mean("probs", lambda mean, start: mean / (start["total_count"] + mean)),
))  # fmt: skip
