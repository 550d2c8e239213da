"""The estimator `bias_corrected` of any divergence from draws of categories."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from kullback.common.extra_arguments import by_name
from kullback.errors import NoRuleError, explain
from kullback.estimators.discrete.categorical_estimators import is_refused, nothing_shared, rows_note
from kullback.estimators.discrete.count_intervals import kl_interval
from kullback.estimators.discrete.counts import count_categories
from kullback.estimators.discrete.formulas import CategoryCounts
from kullback.estimators.discrete.kind_counts import at_the_ends, counts_of_kind
from kullback.estimators.discrete.total_variation import total_variation_estimate, total_variation_interval
from kullback.estimators.evidence import Evidence, added
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


@by_name()
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

    Category i has :math:`a_i` of P's draws and :math:`b_i` of Q's draws. :math:`\Delta^2_{a_i} D` is the second
    difference of the term of category i, for steps of one draw in the count :math:`a_i`. The formula is for bounded
    divergences. Powers of p / q of order above 1 or below 0 are estimated without bias by ratios of gamma functions. KL
    is estimated by `coverage_adjusted`.

    Draws, or their clusters, must be independent. Unlike `kl_estimate`, this function does not test the draws for
    serial dependence.

    Arguments:
        p: draws of categories from P, or their `Counts` of shape (..., K).
        q: draws of categories from Q, or their `Counts` of shape (..., K).
        kind: the divergence or its name: any divergence of kullback except ``Renyi(0)`` and ``Renyi(inf)``.
        confidence: the probability that the interval contains the divergence.
        generator: not used, because the estimate is not random.

    Returns:
        value, standard error and interval, in nats if the divergence has a logarithm. Bounded divergences have finite
        intervals. For unbounded divergences, the upper limit is infinite if one side has draws in categories with few
        or no draws of the other side.

    Raises:
        ArgumentValueError: the draws are numbers, not categories, or `p` and `q` have different numbers of components
            or classes.
        NoRuleError: draws do not determine this kind.

    Example:
        >>> from kullback import Samples
        >>> estimate = bias_corrected(Samples(["a"] * 30 + ["b"] * 10), Samples(["a"] * 20 + ["b"] * 20), "js")
        >>> round(float(estimate.value), 4), [round(float(end), 4) for end in estimate.interval]
        (0.0271, [0.0022, 0.1508])

    References:
        Notes on bias in estimation (Quenouille, 1956)
        Interval estimation for a binomial proportion (Brown, Cai and DasGupta, 2001)
    """
    del generator
    kind = estimable("bias_corrected", as_divergence("bias_corrected", kind))
    return describe_kind(count_categories("bias_corrected", p, q), kind, confidence)


def describe_kind(table: CategoryCounts, kind: Divergence, confidence: float) -> Evidence:
    """Return the evidence of the divergence `kind` from counts, with its standard error, interval and notes."""
    evidence = measured(kind, table, confidence)
    error, (low, high) = cast("Tensor", evidence.error), cast("tuple[Tensor, Tensor]", evidence.ends)
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
    if not table.bins and table.a.ndim == 1:
        notes = [*nothing_shared(table), *notes]
    error = error.masked_fill(refused, math.inf)
    return replace(evidence, error=error, ends=(low, high), notes=[*notes, *table.notes], n=table.n)


def largest_of(kind: Divergence) -> float:
    """Return the supremum of the divergence over all P and Q."""
    return sum(at_the_ends(kind)) if kind.additive else math.inf


def estimable(call: str, kind: Divergence) -> Divergence:
    """Return `kind.simplest()`, such as `KL()` for `Alpha(1)`; raise an error if draws do not determine `kind`."""
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


def measured(kind: Divergence, table: CategoryCounts, confidence: float = 0.95) -> Evidence:
    """Return the evidence of a divergence from counts of categories, without notes.

    The intervals of `KL`, `ReverseKL` and their sum `Jeffreys` come from `kl_interval`. Bounded divergences and powers
    of p / q use `kl_interval` with `KindCounts`. `TotalVariation` uses `total_variation_interval`. The estimate and the
    limits of a `Renyi` divergence are functions of the estimate and the limits of the `Alpha` divergence.

    Arguments:
        kind: the divergence, as `estimable` returns it.
        table: the counts of P and of Q, shape (..., K).
        confidence: the probability that the interval contains the divergence.
    """
    if isinstance(kind, ReverseKL):
        return measured(KL(), table.reversed, confidence)
    if isinstance(kind, Jeffreys):
        return added(measured(KL(), table, confidence), measured(ReverseKL(), table, confidence))
    if isinstance(kind, TotalVariation):
        value, error = total_variation_estimate(table)
        return Evidence(value, error=error, ends=total_variation_interval(table, confidence))
    if isinstance(kind, Renyi):
        return _renyi(kind.alpha, measured(Alpha(kind.alpha), table, confidence))
    table = counts_of_kind(kind, table)
    value = (table.estimate + table.correction.shrunken).clamp(0, table.largest)
    return Evidence(value, error=table.variance.sqrt(), ends=kl_interval(table, confidence))


def _renyi(alpha: float, power: Evidence) -> Evidence:
    """Return the evidence of log(1 + alpha (alpha - 1) D) / (alpha - 1) from `power`, the evidence of D.

    D is the divergence `Alpha(alpha)`.
    """
    factor, (low, high) = alpha * (alpha - 1), cast("tuple[Tensor, Tensor]", power.ends)

    def of(x: Tensor) -> Tensor:
        return torch.log1p((factor * x).clamp(min=-1)) / (alpha - 1)

    value, error = cast("Tensor", power.value), cast("Tensor", power.error)
    error = error * alpha / (1 + factor * value).clamp(min=torch.finfo(torch.float64).tiny)
    return Evidence(of(value), error=error, ends=(of(low), of(high)))
