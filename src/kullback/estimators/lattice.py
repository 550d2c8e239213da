"""Numbers rounded to a common step: the step, and random moves within it, which do not change KL."""

from __future__ import annotations

import math

import numpy as np
import torch

from kullback.estimators.draws import Array, Draws

# `tests/estimators/test_lattice.py` checks the constants of this file on rounded numbers and on prices, and
# `benchmarks/coverage.py` on rounded normal draws.

# The largest number of steps in the smallest gap between two values.
_MOST_STEPS = 12
# A value at a larger distance from the lattice, in steps and beyond the rounding error of floats, is not on the
# lattice.
_OFF = 1e-3
# If the rounding error of the floats is a larger part of the step, no lattice can be detected.
_UNCLEAR = 0.05
# If a smaller proportion of the draws repeats a value, the ties may be chance.
_FEW_TIES = 0.01
# A lattice is filled if the number of distinct values is at least this times the number expected for equally likely
# points.
_OCCUPIED = 0.5
# With fewer distinct values, each value has enough draws to be a bin, so the draws are not moved within the step.
FEWEST_VALUES = 16
# If the mean number of draws of a value is larger, the values are treated as categories.
DRAWS_FOR_VALUE = 5


def common_step(p: Draws, q: Draws) -> float | None:
    """Return the step of a lattice that contains all numbers of both sides and is filled by both, or None.

    A side fills the lattice if it has at least half as many distinct values as equally likely points would give. Only
    the points between the 5 % and 95 % quantiles count. Prices do not fill a lattice, because most of them end in 9.
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
        # The rounding error of a step from a single gap adds up over many steps, so the step is fitted to the whole
        # range.
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


def as_categories(p: Draws, q: Draws) -> tuple[Draws, Draws, str] | None:
    """Return numbers of few values, such as prices, as categories with a note; None if bins suit them better."""
    values, codes = np.unique(np.concatenate([p.x[:, 0], q.x[:, 0]]), return_inverse=True)
    if not FEWEST_VALUES < len(values) <= len(codes) / DRAWS_FOR_VALUE or common_step(p, q) is not None:
        return None
    note = (
        f"{len(codes):,} draws have only {len(values):,} unevenly spaced values. Each value counts as a category, so "
        "distances between values do not matter."
    )
    first, second = np.split(codes.astype(np.int64)[:, None], [len(p.x)])
    return p.at(first), q.at(second), note


def jittered(draws: Draws, step: float, rng: np.random.Generator) -> Draws:
    """Return draws moved uniformly at random by up to half a step."""
    return draws.at(draws.x + step * (rng.random(draws.x.shape) - 0.5))
