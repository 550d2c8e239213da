"""The counter of a table, for columns and for combinations of columns' bins; counters of parts can be merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kullback.tables.columns.arrow import weights_of
from kullback.tables.engines.column_counters import ColumnCounter, ProfileCounter
from kullback.tables.engines.parsed_columns import Ways, parsed_columns, text_of

if TYPE_CHECKING:
    from kullback.common.arrays import Floats
    from kullback.tables.columns.column_profile import ColumnProfile
    from kullback.tables.engines.joint_counter import JointCounter


class Batch(NamedTuple):
    """Some rows of a table.

    Attributes:
        rows: the number of rows in the batch.
        columns: the requested columns, as Arrow arrays.
    """

    rows: int
    columns: Mapping[str, Any]


class TableCounter:
    """The counts of a table.

    Attributes:
        columns: the counter of each column.
        joint: the counter of combinations of bins; None if no combinations are counted.
        weights: the column of the rows' weights; None if rows have no weights.
        ways: the way of writing of each column of text that is read as numbers or dates, by the column's name.
        rows: the number of rows.
        weight: the sum of the rows' weights.
        weight_squares: the sum of the squares of the rows' weights.
    """

    def __init__(
        self,
        columns: Mapping[str, ColumnCounter] | None = None,
        joint: JointCounter | None = None,
        *,
        weights: str | None = None,
    ) -> None:
        self.columns = dict(columns or {})
        self.joint, self.weights = joint, weights
        self.ways: Ways = {}
        self.rows, self.weight, self.weight_squares = 0, 0.0, 0.0

    @property
    def names(self) -> list[str]:
        """The names of the table's columns that the counter needs."""
        weights = () if self.weights is None else (self.weights,)
        return list(dict.fromkeys([*map(text_of, self._counted), *weights]))

    @property
    def _counted(self) -> list[str]:
        """The names of the counted columns, including columns of unparsed texts."""
        return [*self.columns, *(() if self.joint is None else self.joint.names)]

    def add(self, batch: Batch) -> None:
        """Count a batch."""
        for task in self.tasks(batch, 1):
            task()

    def tasks(self, batch: Batch, number: int) -> list[Callable[[], None]]:
        """Count the columns that need batches in order; return tasks that count the other columns in parallel.

        Arguments:
            batch: some rows of the table.
            number: the largest number of tasks to return.
        """
        weights = None if self.weights is None else weights_of(self.weights, batch.columns[self.weights])
        self.rows += batch.rows
        self.weight += batch.rows if weights is None else float(weights.sum())
        self.weight_squares += batch.rows if weights is None else float(np.square(weights).sum())
        arrays = batch.columns
        if self.ways:
            arrays = parsed_columns(arrays, self._counted, self.ways)
        if self.joint is not None:
            self.joint.add(arrays, weights)
        _add(
            [name for name, column in self.columns.items() if column.in_order], self.columns, arrays, weights
        )
        free = [name for name, column in self.columns.items() if not column.in_order]
        shares = [free[start::number] for start in range(min(number, len(free)))]
        return [partial(_add, share, self.columns, arrays, weights) for share in shares]

    def merge(self, other: TableCounter) -> None:
        """Add the counts of another part of the table."""
        self.rows += other.rows
        self.weight += other.weight
        self.weight_squares += other.weight_squares
        for name, column in self.columns.items():
            column.merge(other.columns[name])
        if self.joint is not None and other.joint is not None:
            self.joint.merge(other.joint)

    def profiles(self) -> dict[str, ColumnProfile]:
        """Return the profile of each column whose counter gives one."""
        counters = self.columns.items()
        return {name: column.profile() for name, column in counters if isinstance(column, ProfileCounter)}


def _add(
    names: Sequence[str],
    columns: Mapping[str, ColumnCounter],
    arrays: Mapping[str, Any],
    weights: Floats | None,
) -> None:
    for name in names:
        columns[name].add(arrays[name], weights)
