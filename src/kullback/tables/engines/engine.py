"""The interface of an engine, which gives a table's columns, and the table's rows as batches for a counter."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from kullback.tables.columns.types import Field
from kullback.tables.engines.column_counters import CategoryCounter, ColumnCounter, StringCounter
from kullback.tables.engines.joint_counter import CountsByGroup, JointCounter
from kullback.tables.engines.parsed_columns import Ways, parsed_columns, text_of, unparsed_of
from kullback.tables.engines.table_counter import Batch, TableCounter

if TYPE_CHECKING:
    from kullback.tables.columns.bins import Bins

BATCH_ROWS = 1 << 16
_MOST_WAITING = 4  # the most waiting tasks per thread, because waiting tasks hold batches in memory


class Caller(NamedTuple):
    """The function that the user called, and the argument that holds the table; errors name both."""

    call: str = "profile_table"
    argument: str = "frame"


Batches = Iterator[Batch]


class Table(ABC):
    """A table that one engine reads. An engine defines `fields` and `count`; a `BatchTable` defines `batches` instead.

    Attributes:
        fields: the table's columns by name, in the table's order.
    """

    fields: dict[str, Field]

    @abstractmethod
    def count(self, counter: TableCounter) -> TableCounter:
        """Add all rows to a counter, in one reading of the table; return the counter."""

    def count_columns(self, columns: Mapping[str, ColumnCounter], weights: str | None) -> TableCounter:
        """Count columns in one reading, and in a second reading the categories whose values had been dropped."""
        counter = self.count(TableCounter(columns, weights=weights))
        undecided = {
            name: column
            for name, column in counter.columns.items()
            if isinstance(column, StringCounter) and column.is_undecided
        }
        if undecided:
            again = self.count(TableCounter({name: CategoryCounter() for name in undecided}, weights=weights))
            counter.columns |= {
                name: column
                for name, column in again.columns.items()
                if not undecided[name].has_too_many(cast("CategoryCounter", column))
            }
        return counter

    def joint_counts(
        self, bins: Mapping[str, Bins], keys: Sequence[Sequence[str]], weights: str | None
    ) -> CountsByGroup:
        """Return the weight of every combination of bins that occurs, for each group of columns in `keys`.

        A column without bins is counted by its values.
        """
        joint = self.count(TableCounter(joint=JointCounter(bins, keys), weights=weights)).joint
        return {} if joint is None else joint.occurring()

    def first_rows(self, names: Sequence[str], rows: int) -> Mapping[str, Any] | None:
        """Return the first rows of some columns, in order, as Arrow arrays; None if rows have no order."""
        del names, rows
        return None


class BatchTable(Table):
    """A table that this process reads in batches, any number of times.

    Attributes:
        has_order: whether the table's rows have an order.
    """

    has_order = True

    @abstractmethod
    def batches(self, names: Sequence[str], first: int | None = None) -> Batches:
        """Yield the table in batches.

        Arguments:
            names: the names of the columns to read.
            first: the smallest number of rows to yield, in the table's order; None yields all rows in any order.
        """

    def count(self, counter: TableCounter) -> TableCounter:
        """Add all rows to a counter, in one reading of the table on several threads; return the counter."""
        threads = max(1, min(8, os.cpu_count() or 1))
        waiting: deque[Future[None]] = deque()
        with ThreadPoolExecutor(threads) as pool:
            for batch in self.batches(counter.names):
                waiting.extend(pool.submit(task) for task in counter.tasks(batch, threads))
                while len(waiting) > _MOST_WAITING * threads:
                    waiting.popleft().result()
            while waiting:
                waiting.popleft().result()
        return counter

    def first_rows(self, names: Sequence[str], rows: int) -> Mapping[str, Any] | None:
        import pyarrow as pa

        if not self.has_order:
            return None
        pieces: list[Mapping[str, Any]] = []
        left = rows
        for batch in self.batches(names, rows):
            pieces.append({name: batch.columns[name].slice(0, left) for name in names})
            left -= batch.rows
            if left <= 0:
                break
        if not pieces:
            return {}
        arrays = {name: pa.chunked_array([piece[name] for piece in pieces]) for name in names}
        return {name: pa.concat_arrays(array.chunks) for name, array in arrays.items()}


class ParsedTable(Table):
    """A table with some columns of text parsed.

    Arguments:
        table: the table with the unparsed columns.
        ways: the format of each parsed column, by the column's name.
    """

    def __init__(self, table: Table, ways: Ways) -> None:
        self.table, self.ways = table, dict(ways)
        values = {name: way.field(name) for name, way in ways.items()}
        rest = {unparsed_of(name): Field(unparsed_of(name), "string") for name in ways}
        self.fields = table.fields | values | rest

    def count(self, counter: TableCounter) -> TableCounter:
        counter.ways = self.ways | dict(counter.ways)
        return self.table.count(counter)

    def first_rows(self, names: Sequence[str], rows: int) -> Mapping[str, Any] | None:
        arrays = self.table.first_rows(list(dict.fromkeys(map(text_of, names))), rows)
        return parsed_columns(arrays, names, self.ways) if arrays else arrays
