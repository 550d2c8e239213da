"""Numbers rounded to a common step: detection of the step and of preferred values, and removal of the rounding."""

from __future__ import annotations

import math

import numpy as np
import torch

from kullback.common.serial_dependence import has_few_digits
from kullback.estimators.draws import Array, Draws, steps_between_ties

# `tests/estimators/test_lattice.py` checks the constants of this file on rounded numbers and on prices, and
# `benchmarks/coverage.py` on rounded normal draws.

# The smallest gap between two values is assumed to be at most this number of steps.
_MOST_STEPS = 12
# A value is on the lattice if its distance from the lattice is at most `_OFF` steps plus the rounding error of floats.
_OFF = 1e-3
# If the rounding error of the floats is more than this fraction of the step, no lattice can be detected.
_UNCLEAR = 0.05
# If less than this proportion of the draws repeats the value of another draw, the ties may have occurred by chance, and
# no lattice is searched.
_FEW_TIES = 0.01
# Draws fill a lattice if they have at least `_OCCUPIED` times the number of distinct values that is expected for
# equally likely points of the lattice.
_OCCUPIED = 0.5
# With at most this number of distinct values, each value has enough draws for a bin, and no lattice is searched.
FEWEST_VALUES = 16
# If the mean number of draws for each distinct value is at least this number, the values are treated as categories.
DRAWS_FOR_VALUE = 5
# Some values count as preferred if the counts of neighboring values vary more than for a smooth density, by at least
# `_PREFERRED` standard errors. Neighboring second differences of the counts are correlated, and the sum of the squared
# correlations is 17 / 18. So the variance of the sum of their squares is larger by the factor `_CORRELATED`.
_PREFERRED, _CORRELATED = 5.0, 1 + 17 / 18
# Numbers with at most `_BITS` binary digits may be rounded. float32 numbers whose median relative gap is below `_DENSE`
# may be rounded too.
_BITS, _DENSE = 11, 1e-5


def common_step(p: Draws, q: Draws) -> float | None:
    """Return the step of a lattice that contains all numbers of both sides, if both sides fill it; otherwise None.

    A side fills the lattice if it has at least half as many distinct values as draws from equally likely points would
    have. Only the points between the 5 % and 95 % quantiles count. Prices do not fill a lattice, because most prices
    end in 9.
    """
    x, y = p.distinct[0], q.distinct[0]
    if len(x) > (1 - _FEW_TIES) * len(p.x) or len(y) > (1 - _FEW_TIES) * len(q.x):
        return None
    values = np.unique(np.concatenate([x, y]))
    if len(values) <= FEWEST_VALUES:
        return None
    largest = float(np.abs(values).max())
    epsilon = max(torch.finfo(p.tensor.dtype).eps, torch.finfo(q.tensor.dtype).eps) * largest
    gaps = np.diff(values)
    gaps = gaps[gaps > 4 * epsilon]
    if not len(gaps):
        return None
    smallest = float(gaps.min())
    for parts in range(1, _MOST_STEPS + 1):
        step = smallest / parts
        error = 4 * epsilon / step
        if error > _UNCLEAR:
            return None
        # The step from a single gap has a rounding error, which is multiplied by the number of steps in the range. So
        # the step is fitted to all values.
        number = np.round((values - values[0]) / step)
        step = float(number @ (values - values[0]) / (number @ number))
        off = np.abs((values - values[0]) / step - np.round((values - values[0]) / step))
        if off.max() <= _OFF + error:
            return step if all(_fills(side.x[:, 0], step) for side in (p, q)) else None
    return None


def _fills(x: Array, step: float) -> bool:
    low, high = np.quantile(x, [0.05, 0.95])
    inside = np.round((x[(x >= low) & (x <= high)] - low) / step)
    points = round((high - low) / step) + 1
    return len(np.unique(inside)) >= _OCCUPIED * points * -math.expm1(-len(inside) / points)


def are_rounded(values: Array) -> bool:
    """Return whether distinct numbers have so few digits, decimal or binary, that rounding may have made draws equal.

    The numbers of float16 and bfloat16 have at most 11 binary digits. float32 numbers may be rounded if their median
    gap is nearly as small as the precision of float32.
    """
    if has_few_digits(values) or (np.frexp(values)[0] * 2**_BITS % 1 == 0).all():
        return True
    gaps = np.diff(values) / np.abs(values[1:]).clip(min=np.finfo(np.float64).tiny)
    return bool((np.median(gaps) < _DENSE) and (values.astype(np.float32) == values).all())


def prefers_values(p: Draws, q: Draws, step: float) -> bool:
    """Return whether some values of a lattice, such as multiples of 5, are preferred in P, in Q or in both together."""
    x, y = p.x[:, 0], q.x[:, 0]
    return any(_is_rough(values, step) for values in (x, y, np.concatenate([x, y])))


def _is_rough(x: Array, step: float) -> bool:
    """Return whether the second differences of the counts of neighboring values are too large for a smooth density.

    For Poisson counts a, b and c of equal mean, (a - 2 b + c)^2 and a + 4 b + c have the same expectation.
    """
    low, high = np.quantile(x, [0.05, 0.95])
    counts = np.bincount(np.round((x[(x >= low) & (x <= high)] - low) / step).astype(np.int64)).astype(float)
    if len(counts) < FEWEST_VALUES / 2:
        return False
    square = np.square(np.diff(counts, 2))
    expected = counts[:-2] + 4 * counts[1:-1] + counts[2:]
    variance = _CORRELATED * float((2 * expected**2 + 3 * expected).sum())
    return float((square - expected).sum()) > _PREFERRED * math.sqrt(variance)


def as_categories(p: Draws, q: Draws) -> tuple[Draws, Draws, str] | None:
    """Return numbers with few distinct values, such as prices, as categories with a note; None if bins are better.

    Bins are better for the values of a lattice, unless some values are preferred. A bin of several values would hide
    the preference.
    """
    values, codes = np.unique(np.concatenate([p.x[:, 0], q.x[:, 0]]), return_inverse=True)
    if not FEWEST_VALUES < len(values) <= len(codes) / DRAWS_FOR_VALUE:
        return None
    step = common_step(p, q)
    if step is not None and not prefers_values(p, q, step):
        return None
    which = "unevenly spaced values" if step is None else "values, some of which are preferred"
    note = (
        f"{len(codes):,} draws have only {len(values):,} {which}. Each value counts as a category, so "
        "distances between values do not matter."
    )
    first, second = np.split(codes.astype(np.int64)[:, None], [len(p.x)])
    return p.at(first), q.at(second), note


def spread(draws: Draws, step: float) -> Draws:
    """Return the draws with equal draws spread evenly over the interval of length `step` around their value.

    Equal draws keep their order.
    """
    _, places, counts = draws.distinct
    return draws.at(draws.x + step * steps_between_ties(places, counts)[:, None])
