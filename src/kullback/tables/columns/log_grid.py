r"""The grid on which every engine counts numbers, with buckets that get wider with the distance from a center.

With center :math:`c`, a number :math:`x` at a distance :math:`a = |x - c| = 2^e m`, :math:`1 \le m < 2`, has bucket

.. math:: b = \operatorname{sign}(x - c) \, \bigl(32 (e + 1022) + \lfloor 32 (m - 1) \rfloor + 1\bigr)

so each octave has 32 buckets of equal width, which is 1.6 to 3.1 % of the distance, and :math:`b` grows with :math:`x`.
Bucket 0 contains the center and all numbers less than :math:`2^{-1022}` (the smallest normal number) away from the
center. `ColumnProfile.unseparated` is the weight of these numbers without the center.

The octaves are powers of two, so the upper 17 bits of a float64 give its bucket, exactly and without a logarithm. Each
integer up to 63 away from the center has a bucket of its own.

`kullback.common.streaming.QuantileSketch` has a different grid on purpose: non-negative tensors on their device, exact
to 0.5 %. Columns need negative numbers and centers. One grid for both would invalidate saved profiles.
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
MOST_BUCKET = PER_OCTAVE * 2046  # the bucket of the largest float64
# With a center c up to this number, x - c is finite for every finite x. The reason is that c is less than half a unit
# in the last place of the largest float64.
FARTHEST_CENTER = 2.0**960


def bucket_codes(values: Floats) -> Integers:
    """Return the upper 17 bits of each float64: the sign, the exponent and the first five bits of the fraction."""
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
    """Return the two ends of a bucket, which includes the end nearer to the center and excludes the other end.

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
    """Return the smallest and the largest integer of a bucket, exact at any size.

    For the last bucket, and for a center that is not an integer, return the two ends of the bucket instead.

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
    """Return the distance from the center at which the bucket with this number begins."""
    octave, part = divmod(step - 1, PER_OCTAVE)
    mantissa = 1 + part / PER_OCTAVE
    # float64 cannot represent 2^1024, so the last bucket ends at infinity.
    return float("inf") if octave - 1022 > 1023 else mantissa * 2.0 ** (octave - 1022)
