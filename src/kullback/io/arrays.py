"""Arrays in binary files of NumPy and PyTorch, which are read one block at a time.

npy, npz and safetensors files store an array as contiguous bytes at some offset. So `BytesReader` serves all three. It
seeks in the file and reads into the block. It does not map the file, because mapped pages would count as memory of the
process.
"""

from __future__ import annotations

import math
import pickle
import sys
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from kullback.common.dtypes import dtype_name
from kullback.common.inputs import unusual
from kullback.io.class_columns import NAMES_OF_CLASSES, first_names
from kullback.io.row_stream import Reader, flat_shape
from kullback.io.source_files import FileReference, choose_key, closed_on_error, refuse_key

# NumPy's dtype codes without byte order. torch has few operations for uint16 and uint32, so these become int64 when
# read.
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
UPCAST = (torch.uint16, torch.uint32)
READABLE = {*NUMPY_DTYPES.values(), torch.bfloat16}
PIECE = 1 << 20
BIG_ENDIAN = sys.byteorder == "big"  # safetensors and llama.cpp write little-endian
READ_ERRORS = (OSError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class ArrayLayout:
    """The byte at which an array begins in a file, and the layout of its elements, as stored.

    `swapped` is whether the byte order of the elements differs from this machine's. `columns_first` is whether a matrix
    is stored in column-major (Fortran) order.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    swapped: bool = False
    columns_first: bool = False

    @property
    def end(self) -> int:
        """The offset of the byte after the array."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


class BytesReader(Reader):
    """A reader of an array whose elements are contiguous in an open file, or in an open member of an archive."""

    def __init__(
        self,
        ref: FileReference,
        file: IO[bytes],
        array: ArrayLayout,
        *,
        format: str,  # noqa: A002 - the attribute's name
        key: str | None = None,
        archive: zipfile.ZipFile | None = None,
    ) -> None:
        self.rows, self.classes = self._size = flat_shape(ref, array.shape)
        self.ref, self.format, self.key, self.shape = ref, format, key, array.shape
        self.stored = array.dtype
        self.dtype = torch.int64 if array.dtype in UPCAST else array.dtype
        self._file, self._array, self._archive = file, array, archive

    def check_size(self, size: int) -> None:
        """Refuse a file of `size` bytes if the header describes a larger array."""
        array = self._array
        if size < array.end:
            wanted = f"{array.end:,} bytes for shape {array.shape} of {dtype_name(array.dtype)}"
            raise self.ref.truncated(wanted=wanted, got=f"{size:,} bytes")

    def read(self, start: int, stop: int) -> Tensor:
        rows, classes = self._size
        dtype = self._array.dtype
        if self._array.columns_first:
            columns = torch.empty(classes, stop - start, dtype=dtype, device="cpu")
            for column in range(classes):
                self._fill(columns[column], column * rows + start)
            block = columns.T.contiguous()
        else:
            block = torch.empty(stop - start, classes, dtype=dtype, device="cpu")
            self._fill(block, start * classes)
        if self._array.swapped:
            block = block.view(torch.uint8).view(*block.shape, -1).flip(-1).view(dtype).squeeze(-1)
        return block.to(self.dtype)

    def _fill(self, block: Tensor, element: int) -> None:
        """Read elements into `block`, beginning with number `element`."""
        view: memoryview[int] = memoryview(cast("Any", block.view(-1).view(torch.uint8).numpy()))
        done = 0
        with self.ref.reading("an array that can be read to its end", *READ_ERRORS):
            self._file.seek(self._array.offset + element * self._array.dtype.itemsize)
            while done < len(view):
                count = cast("Any", self._file).readinto(view[done : done + PIECE])
                if not count:
                    break
                done += count
        if done < len(view):
            wanted = f"{self._array.end:,} bytes"
            raise self.ref.truncated(wanted=wanted, got="the end of the file before that")

    def close(self) -> None:
        self._file.close()
        if self._archive is not None:
            self._archive.close()


def open_npy(ref: FileReference, key: str | None) -> Reader:
    """Open a ``.npy`` file."""
    refuse_key(ref, key, "a single array")
    with closed_on_error(ref.open()) as file:
        layout = _numpy_layout(ref, file)
        reader = BytesReader(ref, file, layout, format="npy")
        size = ref.path.stat().st_size
        reader.check_size(size)
        if size > layout.end:
            raise ref.error(
                wanted=f"one array: {layout.end:,} bytes for shape {layout.shape} of {dtype_name(layout.dtype)}",
                got=f"{size:,} bytes, as if numpy.save was called more than once on an open file",
                instead="save numpy.concatenate(arrays), or each to a file of its own",
            )
    return reader


def open_npz(ref: FileReference, key: str | None) -> Reader:
    """Open one array of a ``.npz`` archive; reading decompresses the array."""
    reason = (RuntimeError, *READ_ERRORS)  # RuntimeError: the archive is encrypted or has another compression
    with (
        ref.reading("a zip archive of arrays", *reason),
        closed_on_error(zipfile.ZipFile(ref.path)) as archive,
    ):
        members = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        names = {name: _texts(archive, name) for name in members if name in NAMES_OF_CLASSES}
        chosen = choose_key(ref, [name for name in members if names.get(name) is None], key)
        with closed_on_error(archive.open(f"{chosen}.npy")) as file:
            array = _numpy_layout(ref, file, columns_too=False)
            reader = BytesReader(ref, file, array, format="npz", key=chosen, archive=archive)
            reader.check_size(archive.getinfo(f"{chosen}.npy").file_size)
    reader.class_names = first_names(map(names.get, NAMES_OF_CLASSES), reader.classes)
    return reader


def _texts(archive: zipfile.ZipFile, name: str) -> list[str] | None:
    """Return the texts of an array in an archive; None if the array is not a list of texts."""
    try:
        with archive.open(f"{name}.npy") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, *READ_ERRORS):
        return None
    if array.ndim != 1 or array.dtype.kind not in "US":
        return None
    return [each.decode(errors="replace") if isinstance(each, bytes) else each for each in array.tolist()]


def _numpy_layout(ref: FileReference, file: IO[bytes], *, columns_too: bool = True) -> ArrayLayout:
    """Read NumPy's header; column-major order is refused for a member of an archive."""
    with ref.reading("a NumPy array with its header", ValueError, *READ_ERRORS):
        version = np.lib.format.read_magic(file)
        # Versions after 2 exist for field names in Unicode, which arrays of plain numbers do not have.
        first = np.lib.format.read_array_header_1_0
        read_header = first if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read_header(file)
    stored = _from_numpy_dtype(ref, dtype)
    if any(isinstance(size, bool) or size < 0 for size in shape):
        raise ref.truncated(wanted="an array with sizes of 0 or more", got=f"shape {shape}")
    if columns_first and not (columns_too and len(shape) == 2):
        raise ref.error(
            wanted="an array in C order (Fortran order is read for a matrix in a .npy file)",
            got=f"Fortran order, shape {shape}",
            instead="write numpy.ascontiguousarray(x)",
        )
    return ArrayLayout(file.tell(), shape, stored, swapped=not dtype.isnative, columns_first=columns_first)


def _from_numpy_dtype(ref: FileReference, dtype: np.dtype[Any]) -> torch.dtype:
    if dtype.str in ("|V2", "<V2", ">V2"):
        raise ref.error(
            wanted="numbers",
            got=f"dtype {dtype.str!r}: two bytes of unknown meaning, such as NumPy writes for bfloat16",
            instead="write x.astype('float32'), or a .safetensors file, which has bfloat16",
        )
    stored = NUMPY_DTYPES.get(dtype.str[1:])
    if stored is None:
        reason = "Python objects, which are never unpickled" if dtype.hasobject else f"dtype {dtype}"
        raise ref.error(
            wanted="float16, float32, float64 or integers up to int64",
            got=reason,
            instead="write x.astype('float32'), or x.astype('int64') for counts",
        )
    return stored


class TorchReader(Reader):
    """A reader of a tensor in a file of `torch.save`. Each block maps the file again, so that the mapped pages are
    released.
    """

    format = "pt"

    def __init__(self, ref: FileReference, key: str | None) -> None:
        self.ref = ref
        self.key, tensor = choose_tensor(ref, key)
        if not is_dense(tensor) or tensor.dtype not in READABLE:
            got, instead = unusual(tensor) or (f"dtype {tensor.dtype}", "float(), or x.long() for counts")
            if tensor.is_meta:
                got = "a tensor on the meta device, which has no values"
                instead = "clone() of the tensor that has them"
            elif tensor.is_complex():
                instead = "real.contiguous() if you mean the real part"
            raise ref.error(
                wanted="a dense tensor of float16, bfloat16, float32, float64 or integers",
                got=got,
                instead=f"save x.{instead}",
            )
        self.shape = tuple(tensor.shape)
        self.rows, self.classes = flat_shape(ref, self.shape)
        if not tensor.is_contiguous():
            raise ref.error(
                wanted="a contiguous tensor", got=f"strides {tensor.stride()}", instead="save x.contiguous()"
            )
        self.stored = tensor.dtype
        self.dtype = torch.int64 if self.stored in UPCAST else self.stored
        contents = _load(ref)
        lists = map(contents.get, NAMES_OF_CLASSES) if isinstance(contents, dict) else ()
        self.class_names = first_names(lists, self.classes)

    def read(self, start: int, stop: int) -> Tensor:
        tensor = choose_tensor(self.ref, self.key)[1]
        return tensor.view(-1, self.classes)[start:stop].to(self.dtype, copy=True)


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor is dense and stores a real value at every place."""
    odd = tensor.is_nested or tensor.is_quantized or tensor.is_meta or tensor.is_complex()
    return tensor.layout is torch.strided and not odd


def choose_tensor(ref: FileReference, key: str | None) -> tuple[str | None, Tensor]:
    """Return the name of the chosen tensor in a file of `torch.save` (None for a single tensor), and the tensor."""
    tensors = load_tensors(ref)
    if isinstance(tensors, Tensor):
        refuse_key(ref, key, "a single tensor")
        return None, tensors.detach()
    key = choose_key(ref, tensors, key, what="tensor")
    return key, tensors[key].detach()


def load_tensors(ref: FileReference) -> Tensor | dict[str, Tensor]:
    """Map a file of `torch.save` and return its tensor, or a dict with its tensors; other objects are not unpickled."""
    contents = _load(ref)
    if isinstance(contents, Tensor):
        return contents
    if isinstance(contents, dict):
        return {str(key): value for key, value in contents.items() if isinstance(value, Tensor)}
    raise ref.error(
        wanted="a tensor or a dict of tensors (other objects are not loaded: weights_only=True)",
        got="other Python objects" if contents is None else f"a {type(contents).__name__}",
        instead="save torch.save({'logits': x}, path)",
    )


def _load(ref: FileReference) -> Any:
    """Map a file of `torch.save` and return its content; None if it has objects other than tensors and plain values."""
    try:
        with warnings.catch_warnings(action="ignore"):  # torch warns about quantized tensors
            return torch.load(ref.path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:
        return None
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        with ref.open() as file:
            if file.read(2) not in (b"", b"PK"):
                raise ref.error(
                    wanted="a file of torch.save, in its zip format",
                    got="another, perhaps the format of torch before 1.6",
                    instead="convert it: torch.save(torch.load(path, weights_only=True), path)",
                ) from None
        reason = str(error).split("\n")[0]
        raise ref.truncated(wanted="a file of torch.save, in its zip format", got=reason) from None
