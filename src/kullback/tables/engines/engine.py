"""The interface of an engine: a table's columns and their counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kullback.common.arrays import Floats
from kullback.errors import ArgumentValueError, invalid_value, quoted
from kullback.tables.columns.column_profile import ColumnProfile
from kullback.tables.columns.types import ColumnType, Field, FieldType

if TYPE_CHECKING:
    from kullback.tables.columns.bins import Bins

# The weight of each combination of bins that occurs, for one group of columns and for each of several.
JointCounts = dict[tuple[Any, ...], float]
Groups = Sequence[Sequence[str]]
CountsByGroup = dict[tuple[str, ...], JointCounts]
# An interval, or the smallest and the largest number, of each column.
Intervals = Mapping[str, tuple[float, float]]


class Caller(NamedTuple):
    """The user's call and the argument with the table, for errors."""

    call: str = "profile_table"
    argument: str = "frame"


@dataclass(frozen=True)
class ColumnSpec:
    """How to count a column.

    Attributes:
        name: the column.
        column_type: the type to count it as; for ``"string"``, the engine decides between categories and text.
        center: the center of the grid.
        integer: whether the column's type holds integers only.
        words: whether the words of texts are counted, which a second reading need not do.
    """

    name: str
    column_type: FieldType
    center: float = 0.0
    integer: bool = False
    words: bool = True


@dataclass
class TableCounts:
    """The counts of one reading of a table: columns, rows, the rows' weight and the sum of its squares."""

    columns: dict[str, ColumnProfile]
    rows: int = 0
    weight: float = 0.0
    weight_squares: float = 0.0

    def add(self, rows: int, weights: Floats | None) -> None:
        """Count the rows of a batch."""
        self.rows += rows
        self.weight += rows if weights is None else float(weights.sum())
        self.weight_squares += rows if weights is None else float(np.square(weights).sum())


class Table(ABC):
    """A table that one engine reads.

    Attributes:
        fields: its columns by name, in order.
    """

    fields: dict[str, Field]

    @abstractmethod
    def count(self, specs: Sequence[ColumnSpec], weights: str | None) -> TableCounts:
        """Count columns, in as few readings of the table as possible."""

    @abstractmethod
    def extremes(self, intervals: Intervals, column_types: Mapping[str, ColumnType]) -> Intervals:
        """Return the smallest and the largest number that each column has within its closed interval."""

    def first_rows(self, names: Sequence[str], rows: int) -> Mapping[str, Any] | None:
        """Return the first rows of some columns, in order, as Arrow arrays; None if rows have no order."""
        del names, rows
        return None

    @abstractmethod
    def joint_counts(self, bins: Mapping[str, Bins], keys: Groups, weights: str | None) -> CountsByGroup:
        """Return the weight of every combination of bins that occurs, for each key, a group of columns.

        A column without bins counts by its own values.
        """


def bad_weights(name: str, got: str) -> ArgumentValueError:
    """Return the error for a column that cannot be weights."""
    return invalid_value(
        "",
        "weights",
        wanted="a column of finite numbers of 0 or more, none missing",
        got=f"{got} in {quoted(name)}",
        instead="another column, or correct this one",
    )
