"""Timestamps as microseconds since 1970, by expressions of the engines that narwhals lacks.

A timestamp with a time zone is counted in UTC; one without is counted as if it were in UTC. The session's time zone has
no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["with_microseconds"]

DAY, MINUTE, SECOND = 86_400_000_000, 60_000_000, 1_000_000


def with_microseconds(frame: Any, names: Sequence[str]) -> Any:
    """Return a narwhals LazyFrame with its columns of timestamps and dates as integers."""
    import narwhals as nw

    native = frame.to_native()
    if frame.implementation.is_ibis():
        return nw.from_native(native.mutate(**{name: _ibis(native[name]) for name in names}))
    if frame.implementation.is_spark_like():
        return nw.from_native(native.withColumns({name: _spark(native, name) for name in names}))
    return frame.with_columns(nw.col(*names).cast(nw.Datetime("us")).dt.timestamp("us"))


def _ibis(column: Any) -> Any:
    import ibis

    dtype = column.type()
    if dtype.is_date():
        return column.delta(ibis.date("1970-01-01"), unit="day") * DAY
    epoch = ibis.timestamp("1970-01-01T00:00:00", timezone=dtype.timezone and "UTC")
    return column.delta(epoch, unit="microsecond")


def _spark(frame: Any, name: str) -> Any:
    from pyspark.sql import functions as F, types

    column, dtype = frame[name], frame.schema[name].dataType
    if isinstance(dtype, types.TimestampType):
        return F.unix_micros(column)
    days = F.unix_date(column.cast("date")).cast("bigint") * DAY
    if isinstance(dtype, types.DateType):
        return days
    # Part by part: a cast to a timestamp with a time zone would use the session's.
    minutes = F.hour(column) * 60 + F.minute(column)
    seconds = (F.date_part(F.lit("SECOND"), column) * SECOND).cast("bigint")
    return days + minutes.cast("bigint") * MINUTE + seconds
