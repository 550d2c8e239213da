"""Rows of Parquet files, where each row is a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kullback.common.optional import load
from kullback.io.top_k.records import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kullback.io.source_files import FileReference

ROWS = 8  # read at once; each is a text with its log-probabilities


class ParquetRows:
    """A Parquet file read a few rows at a time."""

    def __init__(self, ref: FileReference) -> None:
        self.ref = ref
        arrow = load("pyarrow", "reading a .parquet file")
        parquet = load("pyarrow.parquet", "reading a .parquet file")
        self._errors: tuple[type[Exception], ...] = (arrow.ArrowException, OSError)
        ref.open().close()
        try:
            self._file = parquet.ParquetFile(ref.path, pre_buffer=False)
        except self._errors as error:
            raise ref.truncated(wanted="a Parquet file", got=str(error)) from None
        self.names: list[str] = list(self._file.schema_arrow.names)

    def batches(
        self, columns: Sequence[str], optional: Sequence[str] = ()
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each row's name for errors and its lists of the columns as Arrow arrays."""
        for number, batch in self._read([*columns, *(name for name in optional if name in self.names)]):
            for i in range(len(batch)):
                where = f"row {number + i}"
                row = {name: batch.column(name)[i].values for name in batch.schema.names}
                missing = [name for name in columns if row[name] is None]
                if missing:
                    raise self.ref.error(
                        wanted=f"a list in {missing[0]}", got=f"null in {where}", instead="leave that row out"
                    )
                yield where, row

    def __iter__(self) -> Iterator[tuple[Place, dict[str, Any]]]:
        for number, batch in self._read(None):
            for i, row in enumerate(batch.to_pylist()):
                yield Place(self.ref, f"row {number + i}"), row

    def _read(self, columns: list[str] | None) -> Iterator[tuple[int, Any]]:
        number = 0
        try:
            for batch in self._file.iter_batches(batch_size=ROWS, columns=columns, use_threads=False):
                yield number, batch
                number += len(batch)
        except self._errors as error:
            raise self.ref.truncated(
                wanted="a Parquet file that can be read to its end", got=str(error)
            ) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()
