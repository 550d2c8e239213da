"""The interface of a reader of a file format, which gives the shape, the dtype and blocks of rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from kullback.common.files import file_stamp
from kullback.io.source_files import Closes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from kullback.common.words import RepresentationName
    from kullback.io.source_files import FileReference
    from kullback.io.windows import Windows


@dataclass(frozen=True)
class StoredMass:
    """Statistics of the sums of the stored probabilities in each row, which are 1 up to the file's rounding.

    Attributes:
        rows: the number of rows.
        mean: the mean sum.
        lowest: the smallest sum.
        highest: the largest sum.

    Example:
        >>> from kullback.io.reader import StoredMass
        >>> StoredMass(rows=2, mean=0.9999, lowest=0.9998, highest=1.0)
        StoredMass(rows=2, mean=0.9999, lowest=0.9998, highest=1.0)
    """

    rows: int = 0
    mean: float = 0.0
    lowest: float = float("inf")
    highest: float = -float("inf")

    def joined(self, masses: Tensor) -> StoredMass:
        """Return the statistics after adding the sums of further rows."""
        rows = self.rows + len(masses)
        mean = self.mean + (float(masses.sum()) - len(masses) * self.mean) / rows
        return StoredMass(
            rows, mean, min(self.lowest, float(masses.min())), max(self.highest, float(masses.max()))
        )


class Reader(Closes, ABC):
    """A reader of one file format; `RowSource` adds the representation and checks the rows.

    A reader has the attributes of `RowSource` and `RowStream`, and further ones.

    Attributes:
        ref: the path, and the name of the argument that holds the path.
        stored: the dtype in the file if it may differ from `dtype`; None otherwise.
        representation: the kind of values if the format specifies it; None otherwise.
        stored_mass: the sums of the stored probabilities in the latest pass, if the format rounds them; None otherwise.
        alignment: the remedy that an error suggests if the other file has a different number of rows.
        integer_classes: the classes with a type of whole numbers, if other classes have another type.
        has_classes_only: whether every column is a class, by the format or by the caller's choice.
    """

    ref: FileReference
    format: str
    key: str | None = None
    shape: tuple[int, ...] | None
    rows: int | None
    classes: int
    dtype: torch.dtype
    stored: torch.dtype | None = None
    representation: RepresentationName | None = None
    labels: Tensor | None = None
    stored_mass: StoredMass | None = None
    alignment: str = "compare files written from the same positions"
    class_names: tuple[str, ...] | None = None
    integer_classes: frozenset[int] = frozenset()
    has_classes_only: bool = False
    clusters: Tensor | None = None
    windows: Windows | None = None
    metadata: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def read(self, start: int, stop: int) -> Tensor:
        """Return rows `start` to `stop` as a new tensor. At the end of a file whose `rows` is None, there may be fewer
        rows.
        """

    def stream(self, rows: int, first: int = 0) -> Iterator[Tensor]:
        """Iterate over the rows from row `first` on, in blocks of `rows`; the last block may be shorter."""
        for start in range(first, self.rows or 0, rows):
            yield self.read(start, min(start + rows, self.rows or 0))

    def identity(self) -> object:
        """Return a value that JSON can represent and that changes if the rows change."""
        return file_stamp(self.ref.path)

    def close(self) -> None:
        """Close the file, if the reader keeps the file open."""

    def caveats(self) -> list[str]:
        """Return remarks on the contents that a report should repeat, as sentences."""
        return []


def flat_shape(ref: FileReference, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of rows and of classes of an array whose last dimension holds the classes."""
    if len(shape) < 2:
        raise ref.error(
            wanted="an array of at least two dimensions, (positions, classes)",
            got=f"shape {shape}",
            instead="write one distribution as x[None, :]; label files go to --labels",
        )
    rows = math.prod(shape[:-1])
    if rows == 0 or shape[-1] == 0:
        raise ref.error(
            wanted="at least one position and one class",
            got=f"shape {shape}",
            instead="write the file again with data",
        )
    return rows, shape[-1]
