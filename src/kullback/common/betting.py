"""Intervals of the mean of a finite text that hold at every look, by betting on units that are read in random order."""

from __future__ import annotations

import math

import numpy as np

from kullback.common.arrays import Floats

# The shares of the largest safe stake that are bet, and the parts of the initial wealth that bet them. Half bets almost
# all, which is best for an upper end far below the bound. The small shares are best for narrow intervals.
_STAKES = np.array([0.99, *2.0 ** -np.arange(1, 13)])
_PARTS = np.array([0.5, *np.full(12, 0.5 / 12)])
# The error of rounding, relative to the sums. This error is subtracted from each gain, so rounding alone makes no gain.
_ROUNDING = 1e-11
_TOLERANCE = 1e-6  # of an end of the interval, relative to the end's distance from the bound
# The logarithm of the largest wealth; a larger wealth could overflow in float64.
_RICHEST = 700.0


def log_wealth(sums: Floats, sizes: Floats, mean: float | Floats, *, first: int = 0) -> Floats:
    r"""Return the logarithm of the wealth, after each unit, of bets that the mean over all rows exceeds `mean`.

    .. math:: W_t = \sum_j w_j \prod_{s=1}^t \Bigl(1 + b_j \frac{g_s}{m\,n_{\max} - D_s}\Bigr),
        \qquad g_s = x_s - m\,n_s + D_s, \quad D_s = \frac{\sum_{r<s} (x_r - m\,n_r)}{N - s + 1}

    Units are drawn without replacement. If the mean is m, the expectation of the next unit's :math:`x - m\,n` is
    :math:`-D_s`, so the bets are fair whatever the values are. They lose everything at worst, because x is not
    negative. By Ville's inequality, the wealth ever reaches 1/a with probability a at most. W decreases in m.

    Arguments:
        sums: for each unit that was read, the sum over its rows; not negative, in the random order, shape (..., read).
        sizes: the number of rows of every unit, in the same order, shape (..., units). No bet depends on the sizes of
            unread units, apart from the largest.
        mean: the mean per row to bet against, a number or shape (..., 1).
        first: the number of units before the first bet.

    References:
        Confidence sequences for sampling without replacement (Waudby-Smith and Ramdas, 2020)
        Estimating means of bounded random variables by betting (Waudby-Smith and Ramdas, 2024)
    """
    read = sums.shape[-1]
    of_read, left = sizes[..., :read], sizes.shape[-1] - np.arange(read)
    before, rows_before = np.cumsum(sums, -1) - sums, np.cumsum(of_read, -1) - of_read
    gained = (before - mean * rows_before) / left
    rounding = _ROUNDING * (before + mean * rows_before) / left
    largest_loss = mean * sizes.max(-1, keepdims=True) - gained
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        gain = (sums - mean * of_read + gained - rounding) / (largest_loss + rounding)
    # There is no bet if the unread sums are known to be 0. If the sums read so far exceed the total that `mean` allows,
    # the mean is larger for certain.
    gain = np.where(largest_loss > 10 * rounding, np.maximum(gain, -1), 0.0)
    gain[largest_loss < -10 * rounding] = np.inf
    gain[..., :first] = 0
    wealth = np.zeros(gain.shape)
    for stake, part in zip(_STAKES, _PARTS, strict=True):
        wealth += part * np.exp(np.minimum(np.cumsum(np.log1p(stake * gain), -1), _RICHEST))
    with np.errstate(divide="ignore"):
        return np.log(wealth)


def exceeds(sums: Floats, sizes: Floats, limit: float, *, low: float, error: float, first: int = 0) -> bool:
    """Return whether the mean per row over all units is above a limit: whether `lower_end` is, at less expense."""
    read = sizes[: len(sums)]
    if np.isposinf(sums).any():
        return True
    if len(sums) == len(sizes):
        return float(sums.sum() / sizes.sum()) > limit
    above = np.maximum(sums - low * read, 0.0)  # the rounding of sums may leave less than 0
    return limit < low or bool((log_wealth(above, sizes, limit - low, first=first) >= -math.log(error)).any())


def lower_end(sums: Floats, sizes: Floats, *, low: float, error: float, first: int = 0) -> float:
    """Return a number that the mean per row over all units exceeds, at all looks with probability 1 - `error`.

    `sums`, shape (read,), `sizes`, shape (units,), and `first` are as in `log_wealth`. `low` is the smallest mean that
    a unit can have.
    """
    if np.isposinf(sums).any():
        return math.inf
    if len(sums) == len(sizes):
        return float(sums.sum() / sizes.sum())
    read = sizes[: len(sums)]
    above = np.maximum(sums - low * read, 0.0)

    def is_excluded(mean: float) -> bool:
        return exceeds(above, sizes, mean, low=0.0, error=error, first=first)

    # The sum over the units read is certain.
    outside, inside = float(above.sum() / sizes.sum()), float(above.sum() / max(read.sum(), 1))
    while inside > 0 and is_excluded(inside):
        outside, inside = inside, 2 * inside
    while inside - outside > _TOLERANCE * inside and outside < (middle := (outside + inside) / 2) < inside:
        outside, inside = (middle, inside) if is_excluded(middle) else (outside, middle)
    return outside + low


def upper_end(sums: Floats, sizes: Floats, *, high: float, error: float, first: int = 0) -> float:
    """Return a number that exceeds the mean per row over all units, as `lower_end`; `high` is the largest mean of a
    unit.
    """
    if math.isinf(high) or np.isposinf(sums).any():
        return math.inf
    return -lower_end(-sums, sizes, low=-high, error=error, first=first)
