"""Tables of which columns of text are read as the numbers, dates or times of day that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from kullback.tables.columns.column_profile import combined
from kullback.tables.columns.types import Field
from kullback.tables.columns.ways_of_writing import Evidence, evidence_of
from kullback.tables.columns.written_numbers import Written, parse
from kullback.tables.engines.arrow import strings_of, weights_of
from kullback.tables.engines.batches import Batches, BatchTable, each_once
from kullback.tables.engines.engine import Table
from kullback.tables.engines.parts import Merge, PartsTable, Work

Ways = Mapping[str, Written]
_UNPARSED = "\0unparsed"


def is_text_field(field: Field) -> bool:
    """Return whether the values of a column are strings or categories, which can be parsed."""
    return field.column_type in ("string", "categorical")


def unparsed_of(name: str) -> str:
    """Return the name of the column with the texts of another one that are not written in its way."""
    return name + _UNPARSED


def parsed(table: Table, ways: Ways) -> Table:
    """Return a table in which columns of text have the values that are written in them.

    A text that is not written in the column's way is missing there, and is the value of the column `unparsed_of` it.

    Arguments:
        table: the table.
        ways: how each of the columns is written.
    """
    if not ways:
        return table
    return _ParsedParts(table, ways) if isinstance(table, PartsTable) else _ParsedBatches(table, ways)


def evidence_in(table: Table, names: Sequence[str], weights: str | None) -> Mapping[str, Evidence]:
    """Return the evidence on how columns of text are written, from one reading of the table."""
    if isinstance(table, PartsTable):
        return table.reduced(each_once(names, weights), _evidence, _merged_evidence, names, weights)
    return _evidence(cast("BatchTable", table), names, weights)


class _ParsedBatches(BatchTable):
    """A table of batches, whose columns are parsed as they are read."""

    def __init__(self, table: Any, ways: Ways) -> None:
        self.table, self.ways = table, ways
        self.fields = _fields(table, ways)

    def batches(self, names: Sequence[str], first: int | None = None) -> Batches:
        for rows, batch in self.table.batches(_texts(names), first):
            yield rows, _values(batch, names, self.ways)

    def first_rows(self, names: Sequence[str], rows: int) -> Mapping[str, Any] | None:
        columns = self.table.first_rows(_texts(names), rows)
        return _values(columns, names, self.ways) if columns else columns


class _ParsedParts(PartsTable):
    """A table in parts, whose columns are parsed by the workers."""

    def __init__(self, table: PartsTable, ways: Ways) -> None:
        self.table, self.ways = table, ways
        self.fields = _fields(table, ways)

    def reduced(self, names: Sequence[str], work: Work, merge: Merge, *arguments: object) -> Any:
        plain = {name: tuple(way) for name, way in self.ways.items()}
        return self.table.reduced(_texts(names), _on_parsed, merge, plain, work, arguments)


def _on_parsed(
    part: BatchTable, ways: Mapping[str, tuple[Any, ...]], work: Work, arguments: Sequence[object]
) -> Any:
    there = {name: Written(*way) for name, way in ways.items() if name in part.fields}
    return work(_ParsedBatches(part, there), *arguments)


def _fields(table: Table, ways: Ways) -> dict[str, Field]:
    values = {name: way.field(name) for name, way in ways.items()}
    unparsed = {unparsed_of(name): Field(unparsed_of(name), "string") for name in ways}
    return table.fields | values | unparsed


def _texts(names: Sequence[str]) -> list[str]:
    """Return the columns of the table itself that some columns need."""
    return each_once([name.removesuffix(_UNPARSED) for name in names], None)


def _values(batch: Mapping[str, Any], names: Sequence[str], ways: Ways) -> dict[str, Any]:
    """Return the columns of a batch, of which some are parsed."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = dict(batch)
    for name, way in ways.items():
        if name not in batch:
            continue
        texts = strings_of(batch[name])
        values[name] = parse(texts, way)
        if unparsed_of(name) in names:
            none = pa.scalar(None, texts.type)
            values[unparsed_of(name)] = pc.call_function("if_else", [values[name].is_null(), texts, none])
    return {name: values[name] for name in names}


def _evidence(part: BatchTable, names: Sequence[str], weights: str | None) -> dict[str, Evidence]:
    total: dict[str, Evidence] = {name: {} for name in names}
    for rows, batch in part.batches(each_once(names, weights)):
        of_rows = np.ones(rows) if weights is None else weights_of(weights, batch[weights])
        for name in names:
            texts = strings_of(batch[name])
            encoded = texts.drop_null().dictionary_encode()
            present = texts.is_valid().to_numpy(zero_copy_only=False)
            sums = np.bincount(encoded.indices.to_numpy(), of_rows[present], len(encoded.dictionary)).astype(
                np.float64
            )
            total[name] = combined(total[name], evidence_of(encoded.dictionary, sums))
    return total


def _merged_evidence(first: Mapping[str, Evidence], second: Mapping[str, Evidence]) -> dict[str, Evidence]:
    return {name: combined(evidence, second[name]) for name, evidence in first.items()}
