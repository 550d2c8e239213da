"""Numbers that are in both data sets, as when P's data are a part of Q's, and how the two sides share them.

If P's draws are also among Q's, the two sides are not independent. They look alike: estimates are too low and intervals
are too narrow. With each shared draw on one side only, of twice the weight, the sides are independent again.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kullback.estimators.draws import Draws, Integers
from kullback.estimators.evidence import SIDE_P, SIDE_Q

Flags = np.ndarray[Any, np.dtype[np.bool_]]

# `tests/estimators/test_shared_draws.py` checks the constants of this file on parts of a data set and on chance ties.

# A smaller share of the draws of either side has little effect.
_FEWEST_SHARED = 0.01
# The negative logarithm of the largest probability that ties of independent draws look like shared draws.
_SURE = -math.log(1e-3)
# With a larger share of other ties, some of the shared values are ties by chance.
_FEW_TIES = 0.01


class Shared(NamedTuple):
    """Draws in both data sets.

    Attributes:
        p, q: the draws of either side.
        in_p, in_q: which of them occur once on either side.
        number: the number of P's draws that are also in Q.
        are_alone: whether other values do not repeat, so that only shared draws are equal.
    """

    p: Draws
    q: Draws
    in_p: Flags
    in_q: Flags
    number: int
    are_alone: bool

    def note(self, rest: str) -> str:
        """Return a note that begins with the number of shared draws."""
        return (
            f"{self.number:,} of {SIDE_P}'s {len(self.p):,} draws are also in {SIDE_Q}, so {SIDE_P}'s and {SIDE_Q}'s "
            f"draws are not independent. {rest}"
        )

    def divided(self, rng: np.random.Generator) -> list[tuple[Draws, Draws]]:
        """Return two pairs of sides: each shared draw is on one side of the first pair, and on the other of the second.

        Where a draw remains, it has twice the weight.
        """
        x, y = self.p.x[:, 0], self.q.x[:, 0]
        values = x[self.in_p]
        chosen = rng.permutation(values)[: len(values) // 2]
        first_p, first_q = np.isin(x, chosen), np.isin(y, chosen)
        return [
            (
                _weighted(self.p, self.in_p, first_p == is_first),
                _weighted(self.q, self.in_q, first_q != is_first),
            )
            for is_first in (True, False)
        ]


def _weighted(side: Draws, shared: Flags, chosen: Flags) -> Draws:
    """Return a side with the chosen ones of its shared draws, at twice the weight."""
    weights = np.ones(len(side)) if side.weights is None else side.weights
    part = replace(side, weights=np.where(shared, 2 * weights, weights)).taken(
        np.flatnonzero(~shared | chosen)
    )
    assert part.weights is not None  # noqa: S101
    return replace(part, weights=None) if (part.weights == part.weights[0]).all() else part


def shared_draws(p: Draws, q: Draws) -> Shared | None:
    """Return the draws of two data sets of numbers if significantly many of them are in both; None otherwise.

    Equal data sets are no part and whole, and are not reported.
    """
    if p.discrete or q.discrete or p.tensor.shape[1] != 1 or q.tensor.shape[1] != 1:
        return None
    x, y = p.x[:, 0], q.x[:, 0]
    place = np.unique(np.concatenate([x, y]), return_inverse=True)[1]
    size = int(place.max()) + 1
    of_p, of_q = np.bincount(place[: len(x)], minlength=size), np.bincount(place[len(x) :], minlength=size)
    if not _in_both(of_p, of_q) or np.array_equal(of_p, of_q):
        return None
    across = (of_p == 1) & (of_q == 1)
    others = int((of_p + of_q)[(of_p + of_q > 1) & ~across].sum())
    are_alone = others <= _FEW_TIES * min(len(x), len(y))
    number = int(np.minimum(of_p, of_q).sum())
    return Shared(p, q, across[place[: len(x)]], across[place[len(x) :]], number, are_alone)


def _in_both(of_p: Integers, of_q: Integers) -> bool:
    """Return whether more values are on both sides than in independent draws, from the counts of each value.

    A value that occurs twice in independent draws is once on each side with a probability of at most 1/2, whatever P
    and Q are: rounded numbers and integers have as many such ties within the sides.
    """
    across = int(((of_p == 1) & (of_q == 1)).sum())
    if across <= _FEWEST_SHARED * min(int(of_p.sum()), int(of_q.sum())):
        return False
    within = int(((of_p + of_q == 2) & (of_p != of_q)).sum())
    excess = across - within
    if excess > 0 and excess**2 > 2 * (across + within) * _SURE:  # Hoeffding's inequality
        return True
    return _none_is_absent(of_p, of_q) or _none_is_absent(of_q, of_p)


def _none_is_absent(of_part: Integers, of_whole: Integers) -> bool:
    """Return whether too few values of one side are absent on the other, which has all values of a part.

    Of the values that occur once on one side, let n_k occur k times on the other side. In independent draws, k is a
    mixture of Poisson numbers, so that the means have n_1^2 <= 2 n_0 n_2, by the inequality of Cauchy and Schwarz.
    """
    absent, once, twice = (int(((of_part == 1) & (of_whole == k)).sum()) for k in range(3))
    least_once, most_twice = max(once - 3 * math.sqrt(once), 0.0), twice + 3 * math.sqrt(max(twice, 1))
    expected = least_once**2 / (2 * most_twice)
    if absent >= expected:
        return False
    # Chernoff's bound of a Poisson probability.
    return expected - absent + (absent * math.log(absent / expected) if absent else 0.0) > _SURE
