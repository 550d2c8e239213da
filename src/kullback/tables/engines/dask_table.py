"""Dask data frames: the workers count their partitions, and counts are added in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kullback.tables.columns.types import Field
from kullback.tables.engines.engine import Caller
from kullback.tables.engines.in_memory import PandasTable, distinct_names
from kullback.tables.engines.parts import Merge, PartsTable, Work


class DaskTable(PartsTable):
    """A Dask DataFrame with partitions of pandas, counted by the active scheduler or cluster."""

    def __init__(self, frame: Any, caller: Caller | None = None) -> None:
        distinct_names(frame.columns, caller)
        self.frame = frame
        self.fields = PandasTable(frame._meta).fields  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        objects = [name for name in self.fields if str(frame.dtypes[name]) == "object"]
        if objects:
            seen = self.reduced(objects, _fields_with_values, _merged_fields)
            # A column without any value is one of categories, like Arrow's null type.
            empty = {name: Field(name, "categorical") for name in objects}
            self.fields |= {n: f if f.column_type or f.reason else empty[n] for n, f in seen.items()}

    def reduced(self, names: Sequence[str], work: Work, merge: Merge, *arguments: object) -> Any:
        from dask.base import compute
        from dask.delayed import delayed

        results = [delayed(_on_partition)(part, names, work, arguments) for part in self.frame.to_delayed()]
        while len(results) > 1:
            pairs = zip(results[::2], results[1::2], strict=False)
            odd = results[-1:] if len(results) % 2 else []
            results = [delayed(merge)(*pair) for pair in pairs] + odd
        return compute(results[0])[0]


def _on_partition(part: Any, names: Sequence[str], work: Work, arguments: Sequence[object]) -> Any:
    return work(PandasTable(part[list(names)]), *arguments)


def _fields_with_values(part: PandasTable) -> dict[str, Field]:
    """Return the fields; a field has no type if a partition has no value of the column."""
    return {
        name: Field(name, None) if part.frame[name].isna().all() else field
        for name, field in part.fields.items()
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
