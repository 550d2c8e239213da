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
    """Return the name of the extra column that holds the unparsed texts of the column `name`."""
    return name + _UNPARSED


def text_of(name: str) -> str:
    """Return the name of the table's column that contains the text of a parsed or an extra column."""
    return name.removesuffix(_UNPARSED)


def parsed_columns(
    arrays: Mapping[str, ArrowArray], names: Sequence[str], ways: Ways
) -> dict[str, ArrowArray]:
    """Return some columns of a batch, with columns of text parsed.

    A text that is not written in the way of its column becomes a missing value. The column that `unparsed_of` names
    holds this text.

    Arguments:
        arrays: the columns of the batch, as Arrow arrays.
        names: the names of the columns to return.
        ways: the format of each column to parse, by the column's name.
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
