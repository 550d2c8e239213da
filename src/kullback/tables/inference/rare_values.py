"""Groups of values that are too rare for a bin each. The groups show differences between P's and Q's values.

If rare values were pooled into one bin, 500 shops in P and 500 entirely different shops in Q would look equal. Each row
is therefore placed in a group by the occurrences of its value in all *other* rows. The value may occur in neither
table, in P only, in Q only, or in both tables. A value in both tables is about equally frequent in both, or more than
twice as frequent in one of them. For a row of P and a row of Q with the same value, the other rows are nearly the same.
If P and Q are equal, the expected proportions in the groups therefore differ by no more than about the inverse of the
number of rows. This is the leave-one-out argument of Good and Turing. The divergence between the groups is at most the
divergence between the values.

Rows with the same value move between groups together, so the independent units are values: `RareValues.a` and
`RareValues.b` hold the rows by value and group.

The counts of both tables may agree more closely than counts of independent rows could, for example if each key occurs
once in each table. Each row is then placed by all rows, including itself, so every value is in one table or in both.

References:
    The population frequencies of species and the estimation of population parameters (Good, 1953)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kullback.common.arrays import Flags, Floats, Integers
from kullback.tables.inference.significance import sparse_test

GROUPS = ("seen nowhere else", "in P only", "in Q only", "more in P", "in both alike", "more in Q")
RATIO = 2.0  # a value is more frequent in one table if the ratio of its proportions is above this
TOO_ALIKE = 0.999  # with a larger p-value, counts agree more closely than counts of independent rows do


@dataclass(frozen=True)
class RareValues:
    """The rows of rare values by value and group; values with equal weights in all groups share an entry.

    P's weights a and Q's weights b by entry and group, shape (R, 6), are for one of the `number` values of each entry.
    `p_value` tests that these values are as frequent in P as in Q; it is NaN if the test is impossible.
    """

    a: Floats
    b: Floats
    number: Floats
    p_value: float = math.nan

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of each group."""
        numbers = ((self.a + self.b > 0) * self.number[:, None]).sum(0)
        return tuple(
            f"{number:,.0f} rare values {group}" for number, group in zip(numbers, GROUPS, strict=True)
        )

    @property
    def totals(self) -> tuple[Floats, Floats]:
        """P's and Q's weight in each group."""
        return self.number @ self.a, self.number @ self.b


def rare_values(a: Floats, b: Floats, sizes: tuple[float, float], random: np.random.Generator) -> RareValues:
    """Place each row of a rare value, with a and b rows of P and Q, in a group that depends on all other rows."""
    p_value = sparse_test(a, b, random)
    base = b.max(initial=0) + 1  # the numbers of rows are whole, so the products below are exact
    pairs, number = np.unique(a * base + b, return_counts=True)
    x, y = np.divmod(pairs, base)
    own = 0 if p_value > TOO_ALIKE else 1
    return RareValues(
        _one_hot(_groups(x - own, y, sizes)) * x[:, None],
        _one_hot(_groups(x, y - own, sizes)) * y[:, None],
        number.astype(np.float64),
        p_value,
    )


def rare_values_of_clusters(
    value: Integers,
    on_p: Flags,
    cluster: Integers,
    weight: Floats,
    sizes: Sequence[float],
) -> tuple[RareValues, Integers]:
    """Place each entry of the joint counts of rare values in a group that depends on all other clusters' rows."""
    number = int(value.max(initial=-1)) + 1
    others: list[Floats] = []
    for side in (on_p, ~on_p):
        total = np.bincount(value, weight * side, number)[value]
        own = np.unique(np.stack([value, cluster], 1), axis=0, return_inverse=True)[1].reshape(-1)
        left = total - np.bincount(own, weight * side)[own]
        others.append(np.where(left > 1e-9 * total, left, 0.0))  # less is a rounding error
    x, y = others
    group = _groups(x, y, (float(sizes[0]), float(sizes[1])))
    entry = value * len(GROUPS) + group
    a, b = (
        np.bincount(entry, weight * side, number * len(GROUPS)).reshape(number, len(GROUPS))
        for side in (on_p, ~on_p)
    )
    rows, count = np.unique(np.hstack([a, b]).astype(np.float64), axis=0, return_counts=True)
    return RareValues(rows[:, : len(GROUPS)], rows[:, len(GROUPS) :], count.astype(np.float64)), group


def _groups(x: Floats, y: Floats, sizes: tuple[float, float]) -> Integers:
    """Return the group of each row, from the weights of its value in the other rows of P and of Q."""
    of_p, of_q = x / sizes[0], y / sizes[1]
    return np.select(
        [
            (x <= 0) & (y <= 0),
            y <= 0,
            x <= 0,
            of_p > RATIO * of_q,
            of_q <= RATIO * of_p,
        ],
        [0, 1, 2, 3, 4],
        5,
    ).astype(np.int64)


def _one_hot(group: Integers) -> Floats:
    return np.eye(len(GROUPS))[group]
