"""The engine for Dask data frames: the workers count partitions, and the counts are merged in pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kullback.tables.columns.types import Field
from kullback.tables.engines.data_frames import PandasTable, distinct_names
from kullback.tables.engines.engine import Caller, Table, TableCounter
from kullback.tables.engines.parts import count_part, merge_parts, merged


class DaskTable(Table):
    """A Dask DataFrame with partitions of pandas, counted by the active scheduler or cluster."""

    def __init__(self, frame: Any, caller: Caller | None = None) -> None:
        distinct_names(frame.columns, caller)
        self.frame = frame
        self.fields = PandasTable(frame._meta).fields  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        objects = [name for name in self.fields if str(frame.dtypes[name]) == "object"]
        if objects:
            fields = self._reduced(lambda part: _fields_of(part[objects]), _merged_fields)
            # A column without any value counts as categorical, like a column of Arrow's null type.
            empty = {name: Field(name, "categorical") for name in objects}
            self.fields |= {n: f if f.column_type or f.reason else empty[n] for n, f in fields.items()}

    def count(self, counter: TableCounter) -> TableCounter:
        names = list(counter.names)
        parts = self._reduced(
            lambda part: count_part(PandasTable(part[names]), counter),
            lambda first, second: merge_parts((first, second), counter),
        )
        return merged([parts], counter)

    def _reduced(self, work: Callable[[Any], Any], merge: Callable[[Any, Any], Any]) -> Any:
        """Let the workers apply a function to every partition and merge the results in pairs."""
        from dask.base import compute
        from dask.delayed import delayed

        results = [delayed(work)(part) for part in self.frame.to_delayed()]
        while len(results) > 1:
            pairs = zip(results[::2], results[1::2], strict=False)
            odd = results[-1:] if len(results) % 2 else []
            results = [delayed(merge)(*pair) for pair in pairs] + odd
        return compute(results[0])[0]


def _fields_of(part: Any) -> dict[str, Field]:
    """Return the fields of a partition; a field has no type if the partition has no value of the column."""
    return {
        name: Field(name, None) if part[name].isna().all() else field
        for name, field in PandasTable(part).fields.items()
    }


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
