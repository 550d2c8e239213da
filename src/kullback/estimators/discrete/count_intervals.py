"""The function `kl_interval`, which computes confidence intervals for divergences from counts."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from kullback.common.inference import student_quantiles, two_sided_quantile, unified_low, wilson_limit
from kullback.estimators.discrete.formulas import (
    KNOWN,
    CategoryCounts,
    CoverageCorrection,
    KindCounts,
    merged,
)

# `benchmarks/coverage.py` checks these constants: on hard pairs, 95 % intervals must have a coverage of 93 % or more.

# If more than this proportion of P's draws is in categories without draws of Q, the upper limit is infinite. If more
# than this proportion is in categories with a single draw of P, rare categories are merged for the lower limit.
MOST_UNSEEN = 0.05
# If P's rarest categories have at most this many draws together, their probability gets Wilson's limits, because a
# normal approximation is poor. The first number is for KL, the second for powers of p / q.
_FEW = 3
_FEW_OF_POWERS = 15
# If P or Q has fewer draws than this number, the upper limit of a power of p / q is infinite.
_FEWEST_FOR_POWERS = 20
# An upward correction of bias or skewness is multiplied by this factor before it is added to the upper limit.
_CAUTION = 1.5
# The categories with one or two draws of Q predict the number of P's draws in categories without draws of Q. If the
# number of such draws exceeds the prediction by `_UNLIKE` standard errors, the upper limit is infinite.
_UNLIKE = 1.7
# In a category with draws of P and without draws of Q, log(p / q) is assumed to be at most this number of nats.
_NATS_ALONE = 8.0


def has_upper_end(table: CategoryCounts, half_width: Tensor | float = 0.0) -> Tensor:
    """Return, for each row, whether KL has a finite upper limit.

    Let f_k be the proportion of P's draws in categories with k draws of Q. There is no finite upper limit in three
    cases. First, f_0 > 5 %. Second, f_0 is significantly larger than (f_1 + f_2) / 2, which chance does not explain.
    Third, f_1 = f_2 = 0, f_0 is two or more draws, and p / q = e^8 there would increase KL by more than `half_width` of
    the interval. For bins of a line, only the first applies, because the neighboring bins bound the density.
    """
    a, b, n = table.a, table.b, table.a.sum(-1)
    never = table.unseen_shares[0]
    few = never <= MOST_UNSEEN
    if table.bins:
        return few
    share = a / n.unsqueeze(-1)
    # Effective numbers of weighted or dependent draws are not integers, so they are rounded.
    of_q = torch.where(b > 0, b.round().clamp(min=1), 0.0)
    once, twice = (torch.where((a > 0) & (of_q == k), share, 0.0).sum(-1) for k in (1, 2))
    more, variance = n * (never - (once + twice) / 2), n * (never + (once + twice) / 4)
    unlike = (more > 0) & (more >= _UNLIKE * variance.sqrt())
    # Categories with one or two draws of Q show how small q can be where Q has no draws. If P has no draws in such
    # categories, nothing shows how small q can be.
    alone = (once + twice == 0) & (n * never >= 1.5)
    return few & ~unlike & ~(alone & (never * _NATS_ALONE > half_width))


def kl_interval(
    table: CategoryCounts, confidence: float = 0.95, *, upper_alone: bool = False
) -> tuple[Tensor, Tensor]:
    r"""Return a confidence interval for KL from counts, whose upper limit may be infinite.

    The interval contains the divergences t that the estimate T of `coverage_adjusted` does not reject:

    .. math:: (T - t)^2 \le z^2 (S + t\, c), \quad c = \frac{V}{T + \frac{K - 1}{2} (\frac1n + \frac1m)}

    Here z is the normal quantile, and K is the number of categories. P has n draws, and Q has m draws. V and S are
    defined in `CategoryCounts.variance`. A variance that is linear in t is right in both extreme cases. T has a
    :math:`\chi^2` distribution for P = Q, and is normal for large KL. The rate c has a lower bound near :math:`2
    (\frac1n + \frac1m)`, the value of c for P near Q.

    For T > t, the tail is a noncentral chi-square's. The lower limit is the smaller of this equation's limit and of
    `unified_low`, with the same variance. Near P = Q, all of the error probability is at the lower limit.

    The limits also allow for seven problems:

    * Bias: a negative bias correction of T is added to the lower limit. A positive correction is multiplied by 1.5 and
      added to the upper limit.
    * Zero counts: the lower limit is the smallest of three limits. For two of them, the categories that only one side
      drew get half a draw of the other side.
    * Few draws: if P's rarest categories have at most 3 draws together, the interval includes the values for Wilson's
      limits of the probability of these categories.
    * Few clusters: their variance is itself uncertain, so all variances are increased as for Student's t.
    * Heavy weights: a few draws with large weights make the estimate skewed. If the skewness is positive, Johnson's
      correction of Student's t, multiplied by 1.5, raises the upper limit.
    * No draws: the upper limit is infinite if `has_upper_end` is false.
    * Many rare categories: they are merged for the lower limit, if categories without draws of Q, or with a single draw
      of P, have more than 5 % of P's draws. Merging cannot increase KL.

    `KindCounts` give the interval of their kind. With `upper_alone`, the lower limit comes from the equation alone.

    Example:
        >>> import torch
        >>> kl_interval(CategoryCounts.of(torch.tensor([[30, 10], [30, 10]]), torch.tensor([[20, 20], [40, 0]])))
        (tensor([0.0087, 0.0600], dtype=torch.float64), tensor([0.5450,    inf], dtype=torch.float64))

    References:
        Modified t Tests and Confidence Intervals for Asymmetrical Populations (Johnson, 1978)
        Interval estimation for a binomial proportion (Brown, Cai and DasGupta, 2001)
        Probable inference, the law of succession, and statistical inference (Wilson, 1927)
    """
    z = two_sided_quantile(confidence)
    if min(table.groups) < math.inf:
        table = table.at(confidence)
    correction = table.correction
    low, high = _ends(table, z, correction, upper_alone)
    low = low + correction.predicted.clamp(max=0)
    high = high + _CAUTION * correction.predicted.clamp(min=0)
    if table.is_kl and table.skewness > 0:
        high = high + _CAUTION * table.skewness * (1 + 2 * z**2) / 6
    rare = torch.maximum(*table.unseen_shares) if table.is_kl else table.rarest_share
    is_coarse = rare > MOST_UNSEEN
    if bool(is_coarse.any()):
        no_correction = CoverageCorrection(*[torch.zeros_like(low)] * 3)
        low = torch.where(is_coarse, _ends(table.coarser, z, no_correction, upper_alone)[0], low)
    low = low.clamp(min=0)
    closed = _is_closed(table, (high - low) / 2)
    # NaN is the difference of two infinite divergences; the lower limit is then 0, and the upper limit infinite.
    low = low.nan_to_num(nan=0.0)
    high = torch.where(closed, high, torch.inf).nan_to_num(nan=math.inf, posinf=math.inf)
    return low, high.clamp(max=table.largest)


def _is_closed(table: CategoryCounts, half_width: Tensor) -> Tensor:
    """Return, for each row, whether the divergence has a finite upper limit; `half_width` is for `has_upper_end`."""
    closed = torch.ones_like(half_width, dtype=torch.bool)
    for is_open, side in ((table.open_above, table), (table.open_below, table.reversed)):
        if is_open:
            closed &= has_upper_end(side, half_width)
            if table.power:
                closed &= ~((side.a > 0) & (side.b == 0)).any(-1)
                closed &= torch.minimum(side.a.sum(-1), side.b.sum(-1)) >= _FEWEST_FOR_POWERS
    return closed


def _ends(
    table: CategoryCounts, z: float, correction: CoverageCorrection, upper_alone: bool
) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest divergence that the counts do not reject; z is the normal quantile.

    The smallest divergence is also computed with half a draw of one side in the merged categories that only the other
    side drew. This continuity correction is for zero counts: the estimated variance is too small for them.
    """
    a, b, (_, shrunken, added) = table.a, table.b, correction
    estimate = table.estimate + shrunken
    low, high = _not_rejected(table, estimate, z, added, upper_alone)
    below, above = _with_few(table, z)
    low = torch.minimum(low, estimate + below)
    if isinstance(table, KindCounts):
        estimate = table.above + shrunken
        high = _not_rejected(table, estimate, z, added, upper_alone=True)[1]
    high = torch.maximum(high, estimate + above)
    only_p, only_q = (a > 0) & (b == 0), (a == 0) & (b > 0)
    for only, with_half, other in ((only_q, a, b), (only_p, b, a)):
        if bool(only.any()):
            half = 0.5 * only.any(-1, keepdim=True)
            sides = torch.cat([with_half.masked_fill(only, 0), half], -1), merged(other, only)
            first, second = sides if only is only_q else sides[::-1]
            moved = replace(table, a=first, b=second)
            moved_low, _ = _not_rejected(moved, moved.estimate + shrunken, z, added, upper_alone)
            low = torch.minimum(low, moved_low)
    return low, high


def _with_few(table: CategoryCounts, z: float) -> tuple[Tensor, Tensor]:
    """Return the changes of the estimate when P's probability of rare categories moves to Wilson's limits.

    For each k from 0 to 3 (to 15 for powers of p / q), the categories with at most k draws are merged, and used with at
    most 3 (or 15) draws together. For divergences other than KL, rare categories of Q are treated in the same way.

    The smallest change, at most 0, is for the probability within Wilson's limits that is nearest to Q's probability.
    The largest change, at least 0, is for the upper limit.
    """
    few = _FEW_OF_POWERS if table.power else _FEW
    changes: list[tuple[Tensor, Tensor]] = []
    sides = (table.a, table.b), (table.b, table.a)
    for of_other_side, ((a, b), inflation) in enumerate(zip(sides, table.inflation, strict=True)):
        most_draws = torch.arange(few + 1, device=a.device).reshape(-1, *[1] * a.ndim)
        rare = (a <= most_draws) & (b > 0)
        drawn, q, n = (a * rare).sum(-1), (b * rare).sum(-1) / b.sum(-1), a.sum(-1)
        events, own_z = torch.stack([drawn - 0.5, drawn + 0.5]), z * inflation**0.5
        events = torch.minimum(events.clamp(min=0), n)
        lower_and_upper = events.new_tensor([-1.0, 1.0]).reshape(2, *[1] * (events.ndim - 1))
        low, high = wilson_limit(events, n, own_z, lower_and_upper)
        nearest = torch.minimum(torch.maximum(q, low), high)
        probabilities = torch.stack([drawn / n, nearest, high, low])
        of_q = q.expand_as(probabilities)
        pair = (of_q, probabilities) if of_other_side else (probabilities, of_q)
        now, at_nearest, farthest, at_low = table.of_two(*pair)
        if not table.is_kl:
            farthest = torch.maximum(farthest, at_low)
        valid = (drawn <= few) & (q > 0) & ((q < 1) | (table.largest < math.inf))
        least = torch.where(valid, at_nearest - now, 0.0).amin(0).clamp(max=0)
        most = torch.where(valid & now.isfinite(), farthest - now, 0.0).amax(0).clamp(min=0)
        if table.is_kl:
            return least, most
        changes.append((least, most))
    least, most = ((x.square() + y.square()).sqrt() for x, y in zip(*changes, strict=True))
    return -least, most


def _not_rejected(
    table: CategoryCounts, estimate: Tensor, z: float, added: Tensor, upper_alone: bool
) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest divergence within z standard errors; `added` is added to the variance."""
    (from_p, from_q), (in_p, in_q), second = table.variances, table.inflation, table.second_order
    estimate = estimate.clamp(min=0)
    plain = (estimate + second.mean).clamp(min=torch.finfo(estimate.dtype).tiny)
    # Dependence between draws increases only the part of the variance that is linear in the divergence t.
    share = second.mean / (estimate + second.mean / 2).clamp(min=torch.finfo(estimate.dtype).tiny)
    rate = (from_p * (in_p + (in_p - 1) * share) + from_q * (in_q + (in_q - 1) * share)) / plain
    # The variance estimated from few draws may be too small. For n draws of P and m draws of Q, the variance is at
    # least 2 t (1/n + 1/m). This is the part linear in t for a noncentral chi-square near P = Q.
    scale = table.curvature * (1 / table.a.sum(-1) + 1 / table.b.sum(-1))
    whole = plain + second.mean
    rate = torch.maximum(rate, (rate * plain + 2 * scale * second.mean) / whole)
    middle, null = estimate + z**2 * rate / 2, table.spread * second.variance
    reach = z * (null + added + rate * estimate + (z * rate / 2) ** 2).sqrt()
    low, high = middle - reach, middle + reach
    if not upper_alone:
        # Dependence and small counts make the upper tail at P = Q longer.
        wider = 2 * scale * table.spread * (1 + 2 * table.small_counts)
        longer = torch.maximum(rate, (rate * plain + wider * second.mean) / whole)
        low = _at_most_of_chi_square(low, estimate, null * (1 + table.small_counts) + added, longer, z)
    # If P is known, the variance increases with the estimate and would be too small for low values of KL. So the lower
    # limit is also computed with the variance at the estimate.
    p_is_known = table.a.sum(-1) > KNOWN / 2
    low = torch.where(p_is_known, torch.minimum(low, estimate - z * (from_q * in_q).sqrt()), low)
    if not (isinstance(table, KindCounts) and table.power):
        return low, high
    # A mean of powers of p / q has a skewed distribution; the distribution of its logarithm is closer to normal.
    first = from_p * in_p + from_q * in_q
    error = torch.maximum(first - null, null).sqrt() * student_quantiles(z, table.dof)
    skew = torch.maximum(table.power * error / (1 + table.power * estimate), error / (estimate + error))
    skew = torch.nan_to_num(skew).clamp(min=1e-9)
    return torch.minimum(low, estimate - error), torch.maximum(
        high, estimate + error * torch.expm1(skew) / skew
    )


def _at_most_of_chi_square(low: Tensor, estimate: Tensor, null: Tensor, rate: Tensor, z: float) -> Tensor:
    r"""Return the smaller of `low` and the limit from the noncentral chi-square distribution.

    The estimate T of a divergence t is :math:`c (\chi'^2_\nu(t / c) - \nu)` with the variance `null` + t `rate` for c =
    `rate` / 4 and :math:`\nu` = `null` / (2 c^2). Its upper tail is longer than a normal one, most so far out: near P =
    Q, a normal limit for z = 3 is wrong eight times too often.
    """
    from scipy.special import ndtr

    positive = (low > 0) & (low + estimate + rate).isfinite() & (null > 0)
    if bool(positive.any()):
        c = rate[positive] / 4
        dof = null[positive] / (2 * c.square())
        x, most = dof + estimate[positive] / c, low[positive] / c
        least = unified_low(x.cpu().numpy(), dof.cpu().numpy(), 2 * float(ndtr(-z)), most.cpu().numpy())
        low = low.masked_scatter(positive, c * torch.from_numpy(least).to(c))
    return low
