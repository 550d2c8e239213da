"""Conversion of results to plain values: to strict JSON, and to one dict of numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, cast

# An object of JSON as it is written or read. The code that reads one checks its fields.
JsonObject: TypeAlias = dict[str, Any]


def decoded(text: str | bytes) -> Any:
    """Return the value of JSON text; None if the text is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def json_safe(value: Any) -> Any:
    """Return the value with NaN and infinities replaced by strings, and tuples by lists, also inside dicts and lists.

    Example:
        >>> json_safe({"value": (1.5, float("inf"))})
        {'value': [1.5, 'Infinity']}
    """
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in cast("Mapping[str, object]", value).items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def flat_numbers(value: Any, name: str = "") -> dict[str, float]:
    """Return all numbers in nested dicts and lists as one dict; a key is the path to the number, joined by ``/``.

    True and False become 1 and 0; infinities and NaN stay floats. None and strings are left out.

    The path to a number in a dict ends with the key of the number. The limits of an ``interval`` get the keys ``lower``
    and ``upper``. The only number of a list gets the path of the list, and the numbers of a longer list get their
    positions as keys. A dict in a list gets the name of its column, model or batch as its key. If two dicts of the list
    have the same name, all dicts of the list get their positions as keys instead. Lists of dicts without names, such as
    the worst rows, are left out. `name` is the path to `value`, empty for a whole result.

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
    """Yield the keys and parts of a dict or list `value`; the only number of a list has the key ``""``.

    `name` is the path to `value`, because the last part of the path shows whether `value` is an interval.
    """
    if isinstance(value, dict):
        yield from cast("Mapping[str, object]", value).items()
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
    """Return the name of a dict in a list: its name, model, batch or columns; None without such a name."""
    match item:
        case {"name": str(name)} | {"model": {"name": str(name)}} | {"q_name": str(name)}:
            return name
        case {"columns": [str(), *_] as names}:
            return ",".join(cast("list[str]", names))
        case _:
            return None
