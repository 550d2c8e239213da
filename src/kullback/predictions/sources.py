"""Whatever a comparison is given - files, tensors, wrapped tensors - as sources of rows, labels and clusters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from kullback.errors import ArgumentTypeError, ArgumentValueError, FileError, explain
from kullback.inputs import as_tensor
from kullback.io import Kind, RowSource, open_rows, read_clusters, read_labels
from kullback.io.files import Place
from kullback.io.store import Store, flat_shape
from kullback.representations import Counts, Logits, LogProbs, Probs, Representation
from kullback.samples import Samples

__all__ = [
    "CALL",
    "IGNORED",
    "REPRESENTATIONS",
    "Clusters",
    "open_source",
    "require_values",
    "take_clusters",
    "take_labels",
]

CALL = "compare_predictions"
IGNORED = -100
REPRESENTATIONS: dict[Kind, type[Representation]] = {
    "logits": Logits,
    "log-probs": LogProbs,
    "probs": Probs,
    "counts": Counts,
}
KIND_OF: dict[type[Representation], Kind] = {wrapper: kind for kind, wrapper in REPRESENTATIONS.items()}


class TensorStore(Store):
    """A tensor in memory, offered as rows like a file."""

    format = "tensor"

    def __init__(self, tensor: Tensor, name: str) -> None:
        self.shape = tuple(tensor.shape)
        self.place = Place(Path(f"a tensor of shape {self.shape}"), name)
        self.rows, self.classes = flat_shape(self.place, self.shape)
        if tensor.is_complex() or tensor.dtype == torch.bool:
            _refuse_type(name, "real numbers", f"dtype {tensor.dtype}", f"{name}=Counts(x.long())")
        self.dtype = tensor.dtype
        self._tensor = tensor.detach().reshape(self.rows, self.classes)

    def read(self, start: int, stop: int) -> Tensor:
        return self._tensor[start:stop].cpu()

    def close(self) -> None:
        """A tensor needs no closing."""


def open_source(given: object, kind: Kind | None, key: str | None, name: str) -> RowSource:
    """Open a path, or wrap a tensor, as a source of rows; `name` is the argument it was given for."""
    if isinstance(given, RowSource):
        return given
    if kind not in (None, *REPRESENTATIONS):
        wanted = f"one of {', '.join(REPRESENTATIONS)}"
        raise ArgumentValueError(
            explain(CALL, "kind", wanted=wanted, got=repr(kind), instead="kind='logits'")
        )
    if isinstance(given, str | os.PathLike):
        return open_rows(cast("str | os.PathLike[str]", given), kind=kind, key=key, name=name)
    if key is not None:
        raise ArgumentValueError(
            explain(
                CALL, "key", wanted="none for a tensor", got=repr(key), instead=f"{CALL}(p, q) without key"
            )
        )
    if isinstance(given, Representation):
        return RowSource(TensorStore(given.weights(), name), _kind_of(given, kind, name))
    if isinstance(given, Samples):
        _refuse_type(name, "a distribution in each row", "Samples", f"{name}=Counts(histogram of the draws)")
    return RowSource(TensorStore(as_tensor(CALL, name, given), name), kind)


def _kind_of(given: Representation, kind: Kind | None, name: str) -> Kind:
    own = KIND_OF[type(given)]
    if kind not in (None, own):
        raise ArgumentValueError(
            explain(
                CALL,
                "kind",
                wanted=f"{own!r} or none, since {name} is {type(given).__name__}",
                got=repr(kind),
                instead=f"{CALL}(p, q) without kind",
            )
        )
    return own


def _refuse_type(name: str, wanted: str, got: str, instead: str) -> NoReturn:
    raise ArgumentTypeError(explain(CALL, name, wanted=wanted, got=got, instead=instead))


def take_labels(
    given: object, key: str | None, p: RowSource, q: RowSource
) -> tuple[Tensor | None, list[str]]:
    """Return the true class of each row, int64, -100 where there is none; and what to say about it."""
    if given is None:
        return _stored_labels(p, q)
    if isinstance(given, str | os.PathLike):
        path = cast("str | os.PathLike[str]", given)
        return read_labels(path, key=key, rows=p.rows or q.rows, classes=p.classes), []
    labels = as_tensor(CALL, "labels", given).detach().cpu().reshape(-1)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        _refuse_type("labels", "class indices", f"dtype {labels.dtype}", "labels=labels.long()")
    labels = labels.long()
    bad = (labels != IGNORED) & ((labels < 0) | (labels >= p.classes))
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise ArgumentValueError(
            explain(
                CALL,
                "labels",
                wanted=f"classes from 0 to {p.classes - 1}, or {IGNORED} for none",
                got=f"{int(labels[row])} in row {row}",
                instead=f"labels=labels.masked_fill(unknown, {IGNORED})",
            )
        )
    require_values("labels", len(labels), p.rows or q.rows)
    return labels, []


def _stored_labels(p: RowSource, q: RowSource) -> tuple[Tensor | None, list[str]]:
    """The labels that a source brings along, as llama.cpp's files do."""
    held = [source for source in (p, q) if source.labels is not None]
    if not held:
        return None, []
    labels = cast("Tensor", held[0].labels)
    if len(held) == 2 and not torch.equal(labels, cast("Tensor", held[1].labels)):
        raise FileError(
            f"p = {p.path} and q = {q.path}: wanted the same tokens in both; got different ones; "
            "compare files written from the same text with the same tokenizer and n_ctx"
        )
    require_values("labels", len(labels), p.rows or q.rows)
    return labels, [f"The labels are the next tokens that {held[0].path.name} holds."]


class Clusters(NamedTuple):
    """The cluster of each row: numbers from 0, and what they are called."""

    numbers: Tensor
    names: list[str]

    def name_of(self, row: int) -> str:
        """Return what the cluster of a row is called."""
        return self.names[int(self.numbers[row])]


def take_clusters(given: object, key: str | None, rows: int | None) -> Clusters | None:
    """Return the cluster of each row, from a file, a tensor, an array or a list of ids."""
    if given is None:
        return None
    if isinstance(given, str | os.PathLike):
        numbers = read_clusters(cast("str | os.PathLike[str]", given), key=key, rows=rows)
        return Clusters(numbers, [str(number) for number in range(int(numbers.max()) + 1)])
    held = given.detach().cpu().numpy() if isinstance(given, Tensor) else given
    ids = np.asarray(held).reshape(-1)
    if ids.dtype.kind not in "iuU":
        _refuse_type("clusters", "integers or text", f"dtype {ids.dtype}", "clusters=ids.long()")
    require_values("clusters", len(ids), rows)
    names, numbers = np.unique(ids, return_inverse=True)
    return Clusters(torch.from_numpy(numbers.astype("int64")), [str(name) for name in names])


def require_values(argument: str, got: int, rows: int | None, *, more: bool = False) -> None:
    """Refuse a vector that has not one value for each row; `rows` is None where it is not known yet.

    With `more`, further rows may follow.
    """
    if rows is not None and got != rows:
        raise ArgumentValueError(
            explain(
                CALL,
                argument,
                wanted=f"{rows} values{' or more' if more else ''}, one for each row",
                got=f"{got}",
                instead=f"{argument}=x.reshape(-1) of the same positions as p and q",
            )
        )
