r"""A test of whether two columns of texts have the same words.

A row has several words, so rows are counted: for each group of words (`kullback.tables.columns.word_groups`) the test
compares the proportions of rows that contain one. With O the rows of P and Q with and without, and E those expected
from both together, each O being half a row nearer to E,

.. math:: G = 2 \sum O \log(O / E)

is nearly chi-square distributed with one degree of freedom. The groups' p-values are combined by Simes' method, which
keeps its level for words that occur together.

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

FEWEST_EXPECTED = 10.0  # rows with a word, and rows without, on the smaller side


@dataclass(frozen=True)
class WordTest:
    """The test of words.

    Attributes:
        psi: the population stability index of the group that differs most significantly, between the rows with a word
            of it and those without.
        p_value: of all groups together; NaN where every occurring group has a word in every row.
    """

    psi: float
    p_value: float


def word_test(p: ColumnProfile, q: ColumnProfile, sizes: tuple[float, float]) -> WordTest | None:
    """Compare the words of two columns of texts; None if no group of words is frequent enough, or none was counted.

    Arguments:
        p: P's profile.
        q: Q's.
        sizes: the effective numbers of rows of P and of Q.
    """
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
