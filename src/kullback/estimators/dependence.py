"""Groups of draws that count as independent, where the order or repetitions of draws show dependence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kullback.common.serial_dependence import (
    FEWEST_BLOCKS,
    SerialDependence,
    block_labels,
    block_length,
    category_scores,
    number_scores,
    repeated_rows,
    serial_dependence,
)
from kullback.estimators.draws import Draws, Integers, shown

# `tests/estimators/test_dependence.py` checks the constants of this file on series with a known truth: 95 % intervals
# have to cover, and tests at 5 % must not reject equal distributions more often.

# If at least this share of the repeated rows occurs in blocks that are not adjacent, the blocks are dependent.
_MOST_ACROSS_BLOCKS = 0.05
# A test has no quantile of Student's t, so its blocks are longer than the blocks of an interval.
_LONGER_IN_TESTS = 1.5
# Above this ratio of the two sides' autocorrelation times, shuffles exchange blocks within pairs only.
_UNLIKE = 1.5
# The smallest block length in a pair, in autocorrelation times, and the number of pairs that must remain if blocks are
# longer.
_SHORTEST_IN_PAIRS, _PAIRS = 7.5, 12


class Grouped(NamedTuple):
    """Draws with the groups that count as independent, and notes on them.

    Attributes:
        samples: the draws, with their blocks or repeated rows as clusters.
        notes: a sentence each.
        is_open: whether there are too few groups for any error.
        correction: the factor for a variance that takes the groups as independent.
    """

    samples: Draws
    notes: tuple[str, ...] = ()
    is_open: bool = False
    correction: float = 1.0


def grouped(side: Any, name: str) -> Grouped:
    """Return draws, called `name` in notes, with the groups that their order shows.

    Draws whose dependence the user has specified, and sides that are no draws, are unchanged.
    """
    dependence = dependence_of(side) if isinstance(side, Draws) else None
    if dependence is None:
        return Grouped(side)
    noticed = _noticed(dependence, name)
    if dependence.is_open:
        # Cross-validation needs blocks, even if they are too few for an error.
        labels = block_labels(side.number, FEWEST_BLOCKS)
        labels = labels if side.rows is None else labels[side.rows]
        return Grouped(replace(side, cluster=labels), (noticed, _no_error(dependence)), True)
    if dependence.labels is None:
        return Grouped(side, (noticed,))
    return Grouped(replace(side, cluster=dependence.labels), (noticed,), correction=dependence.correction)


class GroupedAlike(NamedTuple):
    """Two data sets in groups that can be exchanged.

    Attributes:
        p, q: the draws, with their groups as clusters.
        notes: a sentence each.
        is_open: whether there are too few groups for a test.
        in_pairs: whether only groups with the same number are exchanged, because the two sides' groups are unlike.
    """

    p: Draws
    q: Draws
    notes: tuple[str, ...] = ()
    is_open: bool = False
    in_pairs: bool = False


def grouped_alike(p: Draws, q: Draws) -> GroupedAlike:
    """Return two data sets in exchangeable groups: blocks of one length if either side shows serial dependence.

    If the two sides depend unequally on their order, the means of their blocks have unequal variances. Shuffles of all
    blocks would then vary more or less than the tested difference. So both sides get the same number of blocks, and
    only the two blocks of a pair are exchanged. If P = Q, the differences within pairs are independent and nearly
    symmetric about 0, as in a paired test. The longer side uses evenly spread rows, as many as the other side has.
    """
    sides, dependences = (p, q), [dependence_of(side) for side in (p, q)]
    dependent = [dependence for dependence in dependences if dependence is not None]
    free = [side.cluster is None and not side.independent for side in sides]
    serial = [dependence for dependence in dependent if dependence.kind == "blocks"]
    if not serial or len(serial) < len(dependent) or not all(free):
        apart = [_own_groups(side, dependence) for side, dependence in zip(sides, dependences, strict=True)]
        return GroupedAlike(
            apart[0][0],
            apart[1][0],
            apart[0][1] + apart[1][1],
            any(dependence.is_open for dependence in dependent),
        )
    times = [1.0 if dependence is None else dependence.time for dependence in dependences]
    in_pairs = max(times) > _UNLIKE * min(times)
    if in_pairs:
        sizes = (
            block_length(len(side), time, _SHORTEST_IN_PAIRS, _PAIRS)
            for side, time in zip(sides, times, strict=True)
        )
        blocks = [min(len(side) // size for side, size in zip(sides, sizes, strict=True))] * 2
    else:
        length = block_length(min(len(p), len(q)), max(times) * _LONGER_IN_TESTS)
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
    """Return the draws in the groups of their own dependence, with a note."""
    if dependence is None or dependence.kind == "pattern":
        return side, ()
    if dependence.labels is None:
        return side, ("No groups of rows are independent. The test is inconclusive: its p-value is NaN.",)
    which = {"repeats": "equal rows", "period": f"rows {dependence.length} apart"}.get(
        dependence.kind, "blocks of rows"
    )
    return replace(side, cluster=dependence.labels), (f"Shuffles keep {which} together.",)


def _in_blocks(side: Draws, blocks: int, rows: int) -> Draws:
    """Return at most `rows` draws, evenly spread, in `blocks` blocks."""
    used = side.taken(np.arange(rows) * len(side) // rows) if rows < len(side) else side
    return replace(used, cluster=block_labels(len(used), blocks))


def dependence_of(side: Draws) -> SerialDependence | None:
    """Measure the dependence of draws; None if it is not significant, or if the user has specified it."""
    if side.cluster is not None or side.independent:
        return None
    if side.discrete:
        codes = np.unique(side.tensor.cpu().numpy(), axis=0, return_inverse=True)[1].reshape(-1)
        return serial_dependence(category_scores(codes))
    x = side.x
    repeats = repeated_rows(x)
    in_order = serial_dependence(number_scores(x))
    if repeats is None or repeats.labels is None or in_order is None:
        return in_order or repeats
    first = np.sort(np.unique(repeats.labels, return_index=True)[1])
    if serial_dependence(number_scores(x[first])) is None:
        return repeats  # the repetitions explain the order
    if in_order.labels is None or not _repeat_within(repeats.labels, in_order.labels):
        return SerialDependence(in_order.kind, in_order.rows, in_order.time, in_order.length, None)
    return in_order


def _repeat_within(repeats: Integers, blocks: Integers) -> bool:
    """Return whether most repeated rows are in one block, or in two adjacent ones."""
    count = int(repeats.max()) + 1
    lowest, highest = np.full(count, len(blocks)), np.zeros(count, dtype=np.int64)
    np.minimum.at(lowest, repeats, blocks)
    np.maximum.at(highest, repeats, blocks)
    return bool(np.mean((highest - lowest)[repeats] > 1) < _MOST_ACROSS_BLOCKS)


def _noticed(dependence: SerialDependence, name: str) -> str:
    """Report the measurement, its meaning, and the remedy."""
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
    groups = "" if dependence.labels is None else f"{int(dependence.labels.max()) + 1} "
    if dependence.kind == "period":
        alike, used = f"rows {dependence.length} apart are alike", f"{groups}sources that take turns"
    else:
        alike, used = "neighboring rows are alike", f"{groups}blocks of about {dependence.length} rows"
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
    return f"Fewer than {FEWEST_BLOCKS} independent blocks are left, too few for an interval."
