"""Writing a reference file, which stores the top classes of each row, draws from the other classes, and their exact
mass.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
import torch
from torch import Tensor

from kullback.common.constraints import Arguments, Constraint
from kullback.common.dtypes import float64_copy
from kullback.common.extra_arguments import by_name
from kullback.common.files import open_output
from kullback.common.shared_constraints import SEED, STORED_TOP, TAIL_DRAWS
from kullback.errors import invalid_type, invalid_value
from kullback.io.reference_file import (
    DTYPES,
    FORMAT,
    MOST_CLASSES,
    RESERVED,
    ROW_TENSORS,
    VERSION,
    ReferenceLayout,
)
from kullback.io.row_checks import check_floating, check_rows
from kullback.io.safetensors_file import header_bytes
from kullback.io.source_files import FileReference
from kullback.io.windows import Windows
from kullback.partial_rows import PartialRows, summarize_rows

CALL = "ReferenceWriter"
# The number of logits that are converted to float64 at a time; GPUs need larger parts.
PART = {"cpu": 1 << 20}
LARGE_PART = 1 << 24


def rows_in_part(logits: Tensor) -> int:
    """Return the number of rows of logits to read at a time."""
    return max(1, PART.get(logits.device.type, LARGE_PART) // logits.shape[1])


STORED: dict[str, Constraint] = {"top": STORED_TOP, "tail_draws": TAIL_DRAWS, "seed": SEED}
_ARGUMENTS = Arguments(CALL, **STORED)


@by_name()
class ReferenceWriter:
    r"""Writes a model's predictions over windows of tokens as a reference file, in bounded memory.

    For a row of logits, the file stores the `top` most probable classes with their log-probabilities. It also stores
    the log of the mass M of all other classes, computed in float64, and `tail_draws` random draws from the other
    classes. Draws are independent and with replacement, and class i has probability :math:`p_i / M`. Ties are in order
    of class number. The draws of a row depend only on `seed`, the first row of the row's window, and the row's place in
    the window. So the blocks may have any size, and a repeated recording gives the same draws.

    The file gets its final name only when the ``with`` statement ends without an error.

    Arguments:
        path: the path of the file to write, by convention with the extension ``.klref``.
        windows: the tokens and the mask of scored tokens; each scored token has one row.
        top: the number of most probable classes to store. If there are fewer classes, all are stored, with a remark in
            `notes`.
        tail_draws: the number of classes to draw from the other classes, 0 or more.
        seed: the seed of the draws, an integer of 0 or more.
        metadata: a mapping from names to further texts to store, such as the model's name, hash and dtype, the
            tokenizer's fingerprint, and the settings of the windows. `kullback.io.Reference.metadata` returns this
            mapping. None for no further texts.

    Attributes:
        written: the number of rows that were written.
        notes: remarks on the file, for reports.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: a size does not fit, or there are fewer rows than scored tokens.
        FileError: a row contains NaN or +inf or only -inf, or the file cannot be written.

    Example:
        >>> import pathlib, tempfile, torch
        >>> from kullback.io import Reference, ReferenceWriter, Windows
        >>> windows = Windows(torch.tensor([0, 2, 1]), torch.tensor([0, 3]), torch.tensor([False, True, True]))
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "base.klref"
        >>> with ReferenceWriter(path, windows, top=2, tail_draws=4) as writer:
        ...     writer.add(torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
        >>> with Reference(path) as reference:
        ...     reference.read(0, 2).top_indices
        tensor([[0, 1],
                [2, 0]], dtype=torch.int32)
    """

    def __init__(
        self,
        path: str | PathLike[str],
        windows: Windows,
        *,
        top: int = 64,
        tail_draws: int = 32,
        seed: int = 0,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._ref = FileReference(Path(path), "path")
        numbers = _ARGUMENTS.check(top=top, tail_draws=tail_draws, seed=seed).values()
        self._metadata = _check_metadata(metadata or {})
        if windows.rows == 0:
            wanted, instead = "a scored token or more", "windows with scored tokens"
            raise invalid_value(CALL, "windows", wanted=wanted, got="none", instead=instead)
        self._windows, self._labels = windows, windows.labels
        self._top, self._draws, self._seed = numbers
        ends = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), windows.scored.cumsum(0)])
        # The first row of each window, and the end of the last window.
        self._firsts: list[int] = ends[windows.offsets].unique().tolist()
        self._layout: ReferenceLayout | None = None
        self._classes = self.written = self._data = 0
        self.notes: list[str] = []
        self._stack = ExitStack()
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        with self._ref.writing():
            self._file = self._stack.enter_context(open_output(self._ref.path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file = None
        rows = self._windows.rows
        if error is None and self.written < rows:
            missing = invalid_value(
                CALL,
                "windows",
                wanted=f"{rows} rows, one for each scored token",
                got=f"{self.written}",
                instead="writer.add(logits) for every scored token, or windows with fewer of them",
            )
            self._stack.__exit__(type(missing), missing, None)
            raise missing
        with self._ref.writing():
            self._stack.__exit__(kind, error, trace)

    def add(self, logits: Tensor) -> None:
        """Write the next rows.

        Arguments:
            logits: the model's logits or log-probabilities for the next scored tokens, floating point on any device,
                shape (rows, classes). In a model's output, the logits for a scored token are at the previous token.

        Raises:
            ArgumentTypeError: `logits` is not a floating-point tensor.
            ArgumentValueError: `logits` has a wrong shape, or there are more rows than scored tokens.
            FileError: a row contains NaN or +inf or only -inf, or the file cannot be written.
        """
        self._check_block(logits)
        self._settle_classes(logits.shape[1])
        for part in logits.split(rows_in_part(logits)):
            stop = self.written + len(part)
            accurate = float64_copy(part)
            check_rows(accurate, "logits", self.written, self._ref)
            self._write(
                summarize_rows(
                    accurate,
                    self._labels[self.written : stop],
                    top=self._top,
                    uniforms=self._uniforms(self.written, stop),
                    start=self.written,
                )
            )

    def add_block(self, block: PartialRows) -> None:
        """Write the next rows, which were read from another file of the same windows.

        Arguments:
            block: the rows, with as many top classes and draws as this file has.

        Raises:
            ArgumentValueError: the top classes, draws, labels or number of rows do not fit.
            FileError: the file cannot be written.
        """
        classes = block.classes or 0
        wanted = (min(self._top, classes), self._draws)
        got = block.top_indices.shape[-1], block.tail_indices.shape[-1]
        labels = self._labels[self.written : self.written + len(block)]
        fits = block.is_ranked and torch.equal(labels, block.labels) and self._classes in (0, classes)
        if got != wanted or not fits:
            raise invalid_value(
                "ReferenceWriter.add_block",
                "block",
                wanted=f"rows with {wanted[0]} top classes, {wanted[1]} draws and the labels of the windows",
                got=f"{got[0]} and {got[1]}" if got != wanted else "another order, other labels or classes",
                instead="a writer with the top, tail_draws and windows of the file that was read",
            )
        self._settle_classes(classes)
        self._write(block)

    def _write(self, block: PartialRows) -> None:
        if self._file is None:
            instead = "with ReferenceWriter(...) as writer: writer.add(logits)"
            raise invalid_value(CALL, "path", wanted="an open file", got="a closed one", instead=instead)
        with self._ref.writing():
            layout = self._layout or self._begin(self._file, block)
            for name in ROW_TENSORS:
                values: Tensor = getattr(block, name).to(DTYPES[name])
                row_bytes = values[:1].numel() * values.element_size()
                self._file.seek(self._data + layout.arrays[name].offset + self.written * row_bytes)
                self._file.write(_little_endian(values))
        self.written += len(block)

    def _begin(self, file: IO[bytes], block: PartialRows) -> ReferenceLayout:
        """Write the header and the windows, when the number of classes is known from the first rows."""
        windows = self._windows
        kept = block.top_indices.shape[-1]
        if kept < self._top:
            self.notes.append(f"top={self._top} is more than there are classes: all {kept} are kept")
        layout = ReferenceLayout(
            len(windows), len(windows.tokens), windows.rows, kept, block.tail_indices.shape[-1]
        )
        metadata = {
            "format": FORMAT,
            "version": VERSION,
            "classes": str(block.classes),
            "seed": str(self._seed),
            "created_by": f"kullback {own_version() or 'of unknown version'}",
        }
        header = header_bytes(layout.arrays, metadata | self._metadata)
        self._layout, self._data = layout, len(header)
        file.write(header)
        for name in ("offsets", "tokens", "scored"):
            file.seek(self._data + layout.arrays[name].offset)
            file.write(_little_endian(getattr(windows, name).to(DTYPES[name])))
        return layout

    def _settle_classes(self, classes: int) -> None:
        """Store the number of classes, and check that the windows fit this number."""
        fault = self._windows.fault(classes) if self._classes == 0 else None
        if fault is not None:
            instead = "Windows of the model's own tokens, the first of each not scored"
            raise invalid_value(CALL, "windows", wanted=fault[0], got=fault[1], instead=instead)
        self._classes = classes

    def _uniforms(self, start: int, stop: int) -> Tensor:
        """Return the random numbers of the draws of some rows, uniform on [0, 1), shape (stop - start, draws)."""
        parts: list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = []
        while start < stop:
            index = bisect_right(self._firsts, start)
            first, end = self._firsts[index - 1], min(stop, self._firsts[index])
            bits = np.random.PCG64([self._seed, first])
            bits.advance((start - first) * self._draws)
            parts.append(np.random.Generator(bits).random((end - start, self._draws)))
            start = end
        return torch.from_numpy(np.concatenate(parts))

    def _check_block(self, logits: Tensor) -> None:
        check_floating("ReferenceWriter.add", "logits", logits, "model(tokens).logits, or probs.log()")
        classes, left = self._classes or "classes", self._windows.rows - self.written
        wrong = logits.ndim != 2 or 0 in logits.shape or self._classes not in (0, logits.shape[-1])
        if wrong or len(logits) > left or logits.shape[-1] > MOST_CLASSES:
            raise invalid_value(
                "ReferenceWriter.add",
                "logits",
                wanted=f"shape (rows, {classes}) with at most {left} rows, the scored tokens left",
                got=f"shape {tuple(logits.shape)}",
                instead="logits.reshape(-1, classes), one row for each scored token, taken at the token before it",
            )


def _little_endian(values: Tensor) -> bytes:
    array = values.contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _check_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise invalid_type(
                CALL,
                "metadata",
                wanted="text by name",
                got=f"{key!r}: {type(value).__name__}",
                instead=f"metadata={{{str(key)!r}: str(value)}}",
            )
        if key in RESERVED:
            wanted = f"names other than {', '.join(RESERVED)}"
            raise invalid_value(CALL, "metadata", wanted=wanted, got=repr(key), instead="another name")
    return dict(metadata)


def own_version() -> str | None:
    """Return the version of kullback; None if kullback runs from source and is not installed."""
    try:
        return version("kullback")
    except PackageNotFoundError:
        return None
