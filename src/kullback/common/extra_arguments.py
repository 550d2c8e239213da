"""The error for arguments that a function does not accept: unknown keywords, or too many positional arguments."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from kullback.errors import ArgumentTypeError, invalid_type, safe_repr

_Function = TypeVar("_Function", bound=Callable[..., Any])
_NO_REMEDIES: Mapping[str, str] = {}


def extra_arguments(
    function: Callable[..., object],
    positional: Sequence[object],
    unknown: Mapping[str, object],
    example: str,
    remedies: Mapping[str, str] = _NO_REMEDIES,
) -> ArgumentTypeError:
    """Return the error for a call with arguments that the function does not accept.

    Arguments:
        function: the called function.
        positional: the positional arguments that are too many.
        unknown: the unknown keywords and their values.
        example: the code of a correct call.
        remedies: the code to write instead of a keyword that other libraries have, by keyword.
    """
    parameters = inspect.signature(function).parameters.values()
    call = function.__name__
    if positional:
        by_position = [x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD]
        named = [x.name for x in parameters if x.kind is x.KEYWORD_ONLY and x.default is x.empty]
        order = f"{', '.join(by_position)} by position, and " if by_position else ""
        others = f"{', '.join(named)} by name" if named else "all other arguments by name"
        count = len(by_position) + len(positional)
        argument, got = ", ".join([*by_position, *named]), f"{count} arguments by position"
        return invalid_type(call, argument, wanted=f"{order}{others}", got=got, instead=example)
    names = [x.name for x in parameters if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)]
    name, value = next(iter(unknown.items()))
    near = difflib.get_close_matches(name, names, n=1)
    return invalid_type(
        call,
        name,
        wanted=f"one of the arguments {', '.join(names)}",
        got=f"the keyword {name!r}, with the value {safe_repr(value)}",
        instead=remedies.get(name) or (f"{near[0]}= instead of {name}=" if near else example),
    )


def by_name(example: str, remedies: Mapping[str, str] = _NO_REMEDIES) -> Callable[[_Function], _Function]:
    """Return a decorator for a function with keyword-only arguments; a wrong call raises an error with a remedy.

    Arguments:
        example: the code of a correct call.
        remedies: the code to write instead of a keyword that other libraries have, by keyword.

    Example:
        >>> @by_name("area(width=2, height=3)")
        ... def area(*, width, height):
        ...     return width * height
        >>> area(2, 3)
        Traceback (most recent call last):
        ...
        kullback.errors.ArgumentTypeError: area(width=..., height=...): wanted width, height by name; got 2 ...
    """

    def decorate(function: _Function) -> _Function:
        parameters = inspect.signature(function).parameters
        taken = sum(x.kind is x.POSITIONAL_OR_KEYWORD for x in parameters.values())

        @functools.wraps(function)
        def call(*positional: Any, **named: Any) -> Any:
            if len(positional) > taken or not named.keys() <= parameters.keys():
                unknown = {name: value for name, value in named.items() if name not in parameters}
                raise extra_arguments(function, positional[taken:], unknown, example, remedies)
            return function(*positional, **named)

        return cast("_Function", call)

    return decorate
