"""The layout of a ``.klref`` file: its tensors, their order, and the header that names them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

import torch

from kullback.io.arrays import BIG_ENDIAN, SAFETENSORS_DTYPES, ArrayLayout, BytesReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from kullback.io.source_files import FileReference
    from kullback.io.windows import Windows

FORMAT, VERSION = "klref", "1"
RESERVED = ("format", "version", "classes", "seed", "created_by")
# The tensors in the order of the file, so that each begins at a multiple of its element's size.
DTYPES = {
    "offsets": "I64",
    "tokens": "I32",
    "top_indices": "I32",
    "top_log_probs": "F32",
    "tail_indices": "I32",
    "tail_log_probs": "F32",
    "tail_log_mass": "F32",
    "label_log_probs": "F32",
    "support_sizes": "I32",
    "scored": "U8",
}
ROW_TENSORS = tuple(DTYPES)[2:9]
MOST_CLASSES = 2**31 - 1
LARGEST_HEADER = 100_000_000  # the limit of the safetensors library


@dataclass(frozen=True)
class ReferenceLayout:
    """The sizes of a reference file, and the shapes that follow from them.

    Attributes:
        windows: how many windows.
        tokens: how many tokens, in all windows.
        rows: how many scored tokens.
        top: how many of the most probable classes are kept of each row.
        draws: how many classes are drawn from the others of each row.
    """

    windows: int
    tokens: int
    rows: int
    top: int
    draws: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor."""
        kept, drawn, one = (self.rows, self.top), (self.rows, self.draws), (self.rows,)
        ends, tokens = (self.windows + 1,), (self.tokens,)
        shapes = (ends, tokens, kept, kept, drawn, drawn, one, one, one, tokens)
        return dict(zip(DTYPES, shapes, strict=True))

    @property
    def spans(self) -> dict[str, tuple[int, int]]:
        """The first byte of each tensor and the one past its last, counted from the end of the header."""
        spans: dict[str, tuple[int, int]] = {}
        end = 0
        for name, shape in self.shapes.items():
            start, end = end, end + math.prod(shape) * dtype_of(name).itemsize
            spans[name] = start, end
        return spans

    def header(self, metadata: Mapping[str, str]) -> bytes:
        """Return the header: its length in eight bytes, then JSON, padded to a multiple of eight bytes."""
        entries: dict[str, Any] = {"__metadata__": dict(metadata)}
        shapes, spans = self.shapes, self.spans
        for name, dtype in DTYPES.items():
            entries[name] = {"dtype": dtype, "shape": shapes[name], "data_offsets": spans[name]}
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of a tensor of the file."""
    return SAFETENSORS_DTYPES[DTYPES[name]]


def read_header(
    ref: FileReference, file: IO[bytes]
) -> tuple[ReferenceLayout, dict[str, str], dict[str, BytesReader]]:
    """Read and check the header; return the sizes, the metadata and a reader for each tensor that is not empty.

    Tensors may be in any order but without gaps, as the safetensors format demands.
    """
    size = ref.path.stat().st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= length <= min(size - 8, LARGEST_HEADER):
        raise ref.truncated(
            wanted="a reference file, which begins with the length of its header",
            got=f"a length of {length:,} in {size:,} bytes",
        )
    try:
        entries: Any = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise ref.truncated(wanted="a header of JSON", got=str(error)) from None
    entries = cast("dict[str, Any]", entries) if isinstance(entries, dict) else {}
    metadata = _check_metadata(ref, entries.pop("__metadata__", {}))
    if entries.keys() != DTYPES.keys():
        raise ref.truncated(wanted=f"the tensors {', '.join(DTYPES)}", got=", ".join(entries) or "none")
    spans: dict[str, tuple[int, int]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, entry in entries.items():
        shapes[name], spans[name] = _check_entry(ref, name, entry)
    layout = _check_shapes(ref, shapes)
    end = 0
    for name in sorted(spans, key=spans.__getitem__):
        if spans[name][0] != end:
            raise ref.truncated(wanted=f"{name} to begin at byte {end}", got=f"byte {spans[name][0]}")
        end = spans[name][1]
    if size != 8 + length + end:
        raise ref.truncated(wanted=f"{8 + length + end:,} bytes for {layout.rows:,} rows", got=f"{size:,}")
    readers = {
        name: BytesReader(
            ref,
            file,
            ArrayLayout(
                8 + length + spans[name][0], (shape[0], math.prod(shape[1:])), dtype_of(name), BIG_ENDIAN
            ),
            format=FORMAT,
            key=name,
        )
        for name, shape in shapes.items()
        if math.prod(shape)
    }
    return layout, metadata, readers


def _check_metadata(ref: FileReference, metadata: Any) -> dict[str, str]:
    found = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
    if found.get("format") != FORMAT:
        raise ref.error(
            wanted=f"a reference file: safetensors with the metadata format={FORMAT!r}",
            got=f"format={found.get('format')!r}",
            instead="record one by kullback.io.ReferenceWriter; other .safetensors files open by kullback.io.open_rows",
        )
    if found.get("version") != VERSION:
        raise ref.error(
            wanted=f"version {VERSION}",
            got=f"version {found.get('version')!r}",
            instead="read it by the kullback that wrote it, or a later one",
        )
    if not all(isinstance(value, str) for value in found.values()):
        raise ref.truncated(wanted="metadata of text alone", got="other values")
    classes = found.get("classes", "")
    if not (
        classes.isascii() and classes.isdecimal() and len(classes) < 11 and 0 < int(classes) <= MOST_CLASSES
    ):
        raise ref.truncated(wanted=f"metadata classes, from 1 to {MOST_CLASSES}", got=repr(classes))
    return found


def _check_entry(ref: FileReference, name: str, entry: Any) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Return the shape and the span of a tensor."""
    found = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    if found.get("dtype") != DTYPES[name]:
        raise ref.truncated(wanted=f"{name} of {DTYPES[name]}", got=f"{found.get('dtype')}")
    shape, span = found.get("shape"), found.get("data_offsets")
    for what, numbers in (("shape", shape), ("data_offsets", span)):
        if not isinstance(numbers, list) or not all(
            type(n) is int and 0 <= n < 2**62 for n in cast("list[Any]", numbers)
        ):
            raise ref.truncated(wanted=f"{name} with {what} of whole numbers", got=f"{numbers}")
    shape, span = tuple(cast("list[int]", shape)), cast("list[int]", span)
    if len(span) != 2 or span[1] - span[0] != math.prod(shape) * dtype_of(name).itemsize:
        raise ref.truncated(
            wanted=f"as many bytes of {name} as its shape {shape} has", got=f"data_offsets {span}"
        )
    return shape, (span[0], span[1])


def _check_shapes(ref: FileReference, shapes: Mapping[str, tuple[int, ...]]) -> ReferenceLayout:
    sizes = [
        shapes[name][-1] if shapes[name] else -1
        for name in ("offsets", "tokens", "top_indices", "tail_indices")
    ]
    rows = shapes["top_indices"][0] if shapes["top_indices"] else -1
    layout = ReferenceLayout(sizes[0] - 1, sizes[1], rows, sizes[2], sizes[3])
    wrong = next((name for name, shape in layout.shapes.items() if shapes[name] != shape), None)
    if wrong is not None:
        raise ref.truncated(wanted=f"{wrong} of shape {layout.shapes[wrong]}", got=f"{shapes[wrong]}")
    if layout.windows < 1 or layout.rows < 1 or layout.top < 1:
        raise ref.truncated(
            wanted="a window, a scored token and a top class, or more",
            got=f"{layout.windows} windows, {layout.rows} rows and {layout.top} classes",
        )
    return layout


def windows_fault(windows: Windows, classes: int) -> tuple[str, str] | None:
    """Return the expected and the actual values of the first faulty tensor of windows; None where all is well."""
    tokens, offsets, scored = windows.tokens, windows.offsets, windows.scored
    if int(offsets[0]) != 0 or int(offsets[-1]) != len(tokens) or bool((offsets.diff() < 1).any()):
        return f"offsets that rise from 0 to {len(tokens)}, the number of tokens", _first(
            offsets, offsets.diff() < 1
        )
    firsts = scored[offsets[:-1]]
    if bool(firsts.any()):
        return "scored tokens with a token before them in their window", f"window {int(firsts.nonzero()[0])}"
    wrong = (tokens < 0) | (scored & (tokens >= classes))
    if bool(wrong.any()):
        return f"tokens of 0 or more, and below {classes} where scored", _first(tokens, wrong)
    return None


def _first(values: Tensor, wrong: Tensor) -> str:
    where = int(wrong.nonzero()[0]) if bool(wrong.any()) else 0
    return f"{int(values[where])} at index {where}"
