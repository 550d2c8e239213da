"""The two outcomes of a trial, read from probs or logits as they were given, and how two such trials differ."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Poisson
from torch.nn.functional import logsigmoid

from kullback.pairs.numerics.parameters import given_logits, wide
from kullback.pairs.numerics.special import excess

__all__ = ["Chances", "chances_of", "held_where", "log_ratios", "mass_excess", "rate_of", "safe_log"]

# Two logits closer than this give their log-ratios from the difference, which keeps its digits.
_CLOSE = 1.0
_NEAR = 0.3


def safe_log(x: Tensor) -> Tensor:
    """Return log x with derivative 0, not infinity, at x = 0."""
    empty = x == 0
    return torch.where(empty, -torch.inf, torch.log(torch.where(empty, 1, x)))


def held_where(edge: Tensor, x: Tensor) -> Tensor:
    """Return x without derivative at an edge of its range, where that of KL is infinite or P and Q are the same."""
    return torch.where(edge, x.detach(), x)


class Chances(NamedTuple):
    """The probabilities of success and failure, their logarithms, and the logit if that is what was given."""

    success: Tensor
    failure: Tensor
    log_success: Tensor
    log_failure: Tensor
    logits: Tensor | None


def chances_of(distribution: Any) -> Chances:
    """Read the chances of a distribution that has probs and logits."""
    if given_logits(distribution):
        logits = wide(distribution.logits)
        success, failure = logsigmoid(logits), logsigmoid(-logits)
        # The derivative of torch.sigmoid is 0 where it rounds to 1, that of the logarithm is not.
        return Chances(torch.exp(success), torch.exp(failure), success, failure, logits)
    success = wide(distribution.probs)
    success = held_where((success == 0) | (success == 1), success)
    certain = success == 1
    log_failure = torch.where(certain, -torch.inf, torch.log1p(-torch.where(certain, 0, success)))
    return Chances(success, 1 - success, safe_log(success), log_failure, None)


def rate_of(distribution: Poisson) -> Tensor:
    """Read the rate of a Poisson distribution."""
    rate = wide(distribution.rate)
    return held_where(rate == 0, rate)


def log_ratios(p: Chances, q: Chances) -> tuple[Tensor, Tensor]:
    """Return log p / q of success and of failure; 0 where one of the two has no mass.

    Nearly equal chances keep their digits: with d the difference of the logits, the ratio of the successes is
    1 / (1 + (1 - q) (e^-d - 1)); with probabilities p and q it is 1 + (p - q) / q.
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


def mass_excess(p: Tensor, q: Tensor, log_ratio: Tensor) -> Tensor:
    """Return p log(p / q) - p + q, which is not negative; `log_ratio` is log(p / q), or 0 where p is 0."""
    near = (log_ratio.abs() < _NEAR) & (p > 0)
    close = p * excess(-torch.where(near, log_ratio, 0))
    return torch.where(near, close, q - p + p * log_ratio)
