"""Numbers that differ by rounding errors only, as copies of a value that were computed in two ways, made equal."""

from __future__ import annotations

import math

import numpy as np

from kullback.common.arrays import Floats

# `tests/common/test_rounding_errors.py` checks these constants on copies with noise and on continuous draws.

# The largest rounding error: this part of the number (in float32, four units in its last place), or this part of the
# spread. The latter is at most this part of the number, except within float64's precision of the spread: numbers near 0
# may have many scales.
_OF_NUMBER, _OF_SINGLE = 1e-11, 4 * 2.0**-24
_OF_SPREAD, _MOST_OF_NUMBER, _PRECISION = 1e-9, 1e-3, 1e-15
# The largest rounding error in mean distances of the values around, a twentieth of them on either side. Continuous
# draws are this close with about the same probability.
_OF_DISTANCE, _AROUND = 0.01, 0.05
# With a smaller share of numbers that are close to another one, they are close by chance.
_LEAST_CLOSE = 0.1


def without_rounding_errors(x: Floats) -> Floats:
    """Return numbers, shape (n,), with numbers that differ by rounding errors replaced by the smallest of them.

    Return `x` itself if fewer than a tenth of the numbers are that close to another one.
    """
    values, counts = np.unique(x, return_counts=True)
    half = values / 2  # whose range is finite
    reach = math.ceil(_AROUND * len(values))
    with np.errstate(over="ignore", invalid="ignore"):  # infinite numbers are close to none
        gaps, size = np.diff(half), np.maximum(np.abs(half[:-1]), np.abs(half[1:]))
        spread = np.subtract(*np.quantile(half, [0.75, 0.25]))
        is_single = bool((values.astype(np.float32) == values).all())
        of_spread = np.maximum(np.minimum(_OF_SPREAD * spread, _MOST_OF_NUMBER * size), _PRECISION * spread)
        error = np.maximum(of_spread, (_OF_SINGLE if is_single else _OF_NUMBER) * size)
        place = np.arange(len(gaps))
        first, last = np.maximum(place - reach, 0), np.minimum(place + 1 + reach, len(gaps))
        near = gaps <= np.minimum(error, _OF_DISTANCE * (half[last] - half[first]) / (last - first))
    is_close = np.append(near, False) | np.insert(near, 0, False)
    if counts[is_close].sum() < _LEAST_CLOSE * len(x):
        return x
    starts = np.insert(~near, 0, True)
    return values[starts][np.cumsum(starts) - 1][np.searchsorted(values, x)]
