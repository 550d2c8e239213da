"""The types of columns, from Arrow or narwhals types, and the conversion of Arrow arrays to numbers and strings.

The type of strings depends on their values (`text_types`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from kullback.common.arrays import Flags, Floats, Integers
from kullback.errors import ArgumentValueError, invalid_value, quoted

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

    `column_type` is None if columns of this type cannot be profiled, for the given reason. `zoned` is for timestamps.
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


MICROSECONDS = 1_000_000
EXACT_OFFSET = 2.0**62  # smaller differences of integers are computed exactly


def numbers_of(array: Any, column_type: str) -> Floats:
    """Return an array without missing values as float64: timestamps in microseconds, durations in seconds, text as
    lengths."""
    import pyarrow as pa

    if column_type == "text":
        array = lengths_of(array)
    elif column_type == "datetime":
        return _microseconds(array)
    elif pa.types.is_duration(array.type) or pa.types.is_time(array.type):
        return _seconds(array)
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    return array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)


def integers_of(array: Any) -> Integers | NDArray[np.uint64]:
    """Return the values of an array of integers, or of decimals without fraction, as 64-bit integers."""
    import pyarrow as pa

    if pa.types.is_decimal(array.type):
        array = array.cast(pa.int64())
    values = array.to_numpy(zero_copy_only=False)
    return values.astype(np.uint64 if values.dtype.kind == "u" else np.int64, copy=False)


def integer_offsets(values: Integers | NDArray[np.uint64], center: int) -> Floats:
    """Return the differences of integers from a center, computed exactly and then rounded to float64."""
    rounded = values.astype(np.float64) - float(center)
    if not center:
        return rounded
    # Arithmetic modulo 2^64 gives the exact difference if the difference fits into 64 bits.
    exact = (values.view(np.uint64) - np.uint64(center % 2**64)).view(np.int64)
    return np.where(np.abs(rounded) < EXACT_OFFSET, exact.astype(np.float64), rounded)


def lengths_of(array: Any) -> Any:
    """Return the number of characters of each string."""
    return call("utf8_length", strings_of(array))


def strings_of(array: Any) -> Any:
    """Return categories of any type as strings; booleans become ``false`` and ``true``."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array if pa.types.is_large_string(array.type) else array.cast(pa.large_string())


def weights_of(name: str, array: Any) -> Floats:
    """Return the weights in a column as float64; refuse a weight that is missing, negative or not finite."""
    import pyarrow as pa

    if array.null_count:
        raise _bad_weights(name, f"{array.null_count} missing values")
    is_ = pa.types
    if not any(test(array.type) for test in (is_.is_integer, is_.is_floating, is_.is_decimal)):
        raise _bad_weights(name, f"values of type {array.type}")
    values = numbers_of(array, "numeric")
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        raise _bad_weights(name, f"the value {values[wrong][0]}")
    return values


def _bad_weights(name: str, got: str) -> ArgumentValueError:
    return invalid_value(
        "",
        "weights",
        wanted="a column of finite numbers of 0 or more, none missing",
        got=f"{got} in {quoted(name)}",
        instead="another column, or correct this one",
    )


def category_codes(array: Any, categories: Sequence[str]) -> Any:
    """Return the index of each value in `categories`; the index is missing if the value is not in the list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.SetLookupOptions(pa.array(categories, pa.large_string()))
    return call("index_in", strings_of(array), options=known)


def call(name: str, *arrays: Any, options: Any = None) -> Any:
    """Call a compute function of Arrow that Arrow's type annotations lack."""
    import pyarrow.compute as pc

    return pc.call_function(name, list(arrays), options=options)


def is_missing(array: Any) -> Flags:
    """Return which values are missing."""
    return array.is_null().to_numpy(zero_copy_only=False)


def _microseconds(array: Any) -> Floats:
    import pyarrow as pa

    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("ms"))
    ticks = array.view(pa.int64()).to_numpy(zero_copy_only=False)
    if array.type.unit == "ns":
        return (ticks // 1000).astype(np.float64)
    # Long times in seconds are more microseconds than a 64-bit integer can hold, so float64 is used.
    return ticks.astype(np.float64) * {"us": 1, "ms": 1000, "s": MICROSECONDS}[array.type.unit]


def _seconds(array: Any) -> Floats:
    import pyarrow as pa

    ticks = array.cast(pa.int32()) if array.type.bit_width == 32 else array.view(pa.int64())
    per_second = {"s": 1, "ms": 1000, "us": MICROSECONDS, "ns": 1000 * MICROSECONDS}[array.type.unit]
    return ticks.to_numpy(zero_copy_only=False).astype(np.float64) / per_second
