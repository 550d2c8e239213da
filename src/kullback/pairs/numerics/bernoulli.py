"""The probabilities of success and failure, from the probs or logits that the user passed, and their log-ratios."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Poisson
from torch.nn.functional import logsigmoid

from kullback.common.dtypes import upcast
from kullback.common.special import expm1mx, log_ratio, safe_log
from kullback.pairs.numerics.parameters import given_logits

# If two logits differ by less than _CLOSE, the log-ratios are computed from the difference, without cancellation.
_CLOSE = 1.0
# If |log(p / q)| is below _NEAR, p log(p / q) - p + q is computed as p times a function of the log-ratio. Otherwise the
# sum is at least 4 % of its summands, so at most two digits cancel.
_NEAR = 0.3
# Numbers below _LEAST are multiplied by _UNIT, because their products with small factors would be subnormal floats.
_LEAST, _UNIT = 2.0**-960, 2.0**900


def stop_gradient_where(edge: Tensor, x: Tensor) -> Tensor:
    """Return x, with derivative 0 where the mask `edge` is true: there KL may have an infinite derivative."""
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
    """Return p log(p / q) - p + q, the term of KL of unnormalized measures; `log_ratio` is 0 where p is 0."""
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
    value = generalized_kl(p, q, _log_ratio(p, q))
    fixed = value.detach()
    return torch.where(tiny, fixed / _UNIT + (value - fixed), value)


def _log_ratio(a: Tensor, b: Tensor) -> Tensor:
    """Return log(a / b); 0 where a or b is 0."""
    empty = (a == 0) | (b == 0)
    return log_ratio(torch.where(empty, 1, a), torch.where(empty, 1, b))
