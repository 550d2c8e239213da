"""`RowStream`, the interface of anything that gives rows to a comparison, and `Reader`, the interface of a file format.

Functions cut and join blocks of rows, and iterate over the same rows of several streams.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from kullback.common.files import file_stamp
from kullback.common.words import RepresentationName
from kullback.io.source_files import Closes, FileReference
from kullback.io.windows import Windows
from kullback.partial_rows import PartialRows

# Rows that a slice or a mask can select.
_Rows = TypeVar("_Rows", Tensor, PartialRows)


def join_tensors(blocks: list[Tensor]) -> Tensor:
    """Join blocks of rows; a single block is returned unchanged."""
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def rows_from(blocks: Iterable[_Rows], first: int) -> Iterator[_Rows]:
    """Iterate over blocks from row `first` on."""
    for block in blocks:
        skipped = min(first, len(block))
        first -= skipped
        if skipped < len(block):
            yield block[skipped:] if skipped else block


def regroup(blocks: Iterable[_Rows], rows: int, join: Callable[[list[_Rows]], _Rows]) -> Iterator[_Rows]:
    """Regroup blocks of any length into blocks of exactly `rows` rows; the last block may be shorter."""
    parts: list[_Rows] = []
    missing = rows
    for block in blocks:
        rest = block
        while len(rest) >= missing:
            yield join([*parts, rest[:missing]])
            rest, parts, missing = rest[missing:], [], rows
        if len(rest):
            parts.append(rest)
            missing -= len(rest)
    if parts:
        yield join(parts)


def in_step(
    streams: Sequence[Iterator[Any]],
    differ: Callable[[int, Callable[[], list[int]]], Exception],
    first: int = 0,
) -> Iterator[tuple[int, list[Any]]]:
    """Iterate over the same rows of several streams: the number of a first row, and a block of each stream from there.

    `differ` returns the error if a stream ends before another stream. Its arguments are the index of the stream, and a
    function that reads all streams to the end and returns the number of rows of each stream.
    """
    blocks: list[Any] = [None] * len(streams)
    while True:
        for place, stream in enumerate(streams):
            if blocks[place] is None:
                blocks[place] = next(stream, None)
        ended = [place for place, block in enumerate(blocks) if block is None]
        if ended:
            if len(ended) < len(blocks):
                raise differ(ended[0], partial(_counts, first, blocks, streams))
            return
        count = min(map(len, blocks))
        if count:
            yield first, [block if len(block) == count else block[:count] for block in blocks]
        first += count
        blocks = [block[count:] if len(block) > count else None for block in blocks]


def _counts(first: int, blocks: Sequence[Any], streams: Sequence[Iterator[Any]]) -> list[int]:
    """Return the number of rows of each stream, after `first` rows were returned; `blocks` are the current blocks."""
    return [
        first + sum(map(len, chain([] if block is None else [block], stream)))
        for block, stream in zip(blocks, streams, strict=True)
    ]


@dataclass(frozen=True)
class StoredMass:
    """Statistics of the sums of the stored probabilities in each row, which are 1 up to the file's rounding.

    Attributes:
        rows: the number of rows.
        mean: the mean sum.
        lowest: the smallest sum.
        highest: the largest sum.
    """

    rows: int = 0
    mean: float = 0.0
    lowest: float = float("inf")
    highest: float = -float("inf")

    def joined(self, masses: Tensor) -> StoredMass:
        """Return the statistics after adding the sums of further rows."""
        rows = self.rows + len(masses)
        mean = self.mean + (float(masses.sum()) - len(masses) * self.mean) / rows
        return StoredMass(
            rows, mean, min(self.lowest, float(masses.min())), max(self.highest, float(masses.max()))
        )


def flat_shape(ref: FileReference, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of rows and of classes of an array whose last dimension holds the classes."""
    if len(shape) < 2:
        raise ref.error(
            wanted="an array of at least two dimensions, (positions, classes)",
            got=f"shape {shape}",
            instead="write one distribution as x[None, :]; label files go to --labels",
        )
    rows = math.prod(shape[:-1])
    if rows == 0 or shape[-1] == 0:
        raise ref.error(
            wanted="at least one position and one class",
            got=f"shape {shape}",
            instead="write the file again with data",
        )
    return rows, shape[-1]


class RowStream(Closes, ABC):
    """Distributions over classes, one in each row, which are read in order, one block at a time.

    `compare_predictions`, `compare_models` and `record_reference` take a `RowStream` instead of a file of predictions.
    A subclass sets `name` and `classes`, and implements `blocks`; everything else is optional.

    Attributes:
        name: the path or address, which reports show.
        classes: the number of classes.
        rows: the number of rows, or None if it is unknown before reading.
        representation: the kind of numbers: ``"logits"``, ``"log-probs"``, ``"probs"`` or ``"counts"``.
        dtype: the dtype of the blocks.
        labels: the true class of each row, int64 of shape (rows,), -100 for a row without a label; None without labels.
        clusters: the number of the cluster of each row, int64 of shape (rows,); None without clusters.
        class_names: the names of the classes; None without names.
        windows: the windows of tokens that the rows predict; None without windows. By default, the scored tokens are
            the labels, and the windows are the clusters.
        metadata: texts about the windows, as in a reference file: ``"context"``, ``"score"``, and ``"tokenizer"``,
            which is the fingerprint of the vocabulary.
        finds_windows: whether `over` finds windows by their tokens, so that the order of `windows` has no meaning.

    Example:
        >>> import torch
        >>> from kullback import compare_predictions
        >>> from kullback.io import RowStream
        >>> class Ramps(RowStream):
        ...     classes, rows = 3, 100
        ...     def __init__(self, name, slope):
        ...         self.name, self.slope = name, slope
        ...     def blocks(self, *, rows, first=0):
        ...         for start in range(first, self.rows, rows):
        ...             place = torch.arange(start, min(start + rows, self.rows))
        ...             yield self.slope * place[:, None] * torch.tensor([0.0, 0.01, 0.02])
        >>> compare_predictions(Ramps("flat", 0.0), Ramps("steep", 1.0)).rows
        100
    """

    name: str
    classes: int
    rows: int | None = None
    representation: RepresentationName = "logits"
    dtype: torch.dtype = torch.float32
    labels: Tensor | None = None
    clusters: Tensor | None = None
    class_names: tuple[str, ...] | None = None
    windows: Windows | None = None
    metadata: Mapping[str, str] = MappingProxyType({})
    finds_windows: bool = False

    @abstractmethod
    def blocks(self, *, rows: int, first: int = 0) -> Iterator[Any]:
        """Iterate over the rows from row `first` on; each call begins anew.

        Arguments:
            rows: the largest number of rows in a block.
            first: the first row. A comparison begins with row 0, or with the row at which a block of an earlier run
                ended. A comparison of language models begins with the first row of a window.

        Returns:
            an iterator over tensors of shape (at most `rows`, classes).
        """

    def identity(self) -> object:
        """Return a value that JSON can represent and that changes if the rows change. A stopped run continues only if
        the value is the same.
        """
        return [type(self).__qualname__, self.name, self.classes, self.rows]

    def over(self, windows: Windows) -> RowStream:
        """Return a stream of the rows of other windows. Implement this method if `finds_windows`.

        Raises:
            FileError: the stream does not have these windows.
        """
        del windows
        return self

    def caveats(self) -> list[str]:
        """Return remarks on the contents that a report should repeat, as sentences without a period.

        The short output includes the remarks that begin with ``warning: ``.
        """
        return []


class Reader(RowStream):
    """A reader of one file format, with `read` or `blocks`; `RowSource` adds the representation and checks the rows.

    Attributes:
        ref: the path, and the name of the argument that holds the path.
        stored: the dtype in the file if it may differ from `dtype`; None otherwise.
        representation: the kind of values if the format specifies it; None otherwise.
        stored_mass: the sums of the stored probabilities in the latest pass, if the format rounds them; None otherwise.
        alignment: the remedy that an error suggests if the other file has a different number of rows.
        integer_classes: the classes with a type of whole numbers, if other classes have another type.
        has_classes_only: whether every column is a class, by the format or by the caller's choice.
    """

    ref: FileReference
    format: str
    key: str | None = None
    shape: tuple[int, ...] | None
    stored: torch.dtype | None = None
    representation: RepresentationName | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    stored_mass: StoredMass | None = None
    alignment: str = "compare files written from the same positions"
    integer_classes: frozenset[int] = frozenset()
    has_classes_only: bool = False

    def read(self, start: int, stop: int) -> Tensor:
        """Return rows `start` to `stop` as a new tensor, or fewer at the end of a file whose `rows` is None."""
        empty = torch.empty(0, self.classes, dtype=self.dtype, device="cpu")
        return next(self.blocks(rows=stop - start, first=start), empty)

    def blocks(self, *, rows: int, first: int = 0) -> Iterator[Tensor]:
        for start in range(first, self.rows or 0, rows):
            yield self.read(start, min(start + rows, self.rows or 0))

    def identity(self) -> object:
        return file_stamp(self.ref.path)


class StreamReader(Reader):
    """A reader of a `RowStream`, so `RowSource` can check the rows; `name` is the name of the argument."""

    format = "stream"
    alignment = "compare streams of the same positions"
    has_classes_only = True

    def __init__(self, stream: RowStream, name: str) -> None:
        self.origin = stream
        self.ref = FileReference(Path(stream.name), name)
        self.rows, self.classes, self.dtype = stream.rows, stream.classes, stream.dtype
        self.shape = None if stream.rows is None else (stream.rows, stream.classes)
        self.representation, self.class_names = stream.representation, stream.class_names
        self.windows, self.metadata = stream.windows, stream.metadata
        self.finds_windows = stream.finds_windows
        self.labels, self.clusters = stream.labels, stream.clusters
        if stream.windows is not None:
            self.labels = stream.windows.labels if stream.labels is None else stream.labels
            self.clusters = stream.windows.clusters if stream.clusters is None else stream.clusters

    def blocks(self, *, rows: int, first: int = 0) -> Iterator[Tensor]:
        blocks = (block.detach().cpu() for block in self.origin.blocks(rows=rows, first=first))
        return regroup(blocks, rows, join_tensors)

    def over(self, windows: Windows) -> StreamReader:
        return StreamReader(self.origin.over(windows), self.ref.name)

    def identity(self) -> object:
        return self.origin.identity()

    def caveats(self) -> list[str]:
        return self.origin.caveats()
