r"""KL from draws at which both log-densities are known: the mean of their difference, with less noise.

With :math:`d = \log p - \log q` at draws of P, every mean of :math:`d + c (q / p - 1)` estimates KL(P || Q). c = 0
is the plain mean; the c of least variance is fitted here, each half of the draws with that of the other half, so that
it adds no bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from kullback.common.control_variate import LARGEST_TAIL_INDEX, coefficient, ratio_minus_one, tail_index
from kullback.common.inputs import as_tensor
from kullback.errors import invalid_value, safe_repr
from kullback.estimators.draws import effective_number, few_clusters, shares_of, variance_of_sum
from kullback.estimators.normal_interval import note_on_sign, standard_normal_quantile
from kullback.estimators.sample_checks import check_confidence
from kullback.estimators.tails import tail_allowance
from kullback.representations import first_of
from kullback.results.estimate import Estimate
from kullback.samples import Samples

__all__ = ["LogDensity", "log_ratio"]

LogDensity = Tensor | Callable[[Tensor], Tensor]

_FEWEST = 4
# Fewer draws of a half show too little of q / p.
_FEWEST_TO_FIT = 25
# q / p is left out where its tail index may be too large, and where its unseen tail may hold more than this of the
# standard error of the plain mean.
_MOST_UNSEEN = 0.25
# Below this effective number of draws the weights are too uneven for a standard error.
_FEWEST_EFFECTIVE = 10.0
# So many standard errors above 1, the mean of q / p is there for want of draws.
_BEYOND_CHANCE = 3.0


def log_ratio(
    x: Samples,
    log_p: LogDensity,
    log_q: LogDensity,
    *,
    log_r: LogDensity | None = None,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""Estimate KL(P || Q) from draws of P at which the log-densities of P and Q are known.

    .. math::
        \widehat{KL} = \sum_i w_i \Big[d_i + c \Big(\frac{q(x_i)}{p(x_i)} - 1\Big)\Big], \quad
        d_i = \log p(x_i) - \log q(x_i)

    The weights :math:`w_i` add up to one: equal for draws of P, proportional to :math:`p / r` for draws of a proposal
    R (give `log_r`), or those of the `Samples`. The coefficient c is fitted for least variance, each half of the draws
    with that of the other half; it is 0 where :math:`q / p` may have no finite variance, or a mean that is not 1, where
    it explains less than three quarters of the variance, and for fewer than 50 draws. The interval's ends move out by
    what the fitted tails of the terms may hold beyond the outermost of them.

    Draws, or their clusters, are taken to be independent: unlike `kl_estimate`, this does not examine their order.

    Arguments:
        x: draws of P, or of R; n of them, with their weights and clusters, if any.
        log_p: the normalized log-density or log-probability of P, in nats: n numbers, or a function of the draws such
            as ``distribution.log_prob``, which is given ``x.tensor``, shape (n, d).
        log_q: that of Q; ``-inf`` where Q has no mass, which makes KL infinite.
        log_r: that of the proposal R that the draws came from; P by default.
        confidence: how often the interval shall cover.
        generator: unused: nothing is random here.

    Returns:
        the estimate in nats, float64, 0 where it is negative. The interval's upper end is infinite where the terms have
        so heavy a tail that their mean may be, or where the draws contradict themselves: an upper end below 0, or a
        mean of q / p above 1, beyond chance. Notes tell the effective number of weighted draws.

    Raises:
        ArgumentValueError: fewer than four draws, or log-densities of another number, NaN, or impossible: P gives a
            draw of P no mass.

    Gradient:
        none: the log-densities are constants. `kl_estimate` with ``method="monte_carlo"`` has one.

    Example:
        >>> import torch
        >>> from torch.distributions import Normal
        >>> p, q = Normal(0.0, 1.0), Normal(1.0, 1.5)
        >>> x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
        >>> estimate = log_ratio(Samples(x), p.log_prob, q.log_prob)  # true value: 0.3499
        >>> bool(abs(estimate.value - 0.3499) < 3 * estimate.standard_error), bool(estimate.standard_error < 0.03)
        (True, True)

    References:
        Approximating KL Divergence (Schulman, 2020)
        Monte Carlo theory, methods and examples, sections 8.9 and 9.2 (Owen, 2013)
    """
    del generator
    call = "log_ratio"
    check_confidence(call, confidence)
    if len(x) < _FEWEST:
        raise invalid_value(
            call,
            "x",
            wanted=f"at least {_FEWEST} draws, which a standard error takes",
            got=safe_repr(x),
            instead="more draws",
        )
    (of_p, rounding_p), (of_q, rounding_q) = (
        _values(call, name, log, x) for name, log in (("log_p", log_p), ("log_q", log_q))
    )
    rounding = rounding_p + rounding_q
    weights, notes = _weights(call, x, of_p, log_r)
    used = weights > 0
    _check_possible(call, of_p, used)
    if bool((used & (of_q == -torch.inf)).any()):
        return _infinite(of_q, used, len(x))
    d = torch.where(used, of_p - of_q, 0)
    units = torch.arange(len(d), device=d.device) if x.cluster is None else x.cluster.to(d.device)
    value, error, terms = _mean(d, weights, units)
    n = effective_number(weights, len(x))
    interval = None
    if n < _FEWEST_EFFECTIVE:
        notes.append(f"no interval: the weights leave {n:.1f} effective draws, too few for a standard error")
    else:
        quantile = standard_normal_quantile(confidence)
        reach = quantile * few_clusters(len(units[used].unique()), quantile) * error
        counted, shares = terms[used].cpu().numpy(), weights[used].cpu().numpy()
        with np.errstate(divide="ignore", invalid="ignore"):  # half of the largest terms may be the same
            more, less = (tail_allowance(sign * counted, shares, n) for sign in (1.0, -1.0))
        interval = ((value - reach - less).clamp(min=0), (value + reach).clamp(min=0) + more)
        missed = _what_draws_miss(value + reach, d, weights, units, rounding)
        if missed:
            notes.append(missed)
            interval = (interval[0], torch.full_like(value, torch.inf))
        elif more > float(reach):
            notes.append(
                "log p / q has so heavy a tail that draws not seen may decide its mean: the interval's upper end is "
                + ("infinite" if math.isinf(more) else "that of a Pareto tail")
            )
    notes = [*note_on_sign(float(value), float(error)), *notes]
    return Estimate(value.clamp(min=0), None, "log_ratio", interval, (len(x), 0), tuple(notes), error)


def _what_draws_miss(high: Tensor, d: Tensor, weights: Tensor, units: Tensor, rounding: float) -> str:
    r"""Say that the draws show that they miss some of P; nothing where they do not.

    KL is 0 or more, and :math:`E_P[q / p]` at most 1. Draws that miss where p is larger than q by far give less than
    the one and more than the other.
    """
    if float(high) < -rounding:
        return (
            f"the draws alone give an upper end of {float(high):.2g}, below 0, where no divergence is: they miss what "
            "P has more of than Q, or the densities are not normalized, and the interval has no upper end"
        )
    used = weights > 0
    extra = ratio_minus_one(d)[used]
    mean = weights[used] @ extra
    error = variance_of_sum(weights[used] * (extra - mean), units[used]).sqrt()
    if float(mean) > max(_BEYOND_CHANCE * float(error), 2 * rounding):
        return (
            f"the mean of q / p is {float(mean) + 1:.4g} with a standard error of {float(error):.2g}, and cannot be "
            "above 1: the draws miss what P has more of than Q, or the densities are not normalized, and the interval "
            "has no upper end"
        )
    return ""


def _values(call: str, name: str, log: LogDensity, x: Samples) -> tuple[Tensor, float]:
    """Return the log-density at each draw, float64, shape (n,), and how far rounding may have moved it."""
    given = log if isinstance(log, Tensor) or not callable(log) else log(x.tensor)
    given = given if isinstance(given, Tensor) else np.asarray(given)  # lists keep double precision there
    values = as_tensor(call, name, given).detach()
    if values.shape not in ((len(x),), (len(x), 1)):
        raise invalid_value(
            call,
            name,
            wanted=f"one log-density for each of the {len(x)} draws",
            got=f"shape {tuple(values.shape)}",
            instead=f"{name}=Independent(distribution, 1).log_prob for a product over the components",
        )
    precision = torch.finfo(values.dtype).eps if values.dtype.is_floating_point else 0.0
    values = values.reshape(-1).to(x.tensor.device, torch.float64)
    bad = values.isnan() | (values == torch.inf)
    if bool(bad.any()):
        raise invalid_value(
            call,
            name,
            wanted="log-densities, numbers below +inf",
            got=f"NaN or +inf ({first_of(bad)})",
            instead="a density that is finite at the draws; for atoms, log-probabilities",
        )
    largest = float(values[values > -torch.inf].abs().max()) if bool((values > -torch.inf).any()) else 0.0
    return values, 2 * precision * max(largest, 1.0)


def _weights(call: str, x: Samples, of_p: Tensor, log_r: LogDensity | None) -> tuple[Tensor, list[str]]:
    """Return what share each draw has, and what to say about it."""
    weights = shares_of(x, of_p)
    if log_r is not None:
        of_r, _ = _values(call, "log_r", log_r, x)
        _check_possible(call, of_r, weights > 0, "log_r")
        ratio = of_p - of_r
        highest = ratio[weights > 0].max()
        if highest == -torch.inf:
            _check_possible(call, of_p, weights > 0)
        weights = weights * (ratio - highest).exp()
    notes: list[str] = []
    if x.weights is not None or log_r is not None:
        notes.append(f"the weights leave {effective_number(weights, len(x)):.4g} of {len(x)} draws effective")
    return weights / weights.sum(), notes


def _check_possible(call: str, values: Tensor, used: Tensor, name: str = "log_p") -> None:
    impossible = used & (values == -torch.inf)
    if bool(impossible.any()):
        raise invalid_value(
            call,
            f"x, {name}",
            wanted="draws to which the distribution that they came from gives some density",
            got=f"log-density -inf ({first_of(impossible)})",
            instead="log_r=... with the log-density of the distribution that did make the draws",
        )


def _infinite(of_q: Tensor, used: Tensor, n: int) -> Estimate:
    outside = used & (of_q == -torch.inf)
    note = f"Q gives no density to draws of P ({first_of(outside)}), so KL is infinite"
    infinity = of_q.new_tensor(torch.inf)
    return Estimate(infinity, None, "log_ratio", (infinity, infinity), (n, 0), (note,), of_q.new_zeros(()))


def _mean(d: Tensor, weights: Tensor, units: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weighted mean of d with the fitted multiple of q / p - 1, its standard error, and the terms."""
    used = weights > 0
    extra = torch.where(used, ratio_minus_one(d), 0)
    first = units % 2 == 0
    multiple = torch.zeros_like(d)
    enough = min(int(used[first].sum()), int(used[~first].sum())) >= _FEWEST_TO_FIT
    if enough and _is_usable(d[used], extra[used], weights[used]):
        for half in (first, ~first):
            multiple[half] = coefficient(d[~half], extra[~half], weights[~half])
    terms = d + multiple * extra
    value = weights @ terms
    variance = variance_of_sum((weights * (terms - value))[used], units[used])
    return value, variance.sqrt() + torch.finfo(d.dtype).eps * value.abs(), terms


def _is_usable(d: Tensor, extra: Tensor, weights: Tensor) -> bool:
    """Say whether q / p - 1 has a finite variance, and little of its mean of 0 is in tails that no draw has shown.

    Its tail index is taken with two of its standard errors added.
    """
    top = min(0.2 * len(extra), 3 * len(extra) ** 0.5)
    if float(tail_index(extra)) * (1 + 2 / math.sqrt(top)) >= LARGEST_TAIL_INDEX:
        return False
    shares = (weights / weights.sum()).cpu().numpy()
    error = math.sqrt(float((weights / weights.sum() * (d - weights @ d / weights.sum())).square().sum()))
    number = effective_number(weights, len(weights))
    return tail_allowance(extra.cpu().numpy(), shares, number) <= _MOST_UNSEEN * error
