r"""A test of whether two columns of texts have the same words.

A row has several words, so the test counts rows. For each group of words (`kullback.tables.columns.word_groups`), it
compares the proportions of P's and Q's rows that contain a word of the group. Let O be the numbers of rows of P and of
Q with and without such a word, and E the numbers expected from both tables together. With each O moved half a row
towards E,

.. math:: G = 2 \sum O \log(O / E)

is nearly chi-square distributed with one degree of freedom. Simes' method combines the p-values of the groups, and
keeps its level if words occur together.

References:
    An improved Bonferroni procedure for multiple tests of significance (Simes, 1986)
    Contingency tables involving small numbers and the chi-square test (Yates, 1934)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kullback.common.arrays import Floats
from kullback.common.inference import false_discovery_rates
from kullback.tables.columns.column_profile import ColumnProfile
from kullback.tables.columns.word_groups import WORD_GROUPS

# A group of words is tested if at least this many rows with a word, and rows without, are expected on the smaller side.
FEWEST_EXPECTED = 10.0


@dataclass(frozen=True)
class WordTest:
    """The PSI between rows with and rows without a word of the most significant group, and the p-value of all groups.

    The p-value is NaN if no group can be tested and some group has a word in every row.
    """

    psi: float
    p_value: float


def word_test(p: ColumnProfile, q: ColumnProfile, sizes: tuple[float, float]) -> WordTest | None:
    """Compare the words of two columns of texts; None if words were not counted or no group of words is frequent."""
    if p.words is None or q.words is None or p.empty or q.empty:
        return None
    n, m = (size * side.present / side.total for size, side in zip(sizes, (p, q), strict=True))
    a, b = (rows * _proportions(side) for rows, side in zip((n, m), (p, q), strict=True))
    pooled = (a + b) / (n + m)
    frequent = np.minimum(pooled, 1 - pooled) * min(n, m) >= FEWEST_EXPECTED
    if not frequent.any():
        return WordTest(0.0, math.nan) if (pooled > 1 - 1e-12).any() else None
    a, b, pooled = a[frequent], b[frequent], pooled[frequent]
    p_values = _p_values(a, b, pooled, n, m)
    most = int(np.argmin(p_values))
    x, y = (float((rows[most] + 0.5) / (size + 1)) for rows, size in ((a, n), (b, m)))
    psi = (x - y) * (math.log(x / (1 - x)) - math.log(y / (1 - y)))
    return WordTest(psi, min(false_discovery_rates(p_values.tolist())))


def _proportions(column: ColumnProfile) -> Floats:
    """Return the proportion of texts that contain a word of each group."""
    weights = np.zeros(WORD_GROUPS)
    words = column.words or {}
    weights[list(words)] = list(words.values())
    return weights / column.present


def _p_values(a: Floats, b: Floats, pooled: Floats, n: float, m: float) -> Floats:
    from scipy.special import chdtrc, rel_entr

    nearer = np.clip(a - n * pooled, -0.5, 0.5)
    a, b = a - nearer, b + nearer
    statistic = sum(
        rel_entr(rows, size * pooled) + rel_entr(size - rows, size * (1 - pooled))
        for rows, size in ((a, n), (b, m))
    )
    return chdtrc(1, np.maximum(2 * statistic, 0.0))
