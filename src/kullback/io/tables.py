"""Tables: Parquet and CSV, one column for each class, or (Parquet) one column of lists."""

from __future__ import annotations

import csv
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kullback.io.files import Place, choose_key, load_library, refuse_key
from kullback.io.store import Store, flat_shape, regroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kullback.errors import FileError

__all__ = ["CsvStore", "ParquetStore", "header_of"]

ARROW_DTYPES = {
    "halffloat": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.int64,
    "uint16": torch.int64,
    "uint32": torch.int64,
}
TEXT_BLOCK = 1 << 20
COLUMN_BUFFERS = 1 << 24  # bytes, for all columns of a Parquet file together
BATCHES = 8  # in a block: Arrow takes several times the bytes of what it decodes at once


class ParquetStore(Store):
    """A Parquet file: the numeric columns are the classes, or the column `key` holds a list for each row."""

    format = "parquet"

    def __init__(self, place: Place, key: str | None) -> None:
        self.place = place
        arrow = load_library("pyarrow", "pyarrow", "reading a .parquet file")
        parquet = load_library("pyarrow.parquet", "pyarrow", "reading a .parquet file")
        self._errors: tuple[type[Exception], ...] = (arrow.ArrowException, OSError)
        try:
            metadata = parquet.read_metadata(place.path)
            buffer = max(1 << 12, COLUMN_BUFFERS // max(1, metadata.num_columns))
            self._file = parquet.ParquetFile(
                place.path, metadata=metadata, pre_buffer=False, buffer_size=buffer
            )
        except self._errors as error:
            raise place.truncated(wanted="a Parquet file", got=str(error)) from None
        with ExitStack() as stack:
            stack.enter_context(self._file)
            self._settle(arrow.types, key)
            stack.pop_all()

    def _settle(self, types: Any, key: str | None) -> None:
        """Find the columns to read, their common dtype and the number of classes."""
        schema = self._file.schema_arrow
        lists = [f.name for f in schema if types.is_list(f.type) or types.is_large_list(f.type)]
        lists += [f.name for f in schema if types.is_fixed_size_list(f.type)]
        if key is not None or lists:
            self.key = choose_key(self.place, lists, key, what="list column")
            self._names, kinds = [self.key], [schema.field(self.key).type.value_type]
        else:
            self._names, kinds = list(schema.names), list(schema.types)
        self.dtype = self._common_dtype(self._names, kinds)
        rows = self._file.metadata.num_rows
        self.shape = (rows, self._first_length() if self.key is not None and rows else len(self._names))
        self.rows, self.classes = flat_shape(self.place, self.shape)

    def _first_length(self) -> int:
        column = next(self._batches(0, 1))[1].column(self.key)
        if column.null_count:
            raise self._null(0, 0, column)
        return column.value_lengths()[0].as_py()

    def _common_dtype(self, names: list[str], kinds: list[Any]) -> torch.dtype:
        dtype: torch.dtype | None = None
        for name, kind in zip(names, kinds, strict=True):
            found = ARROW_DTYPES.get(str(kind))
            if found is None or name.startswith("__index_level_"):
                raise self.place.error(
                    wanted="columns of numbers, one for each class",
                    got=f"column {name!r} of {kind}",
                    instead="leave that column out, or write one list column and pass key= (--key)",
                )
            dtype = found if dtype is None else torch.promote_types(dtype, found)
        return dtype or torch.float64

    def read(self, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop`."""
        return next(regroup(self._tensors(start, stop - start), stop - start))

    def stream(self, rows: int) -> Iterator[Tensor]:
        """All rows in one pass."""
        return regroup(self._tensors(0, rows), rows)

    def _tensors(self, start: int, rows: int) -> Iterator[Tensor]:
        """Tensors of at most `rows` rows, from row `start` on to the end."""
        for first, batch in self._batches(start, rows):
            yield self._matrix(batch, first)

    def _batches(self, start: int, rows: int) -> Iterator[tuple[int, Any]]:
        """Arrow batches from row `start` on, with the number of their first row; whole groups are skipped."""
        first, groups = 0, list(range(self._file.num_row_groups))
        while groups and first + (size := self._file.metadata.row_group(groups[0]).num_rows) <= start:
            first += size
            groups.pop(0)
        try:
            for batch in self._file.iter_batches(
                batch_size=-(-rows // BATCHES),
                row_groups=groups,
                columns=None if self.key is None else [self.key],
                use_threads=False,
            ):
                skipped = min(max(start - first, 0), len(batch))
                if skipped < len(batch):
                    yield first + skipped, batch.slice(skipped)
                first += len(batch)
        except self._errors as error:
            raise self.place.truncated(
                wanted="a Parquet file that can be read to its end", got=str(error)
            ) from None

    def _matrix(self, batch: Any, first: int) -> Tensor:
        """A batch as a (rows, classes) tensor; `first` is its first row in the file."""
        if self.key is not None:
            return self._list_matrix(batch.column(self.key), first)
        block = torch.empty(len(batch), self.classes, dtype=self.dtype)
        for index, column in enumerate(batch.columns):
            if column.null_count:
                raise self._null(index, first, column)
            block[:, index] = torch.from_numpy(_numbers(column))
        return block

    def _list_matrix(self, column: Any, first: int) -> Tensor:
        if column.null_count:
            raise self._null(0, first, column)
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        ragged = np.flatnonzero(lengths != self.classes)
        if len(ragged):
            raise self.place.error(
                wanted=f"lists of {self.classes} numbers in column {self.key!r}, as in row 0",
                got=f"{lengths[ragged[0]]} in row {first + ragged[0]}",
                instead="give every row one number for each class",
            )
        values = column.flatten()
        if values.null_count:
            raise self._null(0, first, values, self.classes)
        return torch.from_numpy(_numbers(values)).view(-1, self.classes).to(self.dtype)

    def _null(self, index: int, first: int, column: Any, entries: int = 1) -> FileError:
        where = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]) // entries
        return self.place.error(
            wanted=f"a number in every row of column {self._names[index]!r}",
            got=f"null in row {first + where}",
            instead="fill it, or leave that row out",
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _numbers(column: Any) -> Any:
    """An Arrow array as a NumPy array that torch takes and may write to."""
    values = column.to_numpy(zero_copy_only=False)
    return values.astype("int64") if values.dtype.kind == "u" else np.array(values)


def header_of(place: Place) -> tuple[list[str], bool]:
    """The names of a CSV file's columns, and whether they are its first line (not if that is all numbers)."""
    with place.open() as raw:
        line = _first_line(raw)
    try:
        fields = next(csv.reader([line.decode("utf-8-sig")]), [])
    except UnicodeDecodeError as error:
        raise place.error(
            wanted="text in UTF-8", got=str(error), instead="convert the file to UTF-8"
        ) from None
    if not fields:
        raise place.truncated(wanted="a CSV file with a first line", got="an empty line")
    if '"' in line.decode("utf-8-sig") or not all(map(_is_number, fields)):
        return fields, True
    return [f"c{index}" for index in range(len(fields))], False


def _first_line(raw: Any) -> bytes:
    pieces: list[bytes] = []
    while piece := raw.read(TEXT_BLOCK):
        head, newline, _ = piece.partition(b"\n")
        pieces.append(head)
        if newline:
            break
    return b"".join(pieces).rstrip(b"\r")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_whole(text: str) -> bool:
    return text.strip().lstrip("+-").isdigit()


class CsvStore(Store):
    """A CSV file: the columns are the classes. Its length is known when it has been read.

    Arguments:
        place: the file, for errors.
        key: must be None.
        named: whether the caller says what the numbers are; if not, whole numbers are recognized as counts.
    """

    format = "csv"
    rows = None
    shape = None

    def __init__(self, place: Place, key: str | None, *, named: bool) -> None:
        refuse_key(place, key, "one table, whose columns are the classes")
        self.place = place
        self._arrow = load_library("pyarrow", "pyarrow", "reading a .csv file")
        self._csv = load_library("pyarrow.csv", "pyarrow", "reading a .csv file")
        self._names, self._headed = header_of(place)
        self.classes = len(self._names)
        self._refuse_index()
        whole = all(map(_is_whole, self._first_values(skip=int(self._headed))))
        self.dtype = torch.int64 if whole and not named else torch.float64

    def _refuse_index(self) -> None:
        """Refuse a table saved with its row numbers, and a first line that may be names or numbers."""
        if "" in self._names:
            raise self.place.error(
                wanted="a name for every column",
                got=f"none for column {self._names.index('')}, as when a table is saved with its row numbers",
                instead="save it without them (index=False)",
            )
        if not self._headed and self._first_values(skip=0) == [str(index) for index in range(self.classes)]:
            raise self.place.error(
                wanted="a first line that is either names or numbers",
                got=f"0 to {self.classes - 1} in order, which may be either",
                instead="name the columns, as c0,c1,...",
            )

    def _first_values(self, *, skip: int) -> list[str]:
        """The fields of the first line after `skip` others."""
        with self.place.path.open(encoding="utf-8-sig", newline="") as text:
            lines = csv.reader(text)
            for _ in range(skip):
                next(lines, None)
            return [field.strip() for field in next(lines, [])]

    def read(self, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop`."""
        rows = stop - start
        empty = torch.empty(0, self.classes, dtype=self.dtype)
        return next(regroup(self._tensors(), rows, skip=start), empty)

    def stream(self, rows: int) -> Iterator[Tensor]:
        """All rows in one pass."""
        return regroup(self._tensors(), rows)

    def _tensors(self) -> Iterator[Tensor]:
        count = 0
        for batch in self._batches():
            count += len(batch)
            columns = [_numbers(column) for column in batch.columns]
            yield torch.from_numpy(np.column_stack(columns)).to(self.dtype)
        if count == 0:
            raise self.place.error(
                wanted="at least one row", got="a header alone", instead="write the file again with data"
            )

    def _batches(self) -> Iterable[Any]:
        kind = self._arrow.int64() if self.dtype is torch.int64 else self._arrow.float64()
        # A block of text must hold a line; numbers of a first line may be shorter than later ones.
        longest = 32 * self.classes
        try:
            with self._csv.open_csv(
                self.place.path,
                read_options=self._csv.ReadOptions(
                    use_threads=False,
                    block_size=max(TEXT_BLOCK, 2 * longest),
                    column_names=self._names,
                    skip_rows=int(self._headed),
                ),
                convert_options=self._csv.ConvertOptions(
                    column_types=dict.fromkeys(self._names, kind), null_values=[], check_utf8=False
                ),
            ) as reader:
                yield from reader
        except (self._arrow.ArrowException, OSError) as error:
            raise self._explain(str(error)) from None

    def close(self) -> None:
        """Nothing stays open."""

    def _explain(self, reason: str) -> FileError:
        """Find the first field that is no number, since Arrow does not always name its column and line."""
        whole = self.dtype is torch.int64
        wanted, instead = "a number in every field", "correct it, or leave it out"
        if whole:
            wanted, instead = (
                "whole numbers, as the first row has",
                "pass kind= (--as) if these are no counts",
            )
        with self.place.path.open(encoding="utf-8-sig", errors="replace", newline="") as text:
            lines = csv.reader(text)
            for fields in lines:
                if not fields or (lines.line_num == 1 and self._headed):
                    continue
                if len(fields) != self.classes:
                    return self.place.error(
                        wanted=f"{self.classes} fields in every line, as in the first",
                        got=f"{len(fields)} in line {lines.line_num}",
                        instead="complete that line; the file may be truncated",
                    )
                for name, field in zip(self._names, fields, strict=True):
                    if not _is_number(field) or (whole and not _is_whole(field)):
                        got = f"{field!r} in column {name!r}, line {lines.line_num}"
                        return self.place.error(wanted=wanted, got=got, instead=instead)
        return self.place.error(wanted="a CSV file of numbers", got=reason, instead="check the file's text")
