r"""Confidence intervals for total variation from counts.

The distance of the shares is half a sum of absolute values of nearly normal variables, with means :math:`d_i` and
standard deviations :math:`\sigma_i`. For a small :math:`d_i` the absolute value is biased upwards. The bias depends on
how a distance is spread over the categories, and the limits take the least favorable spread.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kullback.estimators.discrete.count_intervals import coarser
from kullback.estimators.discrete.formulas import unseen_shares
from kullback.estimators.discrete.measures import KNOWN, is_rare
from kullback.estimators.evidence import standard_normal_quantile

# E |Z| for a standard normal variable, and the variance of |Z|.
_MEAN, _VARIANCE = math.sqrt(2 / math.pi), 1 - 2 / math.pi
_STEPS = 60
_MOST_UNSEEN = 0.05


def total_variation_interval(
    a: Tensor,
    b: Tensor,
    confidence: float = 0.95,
    inflation: tuple[float, float] = (1.0, 1.0),
) -> tuple[Tensor, Tensor]:
    r"""Return a confidence interval for total variation from counts: two ends, float64, shape (...), from 0 to 1.

    The upper limit spreads a distance t evenly, :math:`|d_i| = x \sigma_i`, which makes the mean distance of the shares
    smallest. The lower limit puts it into two categories, which makes the mean largest. If more than 5 % of a side's
    draws are in categories that it drew once, or that have no draws of the other side, rare categories are merged
    first.

    Arguments:
        a, b: the counts of P and of Q, shape (..., K).
        confidence: the probability that the interval contains the distance.
        inflation: the factors of the variances of P's and of Q's shares for dependent draws.

    Example:
        >>> import torch
        >>> total_variation_interval(torch.tensor([30, 10]), torch.tensor([20, 20]))
        (tensor(0., dtype=torch.float64), tensor(0.4563, dtype=torch.float64))

    References:
        On Choosing and Bounding Probability Metrics (Gibbs and Su, 2002)
    """
    a, b = torch.broadcast_tensors(a.to(torch.float64), b.to(torch.float64))
    z = standard_normal_quantile(confidence)
    high = _upper_end(a, b, z, inflation)
    low = _lower_end(a, b, z, inflation)
    rare = torch.stack([*unseen_shares(a, b), *unseen_shares(b, a)]).amax(0)
    low = torch.where(rare > _MOST_UNSEEN, _lower_end(*coarser(a, b), z, inflation), low)
    return low.clamp(0, 1), high.clamp(0, 1)


def total_variation_estimate(
    a: Tensor, b: Tensor, inflation: tuple[float, float] = (1.0, 1.0)
) -> tuple[Tensor, Tensor]:
    """Return the distance of the shares minus its bias, and the standard error."""
    a, b = torch.broadcast_tensors(a.to(torch.float64), b.to(torch.float64))
    spreads, total = _spreads(a, b, inflation)
    differences = (a / a.sum(-1, keepdim=True) - b / b.sum(-1, keepdim=True)).abs()
    x = differences / spreads.clamp(min=torch.finfo(a.dtype).tiny)
    bias = torch.where(spreads > 0, spreads * (_folded(x) - x), 0.0).sum(-1) / 2
    return (differences.sum(-1) / 2 - bias).clamp(min=0), total


def _distance(a: Tensor, b: Tensor) -> Tensor:
    return (a / a.sum(-1, keepdim=True) - b / b.sum(-1, keepdim=True)).abs().sum(-1) / 2


def _shrinkage(a: Tensor, b: Tensor) -> Tensor:
    """Return the fall of the distance when the event that separates P from Q, and its complement, get a draw each."""
    sides = [(x, x.sum(-1, keepdim=True)) for x in (a, b)]
    where = a / sides[0][1] > b / sides[1][1]
    inside = [((x * where).sum(-1), n[..., 0]) for x, n in sides]
    raw, shrunk = ([(x + more) / (n + 2 * more) for x, n in inside] for more in (0, 1))
    return (raw[0] - raw[1]) - (shrunk[0] - shrunk[1])


def _spreads(a: Tensor, b: Tensor, inflation: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Return the standard deviation of each difference of shares, and of the distance for a known event.

    Each binary choice gets two draws more, one for each side (Agresti and Caffo, 2000).
    """
    squares, total = torch.zeros_like(a), torch.zeros_like(a[..., 0])
    where = a / a.sum(-1, keepdim=True) > b / b.sum(-1, keepdim=True)
    for x, factor in ((a, inflation[0]), (b, inflation[1])):
        n = x.sum(-1, keepdim=True)
        known = n > KNOWN / 2
        share = torch.where(known, x / n, (x + 1) / (n + 2))
        squares = squares + torch.where(known, 0.0, factor * share * (1 - share) / n)
        inside = torch.where(known, 0.0, (x * where).sum(-1, keepdim=True) + 1) / (n + 2)
        total = total + torch.where(known, 0.0, factor * inside * (1 - inside) / n)[..., 0]
    squares = squares * (a + b > 0)
    # If P and Q are close, the event is chosen by chance, and other events vary more.
    return squares.sqrt(), torch.stack([total, squares.amax(-1), squares.sum(-1) / 4]).amax(0).sqrt()


def _folded(x: Tensor) -> Tensor:
    """Return E |N(x, 1)|."""
    return _MEAN * (-(x**2) / 2).exp() + x * torch.erf(x / math.sqrt(2))


def _upper_end(a: Tensor, b: Tensor, z: float, inflation: tuple[float, float]) -> Tensor:
    """Return the largest distance that is not rejected; the upward bias of rare categories stays in it."""
    spreads, total = _spreads(a, b, inflation)
    rare = is_rare(a, b)
    unit = (spreads.masked_fill(rare, 0).sum(-1) / 2).clamp(min=torch.finfo(a.dtype).tiny)
    differences = (a / a.sum(-1, keepdim=True) - b / b.sum(-1, keepdim=True)).abs() / 2
    of_rare = differences.masked_fill(~rare, 0).sum(-1)
    goal = (differences.sum(-1) - of_rare + z * total) / unit
    low, high = torch.zeros_like(goal), goal
    for _ in range(_STEPS):
        middle = (low + high) / 2
        above = _folded(middle) > goal
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return high * unit + of_rare


def _lower_end(a: Tensor, b: Tensor, z: float, inflation: tuple[float, float]) -> Tensor:
    spreads, total = _spreads(a, b, inflation)
    present = spreads > 0
    pair = torch.where(present, spreads, torch.inf).sort(-1).values[..., :2]
    pair = torch.where(pair.isinf(), 0.0, pair).mean(-1).clamp(min=torch.finfo(a.dtype).tiny)
    others = (_MEAN * (spreads.sum(-1) / 2 - pair)).clamp(min=0)
    squares = spreads.square()
    concentrated = squares.topk(min(2, squares.shape[-1]), dim=-1).values.sum(-1) / squares.sum(-1).clamp(
        min=torch.finfo(a.dtype).tiny
    )
    reach = z * total * (_VARIANCE + (1 - _VARIANCE) * concentrated).sqrt()
    goal = (_distance(a, b) - _shrinkage(a, b) - others - reach) / pair
    # The smallest x with E |N(x, 1)| >= goal, at least 0.
    low, high = torch.zeros_like(goal), goal.clamp(min=0)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        above = _folded(middle) >= goal
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return torch.where(_folded(low) >= goal, low, high) * pair
