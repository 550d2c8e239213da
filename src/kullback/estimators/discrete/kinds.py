"""Divergences of every kind from draws of categories: `bias_corrected`."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.errors import NoRuleError, explain
from kullback.estimators.discrete.categorical_estimators import is_refused, nothing_shared, rows_note
from kullback.estimators.discrete.count_intervals import kl_interval
from kullback.estimators.discrete.counts import CategoryCounts, count_categories
from kullback.estimators.discrete.measures import KL_MEASURE, Measure, at_the_ends, measure_of
from kullback.estimators.discrete.total_variation import total_variation_estimate, total_variation_interval
from kullback.estimators.evidence import Evidence
from kullback.estimators.registry import from_draws
from kullback.generators import (
    KL,
    Alpha,
    BuiltIn,
    Divergence,
    Jeffreys,
    Renyi,
    ReverseKL,
    TotalVariation,
    as_divergence,
)
from kullback.representations import Counts
from kullback.samples import Samples


@partial(from_draws, checks=lambda _, p, q: (p, q))
def bias_corrected(
    p: Samples | Counts,
    q: Samples | Counts,
    kind: Divergence | str = "kl",
    *,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> Evidence:
    r"""Estimate a divergence of any kind between categories: the divergence of their proportions minus its bias.

    .. math:: \hat D = D(\hat p, \hat q) - \frac12 \sum_i \Bigl[ a_i (1 - \hat p_i)\, \Delta^2_{a_i} D
        + b_i (1 - \hat q_i)\, \Delta^2_{b_i} D \Bigr]

    Category i has :math:`a_i` of P's draws and :math:`b_i` of Q's. :math:`\Delta^2` is the second difference of the
    category's term for one draw more and one less. The formula is for bounded kinds. Powers of p / q of order above 1
    or below 0 are estimated without bias by ratios of gamma functions, and KL as by `coverage_adjusted`.

    Draws, or their clusters, must be independent: unlike `kl_estimate`, this does not test their order.

    Arguments:
        p: draws of categories from P, or their `Counts` of shape (..., K).
        q: the same from Q.
        kind: the divergence or its name: any of kullback's except ``Renyi(0)`` and ``Renyi(inf)``.
        confidence: the probability that the interval contains the divergence.
        generator: not used, because the estimate is not random.

    Returns:
        value, standard error and interval, in nats if the kind has a logarithm. Bounded kinds have finite intervals.
        For others the upper limit is infinite if one side has draws in categories with few or no draws of the other.

    Raises:
        ArgumentValueError: the draws are numbers, not categories, or of different shapes.
        NoRuleError: draws do not determine this kind.

    Example:
        >>> from kullback import Samples
        >>> estimate = bias_corrected(Samples(["a"] * 30 + ["b"] * 10), Samples(["a"] * 20 + ["b"] * 20), "js")
        >>> round(float(estimate.value), 4), [round(float(end), 4) for end in estimate.interval]
        (0.0271, [0.0029, 0.1508])

    References:
        Notes on bias in estimation (Quenouille, 1956)
        Interval estimation for a binomial proportion (Brown, Cai and DasGupta, 2001)
    """
    del generator
    kind = estimable("bias_corrected", as_divergence("bias_corrected", kind))
    return describe_kind(count_categories("bias_corrected", p, q), kind, confidence)


def describe_kind(
    table: CategoryCounts, kind: Divergence, confidence: float, *, bins: bool = False
) -> Evidence:
    """Return the evidence of a divergence from counts, with notes."""
    a, b = table.a, table.b
    value, error, (low, high) = measured(
        kind, a, b, confidence, table.inflation, spread=table.spread, bins=bins
    )
    refused = is_refused(table) | ~error.isfinite()
    largest = largest_of(kind)
    low, high = low.masked_fill(refused, 0.0), high.masked_fill(refused, largest)
    no_bound = (
        f"The draws are in too few categories to bound the divergence: the interval is 0 to {largest:.3g}."
    )
    no_end = (
        "One side has draws in categories with few or no draws of the other, so the divergence could be arbitrarily "
        "large: the upper limit is infinite."
    )
    cases = ((refused, no_bound), (high.isinf() & ~refused, no_end))
    notes = [text if rows.ndim == 0 else rows_note(rows, text) for rows, text in cases if bool(rows.any())]
    if not bins and a.ndim == 1:
        notes = [*nothing_shared(table), *notes]
    error = error.masked_fill(refused, math.inf)
    return Evidence(value, error=error, ends=(low, high), notes=[*notes, *table.notes], n=table.n)


def largest_of(kind: Divergence) -> float:
    """Return the largest value that a kind can have."""
    return sum(at_the_ends(kind)) if kind.additive else math.inf


class DebiasedEstimate(NamedTuple):
    """An estimate with its bias removed as far as the counts allow, its standard error and its interval."""

    value: Tensor
    standard_error: Tensor
    interval: tuple[Tensor, Tensor]


def estimable(call: str, kind: Divergence) -> Divergence:
    """Return a kind, as `KL` or `ReverseKL` where it is one of these; raise if draws do not determine it."""
    is_limit = isinstance(kind, Renyi) and kind.alpha in (0, math.inf)
    if is_limit or not isinstance(kind, BuiltIn):
        wanted = "a divergence of kullback's that draws determine"
        if is_limit:
            got = f"{kind!r}, which depends on events that have no draws"
            instead = "kind=Renyi(2.0), or another order between 0 and inf"
        else:
            got = f"{kind!r}, a kind without a known interval"
            instead = "divergence(Counts(histogram_of_p), Counts(histogram_of_q), kind), without an interval"
        raise NoRuleError(explain(call, "kind", wanted=wanted, got=got, instead=instead))
    return kind.simplest()


def measured(
    kind: Divergence,
    a: Tensor,
    b: Tensor,
    confidence: float = 0.95,
    inflation: tuple[float, float] = (1.0, 1.0),
    *,
    spread: float = 1.0,
    bins: bool = False,
) -> DebiasedEstimate:
    """Estimate a divergence from the counts of categories.

    `KL`, `ReverseKL` and `Jeffreys`, the sum of both, use `kl_interval`. Bounded kinds and powers of p / q solve the
    same equation with their `Measure`. `TotalVariation` uses `total_variation_interval`. A `Renyi` divergence is a
    function of the power divergence, and so are its limits.

    Arguments:
        kind: the divergence, as `estimable` returns it.
        a, b: the counts of P and of Q, shape (..., K).
        confidence: the probability that the interval contains the divergence.
        inflation: the factors of the variances of P's and of Q's shares for dependent draws.
        spread: the factor of the variance at P = Q for dependent draws.
        bins: whether the categories are bins of a line.
    """
    a, b = torch.broadcast_tensors(a.to(torch.float64), b.to(torch.float64))
    if isinstance(kind, ReverseKL):
        return measured(KL(), b, a, confidence, (inflation[1], inflation[0]), spread=spread, bins=bins)
    if isinstance(kind, Jeffreys):
        one, other = (
            measured(each, a, b, confidence, inflation, spread=spread, bins=bins)
            for each in (KL(), ReverseKL())
        )
        low, high = (x + y for x, y in zip(one.interval, other.interval, strict=True))
        # The two directions have dependent errors.
        return DebiasedEstimate(
            one.value + other.value, one.standard_error + other.standard_error, (low, high)
        )
    if isinstance(kind, TotalVariation):
        value, error = total_variation_estimate(a, b, inflation)
        return DebiasedEstimate(value, error, total_variation_interval(a, b, confidence, inflation))
    if isinstance(kind, Renyi):
        return _renyi(
            kind.alpha, measured(Alpha(kind.alpha), a, b, confidence, inflation, spread=spread, bins=bins)
        )
    measure = KL_MEASURE if isinstance(kind, KL) else measure_of(kind)
    interval = kl_interval(a, b, confidence, inflation, spread=spread, bins=bins, measure=measure)
    value = measure.estimate(a, b) + measure.correction(a, b).shrunken
    return DebiasedEstimate(value.clamp(0, measure.largest), _error(measure, a, b, inflation), interval)


def _error(measure: Measure, a: Tensor, b: Tensor, inflation: tuple[float, float]) -> Tensor:
    (from_p, from_q), second = measure.variances(a, b), measure.near(a, b).variance
    return torch.maximum(from_p * inflation[0] + from_q * inflation[1] - second, second).sqrt()


def _renyi(alpha: float, power: DebiasedEstimate) -> DebiasedEstimate:
    """Return log(1 + alpha (alpha - 1) D) / (alpha - 1) of the power divergence D."""
    factor = alpha * (alpha - 1)

    def of(x: Tensor) -> Tensor:
        return torch.log1p((factor * x).clamp(min=-1)) / (alpha - 1)

    error = (
        power.standard_error
        * alpha
        / (1 + factor * power.value).clamp(min=torch.finfo(power.value.dtype).tiny)
    )
    return DebiasedEstimate(of(power.value), error, (of(power.interval[0]), of(power.interval[1])))
