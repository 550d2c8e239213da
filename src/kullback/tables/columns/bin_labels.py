"""Labels of bins of numbers and timestamps, with no more digits than are needed to distinguish the edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np

from kullback.tables.columns.column_profile import ColumnProfile
from kullback.tables.columns.log_grid import SMALLEST, buckets_of, integers_in

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMESTAMP_FORMATS = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S.%f")


def interval_labels(
    column: ColumnProfile, edges: Sequence[float], cuts: Sequence[int] | None = None
) -> tuple[str, ...]:
    """Return a label for each interval between edges; the first and the last interval are open-ended.

    An interval of integers is labeled with the smallest and the largest integer that occurred in it. If only the grid's
    center occurred in an interval, the label is the center.

    Arguments:
        column: the profile of the column.
        edges: the lower end of each interval except the first.
        cuts: the first bucket of each interval except the first; None means the buckets of the edges.

    Example:
        >>> interval_labels(ColumnProfile("numeric"), (1.5, 2.25))
        ('< 1.5', '1.5 to 2.25', '≥ 2.25')
        >>> interval_labels(ColumnProfile("numeric", minimum=1, maximum=9, integer=True), (2.0, 3.0, 4.0))
        ('1', '2', '3', '4 to 9')
    """
    begins: list[int] = list(cuts or ())
    if cuts is None:
        begins = buckets_of(np.array(edges, np.float64), column.center).tolist()
    occupied = _occupied(column, begins)
    if column.column_type == "text" or column.integer:
        return _integer_labels(column, begins, occupied)
    write = _timestamps if column.column_type == "datetime" else _numbers
    labels = ["any value"]
    if edges:
        written = write(edges)
        inner = [f"{low} to {high}" for low, high in pairwise(written)]
        # Each bin below the grid's center excludes the bin's own lower edge. So does the bin directly above the center.
        beyond = [cut < 0 or cut == 1 for cut in (begins[0], begins[-1])]
        first, last = "≤" if beyond[0] else "<", ">" if beyond[1] else "≥"
        labels = [f"{first} {written[0]}", *inner, f"{last} {written[-1]}"]
    for index, buckets in occupied.items():
        if buckets == (0, 0):
            labels[index] = _exact(column)
    return tuple(labels)


def constant_label(column: ColumnProfile) -> str | None:
    """Return the text of a column's only value; None if the column has several values or missing values."""
    specials = (column.not_a_number, column.minus_infinity, column.plus_infinity)
    if column.missing or column.empty or column.other_categories or any(specials):
        return None
    if column.categories:
        return next(iter(column.categories)) if len(column.categories) == 1 else None
    if column.minimum is None or column.minimum != column.maximum:
        return None
    if column.column_type == "datetime":
        written = _timestamps([column.minimum], TIMESTAMP_FORMATS[-1:])[0]
        return written.removesuffix(".000000").removesuffix(" 00:00:00")
    length = " characters long" if column.column_type == "text" else ""
    value = f"{int(column.minimum)}" if column.integer else repr(float(column.minimum)).removesuffix(".0")
    return value + length


def _occupied(column: ColumnProfile, cuts: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the first and the last occupied bucket of each bin that has one."""
    if not column.buckets:
        return {}
    buckets = np.sort(np.fromiter(column.buckets, np.int64, len(column.buckets)))
    places, firsts = np.unique(np.searchsorted(cuts, buckets, side="right"), return_index=True)
    lasts = np.append(firsts[1:], len(buckets)) - 1
    ends = zip(buckets[firsts].tolist(), buckets[lasts].tolist(), strict=True)
    return dict(zip(places.tolist(), ends, strict=True))


def _exact(column: ColumnProfile) -> str:
    if column.column_type == "datetime":
        return _timestamps([column.center], TIMESTAMP_FORMATS[-1:])[0]
    return f"{column.center:.15g}"


def _integer_labels(
    column: ColumnProfile, cuts: Sequence[int], occupied: dict[int, tuple[int, int]]
) -> tuple[str, ...]:
    low = -math.inf if column.minimum is None else column.minimum
    high = math.inf if column.maximum is None else column.maximum
    begins = [integers_in(cut, column.center)[0] for cut in cuts]
    firsts, lasts = [low, *begins], [*(begin - 1 for begin in begins), high]
    for index, (first, last) in occupied.items():
        firsts[index] = max(low, integers_in(first, column.center)[0])
        lasts[index] = min(high, integers_in(last, column.center)[1])
    return tuple(_span(first, last) for first, last in zip(firsts, lasts, strict=True))


def _span(first: float, last: float) -> str:
    if first > last or math.isinf(first) or math.isinf(last):
        return f"≤ {_integer(last)}" if math.isinf(first) or first > last else f"≥ {_integer(first)}"
    return _integer(first) if first == last else f"{_integer(first)} to {_integer(last)}"


def _integer(value: float) -> str:
    return f"{value:g}" if math.isinf(value) else f"{int(value)}"


def _numbers(edges: Sequence[float]) -> list[str]:
    return _shortest(edges, [lambda edge, digits=digits: _number(edge, digits) for digits in range(3, 18)])


def _number(value: float, digits: int) -> str:
    """Return a number as text, without an exponent if it has few zeros; the lower end of a bin just above 0 is "0"."""
    if abs(value) <= SMALLEST:
        return "0"
    if 1e-5 <= abs(value) < 1e9:
        return np.format_float_positional(value, precision=digits, fractional=False, trim="-")
    return f"{value:.{digits}g}"


def _timestamps(edges: Sequence[float], forms: Sequence[str] = TIMESTAMP_FORMATS) -> list[str]:
    try:
        timestamps = [EPOCH + timedelta(microseconds=edge) for edge in edges]
    except OverflowError:  # the timestamp is beyond the year 9999
        return [f"{edge:.17g} µs" for edge in edges]
    return _shortest(timestamps, [lambda timestamp, form=form: timestamp.strftime(form) for form in forms])


def _shortest(values: Sequence[Any], ways: Sequence[Callable[[Any], str]]) -> list[str]:
    """Return the values as texts, in the first format that gives different values different texts."""
    written: list[str] = []
    for way in ways:
        written = [way(value) for value in values]
        if len(set(written)) == len(set(values)):
            break
    return written
