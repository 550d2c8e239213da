"""Opening a file of predictions by its format."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from kullback.io.arrays import open_npy, open_npz, open_safetensors, open_torch
from kullback.io.csv_text import CsvReader
from kullback.io.llama_cpp_base import LlamaBaseFile
from kullback.io.parquet import ParquetReader
from kullback.io.row_checks import check_representation
from kullback.io.row_sources import RowSource
from kullback.io.source_files import FileReference, find_format

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from kullback.io.reader import Reader

# The reader of each format; a new format also needs its extension or first bytes in `files`.
READERS: dict[str, Callable[[FileReference, str | None], Reader]] = {
    "npy": open_npy,
    "npz": open_npz,
    "safetensors": open_safetensors,
    "pt": open_torch,
    "parquet": ParquetReader,
    "llama.cpp": LlamaBaseFile,
}


def open_rows(
    path: str | PathLike[str], *, representation: str | None = None, key: str | None = None, name: str = "p"
) -> RowSource:
    """Open a file of per-position class distributions without loading it.

    The format follows from the extension, which the content must match; a llama.cpp base file is recognized by its
    content.

    Arguments:
        path: a ``.npy``, ``.npz``, ``.safetensors``, ``.pt``, ``.pth``, ``.parquet`` or ``.csv`` file whose
            last dimension (or whose columns) holds the classes, or a llama.cpp ``--kl-divergence-base`` file.
        representation: the kind of numbers: ``"logits"``, ``"log-probs"`` (nats), ``"probs"`` or ``"counts"``.
            Integers are counts, and a llama.cpp file holds logits; anything else must be named.
        key: which array, tensor or list column, where the file holds several.
        name: the argument that the path was passed as, for error messages.

    Returns:
        A `RowSource`, to be closed by ``with`` or ``close()``.

    Raises:
        FileError: the file is missing, truncated, of another format than its extension says, holds several
            arrays and no `key` chooses, or does not say what its numbers are and neither does `representation`.
        ArgumentValueError: `representation` is none of the four words.
        OptionalDependencyError: the format needs a library that is not installed.

    Example:
        >>> import pathlib, tempfile, numpy, kullback.io
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "p.npz"
        >>> numpy.savez(path, teacher=numpy.zeros((4, 3)), student=numpy.ones((4, 3)))
        >>> with kullback.io.open_rows(path, representation="logits", key="student") as source:
        ...     source.read(3, 4)
        tensor([[1., 1., 1.]], dtype=torch.float64)
    """
    ref = FileReference(Path(path), name)
    wanted = check_representation(representation)
    found = find_format(ref)
    with ExitStack() as stack:
        stack.enter_context(ref.decoding(f"a {found} file"))
        # Text does not distinguish integers from floats: whole numbers are read as counts only if no other
        # representation is asked for.
        reader = (
            CsvReader(ref, key, named=representation is not None)
            if found == "csv"
            else READERS[found](ref, key)
        )
        stack.callback(reader.close)
        source = RowSource(reader, wanted)
        stack.pop_all()
    return source
