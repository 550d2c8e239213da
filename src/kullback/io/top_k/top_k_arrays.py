"""Top-k log-probabilities or logits in tensors: plain safetensors, mlx-lm's DWQ targets and NeMo-RL's batches.

A plain file may also have three tensors with one value for each position. These are ``labels`` (-100 without a label),
``label_log_probs`` (NaN if unknown) and ``log_tail`` (the log of the mass outside the listed classes). The metadata may
have the number of ``classes``. A batch of NeMo-RL may have ``input_ids`` (batch, length) and ``input_lengths`` (batch).
From logits of a few classes, only the log-probabilities among these classes are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from kullback.common.dtypes import dtype_name
from kullback.common.extra_arguments import by_name
from kullback.common.words import NO_LABEL
from kullback.io.arrays import BytesReader, is_dense, load_tensors
from kullback.io.safetensors_file import METADATA, safetensors_header, tensor_layout
from kullback.io.source_files import FileReference, closed_on_error
from kullback.io.top_k.source import Piece, TopKReader
from kullback.partial_rows import PartialRows


@by_name()
class ArrayFormat(NamedTuple):
    """A format of tensors: the names of required tensors and of optional tensors, and whether the values are logits.

    Add a format to `TOP_K_FORMATS`, or pass the format to `open_top_k`.

    Attributes:
        indices: the name of the tensor of listed classes, integer, shape (..., k).
        values: the name of the tensor with the natural log-probabilities or the logits of the listed classes, shape
            (..., k).
        optional: the names of optional tensors. ``labels``, ``label_log_probs``, ``log_tail`` and ``input_ids`` have a
            value for each position. ``input_lengths`` has a value for each sequence.
        logits: whether the values are logits of shape (batch, length, k). Each row of logits predicts the next token.

    Example:
        >>> from kullback.io import TOP_K_FORMATS
        >>> TOP_K_FORMATS["mlx-dwq"]
        ArrayFormat(indices='indices', values='logits', optional=(), logits=True)
    """

    indices: str
    values: str
    optional: tuple[str, ...] = ()
    logits: bool = False


PIECE_BYTES = 1 << 24


class Column(NamedTuple):
    """A tensor in a file or in memory, viewed as one long column. `read` copies elements of the column."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[int, int], Tensor]
    close: Callable[[], object]

    @classmethod
    def of_tensor(cls, ref: FileReference, name: str, value: object) -> Column:
        """Return a tensor in memory, or in a mapped file, as a column."""
        tensor = torch.as_tensor(value)
        if not is_dense(tensor):
            raise ref.error(
                wanted=f"a dense tensor {name} of numbers",
                got=f"{tensor.layout}, {tensor.dtype}",
                instead="pad and store x.to_dense()",
            )
        flat = tensor.detach().reshape(-1)

        def read(start: int, stop: int) -> Tensor:
            return flat[start:stop].to("cpu", copy=True)

        return cls(tuple(tensor.shape), tensor.dtype, read, lambda: None)

    @classmethod
    def of_file(cls, ref: FileReference, name: str, entry: Any, *, data: int) -> Column:
        """Return a tensor of a safetensors file as a column, which is read from the file at each access."""
        array = tensor_layout(ref, name, entry, data)
        elements = replace(array, shape=(math.prod(array.shape), 1))
        with closed_on_error(ref.open()) as file:
            reader = BytesReader(ref, file, elements, format="safetensors", key=name)
        return cls(array.shape, array.dtype, reader.read, reader.close)

    def rows(self, start: int, stop: int, width: int) -> Tensor:
        """Return rows `start` to `stop` of the tensor in the shape (rows, width)."""
        return self.read(start * width, stop * width).view(-1, width)


def matching_format(formats: Mapping[str, ArrayFormat], tensors: Iterable[str]) -> str | None:
    """Return the name of the first format whose required tensors have these names; None if there is no such format."""
    names = set(tensors)
    return next((name for name, of in formats.items() if {of.indices, of.values} <= names), None)


def open_arrays(
    ref: FileReference, formats: Mapping[str, ArrayFormat], source: Mapping[str, Any] | None = None
) -> TopKReader:
    """Open a ``.safetensors`` or ``.pt`` file, or a dictionary of tensors, of one of the formats."""
    metadata: Any = None
    tensors: Mapping[str, Any]
    if source is None and ref.path.suffix.lower() == ".safetensors":
        data, entries = safetensors_header(ref)
        metadata = entries.pop(METADATA, None)
        tensors = entries
        column_of = partial(Column.of_file, data=data)
    else:
        loaded = load_tensors(ref) if source is None else source
        tensors = {} if isinstance(loaded, Tensor) else loaded
        column_of = Column.of_tensor
    name = matching_format(formats, tensors)
    if name is None:
        raise ref.error(
            wanted="tensors " + ", or ".join(f"{of.indices} and {of.values}" for of in formats.values()),
            got=f"{', '.join(sorted(map(str, tensors))[:10])}",
            instead="rename them; files of whole distributions are opened by kullback.io.open_rows",
        )
    of = formats[name]
    with ExitStack() as stack:
        columns: dict[str, Column] = {}
        for tensor in (of.indices, of.values, *of.optional):
            if tensor in tensors:
                columns[tensor] = column_of(ref, tensor, tensors[tensor])
                stack.callback(columns[tensor].close)
        reader = ArraysReader(ref, name, of, columns, metadata)
        stack.pop_all()
    return reader


class ArraysReader(TopKReader):
    """A reader of one set of tensors. The dimension before the classes is positions; earlier dimensions are
    sequences.
    """

    def __init__(
        self,
        ref: FileReference,
        name: str,
        names: ArrayFormat,
        tensors: Mapping[str, Column],
        metadata: Mapping[str, str] | None,
    ) -> None:
        self.ref, self.format, self._names, self._tensors = ref, name, names, tensors
        self._check_shapes()
        *leading, self._length, self._k = tensors[self._names.indices].shape
        self._sequences, self.k = math.prod(leading), self._k
        self.rows = self._sequences * self._length
        dtype = tensors[self._names.values].dtype
        self.rounding = torch.float32 if self._names.logits and dtype != torch.float64 else dtype
        self.tail = "renormalize" if self._names.logits else "bucket"
        self.classes = self._classes(metadata or {})
        lengths = tensors.get("input_lengths")
        self._lengths = None if lengths is None else lengths.read(0, self._sequences).view(-1).tolist()
        if self._lengths is not None:
            wrong = [length for length in self._lengths if not 0 <= length <= self._length]
            if wrong:
                raise ref.error(
                    wanted=f"input_lengths from 0 to {self._length}, the length of the batch",
                    got=f"{wrong[0]}",
                    instead="store how many of each sequence's tokens are not padding",
                )
            self.rows = sum(self._lengths)

    def _check_shapes(self) -> None:
        indices, values = (self._tensors[name] for name in self._names[:2])
        shape = indices.shape
        least = 3 if self._names.logits else 2
        if len(shape) < least or 0 in shape or shape != values.shape:
            form = "(batch, length, k)" if self._names.logits else "(..., k)"
            raise self.ref.error(
                wanted=f"{self._names.indices} and {self._names.values} of one shape {form}, not empty",
                got=f"shapes {shape} and {values.shape}",
                instead="write the classes and the values of the same entries at each position",
            )
        shapes = {"input_lengths": shape[:1]}
        integers = {self._names.indices, "labels", "input_ids", "input_lengths"}
        for name, tensor in self._tensors.items():
            wanted = shape if name in self._names[:2] else shapes.get(name, shape[:-1])
            if tensor.shape != wanted or tensor.dtype.is_floating_point == (name in integers):
                kind = "integers" if name in integers else "floating-point numbers"
                raise self.ref.error(
                    wanted=f"{name} of {kind}, shape {tuple(wanted)}",
                    got=f"{dtype_name(tensor.dtype)}, shape {tensor.shape}",
                    instead="write the file again with that tensor changed or left out",
                )

    def _classes(self, metadata: Mapping[str, str]) -> int | None:
        classes = metadata.get("classes")
        if classes is None:
            return None
        if not (classes.isascii() and classes.isdigit() and 0 < len(classes) <= 10):
            raise self.ref.error(
                wanted="a number of classes in the metadata",
                got=repr(classes),
                instead="write it as str(classes), or leave it out",
            )
        return int(classes)

    def sequences(self) -> Iterator[Piece]:
        names = self._names
        width = self._k * (8 + self._tensors[names.values].dtype.itemsize)
        step = max(1, PIECE_BYTES // width)
        for sequence in range(self._sequences):
            first = sequence * self._length
            end = self._length if self._lengths is None else self._lengths[sequence]
            for start in range(0, max(end, 1), step):
                stop = min(start + step, end)
                piece = self._piece(sequence, first + start, first + stop, first + end)
                if start == 0 and "input_ids" in self._tensors:
                    piece = piece._replace(tokens=self._column("input_ids", first, first + end))
                yield piece if stop < end else piece._replace(skipped=self._length - end)

    def _piece(self, sequence: int, start: int, stop: int, last: int) -> Piece:
        """Return rows `start` to `stop` of a sequence that ends at row `last`."""
        position = start - sequence * self._length
        of = self._names
        indices = self._tensors[of.indices].rows(start, stop, self._k).long()
        values = self._tensors[of.values].rows(start, stop, self._k)
        columns = {
            "labels": self._column("labels", start, stop),
            "label_log_probs": self._column("label_log_probs", start, stop),
            "tail_log_mass": self._column("log_tail", start, stop),
        }
        if of.logits:
            log_probs = values.double().log_softmax(-1)
            values = log_probs if values.dtype == torch.float64 else log_probs.float()
            position += 1
            columns["tail_log_mass"] = torch.full(
                (stop - start,), torch.nan, dtype=torch.float64, device="cpu"
            )
            if "input_ids" in self._tensors:
                # The labels are the tokens at the next positions; the last position of a sequence has no label.
                following = self._column("input_ids", start + 1, min(stop + 1, last))
                columns["labels"] = pad(following, (0, stop - start - len(following)), value=NO_LABEL)
        elif (tail := columns["tail_log_mass"]) is not None and bool(tail.isnan().any()):
            raise self.ref.error(
                wanted="log_tail of numbers, the log of the mass outside the list",
                got=f"nan in row {start + int(tail.isnan().nonzero()[0])}",
                instead="write -inf if no mass is left, or leave log_tail out: it follows from log_probs",
            )
        known = {name: column for name, column in columns.items() if column is not None}
        positions = torch.arange(position, position + stop - start, device="cpu")
        rows = PartialRows(indices, values, positions=positions, **known)
        return Piece(sequence, rows, stores_tail="tail_log_mass" in known)

    def _column(self, name: str, start: int, stop: int) -> Any:
        if name not in self._tensors:
            return None
        column = self._tensors[name].read(start, stop).view(-1)
        return column.long() if name in ("labels", "input_ids") else column

    def close(self) -> None:
        for tensor in self._tensors.values():
            tensor.close()


class FolderReader(TopKReader):
    """A reader of the ``.safetensors`` files of a folder, such as mlx-lm's batches, one file after the other."""

    def __init__(self, ref: FileReference, paths: list[Path], formats: Mapping[str, ArrayFormat]) -> None:
        self.ref, self._paths, self._formats = ref, paths, formats
        first = self._open(paths[0])
        self.format, self.tail, self.rounding = first.format, first.tail, first.rounding
        self.classes = first.classes
        first.close()

    def _open(self, path: Path) -> TopKReader:
        return open_arrays(FileReference(path, self.ref.name), self._formats)

    def sequences(self) -> Iterator[Piece]:
        before = 0
        for path in self._paths:
            reader = self._open(path)
            last = -1
            try:
                for piece in reader.sequences():
                    last = piece.sequence
                    yield piece._replace(sequence=before + last)
            finally:
                reader.close()
            before += last + 1


def open_folder(ref: FileReference, formats: Mapping[str, ArrayFormat]) -> TopKReader:
    """Open a folder of ``.safetensors`` files, or the ``train`` folder inside that mlx-lm writes."""
    folder = ref.path / "train" if (ref.path / "train").is_dir() else ref.path
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ref.error(
            wanted="a folder of .safetensors files",
            got="none in it",
            instead="name the folder that holds them, or one file",
        )
    return FolderReader(ref, paths, formats)
