r"""The grid on which every engine counts numbers: buckets that get wider with the distance from a center.

With center :math:`c`, a number :math:`x` at a distance :math:`a = |x - c| = 2^e m`, :math:`1 \le m < 2`, has bucket

.. math:: b = \operatorname{sign}(x - c) \, \bigl(32 (e + 1022) + \lfloor 32 (m - 1) \rfloor + 1\bigr)

so each octave has 32 buckets of equal width, 1.6 to 3.1 % of the distance, and :math:`b` grows with :math:`x`. Bucket
0 contains the center itself and all numbers less than :math:`2^{-1022}` (the smallest normal number) away from it.

The grid is made of powers of two: the bucket of a float64 is its upper 17 bits, exactly and without a logarithm.
Integers up to 63 away from the center have buckets of their own.

The divergences of rows have another grid, that of `kullback.common.streaming.QuantileSketch`, on purpose. It counts
tensors on their device, which are never negative, and its quantiles are exact to 0.5 %, where this grid has 1.6 to
3.1 %. Columns need negative numbers, centers, and buckets that NumPy finds without a logarithm. One grid for both would
change reported quantiles, or the profiles that were saved.
"""

from __future__ import annotations

import math

import numpy as np

from kullback.common.arrays import Floats, Integers

PER_OCTAVE = 32
SHIFT = np.uint64(52 - 5)
CODES = 1 << 17
SIGN = 1 << 16
SMALLEST = 2.0**-1022
MOST_BUCKET = PER_OCTAVE * 2046  # of the largest number
# Up to here x - c is finite for every finite x: c is less than half of the last digit of the largest one.
FARTHEST_CENTER = 2.0**960


def bucket_codes(values: Floats) -> Integers:
    """Return the upper 17 bits of each float64: its sign, exponent and the first five bits of its fraction."""
    codes = np.ascontiguousarray(values).view(np.uint64) >> SHIFT
    return codes.view(np.int64)


def buckets_of_codes(codes: Integers) -> Integers:
    """Return the buckets of the codes of finite numbers."""
    steps = np.maximum((codes & (SIGN - 1)) - (PER_OCTAVE - 1), 0)
    return np.where(codes >= SIGN, -steps, steps)


def buckets_of(values: Floats, center: float = 0.0) -> Integers:
    """Return the bucket of each finite number.

    Example:
        >>> import numpy as np
        >>> buckets_of(np.array([5.0, 5.125, 5.25])) - buckets_of(np.array([4.0]))
        array([ 8,  9, 10])
        >>> buckets_of(np.array([-3.0, 0.0, 3.0]), center=0.0)
        array([-32753,      0,  32753])
    """
    return buckets_of_codes(bucket_codes(values - center if center else values))


def bucket_ends(bucket: int, center: float = 0.0) -> tuple[float, float]:
    """Return the two ends of a bucket: it holds its end nearer to the center, not the other one.

    Example:
        >>> bucket_ends(int(buckets_of(np.array([5.3]))[0]))
        (5.25, 5.375)
        >>> bucket_ends(0, center=7.0)
        (7.0, 7.0)
    """
    if bucket == 0:
        return center, center
    near, far = _distance(abs(bucket)), _distance(abs(bucket) + 1)
    return (center + near, center + far) if bucket > 0 else (center - far, center - near)


def integers_in(bucket: int, center: float = 0.0) -> tuple[float, float]:
    """Return the smallest and the largest integer of a bucket, exact however large they are; infinite for the last one.

    Example:
        >>> integers_in(int(buckets_of(np.array([100.0]))[0]))
        (100, 101)
        >>> integers_in(int(buckets_of(np.array([2.0]))[0]), center=2**60 + 1)
        (1152921504606846979, 1152921504606846979)
    """
    low, high = bucket_ends(bucket)
    if math.isinf(low) or math.isinf(high) or not float(center).is_integer():
        return bucket_ends(bucket, center)
    if bucket == 0:
        return int(center), int(center)
    if bucket > 0:
        return int(center) + math.ceil(low), int(center) + math.ceil(high) - 1
    return int(center) + math.floor(low) + 1, int(center) + math.floor(high)


def _distance(step: int) -> float:
    """Return where the bucket of the given number begins, as a distance from the center."""
    octave, part = divmod(step - 1, PER_OCTAVE)
    mantissa = 1 + part / PER_OCTAVE
    # 2^1024 is beyond float64: the last bucket ends at infinity.
    return float("inf") if octave - 1022 > 1023 else mantissa * 2.0 ** (octave - 1022)
