"""Tables in parts: workers count a part each, as Arrow batches, and the counts of two parts are added."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from kullback.tables.columns.column_profile import combined
from kullback.tables.columns.types import MAX_CATEGORIES, TEXT_VALUES, ColumnType, is_text
from kullback.tables.engines.arrow import characters_of
from kullback.tables.engines.batches import BatchTable, each_once
from kullback.tables.engines.engine import ColumnSpec, CountsByGroup, Groups, Intervals, Table, TableCounts

if TYPE_CHECKING:
    from kullback.tables.columns.bins import Bins

# The number of values present, of their characters, and some different values.
StringFacts = tuple[int, int, set[str]]
# What is called with a part, and what adds the results of two parts.
Work: TypeAlias = Callable[..., Any]
Merge: TypeAlias = Callable[[Any, Any], Any]


class PartsTable(Table):
    """A table in parts that workers read."""

    @abstractmethod
    def reduced(self, names: Sequence[str], work: Work, merge: Merge, *arguments: object) -> Any:
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
        names = each_once((spec.name for spec in specs), weights)
        return self.reduced(names, BatchTable.count, _merged_counts, specs, weights)

    def extremes(self, intervals: Intervals, column_types: Mapping[str, ColumnType]) -> Intervals:
        arguments = dict(intervals), dict(column_types)
        return self.reduced(list(intervals), BatchTable.extremes, _merged_extremes, *arguments)

    def joint_counts(self, bins: Mapping[str, Bins], keys: Groups, weights: str | None) -> CountsByGroup:
        names = each_once(chain(*keys), weights)
        return self.reduced(names, BatchTable.joint_counts, _merged_joint_counts, dict(bins), keys, weights)


def _string_facts(part: BatchTable, names: Sequence[str]) -> dict[str, StringFacts]:
    facts: dict[str, StringFacts] = {name: (0, 0, set()) for name in names}
    for _, batch in part.batches(names):
        for name in names:
            values = batch[name].drop_null()
            some = set(values.unique()[: TEXT_VALUES + 1].to_pylist())
            facts[name] = _merged_string(facts[name], (len(values), characters_of(values), some))
    return facts


def _merged_strings(first: dict[str, StringFacts], second: dict[str, StringFacts]) -> dict[str, StringFacts]:
    return {name: _merged_string(facts, second[name]) for name, facts in first.items()}


def _merged_string(first: StringFacts, second: StringFacts) -> StringFacts:
    some = set(sorted(first[2] | second[2])[: TEXT_VALUES + 1])
    return first[0] + second[0], first[1] + second[1], some


def _decided(spec: ColumnSpec, facts: dict[str, StringFacts]) -> ColumnSpec:
    if spec.column_type != "string":
        return spec
    present, characters, some = facts[spec.name]
    return ColumnSpec(spec.name, "text" if is_text(present, characters, len(some)) else "categorical")


def _merged_counts(first: TableCounts, second: TableCounts) -> TableCounts:
    columns = {name: column.merged(second.columns[name], name) for name, column in first.columns.items()}
    weight, squares = first.weight + second.weight, first.weight_squares + second.weight_squares
    return TableCounts(columns, first.rows + second.rows, weight, squares)


def _merged_extremes(first: Intervals, second: Intervals) -> Intervals:
    shared = {
        name: (min(first[name][0], second[name][0]), max(first[name][1], second[name][1]))
        for name in first.keys() & second.keys()
    }
    return {**first, **second, **shared}


def _merged_joint_counts(first: CountsByGroup, second: CountsByGroup) -> CountsByGroup:
    return {key: combined(counts, second[key]) for key, counts in first.items()}
