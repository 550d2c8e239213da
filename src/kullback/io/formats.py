"""From a path to an open source of rows."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from kullback.io.arrays import open_npy, open_npz, open_safetensors, open_torch
from kullback.io.checks import as_kind
from kullback.io.files import Place, find_format
from kullback.io.llamacpp import LlamaBaseFile
from kullback.io.rows import RowSource
from kullback.io.tables import CsvStore, ParquetStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from kullback.io.store import Store

__all__ = ["open_rows"]

# What reads each format; one more format is one more line here, and its extension or magic in `files`.
STORES: dict[str, Callable[[Place, str | None], Store]] = {
    "npy": open_npy,
    "npz": open_npz,
    "safetensors": open_safetensors,
    "pt": open_torch,
    "parquet": ParquetStore,
    "llama.cpp": LlamaBaseFile,
}


def open_rows(
    path: str | PathLike[str], *, kind: str | None = None, key: str | None = None, name: str = "p"
) -> RowSource:
    """Open a file of per-position class distributions, without reading it yet.

    The format follows from the extension and must agree with the content; a llama.cpp base file is known by
    its content.

    Arguments:
        path: a ``.npy``, ``.npz``, ``.safetensors``, ``.pt``, ``.pth``, ``.parquet`` or ``.csv`` file whose
            last dimension (or whose columns) holds the classes, or a llama.cpp ``--kl-divergence-base`` file.
        kind: what the numbers are: ``"logits"``, ``"log-probs"`` (nats), ``"probs"`` or ``"counts"``.
            Integers are counts and a llama.cpp file knows; anything else is not guessed.
        key: which array, tensor or list column, where the file holds several.
        name: the argument that the path was given for, for error messages.

    Returns:
        A `RowSource`, to be closed by ``with`` or ``close()``.

    Raises:
        FileError: the file is missing, truncated, of another format than its extension says, holds several
            arrays and no `key` chooses, or does not say what its numbers are and neither does `kind`.
        ArgumentValueError: `kind` is none of the four words.
        OptionalDependencyError: the format needs a library that is not installed.

    Example:
        >>> import pathlib, tempfile, numpy, kullback.io
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "p.npz"
        >>> numpy.savez(path, teacher=numpy.zeros((4, 3)), student=numpy.ones((4, 3)))
        >>> with kullback.io.open_rows(path, kind="logits", key="student") as source:
        ...     source.read(3, 4)
        tensor([[1., 1., 1.]], dtype=torch.float64)
    """
    place = Place(Path(path), name)
    wanted = as_kind(kind)
    found = find_format(place)
    # Text does not distinguish whole numbers from others, so only there does reading depend on what is wanted.
    store = CsvStore(place, key, named=kind is not None) if found == "csv" else STORES[found](place, key)
    with ExitStack() as stack:
        stack.callback(store.close)
        source = RowSource(store, wanted)
        stack.pop_all()
    return source
