"""Dependence of draws: groups of draws that count as independent, and draws that occur in both samples.

The order of draws, or their repetitions, may show that they are dependent. P's data may also be a subset of Q's data,
for example. Such samples are not independent: estimates are too low, and intervals are too narrow. If each shared draw
is kept on one side only, with twice the weight, the samples are independent again.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kullback.common.arrays import Flags, Floats
from kullback.common.missed_turns import missed_turns
from kullback.common.serial_dependence import (
    FEWEST_BLOCKS,
    SerialDependence,
    block_labels,
    block_length,
    category_scores,
    number_scores,
    repeated_rows,
    serial_dependence,
    uneven,
)
from kullback.common.turn_spectrum import spectral_turns
from kullback.estimators.draws import Draws, Integers, shown
from kullback.estimators.evidence import SIDE_P, SIDE_Q

# `tests/estimators/test_dependence.py` checks the constants of this file on series with known divergences, by the
# coverage of 95 % intervals and the level of tests at 5 %.

# If at least this proportion of the repeated rows occurs in blocks that are not adjacent, the blocks are dependent.
_MOST_ACROSS_BLOCKS = 0.05
# A permutation test has no correction by Student's t, so its blocks are longer than the blocks for an interval, by this
# factor.
_LONGER_IN_TESTS = 1.5
# If the ratio of the autocorrelation times is above this, a shuffle exchanges blocks of P and Q only within pairs.
_UNLIKE = 1.5
# In pairs, blocks have at least `_SHORTEST_IN_PAIRS` autocorrelation times, and are longer if at least `_PAIRS` pairs
# remain.
_SHORTEST_IN_PAIRS, _PAIRS = 7.5, 12
# The search for sources that miss turns uses at most this number of scores of categories.
_MOST_SCORES = 32


class Grouped(NamedTuple):
    """Draws whose clusters are their blocks or repeated rows, which count as independent, and notes on these groups.

    With `is_open`, they are too few for a standard error. `correction` corrects a variance computed as if independent.
    """

    samples: Draws
    notes: tuple[str, ...] = ()
    is_open: bool = False
    correction: float = 1.0


def grouped(p: Any, q: Any) -> tuple[Grouped, Grouped]:
    """Return the draws of both sides in groups that count as independent; a side of known dependence is unchanged."""
    first, second = dependences_of(p, q)
    return (
        Grouped(p) if first is None else _grouped(p, first, SIDE_P),
        Grouped(q) if second is None else _grouped(q, second, SIDE_Q),
    )


def _grouped(side: Draws, dependence: SerialDependence, name: str) -> Grouped:
    noticed = _noticed(dependence, name)
    if dependence.is_open:
        # Cross-validation needs blocks, even if these are too few for a standard error.
        labels = block_labels(side.number, FEWEST_BLOCKS)
        labels = labels if side.rows is None else labels[side.rows]
        return Grouped(replace(side, cluster=labels), (noticed, _no_error(dependence)), True)
    if dependence.labels is None:
        return Grouped(side, (noticed,))
    return Grouped(replace(side, cluster=dependence.labels), (noticed,), correction=dependence.correction)


class GroupedAlike(NamedTuple):
    """Two samples in groups that a permutation test can exchange, too few if `is_open`, and notes on these groups.

    If `in_pairs`, group i of P is exchanged only with group i of Q.
    """

    p: Draws
    q: Draws
    notes: tuple[str, ...] = ()
    is_open: bool = False
    in_pairs: bool = False


def grouped_alike(p: Draws, q: Draws) -> GroupedAlike:
    """Return two samples in exchangeable groups: blocks of equal length if either side shows serial dependence.

    If the autocorrelation times of the sides are unequal, a shuffle of all blocks would change the variance of the
    difference. So both sides get the same number of blocks, and only the two blocks of a pair are exchanged. If P = Q,
    differences within pairs are independent and nearly symmetric about 0. A longer side gives evenly spaced rows.
    """
    sides, dependences = (p, q), dependences_of(p, q)
    dependent = [dependence for dependence in dependences if dependence is not None]
    free = [side.cluster is None and not side.independent for side in sides]
    serial = [dependence for dependence in dependent if dependence.kind == "blocks"]
    if (
        not serial
        or len(serial) < len(dependent)
        or not all(free)
        or any(d.grid and d.is_open for d in serial)
    ):
        (first, of_p), (second, of_q) = map(_own_groups, sides, dependences)
        is_open = any(dependence.is_open for dependence in dependent)
        return GroupedAlike(first, second, of_p + of_q, is_open)
    times = [1.0 if dependence is None else dependence.time for dependence in dependences]
    in_pairs = max(times) > _UNLIKE * min(times)
    least = max(math.ceil(_LONGER_IN_TESTS * blocks.length) if blocks.grid else 0 for blocks in serial)
    if in_pairs:
        lengths = [
            max(block_length(len(side), time, _SHORTEST_IN_PAIRS, _PAIRS), least)
            for side, time in zip(sides, times, strict=True)
        ]
        blocks = [min(len(p) // lengths[0], len(q) // lengths[1])] * 2
    else:
        length = max(block_length(min(len(p), len(q)), max(times) * _LONGER_IN_TESTS), least)
        blocks = [len(side) // length for side in sides]
    if min(blocks) < FEWEST_BLOCKS:
        note = (
            f"Neighboring rows are alike, and fewer than {FEWEST_BLOCKS} independent blocks of rows are left. "
            "The test is inconclusive: its p-value is NaN."
        )
        return GroupedAlike(p, q, (note,), True)
    rows = min(len(p), len(q))
    kept = rows if in_pairs else max(len(p), len(q))
    first, second = (_in_blocks(side, number, kept) for side, number in zip(sides, blocks, strict=True))
    note = (
        f"Neighboring rows are alike: shuffles move {blocks[0]} blocks of P and {blocks[1]} of Q, "
        f"{rows // min(blocks)} rows each."
    )
    if in_pairs:
        note += (
            " They exchange the two blocks of a pair, because the two sides depend unequally on their order."
        )
        if len(p) != len(q):
            note += f" Of {'PQ'[len(q) > len(p)]}, {rows:,} evenly spread rows are used."
    return GroupedAlike(first, second, (note,), in_pairs=in_pairs)


def _own_groups(side: Draws, dependence: SerialDependence | None) -> tuple[Draws, tuple[str, ...]]:
    """Return the draws of one side, with the groups from their dependence as clusters, and a tuple of notes."""
    if dependence is None or dependence.kind == "pattern":
        return side, ()
    if dependence.labels is None:
        return side, ("No groups of rows are independent. The test is inconclusive: its p-value is NaN.",)
    which = {"repeats": "equal rows", "period": f"rows {dependence.length} apart"}.get(
        dependence.kind, "blocks of rows"
    )
    return replace(side, cluster=dependence.labels), (f"Shuffles keep {which} together.",)


def _in_blocks(side: Draws, blocks: int, rows: int) -> Draws:
    """Return at most `rows` evenly spaced draws; the clusters are `blocks` blocks of consecutive rows."""
    used = side.taken(np.arange(rows) * len(side) // rows) if rows < len(side) else side
    return replace(used, cluster=block_labels(len(used), blocks))


def dependences_of(*sides: Any) -> list[SerialDependence | None]:
    """Return the measured dependence of each side; None if it is not significant or the user has specified it.

    Sources that take turns and miss some turns are searched for in all sides that show no other dependence. A panel can
    resemble blocks by chance on one side; then the other side shows the missed turns.
    """
    dependences: list[SerialDependence | None] = [None] * len(sides)
    scores: list[Floats] = []
    examined: list[int] = []
    for place, side in enumerate(sides):
        if isinstance(side, Draws) and side.cluster is None and not side.independent:
            dependences[place], of_side = _dependence_of(side, sides[1 - place] if len(sides) == 2 else None)
            if dependences[place] is None:
                scores.append(of_side)
                examined.append(place)
    if not scores:
        return dependences
    distance = None
    if not sides[examined[0]].discrete:
        alike = scores[0].shape[1] == scores[-1].shape[1]
        distances = missed_turns(*scores) if alike else missed_turns(scores[0]) or missed_turns(scores[-1])
        distance = min(distances.values(), default=None)
    if distance or (distance := spectral_turns(*scores)):
        for place in examined:
            dependences[place] = uneven(sides[place].number, distance)
    return dependences


def _dependence_of(side: Draws, other: Any) -> tuple[SerialDependence | None, Floats]:
    """Return the dependence of one side, and the scores for missed turns; values also drawn by `other` are atoms."""
    if side.discrete:
        x = side.tensor.cpu().numpy()
        codes = np.unique(x, axis=0, return_inverse=True)[1].reshape(-1)
        scores = category_scores(codes)
        dependence = serial_dependence(scores)
        return dependence, scores if dependence or x.shape[1] == 1 else _scores_by_column(x)
    x = side.x
    is_line = x.shape[1] == 1 and isinstance(other, Draws)
    repeats, scores = repeated_rows(x, other.x if is_line else None), number_scores(x)
    in_order = serial_dependence(scores)
    ranks = scores[:, : scores.shape[1] // 2]
    if repeats is None or repeats.labels is None or in_order is None:
        return in_order or repeats, ranks
    first = np.sort(np.unique(repeats.labels, return_index=True)[1])
    if serial_dependence(number_scores(x[first])) is None:
        return repeats, ranks  # the repetitions explain the order
    if in_order.labels is None or not _repeat_within(repeats.labels, in_order.labels):
        return SerialDependence(in_order.kind, in_order.rows, in_order.time, in_order.length, None), ranks
    return in_order, ranks


def _scores_by_column(x: Integers) -> Floats:
    """Return the scores of the categories of each column; of many columns, random sums of these scores."""
    codes = [np.unique(column, return_inverse=True)[1] for column in x.T]
    scores = np.concatenate(list(map(category_scores, codes)), 1)
    if scores.shape[1] <= _MOST_SCORES:
        return scores
    return scores @ np.random.default_rng(0).standard_normal((scores.shape[1], _MOST_SCORES))


def _repeat_within(repeats: Integers, blocks: Integers) -> bool:
    """Return whether, for nearly all repeated rows, all copies are in one block or in two adjacent blocks."""
    count = int(repeats.max()) + 1
    lowest, highest = np.full(count, len(blocks)), np.zeros(count, dtype=np.int64)
    np.minimum.at(lowest, repeats, blocks)
    np.maximum.at(highest, repeats, blocks)
    return bool(np.mean((highest - lowest)[repeats] > 1) < _MOST_ACROSS_BLOCKS)


def _noticed(dependence: SerialDependence, name: str) -> str:
    """Return the note on the dependence of the draws of side `name`: the measurement, its effect, and the remedy."""
    like = f"about {shown(dependence.effective)} independent ones"
    if dependence.kind == "repeats":
        return (
            f"Rows of {name} repeat: its {dependence.rows:,} rows carry the information of {like}. Equal rows count "
            "as one cluster. If they were drawn independently, pass independent=True."
        )
    if dependence.kind == "pattern":
        return (
            f"Rows of {name} repeat with a period of {dependence.length} rows, which is treated as a fixed pattern. If "
            f"{dependence.length} sources take turns, pass cluster=: the number of each row's source."
        )
    if dependence.kind == "uneven":
        return (
            f"The order of {name} shows dependence: rows about {dependence.length} apart are alike, at distances that "
            "vary, as in a panel sorted by time with missing rows. Pass cluster=: the number of each row's source; if "
            "the order means nothing, pass independent=True."
        )
    groups = "" if dependence.labels is None else f"{int(dependence.labels.max()) + 1} "
    if dependence.kind == "period":
        alike, used = f"rows {dependence.length} apart are alike", f"{groups}sources that take turns"
    else:
        alike, used = "neighboring rows are alike", f"{groups}blocks of about {dependence.length} rows"
        if dependence.grid:
            alike += f", and rows {dependence.grid} apart, as in a grid"
    limit = "at most" if dependence.is_open else "the information of"
    counted = "" if dependence.is_open else f" The standard error uses {used} instead of rows."
    return (
        f"The order of {name} shows dependence ({alike}): its {dependence.rows:,} rows carry {limit} {like}.{counted} "
        "If you know which rows belong together, pass cluster=; if the order means nothing, pass independent=True."
    )


def _no_error(dependence: SerialDependence) -> str:
    if dependence.kind == "period":
        return (
            "Neighboring rows are alike as well, so no groups of rows are independent: there is no interval."
        )
    if dependence.kind == "uneven":
        return "Which rows have the same source is not known, so no groups are independent: there is no interval."
    return f"Fewer than {FEWEST_BLOCKS} independent blocks are left, too few for an interval."


# `tests/estimators/test_shared_draws.py` checks the constants of this file on parts of a data set and on random ties.

# Up to this proportion, shared draws are ignored, because they have little effect on the estimate.
_FEWEST_SHARED = 0.01
# Ties of independent draws look like shared draws (a false alarm) with a probability of at most e^-`_SURE`.
_SURE = -math.log(1e-3)
# If other values repeat in more than this proportion of the draws, some of the shared values may be random ties.
_FEW_TIES = 0.01


class Shared(NamedTuple):
    """Two samples in common draws; `number` of P's draws are also draws of Q, nearly all ties if `are_alone`.

    `in_p` and `in_q` mask the draws with a value that occurs exactly once on each side.
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

        A random half of the shared draws is in P's sample in the first pair, and the other half in the second pair.
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
    """Return the samples as `Shared` if significantly many numbers are in both, not equally often; otherwise None."""
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

    A value that occurs twice in independent draws is once in each sample with a probability of at most 1/2. So such
    draws have, on average, at least as many ties within the samples as between them.
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
    """Return whether significantly fewer values of a first sample are absent in a second one than by chance.

    Let n_k be the number of values that occur once in the first sample and k times in the second. In independent draws,
    k has a mixture of Poisson distributions, so E[n_1]^2 <= 2 E[n_0] E[n_2], by the Cauchy-Schwarz inequality. The
    result is True if n_0 is significantly below the bound E[n_1]^2 / (2 E[n_2]).
    """
    absent, once, twice = (int(((of_part == 1) & (of_whole == k)).sum()) for k in range(3))
    least_once, most_twice = max(once - 3 * math.sqrt(once), 0.0), twice + 3 * math.sqrt(max(twice, 1))
    expected = least_once**2 / (2 * most_twice)
    if absent >= expected:
        return False
    # The left side is -log of Chernoff's bound on the probability that a Poisson variable is at most `absent`.
    return expected - absent + (absent * math.log(absent / expected) if absent else 0.0) > _SURE
