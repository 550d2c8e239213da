"""Tensors of safetensors files, and the header that gives the dtype, the shape and the place of each tensor.

A header is JSON at the beginning of the file. `BytesReader` reads a tensor at the place that the header gives.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import IO, Any, cast

import torch

from kullback.common.optional import load
from kullback.common.plain_values import JsonObject
from kullback.io.arrays import BIG_ENDIAN, NUMPY_DTYPES, ArrayLayout, BytesReader
from kullback.io.class_columns import NAMES_OF_CLASSES, first_names, list_from_text
from kullback.io.row_stream import Reader
from kullback.io.source_files import FileReference, choose_key, closed_on_error

# The codes of safetensors count bits; the codes of NumPy count bytes.
SAFETENSORS_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16} | {
    f"{code[0].upper()}{8 * int(code[1])}": dtype for code, dtype in NUMPY_DTYPES.items()
}
# Hidden states may have these dtypes, with scales. Predictions may not: float8 has no room for a log-probability.
FLOAT8_DTYPES = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
METADATA = "__metadata__"
Entry = JsonObject  # the header's entry of a tensor or of the metadata
LARGEST_HEADER = 100_000_000  # the limit of the safetensors library


def open_safetensors(ref: FileReference, key: str | None) -> Reader:
    """Open one tensor of a ``.safetensors`` file."""
    data, header = safetensors_header(ref)
    chosen = choose_key(ref, (name for name in header if name != METADATA), key, what="tensor")
    array = tensor_layout(ref, chosen, header[chosen], data)
    with closed_on_error(ref.open()) as file:
        reader = BytesReader(ref, file, array, format="safetensors", key=chosen)
    metadata = header.get(METADATA, {})
    texts = [metadata[name] for name in NAMES_OF_CLASSES if isinstance(metadata.get(name), str)]
    reader.class_names = first_names(map(list_from_text, texts), reader.classes)
    return reader


def safetensors_header(ref: FileReference) -> tuple[int, dict[str, Entry]]:
    """Return the byte at which the tensors of a ``.safetensors`` file begin, and the header.

    The safetensors library validates the file. The offsets come from the header, because the library does not return
    offsets. (The library's slices map the file, and select only along the first dimension.)
    """
    library = load("safetensors", "reading a .safetensors file")
    with ref.reading("a safetensors file", library.SafetensorError), library.safe_open(ref.path, "numpy"):
        pass
    with ref.open() as file:
        return read_header(ref, file)


def read_header(ref: FileReference, file: IO[bytes]) -> tuple[int, dict[str, Entry]]:
    """Return the byte at which the tensors begin, and the entries of the header.

    The file begins with the length of the header in eight bytes, then the header as JSON.
    """
    size = ref.path.stat().st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= length <= min(size - 8, LARGEST_HEADER):
        raise ref.truncated(
            wanted="a file that begins with the length of its header",
            got=f"a length of {length:,} in {size:,} bytes",
        )
    with ref.reading("a header of JSON", ValueError, RecursionError):
        entries: Any = json.loads(file.read(length))
    if not isinstance(entries, dict) or not all(
        isinstance(entry, dict) for entry in cast("Any", entries).values()
    ):
        raise ref.truncated(wanted="a header with an object for each tensor", got="other JSON")
    return 8 + length, entries


def header_bytes(layouts: Mapping[str, ArrayLayout], metadata: Mapping[str, str]) -> bytes:
    """Return the header for tensors, padded to a multiple of eight bytes. Offsets count from the end of the header."""
    entries: dict[str, object] = {METADATA: dict(metadata)}
    for name, array in layouts.items():
        span = array.offset, array.end
        entries[name] = {"dtype": entry_dtype(array.dtype), "shape": array.shape, "data_offsets": span}
    return encoded_header(entries)


def encoded_header(entries: Mapping[str, object]) -> bytes:
    """Return a header with its length, padded to a multiple of eight bytes."""
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def entry_dtype(dtype: torch.dtype) -> str:
    """Return the name of a dtype in the header."""
    return next(name for name, each in SAFETENSORS_DTYPES.items() if each == dtype)


def tensor_layout(
    ref: FileReference,
    name: str,
    entry: Entry,
    data: int,
    dtypes: Mapping[str, torch.dtype] = SAFETENSORS_DTYPES,
) -> ArrayLayout:
    """Return the layout that an entry of the header describes; the tensors begin at byte `data`."""
    dtype = dtypes.get(str(entry.get("dtype")))
    if dtype is None:
        raise ref.error(
            wanted=f"a tensor of {', '.join(dtypes)}",
            got=f"{name!r} of {entry.get('dtype')}",
            instead=f"convert it to {'BF16 or F32' if 'F32' in dtypes else 'I64'} first",
        )
    for what in ("shape", "data_offsets"):
        numbers = entry.get(what)
        if not isinstance(numbers, list) or not all(
            type(n) is int and 0 <= n < 2**62 for n in cast("list[Any]", numbers)
        ):
            raise ref.truncated(wanted=f"{name} with {what} of whole numbers", got=f"{numbers}")
    shape, span = tuple(entry["shape"]), entry["data_offsets"]
    if len(span) != 2 or span[1] - span[0] != math.prod(shape) * dtype.itemsize:
        raise ref.truncated(
            wanted=f"as many bytes of {name} as its shape {shape} has", got=f"data_offsets {span}"
        )
    return ArrayLayout(data + span[0], shape, dtype, swapped=BIG_ENDIAN)
