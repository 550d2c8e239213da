"""The engine of a table gives its columns, and batches of its rows that one counter counts; parts can be merged."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from kullback.tables.columns.types import ArrowArray, Field, call, strings_of, weights_of
from kullback.tables.columns.written_numbers import Written, parse
from kullback.tables.engines.counters import (
    CategoryCounter,
    ColumnCounter,
    CountsByGroup,
    JointCounter,
    ProfileCounter,
    StringCounter,
)

if TYPE_CHECKING:
    from kullback.common.arrays import Floats
    from kullback.tables.columns.bins import Bins
    from kullback.tables.columns.column_profile import ColumnProfile

Ways = Mapping[str, Written]
_UNPARSED = "\0unparsed"


def is_text_field(field: Field) -> bool:
    """Return whether the values of a column are strings or categories, which can be parsed."""
    return field.column_type in ("string", "categorical")


def unparsed_of(name: str) -> str:
    """Return the name of the extra column that holds the unparsed texts of the column `name`."""
    return name + _UNPARSED


def text_of(name: str) -> str:
    """Return the name of the table's column that contains the text of a parsed or an extra column."""
    return name.removesuffix(_UNPARSED)


def parsed_columns(
    arrays: Mapping[str, ArrowArray], names: Sequence[str], ways: Ways
) -> dict[str, ArrowArray]:
    """Return some columns of a batch, with text parsed; `unparsed_of` names the texts written in another way."""
    import pyarrow as pa

    values = dict(arrays)
    for name, way in ways.items():
        if name not in arrays:
            continue
        texts = strings_of(arrays[name])
        values[name] = parse(texts, way)
        if unparsed_of(name) in names:
            none = pa.scalar(None, texts.type)
            values[unparsed_of(name)] = call("if_else", values[name].is_null(), texts, none)
    return {name: values[name] for name in names}


class Batch(NamedTuple):
    """The number of some rows of a table, and the requested columns as Arrow arrays."""

    rows: int
    columns: Mapping[str, Any]


class TableCounter:
    """The counts of columns and combinations of bins, and the sums of weights; `ways` are those of parsed text."""

    def __init__(
        self,
        columns: Mapping[str, ColumnCounter] | None = None,
        joint: JointCounter | None = None,
        *,
        weights: str | None = None,
    ) -> None:
        self.columns = dict(columns or {})
        self.joint, self.weights = joint, weights
        self.ways: Ways = {}
        self.rows, self.weight, self.weight_squares = 0, 0.0, 0.0

    @property
    def names(self) -> list[str]:
        """The names of the table's columns that the counter needs."""
        weights = () if self.weights is None else (self.weights,)
        return list(dict.fromkeys([*map(text_of, self._counted), *weights]))

    @property
    def _counted(self) -> list[str]:
        """The names of the counted columns, including columns of unparsed texts."""
        return [*self.columns, *(() if self.joint is None else self.joint.names)]

    def tasks(self, batch: Batch, number: int) -> list[Callable[[], None]]:
        """Count the columns that need batches in order; return at most `number` tasks that count the other columns."""
        weights = None if self.weights is None else weights_of(self.weights, batch.columns[self.weights])
        self.rows += batch.rows
        self.weight += batch.rows if weights is None else float(weights.sum())
        self.weight_squares += batch.rows if weights is None else float(np.square(weights).sum())
        arrays = batch.columns
        if self.ways:
            arrays = parsed_columns(arrays, self._counted, self.ways)
        if self.joint is not None:
            self.joint.add(arrays, weights)
        _add(
            [name for name, column in self.columns.items() if column.in_order], self.columns, arrays, weights
        )
        free = [name for name, column in self.columns.items() if not column.in_order]
        shares = [free[start::number] for start in range(min(number, len(free)))]
        return [partial(_add, share, self.columns, arrays, weights) for share in shares]

    def merge(self, other: TableCounter) -> None:
        """Add the counts of another part of the table."""
        self.rows += other.rows
        self.weight += other.weight
        self.weight_squares += other.weight_squares
        for name, column in self.columns.items():
            column.merge(other.columns[name])
        if self.joint is not None and other.joint is not None:
            self.joint.merge(other.joint)

    def profiles(self) -> dict[str, ColumnProfile]:
        """Return the profile of each column whose counter gives one."""
        counters = self.columns.items()
        return {name: column.profile() for name, column in counters if isinstance(column, ProfileCounter)}


def _add(
    names: Sequence[str],
    columns: Mapping[str, ColumnCounter],
    arrays: Mapping[str, Any],
    weights: Floats | None,
) -> None:
    for name in names:
        columns[name].add(arrays[name], weights)


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
        """Return the weight of every combination of bins, or of values, for each group of columns in `keys`."""
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
        """Yield some columns in batches: all rows in any order, or at least the `first` rows in the table's order."""

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
    """A table with some columns of text parsed."""

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
