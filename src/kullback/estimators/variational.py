r"""Lower bounds on KL from a critic T: a function of a point, such as a network trained to maximize the bound.

.. math::
    \mathrm{KL}(P \| Q) = \max_T \; E_P[T] - \log E_Q[e^T] = \max_T \; E_P[T] - E_Q[e^T] + 1

The first bound is by Donsker and Varadhan, the second by Nguyen, Wainwright and Jordan. T = log(p / q) attains both
maxima, and T = log(p / q) + constant attains the first. A critic is trained by maximizing `variational_bound`.
`variational_estimate` evaluates a trained critic on new draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, OneOf
from kullback.common.extra_arguments import by_name
from kullback.common.inference import two_sided_quantile
from kullback.common.inputs import can_inspect, first_of
from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.estimators.draws import Draws, checked, effective_number, shares_of, variance_of_sum
from kullback.estimators.evidence import SIDE_Q, Evidence, estimate_of, interval_from
from kullback.estimators.registry import INTERVAL
from kullback.results.estimate import Estimate
from kullback.samples import Samples

Critic = Callable[[Tensor], Tensor]
Bound = Literal["donsker_varadhan", "nwj"]

# `tests/estimators/test_variational.py` checks the constants of this file: the lower limit must be below KL in 95 % of
# the samples.

# Below this effective number of Q's draws, there is no lower limit.
_FEWEST_EFFECTIVE = 30.0
# For the lower limit, e^T is clipped at (mean of e^T) m^`_CLIP`, where m is the effective number of Q's draws.
_CLIP = 0.5


@by_name()
def variational_bound(p: Samples, q: Samples, critic: Critic, *, bound: Bound = "donsker_varadhan") -> Tensor:
    r"""Return a lower bound on KL(P || Q) at these draws, for training a critic.

    .. math::
        \text{donsker\_varadhan:}\quad \frac1n \sum_i T(x_i) - \log \frac1m \sum_j e^{T(y_j)}, \qquad
        \text{nwj:}\quad \frac1n \sum_i T(x_i) - \frac1m \sum_j e^{T(y_j)} + 1

    If the critic does not depend on the draws, the expectation of nwj is at most KL. donsker_varadhan is at least nwj,
    and at most KL in the limit of large m. For finite m, the logarithm of a sample mean increases the expectation of
    donsker_varadhan by about :math:`\mathrm{Var}_Q(e^T) / (2 m E_Q[e^T]^2)`. If the critic was trained on the same
    draws, neither value is a bound; use `variational_estimate` with other draws. The means use the weights of the
    `Samples`, if any.

    Draws, or their clusters, must be independent. Unlike `kl_estimate`, this function does not test the draws for
    serial dependence.

    Arguments:
        p: draws of P, shape (n, d).
        q: draws of Q, shape (m, d).
        critic: the function T from a tensor of shape (n, d) to a tensor of shape (n,) or (n, 1), such as a
            ``torch.nn.Module``.
        bound: ``"donsker_varadhan"`` or ``"nwj"``.

    Returns:
        the bound in nats, a scalar tensor in the dtype of the critic's values; float32 for dtypes of 16 bits.

    Raises:
        ArgumentValueError: `bound` is unknown, `p` and `q` have different numbers of components, or the critic returns
            values of another shape, NaN or +inf.

    Gradient: flows to the critic's parameters and to the draws. The gradient of nwj from a minibatch is unbiased. The
        gradient of donsker_varadhan is biased, because its softmax weights :math:`e^{T(y_j)} / \sum_k e^{T(y_k)}`
        divide by a mean over the minibatch. So training with small batches does not converge to the best critic. Use
        large batches, or nwj. If the bound is finite, its gradient is finite.

    Example:
        >>> import torch
        >>> from kullback import Samples
        >>> x, y = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0])
        >>> variational_bound(Samples(x), Samples(y), lambda z: -z)
        tensor(0.0662)
        >>> variational_bound(Samples(x), Samples(y), lambda z: -z, bound="nwj")
        tensor(-0.0677)

    References:
        Asymptotic evaluation of certain Markov process expectations for large time, IV (Donsker and Varadhan, 1983)
        Estimating divergence functionals and the likelihood ratio by convex risk minimization
        (Nguyen, Wainwright and Jordan, 2010)
        Mutual Information Neural Estimation (Belghazi et al., 2018)
    """
    call = "variational_bound"
    _check(call, p, q, critic, bound)
    at_p, at_q = _values(call, critic, p.tensor), _values(call, critic, q.tensor)
    mean_p = _mean(shares_of(p, at_p), at_p)
    log_mean_q = torch.logsumexp(at_q + shares_of(q, at_q).log(), 0)
    if bound == "donsker_varadhan":
        return mean_p - log_mean_q
    return mean_p - torch.expm1(log_mean_q)


@by_name()
def variational_estimate(
    p: Samples,
    q: Samples,
    critic: Critic,
    *,
    bound: Bound = "donsker_varadhan",
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""Estimate a trained critic's lower bound on KL(P || Q) from draws that were not used in training.

    .. math:: s^2 = \frac{\mathrm{Var}_P(T)}{n} + \frac{\mathrm{Var}_Q(e^{T})}{m \, (E_Q[e^T])^2}

    Here :math:`s^2` is the variance of the estimate for donsker_varadhan. For nwj, the second term is
    :math:`\mathrm{Var}_Q(e^T) / m`. The interval is one-sided, because the draws do not determine the difference
    between KL and the critic's bound. The lower limit comes from Donsker and Varadhan's bound for the clipped critic
    :math:`\min(T, \log E_Q[e^T] + \tfrac12 \log m)`. This bound is valid too, and a few draws cannot dominate the mean
    of the exponential of the clipped critic.

    Draws, or their clusters, must be independent. Unlike `kl_estimate`, this function does not test the draws for
    serial dependence.

    Arguments:
        p: new draws of P, shape (n, d), with their weights and clusters, if any.
        q: new draws of Q, shape (m, d).
        critic: the function T, as for `variational_bound`. T is called without gradients. If T is a module, call its
            method ``eval()`` first.
        bound: ``"donsker_varadhan"`` or ``"nwj"``.
        confidence: the probability that the lower limit is below KL.
        generator: not used, because the estimate is not random.

    Returns:
        the bound, its standard error and the interval (lower limit, infinity). The interval is None if Q has fewer than
        30 effective draws.

    Raises:
        ArgumentValueError: P or Q has fewer than two draws, or `variational_bound` would raise this error.

    Gradient: none: use `variational_bound` for training.

    Example:
        >>> import torch
        >>> from kullback import Samples
        >>> draws = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(5000, generator=draws), torch.randn(5000, generator=draws) + 1
        >>> estimate = variational_estimate(Samples(x), Samples(y), lambda z: 0.5 - z)  # the best critic; KL is 0.5
        >>> bool(abs(estimate.value - 0.5) < 3 * estimate.standard_error), float(estimate.interval[1])
        (True, inf)

    References:
        On Variational Bounds of Mutual Information (Poole et al., 2019)
        Formal Limitations on the Measurement of Mutual Information (McAllester and Stratos, 2020)
    """
    call = "variational_estimate"
    _check(call, p, q, critic, bound)
    INTERVAL.check(call, confidence=confidence, generator=generator)
    first, second = checked(call, p, q, finite=False)
    for name, side in (("p", first), ("q", second)):
        if side.groups < 2:
            raise invalid_value(
                call,
                name,
                wanted="at least two draws, or two clusters, for a standard error",
                got=safe_repr(p if name == "p" else q),
                instead="variational_bound(p, q, critic), which has no standard error",
            )
    with torch.no_grad():
        at_p, at_q = (_values(call, critic, side.tensor).double() for side in (first, second))
    shares_p, shares_q = shares_of(first, at_p), shares_of(second, at_q)
    log_mean_q = torch.logsumexp(at_q + shares_q.log(), 0)
    scale = 1.0 if bound == "donsker_varadhan" else log_mean_q.exp()
    relative = (at_q - log_mean_q).exp()
    mean_p = _mean(shares_p, at_p)
    value = mean_p - (log_mean_q if bound == "donsker_varadhan" else torch.expm1(log_mean_q))
    variance = variance_of_sum(torch.where(shares_p > 0, shares_p * (at_p - mean_p), 0), first.cluster)
    error = (variance + scale**2 * variance_of_sum(shares_q * (relative - 1), second.cluster)).sqrt()
    notes: list[str] = ["This is a lower bound, as tight as the critic is good: KL may be much larger."]
    effective = effective_number(shares_q * relative, len(second))
    low = _lower_end(first, second, at_p, at_q, confidence)
    ends = None if low is None or not bool(error.isfinite()) else (low, math.inf)
    if ends is None:
        notes.append(
            f"There is no interval: it needs {_FEWEST_EFFECTIVE:g} effective draws of {SIDE_Q}, and two clusters on "
            "each side."
        )
    elif effective < _FEWEST_EFFECTIVE:
        notes.append(
            f"The mean of e^T rests on {effective:.1f} effective draws of {SIDE_Q}, too few for the value and its "
            f"standard error. Bounds above about log m = {math.log(len(second)):.3g} need more draws."
        )
    evidence = Evidence(
        float(value),
        error=error,
        ends=ends,
        notes=notes,
        least=-math.inf,
        without_interval=ends is None,
        method=bound,
        n=(len(first), len(second)),
    )
    return estimate_of(interval_from(evidence, confidence), value.device)


def _lower_end(p: Draws, q: Draws, at_p: Tensor, at_q: Tensor, confidence: float) -> Tensor | None:
    """Return a lower confidence limit of KL, from the bound for a clipped critic, or None for too few draws of Q.

    `at_p` and `at_q` are the critic's values at the draws of P and of Q.

    The bound is valid for every critic, so also for the clipped critic. The exponential of the clipped critic is
    bounded, so its variance can be estimated from the draws. Each of the two means in the bound gets half of the error
    probability. The limit of Q's mean is normal, with a correction for skewness (Johnson, Modified t Tests and
    Confidence Intervals for Asymmetrical Populations, 1978).
    """
    shares_p, shares_q = shares_of(p, at_p), shares_of(q, at_q)
    number = effective_number(shares_q, len(q)) * q.groups / len(q)
    if number < _FEWEST_EFFECTIVE:
        return None
    top = torch.logsumexp(at_q + shares_q.log(), 0) + _CLIP * math.log(number)
    clipped_p, clipped_q = at_p.clamp(max=float(top)), (at_q - top).clamp(max=0).exp()
    # The two-sided quantile leaves half of the error probability for each of the two one-sided limits.
    quantile = two_sided_quantile(confidence)
    mean_p, error_p, _ = _moments(p, shares_p, clipped_p)
    mean_q, error_q, skewness = _moments(q, shares_q, clipped_q)
    upper_q = mean_q + error_q * (quantile + skewness * (1 + 2 * quantile**2) / 6)
    reach_p = two_sided_quantile(confidence, p.groups) * error_p
    return (mean_p - reach_p - upper_q.log() - top).clamp(min=0)


def _moments(side: Draws, shares: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean of the values with the weights `shares`, and the standard error and skewness of this mean."""
    mean = _mean(shares, values)
    terms = torch.where(shares > 0, shares * (values - mean), 0)
    if side.cluster is not None:
        cluster = torch.from_numpy(side.cluster).to(terms.device)
        terms = terms.new_zeros(int(cluster.max()) + 1).index_add(0, cluster, terms)
    error = variance_of_sum(terms).sqrt()
    return mean, error, (terms**3).sum() / error.clamp(min=torch.finfo(error.dtype).tiny) ** 3


_ARGUMENTS = Arguments(
    "variational_bound", "variational_estimate", bound=OneOf(get_args(Bound), example="donsker_varadhan")
)


def _check(call: str, p: Samples, q: Samples, critic: object, bound: str) -> None:
    checked(call, p, q, finite=False)
    if not callable(critic):
        raise invalid_type(
            call,
            "critic",
            wanted="a function from draws to numbers",
            got=safe_repr(critic),
            instead="critic=torch.nn.Linear(d, 1) for draws of d components",
        )
    for name, side in (("p", p), ("q", q)):
        if side.labels is not None:
            raise invalid_type(
                call,
                name,
                wanted="draws that are numbers, for the critic",
                got=f"text such as {safe_repr(side.labels[0])}",
                instead="plugin(p, q), or Samples of numbers that mean the same in p and q",
            )
    _ARGUMENTS.check(call, bound=bound)


def _values(call: str, critic: Critic, draws: Tensor) -> Tensor:
    """Return the critic's value at each draw, float32 or wider, shape (n,)."""
    values = critic(draws)
    if not isinstance(values, Tensor):
        raise invalid_type(
            call,
            "critic",
            wanted="a function that returns a tensor",
            got=f"one that returns {type(values).__name__}",
            instead="critic=torch.nn.Linear(d, 1)",
        )
    if values.shape not in ((len(draws),), (len(draws), 1)):
        raise invalid_value(
            call,
            "critic",
            wanted=f"one value for each draw, shape ({len(draws)},) or ({len(draws)}, 1)",
            got=f"shape {tuple(values.shape)} at draws of shape {tuple(draws.shape)}",
            instead="critic=lambda x: network(x).squeeze(-1)",
        )
    values = values.reshape(-1)
    values = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
    bad = values.isnan() | (values == math.inf)
    if can_inspect(values) and bool(bad.any()):
        raise invalid_value(
            call,
            "critic",
            wanted="numbers below +inf",
            got=f"NaN or +inf ({first_of(bad)})",
            instead="a smaller learning rate, or torch.nn.utils.clip_grad_norm_ in training",
        )
    return values


def _mean(shares: Tensor, values: Tensor) -> Tensor:
    """Return the mean of the values with the weights `shares` of sum 1; values of weight 0 may be infinite."""
    return (shares * torch.where(shares > 0, values, 0)).sum()
