"""Columns of text that are read as the numbers, dates or times of day that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kullback.tables.columns.arrow import call, strings_of
from kullback.tables.columns.types import ArrowArray, Field
from kullback.tables.columns.written_numbers import Written, parse

Ways = Mapping[str, Written]
_UNPARSED = "\0unparsed"


def is_text_field(field: Field) -> bool:
    """Return whether the values of a column are strings or categories, which can be parsed."""
    return field.column_type in ("string", "categorical")


def unparsed_of(name: str) -> str:
    """Return the name of the column with the texts of another one that are not written in its way."""
    return name + _UNPARSED


def text_of(name: str) -> str:
    """Return the column of the table itself that a column is read from."""
    return name.removesuffix(_UNPARSED)


def parsed_columns(
    arrays: Mapping[str, ArrowArray], names: Sequence[str], ways: Ways
) -> dict[str, ArrowArray]:
    """Return columns of a batch, of which some are parsed.

    A text that is not written in the column's way is missing there, and is the value of the column `unparsed_of` it.

    Arguments:
        arrays: the columns of the batch, as Arrow arrays.
        names: the columns to return.
        ways: how columns of text are written.
    """
    import pyarrow as pa

    values = dict(arrays)
    for name, way in ways.items():
        if name not in arrays:
            continue
        texts = strings_of(arrays[name])
        values[name] = parse(texts, way)
        if unparsed_of(name) in names:
            none = pa.scalar(None, texts.type)
            values[unparsed_of(name)] = call("if_else", values[name].is_null(), texts, none)
    return {name: values[name] for name in names}
