"""Tables of Dask and PySpark: each worker fills a copy of the same counter, and the copies are merged.

A counter is sent between processes as plain numbers, arrays and names, because Spark's workers lack this package. They
need PyArrow and NumPy, and Spark sends them the package's functions.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar

from kullback.errors import ArgumentValueError, OptionalDependencyError, invalid_value
from kullback.tables.columns.types import Field, narwhals_field
from kullback.tables.engines.batch_tables import PandasTable, distinct_names
from kullback.tables.engines.counters import ColumnCounter
from kullback.tables.engines.engine import BATCH_ROWS, Batch, Batches, BatchTable, Caller, Table, TableCounter

_TOTALS = ("rows", "weight", "weight_squares")
_Counter = TypeVar("_Counter", bound=ColumnCounter)


def count_part(part: Table, empty: TableCounter) -> bytes:
    """Return the counts of a part of a table, or the error that the values of the part caused."""
    return _packed(lambda: part.count(deepcopy(empty)))


def merge_parts(parts: Iterable[bytes], empty: TableCounter) -> bytes:
    """Return the counts of several parts together, or the first error."""
    return _packed(lambda: merged(parts, empty))


def merged(parts: Iterable[bytes], empty: TableCounter) -> TableCounter:
    """Return the counter with the counts of all results of `count_part` and `merge_parts`, or raise their error."""
    total = deepcopy(empty)
    for part in parts:
        total.merge(_unpacked(part, empty))
    return total


def _packed(count: Callable[[], TableCounter]) -> bytes:
    try:
        counter = count()
    except ArgumentValueError as error:
        fields = {name: getattr(error, name) for name in ("call", "argument", "wanted", "got")}
        return pickle.dumps((fields | {"instead": dict(error.remedy) or error.instead}, [], {}, None))
    for column in counter.columns.values():
        column.shrink()
    columns = {name: _state(column) for name, column in counter.columns.items()}
    joint = None if counter.joint is None else counter.joint.counts
    return pickle.dumps((None, [getattr(counter, name) for name in _TOTALS], columns, joint))


def _unpacked(content: bytes, empty: TableCounter) -> TableCounter:
    error, totals, columns, joint = pickle.loads(content)  # noqa: S301 - this session's own workers have written it
    if error is not None:
        raise invalid_value(**error)
    counter = TableCounter(weights=empty.weights)
    for name, total in zip(_TOTALS, totals, strict=True):
        setattr(counter, name, total)
    counter.columns = {name: _filled(column, columns[name]) for name, column in empty.columns.items()}
    if empty.joint is not None:
        counter.joint = deepcopy(empty.joint)
        counter.joint.counts = joint
    return counter


def _state(counter: ColumnCounter) -> dict[str, object]:
    """Return the state of a counter and of its inner counters, without classes of this package."""
    return {
        name: _state(value) if isinstance(value, ColumnCounter) else value
        for name, value in counter.__getstate__().items()
    }


def _filled(empty: _Counter, state: Any) -> _Counter:
    """Return a counter of the same class as `empty`, with the given state."""
    counter = object.__new__(type(empty))
    inner = {name: value for name, value in vars(empty).items() if isinstance(value, ColumnCounter)}
    counter.__setstate__(state | {name: _filled(value, state[name]) for name, value in inner.items()})
    return counter


class DaskTable(Table):
    """A Dask DataFrame with partitions of pandas, counted by the active scheduler or cluster."""

    def __init__(self, frame: Any, caller: Caller | None = None) -> None:
        distinct_names(frame.columns, caller)
        self.frame = frame
        self.fields = PandasTable(frame._meta).fields  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        objects = [name for name in self.fields if str(frame.dtypes[name]) == "object"]
        if objects:
            fields = self._reduced(lambda part: _fields_of(part[objects]), _merged_fields)
            # A column without any value counts as categorical, like a column of Arrow's null type.
            empty = {name: Field(name, "categorical") for name in objects}
            self.fields |= {n: f if f.column_type or f.reason else empty[n] for n, f in fields.items()}

    def count(self, counter: TableCounter) -> TableCounter:
        names = list(counter.names)
        parts = self._reduced(
            lambda part: count_part(PandasTable(part[names]), counter),
            lambda first, second: merge_parts((first, second), counter),
        )
        return merged([parts], counter)

    def _reduced(self, work: Callable[[Any], Any], merge: Callable[[Any, Any], Any]) -> Any:
        """Let the workers apply a function to every partition and merge the results in pairs."""
        from dask.base import compute
        from dask.delayed import delayed

        results = [delayed(work)(part) for part in self.frame.to_delayed()]
        while len(results) > 1:
            pairs = zip(results[::2], results[1::2], strict=False)
            odd = results[-1:] if len(results) % 2 else []
            results = [delayed(merge)(*pair) for pair in pairs] + odd
        return compute(results[0])[0]


def _fields_of(part: Any) -> dict[str, Field]:
    """Return the fields of a partition; a field has no type if the partition has no value of the column."""
    return {
        name: Field(name, None) if part[name].isna().all() else field
        for name, field in PandasTable(part).fields.items()
    }


def _merged_fields(first: dict[str, Field], second: dict[str, Field]) -> dict[str, Field]:
    return {name: _merged_field(field, second[name]) for name, field in first.items()}


def _merged_field(first: Field, second: Field) -> Field:
    for one, another in ((first, second), (second, first)):
        if one.column_type is None:
            return one if one.reason else another
    if first.column_type == second.column_type:
        return Field(first.name, first.column_type, integer=first.integer and second.integer)
    return Field(
        first.name, None, reason=f"objects of several types: {first.column_type}, {second.column_type}"
    )


SCHEMA = "result binary"
MERGERS = 4  # this many tasks merge the results of partitions, so that the driver gets few results


class SparkTable(Table):
    """A DataFrame of PySpark, classic or Connect."""

    def __init__(self, frame: Any, caller: Caller | None = None) -> None:
        schema = frame.collect_schema()
        distinct_names(list(schema), caller)
        self.fields = {name: narwhals_field(name, dtype) for name, dtype in schema.items()}
        # Columns get new names, because Spark takes a dot in a name for access to a part of a struct.
        self.inner = {name: f"column_{index}" for index, name in enumerate(self.fields)}
        self.frame = frame.to_native().toDF(*self.inner.values())

    def count(self, counter: TableCounter) -> TableCounter:
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F

        names = counter.names
        columns = [F.col(self.inner[name]) for name in names] or [F.lit(1)]
        work = partial(_counted, fields=[self.fields[name] for name in names], counter=counter)
        with _sent_to_workers():
            parts = self.frame.select(*columns).mapInArrow(work, SCHEMA)
            fewer = parts.repartition(MERGERS).mapInArrow(partial(_merged, counter=counter), SCHEMA)
            try:
                rows = fewer.collect()
            except PySparkException as error:
                if "pyarrow" not in str(error).lower():
                    raise
                raise OptionalDependencyError.at(
                    "",
                    wanted="pyarrow on every worker",
                    got="where it cannot be imported",
                    instead="pip install pyarrow",
                    wording="counting a table of PySpark needs {wanted}, {got}. Run there: {instead}",
                ) from error
        return merged([bytes(row[0]) for row in rows], counter)


class _SparkPart(BatchTable):
    """A partition, whose batches can be read only once."""

    def __init__(self, stream: Iterator[Any], fields: Sequence[Field]) -> None:
        self.stream = stream
        self.fields = {field.name: field for field in fields}

    def batches(self, names: Sequence[str], first: int | None = None) -> Batches:
        places = {name: place for place, name in enumerate(self.fields)}
        for batch in _regrouped(self.stream):
            yield Batch(batch.num_rows, {name: batch.column(places[name]) for name in names})


def _regrouped(stream: Iterator[Any]) -> Iterator[Any]:
    """Yield batches joined to at least `BATCH_ROWS` rows, because Spark's batches have only 10,000 rows."""
    import pyarrow as pa

    waiting: list[Any] = []
    for batch in stream:
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= BATCH_ROWS:
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)


def _counted(stream: Iterator[Any], fields: Sequence[Field], counter: TableCounter) -> Iterator[Any]:
    yield _row(count_part(_SparkPart(stream, fields), counter))


def _merged(stream: Iterator[Any], counter: TableCounter) -> Iterator[Any]:
    parts = [row.as_py() for batch in stream for row in batch.column(0)]
    if parts:
        yield _row(merge_parts(parts, counter))


def _row(content: bytes) -> Any:
    import pyarrow as pa

    return pa.record_batch([pa.array([content], pa.binary())], ["result"])


@contextmanager
def _sent_to_workers() -> Generator[None]:
    """Make Spark send this package's functions by value, because an import would load PyTorch on every worker."""
    from pyspark import cloudpickle

    package = sys.modules[__name__.partition(".")[0]]
    cloudpickle.register_pickle_by_value(package)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(package)
