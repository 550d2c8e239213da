"""The engine for PySpark's data frames: the workers count partitions in `mapInArrow`.

The workers need PyArrow and NumPy. They do not need this package, because Spark sends them the package's functions.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from kullback.errors import OptionalDependencyError
from kullback.tables.columns.types import Field, narwhals_field
from kullback.tables.engines.data_frames import distinct_names
from kullback.tables.engines.engine import BATCH_ROWS, Batch, Batches, BatchTable, Caller, Table, TableCounter
from kullback.tables.engines.parts import count_part, merge_parts, merged

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
