"""DuckDB relations, Polars frames and tables of Ibis as streams of Arrow batches, which may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kullback.tables.columns.types import Field, arrow_field, narwhals_field
from kullback.tables.engines.engine import BATCH_ROWS, Batches, BatchTable, Caller
from kullback.tables.engines.in_memory import ArrowTable, distinct_names
from kullback.tables.engines.table_counter import Batch


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
    """Return the Arrow batches of a table of Ibis."""
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
