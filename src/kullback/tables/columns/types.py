"""What a column's type says it is, for Arrow's types and for narwhals', and when strings are text.

Times of day and durations are numbers of seconds. Strings are text when they are 32 characters long on average and
more than 256 of them differ, or when more than two million differ: identifiers and labels stay categories.
"""

from __future__ import annotations

from typing import Any

from kullback.tables.engines.base import Field, FieldKind

__all__ = ["MAX_CATEGORIES", "arrow_field", "is_text", "narwhals_field"]

MAX_CATEGORIES = 2_000_000
TEXT_LENGTH = 32
TEXT_VALUES = 256


def is_text(rows: int, characters: int, distinct: int) -> bool:
    """Tell text from categories: by the number of values present, their characters and how many differ."""
    return distinct > MAX_CATEGORIES or (distinct > TEXT_VALUES and characters >= TEXT_LENGTH * rows)


def arrow_field(name: str, kind: Any) -> Field:
    """Return what an Arrow type says of a column."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_dictionary(kind):
        inner = arrow_field(name, kind.value_type)
        return Field(name, "categorical") if inner.kind else inner
    if is_.is_null(kind):
        return Field(name, "categorical")
    found = _first(
        kind,
        {
            "boolean": (is_.is_boolean,),
            "numeric": (
                is_.is_integer,
                is_.is_floating,
                is_.is_decimal,
                is_.is_time,
                is_.is_duration,
            ),
            "datetime": (is_.is_timestamp, is_.is_date),
            "string": (is_.is_string, is_.is_large_string, is_.is_string_view),
        },
    )
    if found is None:
        return Field(name, None, reason=f"values of type {kind} are neither numbers, dates nor strings")
    whole = is_.is_integer(kind) or (is_.is_decimal(kind) and kind.scale <= 0)
    return Field(name, found, integer=bool(whole))


def narwhals_field(name: str, kind: Any) -> Field:
    """Return what a narwhals type says of a column."""
    import narwhals as nw

    if kind in {nw.Categorical, nw.Enum} or isinstance(kind, nw.Enum):
        return Field(name, "categorical")
    if kind == nw.Boolean:
        return Field(name, "boolean")
    if kind == nw.String:
        return Field(name, "string")
    if kind in {nw.Date, nw.Datetime} or isinstance(kind, nw.Datetime):
        return Field(name, "datetime")
    if kind.is_numeric():
        whole = kind.is_integer() or (kind.is_decimal() and kind.scale == 0)
        return Field(name, "numeric", integer=bool(whole))
    return Field(name, None, reason=f"values of type {kind} are neither numbers, dates nor strings")


def _first(kind: Any, tests: dict[FieldKind, tuple[Any, ...]]) -> FieldKind | None:
    return next((name for name, several in tests.items() if any(test(kind) for test in several)), None)
