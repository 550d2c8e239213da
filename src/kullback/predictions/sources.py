"""The arguments of a comparison (paths, tensors, wrapped tensors) as sources of rows, labels and clusters."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from kullback.common.constraints import Arguments
from kullback.common.inputs import as_tensor, is_integer, tensor_bytes, whole_from
from kullback.common.shared_constraints import REPRESENTATION
from kullback.common.words import NO_LABEL, RepresentationName
from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.io import RowSource, RowStream, open_rows, read_clusters, read_labels
from kullback.io.class_columns import chosen_classes, places_of_labels, some_of
from kullback.io.row_sources import checked
from kullback.io.row_stream import Reader, flat_shape
from kullback.io.source_files import FileReference
from kullback.io.vectors import read_groups
from kullback.predictions.groups import Groups
from kullback.predictions.run import BLOCK_BYTES
from kullback.representations import REPRESENTATIONS, Representation
from kullback.samples import Samples

CALL = "compare_predictions"
NAME_OF: dict[type[Representation], RepresentationName] = {
    wrapper: name for name, wrapper in REPRESENTATIONS.items()
}


class TensorReader(Reader):
    """A reader of a tensor in memory."""

    format = "tensor"

    def __init__(self, tensor: Tensor, name: str) -> None:
        self.shape = tuple(tensor.shape)
        self.ref = FileReference(Path(f"a tensor of shape {self.shape}"), name)
        self.rows, self.classes = flat_shape(self.ref, self.shape)
        if tensor.is_complex() or tensor.dtype == torch.bool:
            got, instead = f"dtype {tensor.dtype}", f"{name}=Counts(x.long())"
            raise invalid_type(CALL, name, wanted="real numbers", got=got, instead=instead)
        self.dtype = tensor.dtype
        self._tensor = tensor.detach().reshape(self.rows, self.classes)

    def read(self, start: int, stop: int) -> Tensor:
        return self._tensor[start:stop].cpu()

    def identity(self) -> object:
        digest = hashlib.sha256(str(self.dtype).encode())
        for block in self.blocks(rows=max(1, BLOCK_BYTES // (self.classes * self.dtype.itemsize))):
            digest.update(tensor_bytes(block))
        return digest.hexdigest()


class FrameReader(TensorReader):
    """A reader of a data frame of pandas or Polars, or of a table of PyArrow, whose columns are the classes."""

    format = "frame"

    def __init__(self, frame: Any, columns: Sequence[str] | None, name: str) -> None:
        names = list(frame.column_names if hasattr(frame, "column_names") else frame.columns)
        library = type(frame).__module__.partition(".")[0]
        ref = FileReference(Path(f"a {library} {type(frame).__name__}"), name)
        places = list(range(len(names)))
        if columns is not None:
            places = chosen_classes(columns, [str(each) for each in names], len(names), ref)
        arrays = [_numbers_of(frame, names, at, ref) for at in places]
        if not arrays or not len(arrays[0]):
            got, instead = f"shape {frame.shape}", "pass a frame with data"
            raise ref.error(wanted="at least one row and one column", got=got, instead=instead)
        super().__init__(as_tensor(CALL, name, np.column_stack(arrays)), name)
        self.ref, self.class_names = ref, tuple(str(names[at]).strip() for at in places)
        self.has_classes_only = columns is not None
        self.integer_classes = some_of([array.dtype.kind in "iu" for array in arrays])


def _numbers_of(frame: Any, names: Sequence[Any], at: int, ref: FileReference) -> Any:
    """Return a column of a data frame as an array of numbers."""
    column = frame.iloc[:, at] if hasattr(frame, "iloc") else frame[names[at]]
    array = np.asarray(column)
    if array.dtype.kind == "O" and str(column.dtype)[:1] in "IUF":  # a pandas type that allows missing values
        array = column.to_numpy(dtype="float64", na_value=np.nan)
    if array.dtype.kind not in "iuf":
        raise ref.error(
            wanted="columns of numbers, one for each class",
            got=f"column {str(names[at])!r} of {column.dtype if hasattr(column, 'dtype') else column.type}",
            instead="leave it out, or choose columns=[...]; for tables use compare_tables(p, q)",
        )
    return array


def check_columns(columns: object) -> list[str] | None:
    """Return the names of columns as a list of strings; None if `columns` is None."""
    if columns is None:
        return None
    names = list(columns) if isinstance(columns, Iterable) and not isinstance(columns, str | bytes) else []
    known = all(isinstance(name, str) or whole_from(name) is not None for name in names)
    texts = [str(name) for name in names]
    if not texts or not known or len(set(texts)) < len(texts):
        raise invalid_value(
            CALL,
            "columns",
            wanted="the names of the columns that are classes, each once",
            got=safe_repr(columns),
            instead="columns=['cat', 'dog']",
        )
    return texts


def is_frame(x: object) -> bool:
    """Return whether an object is a data frame of pandas or Polars, or a table of PyArrow, in memory."""
    library, name = type(x).__module__.partition(".")[0], type(x).__name__
    return (library, name) in {("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table")}


def require_same_rows(p: object, q: object) -> None:
    """Refuse two pandas data frames with different indices, because their rows are not the same positions."""
    indices = [cast("Any", frame).index for frame in (p, q) if is_frame(frame) and hasattr(frame, "iloc")]
    if len(indices) == 2 and not indices[0].equals(indices[1]):
        raise invalid_value(
            CALL,
            "p, q",
            wanted="data frames with the same index: the same rows in the same order",
            got="frames with different indices",
            instead="q.loc[p.index] to match the rows, or frame.reset_index(drop=True) for rows in the same order",
        )


def _refuse_other_objects(x: object, name: str) -> None:
    """Refuse tables, and draws from a distribution (`Samples`)."""
    if hasattr(x, "columns") and not isinstance(x, Tensor):
        got = f"a {type(x).__name__}, which may be a table"
        instead = (
            f"compare_tables(p, q) to compare tables by column, {CALL}(p, q, representation='probs') to compare rows "
            f"of a frame in memory, or {name}=Probs(frame.to_numpy())"
        )
        raise invalid_type(CALL, name, wanted="a tensor or an array", got=got, instead=instead)
    if isinstance(x, Samples):
        instead = f"{name}=Counts(histogram of the draws)"
        raise invalid_type(CALL, name, wanted="a distribution in each row", got="Samples", instead=instead)


_ARGUMENTS = Arguments(CALL, representation=REPRESENTATION)


def open_source(
    side: object,
    representation: RepresentationName | None,
    key: str | None,
    name: str,
    columns: Sequence[str] | None = None,
) -> RowSource:
    """Open a path, or wrap a tensor or data frame, as a source of rows; `name` is the name of the argument."""
    if isinstance(side, RowStream):
        if columns is not None:
            wanted, instead = "none for an open source", "open_rows(path, columns=...)"
            raise invalid_value(CALL, "columns", wanted=wanted, got=safe_repr(columns), instead=instead)
        return checked(side, name)
    _ARGUMENTS.check(representation=representation)
    if isinstance(side, str | os.PathLike):
        path = cast("str | os.PathLike[str]", side)
        return open_rows(path, representation=representation, key=key, columns=columns, name=name)
    if key is not None:
        instead = f"{CALL}(p, q) without key"
        raise invalid_value(CALL, "key", wanted="none for a tensor", got=safe_repr(key), instead=instead)
    if is_frame(side) and representation is not None:
        return RowSource(FrameReader(side, columns, name), representation)
    _refuse_other_objects(side, name)
    if isinstance(side, Representation):
        own = NAME_OF[type(side)]
        if representation not in (None, own):
            raise invalid_value(
                CALL,
                "representation",
                wanted=f"{own!r} or none, since {name} is {type(side).__name__}",
                got=safe_repr(representation),
                instead=f"{CALL}(p, q) without representation",
            )
        return RowSource(TensorReader(side.weights(), name), own, columns)
    return RowSource(TensorReader(as_tensor(CALL, name, side), name), representation, columns)


def take_labels(
    values: object, key: str | None, p: RowSource, q: RowSource
) -> tuple[Tensor | None, list[str]]:
    """Return the true class of each row (int64; -100 for none), or None without labels; and notes for the report."""
    if isinstance(values, str | os.PathLike):
        path = cast("str | os.PathLike[str]", values)
        rows, names = p.rows or q.rows, p.class_names
        labels = read_labels(
            path, key=key, rows=rows, classes=p.classes, class_names=names, key_name="labels_key"
        )
        return labels, []
    _refuse_key("labels", key, values)
    if values is None:
        return _stored_labels(p, q)
    if p.class_names is not None:
        values = _places_of_names(values, p.class_names)
    labels = as_tensor(CALL, "labels", values).detach().cpu().reshape(-1)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        got = f"dtype {labels.dtype}"
        raise invalid_type(CALL, "labels", wanted="class indices", got=got, instead="labels=labels.long()")
    labels = labels.long()
    bad = (labels != NO_LABEL) & ((labels < 0) | (labels >= p.classes))
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise invalid_value(
            CALL,
            "labels",
            wanted=f"classes from 0 to {p.classes - 1}, or {NO_LABEL} for none",
            got=f"{int(labels[row])} in row {row}",
            instead=f"labels=labels.masked_fill(unknown, {NO_LABEL})",
        )
    require_values("labels", len(labels), p.rows or q.rows)
    return labels, []


def _places_of_names(values: Any, names: tuple[str, ...]) -> Any:
    """Return the positions of labels that are names of classes; other labels are returned unchanged."""
    is_whole = isinstance(values, Tensor) and is_integer(values)
    if isinstance(values, Tensor) and not is_whole:
        return values
    labels = cast("Tensor", values).cpu().numpy() if is_whole else np.asarray(values)
    if labels.dtype.kind not in "OUiu" or not labels.ndim:
        return values
    places, unknown = places_of_labels(labels.reshape(-1), names)
    if unknown is not None:
        raise invalid_value(
            CALL,
            "labels",
            wanted=f"names of classes, such as {names[0]!r}, or {NO_LABEL} for none",
            got=safe_repr(unknown),
            instead="labels=positions of the true classes, as integers",
        )
    return values if places is None else places


def _stored_labels(p: RowSource, q: RowSource) -> tuple[Tensor | None, list[str]]:
    """Return the labels that a source stores, such as a llama.cpp base file, and a note about their origin."""
    labeled = [source for source in (p, q) if source.labels is not None]
    if not labeled:
        return None, []
    labels = cast("Tensor", labeled[0].labels)
    if len(labeled) == 2 and not torch.equal(labels, cast("Tensor", labeled[1].labels)):
        raise p.ref.differs(
            q.ref,
            wanted="the same tokens in both",
            got="different ones",
            instead="compare files written from the same text with the same tokenizer and n_ctx",
        )
    require_values("labels", len(labels), p.rows or q.rows)
    return labels, [f"The labels are the next tokens that {labeled[0].path.name} holds."]


class Clusters(NamedTuple):
    """The cluster of each row, as numbers from 0, and the names of the clusters.

    `units` is the noun for the clusters, such as "windows". If `in_order`, neighboring clusters may be dependent.
    """

    numbers: Tensor
    names: list[str]
    units: str = "clusters"
    in_order: bool = False

    def at(self, rows: Tensor | slice) -> Clusters:
        """Return the clusters of some rows, without the clusters of other rows alone."""
        present, numbers = self.numbers[rows].unique(return_inverse=True)
        return self._replace(numbers=numbers, names=[self.names[number] for number in present.tolist()])


def take_clusters(
    cluster: object, key: str | None, rows: int | None, stored: Tensor | None = None
) -> Clusters | None:
    """Return the cluster of each row, from a file, a tensor or ids, by default the clusters that a source stores."""
    if isinstance(cluster, str | os.PathLike):
        path = cast("str | os.PathLike[str]", cluster)
        numbers = read_clusters(path, key=key, rows=rows, key_name="cluster_key")
        return Clusters(numbers, [str(number) for number in range(int(numbers.max()) + 1)])
    _refuse_key("cluster", key, cluster)
    cluster = stored if cluster is None else cluster
    if cluster is None:
        return None
    ids = _ids("cluster", cluster, rows, "iuU", wanted="integers or text", instead="cluster=ids.long()")
    names, numbers = np.unique(ids, return_inverse=True)
    return Clusters(torch.from_numpy(numbers.astype("int64")), [str(name) for name in names])


def take_groups(groups: object, key: str | None, rows: int | None, p: RowSource) -> Groups | None:
    """Return the group of each row, from a file, a column of the file of P, a tensor, an array or a list of names."""
    if isinstance(groups, str | os.PathLike):
        path = Path(cast("str | os.PathLike[str]", groups))
        if key is None and not path.exists() and p.path.suffix.lower() in (".parquet", ".csv"):
            path, key = p.path, str(groups)
        return Groups.of(CALL, "groups", read_groups(path, key, rows))
    _refuse_key("groups", key, groups, "group_key")
    if groups is None:
        return None
    wanted, instead = "integers, Booleans or text, without missing values", "groups=['code', 'prose', ...]"
    return Groups.of(CALL, "groups", _ids("groups", groups, rows, "iubU", wanted=wanted, instead=instead))


def _ids(
    argument: str, values: Any, rows: int | None, kinds: str, *, wanted: str, instead: str
) -> np.ndarray[Any, np.dtype[Any]]:
    """Return an id for each row; `kinds` are the accepted kinds of NumPy's dtypes."""
    array = np.asarray(values.detach().cpu().numpy() if isinstance(values, Tensor) else values).reshape(-1)
    if array.dtype.kind in "OT" and all(isinstance(each, str) for each in array):  # a column of text
        array = array.astype(str)
    if array.dtype.kind not in kinds:
        raise invalid_type(CALL, argument, wanted=wanted, got=f"dtype {array.dtype}", instead=instead)
    require_values(argument, len(array), rows)
    return array


def _refuse_key(argument: str, key: str | None, value: object, key_name: str = "") -> None:
    """Refuse the name of an array in a file if there is no file."""
    key_name = key_name or f"{argument}_key"
    if key is not None:
        raise invalid_value(
            CALL,
            key_name,
            wanted=f"none without {argument}="
            if value is None
            else f"none for {argument} that are not a file",
            got=safe_repr(key),
            instead=f"{CALL}(p, q, {argument}=path, {key_name}=...), or the call without {key_name}",
        )


def require_values(argument: str, got: int, rows: int | None, *, more: bool = False) -> None:
    """Refuse a vector of `got` values whose length is not the number of rows; with `more`, further rows may follow."""
    if rows is not None and got != rows:
        raise invalid_value(
            CALL,
            argument,
            wanted=f"{rows} values{' or more' if more else ''}, one for each row",
            got=f"{got}",
            instead=f"{argument}=x.reshape(-1) of the same positions as p and q",
        )
