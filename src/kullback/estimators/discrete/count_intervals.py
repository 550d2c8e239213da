"""Confidence intervals for divergences from counts: `kl_interval`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kullback.estimators.discrete.formulas import KNOWN, CategoryCounts, CoverageCorrection, merged
from kullback.estimators.discrete.kind_counts import KindCounts
from kullback.estimators.draws import student_ratio
from kullback.estimators.evidence import standard_normal_quantile

# `benchmarks/coverage.py` checks the constants of this file on hard pairs: 95 % intervals have to cover in 93 %.

# With a larger share of P's draws in categories without draws of Q, the upper limit is infinite. With a larger share in
# categories that P drew once, the lower limit is computed after a merge of rare categories.
MOST_UNSEEN = 0.05

# The largest number of P's draws in its rarest categories that gets Wilson's limits in place of normal ones: for KL and
# for powers of p / q.
_FEW = 3
_FEW_OF_POWERS = 15
# With fewer draws of a side, powers of p / q have no upper limit.
_FEWEST_FOR_POWERS = 20

# The upper limit adds an upward correction of the bias this many times.
_CAUTION = 1.5

# With an excess of this many standard errors, categories without draws of Q are unlike the ones that it drew rarely.
_UNLIKE = 1.7
# The nats that a draw of P may add where Q is thousands of times less likely.
_NATS_ALONE = 8.0


def has_upper_end(table: CategoryCounts, half_width: Tensor | float = 0.0) -> Tensor:
    """Return whether the draws bound KL from above, if categories without draws of Q are like its rarest ones.

    They do not bound it in three cases. First, more than 5 % of P's draws are in categories without draws of Q. Second,
    significantly more of P's draws are in them than the mean of those in categories that Q drew once and that it drew
    twice: then Q does not lack them by chance. Third, no draw of P is in a category that Q drew once or twice, and two
    or more are in categories without draws of Q, where a ratio of e^8 could add more than half of the interval.
    For bins of a line, where neighbors bound a density, only the first case counts.
    """
    a, b, n = table.a, table.b, table.a.sum(-1)
    never = table.unseen_shares[0]
    few = never <= MOST_UNSEEN
    if table.bins:
        return few
    share = a / n.unsqueeze(-1)
    # Weights and dependence make effective numbers of draws, which are not integers.
    of_q = torch.where(b > 0, b.round().clamp(min=1), 0.0)
    once, twice = (torch.where((a > 0) & (of_q == k), share, 0.0).sum(-1) for k in (1, 2))
    more, variance = n * (never - (once + twice) / 2), n * (never + (once + twice) / 4)
    unlike = (more > 0) & (more >= _UNLIKE * variance.sqrt())
    # If Q drew each category of P several times or never, categories that Q never drew are unlike all others.
    alone = (once + twice == 0) & (n * never >= 1.5)
    return few & ~unlike & ~(alone & (never * _NATS_ALONE > half_width))


def kl_interval(table: CategoryCounts, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
    r"""Return a confidence interval for KL from counts, one-sided if too many categories have no draws.

    The interval contains the divergences t that the estimate T of `coverage_adjusted` does not reject:

    .. math:: (T - t)^2 \le z^2 (S + t\, c), \quad c = \frac{V}{T + \frac{K - 1}{2} (\frac1n + \frac1m)}

    V and S are defined in `CategoryCounts.variance`. A variance that grows with t is right at P = Q, where T has a
    :math:`\chi^2` distribution. It is also right far from it, where T is normal. The rate c has a lower bound near the
    value for P near Q, :math:`2 (\frac1n + \frac1m)`.

    The limits also allow for the following:

    * Bias: each limit moves out by the correction that T makes in its direction, the upper one by half as much again.
    * Zero counts: the lower limit is at most the one with half a draw of P in the categories of Q alone, or vice versa.
    * Few draws: if P's rarest categories have 3 draws or fewer together, Wilson's limits of their probability count
      too.
    * No draws: the upper limit is infinite if `has_upper_end` is false.
    * Many rare categories: if more than 5 % of P's draws are in categories without draws of Q, or in ones drawn once,
      the lower limit comes from merged categories. Merging cannot raise KL.

    Arguments:
        table: the counts of P and of Q, shape (..., K). `KindCounts` give an interval for their own divergence.
        confidence: the probability that the interval contains the divergence.

    Returns:
        the two limits in nats, float64, shape (...). The lower one is at least 0, and the upper one may be infinite.

    Example:
        >>> import torch
        >>> kl_interval(CategoryCounts.of(torch.tensor([[30, 10], [30, 10]]), torch.tensor([[20, 20], [40, 0]])))
        (tensor([0.0117, 0.0852], dtype=torch.float64), tensor([0.5450,    inf], dtype=torch.float64))

    References:
        Interval estimation for a binomial proportion (Brown, Cai and DasGupta, 2001)
        Probable inference, the law of succession, and statistical inference (Wilson, 1927)
    """
    z = standard_normal_quantile(confidence)
    correction = table.correction
    low, high = _ends(table, z, correction)
    low = low + correction.predicted.clamp(max=0)
    high = high + _CAUTION * correction.predicted.clamp(min=0)
    rare = torch.maximum(*table.unseen_shares) if table.is_kl else table.rarest_share
    is_coarse = rare > MOST_UNSEEN
    if bool(is_coarse.any()):
        no_correction = CoverageCorrection(*[torch.zeros_like(low)] * 3)
        low = torch.where(is_coarse, _ends(table.coarser, z, no_correction)[0], low)
    low = low.clamp(min=0)
    closed = _is_closed(table, (high - low) / 2)
    # A difference of two infinite divergences gives no limit.
    low = low.nan_to_num(nan=0.0)
    high = torch.where(closed, high, torch.inf).nan_to_num(nan=math.inf, posinf=math.inf)
    return low, high.clamp(max=table.largest)


def _is_closed(table: CategoryCounts, half_width: Tensor) -> Tensor:
    """Return whether the draws bound a divergence from above."""
    closed = torch.ones_like(half_width, dtype=torch.bool)
    for is_open, side in ((table.open_above, table), (table.open_below, table.reversed)):
        if is_open:
            closed &= has_upper_end(side, half_width)
            if table.power:
                closed &= ~((side.a > 0) & (side.b == 0)).any(-1)
                closed &= torch.minimum(side.a.sum(-1), side.b.sum(-1)) >= _FEWEST_FOR_POWERS
    return closed


def _ends(table: CategoryCounts, z: float, correction: CoverageCorrection) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest divergence that the counts do not reject.

    The smallest one is also tested with half a draw of one side in all categories that only the other side drew.
    This is the continuity correction of zero counts, whose estimated variance is too small as well.
    """
    a, b, (_, shrunken, added) = table.a, table.b, correction
    estimate = table.estimate + shrunken
    low, high = _not_rejected(table, estimate, z, added)
    below, above = _with_few(table, z)
    low = torch.minimum(low, estimate + below)
    if isinstance(table, KindCounts):
        estimate = table.above + shrunken
        high = _not_rejected(table, estimate, z, added)[1]
    high = torch.maximum(high, estimate + above)
    only_p, only_q = (a > 0) & (b == 0), (a == 0) & (b > 0)
    for only, with_half, other in ((only_q, a, b), (only_p, b, a)):
        if bool(only.any()):
            half = 0.5 * only.any(-1, keepdim=True)
            sides = torch.cat([with_half.masked_fill(only, 0), half], -1), merged(other, only)
            moved = table.with_draws(*(sides if only is only_q else sides[::-1]))
            low = torch.minimum(low, _not_rejected(moved, moved.estimate + shrunken, z, added)[0])
    return low, high


def _with_few(table: CategoryCounts, z: float) -> tuple[Tensor, Tensor]:
    """Return the changes of the estimate, at most and at least 0, when the probability of few draws is at its limits.

    The few are all draws in categories that P drew at most k times, for each k where there are at most 3 of them. The
    limits are Wilson's with a continuity correction of half a draw. The lower change takes the probability between them
    that is nearest to Q's. For kinds other than KL, few draws of Q count in the same way.
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
        middle, reach = events + own_z**2 / 2, own_z * (events * (1 - events / n) + own_z**2 / 4).sqrt()
        low, high = (middle - reach)[0] / (n + own_z**2), (middle + reach)[1] / (n + own_z**2)
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


def _not_rejected(table: CategoryCounts, estimate: Tensor, z: float, added: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest divergence within z of its standard errors; `added` is more variance."""
    (from_p, from_q), (in_p, in_q), second = table.variances, table.inflation, table.second_order
    estimate = estimate.clamp(min=0)
    plain = (estimate + second.mean).clamp(min=torch.finfo(estimate.dtype).tiny)
    # Dependent draws inflate only the part of the variance that grows with t.
    share = second.mean / (estimate + second.mean / 2).clamp(min=torch.finfo(estimate.dtype).tiny)
    rate = (from_p * (in_p + (in_p - 1) * share) + from_q * (in_q + (in_q - 1) * share)) / plain
    # Few draws may underestimate the variance: near P = Q, a noncentral chi-square has 2 t (1/n + 1/m).
    scale = table.curvature * (1 / table.a.sum(-1) + 1 / table.b.sum(-1))
    near = (rate * plain + 2 * scale * second.mean) / (plain + second.mean)
    rate = torch.maximum(rate, near)
    middle = estimate + z**2 * rate / 2
    reach = z * (table.spread * second.variance + added + rate * estimate + (z * rate / 2) ** 2).sqrt()
    low, high = middle - reach, middle + reach
    # If P is known, the variance is large when the estimate is large by chance.
    p_is_known = table.a.sum(-1) > KNOWN / 2
    low = torch.where(p_is_known, torch.minimum(low, estimate - z * (from_q * in_q).sqrt()), low)
    if not (isinstance(table, KindCounts) and table.power):
        return low, high
    # A mean of powers of p / q is skewed: its logarithm is nearer to a normal variable.
    first = from_p * in_p + from_q * in_q
    null = table.spread * second.variance
    error = torch.maximum(first - null, null).sqrt() * z * student_ratio(table.dof, z)
    skew = torch.maximum(table.power * error / (1 + table.power * estimate), error / (estimate + error))
    skew = torch.nan_to_num(skew).clamp(min=1e-9)
    return torch.minimum(low, estimate - error), torch.maximum(
        high, estimate + error * torch.expm1(skew) / skew
    )
