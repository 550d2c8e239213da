"""The dependence of a table's rows on each other, measured from the order of the first rows and from repeated rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kullback.common.arrays import Floats
from kullback.common.missed_turns import missed_turns
from kullback.common.rounding_errors import without_rounding_errors
from kullback.common.serial_dependence import (
    FEWEST_BLOCKS,
    category_scores,
    number_scores,
    repeated_rows,
    serial_dependence,
)
from kullback.common.turn_spectrum import spectral_turns
from kullback.errors import LONGEST_NAME, printable, safe_repr
from kullback.tables.columns.types import numbers_of, strings_of

if TYPE_CHECKING:
    from kullback.common.plain_values import JsonObject
    from kullback.tables.columns.types import Field
    from kullback.tables.engines.engine import Table


MOST_ROWS = 1 << 15  # the order of at most this many first rows is examined
LARGEST = 1e300


@dataclass(frozen=True)
class RowOrder:
    """The dependence of the examined rows: how many rows carry as much information as one independent row.

    `times` has this number for each column whose order shows dependence. The columns in `unknown` have too few
    independent blocks of rows. `repeated` is 1 unless rows of continuous numbers are repeated.
    """

    rows: int
    times: Mapping[str, float] = field(default_factory=dict[str, float])
    unknown: frozenset[str] = frozenset()
    repeated: float = 1.0

    def time(self, columns: Iterable[str]) -> float:
        """Return the number of rows with the information of one independent row, for some columns together."""
        return max([self.repeated, *(self.times.get(name, 1.0) for name in columns)])

    def merged(self, other: RowOrder) -> RowOrder:
        """Return the dependence in two parts of a table together: for each column, the stronger dependence."""
        names = self.times.keys() | other.times.keys()
        times = {name: max(self.time([name]), other.time([name])) for name in sorted(names)}
        unknown = self.unknown | other.unknown
        return RowOrder(self.rows + other.rows, times, unknown, max(self.repeated, other.repeated))

    def of_columns(self, names: Iterable[str]) -> RowOrder:
        """Return the dependence in some columns only."""
        kept = set(names)
        times = {name: time for name, time in self.times.items() if name in kept}
        return RowOrder(self.rows, times, self.unknown & kept, self.repeated)

    def to_object(self) -> JsonObject:
        """Return the order as an object of JSON."""
        return {
            "rows": self.rows,
            "times": dict(self.times),
            "unknown": sorted(self.unknown),
            "repeated": self.repeated,
        }

    @staticmethod
    def from_object(written: Any) -> RowOrder:
        """Return the dependence from the result of `to_object`; refuse invalid numbers."""
        times = {str(name): float(time) for name, time in written["times"].items()}
        rows, repeated = int(written["rows"]), float(written["repeated"])
        if rows < 0 or not all(1 <= number < math.inf for number in (repeated, *times.values())):
            raise ValueError(f"{printable(safe_repr(written), LONGEST_NAME)} is not an order of rows")
        return RowOrder(rows, times, frozenset(map(str, written["unknown"])), repeated)


def row_order(table: Table, fields: Sequence[Field]) -> RowOrder | None:
    """Return how a table's first rows depend on each other; None if the table's engine does not keep their order."""
    columns = table.first_rows([each.name for each in fields], MOST_ROWS)
    if columns is None:
        return None
    if not columns:
        return RowOrder(0)
    rows = max((len(column) for column in columns.values()), default=0)
    times: dict[str, float] = {}
    unknown: list[str] = []
    numbers: list[Floats] = []
    names: list[str] = []
    free: list[Floats] = []  # the ranks of the numbers in columns without dependence
    examined: dict[str, Floats] = {}  # the scores of all columns without dependence
    for each in fields:
        numeric = each.column_type in ("numeric", "datetime")
        values = _numbers(columns[each.name], each) if numeric else _codes(columns[each.name])
        numbers.append(without_rounding_errors(values))
        scores = number_scores(values[:, None]) if numeric else category_scores(values.astype(np.int64))
        dependence = serial_dependence(scores)
        if dependence is None:
            examined[each.name] = scores
        if dependence is None and numeric:
            ranks = examined[each.name] = scores[:, : scores.shape[1] // 2]
            free.append(ranks)
            names += [each.name] * ranks.shape[1]
        if dependence is None or dependence.kind == "pattern":
            continue
        times[each.name] = dependence.time
        if dependence.is_open:
            times[each.name] = max(dependence.time, rows / FEWEST_BLOCKS)
            unknown.append(each.name)
    missed = {names[column] for column in missed_turns(np.concatenate(free, 1))} if names else set[str]()
    missed |= {name for name, scores in examined.items() if spectral_turns(scores, searches=len(examined))}
    for name in missed:
        times[name] = rows / FEWEST_BLOCKS
        unknown.append(name)
    repeats = repeated_rows(np.stack(numbers, 1)) if numbers else None
    return RowOrder(rows, times, frozenset(unknown), 1.0 if repeats is None else repeats.time)


def _numbers(array: Any, column: Field) -> Floats:
    """Return the numbers of a column; missing values, NaN and -inf are below all finite numbers, in this order."""
    numbers = np.full(len(array), -LARGEST)
    present = array.is_valid().to_numpy(zero_copy_only=False)
    values = numbers_of(array.drop_null(), str(column.column_type))
    numbers[present] = np.nan_to_num(values, nan=-LARGEST / 2, posinf=LARGEST, neginf=-LARGEST / 4)
    return numbers


def _codes(array: Any) -> Floats:
    """Return the index of each value's category; missing values have the index after the last category."""
    encoded = strings_of(array).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    return np.where(np.isnan(codes), len(encoded.dictionary), codes).astype(np.float64)
