"""Tables in parts: workers count a part each, as Arrow batches, and the counts of two parts are added."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from kullback.tables.columns.column_profile import combined
from kullback.tables.columns.types import MAX_CATEGORIES, TEXT_VALUES, ColumnType, is_text
from kullback.tables.engines.arrow import characters_of
from kullback.tables.engines.batches import BatchTable, each_once
from kullback.tables.engines.engine import ColumnSpec, JointCounts, Table, TableCounts

if TYPE_CHECKING:
    from kullback.tables.columns.bins import Bins

_Result = TypeVar("_Result")
# For each column the number of values present, of their characters, and some different values.
Strings = dict[str, tuple[int, int, set[str]]]
Extremes = dict[str, tuple[float, float]]
Joint = dict[tuple[str, ...], JointCounts]


class PartsTable(Table):
    """A table in parts that workers read."""

    @abstractmethod
    def reduced(
        self,
        names: Sequence[str],
        work: Callable[..., _Result],
        merge: Callable[[_Result, _Result], _Result],
        *arguments: object,
    ) -> _Result:
        """Apply a function to some columns of every part, on the workers, and merge the results.

        Arguments:
            names: the columns.
            work: called with a part, a `BatchTable` that may be read once, and with `arguments`.
            merge: returns the result of two parts together.
            arguments: what `work` needs besides the part.
        """

    def count(self, specs: Sequence[ColumnSpec], weights: str | None) -> TableCounts:
        """Count columns; columns of strings are read once before, to distinguish categories from text."""
        strings = [spec.name for spec in specs if spec.column_type == "string"]
        facts = self.reduced(strings, _string_facts, _merged_strings, strings) if strings else {}
        counts = self._counted([_decided(spec, facts) for spec in specs], weights)
        crowded = [name for name in strings if len(counts.columns[name].categories) > MAX_CATEGORIES]
        if crowded:
            again = [ColumnSpec(name, "text") for name in crowded]
            counts.columns.update(self._counted(again, weights).columns)
        return counts

    def _counted(self, specs: Sequence[ColumnSpec], weights: str | None) -> TableCounts:
        names = each_once([*(spec.name for spec in specs), *([] if weights is None else [weights])])
        return self.reduced(names, BatchTable.count, _merged_counts, specs, weights)

    def extremes(
        self, intervals: Mapping[str, tuple[float, float]], column_types: Mapping[str, ColumnType]
    ) -> Extremes:
        return self.reduced(
            list(intervals), BatchTable.extremes, _merged_extremes, dict(intervals), dict(column_types)
        )

    def joint_counts(
        self, bins: Mapping[str, Bins], keys: Sequence[Sequence[str]], weights: str | None
    ) -> Joint:
        names = each_once([*(name for key in keys for name in key), *([] if weights is None else [weights])])
        return self.reduced(names, BatchTable.joint_counts, _merged_joint_counts, dict(bins), keys, weights)


def _string_facts(part: BatchTable, names: Sequence[str]) -> Strings:
    facts: Strings = {name: (0, 0, set()) for name in names}
    for _, batch in part.batches(names):
        for name in names:
            values = batch[name].drop_null()
            some = set(values.unique()[: TEXT_VALUES + 1].to_pylist())
            facts[name] = _merged_string(facts[name], (len(values), characters_of(values), some))
    return facts


def _merged_strings(first: Strings, second: Strings) -> Strings:
    return {name: _merged_string(facts, second[name]) for name, facts in first.items()}


def _merged_string(
    first: tuple[int, int, set[str]], second: tuple[int, int, set[str]]
) -> tuple[int, int, set[str]]:
    some = set(sorted(first[2] | second[2])[: TEXT_VALUES + 1])
    return first[0] + second[0], first[1] + second[1], some


def _decided(spec: ColumnSpec, facts: Strings) -> ColumnSpec:
    if spec.column_type != "string":
        return spec
    present, characters, some = facts[spec.name]
    return ColumnSpec(spec.name, "text" if is_text(present, characters, len(some)) else "categorical")


def _merged_counts(first: TableCounts, second: TableCounts) -> TableCounts:
    columns = {name: column.merged(second.columns[name], name) for name, column in first.columns.items()}
    weight, squares = first.weight + second.weight, first.weight_squares + second.weight_squares
    return TableCounts(columns, first.rows + second.rows, weight, squares)


def _merged_extremes(first: Extremes, second: Extremes) -> Extremes:
    shared = {
        name: (min(first[name][0], second[name][0]), max(first[name][1], second[name][1]))
        for name in first.keys() & second.keys()
    }
    return first | second | shared


def _merged_joint_counts(first: Joint, second: Joint) -> Joint:
    return {key: combined(counts, second[key]) for key, counts in first.items()}
