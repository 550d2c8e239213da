"""Divergences of every kind from draws of categories: `bias_corrected`."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.errors import NoRuleError, explain
from kullback.estimators.discrete.categorical_estimators import is_refused, nothing_shared, rows_note
from kullback.estimators.discrete.count_intervals import kl_interval
from kullback.estimators.discrete.counts import CategoryCounts, count_categories
from kullback.estimators.discrete.measures import KL_MEASURE, Measure, at_the_ends, measure_of
from kullback.estimators.discrete.total_variation import total_variation_estimate, total_variation_interval
from kullback.estimators.sample_checks import check_confidence
from kullback.generators import (
    KL,
    Alpha,
    Divergence,
    Jeffreys,
    Renyi,
    ReverseKL,
    TotalVariation,
    as_divergence,
)
from kullback.generators.growth import as_kl, is_own
from kullback.representations import Counts
from kullback.results.estimate import Estimate
from kullback.samples import Samples

__all__ = ["DebiasedEstimate", "bias_corrected", "describe_kind", "estimable", "largest_of", "measured"]


def bias_corrected(
    p: Samples | Counts,
    q: Samples | Counts,
    kind: Divergence | str = "kl",
    *,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""Estimate a divergence of any kind between categories, less the bias of that of their proportions.

    .. math:: \hat D = D(\hat p, \hat q) - \frac12 \sum_i \Bigl[ a_i (1 - \hat p_i)\, \Delta^2_{a_i} D
        + b_i (1 - \hat q_i)\, \Delta^2_{b_i} D \Bigr]

    with :math:`a_i` of P's draws and :math:`b_i` of Q's in category i, and :math:`\Delta^2` the second difference of
    the category's term by one draw more and one less. That serves bounded kinds. Powers of p / q of order above 1 or
    below 0 are estimated without bias by ratios of gamma functions, KL as by `coverage_adjusted`.

    Draws, or their clusters, are taken to be independent: unlike `kl_estimate`, this does not examine their order.

    Arguments:
        p: draws of categories from P, or their `Counts` of shape (..., K).
        q: the same from Q.
        kind: the divergence or its name: any of kullback's but ``Renyi(0)`` and ``Renyi(inf)``.
        confidence: how often the interval shall hold the divergence.
        generator: not used; nothing is random here.

    Returns:
        value, standard error and interval, in nats where the kind has a logarithm. Bounded kinds have finite intervals.
        Others have no upper end where one side has draws in categories that the other hardly showed.

    Raises:
        ArgumentValueError: the draws are numbers, not categories, or of different shapes.
        NoRuleError: draws say nothing about this kind.

    Example:
        >>> from kullback import Samples
        >>> found = bias_corrected(Samples(["a"] * 30 + ["b"] * 10), Samples(["a"] * 20 + ["b"] * 20), "js")
        >>> round(float(found.value), 4), [round(float(end), 4) for end in found.interval]
        (0.0271, [0.0029, 0.1508])

    References:
        Notes on bias in estimation (Quenouille, 1956)
        Interval estimation for a binomial proportion (Brown, Cai and DasGupta, 2001)
    """
    del generator
    name = "bias_corrected"
    check_confidence(name, confidence)
    kind = estimable(name, as_divergence(name, kind))
    table = count_categories(name, p, q)
    found, notes = describe_kind(table, kind, confidence)
    return Estimate(found.value, None, name, found.interval, table.n, notes, found.standard_error)


def describe_kind(
    table: CategoryCounts, kind: Divergence, confidence: float, *, bins: bool = False
) -> tuple[DebiasedEstimate, tuple[str, ...]]:
    """Return what counts say about a divergence, and notes: about rows where there is a batch of them."""
    a, b = table.a, table.b
    found = measured(kind, a, b, confidence, table.inflation, spread=table.spread, bins=bins)
    refused = is_refused(table) | ~found.standard_error.isfinite()
    largest = largest_of(kind)
    low = found.interval[0].masked_fill(refused, 0.0)
    high = found.interval[1].masked_fill(refused, largest)
    error = found.standard_error.masked_fill(refused, math.inf)
    no_bound = (
        f"The draws are in too few categories to bound the divergence: the interval is 0 to {largest:.3g}."
    )
    no_end = (
        "One side has draws in categories that the other hardly showed or never, where its probability may be as small "
        "as it likes: the interval has no upper end."
    )
    said = ((refused, no_bound), (high.isinf() & ~refused, no_end))
    notes = [text if rows.ndim == 0 else rows_note(rows, text) for rows, text in said if bool(rows.any())]
    if not bins and a.ndim == 1:
        notes = [*nothing_shared(table), *notes]
    return DebiasedEstimate(found.value, error, (low, high)), (*notes, *table.notes)


def largest_of(kind: Divergence) -> float:
    """Return the largest value that a kind can have."""
    return sum(at_the_ends(kind)) if kind.additive else math.inf


class DebiasedEstimate(NamedTuple):
    """An estimate with as little bias as counts allow, its standard error and its interval."""

    value: Tensor
    standard_error: Tensor
    interval: tuple[Tensor, Tensor]


def estimable(call: str, kind: Divergence) -> Divergence:
    """Return a kind as `KL` or `ReverseKL` where it is one of these; raise where draws say nothing about it."""
    is_limit = isinstance(kind, Renyi) and kind.alpha in (0, math.inf)
    if is_own(kind) or is_limit:
        wanted = "a divergence of kullback's that draws say something about"
        if is_limit:
            got = f"{kind!r}, which is about probabilities that no draw shows"
            instead = "kind=Renyi(2.0), or another order between 0 and inf"
        else:
            got = f"{kind!r}, a kind whose interval nobody has derived"
            instead = "divergence(Counts(histogram_of_p), Counts(histogram_of_q), kind), without an interval"
        raise NoRuleError(explain(call, "kind", wanted=wanted, got=got, instead=instead))
    return as_kl(kind)


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
    r"""Estimate a divergence from how often each category was drawn.

    `KL`, `ReverseKL` and `Jeffreys`, the sum of both, have the intervals of `kl_interval`; bounded kinds and powers of
    p / q that of `measures` by the same equation, and total variation that of `total_variation`. Those of a `Renyi`
    divergence are its function of the power divergence.

    Arguments:
        kind: the divergence, as `estimable` returns it.
        a: how often P drew each category, shape (..., K).
        b: how often Q did, broadcastable with `a`.
        confidence: how often the interval shall hold the divergence.
        inflation: by what draws that depend on each other multiply the variances of P's and of Q's shares.
        spread: by what they multiply the variance where P = Q.
        bins: whether the categories are bins of a line.

    Example:
        >>> import torch
        >>> from kullback import JensenShannon
        >>> found = measured(JensenShannon(), torch.tensor([30, 10]), torch.tensor([20, 20]))
        >>> round(float(found.value), 4), [round(float(end), 4) for end in found.interval]
        (0.0271, [0.0029, 0.1508])
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
        # The errors of both directions depend on each other.
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
