"""Tables that this process reads in Arrow batches: in memory (PyArrow, pandas), or streamed (DuckDB, Polars, Ibis)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kullback.errors import ArgumentTypeError, invalid_type, invalid_value, quoted
from kullback.tables.columns.types import ArrowArray, Field, arrow_field, narwhals_field
from kullback.tables.engines.engine import BATCH_ROWS, Batch, Batches, BatchTable, Caller


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


class DuckTable(BatchTable):
    """A DuckDB relation, computed on its own connection and read batch by batch."""

    def __init__(self, relation: Any, caller: Caller | None = None) -> None:
        self.relation = relation
        distinct_names(relation.columns, caller)
        # DuckDB cuts off a name at a NUL character in SQL and in Arrow, so columns are selected by position.
        self.places = {name: place for place, name in enumerate(relation.columns, start=1)}
        schema = _reader(relation.limit(0), 1).schema
        self.fields = {
            name: arrow_field(name, field.type) for name, field in zip(self.places, schema, strict=True)
        }

    def batches(self, names: Sequence[str], first: int | None = None) -> Batches:
        selected = self.relation.select(", ".join(f"#{self.places[name]}" for name in names) or "1")
        for batch in _reader(selected if first is None else selected.limit(first), first or BATCH_ROWS):
            yield Batch(batch.num_rows, dict(zip(names, batch.columns, strict=False)))


class PolarsTable(BatchTable):
    """A Polars DataFrame or LazyFrame, computed as a stream by Polars."""

    def __init__(self, frame: Any, caller: Caller | None = None) -> None:
        import polars as pl

        self.frame = frame.lazy()
        schema = self.frame.collect_schema()
        # Columns of Python objects in Polars have no Arrow type.
        objects = [name for name, dtype in schema.items() if dtype == pl.Object]
        known = ArrowTable(self.frame.drop(objects).head(0).collect().to_arrow(), caller).fields
        unknown = {name: Field(name, None, reason="Python objects of any type") for name in objects}
        self.fields = {name: known.get(name) or unknown[name] for name in schema}

    def batches(self, names: Sequence[str], first: int | None = None) -> Batches:
        if not names:
            yield Batch(self.frame.collect().height, {})
            return
        selected = self.frame.select(list(names))
        stream = getattr(selected, "collect_batches", None)  # exists from Polars 1.33 on
        if first is not None or stream is None:
            pieces = [(selected if first is None else selected.head(first)).collect()]
        else:
            pieces = stream(chunk_size=BATCH_ROWS)
        for piece in pieces:
            yield from ArrowTable(piece.to_arrow()).batches(names)


class IbisTable(BatchTable):
    """A table of Ibis, computed as a stream by the engine behind Ibis."""

    has_order = False

    def __init__(self, frame: Any, caller: Caller | None = None) -> None:
        schema = frame.collect_schema()
        distinct_names(list(schema), caller)
        self.fields = {name: narwhals_field(name, dtype) for name, dtype in schema.items()}
        self.table = frame.to_native()

    def batches(self, names: Sequence[str], first: int | None = None) -> Batches:
        if not names:
            yield Batch(self.table.count().to_pyarrow().as_py(), {})
            return
        for batch in _ibis_batches(self.table.select(*names)):
            yield Batch(batch.num_rows, dict(zip(names, batch.columns, strict=True)))


def _ibis_batches(table: Any) -> Iterator[Any]:
    backend = table.get_backend()
    if backend.name != "duckdb":
        return iter(table.to_pyarrow_batches(chunk_size=BATCH_ROWS))
    # Ibis 12 streams by a method that DuckDB 2 no longer has, so the query is given to DuckDB directly. The reading of
    # no row makes Ibis register tables in memory with DuckDB.
    table.limit(0).to_pyarrow()
    return iter(_reader(backend.con.sql(backend.compile(table)), BATCH_ROWS))


def _reader(relation: Any, rows: int) -> Any:
    """Return a reader of Arrow batches; the method's name changed with DuckDB 1.4."""
    read = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch
    return read(rows)
