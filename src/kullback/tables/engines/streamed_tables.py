"""DuckDB relations, files and Polars frames as streams of Arrow batches, which may be larger than memory."""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kullback.common.files import matched
from kullback.common.optional import load
from kullback.errors import LONGEST_NAME, FileError, printable
from kullback.tables.columns.types import Field, arrow_field, narwhals_field
from kullback.tables.engines.batches import BATCH_ROWS, BatchTable
from kullback.tables.engines.engine import Caller
from kullback.tables.engines.in_memory import ArrowTable, distinct_names

__all__ = ["DuckTable", "FileTable", "IbisTable", "PolarsTable"]

MEMORY_LIMIT = "500MB"
FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
}
DELIMITERS = ",;\t|"
LONGEST_REASON = 300


class DuckTable(BatchTable):
    """A DuckDB relation, computed on its own connection and read batch by batch."""

    def __init__(self, relation: Any, caller: Caller | None = None) -> None:
        self.relation = relation
        distinct_names(relation.columns, caller)
        # DuckDB cuts a name at a NUL in SQL and in Arrow, so columns are taken by their places.
        self.places = {name: place for place, name in enumerate(relation.columns, start=1)}
        schema = _reader(relation.limit(0), 1).schema
        self.fields = {
            name: arrow_field(name, field.type) for name, field in zip(self.places, schema, strict=True)
        }

    def batches(self, names: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        selected = self.relation.select(", ".join(f"#{self.places[name]}" for name in names) or "1")
        for batch in _reader(selected, BATCH_ROWS):
            yield batch.num_rows, dict(zip(names, batch.columns, strict=False))

    def in_order(self, names: Sequence[str], rows: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        selected = self.relation.select(", ".join(f"#{self.places[name]}" for name in names) or "1")
        for batch in _reader(selected.limit(rows), rows):
            yield batch.num_rows, dict(zip(names, batch.columns, strict=False))


class FileTable(DuckTable):
    """A Parquet, CSV or NDJSON file, or several (``*``), of any size, read by an embedded DuckDB.

    It streams into NumPy's counting, which takes about a quarter of the processor time of counting by SQL inside
    DuckDB (measured on 40 columns of Parquet).
    """

    def __init__(self, path: str, caller: Caller) -> None:
        self.path = path
        self.place = f"{caller.argument} = {printable(path)}"
        duckdb = load("duckdb", f"reading {printable(path)}")
        self.errors: tuple[type[Exception], ...] = (duckdb.Error, OSError, ValueError, RuntimeError)
        self.how = _format(path, self.place)
        self.files = _files(path, self.place)
        options = {"memory_limit": MEMORY_LIMIT, "preserve_insertion_order": "false"}
        self.connection = duckdb.connect(config=options)
        try:
            super().__init__(self._open(), caller)
        except self.errors as error:
            raise self._unreadable(error) from None

    def _open(self) -> Any:
        files = _escaped(self.files, self.place)
        if self.how == "parquet":
            return self.connection.read_parquet(files)
        if self.how == "csv":
            # All rows decide the types: a column must not turn out to hold strings when half of it is counted.
            options: dict[str, Any] = {"header": True, "quotechar": '"', "sample_size": -1}
            options["delimiter"] = _delimiter(self.files[0], self.place)
            try:
                return self.connection.read_csv(files, **options)
            except self.errors:
                # DuckDB takes a line break in the name of a column for the end of the header, unless its checks
                # are off; then the lines have been counted here.
                if not _broken_header(self.files[0]) or _uneven_line(self.files, self.place):
                    raise
                return self.connection.read_csv(files, strict_mode=False, **options)
        return _narrowed(self.connection.read_json(files, format="newline_delimited", sample_size=-1))

    def batches(self, names: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        try:
            yield from super().batches(names)
        except self.errors as error:
            raise self._unreadable(error) from None

    def in_order(self, names: Sequence[str], rows: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        # Keeping the order of rows costs memory in a whole reading, and little for the first rows.
        self.connection.execute("SET preserve_insertion_order = true")
        try:
            yield from super().in_order(names, rows)
        finally:
            self.connection.execute("SET preserve_insertion_order = false")

    def _unreadable(self, error: Exception) -> Exception:
        if isinstance(error, FileError):
            return error
        reason = None
        if self.how == "csv":
            with suppress(OSError, csv.Error):  # then DuckDB's reason is the one to give
                reason = _uneven_line(self.files, self.place)
        reason = reason or " ".join(str(error).split())
        shown = reason[:LONGEST_REASON] + ("..." if len(reason) > LONGEST_REASON else "")
        return FileError(
            f"{self.place}: wanted a {self.how} file; got one that cannot be read ({shown}); the file "
            "is truncated or damaged: write or copy it again"
        )


class PolarsTable(BatchTable):
    """A Polars DataFrame or LazyFrame, computed as a stream by Polars."""

    def __init__(self, frame: Any, caller: Caller | None = None) -> None:
        import polars as pl

        self.frame = frame.lazy()
        schema = self.frame.collect_schema()
        # Polars' columns of Python objects have no Arrow type.
        objects = [name for name, dtype in schema.items() if dtype == pl.Object]
        known = ArrowTable(self.frame.drop(objects).head(0).collect().to_arrow(), caller).fields
        unknown = {name: Field(name, None, reason="Python objects of any type") for name in objects}
        self.fields = {name: known.get(name) or unknown[name] for name in schema}

    def batches(self, names: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        if not names:
            yield self.frame.collect().height, {}
            return
        selected = self.frame.select(list(names))
        stream = getattr(selected, "collect_batches", None)  # from Polars 1.33 on
        for piece in stream(chunk_size=BATCH_ROWS) if stream else [selected.collect()]:
            yield from ArrowTable(piece.to_arrow()).batches(names)

    def in_order(self, names: Sequence[str], rows: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        yield from ArrowTable(self.frame.select(list(names)).head(rows).collect().to_arrow()).batches(names)


class IbisTable(BatchTable):
    """A table of Ibis, computed as a stream by its engine."""

    def __init__(self, frame: Any, caller: Caller | None = None) -> None:
        schema = frame.collect_schema()
        distinct_names(list(schema), caller)
        self.fields = {name: narwhals_field(name, dtype) for name, dtype in schema.items()}
        self.table = frame.to_native()

    def batches(self, names: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        if not names:
            yield self.table.count().to_pyarrow().as_py(), {}
            return
        for batch in _ibis_batches(self.table.select(*names)):
            yield batch.num_rows, dict(zip(names, batch.columns, strict=True))

    def first_rows(self, names: Sequence[str], rows: int) -> None:
        """Return None: the rows of an Ibis table have no order."""


def _ibis_batches(table: Any) -> Iterator[Any]:
    """Return a table of Ibis as Arrow batches."""
    backend = table.get_backend()
    if backend.name != "duckdb":
        return iter(table.to_pyarrow_batches(chunk_size=BATCH_ROWS))
    # Ibis 12 streams by a method that DuckDB 2 no longer has. Reading no row registers tables in memory.
    table.limit(0).to_pyarrow()
    return iter(_reader(backend.con.sql(backend.compile(table)), BATCH_ROWS))


def _reader(relation: Any, rows: int) -> Any:
    """Return a reader of Arrow batches; the method's name changed with DuckDB 1.4."""
    read = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch
    return read(rows)


def _narrowed(relation: Any) -> Any:
    """Return a relation whose columns of 128-bit integers are of 64 bits where all their values fit.

    DuckDB reads every JSON file with a negative integer as 128-bit ones.
    """
    places = range(1, len(relation.columns) + 1)
    types = zip(places, relation.columns, map(str, relation.dtypes), strict=True)
    wide = {place: name for place, name, dtype in types if dtype == "HUGEINT" and "\0" not in name}
    if not wide:
        return relation
    ends = relation.aggregate(", ".join(f"min(#{place}), max(#{place})" for place in wide)).fetchall()[0]
    selected = {place: f"#{place}" for place in places}
    for place, low, high in zip(wide, ends[::2], ends[1::2], strict=True):
        for dtype, least, most in (("UBIGINT", 0, 2**64 - 1), ("BIGINT", -(2**63), 2**63 - 1)):
            if low is None or (low >= least and high <= most):
                selected[place] = f"#{place}::{dtype} AS {_quoted(wide[place])}"
    return relation.select(", ".join(selected.values()))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _format(path: str, place: str) -> str:
    """Return the format that the extension names; a compression's extension is ignored."""
    file_path = Path(path)
    suffix = Path(file_path.stem).suffix if file_path.suffix in {".gz", ".zst"} else file_path.suffix
    found = FORMATS.get(suffix.lower())
    if found is None:
        raise FileError(
            f"{place}: wanted one of {', '.join(FORMATS)}; got extension {suffix!r}; rename the file to its "
            "format's extension, or convert it"
        )
    return found


def _files(path: str, place: str) -> list[Path]:
    """Return the files of a path, which may have ``*``; each must be there."""
    found = matched(path)
    for each in found:
        which = f"{printable(each, LONGEST_NAME)}, " if found != [Path(path)] else ""
        if not each.exists():
            got = "a link to no file" if each.is_symlink() else "no such file"
            raise FileError(f"{place}: wanted a file; got {which}{got}; check the path")
        if each.is_dir():
            raise FileError(f"{place}: wanted a file; got {which}a directory; name a file inside it")
        if not os.access(each, os.R_OK):
            raise FileError(
                f"{place}: wanted a readable file; got {which}no permission; check its permissions"
            )
    return found


def _escaped(files: Sequence[Path], place: str) -> list[str]:
    """Return the paths such that DuckDB takes none for a pattern (``[``, ``*``, ``?``) or a URL (``file:``)."""
    if bad := next((each for each in map(str, files) if "\\" in each and glob.has_magic(each)), None):
        raise FileError(  # DuckDB has no way to write these
            f"{place}: wanted a path without a backslash next to [, * or ?; got {printable(bad, LONGEST_NAME)}; "
            "rename it"
        )
    return [glob.escape(str(each) if each.is_absolute() else f"./{each}") for each in files]


def _uneven_line(files: Sequence[Path], place: str) -> str | None:
    """Describe the first line of a CSV file that has more or fewer fields than its header; None without one."""
    for file_path in files:
        if file_path.suffix in {".gz", ".zst"}:
            return None
        with file_path.open(newline="", encoding="utf-8", errors="replace") as file:
            lines = csv.reader(file, delimiter=_delimiter(files[0], place))
            fields = len(next(lines, []))
            for line in lines:
                if line and len(line) != fields:
                    return f"line {lines.line_num} of {file_path.name} has {len(line)} fields, the header {fields}"
    return None


def _broken_header(first: Path) -> bool:
    """Whether the header of a CSV file spans several lines."""
    if first.suffix in {".gz", ".zst"}:
        return False
    with first.open(newline="", encoding="utf-8", errors="replace") as file:
        lines = csv.reader(file, delimiter=_delimiter(first, ""))
        next(lines, [])
        return lines.line_num > 1


def _delimiter(first: Path, place: str) -> str:
    """Return the delimiter of the header; DuckDB may read a damaged file as a single column."""
    if first.suffix in {".gz", ".zst"}:
        return "\t" if ".tsv" in first.suffixes else ","
    with first.open("rb") as file:
        header = file.readline(1 << 16).decode("utf-8", "replace")
    if not header.strip():
        raise FileError(f"{place}: wanted a line with the names of the columns; got an empty file")
    return max(DELIMITERS, key=header.count)
