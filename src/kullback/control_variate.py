r"""A control variate for the mean of log p - log q over draws of P: q / p - 1, whose mean is 0.

With d = log p - log q, the mean of :math:`d + c (q / p - 1)` is KL(P || Q) for any c, as
:math:`E_P[q / p] = 1` where P has mass wherever Q has. The c of least variance is minus the slope of d on q / p - 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["coefficient", "surplus", "tail_index"]

# q / p is left out beyond this tail index, at which its variance is all but infinite.
_HEAVY = 0.4


def surplus(d: Tensor) -> Tensor:
    """Return q / p - 1, in such bounds that its square is a number."""
    return torch.expm1(-d.detach()).clamp(max=torch.finfo(d.dtype).max ** 0.4)


def coefficient(d: Tensor, surplus: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return minus the slope of d on the surplus, both of shape (draws, ...); 0 where the surplus cannot be trusted.

    That is where Q shows mass that P has not, as the mean is then not 0, or where the largest q / p hint at a variance
    that is not finite: a few draws would then decide the slope, and more draws belie the standard error. Of draws with
    weights, shape (draws,), it is the slope that gives the weighted mean its least variance.
    """
    if weights is None:
        weights = torch.ones(d.shape[0], dtype=d.dtype, device=d.device)
    share = _along_draws(weights / weights.sum(), d)
    counted = share**2 / (share**2).sum()
    mean = (share * surplus).sum(0)
    variance = (share**2 * (surplus - mean) ** 2).sum(0)
    usable = (variance > 0) & variance.isfinite() & (mean.abs() <= 3 * variance.sqrt())
    usable = usable & (tail_index(surplus) < _HEAVY)
    centerd = surplus - (counted * surplus).sum(0)
    spread = (counted * centerd**2).sum(0)
    slope = (counted * (d - (counted * d).sum(0)) * centerd).sum(0) / torch.where(usable, spread, 1)
    return torch.where(usable & slope.isfinite(), -slope, 0)


def tail_index(surplus: Tensor) -> Tensor:
    """Estimate k where P(q / p > t) falls as t^(-1 / k): variances are finite for k below 1 / 2.

    A Simple General Approach to Inference About the Tail of a Distribution (Hill, 1975)
    """
    count = surplus.shape[0]
    top = min(math.ceil(0.2 * count), math.ceil(3 * count**0.5))
    largest = torch.log1p(surplus.clamp(min=-1)).topk(top, dim=0).values
    return (largest - largest[-1]).mean(0)


def _along_draws(weights: Tensor, like: Tensor) -> Tensor:
    return weights.reshape(-1, *[1] * (like.ndim - 1))
