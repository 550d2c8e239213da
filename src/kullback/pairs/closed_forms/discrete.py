"""Closed forms of discrete families, as sums of terms p log(p / q) - p + q, none of them negative."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    Multinomial,
    NegativeBinomial,
    OneHotCategorical,
    Poisson,
)

from kullback.common.dtypes import upcast
from kullback.common.special import expm1mx, itakura_saito, log_ratio, polynomial
from kullback.generators import KL
from kullback.generators.divergence import finite
from kullback.kernels import reference
from kullback.kernels.codes import ElementForm, RowForm
from kullback.kernels.reference import RowDivergence
from kullback.pairs.numerics.bernoulli import (
    Probabilities,
    generalized_kl,
    generalized_kl_of,
    log_ratios,
    probabilities_of,
    rate_of,
)
from kullback.pairs.numerics.parameters import all_equal, given_logits, is_differentiated
from kullback.pairs.registry import closed_form

__all__: list[str] = []

# (1 - p) log(1 - p) + p = p^2 (1/2 + p/6 + p^2/12 + ...)
_ENTROPY_SERIES = [1.0 / ((k + 1) * (k + 2)) for k in range(30)]
_LOG_HUGE = 709.0
_TINY = 1e-30
_EVEN = (0.5, 0.5, -math.log(2), -math.log(2))  # `Probabilities` of a fair coin

Classes = Categorical | OneHotCategorical | Multinomial


def _one_trial(p: Probabilities, q: Probabilities) -> Tensor:
    """Return KL of one trial."""
    success, failure = log_ratios(p, q)
    if p.logits is None and q.logits is None:
        of_success = generalized_kl_of(p.success, q.success, _log_ratio)
    else:
        of_success = generalized_kl(p.success, q.success, success)
    return of_success + generalized_kl(p.failure, q.failure, failure)


@closed_form(Bernoulli, Bernoulli, native=ElementForm.BERNOULLI_LOGITS)
def kl_bernoulli_bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    """Return p log(p / q) + (1 - p) log((1 - p) / (1 - q))."""
    return _one_trial(probabilities_of(p), probabilities_of(q))


@closed_form(Binomial, Binomial, native=ElementForm.BINOMIAL_LOGITS)
def kl_binomial_binomial(p: Binomial, q: Binomial) -> Tensor | None:
    """Return n times KL of one trial if the counts are equal; otherwise there is no closed form."""
    counts = upcast(p.total_count), upcast(q.total_count)
    if not all_equal(*counts, "total_count"):
        return None
    return counts[0] * _one_trial(probabilities_of(p), probabilities_of(q))


@closed_form(Geometric, Geometric, native=ElementForm.GEOMETRIC_LOGITS)
def kl_geometric_geometric(p: Geometric, q: Geometric) -> Tensor:
    """Return KL of one trial times the mean number of trials, 1 / p."""
    a, b = probabilities_of(p), probabilities_of(q)
    # For tiny probabilities, whose odds may overflow, the other outcome is negligible. Logits give a more exact ratio.
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
    """Return KL of one trial times the mean number of trials, r / (1 - p), for equal and constant r."""
    counts = upcast(p.total_count), upcast(q.total_count)
    if any(map(is_differentiated, counts)) or not all_equal(*counts, "total_count"):
        return None
    a, b = probabilities_of(p), probabilities_of(q)
    success, failure = log_ratios(a, b)
    return counts[0] * _trials_until(
        failure, success, a.log_success - a.log_failure, b.log_success - a.log_failure
    )


def _trials_until(last: Tensor, others: Tensor, log_odds: Tensor, log_odds_of_q: Tensor) -> Tensor:
    """Return KL of the number of trials until an outcome: KL of one trial over P's probability of this outcome.

    Arguments:
        last: log(p / q) of the last outcome.
        others: log(p / q) of the other outcome.
        log_odds: the logarithm of P's probability of the other outcome over P's probability of the last outcome.
        log_odds_of_q: the logarithm of Q's probability of the other outcome over P's probability of the last outcome.
    """
    # The second term is proportional to the odds, which may overflow where it does not.
    beyond = (log_odds - _LOG_HUGE).clamp(0, 100)
    odds, odds_of_q = (torch.exp((x - beyond).clamp(max=_LOG_HUGE)) for x in (log_odds, log_odds_of_q))
    return expm1mx(-last) + generalized_kl(odds, odds_of_q, others) * torch.exp(beyond)


@closed_form(Poisson, Poisson, native=ElementForm.POISSON)
def kl_poisson_poisson(p: Poisson, q: Poisson) -> Tensor:
    """Return a log(a / b) - a + b for the rates a and b."""
    a, b = rate_of(p), rate_of(q)
    return generalized_kl_of(a, b, _log_ratio)


@closed_form(Bernoulli, Poisson, native=ElementForm.BERNOULLI_LOGITS_POISSON)
def kl_bernoulli_poisson(p: Bernoulli, q: Poisson) -> Tensor:
    """Return p log(p / b) - p + b and (1 - p) log(1 - p) + p, for the rate b."""
    probabilities, rate = probabilities_of(p), rate_of(q)
    success, failure = probabilities.success, probabilities.failure
    near = success < 0.3
    small = torch.where(near, success, 0)
    far = (
        torch.where(failure == 0, 0, failure) * torch.where(failure == 0, 0, probabilities.log_failure)
        + success
    )
    rest = torch.where(near, small * small * polynomial(_ENTROPY_SERIES, small), far)
    return generalized_kl_of(success, rate, _log_ratio) + rest


def _log_ratio(a: Tensor, b: Tensor) -> Tensor:
    """Return log(a / b); 0 where a or b is 0."""
    empty = (a == 0) | (b == 0)
    return log_ratio(torch.where(empty, 1, a), torch.where(empty, 1, b))


@closed_form(Categorical, Categorical, native=RowForm.CATEGORICAL_LOGITS)
@closed_form(OneHotCategorical, OneHotCategorical, native=RowForm.CATEGORICAL_LOGITS)
def kl_categorical_categorical(p: Classes, q: Classes) -> Tensor:
    """Return the sum of p log(p / q) over the classes."""
    return _rows(p, q)


@closed_form(Multinomial, Multinomial)
def kl_multinomial_multinomial(p: Multinomial, q: Multinomial) -> Tensor:
    """Return n times KL of one draw; +inf for different n, because no outcome is then common."""
    rows = _rows(p, q)
    if p.total_count != q.total_count:
        return torch.where(rows >= 0, torch.inf, rows)
    return p.total_count * (rows if p.total_count else finite(rows))


def _rows(p: Classes, q: Classes) -> Tensor:
    """Return KL of one draw, from the logits or probabilities that the user passed."""
    (left, left_in_logs), (right, right_in_logs) = _weights(p), _weights(q)
    left, right = torch.broadcast_tensors(left, right)
    shape, classes, rows = (
        left.shape[:-1],
        left.shape[-1],
        RowDivergence(KL(), 1.0, left.dtype, None, left_in_logs, right_in_logs),
    )
    left, right = left.reshape(shape.numel(), classes), right.reshape(shape.numel(), classes)
    return reference.row_divergence(rows, left, right).reshape(shape)


def _weights(d: Classes) -> tuple[Tensor, bool]:
    classes = cast(Categorical, vars(d).get("_categorical", d))
    in_logs = given_logits(classes)
    return upcast(classes.logits if in_logs else classes.probs), in_logs
