"""Removal of rounding errors from numbers: numbers that differ by rounding errors only are made equal.

Such numbers arise if a value is computed in two ways.
"""

from __future__ import annotations

import math

import numpy as np

from kullback.common.arrays import Floats

# `tests/common/test_rounding_errors.py` checks these constants on copies with noise and on continuous draws.

# Two numbers are close if their difference is at most the assumed rounding error. This error is `_OF_NUMBER` times the
# larger absolute value of the two. If all numbers are float32 values, `_OF_SINGLE` replaces `_OF_NUMBER`: about four
# units in the last place of float32.
_OF_NUMBER, _OF_SINGLE = 1e-11, 4 * 2.0**-24
# The assumed rounding error is at least `_OF_SPREAD` times the interquartile range. But numbers near 0 may have many
# scales, so this lower bound is at most `_MOST_OF_NUMBER` times the larger absolute value. In any case, the error is at
# least `_PRECISION`, about the precision of float64, times the interquartile range.
_OF_SPREAD, _MOST_OF_NUMBER, _PRECISION = 1e-9, 1e-3, 1e-15
# Close numbers must also be closer than `_OF_DISTANCE` times the mean gap between neighboring values. The mean is over
# the fraction `_AROUND` of the values on either side. Two neighboring continuous draws are this close with a
# probability of about `_OF_DISTANCE`.
_OF_DISTANCE, _AROUND = 0.01, 0.05
# If less than this fraction of the numbers are close to another number, they are assumed to be close by chance, and no
# number is changed.
_LEAST_CLOSE = 0.1


def without_rounding_errors(x: Floats) -> Floats:
    """Return `x`, shape (n,), with numbers that differ by rounding errors replaced by the smallest of these numbers.

    Return `x` itself if fewer than a tenth of the numbers differ from another number by a rounding error.
    """
    values, counts = np.unique(x, return_counts=True)
    half = values / 2  # the range of the halves does not overflow
    reach = math.ceil(_AROUND * len(values))
    with np.errstate(over="ignore", invalid="ignore"):  # an infinite number is close to no other number
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
