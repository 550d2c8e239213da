"""Dask data frames: the workers count their partitions with NumPy, and counts are added in pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kullback.tables.columns.column_profile import ColumnProfile, combined
from kullback.tables.columns.types import MAX_CATEGORIES, TEXT_VALUES, ColumnType, Field, is_text
from kullback.tables.engines.arrow import lengths_of
from kullback.tables.engines.engine import Caller, ColumnSpec, JointCounts, Table, TableCounts
from kullback.tables.engines.in_memory import PandasTable, distinct_names

if TYPE_CHECKING:
    from kullback.tables.columns.bins import Bins

__all__ = ["DaskTable"]

# For each column the number of values present, of their characters, and some different values.
Strings = dict[str, tuple[int, int, set[str]]]


class DaskTable(Table):
    """A Dask DataFrame with partitions of pandas, counted by the active scheduler or cluster."""

    def __init__(self, frame: Any, caller: Caller | None = None) -> None:
        distinct_names(frame.columns, caller)
        self.frame = frame
        self.fields = PandasTable(frame._meta).fields  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        objects = [name for name in self.fields if str(frame.dtypes[name]) == "object"]
        if objects:
            found: dict[str, Field] = self._reduced(_partition_fields, _merged_fields, objects)
            # A column without any value is one of categories, like Arrow's null type.
            empty = {name: Field(name, "categorical") for name in objects}
            self.fields |= {n: f if f.column_type or f.reason else empty[n] for n, f in found.items()}

    def _reduced(self, work: Callable[..., Any], merge: Callable[[Any, Any], Any], *given: Any) -> Any:
        """Apply a function to every partition and merge the results in pairs, on the workers."""
        from dask.base import compute
        from dask.delayed import delayed

        results = [delayed(work)(part, *given) for part in self.frame.to_delayed()]
        while len(results) > 1:
            pairs = zip(results[::2], results[1::2], strict=False)
            odd = results[-1:] if len(results) % 2 else []
            results = [delayed(merge)(*pair) for pair in pairs] + odd
        return compute(results[0])[0]

    def count(self, specs: Sequence[ColumnSpec], weights: str | None) -> TableCounts:
        """Count columns; columns of strings are read once before, to distinguish categories from text."""
        strings = [spec.name for spec in specs if spec.column_type == "string"]
        facts: Strings = self._reduced(_string_facts, _merged_strings, strings) if strings else {}
        decided = [_decided(spec, facts) for spec in specs]
        counts: TableCounts = self._reduced(_partition_counts, _merged_counts, decided, weights)
        crowded = [name for name in strings if len(counts.columns[name].categories) > MAX_CATEGORIES]
        if crowded:
            again = [ColumnSpec(name, "text") for name in crowded]
            counts.columns.update(self._reduced(_partition_counts, _merged_counts, again, weights).columns)
        return counts

    def extremes(
        self, intervals: Mapping[str, tuple[float, float]], column_types: Mapping[str, ColumnType]
    ) -> dict[str, tuple[float, float]]:
        """Return the smallest and the largest number that each column has within its closed interval."""
        return self._reduced(_partition_extremes, _merged_extremes, dict(intervals), dict(column_types))

    def joint_counts(
        self, bins: Mapping[str, Bins], keys: Sequence[Sequence[str]], weights: str | None
    ) -> dict[tuple[str, ...], JointCounts]:
        """Return the weight of every combination of bins that occurs, for each key."""
        return self._reduced(
            _partition_joint_counts, _merged_joint_counts, dict(bins), [tuple(key) for key in keys], weights
        )


def _partition_fields(part: Any, names: Sequence[str]) -> dict[str, Field]:
    fields = PandasTable(part[list(names)]).fields
    return {name: _seen(field, part[name]) for name, field in fields.items()}


def _seen(field: Field, column: Any) -> Field:
    """Return the field without its type where a partition has no value of the column."""
    return Field(field.name, None) if column.isna().all() else field


def _merged_fields(first: dict[str, Field], second: dict[str, Field]) -> dict[str, Field]:
    return {name: _merged_field(field, second[name]) for name, field in first.items()}


def _merged_field(first: Field, second: Field) -> Field:
    for one, another in ((first, second), (second, first)):
        if one.column_type is None:
            return one if one.reason else another
    if first.column_type == second.column_type:
        return Field(first.name, first.column_type, integer=first.integer and second.integer)
    return Field(
        first.name, None, reason=f"objects of several types: {first.column_type}, {second.column_type}"
    )


def _string_facts(part: Any, names: Sequence[str]) -> Strings:
    table = PandasTable(part[list(names)])
    facts: Strings = {name: (0, 0, set()) for name in names}
    for _, batch in table.batches(list(names)):
        for name in names:
            values = batch[name].drop_null()
            some = set(values.unique()[: TEXT_VALUES + 1].to_pylist())
            found = len(values), sum(lengths_of(values).to_pylist()), some
            facts[name] = _merged_string(facts[name], found)
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


def _partition_counts(part: Any, specs: Sequence[ColumnSpec], weights: str | None) -> TableCounts:
    return PandasTable(part).count(specs, weights)


def _merged_counts(first: TableCounts, second: TableCounts) -> TableCounts:
    columns: dict[str, ColumnProfile] = {
        name: column.merged(second.columns[name], name) for name, column in first.columns.items()
    }
    weight, squares = first.weight + second.weight, first.weight_squares + second.weight_squares
    return TableCounts(columns, first.rows + second.rows, weight, squares)


def _partition_extremes(
    part: Any, intervals: dict[str, tuple[float, float]], column_types: dict[str, ColumnType]
) -> dict[str, tuple[float, float]]:
    return PandasTable(part).extremes(intervals, column_types)


def _merged_extremes(
    first: dict[str, tuple[float, float]], second: dict[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    shared = {
        name: (min(first[name][0], second[name][0]), max(first[name][1], second[name][1]))
        for name in first.keys() & second.keys()
    }
    return first | second | shared


def _partition_joint_counts(
    part: Any, bins: dict[str, Bins], keys: Sequence[tuple[str, ...]], weights: str | None
) -> dict[tuple[str, ...], JointCounts]:
    return PandasTable(part).joint_counts(bins, keys, weights)


def _merged_joint_counts(
    first: dict[tuple[str, ...], JointCounts], second: dict[tuple[str, ...], JointCounts]
) -> dict[tuple[str, ...], JointCounts]:
    return {key: combined(counts, second[key]) for key, counts in first.items()}
