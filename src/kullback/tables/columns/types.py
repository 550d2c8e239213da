"""Types of columns: what an Arrow or a narwhals type says, and when strings are text rather than categories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["MAX_CATEGORIES", "ColumnType", "Field", "FieldType", "arrow_field", "is_text", "narwhals_field"]

ColumnType = Literal["numeric", "datetime", "boolean", "categorical", "text"]
# A column of strings is categories or text; its values decide.
FieldType = ColumnType | Literal["string"]

MAX_CATEGORIES = 2_000_000
TEXT_LENGTH = 32
TEXT_VALUES = 256


@dataclass(frozen=True)
class Field:
    """A column of a table that is not counted yet.

    Attributes:
        name: the column.
        column_type: its type; None where such a column cannot be profiled.
        integer: whether the type holds integers only.
        reason: why the column cannot be profiled.
    """

    name: str
    column_type: FieldType | None
    integer: bool = False
    reason: str = ""


def is_text(rows: int, characters: int, distinct: int) -> bool:
    """Tell text from categories.

    Text is 32 characters long on average with more than 256 different values, or has more than two million of them.

    Arguments:
        rows: how many values are present.
        characters: how many characters they have together.
        distinct: how many different values there are.
    """
    return distinct > MAX_CATEGORIES or (distinct > TEXT_VALUES and characters >= TEXT_LENGTH * rows)


def arrow_field(name: str, arrow_type: Any) -> Field:
    """Return the field of a column with an Arrow type; times of day and durations are numbers of seconds."""
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
            integer = is_.is_integer(arrow_type) or (is_.is_decimal(arrow_type) and arrow_type.scale <= 0)
            return Field(name, column_type, integer=bool(integer))
    return _unknown(name, arrow_type)


def narwhals_field(name: str, dtype: Any) -> Field:
    """Return the field of a column with a narwhals type."""
    import narwhals as nw

    if dtype in {nw.Categorical, nw.Enum} or isinstance(dtype, nw.Enum):
        return Field(name, "categorical")
    if dtype == nw.Boolean:
        return Field(name, "boolean")
    if dtype == nw.String:
        return Field(name, "string")
    if dtype in {nw.Date, nw.Datetime} or isinstance(dtype, nw.Datetime):
        return Field(name, "datetime")
    if dtype.is_numeric():
        integer = dtype.is_integer() or (dtype.is_decimal() and dtype.scale == 0)
        return Field(name, "numeric", integer=bool(integer))
    return _unknown(name, dtype)


def _unknown(name: str, dtype: object) -> Field:
    return Field(name, None, reason=f"values of type {dtype} are neither numbers, dates nor strings")
