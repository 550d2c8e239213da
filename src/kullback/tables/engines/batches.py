"""Counting of Arrow batches in this process, on threads."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from kullback.tables.columns.types import ColumnType
from kullback.tables.engines.arrow import integers_of, numbers_of, weights_of
from kullback.tables.engines.counters import CategoryCounter, Counter, GridCounter, StringCounter
from kullback.tables.engines.engine import ColumnSpec, CountsByGroup, Groups, Intervals, Table, TableCounts
from kullback.tables.engines.joint_counts import add_batch

if TYPE_CHECKING:
    from kullback.tables.columns.bins import Bins

# The number of rows of each batch, and its columns as Arrow arrays.
Batches = Iterator[tuple[int, Mapping[str, Any]]]

BATCH_ROWS = 1 << 16
WAITING = 4


class BatchTable(Table):
    """A table that can be read as Arrow batches, any number of times."""

    @abstractmethod
    def batches(self, names: Sequence[str], first: int | None = None) -> Batches:
        """Yield the table in batches: the number of rows and the named columns as Arrow arrays.

        Arguments:
            names: the columns.
            first: the least number of rows to yield, in the order of the table; by default all rows, in any order.
        """

    def count(self, specs: Sequence[ColumnSpec], weights: str | None) -> TableCounts:
        """Count columns in one reading, and columns of strings with too many bytes in another."""
        counts, counters = TableCounts({}), {spec.name: counter_for(spec) for spec in specs}
        self._read(counters, counts, weights)
        strings = {name: each for name, each in counters.items() if isinstance(each, StringCounter)}
        again = {name: CategoryCounter() for name, each in strings.items() if each.undecided}
        if again:
            self._read(again, TableCounts({}), weights)
            counters.update({name: each for name, each in again.items() if not strings[name].too_many(each)})
        counts.columns = {name: counter.profile() for name, counter in counters.items()}
        return counts

    def _read(self, counters: Mapping[str, Counter], counts: TableCounts, weights: str | None) -> None:
        threads = max(1, min(8, os.cpu_count() or 1))
        with ThreadPoolExecutor(threads) as pool:
            waiting: deque[Future[None]] = deque()
            for rows, batch in self.batches(each_once(counters, weights)):
                w = None if weights is None else weights_of(weights, batch[weights])
                counts.add(rows, w)
                for part in range(threads):
                    mine = [name for at, name in enumerate(counters) if at % threads == part]
                    waiting.append(pool.submit(_count_part, mine, counters, batch, w))
                while len(waiting) > WAITING * threads:
                    waiting.popleft().result()
            while waiting:
                waiting.popleft().result()

    def extremes(self, intervals: Intervals, column_types: Mapping[str, ColumnType]) -> Intervals:
        found: dict[str, tuple[float, float]] = {}
        for _, batch in self.batches(list(intervals)):
            for name, (low, high) in intervals.items():
                array = batch[name].drop_null()
                if self.fields[name].integer:
                    values = integers_of(array)
                    limits = np.iinfo(values.dtype)
                    ends = max(math.ceil(low), limits.min), min(math.floor(high), limits.max)
                else:
                    values, ends = numbers_of(array, column_types[name]), (low, high)
                values = values[(values >= ends[0]) & (values <= ends[1])]
                if len(values):
                    least, most = found.get(name, (np.inf, -np.inf))
                    found[name] = min(least, values.min().item() + 0), max(most, values.max().item() + 0)
        return found

    def first_rows(self, names: Sequence[str], rows: int) -> Mapping[str, Any] | None:
        import pyarrow as pa

        pieces: list[Mapping[str, Any]] = []
        left = rows
        for count, batch in self.batches(names, rows):
            pieces.append({name: batch[name].slice(0, left) for name in names})
            left -= count
            if left <= 0:
                break
        if not pieces:
            return {}
        arrays = {name: pa.chunked_array([piece[name] for piece in pieces]) for name in names}
        return {name: pa.concat_arrays(array.chunks) for name, array in arrays.items()}

    def joint_counts(self, bins: Mapping[str, Bins], keys: Groups, weights: str | None) -> CountsByGroup:
        counts: CountsByGroup = {tuple(key): {} for key in keys}
        for _, batch in self.batches(each_once(chain(*keys), weights)):
            add_batch(counts, bins, batch, None if weights is None else weights_of(weights, batch[weights]))
        return {
            key: {combination: weight for combination, weight in each.items() if weight}
            for key, each in counts.items()
        }


def counter_for(spec: ColumnSpec) -> Counter:
    """Return the counter of a column."""
    if spec.column_type == "string":
        return StringCounter()
    if spec.column_type in {"categorical", "boolean"}:
        return CategoryCounter("boolean" if spec.column_type == "boolean" else "categorical")
    return GridCounter(spec.column_type, spec.center, integer=spec.integer, words=spec.words)


def each_once(names: Iterable[str], weights: str | None) -> list[str]:
    """Return names in order, without repetitions, and the column of weights if there is one."""
    return list(dict.fromkeys([*names, *([] if weights is None else [weights])]))


def _count_part(
    names: Sequence[str], counters: Mapping[str, Counter], batch: Mapping[str, Any], weights: Any
) -> None:
    for name in names:
        counters[name].add(batch[name], weights)
