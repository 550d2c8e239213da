"""Files with one value for each row: true classes and cluster ids. Such a file is read as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from kullback.common.constraints import Arguments, Whole
from kullback.common.extra_arguments import by_name
from kullback.common.optional import load
from kullback.common.words import NO_LABEL
from kullback.errors import FileError
from kullback.io.arrays import READ_ERRORS, choose_tensor
from kullback.io.class_columns import places_of_labels
from kullback.io.csv_text import csv_table, header_of, is_whole
from kullback.io.llama_cpp_base import LlamaBaseFile
from kullback.io.parquet import batches_of, open_parquet
from kullback.io.source_files import EXTENSIONS, FileReference, choose_key, find_format, refuse_key

VECTOR_EXTENSIONS = {**EXTENSIONS, ".txt": "txt"}


_ROWS = Whole(least=1, example=1000, optional=True)
_LABELS = Arguments("read_labels", rows=_ROWS, classes=Whole(least=1, example=10, optional=True))
_CLUSTERS = Arguments("read_clusters", rows=_ROWS)


@by_name()
def read_labels(
    path: str | PathLike[str],
    *,
    key: str | None = None,
    rows: int | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    name: str = "labels",
    key_name: str = "key",
) -> Tensor:
    """Read the true class of each row.

    Arguments:
        path: a ``.npy``, ``.npz``, ``.safetensors``, ``.pt``, ``.pth``, ``.parquet`` or ``.csv`` file, or a ``.txt``
            file with one number on each line. The tokens of a llama.cpp base file are the labels.
        key: the name of the array or column, if the file has several; None for the only one.
        rows: the required number of labels; None for any number.
        classes: the number of classes; labels must be smaller. None for no limit.
        class_names: the names of the classes. Labels may then be names. If the names are numbers other than 0, 1, ...,
            integers are names too. None if labels are positions only.
        name: the name of the argument that holds the path, for error messages.
        key_name: the name of the argument that holds the key, for error messages.

    Returns:
        an int64 tensor of shape (rows,). Leading dimensions are flattened, and -100 marks a row without a label.

    Raises:
        FileError: the file cannot be read, has too many or too few values, or has values that are not integers or are
            out of range.
        OptionalDependencyError: the format needs a library that is not installed.

    Example:
        >>> import pathlib, tempfile, kullback.io
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels.txt"
        >>> _ = path.write_text("4\\n0\\n-100\\n")
        >>> kullback.io.read_labels(path)
        tensor([   4,    0, -100])
    """
    rows, classes = _LABELS.check(rows=rows, classes=classes).values()
    ref = FileReference(Path(path), name, key_name)
    wanted = "whole numbers, the index of the true class in each row"
    kinds = "iu" if class_names is None else "iuU"
    values = _read_vector(ref, key, rows, kinds, wanted, "write the class indices as int64")
    if class_names is not None:
        places, unknown = places_of_labels(values, class_names)
        if unknown is not None:
            raise ref.error(
                wanted=f"names of classes, such as {class_names[0]!r}, or {wanted}",
                got=f"{unknown!r}",
                instead=f"write the names of the distributions' columns, or {NO_LABEL} for a row without a label",
            )
        values = values if places is None else places
    labels = torch.from_numpy(values.astype("int64"))
    wrong = (labels != NO_LABEL) & ((labels < 0) | (labels >= (classes or torch.iinfo(torch.int64).max)))
    if bool(wrong.any()):
        where = int(wrong.nonzero()[0])
        upper = f"to {classes - 1}" if classes else "up"
        raise ref.error(
            wanted=f"classes from 0 {upper}, or {NO_LABEL} for a row without a label",
            got=f"{int(labels[where])} in row {where}",
            instead="use the numbering of the distributions' last dimension",
        )
    return labels


@by_name()
def read_clusters(
    path: str | PathLike[str],
    *,
    key: str | None = None,
    rows: int | None = None,
    name: str = "cluster",
    key_name: str = "key",
) -> Tensor:
    """Read the cluster (document, window, speaker ...) of each row.

    Arguments:
        path: a file as for `read_labels`; the ids may be integers or text (``.csv``, ``.txt``, ``.parquet``, ``.npy``,
            ``.npz``).
        key: the name of the array or column, if the file has several; None for the only one.
        rows: the required number of ids; None for any number.
        name: the name of the argument that holds the path, for error messages.
        key_name: the name of the argument that holds the key, for error messages.

    Returns:
        an int64 tensor of shape (rows,), with the clusters numbered 0 ... K-1 in the sorted order of their ids. Text
        ids that differ in any character, such as 7 and 007, are different ids.

    Raises:
        FileError: the file cannot be read, the ids are neither integers nor text, or there are too many or
            too few.
        OptionalDependencyError: the format needs a library that is not installed.

    Example:
        >>> import pathlib, tempfile, kullback.io
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "documents.txt"
        >>> _ = path.write_text("b.txt\\nb.txt\\na.txt\\n")
        >>> kullback.io.read_clusters(path)
        tensor([1, 1, 0])
    """
    rows = _CLUSTERS.check(rows=rows)["rows"]
    ref = FileReference(Path(path), name, key_name)
    wanted = "integers or text, the cluster of each row"
    values = _read_vector(ref, key, rows, "iuU", wanted, "write the ids as int64 or as text", exact=True)
    with ref.decoding("comparable ids"):
        return torch.from_numpy(np.unique(values, return_inverse=True)[1].astype("int64"))


def read_groups(path: Path, key: str | None, rows: int | None) -> np.ndarray[Any, np.dtype[Any]]:
    """Read a value of each row from a file as for `read_clusters`; Booleans are allowed too."""
    wanted = "integers, Booleans or text, the group of each row"
    ref = FileReference(path, "groups", "group_key")
    return _read_vector(ref, key, rows, "iubU", wanted, "write names, or integers", exact=True)


def _read_vector(
    ref: FileReference,
    key: str | None,
    rows: int | None,
    kinds: str,
    wanted: str,
    instead: str,
    *,
    exact: bool = False,
) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the values of a file as a flat array of `rows` values, whose dtype has one of NumPy's `kinds`.

    With `exact`, texts that differ in any character stay different.
    """
    format_ = find_format(ref, VECTOR_EXTENSIONS)
    with ref.decoding(f"a {format_} file"):
        values = VECTOR_READERS[format_](ref, key)
        if isinstance(values, list):
            values = _typed(cast("list[str]", values), exact=exact)
        values = values.reshape(-1)
        if len(values) == 0 or len(values) != (rows or len(values)):
            raise ref.error(
                wanted=f"{rows or 'at least one'} value{'' if rows == 1 else 's'}, one for each row",
                got=f"{len(values)}",
                instead="write one value for every row of the distributions, in their order",
            )
        if values.dtype.kind not in kinds:
            first = next((x for x in values if not (isinstance(x, str) and is_whole(x))), values[0])
            name = type(first).__name__ if values.dtype.kind in "OU" else values.dtype.name
            got = f"{name.removesuffix('_')} such as {first.item() if isinstance(first, np.generic) else first!r}"
            raise ref.error(wanted=wanted, got=got, instead=instead)
    return values


def _numpy_file(ref: FileReference, key: str | None) -> Any:
    with ref.open() as file, ref.reading("a NumPy array of numbers or text", ValueError, *READ_ERRORS):
        try:
            values = np.load(file, allow_pickle=False)
            if isinstance(values, np.ndarray):
                refuse_key(ref, key, "a single array")
                return values
            return values[choose_key(ref, values.files, key)]
        except ValueError as error:
            if isinstance(error, FileError) or "allow_pickle" not in str(error):
                raise
            raise ref.error(
                wanted="a NumPy array of numbers or text",
                got="Python objects, which are never unpickled",
                instead="write x.astype('int64'), or x.astype(str) for ids that are text",
            ) from None


def _safetensors_file(ref: FileReference, key: str | None) -> Any:
    library = load("safetensors", "reading a .safetensors file")
    with (
        ref.reading("a safetensors file", library.SafetensorError),
        library.safe_open(ref.path, "numpy") as file,
    ):
        return file.get_tensor(choose_key(ref, file.keys(), key, what="tensor"))


def _torch_file(ref: FileReference, key: str | None) -> Any:
    _, values = choose_tensor(ref, key)
    # Numbers that are not integers are refused later by their dtype. They become float32, because NumPy lacks bfloat16.
    return (values.float() if values.is_floating_point() or values.is_complex() else values).numpy()


def _parquet_file(ref: FileReference, key: str | None) -> Any:
    with open_parquet(ref) as file:
        chosen = choose_key(ref, file.schema_arrow.names, key, what="column")
        values: list[Any] = []
        for batch in batches_of(ref, file, columns=[chosen]):
            values += batch.column(chosen).to_pylist()
    if None in values:
        raise _missing(ref, "row", values.index(None))
    return np.array(values)


def _csv_file(ref: FileReference, key: str | None) -> Any:
    arrow = load("pyarrow", "reading a .csv file")
    header = header_of(ref)
    chosen = choose_key(ref, header.names, key, what="column")
    with ref.reading("a CSV file", arrow.ArrowException):
        # The column is read as text, because Arrow would convert ids that look like dates, numbers or Booleans.
        types = {chosen: arrow.string()}
        table = csv_table(ref, header, include_columns=[chosen], column_types=types)
    return _all_filled(ref, table.column(chosen).to_pylist(), "row", 0)


def _text_file(ref: FileReference, key: str | None) -> Any:
    refuse_key(ref, key, "one value on each line")
    try:
        lines = ref.path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ref.error(wanted="text in UTF-8", got=str(error), instead="convert the file to UTF-8") from None
    return _all_filled(ref, lines, "line", 1)


def _all_filled(ref: FileReference, texts: list[str], place: str, first: int) -> list[str]:
    """Return texts unchanged. Refuse an empty text with an error that names its row or line, counted from `first`."""
    for number, text in enumerate(texts, first):
        if not text.strip():
            raise _missing(ref, place, number)
    return texts


def _missing(ref: FileReference, place: str, number: int) -> FileError:
    return ref.error(
        wanted=f"a value in every {place}",
        got=f"none in {place} {number}",
        instead=f"fill it, or remove that {place} and its distributions; a row without a label has {NO_LABEL}",
    )


def _typed(texts: list[str], *, exact: bool) -> Any:
    """Return texts as integers if all are integers, otherwise as texts without surrounding blanks.

    With `exact`, an integer is the text that Python writes for it, and blanks stay. So different ids stay different.
    """
    with suppress(OverflowError, ValueError):  # Python reads at most 4300 digits
        if all(is_whole(text) and (not exact or str(int(text)) == text) for text in texts):
            return np.array([int(text) for text in texts], dtype="int64")
    return np.array(texts if exact else [text.strip() for text in texts])


def _llama_file(ref: FileReference, key: str | None) -> Any:
    reader = LlamaBaseFile(ref, key)
    reader.close()
    return reader.layout.labels(reader.tokens).numpy()


VECTOR_READERS: dict[str, Callable[[FileReference, str | None], Any]] = {
    "npy": _numpy_file,
    "npz": _numpy_file,
    "safetensors": _safetensors_file,
    "pt": _torch_file,
    "parquet": _parquet_file,
    "csv": _csv_file,
    "txt": _text_file,
    "llama.cpp": _llama_file,
}
