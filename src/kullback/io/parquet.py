"""Parquet files with one column for each class, or with one column of lists."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kullback.common.dtypes import dtype_name
from kullback.common.optional import load
from kullback.errors import FileError
from kullback.io.class_columns import chosen_classes, some_of
from kullback.io.row_stream import Reader, flat_shape, join_tensors, regroup
from kullback.io.source_files import FileReference, choose_key, closed_on_error

ARROW_DTYPES = {
    "halffloat": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
    **{dtype_name(dtype): dtype for dtype in (torch.int8, torch.int16, torch.int32, torch.int64)},
    **dict.fromkeys(("uint8", "uint16", "uint32"), torch.int64),
}
NEEDED = "reading a .parquet file"
COLUMN_BUFFERS = 1 << 24  # bytes of buffers for all columns of a Parquet file together
BATCHES = 8  # batches in a block, because decoding a batch takes several times the memory of its values


class ParquetReader(Reader):
    """A reader of Parquet files. Each column is a class, or the column `key` has a list for each row.

    Without a `key`, the only column of lists is read, if there is one. `columns` are as for `CsvReader`.
    """

    format = "parquet"

    def __init__(self, ref: FileReference, key: str | None, columns: Sequence[str] | None = None) -> None:
        self.ref = ref
        with closed_on_error(open_parquet(ref)) as self._file:
            self._settle(load("pyarrow.types", NEEDED), key, columns)

    def _settle(self, arrow_types: Any, key: str | None, columns: Sequence[str] | None) -> None:
        """Set the columns to read, the common dtype of the columns, and the shape."""
        schema = self._file.schema_arrow
        lists = [f.name for f in schema if arrow_types.is_list(f.type) or arrow_types.is_large_list(f.type)]
        lists += [f.name for f in schema if arrow_types.is_fixed_size_list(f.type)]
        if columns is not None:
            chosen_classes(columns, schema.names, len(schema.names), self.ref)
            self._names, types = list(columns), [schema.field(name).type for name in columns]
            self.class_names, self.has_classes_only = tuple(columns), True
        elif key is not None or lists:
            self.key = choose_key(self.ref, lists, key, what="list column")
            self._names, types = [self.key], [schema.field(self.key).type.value_type]
            self.has_classes_only = True
        else:
            self._names, types = list(schema.names), list(schema.types)
            self._refuse_index(schema.pandas_metadata)
            self.class_names = tuple(self._names)
            self.integer_classes = some_of(list(map(arrow_types.is_integer, types)))
        self.dtype = self._common_dtype(self._names, types)
        rows = self._file.metadata.num_rows
        self.shape = (rows, self._first_length() if self.key is not None and rows else len(self._names))
        self.rows, self.classes = flat_shape(self.ref, self.shape)

    def _refuse_index(self, pandas_metadata: Any) -> None:
        """Refuse a column that is the index of a data frame and not a class."""
        index = (pandas_metadata or {}).get("index_columns") or []
        named = [name for name in index if isinstance(name, str) and name in self._names]
        if named:
            raise self.ref.error(
                wanted="columns of numbers, one for each class",
                got=f"the index of a pandas DataFrame as column {named[0]!r}",
                instead="save it without the index: to_parquet(path, index=False)",
            )

    def _first_length(self) -> int:
        column = next(self._batches(0, 1))[1].column(self.key)
        if column.null_count:
            raise self._null(0, 0, column)
        return column.value_lengths()[0].as_py()

    def _common_dtype(self, names: list[str], types: list[Any]) -> torch.dtype:
        dtype: torch.dtype | None = None
        for name, column_type in zip(names, types, strict=True):
            of_column = ARROW_DTYPES.get(str(column_type))
            if of_column is None or name.startswith("__index_level_"):
                raise self.ref.error(
                    wanted="columns of numbers, one for each class",
                    got=f"column {name!r} of {column_type}",
                    instead="leave it out, choose columns= (--columns A,B), or use key= (--key) for a list; for tables "
                    "use compare_tables (--as table)",
                )
            dtype = of_column if dtype is None else torch.promote_types(dtype, of_column)
        return dtype or torch.float64

    def blocks(self, *, rows: int, first: int = 0) -> Iterator[Tensor]:
        tensors = (self._matrix(batch, at) for at, batch in self._batches(first, rows))
        return regroup(tensors, rows, join_tensors)

    def _batches(self, start: int, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, Arrow batch) from row `start` on; row groups that end before this row are not read."""
        first, groups = 0, list(range(self._file.num_row_groups))
        while groups and first + (size := self._file.metadata.row_group(groups[0]).num_rows) <= start:
            first += size
            groups.pop(0)
        for batch in batches_of(
            self.ref,
            self._file,
            batch_size=-(-rows // BATCHES),
            row_groups=groups,
            columns=self._names if self.class_names is None or self.has_classes_only else None,
        ):
            skipped = min(max(start - first, 0), len(batch))
            if skipped < len(batch):
                yield first + skipped, batch.slice(skipped)
            first += len(batch)

    def _matrix(self, batch: Any, first: int) -> Tensor:
        """Return a batch as a (rows, classes) tensor; `first` is the row of the file at which the batch begins."""
        if self.key is not None:
            return self._list_matrix(batch.column(self.key), first)
        block = torch.empty(len(batch), self.classes, dtype=self.dtype, device="cpu")
        columns = [batch.column(name) for name in self._names] if self.has_classes_only else batch.columns
        for index, column in enumerate(columns):
            if column.null_count:
                raise self._null(index, first, column)
            block[:, index] = torch.from_numpy(to_numpy(column))
        return block

    def _list_matrix(self, column: Any, first: int) -> Tensor:
        if column.null_count:
            raise self._null(0, first, column)
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        ragged = np.flatnonzero(lengths != self.classes)
        if len(ragged):
            raise self.ref.error(
                wanted=f"lists of {self.classes} numbers in column {self.key!r}, as in row 0",
                got=f"{lengths[ragged[0]]} in row {first + ragged[0]}",
                instead="give every row one number for each class",
            )
        values = column.flatten()
        if values.null_count:
            raise self._null(0, first, values, self.classes)
        return torch.from_numpy(to_numpy(values)).view(-1, self.classes).to(self.dtype)

    def _null(self, index: int, first: int, column: Any, entries: int = 1) -> FileError:
        where = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]) // entries
        return self.ref.error(
            wanted=f"a number in every row of column {self._names[index]!r}",
            got=f"null in row {first + where}",
            instead="fill it, or leave that row out",
        )

    def close(self) -> None:
        self._file.close()


def open_parquet(ref: FileReference) -> Any:
    """Open a Parquet file with PyArrow."""
    parquet = load("pyarrow.parquet", NEEDED)
    with _reading(ref, "a Parquet file"):
        metadata = parquet.read_metadata(ref.path)
        buffer = max(1 << 12, COLUMN_BUFFERS // max(1, metadata.num_columns))
        return parquet.ParquetFile(ref.path, metadata=metadata, pre_buffer=False, buffer_size=buffer)


def batches_of(ref: FileReference, file: Any, **options: Any) -> Iterator[Any]:
    """Iterate over the Arrow batches of an open Parquet file, with PyArrow's options."""
    with _reading(ref, "a Parquet file that can be read to its end"):
        yield from file.iter_batches(use_threads=False, **options)


@contextmanager
def _reading(ref: FileReference, wanted: str) -> Generator[None]:
    arrow = load("pyarrow", NEEDED)
    with ref.reading(wanted, arrow.ArrowException, OSError):
        yield


def to_numpy(column: Any) -> Any:
    """Convert an Arrow array to a writable NumPy array of a dtype that torch supports."""
    values = column.to_numpy(zero_copy_only=False)
    return values.astype("int64") if values.dtype.kind == "u" else np.array(values)
