"""Reading several streams of rows in step and measuring them in parts, in bounded memory; a stopped run continues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kullback.common.plain_values import JsonObject
from kullback.io import RowStream
from kullback.io.row_stream import in_step
from kullback.parallel.workers import Workers
from kullback.predictions.checkpoint import Checkpoint, checkpoint_of, decoded_rows, encoded_rows, fingerprint
from kullback.predictions.prediction_results import WorstRow
from kullback.predictions.run import Run
from kullback.predictions.until_sure import Question

Differ = Callable[[int, Callable[[], list[int]]], Exception]
# In these formats, a block can be read without the blocks before it. In other formats, each worker reads all rows. Text
# and compressed arrays are decoded from the beginning. Remarks on a whole file, such as its stored mass, need all rows.
DIRECT = {"npy", "safetensors", "pt", "parquet", "tensor", "frame"}


class Part(NamedTuple):
    """Measured rows: a table with a line for each row, and the rows that may have the largest KL(P || Q).

    `passages` are pairs of a first row and further data that are kept of the rows from there.
    """

    table: Tensor
    worst: list[WorstRow]
    passages: Sequence[tuple[int, Any]] = ()


class Measure(ABC):
    """The measurement of P and one Q: `measured` takes a part of rows in any thread, and `add` takes all parts in
    order.
    """

    @property
    def threads(self) -> int:
        """The number of parts to measure at a time."""
        return torch.get_num_threads()

    def prepared(self, p: Any, q: Any) -> tuple[Any, Any]:
        """Return blocks of P and Q as `measured` takes them."""
        return p, q

    @abstractmethod
    def ends(self, first: int, stop: int) -> Sequence[int]:
        """Return the ends of the parts of rows `first` to `stop`, counted from `first`.

        An implementation may refuse these rows, for example if there are fewer labels.
        """

    @abstractmethod
    def measured(self, first: int, p: Any, q: Any) -> Part:
        """Measure a part that begins at row `first`."""

    @abstractmethod
    def add(self, part: Part) -> None:
        """Add measured rows, in order."""

    def encoded(self, part: Part) -> JsonObject:
        """Return measured rows as values that JSON can represent."""
        return encoded_rows(part.table, part.worst)

    def decoded(self, record: Any) -> Part:
        """Return the rows that `encoded` encoded."""
        return Part(*decoded_rows(record))


_MeasuredBlock = tuple[int, Iterable[tuple[int, Part]]]


class Reading:
    """Reads the rows of several streams and measures each Q against P, the first stream.

    Several workers measure different blocks, and every worker adds the parts of all blocks.

    Arguments:
        streams: P, and one or several Q.
        measures: the measurement for each Q.
        run: the settings of the run.
        differ: as for `in_step`.
        rows_in_block: the number of rows that are read at a time.
        rows: the number of rows, or None if it is unknown before the end.
        begins: the rows at which a stopped run may continue; None for every row at which a block ends.
        stopping: decides at `begins` which measures need more rows. Streams that no such measure reads are not read
        further.
        workers: the processes that measure; None for this process alone.
    """

    def __init__(
        self,
        streams: Sequence[RowStream],
        measures: Sequence[Measure],
        run: Run,
        *,
        differ: Differ,
        rows_in_block: int,
        rows: int | None,
        begins: Collection[int] | None = None,
        stopping: Question | None = None,
        workers: Workers | None = None,
    ) -> None:
        self._streams, self._measures, self._run = streams, measures, run
        self._differ, self._rows_in_block, self._rows, self._begins = differ, rows_in_block, rows, begins
        self._workers = Workers("") if workers is None else workers
        self._stopping, self._active = stopping, list(range(len(measures)))
        self._state: Checkpoint | None = None
        self._unkept: list[list[Part]] = [[] for _ in measures]

    def all_rows(self, stack: ExitStack, identity: Callable[[], dict[str, object]]) -> int:
        """Measure all rows, and return their number.

        Arguments:
            stack: the stack that closes the file of `Run.resume`, and removes the file if there was no error.
            identity: a function that returns everything that the measured rows depend on. A file with other values is
                refused.
        """
        resume, workers, done = self._run.resume, self._workers, 0
        if resume is not None:

            def opened() -> None:
                if workers.rank == 0:
                    self._state = stack.enter_context(checkpoint_of(resume, fingerprint(**identity())))

            workers.each(opened)
            done = self._add_finished()
        threads = max(measure.threads for measure in self._measures)
        with ThreadPoolExecutor(threads) as pool:
            measure_next = partial(self._measure_next, iter(self._blocks(done)), pool)
            while blocks := [block for block in workers.gather(measure_next) if block is not None]:
                if resume is not None:
                    workers.each(partial(self._keep, blocks))
                for stop, parts in blocks:
                    for place, part in parts:
                        self._measures[place].add(part)
                    done = stop
                    if self._run.progress is not None:
                        self._run.progress(stop, self._rows)
                if self._stops(done):
                    measure_next = partial(self._measure_next, iter(self._blocks(done)), pool)
        return done

    def _stops(self, done: int) -> bool:
        """Ask which measures need more rows than the first `done`, and return whether some do not any more."""
        if self._stopping is None or (self._begins is not None and done not in self._begins):
            return False
        before, self._active = self._active, list(self._stopping.remaining(done))
        if self._state is not None:
            self._state.is_unfinished = self._stopping.is_open
        return self._active != before

    def _add_finished(self) -> int:
        """Add the rows that the state file stores to the measures of all workers, and return their number."""
        first = 0
        records = iter(() if self._state is None else self._state.records())
        while self._active and (record := self._workers.gather(lambda: next(records, None))[0]) is not None:
            parts = [
                (self._measures[place], self._measures[place].decoded(record[place]))
                for place in self._active
            ]
            stop = first + len(parts[0][1].table)
            for measure, part in parts:
                measure.ends(first, stop)
                measure.add(part)
            first = stop
            self._stops(first)
        if first and self._run.progress is not None:
            self._run.progress(first, self._rows)
        return first

    def _blocks(self, first: int) -> Iterator[tuple[int, list[Any]] | None]:
        """Iterate over the blocks of this worker from row `first` on; None if only other workers have another block."""
        workers, size, rows = self._workers, self._workers.size, self._rows_in_block
        streams = [self._streams[0], *(self._streams[place + 1] for place in self._active)]
        if not self._active:
            return
        if size > 1 and streams[0].rows and all(getattr(x, "format", "") in DIRECT for x in streams):
            for start in range(first, streams[0].rows, rows * size):
                own = start + rows * workers.rank
                blocks = [next(stream.blocks(rows=rows, first=own), None) for stream in streams]
                yield None if blocks[0] is None else (own, blocks)
            return
        in_turn = in_step([x.blocks(rows=rows, first=first) for x in streams], self._differ, first)
        while (block := next(in_turn, None)) is not None:
            own = block if workers.rank == 0 else None
            for rank in range(1, size):
                block = next(in_turn, None)
                own = block if workers.rank == rank else own
            yield own

    def _measure_next(
        self, blocks: Iterator[tuple[int, list[Any]] | None], pool: ThreadPoolExecutor
    ) -> _MeasuredBlock | None:
        """Measure the next block: at once if its parts are sent or kept, otherwise while the caller iterates."""
        block = next(blocks, None)
        if block is None:
            return None
        first, (base, *others) = block
        parts = self._measured(pool, first, base, others)
        is_lazy = self._workers.size == 1 and self._run.resume is None
        return first + len(base), parts if is_lazy else list(parts)

    def _measured(
        self, pool: ThreadPoolExecutor, first: int, base: Any, others: Sequence[Any]
    ) -> Iterator[tuple[int, Part]]:
        """Iterate over (index of the measure, part) for a block, one measure after the other."""
        base = base.cpu() if isinstance(base, Tensor) else base
        for place, other in zip(self._active, others, strict=True):
            measure = self._measures[place]
            p, q = measure.prepared(base, other.cpu() if isinstance(other, Tensor) else other)
            spans = pairwise([0, *measure.ends(first, first + len(base))])
            for part in pool.map(partial(_measured_span, measure, first, p, q), spans):
                yield place, part

    def _keep(self, blocks: Sequence[_MeasuredBlock]) -> None:
        """Add measured blocks to the state file, if this worker has opened the file."""
        if self._state is None:
            return
        for stop, parts in blocks:
            for place, part in parts:
                self._unkept[place].append(part)
            if self._begins is None or stop in self._begins:
                pairs = zip(self._measures, self._unkept, strict=True)
                self._state.add([measure.encoded(_joined(kept)) if kept else None for measure, kept in pairs])
                self._unkept = [[] for _ in self._measures]


def _measured_span(measure: Measure, first: int, p: Any, q: Any, span: tuple[int, int]) -> Part:
    rows = slice(*span)
    return measure.measured(first + span[0], p[rows], q[rows])


def _joined(parts: Sequence[Part]) -> Part:
    tables, worst, passages = zip(*parts, strict=True)
    return Part(torch.cat(tables), list(chain(*worst)), list(chain(*passages)))
