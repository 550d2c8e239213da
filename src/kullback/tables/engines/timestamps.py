"""Moments as microseconds since 1970, by the engines' own expressions, which narwhals lacks for them.

A moment with a time zone is an instant, counted in UTC; one without is counted as if its clock showed UTC. The
session's time zone has no part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["with_microseconds"]

DAY, MINUTE, SECOND = 86_400_000_000, 60_000_000, 1_000_000


def with_microseconds(frame: Any, names: Sequence[str]) -> Any:
    """Return a narwhals LazyFrame with its columns of moments and dates as integers."""
    import narwhals as nw

    native = frame.to_native()
    if frame.implementation.is_ibis():
        return nw.from_native(native.mutate(**{name: _ibis(native[name]) for name in names}))
    if frame.implementation.is_spark_like():
        return nw.from_native(native.withColumns({name: _spark(native, name) for name in names}))
    return frame.with_columns(nw.col(*names).cast(nw.Datetime("us")).dt.timestamp("us"))


def _ibis(column: Any) -> Any:
    import ibis

    kind = column.type()
    if kind.is_date():
        return column.delta(ibis.date("1970-01-01"), unit="day") * DAY
    epoch = ibis.timestamp("1970-01-01T00:00:00", timezone=kind.timezone and "UTC")
    return column.delta(epoch, unit="microsecond")


def _spark(frame: Any, name: str) -> Any:
    from pyspark.sql import functions as F, types

    column, kind = frame[name], frame.schema[name].dataType
    if isinstance(kind, types.TimestampType):
        return F.unix_micros(column)
    days = F.unix_date(column.cast("date")).cast("bigint") * DAY
    if isinstance(kind, types.DateType):
        return days
    # A clock without time zone, part by part: its cast to an instant would go by the session's time zone.
    minutes = F.hour(column) * 60 + F.minute(column)
    seconds = (F.date_part(F.lit("SECOND"), column) * SECOND).cast("bigint")
    return days + minutes.cast("bigint") * MINUTE + seconds
