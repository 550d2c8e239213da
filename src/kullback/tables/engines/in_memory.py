"""Tables in memory (PyArrow, pandas) as Arrow batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kullback.errors import ArgumentTypeError, invalid_type, invalid_value, quoted
from kullback.tables.columns.types import ArrowArray, Field, arrow_field
from kullback.tables.engines.engine import BATCH_ROWS, Batches, BatchTable, Caller
from kullback.tables.engines.table_counter import Batch


class ArrowTable(BatchTable):
    """A PyArrow table."""

    def __init__(self, table: Any, caller: Caller | None = None) -> None:
        distinct_names(table.column_names, caller)
        self.table = table
        self.fields = {field.name: arrow_field(field.name, field.type) for field in table.schema}

    def batches(self, names: Sequence[str], first: int | None = None) -> Batches:
        for start in range(0, self.table.num_rows, BATCH_ROWS):
            piece = self.table.slice(start, BATCH_ROWS)
            yield Batch(piece.num_rows, {name: _one(piece.column(name)) for name in names})


class PandasTable(BatchTable):
    """A pandas DataFrame; columns that Arrow cannot represent are skipped.

    In NumPy's floating-point columns, NaN is pandas' missing value, so it is counted as missing.
    """

    def __init__(self, frame: Any, caller: Caller | None = None) -> None:
        distinct_names(frame.columns, caller)
        self.frame = frame
        self.objects: dict[str, ArrowArray] = {}
        self.labels = {str(label): label for label in frame.columns}
        self.fields = {name: self._field(name, frame[label]) for name, label in self.labels.items()}

    def _field(self, name: str, column: Any) -> Field:
        if column.dtype == object:
            return self._object_field(name, column)
        try:
            return arrow_field(name, _arrow(column.iloc[:0]).type)
        except Exception as error:  # noqa: BLE001 - an extension type may raise any error
            return Field(name, None, reason=f"values of type {column.dtype}: {error}")

    def _object_field(self, name: str, column: Any) -> Field:
        """Return the field of a column of Python objects, whose values must have one type."""
        import pyarrow as pa

        try:
            self.objects[name] = pa.array(column, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            types = sorted({type(value).__name__ for value in column.dropna()})
            if types == ["int"]:
                return Field(name, None, reason="Python integers beyond 64 bits")
            what = "several types: " if len(types) > 1 else "a type that Arrow cannot hold: "
            return Field(name, None, reason=f"objects of {what}{', '.join(types)}")
        return arrow_field(name, self.objects[name].type)

    def batches(self, names: Sequence[str], first: int | None = None) -> Batches:
        for start in range(0, len(self.frame), BATCH_ROWS):
            rows = min(BATCH_ROWS, len(self.frame) - start)
            yield Batch(rows, {name: self._piece(name, start) for name in names})

    def _piece(self, name: str, start: int) -> Any:
        if name in self.objects:
            return _one(self.objects[name].slice(start, BATCH_ROWS))
        return _arrow(self.frame[self.labels[name]].iloc[start : start + BATCH_ROWS])


def distinct_names(names: Sequence[Any], caller: Caller | None = None) -> None:
    """Refuse a table with two columns of the same name."""
    seen: set[str] = set()
    for name in map(str, names):
        if name in seen:
            raise invalid_value(
                *(caller or Caller()),
                wanted="columns of different names",
                got=f"two columns {quoted(name)}",
                instead="a table where one of them is renamed",
            )
        seen.add(name)


def _arrow(column: Any) -> Any:
    import pyarrow as pa

    return _one(pa.array(column, from_pandas=True))


def _one(array: Any) -> Any:
    """Return a chunked array as one array, and any other array unchanged."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        return array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    return array


def not_a_table(frame: object, caller: Caller) -> ArgumentTypeError:
    """Return the error for an argument that is not a table."""
    return invalid_type(
        *caller,
        wanted="a path, or a table of pandas, Polars, PyArrow, DuckDB, Dask, PySpark or Ibis",
        got=type(frame).__name__,
        instead=f"{caller.argument}=pandas.DataFrame(...), or a path such as 'table.parquet'",
    )
