"""`compare_predictions`, which reads two sources of rows in step and measures them in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, refuse_both
from kullback.common.extra_arguments import by_name
from kullback.common.row_statistics import FURTHER
from kullback.common.words import NO_LABEL, RepresentationName
from kullback.errors import invalid_value
from kullback.io import RowSource
from kullback.io.class_columns import unnamed_side
from kullback.io.llama_cpp_base import LlamaBaseFile
from kullback.io.row_sources import matched
from kullback.parallel.workers import Workers
from kullback.predictions.collect import Collector
from kullback.predictions.measure import PART, measure, rows_in_part
from kullback.predictions.prediction_results import Comparison
from kullback.predictions.reading import Measure, Part, Reading
from kullback.predictions.run import ARGUMENTS, BLOCK_BYTES, Progress, Run, require_state
from kullback.predictions.sources import (
    CALL,
    check_columns,
    open_source,
    require_same_rows,
    take_clusters,
    take_groups,
    take_labels,
)
from kullback.representations import Representation

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# The largest number of rows whose results a worker sends, or a state file stores, at a time.
MOST_SENT = 1 << 16

T = TypeVar("T")

_ARGUMENTS = Arguments(CALL, **ARGUMENTS.constraints)


@by_name()
def compare_predictions(
    p: object,
    q: object,
    *,
    representation: RepresentationName
    | tuple[RepresentationName | None, RepresentationName | None]
    | None = None,
    key: str | tuple[str | None, str | None] | None = None,
    columns: Sequence[str] | None = None,
    labels: object = None,
    labels_key: str | None = None,
    cluster: object = None,
    cluster_key: str | None = None,
    groups: object = None,
    group_key: str | None = None,
    independent: bool = False,
    worst: int = 10,
    bootstrap: int = 1000,
    llama_cpp: bool = False,
    generator: torch.Generator | None = None,
    block_bytes: int = BLOCK_BYTES,
    progress: Progress | None = None,
    resume: str | os.PathLike[str] | None = None,
    group: ProcessGroup | None = None,
) -> Comparison:
    r"""Compare two models' predictions of the same positions, row by row, in bounded memory.

    .. math:: \frac1N \sum_{n=1}^N KL(P_n \| Q_n), \quad \text{and so for } KL(Q_n \| P_n),\ JS(P_n, Q_n),\ TV(P_n, Q_n)

    P and Q are read in step, one block at a time. Means have a standard error (the jackknife) and a 95 % interval (the
    wider of Student's t and the studentized bootstrap). The error and the interval assume that clusters are
    independent. Without clusters, the order of the rows is examined. If the order shows dependence, blocks of rows are
    the clusters, and a note gives the effective number of rows. Otherwise each row is a cluster. If the clusters are
    too few or too skewed to bound the mean, an end of the interval is infinite, and `Value.reason` gives the reason.
    The interval does not account for kinds of rows that are absent from the sample. Such kinds may be up to 3/n of all
    rows. If such rows could raise the mean above the interval, a note gives the amount. Quantiles are exact up to
    4,000,000 rows. For more rows, quantiles come from a sketch with relative error 0.005. Every value is computed in
    float64 and does not depend on `block_bytes`.

    Arguments:
        p: P, the reference: the path of a file, a `kullback.io.RowStream` (such as a source from
            `kullback.io.open_rows`), `Logits`, `LogProbs`, `Probs` or `Counts`. P may also be a tensor, array or data
            frame of shape (..., classes); `representation` then names the kind of its values.
        q: Q, in the same forms as P, with as many rows and classes. If both sides name their classes, as columns do,
            classes are paired by name. Names with numbers, such as ``class_0``, are positions.
        representation: the kind of numbers: ``"logits"``, ``"log-probs"``, ``"probs"`` or ``"counts"``. One value is
            for both sides; a pair is (of P, of Q).
        key: the name of the array in a file with several arrays. One name is for both sides; a pair is (of P, of Q).
        columns: the names of the columns that are classes, of both sides. By default, every column is a class, and a
            column that looks like ids or labels is refused. Such a column has whole numbers while other columns do not,
            and counts rows or has a name for ids or labels. If columns have no names, positions are the names.
        labels: the true class of each row; -100 for a row without a label. Labels are a path, or integers or names of
            classes of shape (rows,). Integers are positions in P. By default, the labels are the tokens of a llama.cpp
            base file, if P or Q is such a file.
        labels_key: the name of the labels in the file of `labels`.
        cluster: the document, window or speaker of each row: a path, or integers or text of shape (rows,).
        cluster_key: the name of the clusters in the file of `cluster`.
        groups: the group of each row: a path, or integers, Booleans or text of shape (rows,). Every statistic is also
            computed in each group. A text that is not a file is the name of a column of P, a Parquet or CSV file. At
            most 32.
        group_key: the name of the groups in the file of `groups`.
        independent: whether the rows are known to be independent. If so, their order is not examined.
        worst: the number of rows with the largest KL(P || Q) to return.
        bootstrap: the number of bootstrap draws for the intervals, at most 100,000; 0 for no intervals.
        llama_cpp: whether to compute also the numbers that ``llama-perplexity --kl-divergence`` prints, by llama.cpp's
            definitions, from the rows of this comparison. The numbers need labels and 8 bytes of memory for each row.
        generator: the random generator of the bootstrap; None for a generator with a fixed seed.
        block_bytes: the memory of a block of one side, in bytes. A block has at least about 32767 elements, or one row.
        progress: a function that is called with the number of finished rows and the number of all rows (None if that is
            unknown before the end).
        resume: a file that keeps the finished blocks. A run that was stopped continues from it and gives the same
            result as an uninterrupted run. The file is removed at the end, even if it was there before and empty. In a
            group, rank 0 reads and writes the file; the number of ranks may change.
        group: a process group for CPU tensors. All ranks make this call, and each measures some blocks of rows. All
            return the same result, which equals the result of one process to the last digit.

    Returns:
        a `Comparison`; divergences and cross-entropies in nats.

    Raises:
        FileError: a file is missing or damaged, does not match the other side, or has a row that is not a distribution.
            A column is not a class, or the other side lacks a class of this name. `resume` is damaged, or belongs to
            other inputs or options. In a group, every rank raises the error of one rank.
        ArgumentTypeError, ArgumentValueError: an argument is of the wrong type, shape or range.

    Example:
        >>> import torch
        >>> from kullback import Probs, compare_predictions
        >>> p, q = torch.tensor([[0.36, 0.48, 0.16], [0.2, 0.3, 0.5]]), torch.full((2, 3), 1 / 3)
        >>> comparison = compare_predictions(Probs(p), Probs(q), labels=[1, 2])
        >>> [round(comparison.divergences[name].mean, 4) for name in ("kl_pq", "kl_qp", "js", "tv")]
        [0.0771, 0.0838, 0.0199, 0.17]
        >>> comparison.top1_agreement.value, round(comparison.labels.difference.mean, 4)
        (0.0, 0.3851)

    References:
        Bootstrap Methods and Their Application, sections 3.8 and 5.2 (Davison and Hinkley, 1997)
    """
    checked = _ARGUMENTS.check(**locals())
    refuse_both(CALL, independent, cluster)
    require_state(CALL, resume)
    run = Run(**checked, resume=resume)
    if isinstance(p, Representation) and isinstance(q, Representation):
        p, q = p.aligned_with(q)
    representations: tuple[RepresentationName | None, RepresentationName | None] = _for_each(
        "representation", representation
    )
    keys = _for_each("key", key)
    columns = check_columns(columns)
    workers = Workers(CALL, group)
    most_rows = MOST_SENT if workers.size > 1 or resume is not None else None
    with ExitStack() as stack:

        def prepare() -> tuple[RowMeasure, Reading, list[str]]:
            sides: list[RowSource] = []
            require_same_rows(p, q)
            for side, its_representation, its_key, name in zip(
                (p, q), representations, keys, ("p", "q"), strict=True
            ):
                sides.append(open_source(side, its_representation, its_key, name, columns))
                if sides[-1] is not side:
                    stack.callback(sides[-1].close)
            source_p, (source_q, differ) = sides[0], matched(*sides)
            rows = source_p.rows or source_q.rows
            true_classes, notes = take_labels(labels, labels_key, source_p, source_q)
            by_position = unnamed_side(source_p.class_names, source_q.class_names)
            notes += [] if by_position is None else [by_position]
            stored = next((side.clusters for side in sides if side.clusters is not None), None)
            clusters = take_clusters(cluster, cluster_key, rows, stored)
            if llama_cpp:
                _check_llama_cpp(true_classes)
            collector = Collector(
                rows,
                true_classes,
                clusters,
                run,
                chunks=_chunks(sides) if llama_cpp else None,
                further=list(FURTHER.values()),
                groups=take_groups(groups, group_key, rows, source_p),
            )
            measured = RowMeasure(collector, source_p, source_q)
            reading = Reading(
                [source_p, source_q],
                [measured],
                run,
                differ=differ,
                rows_in_block=_rows_in_block(sides, run.block_bytes, most_rows),
                rows=rows,
                workers=workers,
            )
            return measured, reading, notes

        measured, reading, notes = workers.each(prepare)
        sides, true_classes = measured.sides, measured.collector.labels
        if workers.size > 1:
            absent = [each is None for each in (true_classes, cluster, groups)]
            settings = *absent, run.worst, run.bootstrap, llama_cpp, resume is None, *FURTHER, independent
            _require_same(workers, sides, settings)

        def identity() -> dict[str, object]:
            return {
                "sides": [side.identity() for side in sides],
                "labels": true_classes,
                "options": [run.worst, columns, list(FURTHER)],
            }

        reading.all_rows(stack, identity)
        return measured.collector.comparison(*sides, notes)


class RowMeasure(Measure):
    """The measurement of all statistics of two sides, if the probabilities of all classes are known."""

    def __init__(self, collector: Collector, p: RowSource, q: RowSource) -> None:
        self.collector, self.sides = collector, (p, q)
        self._part = rows_in_part(p.classes)

    @property
    def threads(self) -> int:
        # torch itself uses several threads for a row longer than a part.
        return super().threads if self.sides[0].classes <= PART else 1

    def ends(self, first: int, stop: int) -> Sequence[int]:
        self.collector.require_values_up_to(stop)
        return [*range(self._part, stop - first, self._part), stop - first]

    def measured(self, first: int, p: Tensor, q: Tensor) -> Part:
        labels = None if self.collector.labels is None else self.collector.labels[first : first + len(p)]
        representations = self.sides[0].representation, self.sides[1].representation
        rows = measure(p, q, representations, labels, self.collector.further)
        return Part(rows.table, self.collector.worst.candidates(first, rows))

    def add(self, part: Part) -> None:
        self.collector.add(part.table, part.worst)


def _require_same(workers: Workers, sides: tuple[RowSource, RowSource], settings: tuple[object, ...]) -> None:
    """Raise unless all workers have files of the same shape and the same settings."""
    own = [f"{s.rows} rows of {s.classes} classes, {s.representation}, {s.dtype}" for s in sides], settings
    for rank, theirs in enumerate(workers.gather(lambda: own)):
        if theirs != own:
            raise invalid_value(
                CALL,
                "p, q",
                wanted="the same files and settings on every worker",
                got=f"{own} on worker {workers.rank}, and {theirs} on worker {rank}",
                instead="the same command on every worker, of files that all of them can read",
            )


def _check_llama_cpp(labels: Tensor | None) -> None:
    if labels is None or bool((labels == NO_LABEL).all()):
        wanted = "the true token of each position, which llama.cpp's statistics need"
        got = "none" if labels is None else f"{NO_LABEL} for every row"
        raise invalid_value(CALL, "labels", wanted=wanted, got=got, instead="labels=tokens (--labels FILE)")


def _chunks(sides: list[RowSource]) -> Tensor | None:
    """Return the number of each row's window in a llama.cpp base file, or None if neither side is one."""
    for side in sides:
        if isinstance(side.reader, LlamaBaseFile):
            return torch.arange(side.reader.layout.rows, device="cpu") // side.reader.layout.rows_per_chunk
    return None


def _rows_in_block(sides: list[RowSource], block_bytes: int, most_rows: int | None) -> int:
    """Return the number of rows to read at a time, a multiple of a part, so that parts do not depend on
    `block_bytes`."""
    part = rows_in_part(sides[0].classes)
    row_bytes = max(side.classes * side.dtype.itemsize for side in sides)
    parts = block_bytes // (row_bytes * part)
    if most_rows is not None:  # results of some hundred bytes for each row are sent or kept
        parts = min(parts, most_rows // part)
    return max(1, parts) * part


def _for_each(argument: str, value: T | tuple[T | None, T | None] | None) -> tuple[T | None, T | None]:
    if not isinstance(value, tuple):
        return value, value
    if len(value) != 2:
        instead = f"{argument}=({argument}_of_p, {argument}_of_q)"
        wanted = "one for both, or a pair: of P, of Q"
        raise invalid_value(CALL, argument, wanted=wanted, got=f"a tuple of {len(value)}", instead=instead)
    return cast("tuple[T | None, T | None]", value)
