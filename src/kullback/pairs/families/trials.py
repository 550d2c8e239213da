"""The Poisson family, and the Bernoulli, Binomial, Geometric and NegativeBinomial families, which count outcomes.

For repeated trials, KL is a multiple of the sum of p log(p / q) - p + q over the two outcomes of a single trial, whose
probabilities come from the probs or logits that the user passed. No term is negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Binomial, Geometric, NegativeBinomial, Poisson
from torch.nn.functional import logsigmoid

from kullback.common.dtypes import upcast
from kullback.common.special import (
    HALF_LOG_2PI,
    LARGEST_EXPONENT,
    expm1mx,
    itakura_saito,
    log_ratio,
    polynomial,
    safe_log,
)
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import Density, Points, Tail
from kullback.pairs.densities.integer import IntegerDensity, deviance, last_integer, log_power, stirling_error
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import CHOICE, POSITIVE, UNIT, Family, ScipyForm, match_of_mean
from kullback.pairs.numerics.parameters import all_equal, given_logits, is_differentiated
from kullback.pairs.registry import closed_form
from kullback.pairs.renyi import mixed, renyi_form

# If two logits differ by less than _CLOSE, the log-ratios are computed from the difference, without cancellation.
_CLOSE = 1.0
# If |log(p / q)| is below _NEAR, p log(p / q) - p + q is computed as p times a function of the log-ratio. Otherwise the
# sum is at least 4 % of its summands, so at most two digits cancel.
_NEAR = 0.3
# Numbers below _LEAST are multiplied by _UNIT, because their products with small factors would be subnormal floats.
_LEAST, _UNIT = 2.0**-960, 2.0**900


def stop_gradient_where(edge: Tensor, x: Tensor) -> Tensor:
    """Return x, with derivative 0 where the mask `edge` is true.

    The mask selects parameters at an end of their range, where KL may have an infinite derivative.
    """
    return torch.where(edge, x.detach(), x)


class Probabilities(NamedTuple):
    """The probabilities of success and failure, their logarithms, and the logits if the user passed logits."""

    success: Tensor
    failure: Tensor
    log_success: Tensor
    log_failure: Tensor
    logits: Tensor | None


def probabilities_of(distribution: Any) -> Probabilities:
    """Return the probabilities of a distribution with probs and logits, such as a Bernoulli or Geometric."""
    if given_logits(distribution):
        logits = upcast(distribution.logits)
        success, failure = logsigmoid(logits), logsigmoid(-logits)
        # Where torch.sigmoid rounds to 1, its derivative is 0, but the derivative of exp(logsigmoid) is not 0.
        return Probabilities(torch.exp(success), torch.exp(failure), success, failure, logits)
    success = upcast(distribution.probs)
    success = stop_gradient_where((success == 0) | (success == 1), success)
    certain = success == 1
    log_failure = torch.where(certain, -torch.inf, torch.log1p(-torch.where(certain, 0, success)))
    return Probabilities(success, 1 - success, safe_log(success), log_failure, None)


def rate_of(distribution: Poisson) -> Tensor:
    """Return the rate of a Poisson distribution; a rate of 0 has derivative 0."""
    rate = upcast(distribution.rate)
    return stop_gradient_where(rate == 0, rate)


def log_ratios(p: Probabilities, q: Probabilities) -> tuple[Tensor, Tensor]:
    """Return log(p / q) for the probabilities of success, and log(p / q) for the probabilities of failure.

    Where p or q is 0, the log-ratio is 0.

    The log-ratios of nearly equal probabilities have full precision. If the logits differ by d, the ratio p / q of the
    probabilities of success is computed as 1 / (1 + (1 - q) (e^-d - 1)). If the user passed probabilities, p / q is
    computed as 1 + (p - q) / q.
    """
    success = _difference(p.log_success, q.log_success)
    failure = _difference(p.log_failure, q.log_failure)
    if p.logits is not None and q.logits is not None:
        both = p.logits.isfinite() & q.logits.isfinite()
        d = torch.where(both, p.logits, 0) - torch.where(both, q.logits, 0)
        near = both & (d.abs() < _CLOSE)
        d = torch.where(near, d, 0)
        success = torch.where(near, -torch.log1p(q.failure * torch.expm1(-d)), success)
        failure = torch.where(near, -torch.log1p(q.success * torch.expm1(d)), failure)
    elif p.logits is None and q.logits is None:
        d = p.success - q.success
        success = _log_one_plus_quotient(d, q.success, success)
        failure = _log_one_plus_quotient(-d, q.failure, failure)
    return success, failure


def _difference(log_p: Tensor, log_q: Tensor) -> Tensor:
    empty = (log_p == -torch.inf) | (log_q == -torch.inf)
    return torch.where(empty, 0, log_p) - torch.where(empty, 0, log_q)


def _log_one_plus_quotient(d: Tensor, base: Tensor, far: Tensor) -> Tensor:
    near = (d.abs() <= base / 2) & (base > 0)
    return torch.where(near, torch.log1p(torch.where(near, d, 0) / torch.where(near, base, 1)), far)


def generalized_kl(p: Tensor, q: Tensor, log_ratio: Tensor) -> Tensor:
    """Return p log(p / q) - p + q, the non-negative term of the generalized KL divergence of unnormalized measures.

    `log_ratio` is log(p / q), or 0 where p is 0.
    """
    near = (log_ratio.abs() < _NEAR) & (p > 0)
    close = p * expm1mx(-torch.where(near, log_ratio, 0))
    return torch.where(near, close, q - p + p * log_ratio)


def generalized_kl_of(p: Tensor, q: Tensor) -> Tensor:
    """Return `generalized_kl` of rates or probabilities p and q.

    If p and q are multiplied by a factor, the result is multiplied by the same factor, and its derivatives do not
    change. So p and q below _LEAST are multiplied by _UNIT, and the result is divided by _UNIT.
    """
    tiny = (p < _LEAST) & (q < _LEAST)
    p, q = (torch.where(tiny, x.detach() * _UNIT + (x - x.detach()), x) for x in (p, q))
    empty = (p == 0) | (q == 0)
    value = generalized_kl(p, q, log_ratio(torch.where(empty, 1, p), torch.where(empty, 1, q)))
    fixed = value.detach()
    return torch.where(tiny, fixed / _UNIT + (value - fixed), value)


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
# If both probabilities of success are below _TINY, KL of Geometric distributions is computed from their ratio.
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
    """Return KL of the number of trials until an outcome occurs, called the last outcome.

    The result is KL of one trial divided by P's probability of the last outcome. `last` and `others` are log(p / q) of
    the last and of the other outcome. `log_odds` and `log_odds_of_q` are the logarithms of P(other) / P(last) and of
    Q(other) / P(last).
    """
    # The term of the other outcome is proportional to the odds, which may overflow although the term is finite. So the
    # odds are divided by e^beyond, and the term is multiplied by e^beyond.
    beyond = (log_odds - LARGEST_EXPONENT).clamp(0, 100)
    odds, odds_of_q = (torch.exp((x - beyond).clamp(max=LARGEST_EXPONENT)) for x in (log_odds, log_odds_of_q))
    return expm1mx(-last) + generalized_kl(odds, odds_of_q, others) * torch.exp(beyond)


@closed_form(Bernoulli, Poisson, native=ElementForm.BERNOULLI_LOGITS_POISSON)
def kl_bernoulli_poisson(p: Bernoulli, q: Poisson) -> Tensor:
    """Return (p log(p / b) - p + b) + ((1 - p) log(1 - p) + p) for P's probability p of 1 and Q's rate b."""
    probabilities, rate = probabilities_of(p), rate_of(q)
    success, failure = probabilities.success, probabilities.failure
    near = success < 0.3
    small = torch.where(near, success, 0)
    far = (
        torch.where(failure == 0, 0, failure) * torch.where(failure == 0, 0, probabilities.log_failure)
        + success
    )
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
