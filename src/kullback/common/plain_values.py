"""Results as plain values: strict JSON, and numbers under flat names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast


def json_safe(value: Any) -> Any:
    """Return the value with NaN and infinities replaced by strings, and tuples by lists, at any depth.

    Example:
        >>> json_safe({"value": (1.5, float("inf"))})
        {'value': [1.5, 'Infinity']}
    """
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def flat_numbers(value: Any, name: str = "") -> dict[str, float]:
    """Return all numbers in nested dicts and lists, under their paths joined by ``/``.

    True and False become 1 and 0; infinities and NaN stay floats. None and strings are left out.
    The ends of an ``interval`` are ``lower`` and ``upper``. A number that is alone in a list is named by the list. The
    numbers of a longer list are named by their positions. Objects in a list are named by their column, model or batch
    or, if two names are equal, by their positions. Objects without names, such as the worst rows, are left out.

    Arguments:
        value: the fields of a result.
        name: the path of `value`.

    Example:
        >>> flat_numbers({"mean": {"value": 0.1, "interval": (0.0, float("inf"))}, "unit": "nats", "ok": True})
        {'mean/value': 0.1, 'mean/interval/lower': 0.0, 'mean/interval/upper': inf, 'ok': 1}
    """
    if isinstance(value, bool | int | float):
        return {name: int(value) if isinstance(value, bool) else value}
    numbers: dict[str, float] = {}
    for key, item in _items(value, name):
        numbers |= flat_numbers(item, "/".join(filter(None, (name, key))))
    return numbers


def _items(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a dict or list with their keys; the key of a number that is alone in a list is ``""``."""
    if isinstance(value, dict):
        yield from cast("dict[str, Any]", value).items()
    elif isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        keys = [str(place) for place in range(len(items))]
        if name.rpartition("/")[2] == "interval":
            keys = ["lower", "upper"]
        elif any(isinstance(item, dict) for item in items):
            names = [_name(item) for item in items]
            if None in names:
                return
            keys = cast("list[str]", names) if len(set(names)) == len(names) else keys
        elif len(items) == 1:
            keys = [""]
        yield from zip(keys, items, strict=True)


def _name(item: Any) -> str | None:
    match item:
        case {"name": str(name)} | {"model": {"name": str(name)}} | {"q_name": str(name)}:
            return name
        case {"columns": [str(), *_] as names}:
            return ",".join(cast("list[str]", names))
        case _:
            return None
