"""Top-k log-probabilities, or logits, as tensors: plain safetensors, mlx-lm's DWQ targets and NeMo-RL's batches.

| format | tensors | a row predicts |
|---|---|---|
| ``safetensors`` | ``indices``, ``log_probs`` (..., k) | what its writer says |
| ``mlx-dwq`` | ``indices``, ``logits`` (batch, length, k) | the next token |
| ``nemo-rl`` | ``teacher_topk_indices``, ``teacher_topk_logits`` (batch, length, k) | the next token |

A plain file may also hold ``labels`` (..., -100 for none), ``label_log_probs`` (..., NaN for unknown) and ``log_tail``
(..., the log of the mass outside the listed classes), and the number of ``classes`` in its metadata; a batch of NeMo-RL
``input_ids`` (batch, length) and ``input_lengths`` (batch). From logits at a few classes, only the log-probabilities
among these classes are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from kullback.common.dtypes import dtype_name
from kullback.common.words import NO_LABEL
from kullback.io.arrays import BytesReader, is_dense, load_tensors
from kullback.io.safetensors_file import METADATA, safetensors_header, tensor_layout
from kullback.io.source_files import FileReference, closed_on_error
from kullback.io.top_k.block import Positions
from kullback.io.top_k.source import TopKReader

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Names(NamedTuple):
    """The tensors of a format: those it needs, those it may have, and whether its values are logits."""

    indices: str
    values: str
    optional: tuple[str, ...]
    logits: bool


ARRAY_FORMATS = {
    "safetensors": Names("indices", "log_probs", ("labels", "label_log_probs", "log_tail"), logits=False),
    "mlx-dwq": Names("indices", "logits", (), logits=True),
    "nemo-rl": Names(
        "teacher_topk_indices", "teacher_topk_logits", ("input_ids", "input_lengths"), logits=True
    ),
}
PIECE_BYTES = 1 << 24


def array_format(names: Iterable[str]) -> str | None:
    """Return the format that has tensors of these names, or None."""
    found = set(names)
    return next((each for each, of in ARRAY_FORMATS.items() if {of.indices, of.values} <= found), None)


class Column(NamedTuple):
    """A tensor of a file or in memory, seen as one long column, whose rows `read` copies."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[int, int], Tensor]
    close: Callable[[], object]

    @classmethod
    def of_tensor(cls, ref: FileReference, name: str, value: object) -> Column:
        """Return a tensor in memory, or mapped, as a column."""
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
        """Return rows `start` to `stop` of the tensor seen as (rows, width)."""
        return self.read(start * width, stop * width).view(-1, width)


def open_arrays(ref: FileReference, wanted: str | None, held: Mapping[str, Any] | None = None) -> TopKReader:
    """Open a ``.safetensors`` or ``.pt`` file, or a dictionary of tensors, of one of the formats."""
    if wanted is not None and wanted not in ARRAY_FORMATS:
        raise ref.error(wanted=f"the files of format={wanted!r}", got="tensors", instead="leave format= out")
    metadata: Any = None
    tensors: Mapping[str, Any]
    if held is None and ref.path.suffix.lower() == ".safetensors":
        data, entries = safetensors_header(ref)
        metadata = entries.pop(METADATA, None)
        tensors = entries
        column_of = partial(Column.of_file, data=data)
    else:
        loaded = load_tensors(ref) if held is None else held
        tensors = {} if isinstance(loaded, Tensor) else loaded
        column_of = Column.of_tensor
    found = wanted or array_format(tensors)
    if found is None or array_format(tensors) != found:
        formats = [ARRAY_FORMATS[found]] if found else list(ARRAY_FORMATS.values())
        raise ref.error(
            wanted="tensors " + ", or ".join(f"{each.indices} and {each.values}" for each in formats),
            got=f"{', '.join(sorted(map(str, tensors))[:10])}",
            instead="rename them; files of whole distributions are opened by kullback.io.open_rows",
        )
    of = ARRAY_FORMATS[found]
    with ExitStack() as stack:
        columns: dict[str, Column] = {}
        for name in (of.indices, of.values, *of.optional):
            if name in tensors:
                columns[name] = column_of(ref, name, tensors[name])
                stack.callback(columns[name].close)
        reader = ArraysReader(ref, found, columns, metadata)
        stack.pop_all()
    return reader


class ArraysReader(TopKReader):
    """A reader of one set of tensors: leading dimensions are sequences, the one before the classes their positions."""

    def __init__(
        self,
        ref: FileReference,
        format: str,  # noqa: A002 - the attribute's name
        tensors: Mapping[str, Column],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.ref, self.format, self._tensors = ref, format, tensors
        self._names = ARRAY_FORMATS[format]
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
            wrong = [each for each in self._lengths if not 0 <= each <= self._length]
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

    def sequences(self) -> Iterator[Positions]:
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

    def _piece(self, sequence: int, start: int, stop: int, last: int) -> Positions:
        """Return rows `start` to `stop` of a sequence that ends at row `last`."""
        position = start - sequence * self._length
        of = self._names
        indices = self._tensors[of.indices].rows(start, stop, self._k).long()
        values = self._tensors[of.values].rows(start, stop, self._k)
        positions = torch.arange(position, position + stop - start, device="cpu")
        if not of.logits:
            log_tail = self._column("log_tail", start, stop)
            if log_tail is not None and bool(log_tail.isnan().any()):
                raise self.ref.error(
                    wanted="log_tail of numbers, the log of the mass outside the list",
                    got=f"nan in row {start + int(log_tail.isnan().nonzero()[0])}",
                    instead="write -inf if no mass is left, or leave log_tail out: it follows from log_probs",
                )
            return Positions(
                sequence,
                positions,
                indices,
                values,
                self._column("labels", start, stop),
                self._column("label_log_probs", start, stop),
                log_tail,
            )
        log_probs = values.double().log_softmax(-1)
        labels = None
        if "input_ids" in self._tensors:
            # The tokens of the next positions; the last position of a sequence has none.
            following = self._column("input_ids", start + 1, min(stop + 1, last))
            labels = torch.cat(
                [following, torch.full((stop - start - len(following),), NO_LABEL, device="cpu")]
            )
        return Positions(
            sequence,
            positions + 1,
            indices,
            log_probs if values.dtype == torch.float64 else log_probs.float(),
            labels,
            log_tail=torch.full((stop - start,), torch.nan, dtype=torch.float64, device="cpu"),
        )

    def _column(self, name: str, start: int, stop: int) -> Any:
        if name not in self._tensors:
            return None
        column = self._tensors[name].read(start, stop).view(-1)
        return column.long() if name in ("labels", "input_ids") else column

    def close(self) -> None:
        for tensor in self._tensors.values():
            tensor.close()


class FolderReader(TopKReader):
    """A reader of the ``.safetensors`` files of a folder, one after the other, as mlx-lm writes its batches."""

    def __init__(self, ref: FileReference, paths: list[Path], wanted: str | None) -> None:
        self.ref, self._paths, self._wanted = ref, paths, wanted
        first = self._open(paths[0])
        self.format, self.tail, self.rounding = first.format, first.tail, first.rounding
        self.classes = first.classes
        first.close()

    def _open(self, path: Path) -> TopKReader:
        return open_arrays(FileReference(path, self.ref.name), self._wanted)

    def sequences(self) -> Iterator[Positions]:
        before = 0
        for path in self._paths:
            reader = self._open(path)
            last = -1
            try:
                for found in reader.sequences():
                    last = found.sequence
                    yield found._replace(sequence=before + last)
            finally:
                reader.close()
            before += last + 1


def open_folder(ref: FileReference, wanted: str | None) -> TopKReader:
    """Open a folder of ``.safetensors`` files, or the ``train`` folder in it that mlx-lm writes."""
    folder = ref.path / "train" if (ref.path / "train").is_dir() else ref.path
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ref.error(
            wanted="a folder of .safetensors files",
            got="none in it",
            instead="name the folder that holds them, or one file",
        )
    return FolderReader(ref, paths, wanted)
