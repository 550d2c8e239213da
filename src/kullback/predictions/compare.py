"""The comparison itself: two sources of rows in, one `Comparison` out, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar, cast

import torch
from torch import Tensor

from kullback.errors import ArgumentValueError, explain
from kullback.io import Kind, RowSource, paired_blocks
from kullback.predictions.collect import Collector
from kullback.predictions.measure import measure
from kullback.predictions.result import Comparison, WorstRow
from kullback.predictions.sources import CALL, open_source, take_clusters, take_labels

__all__ = ["compare_predictions"]

# Blocks beyond 32 MiB go back to the system at once; smaller ones, which glibc takes from its heap, leave holes there.
BLOCK_BYTES = 40 * 1024 * 1024
# Elements in a part, which one thread measures: its temporaries stay in the core's cache, and torch starts
# no threads of its own for so few.
PART = (1 << 15) - 1

Blocks = Iterable[tuple[int, Tensor, Tensor]]
Progress = Callable[[int, int | None], object]
T = TypeVar("T")


def compare_predictions(
    p: object,
    q: object,
    *,
    kind: Kind | tuple[Kind | None, Kind | None] | None = None,
    key: str | tuple[str | None, str | None] | None = None,
    labels: object = None,
    labels_key: str | None = None,
    clusters: object = None,
    clusters_key: str | None = None,
    worst: int = 10,
    bootstrap: int = 1000,
    seed: int = 0,
    block_bytes: int = BLOCK_BYTES,
    progress: Progress | None = None,
) -> Comparison:
    r"""Compare two models' predictions of the same positions, row by row, in bounded memory.

    .. math:: \frac1N \sum_{n=1}^N KL(P_n \| Q_n), \quad \text{and so for } KL(Q_n \| P_n),\ JS(P_n, Q_n),\ TV(P_n, Q_n)

    Both are read in step, a block at a time. Means come with a standard error for independent rows, and with a 95 %
    bootstrap interval that draws whole clusters anew where `clusters` says which rows belong together. Quantiles are
    those of all rows up to 4,000,000 rows, from a sketch with relative error 0.005 beyond. Every value is computed in
    float64 and does not depend on `block_bytes`.

    Arguments:
        p: P, the reference: the path of a file, a source from `kullback.io.open_rows`, `Logits`, `LogProbs`, `Probs` or
            `Counts`, or a tensor or array of shape (..., classes) whose meaning `kind` tells.
        q: Q, likewise, with as many rows and classes.
        kind: ``"logits"``, ``"log-probs"``, ``"probs"`` or ``"counts"``, for both or as a pair (P's, Q's).
        key: the name of the array in a file that holds several, for both or as a pair.
        labels: the true class of each row, -100 where there is none: a path, or integers of shape (rows,). Left out,
            the tokens of a llama.cpp base file serve, if P or Q is one.
        labels_key: the name of the labels in their file.
        clusters: which document, window or speaker each row belongs to: a path, or integers or text of shape (rows,).
        clusters_key: the name of the clusters in their file.
        worst: how many of the rows of largest KL(P || Q) to show.
        bootstrap: how many bootstrap draws to make for the intervals; 0 for none.
        seed: the seed of these draws.
        block_bytes: the most that a block of either side may take in memory, but at least 32767 elements or one row.
        progress: called with the rows done and the rows in all (None where only reading tells).

    Returns:
        a `Comparison`; divergences and cross-entropies in nats.

    Raises:
        FileError: a file is missing, damaged or unlike its partner, or holds a row that is no distribution.
        ArgumentTypeError, ArgumentValueError: an argument is of the wrong type, shape or range.

    Example:
        >>> import torch
        >>> from kullback import Probs, compare_predictions
        >>> p, q = torch.tensor([[0.36, 0.48, 0.16], [0.2, 0.3, 0.5]]), torch.full((2, 3), 1 / 3)
        >>> found = compare_predictions(Probs(p), Probs(q), labels=[1, 2])
        >>> [round(found.divergences[name].mean, 4) for name in ("kl_pq", "kl_qp", "js", "tv")]
        [0.0771, 0.0838, 0.0199, 0.17]
        >>> found.top1_agreement.value, round(found.labels.difference.mean, 4)
        (0.0, 0.3851)

    References:
        Bootstrap Methods and Their Application, chapter 3.8 (Davison and Hinkley, 1997)
    """
    for argument, value in (("worst", worst), ("bootstrap", bootstrap), ("seed", seed)):
        _require_at_least(argument, value, 0)
    _require_at_least("block_bytes", block_bytes, 1)
    kinds: tuple[Kind | None, Kind | None] = _for_each(kind)
    keys = _for_each(key)
    with ExitStack() as stack:
        sides: list[RowSource] = []
        for given, its_kind, its_key, name in zip((p, q), kinds, keys, ("p", "q"), strict=True):
            sides.append(open_source(given, its_kind, its_key, name))
            if sides[-1] is not given:
                stack.callback(sides[-1].close)
        source_p, source_q = sides
        blocks = paired_blocks(source_p, source_q, rows=_rows_in_block(sides, block_bytes))
        rows = source_p.rows or source_q.rows
        true_classes, notes = take_labels(labels, labels_key, source_p, source_q)
        groups = take_clusters(clusters, clusters_key, rows)
        collector = Collector(rows, true_classes, groups, worst=worst, bootstrap=bootstrap, seed=seed)
        _measure_all(blocks, (source_p, source_q), collector, progress)
        return collector.comparison(source_p, source_q, notes)


def _measure_all(
    blocks: Blocks, sides: tuple[RowSource, RowSource], collector: Collector, progress: Progress | None
) -> None:
    """Measure all rows in small parts, as many at a time as there are threads, and hand the results on in order."""
    kinds: tuple[Kind, Kind] = sides[0].kind, sides[1].kind
    classes = sides[0].classes
    part = _rows_in_part(classes)

    def measure_part(start: int, p: Tensor, q: Tensor) -> tuple[Tensor, list[WorstRow]]:
        labels = None if collector.labels is None else collector.labels[start : start + len(p)]
        found = measure(p, q, kinds, labels)
        return found.table, collector.worst.candidates(start, found)

    # A row too long for a part is shared out by torch among threads of its own.
    threads = torch.get_num_threads() if classes <= PART else 1
    with ThreadPoolExecutor(threads) as pool:
        for first, p, q in blocks:
            stop = first + len(p)
            collector.require_values_up_to(stop)
            starts = range(first, stop, part)
            for table, candidates in pool.map(measure_part, starts, p.split(part), q.split(part)):
                collector.add(table, candidates)
            if progress is not None:
                progress(stop, collector.rows)


def _rows_in_part(classes: int) -> int:
    return max(1, PART // classes)


def _rows_in_block(sides: list[RowSource], block_bytes: int) -> int:
    """Return how many rows to read at a time: whole parts, so that parts are the same for every size of block."""
    part = _rows_in_part(sides[0].classes)
    row_bytes = max(side.classes * side.dtype.itemsize for side in sides)
    return max(1, block_bytes // (row_bytes * part)) * part


def _for_each(value: T | tuple[T | None, T | None] | None) -> tuple[T | None, T | None]:
    return cast("tuple[T | None, T | None]", value) if isinstance(value, tuple) else (value, value)


def _require_at_least(argument: str, value: object, least: int) -> None:
    if not isinstance(value, int) or value < least:
        wanted = f"a whole number of {least} or more"
        raise ArgumentValueError(
            explain(CALL, argument, wanted=wanted, got=repr(value), instead=f"{argument}={least}")
        )
