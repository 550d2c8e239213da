"""The reference file ``.klref``: one model's predictions over a text, small enough to be sent by mail.

For each scored token, the file has the most probable classes, the exact mass of all other classes (the tail), and the
log-probability of the token. The file also has a few random draws from the tail with their probabilities. These data
are enough for a comparison with any other model. `docs/reference_files.md` describes the file byte by byte.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from kullback.errors import invalid_value, printable
from kullback.io.arrays import BIG_ENDIAN, ArrayLayout, BytesReader
from kullback.io.safetensors_file import METADATA, Entry, entry_dtype, read_header, tensor_layout
from kullback.io.source_files import Closes, FileReference, closed_on_error
from kullback.io.windows import Windows
from kullback.partial_rows import PartialRows

FORMAT, VERSION = "klref", "1"
RESERVED = ("format", "version", "classes", "seed", "created_by")
# The tensors in the order of the file. In this order, each tensor begins at a multiple of its element's size.
DTYPES = {
    "offsets": torch.int64,
    "tokens": torch.int32,
    "top_indices": torch.int32,
    "top_log_probs": torch.float32,
    "tail_indices": torch.int32,
    "tail_log_probs": torch.float32,
    "tail_log_mass": torch.float32,
    "label_log_probs": torch.float32,
    "support_sizes": torch.int32,
    "scored": torch.uint8,
}
ROW_TENSORS = tuple(DTYPES)[2:9]
MOST_CLASSES = 2**31 - 1
BLOCK_ROWS = 4096
# Rounding to float32 changes a log-probability by a relative error of 6e-8, and so the sum of a row by less than this.
MASS_TOLERANCE = 1e-5


@dataclass(frozen=True)
class ReferenceLayout:
    """The sizes in a reference file, as of `Reference`, and the places of the tensors, which follow from the sizes."""

    windows: int
    tokens: int
    rows: int
    top: int
    draws: int

    @cached_property
    def arrays(self) -> dict[str, ArrayLayout]:
        """The tensors in the order of the file; offsets count from the end of the header."""
        kept, drawn, one = (self.rows, self.top), (self.rows, self.draws), (self.rows,)
        ends, tokens = (self.windows + 1,), (self.tokens,)
        shapes = (ends, tokens, kept, kept, drawn, drawn, one, one, one, tokens)
        arrays: dict[str, ArrayLayout] = {}
        end = 0
        for (name, dtype), shape in zip(DTYPES.items(), shapes, strict=True):
            arrays[name] = ArrayLayout(end, shape, dtype, BIG_ENDIAN)
            end = arrays[name].end
        return arrays


def _read_header(
    ref: FileReference, file: IO[bytes]
) -> tuple[ReferenceLayout, dict[str, str], dict[str, BytesReader]]:
    """Read and check the header; return the sizes, the metadata and a reader for each tensor that is not empty.

    Tensors may be in any order, but without gaps, as the safetensors format requires.
    """
    data, entries = read_header(ref, file)
    metadata = _check_metadata(ref, entries.pop(METADATA, {}))
    if entries.keys() != DTYPES.keys():
        raise ref.truncated(wanted=f"the tensors {', '.join(DTYPES)}", got=", ".join(entries) or "none")
    for name, dtype in DTYPES.items():
        wanted, got = entry_dtype(dtype), entries[name].get("dtype")
        if got != wanted:
            raise ref.truncated(wanted=f"{name} of {wanted}", got=str(got))
    arrays = {name: tensor_layout(ref, name, entry, data) for name, entry in entries.items()}
    layout = _check_shapes(ref, {name: array.shape for name, array in arrays.items()})
    end = data
    for name in sorted(arrays, key=lambda name: (arrays[name].offset, arrays[name].end)):
        if arrays[name].offset != end:
            got = f"byte {arrays[name].offset - data}"
            raise ref.truncated(wanted=f"{name} to begin at byte {end - data}", got=got)
        end = arrays[name].end
    size = ref.path.stat().st_size
    if size != end:
        raise ref.truncated(wanted=f"{end:,} bytes for {layout.rows:,} rows", got=f"{size:,}")
    readers: dict[str, BytesReader] = {}
    for name, array in arrays.items():
        if elements := math.prod(array.shape):
            rows = replace(array, shape=(array.shape[0], elements // array.shape[0]))
            readers[name] = BytesReader(ref, file, rows, format=FORMAT, key=name)
    return layout, metadata, readers


def _check_metadata(ref: FileReference, metadata: Entry) -> dict[str, str]:
    if metadata.get("format") != FORMAT:
        raise ref.error(
            wanted=f"a reference file: safetensors with the metadata format={FORMAT!r}",
            got=f"format={metadata.get('format')!r}",
            instead="record one with kullback.io.ReferenceWriter; open other .safetensors files with "
            "kullback.io.open_rows",
        )
    if metadata.get("version") != VERSION:
        raise ref.error(
            wanted=f"version {VERSION}",
            got=f"version {metadata.get('version')!r}",
            instead="read it by the kullback that wrote it, or a later one",
        )
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ref.truncated(wanted="metadata of text alone", got="other values")
    classes = metadata.get("classes", "")
    if not (
        classes.isascii() and classes.isdecimal() and len(classes) < 11 and 0 < int(classes) <= MOST_CLASSES
    ):
        raise ref.truncated(wanted=f"metadata classes, from 1 to {MOST_CLASSES}", got=repr(classes))
    return metadata


def _check_shapes(ref: FileReference, shapes: Mapping[str, tuple[int, ...]]) -> ReferenceLayout:
    sizes = [
        shapes[name][-1] if shapes[name] else -1
        for name in ("offsets", "tokens", "top_indices", "tail_indices")
    ]
    rows = shapes["top_indices"][0] if shapes["top_indices"] else -1
    layout = ReferenceLayout(sizes[0] - 1, sizes[1], rows, sizes[2], sizes[3])
    for name, array in layout.arrays.items():
        if shapes[name] != array.shape:
            raise ref.truncated(wanted=f"{name} of shape {array.shape}", got=f"{shapes[name]}")
    if layout.windows < 1 or layout.rows < 1 or layout.top < 1:
        raise ref.truncated(
            wanted="at least one window, one scored token and one top class",
            got=f"{layout.windows} windows, {layout.rows} rows and {layout.top} classes",
        )
    return layout


class Reference(Closes):
    """An open reference file: a model's predictions over windows of tokens, in less than a kilobyte for each token.

    Opening the file checks the structure and the windows. Reading a block of rows checks the values in the block.
    `ReferenceWriter` writes such files.

    Arguments:
        path: the path of the ``.klref`` file.
        name: the name of the argument that holds the path, for error messages.

    Attributes:
        windows: the windows of tokens, with a mask of the scored tokens.
        classes: the number of classes.
        rows: the number of scored tokens.
        top: the number of most probable classes that each row keeps.
        tail_draws: the number of draws from the other classes in each row.
        metadata: the texts of the header by name, such as the model, the tokenizer and the settings of the windows.

    Raises:
        FileError: the file is missing, truncated or damaged, or is not a reference file.

    Example:
        >>> import pathlib, tempfile, torch
        >>> from kullback.io import Reference, ReferenceWriter, Windows
        >>> tokens = torch.tensor([0, 2, 1, 4])
        >>> windows = Windows(tokens, torch.tensor([0, 4]), torch.tensor([False, True, True, True]))
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "base.klref"
        >>> with ReferenceWriter(path, windows, top=2, tail_draws=3, metadata={"model": "tiny"}) as writer:
        ...     writer.add(torch.eye(5)[:3])
        >>> with Reference(path) as reference:
        ...     block = reference.read(0, 2)
        ...     reference.rows, reference.metadata["model"], block.top_indices.tolist()
        (3, 'tiny', [[0, 1], [1, 0]])

    References:
        Sparse Logit Sampling: Accelerating Knowledge Distillation in LLMs (Anshumann and others, 2025)
    """

    def __init__(self, path: str | PathLike[str], *, name: str = "path") -> None:
        self.ref = FileReference(Path(path), name)
        with closed_on_error(self.ref.open()) as self._file, self.ref.decoding("a reference file"):
            self._layout, self.metadata, self._readers = _read_header(self.ref, self._file)
            self.classes = int(self.metadata["classes"])
            if self.classes < self._layout.top:
                raise self.ref.truncated(
                    wanted=f"top_indices of no more than {self.classes} classes", got=f"{self._layout.top}"
                )
            self.windows = self._read_windows()
            self._labels = self.windows.labels
        self.rows, self.top, self.tail_draws = self._layout.rows, self._layout.top, self._layout.draws

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        size = f"rows={self.rows}, classes={self.classes}, top={self.top}, tail_draws={self.tail_draws}"
        return f"Reference({str(self.ref.path)!r}, {size})"

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def describe(self) -> list[str]:
        """Return a description of the file as lines of text: the sizes, then the metadata."""
        size = self.ref.path.stat().st_size
        lines = [
            f"{self.rows:,} scored tokens of {self._layout.tokens:,}, in {len(self.windows):,} windows",
            f"top {self.top} of {self.classes:,} classes and {self.tail_draws} drawn from the rest",
            f"{size:,} bytes, {size / self.rows:.0f} a scored token",
        ]
        skipped = ("format", "version", "classes", "documents")
        shown = (
            f"{printable(key, 80)}: {printable(value, 200)}"
            for key, value in self.metadata.items()
            if key not in skipped
        )
        return [*lines, *shown]

    def read(self, start: int, stop: int) -> PartialRows:
        """Return rows `start` to `stop` (not included), and check their values.

        Arguments:
            start: the first row.
            stop: the row after the last row.

        Returns:
            the rows, as `PartialRows`.

        Raises:
            ArgumentValueError: the range is empty or not within the file.
            FileError: a row contains values that cannot be classes or log-probabilities.
        """
        if not 0 <= start < stop <= self.rows:
            raise invalid_value(
                "Reference.read",
                "start, stop",
                wanted=f"0 <= start < stop <= rows = {self.rows}",
                got=f"{start}, {stop}",
                instead="reference.read(0, 1) for the first row",
            )
        arrays = self._layout.arrays
        tensors = {
            name: self._readers[name].read(start, stop).view(stop - start, *arrays[name].shape[1:])
            if name in self._readers
            else torch.empty(stop - start, 0, dtype=DTYPES[name], device="cpu")
            for name in ROW_TENSORS
        }
        rows = PartialRows(
            **tensors, labels=self._labels[start:stop], classes=self.classes, start=start, is_ranked=True
        )
        self._check(rows)
        return rows

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[PartialRows]:
        """Iterate over all rows in order, in blocks of `rows`; the last block may be shorter."""
        for start in range(0, self.rows, max(1, rows)):
            yield self.read(start, min(start + max(1, rows), self.rows))

    def _read_windows(self) -> Windows:
        whole = {
            name: self._readers[name].read(0, self._layout.arrays[name].shape[0]).view(-1)
            for name in ("tokens", "offsets", "scored")
        }
        if bool((whole["scored"] > 1).any()):
            raise self.ref.truncated(wanted="only 0 and 1 in scored", got=f"{int(whole['scored'].max())}")
        windows = Windows(whole["tokens"].long(), whole["offsets"], whole["scored"].bool())
        fault = windows.fault(self.classes)
        if fault is not None:
            raise self.ref.truncated(wanted=fault[0], got=fault[1])
        if windows.rows != self._layout.rows:
            raise self.ref.truncated(
                wanted=f"{self._layout.rows} scored tokens, one for each row", got=f"{windows.rows}"
            )
        return windows

    def _check(self, rows: PartialRows) -> None:
        """Raise an error that names the tensor and the first row with an impossible value."""
        tensors = rows.tensors()
        for name, wanted, wrong in _faults(rows):
            if bool(wrong.any()):
                row = int(wrong.nonzero()[0])
                values = tensors[name][row].reshape(-1)
                shown = ", ".join(f"{x:.6g}" for x in values[:3].tolist()) + (
                    ", ..." if len(values) > 3 else ""
                )
                raise self.ref.truncated(wanted=f"{name} {wanted}", got=f"{shown} in row {rows.start + row}")


def _faults(rows: PartialRows) -> Iterator[tuple[str, str, Tensor]]:
    """Yield the name of a tensor, a condition, and a mask of the rows that violate the condition."""
    tensors, classes = rows.tensors(), rows.classes or 0
    for name, largest in (
        ("top_indices", classes - 1),
        ("tail_indices", classes - 1),
        ("support_sizes", classes),
    ):
        wrong = (tensors[name] < 0) | (tensors[name] > largest)
        yield name, f"from 0 to {largest}", wrong.view(len(rows), -1).any(-1)
    top = rows.top_log_probs
    numbers = "that are numbers of 0 or less"
    for name in ("tail_log_probs", "tail_log_mass", "label_log_probs"):
        yield name, numbers, ~(tensors[name].view(len(rows), -1) <= 0).all(-1)  # NaN fails too
    falling = (top[:, 1:] <= top[:, :-1]).all(-1) & (top[:, 0] <= 0) & top[:, 0].isfinite()
    yield "top_log_probs", f"{numbers}, the largest first and not -inf", ~falling
    yield "top_log_probs", "that sum to 1 with the tail's mass", ~((rows.masses - 1).abs() <= MASS_TOLERANCE)
