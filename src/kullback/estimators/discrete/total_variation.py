r"""Confidence intervals for total variation from counts.

The total variation of the proportions is half the sum of the absolute differences of the proportions. These differences
are nearly normal, with means :math:`d_i` and standard deviations :math:`\sigma_i`. For a small :math:`d_i`, the
absolute value is biased upwards. The sum of these biases depends on how the total variation is divided among the
categories. Each limit of the interval assumes the least favorable division.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kullback.common.inference import two_sided_quantile
from kullback.estimators.discrete.count_intervals import MOST_UNSEEN
from kullback.estimators.discrete.formulas import KNOWN, CategoryCounts

# `_MEAN` is E |Z| for a standard normal variable Z, and `_VARIANCE` is the variance of |Z|.
_MEAN, _VARIANCE = math.sqrt(2 / math.pi), 1 - 2 / math.pi
# The number of bisections is the number of bits of a float64 number, 53, and a few more for the scale of the number.
_STEPS = 60


def total_variation_interval(table: CategoryCounts, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
    r"""Return the limits of a confidence interval for total variation from counts: two float64 tensors of shape (...).

    The upper limit assumes :math:`|d_i| = x \sigma_i` with the same x for all categories, because this minimizes the
    mean of the estimate for a given total variation. The lower limit assumes that P and Q differ in two categories
    only, because this maximizes the mean. For the lower limit, rare categories are merged in two cases. More than 5 %
    of a side's draws are in categories with a single draw of this side, or in categories without draws of the other
    side.

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
