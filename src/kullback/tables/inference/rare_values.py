"""Pool values that are too rare for a bin each, so that a difference between P's and Q's values stays visible.

Pooled into one bin, 500 shops and 500 entirely different shops would be equal. Each row is therefore placed by how
often its value occurs in all *other* rows: in neither table, in P only, in Q only, or in both, and then about equally
often or more than twice as often in one of them. A row of P and a row of Q with the same value see nearly the same
other rows, so that equal tables have equal proportions in these groups, in expectation up to the inverse of the number
of rows: the leave-one-out argument of Good and Turing. The divergence between the groups is at most that between the
values.

Rows with the same value move between groups together, so the independent units are values: `RareValues.a` and
`RareValues.b` hold the rows by value and group.

The counts of both tables may agree more closely than counts of independent rows could, for example for a key that each
table has once. Then all rows count, and values are in one table or in both.

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
RATIO = 2.0  # beyond which a value is more frequent in one table
TOO_ALIKE = 0.999  # the p-value of counts that agree more closely than counts of independent rows do


@dataclass(frozen=True)
class RareValues:
    """The rows of rare values by value and group; values with the same rows are one entry.

    Attributes:
        a: P's weight by entry and group, shape (R, 6).
        b: Q's.
        number: how many values each entry represents.
        p_value: the p-value of the test that these values are as frequent in P as in Q; NaN if the test is impossible.
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
    """Place each row of a rare value in a group that depends on all other rows.

    Arguments:
        a: how many rows of P have each value.
        b: likewise for Q.
        sizes: the numbers of all rows of P and Q.
        random: the source of randomness of the test.
    """
    p_value = sparse_test(a, b, random)
    base = b.max(initial=0) + 1  # whole numbers of rows, whose products are exact
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
    """Place each row of a rare value in a group that depends on the rows of all other clusters.

    Arguments:
        value: the value of each entry of the joint counts, numbered from 0.
        on_p: whether the entry is one of P.
        cluster: the cluster of the entry.
        weight: the weight of the entry.
        sizes: the weights of all rows of P and Q.

    Returns:
        the rows by value and group, and the group of each entry.
    """
    number = int(value.max(initial=-1)) + 1
    others: list[Floats] = []
    for side in (on_p, ~on_p):
        total = np.bincount(value, weight * side, number)[value]
        own = np.unique(np.stack([value, cluster], 1), axis=0, return_inverse=True)[1].reshape(-1)
        left = total - np.bincount(own, weight * side)[own]
        others.append(np.where(left > 1e-9 * total, left, 0.0))  # less is rounding
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
    """Return the group of rows whose value has these weights in the other rows of P and of Q."""
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
