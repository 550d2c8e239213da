"""Labels of bins of numbers and timestamps, with as few digits as tell their edges apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np

from kullback.tables.columns.log_grid import bucket_ends, bucket_middles
from kullback.tables.columns.profile import ColumnProfile

__all__ = ["interval_labels"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMESTAMP_FORMATS = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S.%f")


def interval_labels(column: ColumnProfile, edges: Sequence[float]) -> tuple[str, ...]:
    """Return a label for each interval between edges, the first and the last open.

    An interval of integers is labeled by the integers that occurred in it, and one that holds only the grid's center by
    that value.

    Example:
        >>> interval_labels(ColumnProfile("numeric"), (1.5, 2.25))
        ('< 1.5', '1.5 to 2.25', '≥ 2.25')
        >>> interval_labels(ColumnProfile("numeric", minimum=1, maximum=9, integer=True), (2.0, 2.1, 4.0))
        ('1', '2', '3', '4 to 9')
    """
    occupied = _occupied(column, edges)
    if column.column_type == "text" or column.integer:
        return _integer_labels(column, edges, occupied)
    write = _timestamps if column.column_type == "datetime" else _numbers
    labels = ["any value"]
    if edges:
        written = write(edges)
        inner = [f"{low} to {high}" for low, high in pairwise(written)]
        labels = [f"< {written[0]}", *inner, f"≥ {written[-1]}"]
    for index, buckets in occupied.items():
        if buckets == (0, 0):
            labels[index] = _exact(column)
    return tuple(labels)


def _occupied(column: ColumnProfile, edges: Sequence[float]) -> dict[int, tuple[int, int]]:
    """Return the first and the last bucket that occurred in each bin."""
    if not column.buckets:
        return {}
    buckets = np.sort(np.fromiter(column.buckets, np.int64, len(column.buckets)))
    bins = np.searchsorted(edges, bucket_middles(buckets, column.center), side="right")
    found, firsts = np.unique(bins, return_index=True)
    lasts = np.append(firsts[1:], len(buckets)) - 1
    ends = zip(buckets[firsts].tolist(), buckets[lasts].tolist(), strict=True)
    return dict(zip(found.tolist(), ends, strict=True))


def _exact(column: ColumnProfile) -> str:
    if column.column_type == "datetime":
        return _timestamps([column.center], TIMESTAMP_FORMATS[-1:])[0]
    return f"{column.center:.15g}"


def _integer_labels(
    column: ColumnProfile, edges: Sequence[float], occupied: dict[int, tuple[int, int]]
) -> tuple[str, ...]:
    low = -math.inf if column.minimum is None else column.minimum
    high = math.inf if column.maximum is None else column.maximum
    firsts = [low, *(math.ceil(edge) for edge in edges)]
    lasts = [*(math.ceil(edge) - 1 for edge in edges), high]
    for index, (first, last) in occupied.items():
        firsts[index] = max(low, _integers(first, column.center)[0])
        lasts[index] = min(high, _integers(last, column.center)[1])
    return tuple(_span(first, last) for first, last in zip(firsts, lasts, strict=True))


def _integers(bucket: int, center: float) -> tuple[float, float]:
    """Return the smallest and the largest integer of a bucket, which holds its end nearer to the center."""
    low, high = bucket_ends(bucket, center)
    if math.isinf(low) or math.isinf(high) or bucket == 0:
        return low, high
    if bucket > 0:
        return math.ceil(low), math.ceil(high) - 1
    return math.floor(low) + 1, math.floor(high)


def _span(first: float, last: float) -> str:
    if first > last or math.isinf(first) or math.isinf(last):
        return f"≤ {last:.15g}" if math.isinf(first) or first > last else f"≥ {first:.15g}"
    return f"{first:.15g}" if first == last else f"{first:.15g} to {last:.15g}"


def _numbers(edges: Sequence[float]) -> list[str]:
    return _shortest(edges, [lambda edge, digits=digits: f"{edge:.{digits}g}" for digits in range(3, 18)])


def _timestamps(edges: Sequence[float], forms: Sequence[str] = TIMESTAMP_FORMATS) -> list[str]:
    try:
        timestamps = [EPOCH + timedelta(microseconds=edge) for edge in edges]
    except OverflowError:  # beyond the year 9999
        return [f"{edge:.17g} µs" for edge in edges]
    return _shortest(timestamps, [lambda timestamp, form=form: timestamp.strftime(form) for form in forms])


def _shortest(values: Sequence[Any], ways: Sequence[Callable[[Any], str]]) -> list[str]:
    """Return the values written in the first way that gives different ones different texts."""
    written: list[str] = []
    for way in ways:
        written = [way(value) for value in values]
        if len(set(written)) == len(set(values)):
            break
    return written
