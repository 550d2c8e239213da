"""Draws in groups where their order, or their repetitions, show that they depend on each other."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch

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
from kullback.estimators.draws import Integers, numpy_of
from kullback.samples import Samples

__all__ = ["Grouped", "dependence_of", "grouped", "grouped_alike"]

# Repeated rows that may lie in different blocks before blocks count as dependent.
_MOST_ACROSS_BLOCKS = 0.05
# A test has no quantile of Student's t, so that its blocks are longer than those of an interval.
_LONGER_IN_TESTS = 1.5
# Above this ratio of the two sides' autocorrelation times, shuffles exchange blocks within pairs only.
_UNLIKE = 1.5
# The smallest block length in a pair, in autocorrelation times, and the number of pairs that must remain if blocks are
# longer.
_SHORTEST_IN_PAIRS, _PAIRS = 7.5, 12


class Grouped(NamedTuple):
    """Draws with the groups to take as independent, and what there is to say about them.

    Attributes:
        samples: the draws, with their blocks or repeated rows as clusters.
        notes: a sentence each.
        is_open: whether there are too few groups for any error.
        correction: the factor for a variance that takes the groups as independent.
    """

    samples: Samples
    notes: tuple[str, ...] = ()
    is_open: bool = False
    correction: float = 1.0


def grouped(samples: Samples, name: str) -> Grouped:
    """Return draws with the groups that their order shows; as they are where the user has said what is independent.

    Arguments:
        samples: the draws.
        name: what notes call them.
    """
    found = dependence_of(samples)
    return Grouped(samples) if found is None else with_groups(samples, found, name)


class GroupedAlike(NamedTuple):
    """Two data sets in groups that can be exchanged.

    Attributes:
        p, q: the draws, with their groups as clusters.
        notes: a sentence each.
        is_open: whether there are too few groups for a test.
        in_pairs: whether only groups with the same number are exchanged, because the two sides' groups are unlike.
    """

    p: Samples
    q: Samples
    notes: tuple[str, ...] = ()
    is_open: bool = False
    in_pairs: bool = False


def grouped_alike(p: Samples, q: Samples) -> GroupedAlike:
    """Return two data sets in groups to be exchanged: blocks of one length where either shows dependence in its order.

    If the two sides depend unequally on their order, the means of their blocks have unequal variances, and shuffles of
    all blocks would vary more or less than the difference that is tested. Then both sides have the same number of
    blocks, and only the two blocks of a pair are exchanged: where P = Q, the differences within pairs are independent
    and nearly symmetric about 0, as in a paired test. Evenly spread rows of the longer side are used, as many as the
    other side has.
    """
    sides, found = (p, q), [dependence_of(side) for side in (p, q)]
    known = [each for each in found if each is not None]
    free = [side.cluster is None and not side.independent for side in sides]
    serial = [each for each in known if each.kind == "blocks"]
    if not serial or len(serial) < len(known) or not all(free):
        own = [_own_groups(side, each) for side, each in zip(sides, found, strict=True)]
        return GroupedAlike(own[0][0], own[1][0], own[0][1] + own[1][1], any(each.is_open for each in known))
    times = [1.0 if each is None else each.time for each in found]
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
            "The test cannot tell: its p-value is NaN."
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


def _own_groups(side: Samples, found: SerialDependence | None) -> tuple[Samples, tuple[str, ...]]:
    """Return the draws in the groups of their own dependence, and a note where they have such groups."""
    if found is None or found.kind == "pattern":
        return side, ()
    if found.labels is None:
        return side, ("No groups of rows are independent. The test cannot tell: its p-value is NaN.",)
    which = {"repeats": "equal rows", "period": f"rows {found.length} apart"}.get(
        found.kind, "blocks of rows"
    )
    return _with_cluster(side, found.labels), (f"Shuffles keep {which} together.",)


def _in_blocks(side: Samples, blocks: int, rows: int) -> Samples:
    """Return at most `rows` draws, evenly spread, in `blocks` blocks."""
    used = copy.copy(side)
    if rows < len(side):
        used.tensor = side.tensor[torch.arange(rows, device=side.tensor.device) * len(side) // rows]
    return _with_cluster(used, block_labels(len(used.tensor), blocks))


def with_groups(samples: Samples, found: SerialDependence, name: str) -> Grouped:
    """Return draws in the groups of a dependence that was measured."""
    if found.is_open:
        # The blocks that there are serve what holds out a part of the draws.
        labels = block_labels(len(samples), FEWEST_BLOCKS)
        return Grouped(_with_cluster(samples, labels), (_noticed(found, name), _no_error(found)), True)
    if found.labels is None:
        return Grouped(samples, (_noticed(found, name),))
    return Grouped(
        _with_cluster(samples, found.labels), (_noticed(found, name),), correction=found.correction
    )


def dependence_of(samples: Samples) -> SerialDependence | None:
    """Measure how much draws depend on each other; None where they do not, or where the user has said."""
    if samples.cluster is not None or samples.independent or not samples.tensor.numel():
        return None
    used = slice(None) if samples.weights is None else (samples.weights > 0).cpu().numpy()
    found = _measured(samples, used)
    if found is None or found.labels is None or isinstance(used, slice):
        return found
    labels = np.zeros(len(samples), dtype=np.int64)
    labels[used] = found.labels  # draws of weight 0 are left out before their label counts
    return SerialDependence(found.kind, found.rows, found.time, found.length, labels)


def _measured(samples: Samples, used: Any) -> SerialDependence | None:
    if samples.discrete:
        rows = samples.tensor.detach().cpu().numpy()[used]
        codes = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
        return serial_dependence(category_scores(codes))
    x = numpy_of(samples)[used]
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
    """Tell whether most repeated rows are in one block, or in two that adjoin."""
    count = int(repeats.max()) + 1
    lowest, highest = np.full(count, len(blocks)), np.zeros(count, dtype=np.int64)
    np.minimum.at(lowest, repeats, blocks)
    np.maximum.at(highest, repeats, blocks)
    return bool(np.mean((highest - lowest)[repeats] > 1) < _MOST_ACROSS_BLOCKS)


def _with_cluster(samples: Samples, labels: Integers) -> Samples:
    found = copy.copy(samples)
    found.cluster = torch.from_numpy(labels)
    return found


def _noticed(found: SerialDependence, name: str) -> str:
    """Say what was measured, what it means, and what to do."""
    like = f"about {found.effective:.3g} independent ones"
    if found.kind == "repeats":
        return (
            f"Rows of {name} repeat: its {found.rows:,} rows carry the information of {like}. Equal rows count as one "
            "cluster. If they were drawn independently, pass independent=True."
        )
    if found.kind == "pattern":
        return (
            f"Rows of {name} repeat with a period of {found.length} rows, which is taken for a fixed pattern. If "
            f"{found.length} sources take turns, pass cluster=, their number for each row."
        )
    groups = "" if found.labels is None else f"{int(found.labels.max()) + 1} "
    if found.kind == "period":
        alike, used = f"rows {found.length} apart are alike", f"{groups}sources that take turns"
    else:
        alike, used = "neighboring rows are alike", f"{groups}blocks of about {found.length} rows"
    limit = "at most" if found.is_open else "the information of"
    counted = "" if found.is_open else f" The standard error uses {used} in place of rows."
    return (
        f"The order of {name} shows dependence ({alike}): its {found.rows:,} rows carry {limit} {like}.{counted} "
        "If you know which rows belong together, pass cluster=; if the order means nothing, pass independent=True."
    )


def _no_error(found: SerialDependence) -> str:
    if found.kind == "period":
        return "Neighboring rows are alike as well, so that no groups of rows are independent: there is no interval."
    return f"Fewer than {FEWEST_BLOCKS} independent blocks are left, too few for an interval."
