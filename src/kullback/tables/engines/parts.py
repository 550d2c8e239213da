"""Counting of a table in parts: each worker fills a copy of the same counter, and the copies are merged.

A counter is sent between processes as plain numbers, arrays and names, because Spark's workers lack this package.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, TypeVar

from kullback.errors import ArgumentValueError, invalid_value
from kullback.tables.engines.counters import ColumnCounter
from kullback.tables.engines.engine import Table, TableCounter

_TOTALS = ("rows", "weight", "weight_squares")
_Counter = TypeVar("_Counter", bound=ColumnCounter)


def count_part(part: Table, empty: TableCounter) -> bytes:
    """Return the counts of a part of a table, or the error that the values of the part caused."""
    return _packed(lambda: part.count(deepcopy(empty)))


def merge_parts(parts: Iterable[bytes], empty: TableCounter) -> bytes:
    """Return the counts of several parts together, or the first error."""
    return _packed(lambda: merged(parts, empty))


def merged(parts: Iterable[bytes], empty: TableCounter) -> TableCounter:
    """Return the counter with the counts of all results of `count_part` and `merge_parts`, or raise their error."""
    total = deepcopy(empty)
    for part in parts:
        total.merge(_unpacked(part, empty))
    return total


def _packed(count: Callable[[], TableCounter]) -> bytes:
    try:
        counter = count()
    except ArgumentValueError as error:
        fields = {name: getattr(error, name) for name in ("call", "argument", "wanted", "got")}
        return pickle.dumps((fields | {"instead": dict(error.remedy) or error.instead}, [], {}, None))
    for column in counter.columns.values():
        column.shrink()
    columns = {name: _state(column) for name, column in counter.columns.items()}
    joint = None if counter.joint is None else counter.joint.counts
    return pickle.dumps((None, [getattr(counter, name) for name in _TOTALS], columns, joint))


def _unpacked(content: bytes, empty: TableCounter) -> TableCounter:
    error, totals, columns, joint = pickle.loads(content)  # noqa: S301 - this session's own workers have written it
    if error is not None:
        raise invalid_value(**error)
    counter = TableCounter(weights=empty.weights)
    for name, total in zip(_TOTALS, totals, strict=True):
        setattr(counter, name, total)
    counter.columns = {name: _filled(column, columns[name]) for name, column in empty.columns.items()}
    if empty.joint is not None:
        counter.joint = deepcopy(empty.joint)
        counter.joint.counts = joint
    return counter


def _state(counter: ColumnCounter) -> dict[str, object]:
    """Return the state of a counter and of its inner counters, without classes of this package."""
    return {
        name: _state(value) if isinstance(value, ColumnCounter) else value
        for name, value in counter.__getstate__().items()
    }


def _filled(empty: _Counter, state: Any) -> _Counter:
    """Return a counter of the same class as `empty`, with the given state."""
    counter = object.__new__(type(empty))
    inner = {name: value for name, value in vars(empty).items() if isinstance(value, ColumnCounter)}
    counter.__setstate__(state | {name: _filled(value, state[name]) for name, value in inner.items()})
    return counter
