r"""A control variate for the mean of log p - log q over draws from P: q / p - 1, whose mean is 0.

Let d = log p - log q. If P has mass wherever Q has mass, :math:`E_P[q / p] = 1`. Then the mean of
:math:`d + c (q / p - 1)` is KL(P || Q) for every c. The c that minimizes the variance is minus the coefficient of
the regression of d on q / p - 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGEST_TAIL_INDEX = 0.4
"""If the tail index of q / p is at least this number, the control variate is not used.

`tail_index` defines the tail index. The variance of q / p is infinite if the tail index is 0.5 or more.
"""
# The control variate is used only if it explains at least this fraction of the variance of d. With a smaller fraction,
# the heavy tails of q / p can add more variance than the control variate removes. The coverage tests in
# `tests/estimators/test_importance.py` and `tests/pairs/monte_carlo/test_from_draws.py` fail if this constant
# is smaller.
_LEAST_EXPLAINED = 0.75


def ratio_minus_one(d: Tensor) -> Tensor:
    """Return q / p - 1 for d = log p - log q, clamped so that the square of the result is finite."""
    return torch.expm1(-d.detach()).clamp(max=torch.finfo(d.dtype).max ** 0.4)


def coefficient(d: Tensor, ratio: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the coefficient of q / p - 1 that minimizes the variance of the mean of d, or 0 if it is unreliable.

    The coefficient is 0 in three cases. First, the mean of q / p - 1 differs significantly from 0, because Q has mass
    where P has none. Second, the largest values of q / p suggest an infinite variance. Then a few draws would determine
    the coefficient, and the standard error would be too small. Third, q / p - 1 explains less than three quarters of
    the variance of d.

    d and the `ratio` q / p - 1 have the shape (draws, ...), the coefficients (...). The `weights` of the draws, shape
    (draws,), are equal by default.
    """
    if weights is None:
        weights = torch.ones(d.shape[0], dtype=d.dtype, device=d.device)
    share = (weights / weights.sum()).reshape(-1, *[1] * (d.ndim - 1))
    counted = share**2 / (share**2).sum()
    mean = (share * ratio).sum(0)
    variance = (share**2 * (ratio - mean) ** 2).sum(0)
    reliable = (variance > 0) & variance.isfinite() & (mean.abs() <= 3 * variance.sqrt())
    reliable = reliable & (tail_index(ratio) < LARGEST_TAIL_INDEX)
    centered = ratio - (counted * ratio).sum(0)
    spread = (counted * centered**2).sum(0)
    rest = d - (counted * d).sum(0)
    regression = (counted * rest * centered).sum(0) / torch.where(reliable, spread, 1)
    explained = regression.square() * spread >= _LEAST_EXPLAINED * (counted * rest.square()).sum(0)
    return torch.where(reliable & explained & regression.isfinite(), -regression, 0)


def tail_index(ratio: Tensor) -> Tensor:
    """Return Hill's estimate of the tail index k, from values of q / p - 1 at draws from P.

    The tail index is defined by the tail probability P(q / p > t), which decreases as t^(-1 / k) for large t. The
    variance of q / p is finite for k < 1/2.

    A Simple General Approach to Inference About the Tail of a Distribution (Hill, 1975)
    """
    count = ratio.shape[0]
    top = min(math.ceil(0.2 * count), math.ceil(3 * count**0.5))
    largest = torch.log1p(ratio.clamp(min=-1)).topk(top, dim=0).values
    return (largest - largest[-1]).mean(0)
