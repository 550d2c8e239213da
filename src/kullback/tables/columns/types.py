"""The types of columns, from Arrow or narwhals types. The type of strings depends on their values (`text_types`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

ColumnType = Literal["numeric", "datetime", "boolean", "categorical", "text"]
"""The types of a column."""
# The values of a column of strings decide whether the column is categories or text.
FieldType = ColumnType | Literal["string"]
# An array of PyArrow, whose functions have no type annotations.
ArrowArray: TypeAlias = Any

# The types that are counted on the grid: numbers, timestamps and lengths of text.
GRIDDED: frozenset[ColumnType] = frozenset(("numeric", "datetime", "text"))
DECIMAL_DIGITS = 18  # decimal integers with at most this many digits fit into 64 bits


@dataclass(frozen=True)
class Field:
    """A column of a table that is not counted yet.

    `column_type` is None if columns of this type cannot be profiled, for the given reason. `zoned` is True if
    timestamps have a time zone, and None for dates and for all other types.
    """

    name: str
    column_type: FieldType | None
    integer: bool = False
    reason: str = ""
    zoned: bool | None = None


def arrow_field(name: str, arrow_type: Any) -> Field:
    """Return the field of a column with an Arrow type; times of day and durations are numeric, in seconds."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_dictionary(arrow_type):
        inner = arrow_field(name, arrow_type.value_type)
        return Field(name, "categorical") if inner.column_type else inner
    tests: dict[FieldType, tuple[Any, ...]] = {
        "categorical": (is_.is_null,),
        "boolean": (is_.is_boolean,),
        "numeric": (is_.is_integer, is_.is_floating, is_.is_decimal, is_.is_time, is_.is_duration),
        "datetime": (is_.is_timestamp, is_.is_date),
        "string": (is_.is_string, is_.is_large_string, is_.is_string_view),
    }
    for column_type, several in tests.items():
        if any(test(arrow_type) for test in several):
            zoned = arrow_type.tz is not None if is_.is_timestamp(arrow_type) else None
            return Field(name, column_type, integer=is_arrow_integer(arrow_type), zoned=zoned)
    return _unknown(name, arrow_type)


def is_arrow_integer(arrow_type: Any) -> bool:
    """Whether an Arrow type holds integers that fit into 64 bits."""
    import pyarrow as pa

    if pa.types.is_decimal(arrow_type):
        return arrow_type.scale == 0 and arrow_type.precision <= DECIMAL_DIGITS
    return bool(pa.types.is_integer(arrow_type))


def narwhals_field(name: str, dtype: Any) -> Field:
    """Return the field of a column with a narwhals type."""
    import narwhals as nw

    if dtype.is_numeric():
        whole = dtype.is_decimal() and dtype.scale == 0 and dtype.precision <= DECIMAL_DIGITS
        return Field(name, "numeric", integer=bool(dtype.is_integer() or whole))
    if dtype == nw.Datetime:
        return Field(name, "datetime", zoned=dtype.time_zone is not None)
    types: dict[Any, FieldType] = {
        nw.Categorical: "categorical",
        nw.Enum: "categorical",
        nw.Boolean: "boolean",
        nw.String: "string",
        nw.Date: "datetime",
    }
    column_type: FieldType | None = next((types[known] for known in types if dtype == known), None)
    return Field(name, column_type) if column_type else _unknown(name, dtype)


def _unknown(name: str, dtype: object) -> Field:
    return Field(name, None, reason=f"values of type {dtype} are neither numbers, dates nor strings")
