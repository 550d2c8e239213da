"""Files of distributions as iterators over blocks of rows, and iteration over the same blocks of two files."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, Whole
from kullback.common.dtypes import dtype_name
from kullback.common.extra_arguments import by_name
from kullback.common.shared_constraints import REPRESENTATION
from kullback.common.words import RepresentationName
from kullback.errors import FileError, invalid_value
from kullback.io.arrays import TorchReader, open_npy, open_npz
from kullback.io.class_columns import (
    ENOUGH_ROWS,
    chosen_classes,
    matching_order,
    natural_order,
    refuse_other_columns,
)
from kullback.io.csv_text import CsvReader
from kullback.io.llama_cpp_base import LlamaBaseFile
from kullback.io.parquet import ParquetReader
from kullback.io.row_checks import check_rows, describe, looks_like, pass_representation
from kullback.io.row_stream import Reader, RowStream, StoredMass, StreamReader, in_step
from kullback.io.safetensors_file import open_safetensors
from kullback.io.source_files import FileReference, closed_on_error, find_format
from kullback.io.windows import Windows

BLOCK_BYTES = 64 * 1024 * 1024
FIRST_ROWS = 16
# The reader of each format without named columns. A new format also needs its extension or first bytes in
# `source_files`.
READERS: dict[str, Callable[[FileReference, str | None], Reader]] = {
    "npy": open_npy,
    "npz": open_npz,
    "safetensors": open_safetensors,
    "pt": TorchReader,
    "llama.cpp": LlamaBaseFile,
}

_OPENING = Arguments("open_rows", representation=REPRESENTATION)
_BLOCKS = Arguments(
    "RowSource.blocks",
    "paired_blocks",
    max_bytes=Whole(least=1, example=BLOCK_BYTES),
    rows=Whole(least=1, example=1024, optional=True),
)
_FIRST = Arguments("RowSource.blocks", first=Whole(least=0, example=0))


@by_name()
def open_rows(
    path: str | PathLike[str],
    *,
    representation: str | None = None,
    key: str | None = None,
    columns: Sequence[str] | None = None,
    name: str = "p",
) -> RowSource:
    """Open a file with a distribution over classes for each position, without loading the file.

    The extension determines the format, and the content must match the extension. A llama.cpp base file is recognized
    by its content.

    Arguments:
        path: a ``.npy``, ``.npz``, ``.safetensors``, ``.pt``, ``.pth``, ``.parquet`` or ``.csv`` file whose
            last dimension (or whose columns) holds the classes, or a llama.cpp ``--kl-divergence-base`` file.
        representation: the kind of numbers: ``"logits"``, ``"log-probs"`` (nats), ``"probs"`` or ``"counts"``. None for
            integers, which are counts, and for llama.cpp files, which have logits. For all other files, a kind is
            required.
        key: the name of the array, tensor or list column to read, if the file has several; None for the only one.
        columns: the names of the columns that are classes, in this order. By default, every column is a class, and a
            column that looks like ids or labels is refused. Such a column has whole numbers while other columns do not,
            and counts rows or has a name for ids or labels. In a file without names, the positions are the names.
        name: the name of the argument that holds the path, for error messages.

    Returns:
        a `RowSource`, which ``with`` or ``close()`` closes.

    Raises:
        FileError: the file is missing or truncated, or the content does not match the extension. There are several
            arrays and `key` is None, or the kind of numbers is unknown and `representation` is None. `columns` has a
            name that is not in the file.
        ArgumentValueError: `representation` is not one of the four words.
        OptionalDependencyError: the format needs a library that is not installed.

    Example:
        >>> import pathlib, tempfile, numpy, kullback.io
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "p.npz"
        >>> numpy.savez(path, teacher=numpy.zeros((4, 3)), student=numpy.ones((4, 3)))
        >>> with kullback.io.open_rows(path, representation="logits", key="student") as source:
        ...     source.read(3, 4)
        tensor([[1., 1., 1.]], dtype=torch.float64)
    """
    ref = FileReference(Path(path), name)
    wanted = _OPENING.check(representation=representation)["representation"]
    format_ = find_format(ref)
    with ref.decoding(f"a {format_} file"):
        # Text does not distinguish integers from floats: whole numbers are read as counts only if no other
        # representation is asked for.
        if format_ == "csv":
            opened = CsvReader(ref, key, named=representation is not None, columns=columns)
        elif format_ == "parquet":
            opened = ParquetReader(ref, key, columns)
        else:
            opened = READERS[format_](ref, key)
        with closed_on_error(opened) as reader:
            return RowSource(reader, wanted, None if format_ in ("csv", "parquet") else columns)


@by_name()
class RowSource(RowStream):
    """An open file of N distributions over V classes, which `open_rows` opens and ``with`` or ``close()`` closes.

    Leading dimensions are flattened to rows in C order, and blocks have the dtype of the file. Reading a block
    validates the block, so `kullback.Logits(block, validate=False)` and similar calls are safe.

    Arguments:
        reader: the reader of the file's format.
        representation: the kind of values. None for integers, which are counts, and for formats that specify the kind.
        columns: the names of the classes to read, in this order; None for all classes.

    Attributes:
        path: the path of the file.
        format: ``"npy"``, ``"npz"``, ``"safetensors"``, ``"pt"``, ``"parquet"``, ``"csv"`` or ``"llama.cpp"``.
        key: the name of the array inside the file; None for a single array.
        representation: ``"logits"``, ``"log-probs"``, ``"probs"`` or ``"counts"``.
        shape: the shape as stored; None if the shape is unknown before reading (csv).
        rows: N; None if N is unknown before reading (csv).
        classes: V.
        class_names: the names of the classes; None if the file has no names. Classes with numbered names (``class_2``,
            ``class_0``) are in the order of their numbers.
        dtype: the dtype of the blocks.
        labels: the true class of each row, int64 of shape (N,); None if the file does not store labels. llama.cpp files
            do.

    Raises:
        FileError: `representation` is missing, or contradicts the file.

    Example:
        >>> import pathlib, tempfile, numpy, kullback.io
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "p.npy"
        >>> numpy.save(path, numpy.array([[3, 1], [0, 4], [2, 2]]))
        >>> with kullback.io.open_rows(path) as source:
        ...     source.representation, source.rows, source.classes, [len(block) for block in source.blocks(rows=2)]
        ('counts', 3, 2, [2, 1])
    """

    def __init__(
        self,
        reader: Reader,
        representation: RepresentationName | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._reader = reader
        self.path: Path = reader.ref.path
        self.name = str(self.path)
        self.format = reader.format
        self.key = reader.key
        self.shape = reader.shape
        self.rows = reader.rows
        self.classes = reader.classes
        self.class_names = reader.class_names
        self._order: Tensor | None = None
        self._are_chosen = reader.has_classes_only or columns is not None
        order = natural_order(reader.class_names)
        if columns is not None:
            order = chosen_classes(columns, reader.class_names, reader.classes, reader.ref)
        if order is not None:
            self._arrange(order)
        self.dtype = reader.dtype
        self.labels, self.clusters = reader.labels, reader.clusters
        self.windows, self.metadata = reader.windows, reader.metadata
        self.finds_windows = reader.finds_windows
        self.representation: RepresentationName = self._settle_representation(representation)

    def __repr__(self) -> str:
        size = f"rows={self.rows}, classes={self.classes}, representation={self.representation!r}, dtype={self.dtype}"
        return f"RowSource({str(self.path)!r}, {size})"

    @property
    def stream(self) -> RowStream | None:
        """The `RowStream` that gives the rows; None for a file or tensor."""
        return self._reader.origin if isinstance(self._reader, StreamReader) else None

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def _arrange(self, order: Sequence[int]) -> None:
        """Keep the classes at these places of the current order, in this new order."""
        places = torch.tensor(order, device="cpu")
        self._order = places if self._order is None else self._order[places]
        self.classes = len(order)
        if self.class_names is not None:
            self.class_names = tuple(self.class_names[at] for at in order)

    def _arranged(self, block: Tensor) -> Tensor:
        return block if self._order is None else block[:, self._order]

    def in_order_of(self, other: RowSource) -> RowSource:
        """Return this source with its classes in the order of another source's classes, by name.

        Names with numbers from 0 or 1 on, such as ``class_0``, are positions. If a source has only such names or no
        names, the classes are paired by position.

        Raises:
            FileError: both sources name their classes, and a name occurs in only one source.

        Example:
            >>> import pathlib, tempfile, kullback.io
            >>> folder = pathlib.Path(tempfile.mkdtemp())
            >>> _ = (folder / "p.csv").write_text("cat,dog\\n0.25,0.75\\n")
            >>> _ = (folder / "q.csv").write_text("dog,cat\\n0.75,0.25\\n")
            >>> with (
            ...     kullback.io.open_rows(folder / "p.csv", representation="probs") as p,
            ...     kullback.io.open_rows(folder / "q.csv", representation="probs") as q,
            ... ):
            ...     q.in_order_of(p).read(0, 1)
            tensor([[0.2500, 0.7500]], dtype=torch.float64)
        """
        order = matching_order(other.class_names, self.class_names, (other.ref, self.ref))
        if order is None:
            return self
        arranged = copy.copy(self)
        arranged._arrange(order)  # noqa: SLF001 - a copy of this object
        return arranged

    @property
    def reader(self) -> Reader:
        """The reader of the format, with further attributes of some formats, such as `LlamaBaseFile.tokens`."""
        return self._reader

    @property
    def ref(self) -> FileReference:
        """The path and the name of the argument that holds the path, for error messages."""
        return self._reader.ref

    @property
    def stored_mass(self) -> StoredMass | None:
        """The sums of the stored probabilities in the latest pass, if the format rounds them; otherwise None."""
        return self._reader.stored_mass

    def caveats(self) -> list[str]:
        """Return remarks on the contents of this file that a report should repeat, as sentences; the list is usually
        empty.

        Example:
            >>> import pathlib, tempfile, numpy, kullback.io
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "p.npy"
            >>> numpy.save(path, numpy.array([[0.25, 0.75]]))
            >>> with kullback.io.open_rows(path, representation="logits") as source:
            ...     source.caveats()
            ['the first rows look like probs, and are read as logits, as asked']
        """
        sentences: list[str] = []
        seen = looks_like(self._first_rows())
        if self.representation == "logits" and seen == "probs":
            sentences.append("the first rows look like probs, and are read as logits, as asked")
        return sentences + self._reader.caveats()

    def blocks(
        self, max_bytes: int = BLOCK_BYTES, *, rows: int | None = None, first: int = 0
    ) -> Iterator[Tensor]:
        """Iterate over all rows in order, in blocks.

        Arguments:
            max_bytes: the largest size of a block in bytes; a block has at least one row.
            rows: the number of rows in a block; None for as many rows as fit `max_bytes`.
            first: the first row.

        Returns:
            an iterator over tensors of shape (rows, V), which the caller may modify in place.

        Raises:
            FileError: the file ends early, or a row does not fit `representation`.

        Example:
            >>> import pathlib, tempfile, numpy, kullback.io
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "p.npy"
            >>> numpy.save(path, numpy.ones((5, 4), dtype="float32"))
            >>> with kullback.io.open_rows(path, representation="logits") as source:
            ...     [tuple(block.shape) for block in source.blocks(max_bytes=32)]
            [(2, 4), (2, 4), (1, 4)]
        """
        start = _FIRST.check(first=first)["first"]
        self.require_classes()
        count = _rows_in_block("RowSource.blocks", max_bytes, rows, [self])
        blocks = self._reader.blocks(rows=count, first=first)
        while True:
            with self.ref.decoding(f"a {self.format} file"):
                block = next(blocks, None)
            if block is None:
                return
            block = self._arranged(block)
            check_rows(block, self.representation, start, self.ref)
            start += len(block)
            yield block

    def read(self, start: int, stop: int) -> Tensor:
        """Return rows `start` to `stop` (not included).

        A compressed member of a ``.npz`` file and a ``.csv`` file are read from the beginning up to `stop`, so calls in
        increasing order are fastest.

        Arguments:
            start: the first row.
            stop: the row after the last row.

        Returns:
            a tensor of shape (stop - start, V).

        Raises:
            ArgumentValueError: the range is empty or not within the file.
            FileError: the file ends early, or a row does not fit `representation`.

        Example:
            >>> import pathlib, tempfile, numpy, kullback.io
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "p.npy"
            >>> numpy.save(path, numpy.arange(6).reshape(3, 2))
            >>> with kullback.io.open_rows(path) as source:
            ...     source.read(1, 2)
            tensor([[2, 3]])
        """
        with self.ref.decoding(f"a {self.format} file"):
            block = self._reader.read(start, stop) if 0 <= start < stop <= (self.rows or stop) else None
        if block is None or len(block) < stop - start:
            raise invalid_value(
                "RowSource.read",
                "start, stop",
                wanted="0 <= start < stop <= rows" + (f" = {self.rows}" if self.rows else ""),
                got=f"{start}, {stop}",
                instead="source.read(0, 1) for the first row",
            )
        block = self._arranged(block)
        check_rows(block, self.representation, start, self.ref)
        return block

    def over(self, windows: Windows) -> RowSource:
        if isinstance(self._reader, StreamReader) and self.finds_windows:
            return RowSource(self._reader.over(windows))
        return self

    def identity(self) -> object:
        known = [self.format, self.key, self.shape, self.representation, self.class_names]
        return [*known, self._reader.identity()]

    def _first_rows(self) -> Tensor:
        with self.ref.decoding(f"a {self.format} file"):
            return self._arranged(self._reader.read(0, min(FIRST_ROWS, self.rows or FIRST_ROWS)))

    def require_classes(self) -> None:
        """Refuse a column that is not a class, unless the caller chose the columns; `blocks` calls this before the
        first row.

        Raises:
            FileError: a column of whole numbers among other columns counts rows, or has a name that is typical of ids
                or labels.
        """
        reader = self._reader
        if not self._are_chosen:
            with self.ref.decoding(f"a {self.format} file"):
                first = reader.read(0, min(ENOUGH_ROWS, self.rows or ENOUGH_ROWS))
            refuse_other_columns(first, reader.class_names, reader.integer_classes, self.ref)
            self._are_chosen = True

    def _settle_representation(self, representation: RepresentationName | None) -> RepresentationName:
        known = self._reader.representation
        if known is not None and representation is not None and representation not in (known, "log-probs"):
            raise self.ref.error(
                wanted=f"representation={known!r} or none: {self.format} files specify it",
                got=f"representation={representation!r} (--as {representation})",
                instead="leave it out for this file",
            )
        if known is not None:
            return known
        if self.dtype.is_floating_point:
            return representation or self._unnamed()
        if self._reader.stored is torch.uint16 and representation != "counts":
            raise self.ref.error(
                wanted="numbers of one possible meaning",
                got="uint16, which may be counts or the bits of bfloat16",
                instead=f"pass {pass_representation('counts')} for counts; write bfloat16 as float32 or .safetensors",
            )
        if representation not in (None, "counts"):
            raise self.ref.error(
                wanted=f"floating-point {representation}",
                got=f"integers ({dtype_name(self.dtype)})",
                instead=f"pass {pass_representation('counts')}, or write the file as floating point",
            )
        return "counts"

    def _unnamed(self) -> RepresentationName:
        first = self._first_rows()
        seen = looks_like(first)
        remedy = (
            f"if so, pass {pass_representation(seen)}"
            if seen
            else "pass representation= (--as) logits, log-probs, probs or counts"
        )
        if self.format in ("csv", "parquet"):
            remedy += "; for tables use compare_tables (--as table)"
        raise self.ref.error(
            wanted="representation= (--as), the kind of numbers",
            got=f"none, and {describe(first)} in the first {len(first)} rows",
            instead=remedy,
        )


def checked(stream: RowStream, name: str) -> RowSource:
    """Return a stream as a source that checks the rows; `name` is the name of the argument that holds the stream."""
    return stream if isinstance(stream, RowSource) else RowSource(StreamReader(stream, name))


def _rows_in_block(call: str, max_bytes: int, rows: int | None, sources: list[RowSource]) -> int:
    """Return the number of rows in a block: `rows`, or as many rows of each source as fit `max_bytes`."""
    max_bytes, rows = _BLOCKS.check(call, max_bytes=max_bytes, rows=rows).values()
    return rows or max(1, max_bytes // max(source.classes * source.dtype.itemsize for source in sources))


@by_name()
def paired_blocks(
    p: RowSource, q: RowSource, *, max_bytes: int = BLOCK_BYTES, rows: int | None = None
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Iterate over the same rows of two files, block by block.

    Arguments:
        p: the first file.
        q: the second file, with as many rows and classes. Its classes are put in the order of P's classes by name, as
            by `RowSource.in_order_of`.
        max_bytes: the largest size of a block of one file, in bytes; a block has at least one row.
        rows: the number of rows in a block; None for as many rows as fit `max_bytes`.

    Returns:
        an iterator over (start, p_block, q_block): the index of the first row, and two tensors of shape (rows, V).

    Raises:
        FileError: the files differ in the number of rows or classes, a class name occurs in only one file, or a row is
            invalid.

    Example:
        >>> import pathlib, tempfile, numpy, kullback.io
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "p.npy"
        >>> numpy.save(path, numpy.ones((5, 4), dtype="int64"))
        >>> with kullback.io.open_rows(path) as p, kullback.io.open_rows(path) as q:
        ...     [(start, len(a), len(b)) for start, a, b in kullback.io.paired_blocks(p, q, rows=3)]
        [(0, 3, 3), (3, 2, 2)]
    """
    count = _rows_in_block("paired_blocks", max_bytes, rows, [p, q])
    q, differ = matched(p, q)
    return ((start, *blocks) for start, blocks in in_step([x.blocks(rows=count) for x in (p, q)], differ))


def matched(
    p: RowSource, q: RowSource
) -> tuple[RowSource, Callable[[int, Callable[[], list[int]]], FileError]]:
    """Return Q with its classes, and if it finds windows its windows, in P's order; and the function `differ` for
    `in_step`.

    Raises:
        FileError: the sources differ in the number of rows or classes, or a class name occurs in only one source.
    """
    q = q.in_order_of(p)
    q = q.over(p.windows) if q.finds_windows and p.windows is not None else q
    for source in (p, q):  # now, because some workers never read the first block
        source.require_classes()

    def different(what: str, counts: Sequence[int], instead: str) -> FileError:
        got = f"{counts[0]} and {counts[1]}"
        return p.ref.differs(q.ref, wanted=f"as many {what} in both", got=got, instead=instead)

    def different_rows(_: int, counts: Callable[[], list[int]]) -> FileError:
        # For a llama.cpp file, the remedy describes the windows.
        return different("rows", counts(), (q if q.format == "llama.cpp" else p).reader.alignment)

    if p.classes != q.classes:
        instead = "use one vocabulary, or cut both to the classes they share"
        raise different("classes", (p.classes, q.classes), instead)
    if p.rows is not None and q.rows is not None and p.rows != q.rows:
        raise different_rows(0, lambda: [p.rows or 0, q.rows or 0])
    return q, different_rows
