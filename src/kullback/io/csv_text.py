"""CSV files with one column for each class. The number of rows is known only after reading the whole file."""

from __future__ import annotations

import csv
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader, TextIOWrapper
from itertools import chain, islice
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from torch import Tensor

from kullback.common.optional import load
from kullback.errors import FileError
from kullback.io.class_columns import ENOUGH_ROWS, chosen_classes, some_of
from kullback.io.parquet import to_numpy
from kullback.io.row_stream import Reader, join_tensors, regroup, rows_from
from kullback.io.source_files import FileReference, refuse_key

TEXT_BLOCK = 1 << 20
WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)


class CsvHeader(NamedTuple):
    """The columns of a CSV file.

    Attributes:
        names: the names of the columns; c0, c1, ... if the file has no names.
        lines: the number of lines that hold the names; 0 if the first line is data.
        records: the fields of the first records, including the names.
        is_quoted: whether the second line has quotation marks.
    """

    names: list[str]
    lines: int
    delimiter: str
    records: list[list[str]]
    is_quoted: bool


def header_of(ref: FileReference, delimiters: str = ",", *, records: int = 1) -> CsvHeader:
    """Return the header, which is the first line unless all its fields are numbers without quotation marks.

    The most frequent of the possible delimiters in the first line is used. `records` is the number of records to read.
    """
    with open_text(ref) as text:
        first = text.readline()
        second = text.readline() if records > 1 else ""
        delimiter = max(delimiters, key=first.count)
        lines = csv.reader(chain(filter(None, [first, second]), text), delimiter=delimiter)
        try:
            fields = next(lines, [])
            "".join(fields).encode()
        except UnicodeEncodeError:
            got = "a first line in another encoding"
            raise ref.error(wanted="text in UTF-8", got=got, instead="convert the file to UTF-8") from None
        except csv.Error as error:
            raise ref.truncated(wanted="a CSV file with a first line", got=str(error)) from None
        if not first.strip():
            got = "an empty line" if first else "an empty file"
            raise ref.truncated(wanted="a CSV file with a first line", got=got)
        count = lines.line_num
        start = delimiter, [fields, *islice(lines, records - 1)], '"' in second
    if count > 1 or '"' in first or not all(map(_is_number, fields)):
        return CsvHeader(fields, count, *start)
    return CsvHeader([f"c{index}" for index in range(len(fields))], 0, *start)


@contextmanager
def open_text(ref: FileReference) -> Generator[TextIO]:
    """Open a file as text, decompressed if it is ``.gz`` or ``.zst``; bytes that are not UTF-8 are escaped."""
    with ref.open() as raw:
        stream: Any = raw
        if compression := {".gz": "gzip", ".zst": "zstd"}.get(ref.path.suffix):
            arrow = load("pyarrow", f"reading a {ref.path.suffix} file")
            stream = arrow.CompressedInputStream(arrow.PythonFile(raw), compression)
        with TextIOWrapper(BufferedReader(stream), "utf-8-sig", "surrogateescape", newline="") as text:
            yield text


def csv_table(ref: FileReference, header: CsvHeader, **convert: Any) -> Any:
    """Read a whole CSV file as an Arrow table; `convert` are arguments of Arrow's ConvertOptions."""
    arrow_csv = load("pyarrow.csv", "reading a .csv file")
    return arrow_csv.read_csv(
        ref.path,
        read_options=arrow_csv.ReadOptions(column_names=header.names, skip_rows=header.lines),
        # In a table with a single column, an empty line is a missing value.
        parse_options=arrow_csv.ParseOptions(ignore_empty_lines=len(header.names) > 1),
        convert_options=arrow_csv.ConvertOptions(**convert),
    )


def _is_number(text: str) -> bool:
    """Return whether a field is a number by Arrow's rules, which forbid 1_000 and non-ASCII digits."""
    if not text.isascii() or "_" in text:
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_whole(text: str) -> bool:
    """Return whether a field is a whole number."""
    return WHOLE.fullmatch(text.strip()) is not None


class CsvReader(Reader):
    """A reader of CSV files, whose columns are the classes.

    `named` is whether the caller names the representation. If not, whole numbers are read as counts. `columns` are the
    columns that are classes, in this order; None for all columns.
    """

    format = "csv"
    shape = None

    def __init__(
        self, ref: FileReference, key: str | None, *, named: bool, columns: Sequence[str] | None = None
    ) -> None:
        refuse_key(ref, key, "one table, whose columns are the classes")
        self.ref = ref
        self._arrow = load("pyarrow", "reading a .csv file")
        self._csv = load("pyarrow.csv", "reading a .csv file")
        header = header_of(ref, records=1 + ENOUGH_ROWS)
        self._names, self._header_lines = [name.strip() for name in header.names], header.lines
        rows = [[field.strip() for field in fields] for fields in (*header.records, [])]
        if columns is None:
            self._refuse_doubtful_header(*rows[:2], is_quoted=header.is_quoted)
            self._places = list(range(len(self._names)))
        else:
            self._places = chosen_classes(columns, self._names, len(self._names), ref)
            self.has_classes_only = True
        self.classes = len(self._places)
        if self._header_lines:
            self.class_names = tuple(self._names[at].strip() for at in self._places)
        values = [[row[at] for at in self._places if at < len(row)] for row in rows[self._header_lines > 0 :]]
        whole = all(map(is_whole, values[0]))
        by_class = zip(*filter(None, values), strict=False)
        self.integer_classes = some_of([all(map(is_whole, column)) for column in by_class])
        self.dtype = torch.int64 if whole and not named else torch.float64

    def _refuse_doubtful_header(self, first: list[str], second: list[str], *, is_quoted: bool) -> None:
        """Refuse a table that was saved with its row numbers, and a first line that may be either names or numbers."""
        if "" in self._names:
            raise self.ref.error(
                wanted="a name for every column",
                got=f"none for column {self._names.index('')}, as when a table is saved with its row numbers",
                instead="save it without them (index=False)",
            )
        seen = ""
        if not self._header_lines and first == [str(index) for index in range(len(first))]:
            seen = f"0 to {len(first) - 1} in order"
        elif not self._header_lines and all(map(is_whole, first)) and not all(map(is_whole, second)):
            seen = "whole numbers above others"
        elif self._header_lines and all(map(_is_number, first)) and is_quoted:
            seen = "numbers in quotation marks, as the next line has"
        if seen:
            raise self.ref.error(
                wanted="a first line that is either names or numbers",
                got=f"{seen}, which may be either",
                instead="name the columns, as c0,c1,...",
            )

    def blocks(self, *, rows: int, first: int = 0) -> Iterator[Tensor]:
        return regroup(rows_from(self._tensors(), first), rows, join_tensors)

    def _tensors(self) -> Iterator[Tensor]:
        count = 0
        for batch in self._batches():
            count += len(batch)
            columns = [to_numpy(column) for column in batch.columns]
            yield torch.from_numpy(np.column_stack(columns)).to(self.dtype)
        if count == 0:
            raise self.ref.error(
                wanted="at least one row", got="a header alone", instead="write the file again with data"
            )

    def _batches(self) -> Iterable[Any]:
        column_type = self._arrow.int64() if self.dtype is torch.int64 else self._arrow.float64()
        # A block of text must hold a whole line. 32 characters for each number leave room for the longest number.
        longest = 32 * len(self._names)
        names = [self._names[at] for at in self._places]
        try:
            with self._csv.open_csv(
                self.ref.path,
                read_options=self._csv.ReadOptions(
                    use_threads=False,
                    block_size=max(TEXT_BLOCK, 2 * longest),
                    column_names=self._names,
                    skip_rows=self._header_lines,
                ),
                convert_options=self._csv.ConvertOptions(
                    column_types=dict.fromkeys(names, column_type),
                    include_columns=names if self.has_classes_only else [],
                    null_values=[],
                    check_utf8=False,
                ),
            ) as reader:
                yield from reader
        except (self._arrow.ArrowException, OSError) as error:
            raise self._explain(str(error)) from None

    def _explain(self, reason: str) -> FileError:
        """Return the error for the first field that is not a number, whose place Arrow may not name."""
        whole = self.dtype is torch.int64
        wanted = "a number in every field"
        instead = (
            "correct it, or leave the column out: columns= (--columns A,B); for tables use compare_tables (--as "
            "table)"
        )
        if whole:
            wanted = "whole numbers, as the first row has"
            instead = "pass representation= (--as) if these are not counts"
        with open_text(self.ref) as text:
            lines = csv.reader(text)
            for fields in lines:
                if not fields or (lines.line_num == self._header_lines):
                    continue
                if len(fields) != len(self._names):
                    return self.ref.error(
                        wanted=f"{len(self._names)} fields in every line, as in the first",
                        got=f"{len(fields)} in line {lines.line_num}",
                        instead="complete that line; the file may be truncated",
                    )
                for at in self._places:
                    name, field = self._names[at], fields[at]
                    if not _is_number(field) or (whole and not is_whole(field)):
                        got = f"{field!r} in column {name!r}, line {lines.line_num}"
                        return self.ref.error(wanted=wanted, got=got, instead=instead)
        return self.ref.error(wanted="a CSV file of numbers", got=reason, instead="check the file's text")
