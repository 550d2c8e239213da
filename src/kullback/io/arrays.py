"""Arrays in binary files: npy, npz, safetensors and PyTorch files, read a block at a time.

The first three lay an array out as plain bytes at some offset, so one reader serves them: it seeks and
reads into the block. It does not map the file, since mapped pages would count as the process's memory for
as long as the file is open.
"""

from __future__ import annotations

import json
import math
import pickle
import sys
import zipfile
import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from kullback.io.files import Place, choose_key, dtype_name, load_library, refuse_key
from kullback.io.store import Store, flat_shape

__all__ = [
    "BytesStore",
    "TorchStore",
    "load_tensors",
    "open_npy",
    "open_npz",
    "open_safetensors",
    "open_torch",
]

# NumPy's codes without byte order. Unsigned integers that torch computes little with become int64 as they
# are read.
NUMPY_DTYPES = {
    "f2": torch.float16,
    "f4": torch.float32,
    "f8": torch.float64,
    "i1": torch.int8,
    "i2": torch.int16,
    "i4": torch.int32,
    "i8": torch.int64,
    "u1": torch.uint8,
    "u2": torch.uint16,
    "u4": torch.uint32,
}
SAFETENSORS_DTYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
}
WIDENED = (torch.uint16, torch.uint32)
READABLE = {*NUMPY_DTYPES.values(), torch.bfloat16}
PIECE = 1 << 20
BIG_ENDIAN = sys.byteorder == "big"  # safetensors and llama.cpp write little-endian
READ_ERRORS = (OSError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Extent:
    """Where an array lies in a file, and what its elements are.

    Attributes:
        offset: where the first element begins.
        shape: the shape as stored.
        dtype: the dtype as stored.
        swapped: whether the elements have the other byte order than this machine.
        columns_first: whether a matrix is stored by columns (NumPy's Fortran order).
    """

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    swapped: bool = False
    columns_first: bool = False

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


class BytesStore(Store):
    """An array whose elements lie one after the other in a file.

    Arguments:
        place: the file, for errors.
        file: the open file, or an open member of an archive.
        array: where the elements lie and what they are.
        format: the format's name.
        key: the array's name inside the file.
        archive: the archive of which `file` is a member.
    """

    def __init__(
        self,
        place: Place,
        file: IO[bytes],
        array: Extent,
        *,
        format: str,  # noqa: A002 - the attribute's name
        key: str | None = None,
        archive: zipfile.ZipFile | None = None,
    ) -> None:
        self.rows, self.classes = self._size = flat_shape(place, array.shape)
        self.place, self.format, self.key, self.shape = place, format, key, array.shape
        self.stored = array.dtype
        self.dtype = torch.int64 if array.dtype in WIDENED else array.dtype
        self._file, self._array, self._archive = file, array, archive

    def check_size(self, size: int) -> None:
        """Refuse a file of `size` bytes that is shorter than its header says."""
        array = self._array
        if size < array.end:
            wanted = f"{array.end:,} bytes for shape {array.shape} of {dtype_name(array.dtype)}"
            raise self.place.truncated(wanted=wanted, got=f"{size:,} bytes")

    def read(self, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop`, from where they lie."""
        rows, classes = self._size
        dtype = self._array.dtype
        if self._array.columns_first:
            columns = torch.empty(classes, stop - start, dtype=dtype)
            for column in range(classes):
                self._fill(columns[column], column * rows + start)
            block = columns.T.contiguous()
        else:
            block = torch.empty(stop - start, classes, dtype=dtype)
            self._fill(block, start * classes)
        if self._array.swapped:
            block = block.view(torch.uint8).view(*block.shape, -1).flip(-1).view(dtype).squeeze(-1)
        return block.to(self.dtype)

    def _fill(self, block: Tensor, element: int) -> None:
        """Read the elements from number `element` on straight into `block`."""
        view: memoryview[int] = memoryview(cast("Any", block.view(-1).view(torch.uint8).numpy()))
        done = 0
        try:
            self._file.seek(self._array.offset + element * self._array.dtype.itemsize)
            while done < len(view):
                count = cast("Any", self._file).readinto(view[done : done + PIECE])
                if not count:
                    break
                done += count
        except READ_ERRORS as error:
            raise self.place.truncated(
                wanted="an array that can be read to its end", got=str(error)
            ) from None
        if done < len(view):
            wanted = f"{self._array.end:,} bytes"
            raise self.place.truncated(wanted=wanted, got="the end of the file before that")

    def close(self) -> None:
        """Close the file, and the archive around it."""
        self._file.close()
        if self._archive is not None:
            self._archive.close()


def open_npy(place: Place, key: str | None) -> Store:
    """A ``.npy`` file."""
    refuse_key(place, key, "a single array")
    with ExitStack() as stack:
        file = stack.enter_context(place.open())
        store = BytesStore(place, file, _numpy_extent(place, file), format="npy")
        store.check_size(place.path.stat().st_size)
        stack.pop_all()
    return store


def open_npz(place: Place, key: str | None) -> Store:
    """One array of a ``.npz`` archive, decompressed as it is read."""
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(place.path))
            members = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            chosen = choose_key(place, members, key)
            file = stack.enter_context(archive.open(f"{chosen}.npy"))
        except (RuntimeError, *READ_ERRORS) as error:  # RuntimeError: encrypted, or compressed otherwise
            raise place.truncated(wanted="a zip archive of arrays", got=str(error)) from None
        array = _numpy_extent(place, file, columns_too=False)
        store = BytesStore(place, file, array, format="npz", key=chosen, archive=archive)
        store.check_size(archive.getinfo(f"{chosen}.npy").file_size)
        stack.pop_all()
    return store


def _numpy_extent(place: Place, file: IO[bytes], *, columns_too: bool = True) -> Extent:
    """Read NumPy's header, which says what follows it; an archive member is not read by columns."""
    try:
        version = np.lib.format.read_magic(file)
        # A version beyond 2 is there for field names in Unicode, which no array of plain numbers has.
        first = np.lib.format.read_array_header_1_0
        read_header = first if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read_header(file)
    except (ValueError, *READ_ERRORS) as error:
        raise place.truncated(wanted="a NumPy array with its header", got=str(error)) from None
    stored = _from_numpy_dtype(place, dtype)
    if columns_first and not (columns_too and len(shape) == 2):
        raise place.error(
            wanted="an array in C order (Fortran order is read for a matrix in a .npy file)",
            got=f"Fortran order, shape {shape}",
            instead="write numpy.ascontiguousarray(x)",
        )
    return Extent(file.tell(), shape, stored, swapped=not dtype.isnative, columns_first=columns_first)


def _from_numpy_dtype(place: Place, dtype: np.dtype[Any]) -> torch.dtype:
    if dtype.str in ("|V2", "<V2", ">V2"):
        raise place.error(
            wanted="numbers",
            got=f"dtype {dtype.str!r}: two bytes without meaning, as bfloat16 is written by NumPy",
            instead="write x.astype('float32'), or a .safetensors file, which has bfloat16",
        )
    found = NUMPY_DTYPES.get(dtype.str[1:])
    if found is None:
        reason = "Python objects, which are never unpickled" if dtype.hasobject else f"dtype {dtype}"
        raise place.error(
            wanted="float16, float32, float64 or integers up to int64",
            got=reason,
            instead="write x.astype('float32'), or x.astype('int64') for counts",
        )
    return found


def open_safetensors(place: Place, key: str | None) -> Store:
    """One tensor of a ``.safetensors`` file.

    The library validates the file; the offsets, which it does not give, come from the header: its length in
    eight bytes, then JSON. (Its own slices map the file, and take only a range of the first dimension.)
    """
    library = load_library("safetensors", "safetensors", "reading a .safetensors file")
    try:
        with library.safe_open(place.path, "numpy") as checked:
            chosen = choose_key(place, checked.keys(), key, what="tensor")
    except library.SafetensorError as error:
        raise place.truncated(wanted="a safetensors file", got=str(error)) from None
    with ExitStack() as stack:
        file = stack.enter_context(place.open())
        length = int.from_bytes(file.read(8), "little")
        array = _safetensors_extent(place, chosen, json.loads(file.read(length))[chosen], 8 + length)
        store = BytesStore(place, file, array, format="safetensors", key=chosen)
        stack.pop_all()
    return store


def _safetensors_extent(place: Place, key: str, entry: Any, data: int) -> Extent:
    """What one entry of the header says, where the tensors' bytes begin at `data`."""
    dtype = SAFETENSORS_DTYPES.get(entry["dtype"])
    if dtype is None:
        raise place.error(
            wanted=f"a tensor of {', '.join(SAFETENSORS_DTYPES)}",
            got=f"{key!r} of {entry['dtype']}",
            instead="convert it to BF16 or F32 first",
        )
    offset = data + entry["data_offsets"][0]
    return Extent(offset, tuple(entry["shape"]), dtype, swapped=BIG_ENDIAN)


class TorchStore(Store):
    """A tensor in a file of `torch.save`; the file is mapped anew for each block, so that only that block
    is in memory."""

    format = "pt"

    def __init__(self, place: Place, key: str | None) -> None:
        self.place = place
        held = load_tensors(place)
        if isinstance(held, Tensor):
            refuse_key(place, key, "a single tensor")
        else:
            self.key = choose_key(place, held, key, what="tensor")
        tensor = self._tensor()
        self.shape = tuple(tensor.shape)
        self.rows, self.classes = flat_shape(place, self.shape)
        if tensor.layout is not torch.strided or tensor.dtype not in READABLE:
            raise place.error(
                wanted="a dense tensor of float16, bfloat16, float32, float64 or integers",
                got=f"{tensor.layout}, {tensor.dtype}",
                instead="save x.to_dense().float()",
            )
        if not tensor.is_contiguous():
            raise place.error(
                wanted="a contiguous tensor", got=f"strides {tensor.stride()}", instead="save x.contiguous()"
            )
        self.stored = tensor.dtype
        self.dtype = torch.int64 if self.stored in WIDENED else self.stored

    def read(self, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop`, copied out of the mapping."""
        return self._tensor().view(-1, self.classes)[start:stop].to(self.dtype, copy=True)

    def close(self) -> None:
        """Nothing stays open."""

    def _tensor(self) -> Tensor:
        held = load_tensors(self.place)
        return held if isinstance(held, Tensor) else held[str(self.key)]


def load_tensors(place: Place) -> Tensor | dict[str, Tensor]:
    """Map a file of `torch.save`: its tensor, or those in its dict; no other object is ever built."""
    try:
        held: object = torch.load(place.path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:
        held = None
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise place.truncated(wanted="a file of torch.save, in its zip format", got=reason) from None
    if isinstance(held, Tensor):
        return held
    if isinstance(held, dict):
        return {str(key): value for key, value in cast("Any", held).items() if isinstance(value, Tensor)}
    raise place.error(
        wanted="a tensor or a dict of tensors (nothing else is loaded: weights_only=True)",
        got="other Python objects" if held is None else f"a {type(held).__name__}",
        instead="save torch.save({'logits': x}, path)",
    )


def open_torch(place: Place, key: str | None) -> Store:
    """A tensor in a ``.pt`` file, by itself or in a dict."""
    return TorchStore(place, key)
