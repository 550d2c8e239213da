r"""A test whether densities are normalized: for normalized P and Q, the mean of q / p over draws of P is at most 1.

The mean E_P[q / p] is Q's mass on the support of P. If this mass is at most 1, the product of 1 + b (q / p - 1) over
independent draws has a mean of at most 1, for each b in [0, 1]. By Markov's inequality, the product exceeds 1 / a
with a probability of at most a, for any number of draws and any tails. A mean of q / p below 1 proves nothing, because
draws of P may rarely reach the mass of Q.

Estimating Means of Bounded Random Variables by Betting (Waudby-Smith and Ramdas, 2023)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from kullback.errors import ArgumentValueError, invalid_value
from kullback.pairs.registry import names_of

# _LEVEL bounds the probability of a false alarm, that is, an error for normalized densities.
_LEVEL = 1e-6
# _BETS are the values of b, called bets. A small bet detects a small excess over 1 from many draws, a large bet a large
# excess from few draws. Each bet gives a valid test, and so does the average of the products for all bets.
_BETS = (0.003, 0.01, 0.03, 0.1, 0.3, 0.9)
# The mean may exceed 1 by _ALLOWED, because densities may be rounded to float32, as in `integration/mass.py`.
_ALLOWED = 3e-5


def check_normalized(
    call: str, p: Distribution, q: Distribution, log_ratio: Tensor, rounding: Tensor | float = 0.0
) -> None:
    """Raise if draws of P prove that a density is not normalized, or is not the density of the draws.

    Arguments:
        call: the name of the function that the user called.
        p: P, the distribution of the draws.
        q: Q.
        log_ratio: log q - log p at the draws, shape (draws, ...).
        rounding: a bound on the rounding error of `log_ratio`.
    """
    excess = torch.expm1(log_ratio.detach().double()).clamp(max=1e100) - _ALLOWED - rounding
    logs = torch.stack([torch.log1p(bet * excess.clamp(min=-1)).sum(0) for bet in _BETS])
    evidence = logs.logsumexp(0) - math.log(len(_BETS))
    refuted = evidence > math.log(max(evidence.numel(), 1) / _LEVEL)
    if bool(refuted.any()):
        means = torch.exp(log_ratio.detach().double().logsumexp(0) - math.log(len(log_ratio)))
        raise not_normalized(call, p, q, float(means[refuted].flatten()[0]))


def not_normalized(call: str, p: Distribution, q: Distribution, mean: float) -> ArgumentValueError:
    """Return the error for a pair of distributions whose mean of q / p over draws of P is above 1."""
    return invalid_value(
        call,
        "p, q",
        wanted="densities that integrate to 1, and draws that follow them, so that q / p has a mean of at most 1 "
        "over draws of P",
        got=f"a mean of {mean:.4g} for {names_of(type(p), type(q))}",
        instead="log_prob minus the logarithm of the mass in the class that is not normalized, or without log_prob "
        f"{call}(Samples(p.sample((n,))), Samples(q.sample((n,))))",
    )
