"""The estimator `bias_corrected` of any divergence from draws of categories, and intervals for total variation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from kullback.common.extra_arguments import by_name
from kullback.common.inference import two_sided_quantile
from kullback.errors import NoRuleError, explain
from kullback.estimators.discrete.categorical_estimators import is_refused, nothing_shared, rows_note
from kullback.estimators.discrete.count_intervals import MOST_UNSEEN, kl_interval
from kullback.estimators.discrete.counts import count_categories
from kullback.estimators.discrete.formulas import KNOWN, CategoryCounts, at_the_ends, counts_of_kind
from kullback.estimators.evidence import Evidence, added
from kullback.estimators.registry import enlist, from_draws
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

# `_MEAN` is E |Z| for a standard normal variable Z, and `_VARIANCE` is the variance of |Z|.
_MEAN, _VARIANCE = math.sqrt(2 / math.pi), 1 - 2 / math.pi
# The number of bisections is the number of bits of a float64 number, 53, and a few more for the scale of the number.
_STEPS = 60


def total_variation_interval(table: CategoryCounts, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
    r"""Return the limits of a confidence interval for total variation from counts: two float64 tensors of shape (...).

    The total variation of the proportions is half the sum of the absolute differences of the proportions. These
    differences are nearly normal, with means :math:`d_i` and standard deviations :math:`\sigma_i`. For a small
    :math:`d_i`, the absolute value is biased upwards. The sum of these biases depends on how the total variation is
    divided among the categories. Each limit of the interval assumes the least favorable division.

    The upper limit assumes :math:`|d_i| = x \sigma_i` with the same x for all categories, because this minimizes the
    mean of the estimate for a given total variation. The lower limit assumes that P and Q differ in two categories
    only, because this maximizes the mean. For the lower limit, rare categories are merged if categories with a single
    draw of a side, or without draws of the other side, have more than 5 % of the side's draws.

    Example:
        >>> total_variation_interval(CategoryCounts.of(torch.tensor([30, 10]), torch.tensor([20, 20])))
        (tensor(0., dtype=torch.float64), tensor(0.4563, dtype=torch.float64))

    References:
        On Choosing and Bounding Probability Metrics (Gibbs and Su, 2002)
    """
    z, table = two_sided_quantile(confidence), table.at(confidence)
    high, low = _upper_end(table, z), _lower_end(table, z)
    low = torch.where(table.rarest_share > MOST_UNSEEN, _lower_end(table.coarser, z), low)
    return low.clamp(0, 1), high.clamp(0, 1)


def total_variation_estimate(table: CategoryCounts) -> tuple[Tensor, Tensor]:
    """Return the total variation of the proportions minus its bias, and the standard error, each of shape (...)."""
    spreads, total = _spreads(table)
    differences = _differences(table)
    x = differences / spreads.clamp(min=torch.finfo(torch.float64).tiny)
    bias = torch.where(spreads > 0, spreads * (_folded(x) - x), 0.0).sum(-1) / 2
    return (differences.sum(-1) / 2 - bias).clamp(min=0), total


def _differences(table: CategoryCounts) -> Tensor:
    """Return the absolute differences of the proportions, shape (..., K)."""
    return (table.a / table.a.sum(-1, keepdim=True) - table.b / table.b.sum(-1, keepdim=True)).abs()


def _shrinkage(table: CategoryCounts) -> Tensor:
    """Return the decrease of P(A) - Q(A) if one draw is added to the event A = {p > q} and to its complement.

    The draws are added to the counts of P and to the counts of Q. The result has shape (...).
    """
    sides = [(x, x.sum(-1, keepdim=True)) for x in (table.a, table.b)]
    where = table.a / sides[0][1] > table.b / sides[1][1]
    inside = [((x * where).sum(-1), n[..., 0]) for x, n in sides]
    raw, shrunk = ([(x + more) / (n + 2 * more) for x, n in inside] for more in (0, 1))
    return (raw[0] - raw[1]) - (shrunk[0] - shrunk[1])


def _spreads(table: CategoryCounts) -> tuple[Tensor, Tensor]:
    """Return the standard deviation of the difference of proportions in each category, and of P(A) - Q(A).

    A is the event {p > q}. The shapes are (..., K) and (...). For each proportion, one success and one failure are
    added (Agresti and Caffo, 2000).
    """
    a, b = table.a, table.b
    squares, total = torch.zeros_like(a), torch.zeros_like(a[..., 0])
    where = a / a.sum(-1, keepdim=True) > b / b.sum(-1, keepdim=True)
    for x, factor in zip((a, b), table.inflation, strict=True):
        n = x.sum(-1, keepdim=True)
        is_known = n > KNOWN / 2
        share = torch.where(is_known, x / n, (x + 1) / (n + 2))
        squares = squares + torch.where(is_known, 0.0, factor * share * (1 - share) / n)
        inside = torch.where(is_known, 0.0, (x * where).sum(-1, keepdim=True) + 1) / (n + 2)
        total = total + torch.where(is_known, 0.0, factor * inside * (1 - inside) / n)[..., 0]
    squares = squares * (a + b > 0)
    # If P and Q are close, A depends on chance, and other events have larger variances. So the second variance is at
    # least the largest variance of a category, and at least a quarter of the sum of these variances.
    return squares.sqrt(), torch.stack([total, squares.amax(-1), squares.sum(-1) / 4]).amax(0).sqrt()


def _folded(x: Tensor) -> Tensor:
    """Return E |N(x, 1)|."""
    return _MEAN * (-(x**2) / 2).exp() + x * torch.erf(x / math.sqrt(2))


def _bisected(high: Tensor, is_above: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Bisect [0, high]: return neighboring numbers x < y such that `is_above` is False at x and True at y."""
    low = torch.zeros_like(high)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        above = is_above(middle)
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return low, high


def _upper_end(table: CategoryCounts, z: float) -> Tensor:
    """Return the largest total variation that the counts do not reject at the normal quantile z, shape (...).

    The upward bias of rare categories is not subtracted.
    """
    spreads, total = _spreads(table)
    unit = (spreads.masked_fill(table.is_rare, 0).sum(-1) / 2).clamp(min=torch.finfo(torch.float64).tiny)
    differences = _differences(table) / 2
    of_rare = differences.masked_fill(~table.is_rare, 0).sum(-1)
    goal = (differences.sum(-1) - of_rare + z * total) / unit
    return _bisected(goal, lambda x: _folded(x) > goal)[1] * unit + of_rare


def _lower_end(table: CategoryCounts, z: float) -> Tensor:
    """Return the smallest total variation that the counts do not reject at the normal quantile z, shape (...)."""
    spreads, total = _spreads(table)
    tiny = torch.finfo(torch.float64).tiny
    pair = torch.where(spreads > 0, spreads, torch.inf).sort(-1).values[..., :2]
    pair = torch.where(pair.isinf(), 0.0, pair).mean(-1).clamp(min=tiny)
    others = (_MEAN * (spreads.sum(-1) / 2 - pair)).clamp(min=0)
    squares = spreads.square()
    largest = squares.topk(min(2, squares.shape[-1]), dim=-1).values
    concentrated = largest.sum(-1) / squares.sum(-1).clamp(min=tiny)
    reach = z * total * (_VARIANCE + (1 - _VARIANCE) * concentrated).sqrt()
    goal = (_differences(table).sum(-1) / 2 - _shrinkage(table) - others - reach) / pair
    # The result is `pair` times the smallest x >= 0 with E |N(x, 1)| >= `goal`.
    low, high = _bisected(goal.clamp(min=0), lambda x: _folded(x) >= goal)
    return torch.where(_folded(low) >= goal, low, high) * pair


@by_name()
@partial(enlist, categories=True)
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
    limits of a `Renyi` divergence are functions of the estimate and the limits of the `Alpha` divergence. `kind` is a
    divergence as `estimable` returns it.
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
