"""Roots of increasing functions by bisection, for a batch of functions in one pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def bisect(f: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, steps: int = 110) -> Tensor:
    """Return the root of an increasing function in [low, high], to the last digit.

    `f` is a function of each element of a tensor. If [low, high] contains no root, return the end where `f` is closer
    to 0.
    """
    for _ in range(steps):
        middle = (low + high) / 2
        is_below = f(middle) < 0
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    return (low + high) / 2


def log_root(f: Callable[[Tensor], Tensor], like: Tensor, low: float = -690.0, high: float = 690.0) -> Tensor:
    """Return the positive root of an increasing function, by bisection of log x, in the shape of `like`.

    If the function is positive everywhere, return 0. If the function is negative everywhere, return infinity. `low` and
    `high` are the smallest and the largest log x.
    """
    log_x = bisect(lambda u: f(torch.exp(u)), torch.full_like(like, low), torch.full_like(like, high))
    root = torch.exp(log_x)
    return torch.where(log_x > high - 1, torch.inf, torch.where(log_x < low + 1, 0.0, root))
