r"""Lower bounds on KL from a critic: any function T of a point, such as a network that is trained to raise them.

.. math::
    \mathrm{KL}(P \| Q) = \max_T \; E_P[T] - \log E_Q[e^T] = \max_T \; E_P[T] - E_Q[e^T] + 1

The first is Donsker and Varadhan's bound, the second that of Nguyen, Wainwright and Jordan; both are reached by
T = log p / q, the first by that plus any constant. `variational_bound` is what training raises; `variational_estimate`
judges a trained critic on draws that it has not seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.estimators.draws import (
    clusters_in,
    effective_number,
    few_clusters,
    shares_of,
    variance_of_sum,
    with_weight,
)
from kullback.estimators.normal_interval import standard_normal_quantile
from kullback.estimators.sample_checks import check_confidence, check_samples
from kullback.representations import can_inspect, first_of
from kullback.results.estimate import Estimate
from kullback.samples import Samples

__all__ = ["Bound", "Critic", "variational_bound", "variational_estimate"]

Critic = Callable[[Tensor], Tensor]
Bound = Literal["donsker_varadhan", "nwj"]

# Below this effective number of draws of Q no lower end is given.
_FEWEST_EFFECTIVE = 30.0
# The critic's exponential is clipped, for the lower end, at this power of the number of draws times its mean.
_CLIP = 0.5


def variational_bound(p: Samples, q: Samples, critic: Critic, *, bound: Bound = "donsker_varadhan") -> Tensor:
    r"""Return a lower bound on KL(P || Q) at these draws, to be raised by training the critic.

    .. math::
        \text{donsker\_varadhan:}\quad \frac1n \sum_i T(x_i) - \log \frac1m \sum_j e^{T(y_j)}, \qquad
        \text{nwj:}\quad \frac1n \sum_i T(x_i) - \frac1m \sum_j e^{T(y_j)} + 1

    For a critic that does not depend on the draws, nwj is below KL on average over draws. donsker_varadhan is at least
    nwj, and below KL as m grows; for finite m, the logarithm of a mean raises it by about
    :math:`\mathrm{Var}_Q(e^T) / (2 m E_Q[e^T]^2)`. For a critic trained on these very draws neither is a bound: hold
    draws out and use `variational_estimate`. Mean weights are those of the `Samples`, if any.

    Draws, or their clusters, are taken to be independent: unlike `kl_estimate`, this does not examine their order.

    Arguments:
        p: draws of P, shape (n, d).
        q: draws of Q, shape (m, d).
        critic: T, from a tensor of shape (n, d) to one of shape (n,) or (n, 1), such as a ``torch.nn.Module``.
        bound: ``"donsker_varadhan"`` or ``"nwj"``.

    Returns:
        the bound in nats, a scalar in the critic's dtype; float32 at least.

    Raises:
        ArgumentValueError: an unknown bound, sides of unequal dimension, or a critic whose result does not fit.

    Gradient:
        flows to the critic's parameters, and to the draws. That of nwj is without bias under minibatches. That of
        donsker_varadhan is not: the softmax weights :math:`e^{T(y_j)} / \sum_k e^{T(y_k)}` divide by a mean over the
        batch, so small batches pull the critic away from the optimum; use large ones, or nwj. For the largest
        exponents both stay finite where the bound does.

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
    at_p, at_q = _values(call, critic, p), _values(call, critic, q)
    mean_p = _mean(shares_of(p, at_p), at_p)
    log_mean_q = torch.logsumexp(at_q + shares_of(q, at_q).log(), 0)
    if bound == "donsker_varadhan":
        return mean_p - log_mean_q
    return mean_p - torch.expm1(log_mean_q)


def variational_estimate(
    p: Samples,
    q: Samples,
    critic: Critic,
    *,
    bound: Bound = "donsker_varadhan",
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""Estimate a trained critic's lower bound on KL(P || Q) from draws that it was not trained on.

    .. math:: s^2 = \frac{\mathrm{Var}_P(T)}{n} + \frac{\mathrm{Var}_Q(e^{T})}{m \, (E_Q[e^T])^2}

    for donsker_varadhan; for nwj without the denominator's square. The interval is one-sided, from below: how far KL
    is above the critic's bound is not in the draws. Its lower end is that of Donsker and Varadhan's bound with the
    critic clipped above, at :math:`\tfrac12 \log m` over the log-mean of its exponential: a critic as well, of which
    few draws cannot hold the mean.

    Draws, or their clusters, are taken to be independent: unlike `kl_estimate`, this does not examine their order.

    Arguments:
        p: held-out draws of P, shape (n, d), with their weights and clusters, if any.
        q: held-out draws of Q, shape (m, d).
        critic: T, as for `variational_bound`. It is called without gradients; put modules into ``eval()`` first.
        bound: ``"donsker_varadhan"`` or ``"nwj"``.
        confidence: how often the interval's lower end shall be below KL.
        generator: unused: nothing is random here.

    Returns:
        the bound, its standard error and the interval (lower end, infinity); None in the interval's place with fewer
        than 30 effective draws of Q.

    Raises:
        ArgumentValueError: as `variational_bound`, and fewer than two draws of a side.

    Gradient:
        none: use `variational_bound` to train.

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
    del generator
    call = "variational_estimate"
    _check(call, p, q, critic, bound)
    check_confidence(call, confidence)
    p, q = with_weight(p), with_weight(q)
    for name, side in (("p", p), ("q", q)):
        _check_number(call, name, side)
    with torch.no_grad():
        at_p, at_q = (_values(call, critic, side).double() for side in (p, q))
    shares_p, shares_q = shares_of(p, at_p), shares_of(q, at_q)
    log_mean_q = torch.logsumexp(at_q + shares_q.log(), 0)
    scale = 1.0 if bound == "donsker_varadhan" else log_mean_q.exp()
    relative = (at_q - log_mean_q).exp()
    mean_p = _mean(shares_p, at_p)
    value = mean_p - (log_mean_q if bound == "donsker_varadhan" else torch.expm1(log_mean_q))
    variance = variance_of_sum(torch.where(shares_p > 0, shares_p * (at_p - mean_p), 0), p.cluster)
    variance = variance + scale**2 * variance_of_sum(shares_q * (relative - 1), q.cluster)
    error = variance.sqrt()
    notes = ["a lower bound, as good as the critic: KL may be any amount above it"]
    interval = None
    held = effective_number(shares_q * relative, len(q))
    low = _lower_end(p, q, at_p, at_q, confidence)
    if low is None or not bool(error.isfinite()):
        notes.append(
            f"no interval: it takes {_FEWEST_EFFECTIVE:g} effective draws of Q, and two clusters of a side"
        )
    else:
        if held < _FEWEST_EFFECTIVE:
            notes.append(
                f"{held:.1f} effective draws of Q hold the mean of e^T, too few for the value and its standard error; "
                f"bounds above about log m = {math.log(len(q)):.3g} take more draws"
            )
        interval = (low, torch.full_like(value, math.inf))
    return Estimate(value, None, bound, interval, (len(p), len(q)), tuple(notes), error)


def _lower_end(p: Samples, q: Samples, at_p: Tensor, at_q: Tensor, confidence: float) -> Tensor | None:
    """Return a lower confidence limit of KL: that of the bound of the critic clipped where few draws of Q hold it.

    Any function is a critic, the clipped one too, and its exponential has a variance that the draws show. Each mean has
    half of the error probability and a normal limit corrected for skewness (Johnson, Modified t Tests and Confidence
    Intervals for Asymmetrical Populations, 1978).
    """
    shares_p, shares_q = shares_of(p, at_p), shares_of(q, at_q)
    number = effective_number(shares_q, len(q)) * (clusters_in(q) or len(q)) / len(q)
    if number < _FEWEST_EFFECTIVE:
        return None
    top = torch.logsumexp(at_q + shares_q.log(), 0) + _CLIP * math.log(number)
    clipped_p, clipped_q = at_p.clamp(max=float(top)), (at_q - top).clamp(max=0).exp()
    quantile = standard_normal_quantile(confidence)  # two-sided: one of each side's tails
    mean_p, error_p, _ = _moments(p, shares_p, clipped_p)
    mean_q, error_q, skewness = _moments(q, shares_q, clipped_q)
    upper_q = mean_q + error_q * (quantile + skewness * (1 + 2 * quantile**2) / 6)
    reach_p = quantile * few_clusters(clusters_in(p) or len(p), quantile) * error_p
    return (mean_p - reach_p - upper_q.log() - top).clamp(min=0)


def _moments(side: Samples, shares: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a mean, its standard error, and the skewness of its distribution."""
    mean = _mean(shares, values)
    terms = torch.where(shares > 0, shares * (values - mean), 0)
    if side.cluster is not None:
        cluster = side.cluster.to(terms.device)
        terms = terms.new_zeros(int(cluster.max()) + 1).index_add(0, cluster, terms)
    error = variance_of_sum(terms).sqrt()
    return mean, error, (terms**3).sum() / error.clamp(min=torch.finfo(error.dtype).tiny) ** 3


def _check(call: str, p: Samples, q: Samples, critic: object, bound: str) -> None:
    check_samples(call, p, q)
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
                wanted="draws that are numbers, which a critic takes",
                got=f"text such as {safe_repr(side.labels[0])}",
                instead="plugin(p, q), or Samples of numbers that mean the same in p and q",
            )
    if bound not in get_args(Bound):
        raise invalid_value(
            call,
            "bound",
            wanted=f"one of {', '.join(map(repr, get_args(Bound)))}",
            got=safe_repr(bound),
            instead="bound='donsker_varadhan'",
        )


def _check_number(call: str, name: str, side: Samples) -> None:
    number = clusters_in(side) or len(side)
    if number < 2:
        raise invalid_value(
            call,
            name,
            wanted="at least two draws, or two clusters of them, which a standard error takes",
            got=safe_repr(side),
            instead="variational_bound(p, q, critic), which has no standard error",
        )


def _values(call: str, critic: Critic, side: Samples) -> Tensor:
    """Return the critic's value at each draw, float32 or wider, shape (n,)."""
    found = critic(side.tensor)
    if not isinstance(found, Tensor):
        raise invalid_type(
            call,
            "critic",
            wanted="a function that returns a tensor",
            got=f"one that returns {type(found).__name__}",
            instead="critic=torch.nn.Linear(d, 1)",
        )
    if found.shape not in ((len(side),), (len(side), 1)):
        raise invalid_value(
            call,
            "critic",
            wanted=f"one value for each draw, shape ({len(side)},) or ({len(side)}, 1)",
            got=f"shape {tuple(found.shape)} at draws of shape {tuple(side.tensor.shape)}",
            instead="critic=lambda x: network(x).squeeze(-1)",
        )
    found = found.reshape(-1)
    found = found.float() if found.dtype in (torch.float16, torch.bfloat16) else found
    bad = found.isnan() | (found == math.inf)
    if can_inspect(found) and bool(bad.any()):
        raise invalid_value(
            call,
            "critic",
            wanted="numbers below +inf",
            got=f"NaN or +inf ({first_of(bad)})",
            instead="a smaller learning rate, or torch.nn.utils.clip_grad_norm_ in training",
        )
    return found


def _mean(shares: Tensor, values: Tensor) -> Tensor:
    """Return the mean of values, of which those without a share may be infinite."""
    return (shares * torch.where(shares > 0, values, 0)).sum()
