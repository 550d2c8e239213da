"""Detection of draws that occur in both samples, and the division of these shared draws between the samples.

For example, P's data may be a subset of Q's data. Such samples are not independent: estimates are too low, and
intervals are too narrow. If each shared draw is kept on one side only, with twice the weight, the samples are
independent again.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kullback.estimators.draws import Draws, Integers
from kullback.estimators.evidence import SIDE_P, SIDE_Q

Flags = np.ndarray[Any, np.dtype[np.bool_]]

# `tests/estimators/test_shared_draws.py` checks the constants of this file on parts of a data set and on random ties.

# Up to this proportion, shared draws are ignored, because they have little effect on the estimate.
_FEWEST_SHARED = 0.01
# Ties of independent draws look like shared draws (a false alarm) with a probability of at most e^-`_SURE`.
_SURE = -math.log(1e-3)
# If other values repeat in more than this proportion of the draws, some of the shared values may be random ties.
_FEW_TIES = 0.01


class Shared(NamedTuple):
    """Two samples that have draws in common.

    Attributes:
        p, q: the draws of P and of Q.
        in_p, in_q: for each draw of P, and of Q, whether its value occurs exactly once in P and exactly once in Q.
        number: the number of P's draws that are also draws of Q.
        are_alone: whether almost no values repeat except shared draws, so that nearly all ties are shared draws.
    """

    p: Draws
    q: Draws
    in_p: Flags
    in_q: Flags
    number: int
    are_alone: bool

    def note(self, rest: str) -> str:
        """Return a note with the number of shared draws, followed by the sentences `rest`."""
        return (
            f"{self.number:,} of {SIDE_P}'s {len(self.p):,} draws are also in {SIDE_Q}, so {SIDE_P}'s and {SIDE_Q}'s "
            f"draws are not independent. {rest}"
        )

    def divided(self, rng: np.random.Generator) -> list[tuple[Draws, Draws]]:
        """Return two pairs of samples with each shared draw on one side only, with twice the weight.

        A random half of the shared draws is in P's sample in the first pair and in Q's sample in the second pair. The
        other half is in Q's sample in the first pair and in P's sample in the second pair.
        """
        x, y = self.p.x[:, 0], self.q.x[:, 0]
        values = np.sort(x[self.in_p])
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
    """Return the draws of one side that are not shared, together with its chosen shared draws at twice the weight."""
    weights = np.ones(len(side)) if side.weights is None else side.weights
    part = replace(side, weights=np.where(shared, 2 * weights, weights)).taken(
        np.flatnonzero(~shared | chosen)
    )
    assert part.weights is not None  # noqa: S101
    return replace(part, weights=None) if (part.weights == part.weights[0]).all() else part


def shared_draws(p: Draws, q: Draws) -> Shared | None:
    """Return the samples as `Shared` if significantly many numbers are in both samples; otherwise None.

    If both samples have the same values equally often, the result is None.
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
    """Return whether significantly more values are in both samples than for independent draws.

    If a value occurs twice in independent draws, it occurs once in each sample with a probability of at most 1/2, for
    any P and Q. So independent draws have, on average, at least as many such ties within the samples as between them.

    Arguments:
        of_p: the count in P of each value that occurs in P or Q.
        of_q: the count in Q of each of these values.
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
    """Return whether significantly fewer values of a first sample are absent in a second sample than by chance.

    The first sample is then a subset of the second. `of_part` and `of_whole` are the counts of each value in the first
    and in the second sample. Let n_k be the number of values that occur once in the first sample and k times in the
    second sample. In independent draws, k has a mixture of Poisson distributions, so E[n_1]^2 <= 2 E[n_0] E[n_2], by
    the Cauchy-Schwarz inequality. The result is True if n_0 is significantly below the lower bound E[n_1]^2 / (2
    E[n_2]).
    """
    absent, once, twice = (int(((of_part == 1) & (of_whole == k)).sum()) for k in range(3))
    least_once, most_twice = max(once - 3 * math.sqrt(once), 0.0), twice + 3 * math.sqrt(max(twice, 1))
    expected = least_once**2 / (2 * most_twice)
    if absent >= expected:
        return False
    # The left side is -log of Chernoff's bound on the probability that a Poisson variable is at most `absent`.
    return expected - absent + (absent * math.log(absent / expected) if absent else 0.0) > _SURE
