"""What an engine offers: the columns of a table, and weights counted on a grid, whoever does the counting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kullback.errors import ArgumentValueError, explain
from kullback.tables.columns.profile import ColumnProfile, Kind

if TYPE_CHECKING:
    from kullback.tables.columns.bins import Bins

__all__ = ["Field", "FieldKind", "Table", "TableCounts", "Task", "bad_weights"]

# A column of strings is categories or text; which of them, its content decides.
FieldKind = Literal["numeric", "datetime", "boolean", "categorical", "text", "string"]


@dataclass(frozen=True)
class Field:
    """A column before it is counted: what its type says it is, or (kind None) why it cannot be profiled."""

    name: str
    kind: FieldKind | None
    integer: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Task:
    """What to count of a column; the kind ``"string"`` asks the engine to tell categories from text."""

    name: str
    kind: FieldKind
    center: float = 0.0
    integer: bool = False


@dataclass
class TableCounts:
    """What one reading of a table gives: the columns asked for, the rows, their weight and its squares."""

    columns: dict[str, ColumnProfile]
    rows: int
    weight: float
    weight_squares: float
    notes: dict[str, str] = field(default_factory=dict[str, str])


Cells = dict[tuple[Any, ...], float]


class Table(ABC):
    """A table in the hands of one engine.

    Attributes:
        fields: its columns by name, in order.
    """

    fields: dict[str, Field]

    @abstractmethod
    def count(self, tasks: Sequence[Task], weights: str | None) -> TableCounts:
        """Read the table once and count what the tasks say."""

    @abstractmethod
    def extremes(
        self, intervals: Mapping[str, tuple[float, float]], kinds: Mapping[str, Kind]
    ) -> dict[str, tuple[float, float]]:
        """Return the smallest and the largest number that a column has within its interval, ends included."""

    @abstractmethod
    def cross(
        self, bins: Mapping[str, Bins], keys: Sequence[Sequence[str]], weights: str | None
    ) -> dict[tuple[str, ...], Cells]:
        """Count the rows of every combination of cells that the columns of a key have together."""


def bad_weights(name: str, got: str) -> ArgumentValueError:
    """Return the error for a column that cannot be weights."""
    return ArgumentValueError(
        explain(
            "profile_table",
            "weights",
            wanted="a column of finite numbers of 0 or more, none missing",
            got=f"{name!r} with {got}",
            instead="weights=None, or another column",
        )
    )
