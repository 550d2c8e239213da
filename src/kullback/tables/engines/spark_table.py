"""PySpark's data frames: the workers count their partitions by `mapInArrow`.

The workers need PyArrow and NumPy, and not this package: Spark sends them its functions.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

from kullback.errors import ArgumentValueError, OptionalDependencyError, invalid_value
from kullback.tables.columns.column_profile import ColumnProfile
from kullback.tables.columns.types import Field, narwhals_field
from kullback.tables.engines.batches import BATCH_ROWS, Batches, BatchTable
from kullback.tables.engines.engine import Caller, TableCounts
from kullback.tables.engines.in_memory import distinct_names
from kullback.tables.engines.parts import Merge, PartsTable, Work

SCHEMA = "result binary"
MERGERS = 4  # tasks that merge the partitions' results, so that the driver gets few


class SparkTable(PartsTable):
    """A DataFrame of PySpark, classic or Connect."""

    def __init__(self, frame: Any, caller: Caller | None = None) -> None:
        schema = frame.collect_schema()
        distinct_names(list(schema), caller)
        self.fields = {name: narwhals_field(name, dtype) for name, dtype in schema.items()}
        # In Spark's expressions a dot in a name means a part of a struct.
        self.inner = {name: f"column_{index}" for index, name in enumerate(self.fields)}
        self.frame = frame.to_native().toDF(*self.inner.values())

    def reduced(self, names: Sequence[str], work: Work, merge: Merge, *arguments: object) -> Any:
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F

        fields = [self.fields[name] for name in names]
        columns = [F.col(self.inner[name]) for name in names] or [F.lit(1)]
        selected = self.frame.select(*columns)
        with _sent_to_workers():
            counted = selected.mapInArrow(
                partial(_counted, fields=fields, work=work, arguments=arguments), SCHEMA
            )
            merged = counted.repartition(MERGERS).mapInArrow(partial(_merged, merge=merge), SCHEMA)
            try:
                rows = merged.collect()
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
        nothing = work(_SparkPart(iter(()), fields), *arguments)
        return reduce(merge, (_unpacked(row[0]) for row in rows), nothing)


class _SparkPart(BatchTable):
    """A partition, whose batches may be read once."""

    def __init__(self, stream: Iterator[Any], fields: Sequence[Field]) -> None:
        self.stream = stream
        self.fields = {field.name: field for field in fields}

    def batches(self, names: Sequence[str], first: int | None = None) -> Batches:
        places = {name: place for place, name in enumerate(self.fields)}
        for batch in _regrouped(self.stream):
            yield batch.num_rows, {name: batch.column(places[name]) for name in names}


def _regrouped(stream: Iterator[Any]) -> Iterator[Any]:
    """Yield batches joined to at least `BATCH_ROWS` rows; Spark's have 10,000."""
    import pyarrow as pa

    waiting: list[Any] = []
    for batch in stream:
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= BATCH_ROWS:
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)


def _counted(
    stream: Iterator[Any], fields: Sequence[Field], work: Work, arguments: Sequence[object]
) -> Iterator[Any]:
    """Yield the result of a partition, as a batch of one row."""
    try:
        result = work(_SparkPart(stream, fields), *arguments)
    except ArgumentValueError as error:
        result = error
    yield _packed(result)


def _merged(stream: Iterator[Any], merge: Merge) -> Iterator[Any]:
    """Yield the merged result of several partitions."""
    results = [row.as_py() for batch in stream for row in batch.column(0)]
    try:
        if results:
            yield _packed(reduce(merge, map(_unpacked, results)))
    except ArgumentValueError as error:
        yield _packed(error)


def _packed(result: Any) -> Any:
    """Return a result as an Arrow batch without classes of this package, which a worker may not have."""
    import pyarrow as pa

    kind, plain = "", result
    if isinstance(result, TableCounts):
        columns = {name: vars(column) for name, column in result.columns.items()}
        kind, plain = "counts", vars(result) | {"columns": columns}
    elif isinstance(result, ArgumentValueError):
        kind = "error"
        plain = {name: getattr(result, name) for name in ("call", "argument", "wanted", "got")}
        plain["instead"] = dict(result.remedy) or result.instead
    return pa.record_batch([pa.array([pickle.dumps((kind, plain))], pa.binary())], ["result"])


def _unpacked(content: bytes) -> Any:
    """Return the result from a batch of `_packed`; if it is an error, raise it."""
    kind, plain = pickle.loads(content)  # noqa: S301 - this session's own workers have written it
    if kind == "error":
        raise invalid_value(**plain)
    if kind == "counts":
        columns = {name: ColumnProfile(**column) for name, column in plain["columns"].items()}
        return TableCounts(**(plain | {"columns": columns}))
    return plain


@contextmanager
def _sent_to_workers() -> Generator[None]:
    """Make Spark send this package's functions by value: an import of the package would load PyTorch on every
    worker."""
    from pyspark import cloudpickle

    package = sys.modules[__name__.partition(".")[0]]
    cloudpickle.register_pickle_by_value(package)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(package)
