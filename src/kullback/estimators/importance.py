r"""KL from draws of P with known log-densities of P and Q: the mean log-ratio, with a control variate.

Let :math:`d = \log p - \log q` at draws of P. For any constant c, the mean of :math:`d + c (q / p - 1)` estimates KL(P
|| Q). The c that minimizes the variance is fitted in each half of the draws and used in the other half, without bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kullback.common.control_variate import LARGEST_TAIL_INDEX, coefficient, ratio_minus_one, tail_index
from kullback.common.extra_arguments import by_name
from kullback.common.inference import two_sided_quantile
from kullback.common.inputs import as_tensor, first_of
from kullback.errors import invalid_value, safe_repr
from kullback.estimators.draws import effective_number, shares_of, variance_of_sum
from kullback.estimators.evidence import (
    SIDE_P,
    SIDE_Q,
    SMALL_P,
    SMALL_Q,
    Evidence,
    estimate_of,
    infinite,
    interval_from,
    noted,
)
from kullback.estimators.known_categories import below_zero
from kullback.estimators.registry import INTERVAL
from kullback.estimators.tails import beyond_tail, tail_allowance
from kullback.results.estimate import Estimate
from kullback.samples import Samples

LogDensity = Tensor | Callable[[Tensor], Tensor]

# `benchmarks/coverage.py` checks these constants on known densities: 95 % intervals must cover 93 % or more.

# At least this number of draws is needed: with fewer, the standard error would have at most two degrees of freedom.
_FEWEST = 4
# The coefficient c is fitted only if each half has at least this number of draws.
_FEWEST_TO_FIT = 25
# The unobserved tail of the control variate q / p - 1 may change the mean of the control variate. If this change could
# be more than `_MOST_UNSEEN` standard errors of the mean of d, the control variate is not used.
_MOST_UNSEEN = 0.25
# Below this effective number of draws, the weights are too unequal for a standard error, and there is no interval.
_FEWEST_EFFECTIVE = 10.0
# The true mean of q / p is at most 1. A sample mean this many standard errors above 1 shows that the draws miss a part
# of P.
_BEYOND_CHANCE = 3.0


@by_name()
def log_ratio(
    x: Samples,
    log_p: LogDensity,
    log_q: LogDensity,
    *,
    log_r: LogDensity | None = None,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""Estimate KL(P || Q) from draws of P with known log-densities of P and Q.

    .. math::
        \widehat{KL} = \sum_i w_i \Big[d_i + c \Big(\frac{q(x_i)}{p(x_i)} - 1\Big)\Big], \quad
        d_i = \log p(x_i) - \log q(x_i)

    The weights :math:`w_i` have sum 1. Without `log_r`, they are the weights of the `Samples`, which are equal by
    default. If the draws come from a proposal R, pass `log_r`; the weights are then multiplied by :math:`p / r`. The
    coefficient c that minimizes the variance is fitted in each half of the draws and used in the other half. c is 0
    with fewer than 50 draws, and if :math:`q / p` may have an infinite variance or a mean other than 1. c is also 0 if
    the control variate :math:`q / p - 1` explains less than three quarters of the variance of d. The limits of the
    interval allow for the unobserved tails of the terms, by extrapolation beyond the outermost draws.

    Draws, or their clusters, must be independent. Unlike `kl_estimate`, this function does not test the draws for
    serial dependence.

    Arguments:
        x: n draws of P, or of R, with their weights and clusters, if any.
        log_p: the normalized log-density or log-probability of P, in nats: a tensor of n numbers, or a function of
            ``x.tensor``, shape (n, d), such as ``distribution.log_prob``.
        log_q: the log-density of Q, in the same form as `log_p`. If a draw has the log-density ``-inf``, KL is
            infinite.
        log_r: the log-density of the proposal R, in the same form as `log_p`; by default R is P.
        confidence: the probability that the interval contains the divergence.
        generator: not used, because the estimate is not random.

    Returns:
        the estimate in nats, float64; a negative estimate becomes 0. The upper limit is infinite if the tail of the
        terms is so heavy that their mean may be infinite. The upper limit is also infinite if the draws miss a part of
        P: if the limit would be below 0, or if the mean of q / p is significantly above 1. For weighted draws, a note
        gives their effective number.

    Raises:
        ArgumentValueError: there are fewer than four draws, the number of log-densities is wrong, a log-density is NaN,
            or P has density 0 at one of its draws.

    Gradient:
        none, because the log-densities are constants. `kl_estimate` with ``method="monte_carlo"`` has a gradient.

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
    call = "log_ratio"
    INTERVAL.check(call, confidence=confidence, generator=generator)
    if len(x) < _FEWEST:
        raise invalid_value(
            call,
            "x",
            wanted=f"at least {_FEWEST} draws for a standard error",
            got=safe_repr(x),
            instead="more draws",
        )
    (of_p, rounding_p), (of_q, rounding_q) = (
        _values(call, name, log, x) for name, log in (("log_p", log_p), ("log_q", log_q))
    )
    weights, notes = _weights(call, x, of_p, log_r)
    used = weights > 0
    _check_possible(call, of_p, used)
    if bool((used & (of_q == -torch.inf)).any()):
        outside = first_of(used & (of_q == -torch.inf))
        note = f"{SIDE_Q} has density 0 at draws of {SIDE_P} ({outside}): KL is infinite."
        evidence = infinite(note)
    else:
        d, rounding = torch.where(used, of_p - of_q, 0), rounding_p + rounding_q
        evidence = noted(_evidence(d, weights, x, rounding, confidence), notes)
    evidence = replace(evidence, n=(len(x), 0), method=call)
    return estimate_of(interval_from(evidence, confidence), of_q.device)


def _evidence(d: Tensor, weights: Tensor, x: Samples, rounding: float, confidence: float) -> Evidence:
    """Return the evidence of the weighted mean of the log-ratios d, with its standard error and possible bias."""
    used = weights > 0
    units = torch.arange(len(d), device=d.device) if x.cluster is None else x.cluster.to(d.device)
    mean, error, terms = _mean(d, weights, units)
    value, spread = float(mean), float(error)
    n = effective_number(weights, len(x))
    if n < _FEWEST_EFFECTIVE:
        note = (
            f"The weights leave {n:.1f} effective draws, too few for a standard error: there is no interval."
        )
        return Evidence(value, error=spread, notes=[note], without_interval=True)
    groups = len(units[used].unique())
    reach = two_sided_quantile(confidence, groups) * spread
    counted, shares = terms[used].cpu().numpy(), weights[used].cpu().numpy()
    # If half of the largest terms are equal, their median excess is 0. The fit of the tail then divides by 0, which is
    # harmless.
    with np.errstate(divide="ignore", invalid="ignore"):
        more, less = (tail_allowance(sign * counted, shares, n) for sign in (1.0, -1.0))
    missed = _note_on_missing_draws(value + reach, d, weights, units, rounding)
    return Evidence(
        value,
        error=spread,
        bias_low=less,
        bias_high=math.inf if missed else 0.0,
        notes=[missed] if missed else [],
        beyond=lambda _: beyond_tail(more, reach),
        groups=groups,
    )


def _note_on_missing_draws(high: float, d: Tensor, weights: Tensor, units: Tensor, rounding: float) -> str:
    """Return a note if the draws miss a part of P or the densities are not normalized; otherwise an empty string.

    KL is at least 0, and :math:`E_P[q / p]` at most 1. The draws contradict this if `high`, the upper limit, is below 0
    or the mean of q / p is significantly above 1, beyond the rounding error `rounding` of d.
    """
    if high < -rounding:
        return below_zero(high, "the densities")
    used = weights > 0
    extra = ratio_minus_one(d)[used]
    mean = weights[used] @ extra
    error = variance_of_sum(weights[used] * (extra - mean), units[used]).sqrt()
    if float(mean) > max(_BEYOND_CHANCE * float(error), 2 * rounding):
        return (
            f"The mean of {SMALL_Q} / {SMALL_P} is {float(mean) + 1:.4g} with a standard error of {float(error):.2g}, "
            f"but the true mean is at most 1. The draws miss a part of {SIDE_P} where {SMALL_P} > {SMALL_Q}, or the "
            "densities are not normalized: the upper limit is infinite."
        )
    return ""


def _values(call: str, name: str, log: LogDensity, x: Samples) -> tuple[Tensor, float]:
    """Return the log-density at each draw, float64, shape (n,), and the largest rounding error of these values."""
    raw = log if isinstance(log, Tensor) or not callable(log) else log(x.tensor)
    raw = raw if isinstance(raw, Tensor) else np.asarray(raw)  # NumPy keeps the double precision of lists
    values = as_tensor(call, name, raw).detach()
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
    """Return the normalized weight of each draw, shape (n,), and notes on the weights."""
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
        notes.append(
            f"The weights leave {effective_number(weights, len(x)):.4g} of {len(x)} draws effective."
        )
    return weights / weights.sum(), notes


def _check_possible(call: str, values: Tensor, used: Tensor, name: str = "log_p") -> None:
    impossible = used & (values == -torch.inf)
    if bool(impossible.any()):
        raise invalid_value(
            call,
            f"x, {name}",
            wanted="draws with a positive density under their own distribution",
            got=f"log-density -inf ({first_of(impossible)})",
            instead="log_r=... with the log-density of the distribution of the draws",
        )


def _mean(d: Tensor, weights: Tensor, units: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean of d + c (q / p - 1), its error and its terms; c is fitted to the half of even or odd `units`."""
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
    """Return whether `extra`, the values of q / p - 1, can be a control variate for d.

    The variance of q / p must be finite: the tail index plus two standard errors must be below `LARGEST_TAIL_INDEX`.
    The unobserved tail of q / p must not change its mean by more than `_MOST_UNSEEN` standard errors of the mean of d.
    """
    top = min(0.2 * len(extra), 3 * len(extra) ** 0.5)
    if float(tail_index(extra)) * (1 + 2 / math.sqrt(top)) >= LARGEST_TAIL_INDEX:
        return False
    shares = (weights / weights.sum()).cpu().numpy()
    error = math.sqrt(float((weights / weights.sum() * (d - weights @ d / weights.sum())).square().sum()))
    number = effective_number(weights, len(weights))
    return tail_allowance(extra.cpu().numpy(), shares, number) <= _MOST_UNSEEN * error
