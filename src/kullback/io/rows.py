"""A file of distributions as a source of row blocks, and two of them in lock step."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from kullback.errors import ArgumentValueError, FileError, explain
from kullback.io.checks import Kind, check_rows, describe, looks_like, pass_kind
from kullback.io.files import dtype_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from kullback.io.files import Place
    from kullback.io.store import Store, StoredMass

__all__ = ["BLOCK_BYTES", "RowSource", "paired_blocks"]

BLOCK_BYTES = 64 * 1024 * 1024
FIRST_ROWS = 16


class RowSource:
    """An open file of N distributions over V classes; made by `open_rows`, closed by ``with`` or ``close()``.

    Leading dimensions are flattened to rows in C order, and blocks have the dtype of the file. Every block
    is checked against `kind` as it is read, so that `kullback.Logits(block, validate=False)` and its like
    need not look again.

    Arguments:
        store: the format's reader.
        kind: what the values are; integers are counts unasked, any other values must be named.

    Attributes:
        path: the file.
        format: ``"npy"``, ``"npz"``, ``"safetensors"``, ``"pt"``, ``"parquet"``, ``"csv"`` or
            ``"llama.cpp"``.
        key: the array inside the file, or None.
        kind: ``"logits"``, ``"log-probs"``, ``"probs"`` or ``"counts"``.
        shape: the shape as stored, or None for a format that tells only by being read (csv).
        rows: N, or None likewise.
        classes: V.
        dtype: the dtype of the blocks.
        labels: the true class of each row, int64 of shape (N,), where the file holds them (llama.cpp), else
            None.

    Raises:
        FileError: `kind` is missing, or contradicts the file.

    Example:
        >>> import pathlib, tempfile, numpy, kullback.io
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "p.npy"
        >>> numpy.save(path, numpy.array([[3, 1], [0, 4], [2, 2]]))
        >>> with kullback.io.open_rows(path) as source:
        ...     source.kind, source.rows, source.classes, [len(block) for block in source.blocks(rows=2)]
        ('counts', 3, 2, [2, 1])
    """

    def __init__(self, store: Store, kind: Kind | None = None) -> None:
        self._store = store
        self.path: Path = store.place.path
        self.format = store.format
        self.key = store.key
        self.shape = store.shape
        self.rows = store.rows
        self.classes = store.classes
        self.dtype = store.dtype
        self.labels = store.labels
        self.kind: Kind = self._settle_kind(kind)

    def __repr__(self) -> str:
        size = f"rows={self.rows}, classes={self.classes}, kind={self.kind!r}, dtype={self.dtype}"
        return f"RowSource({str(self.path)!r}, {size})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._store.close()

    @property
    def store(self) -> Store:
        """The format's reader, with what only that format has (`LlamaBaseFile.tokens`)."""
        return self._store

    @property
    def place(self) -> Place:
        """The file and the argument it was given for, as error messages name them."""
        return self._store.place

    @property
    def stored_mass(self) -> StoredMass | None:
        """What the probabilities as stored sum to in the latest pass, where a format stores them inexactly."""
        return self._store.stored_mass

    def caveats(self) -> list[str]:
        """What a reader of the results should know of this file: sentences, most often none.

        Example:
            >>> import pathlib, tempfile, numpy, kullback.io
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "p.npy"
            >>> numpy.save(path, numpy.array([[0.25, 0.75]]))
            >>> with kullback.io.open_rows(path, kind="logits") as source:
            ...     source.caveats()
            ['the first rows look like probs, and are read as logits, as asked']
        """
        sentences: list[str] = []
        seen = looks_like(self._first_rows())
        if self.kind == "logits" and seen == "probs":
            sentences.append("the first rows look like probs, and are read as logits, as asked")
        return sentences + self._store.caveats()

    def blocks(self, max_bytes: int = BLOCK_BYTES, *, rows: int | None = None) -> Iterator[Tensor]:
        """All rows in order, in blocks.

        Arguments:
            max_bytes: the most that one block may take (a single row is never cut).
            rows: the number of rows in a block, instead of what fits `max_bytes`.

        Returns:
            An iterator over tensors of shape (rows, V); it keeps no block itself, and each is the caller's
            to change.

        Raises:
            FileError: the file ends early, or a row is not what `kind` says.

        Example:
            >>> import pathlib, tempfile, numpy, kullback.io
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "p.npy"
            >>> numpy.save(path, numpy.ones((5, 4), dtype="float32"))
            >>> with kullback.io.open_rows(path, kind="logits") as source:
            ...     [tuple(block.shape) for block in source.blocks(max_bytes=32)]
            [(2, 4), (2, 4), (1, 4)]
        """
        start = 0
        for block in self._store.stream(_rows_in_block("RowSource.blocks", max_bytes, rows, [self])):
            check_rows(block, self.kind, start, self.place)
            start += len(block)
            yield block

    def read(self, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` (not included), wherever they are.

        A compressed ``.npz`` member and a ``.csv`` are read up to there, so ask for rows in increasing order.

        Arguments:
            start: the first row.
            stop: one past the last row.

        Returns:
            A tensor of shape (stop - start, V).

        Raises:
            ArgumentValueError: the range is empty or not within the file.
            FileError: the file ends early, or a row is not what `kind` says.

        Example:
            >>> import pathlib, tempfile, numpy, kullback.io
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "p.npy"
            >>> numpy.save(path, numpy.arange(6).reshape(3, 2))
            >>> with kullback.io.open_rows(path) as source:
            ...     source.read(1, 2)
            tensor([[2, 3]])
        """
        block = self._store.read(start, stop) if 0 <= start < stop <= (self.rows or stop) else None
        if block is None or len(block) < stop - start:
            raise ArgumentValueError(
                explain(
                    "RowSource.read",
                    "start, stop",
                    wanted="0 <= start < stop <= rows" + (f" = {self.rows}" if self.rows else ""),
                    got=f"{start}, {stop}",
                    instead="source.read(0, 1) for the first row",
                )
            )
        check_rows(block, self.kind, start, self.place)
        return block

    def _first_rows(self) -> Tensor:
        return self._store.read(0, min(FIRST_ROWS, self.rows or FIRST_ROWS))

    def _settle_kind(self, kind: Kind | None) -> Kind:
        known = self._store.kind
        if known is not None and kind is not None and kind not in (known, "log-probs"):
            raise self.place.error(
                wanted=f"kind={known!r} or none: a {self.format} file says itself what it holds",
                got=f"kind={kind!r} (--as {kind})",
                instead="leave it out for this file",
            )
        if known is not None:
            return known
        if self.dtype.is_floating_point:
            return kind or self._unnamed()
        if self._store.stored is torch.uint16 and kind != "counts":
            raise self.place.error(
                wanted="numbers whose meaning is certain",
                got="uint16, which may be counts or the bits of bfloat16",
                instead=f"for counts pass {pass_kind('counts')}; write bfloat16 as float32 or to .safetensors",
            )
        if kind not in (None, "counts"):
            raise self.place.error(
                wanted=f"floating-point {kind}",
                got=f"integers ({dtype_name(self.dtype)})",
                instead=f"pass {pass_kind('counts')}, or write the file as floating point",
            )
        return "counts"

    def _unnamed(self) -> Kind:
        first = self._first_rows()
        seen = looks_like(first)
        remedy = (
            f"if so, pass {pass_kind(seen)}"
            if seen
            else "pass kind= (--as) logits, log-probs, probs or counts"
        )
        raise self.place.error(
            wanted="to be told what the numbers mean",
            got=f"no kind, and {describe(first)} in the first {len(first)} rows",
            instead=remedy,
        )


def _rows_in_block(call: str, max_bytes: int, rows: int | None, sources: list[RowSource]) -> int:
    """How many rows of each of these sources make a block within `max_bytes`."""
    if rows is None and max_bytes > 0:
        return max(1, max_bytes // max(source.classes * source.dtype.itemsize for source in sources))
    if rows is not None and rows > 0:
        return rows
    argument, value = ("max_bytes", max_bytes) if rows is None else ("rows", rows)
    raise ArgumentValueError(
        explain(
            call,
            argument,
            wanted="a positive number",
            got=str(value),
            instead=f"{call}({argument}=...) above 0",
        )
    )


def paired_blocks(
    p: RowSource, q: RowSource, *, max_bytes: int = BLOCK_BYTES, rows: int | None = None
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The same rows of two files, block by block.

    Arguments:
        p: the first file.
        q: the second file, with as many rows and classes.
        max_bytes: the most that one block of either may take (a single row is never cut).
        rows: the number of rows in a block, instead of what fits `max_bytes`.

    Returns:
        An iterator over (start, p_block, q_block): the index of the first row, and two tensors of shape
        (rows, V).

    Raises:
        FileError: the files differ in their number of rows or of classes, or one of them has a bad row.

    Example:
        >>> import pathlib, tempfile, numpy, kullback.io
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "p.npy"
        >>> numpy.save(path, numpy.ones((5, 4), dtype="int64"))
        >>> with kullback.io.open_rows(path) as p, kullback.io.open_rows(path) as q:
        ...     [(start, len(a), len(b)) for start, a, b in kullback.io.paired_blocks(p, q, rows=3)]
        [(0, 3, 3), (3, 2, 2)]
    """
    count = _rows_in_block("paired_blocks", max_bytes, rows, [p, q])
    if p.classes != q.classes:
        raise _different(
            p,
            q,
            "classes",
            (p.classes, q.classes),
            "use one vocabulary, or cut both to the classes they share",
        )
    if p.rows is not None and q.rows is not None and p.rows != q.rows:
        raise _different(p, q, "rows", (p.rows, q.rows), _align(p, q))
    return _in_step(p, q, count)


def _in_step(p: RowSource, q: RowSource, rows: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    start = 0
    p_blocks, q_blocks = p.blocks(rows=rows), q.blocks(rows=rows)
    while True:
        p_block, q_block = next(p_blocks, None), next(q_blocks, None)
        if p_block is None and q_block is None:
            return
        if p_block is None or q_block is None or len(p_block) != len(q_block):
            p_rows = start + sum(map(len, chain([] if p_block is None else [p_block], p_blocks)))
            q_rows = start + sum(map(len, chain([] if q_block is None else [q_block], q_blocks)))
            raise _different(p, q, "rows", (p_rows, q_rows), _align(p, q))
        yield start, p_block, q_block
        start += len(p_block)


def _different(p: RowSource, q: RowSource, what: str, counts: tuple[int, int], instead: str) -> FileError:
    return FileError(
        f"{p.place.name} = {p.path} and {q.place.name} = {q.path}: wanted as many {what} in both; "
        f"got {counts[0]} and {counts[1]}; {instead}"
    )


def _align(p: RowSource, q: RowSource) -> str:
    """What to do about two files of different length; a format with windows of its own knows best."""
    return q.store.alignment if q.format == "llama.cpp" else p.store.alignment
