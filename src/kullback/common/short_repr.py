"""Short reprs of objects whose fields are long, such as large tensors."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

MOST_NUMBERS = 6  # a repr shows only the shape of a tensor with more elements


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = self.maxlist = self.maxtuple = self.maxdict = 3
        self.maxstring = self.maxother = 100

    def repr1(self, x: Any, level: int) -> str:
        shape = getattr(x, "shape", None)
        if not isinstance(shape, tuple):
            return super().repr1(x, level)
        if math.prod(shape) > MOST_NUMBERS:
            return f"<{type(x).__name__} of shape {tuple(shape)}>"
        return repr(x)


_SHORT = _Short()


def short_repr(made: object, values: Mapping[str, object]) -> str:
    """Return a repr with the class of `made` and the given values; a long value is shortened.

    Example:
        >>> short_repr(1, {"a": list(range(9)), "b": "text"})
        "int(a=[0, 1, 2, ...], b='text')"
    """
    shown = ", ".join(f"{name}={_SHORT.repr(value)}" for name, value in values.items())
    return f"{type(made).__name__}({shown})"


class ShortRepr:
    """A base class of dataclasses (made with ``repr=False``); the repr shows every field, long fields shortened."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = [field.name for field in fields(self) if field.repr]  # type: ignore[arg-type]
        return short_repr(self, {name: getattr(self, name) for name in shown})
