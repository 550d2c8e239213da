"""The error for arguments that a function does not accept: unknown keywords, or too many positional arguments."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from kullback.common.formats import counted
from kullback.errors import ArgumentTypeError, KullbackError, explain, invalid_type, safe_repr

_Function = TypeVar("_Function", bound=Callable[..., Any])
_NO_REMEDIES: Mapping[str, str] = {}
# Keywords of other libraries: the argument of a function that has their meaning, and the code to write.
_KEYWORDS_OF_OTHERS = {
    "T": ("temperature", "temperature=T"),
    "alpha": ("confidence", "confidence=1 - alpha"),
    "seed": ("generator", "generator=torch.Generator().manual_seed(seed)"),
    "smoothing": ("prior", "prior=smoothing"),
    "unit": ("base", "base=2 for bits"),
    **dict.fromkeys(("n_steps", "steps", "n_iter", "epochs"), ("max_iterations", "max_iterations=1000")),
}
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def extra_arguments(
    function: Callable[..., object],
    positional: Sequence[object],
    unknown: Mapping[str, object],
    example: str = "",
    remedies: Mapping[str, str] = _NO_REMEDIES,
) -> ArgumentTypeError:
    """Return the error for a call with positional arguments that are too many, or with unknown keywords.

    `example` and `remedies` are as in `by_name`.
    """
    parameters = _parameters(function)
    call = function.__name__
    example = example or _with_required_arguments(call, parameters)
    names = [x.name for x in parameters]
    if positional:
        by_position = [x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD]
        named = [x.name for x in parameters if x.kind is x.KEYWORD_ONLY and x.default is x.empty]
        order = f"{', '.join(by_position)} by position, and " if by_position else ""
        others = "all other arguments by name" if names else "no arguments"
        if named:
            others = f"{', '.join(named)} by name"
        got = f"{counted(len(by_position) + len(positional), 'argument')} by position"
        argument = ", ".join([*by_position, *named] or names[:1])
        place = None if argument else f"{call}()"
        return ArgumentTypeError(
            explain(call, argument, wanted=f"{order}{others}", got=got, instead=example, place=place)
        )
    return invalid_type(call, **unknown_keyword(unknown, names, example, remedies))


def unknown_keyword(
    unknown: Mapping[str, object],
    names: Sequence[str],
    example: str,
    remedies: Mapping[str, str] = _NO_REMEDIES,
) -> dict[str, str]:
    """Return the parts of an error that refuses the first unknown keyword and suggests the known name nearest to it."""
    name, value = next(iter(unknown.items()))
    near = difflib.get_close_matches(name, names, n=1)
    meant, usual = _KEYWORDS_OF_OTHERS.get(name, ("", ""))
    remedy = remedies.get(name) or (usual if meant in names else "")
    return {
        "argument": name,
        "wanted": f"one of the arguments {', '.join(names)}" if names else "no arguments",
        "got": f"the keyword {name!r}, with the value {safe_repr(value)}",
        "instead": remedy or (f"{near[0]}= instead of {name}=" if near else example),
    }


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters of a function or class; a constructor with ``**`` adds its bases' parameters."""
    signatures = [inspect.signature(function)]
    if isinstance(function, type):
        signatures += [inspect.signature(base) for base in function.__mro__[1:-1] if "__init__" in vars(base)]
    named: dict[str, inspect.Parameter] = {}
    for signature in signatures:
        parameters = signature.parameters.values()
        named |= {x.name: x for x in parameters if x.name not in named and x.kind not in _VARIABLE}
        if all(x.kind is not x.VAR_KEYWORD for x in parameters):
            break
    return [x for x in named.values() if x.name != "self"]


def _with_required_arguments(call: str, parameters: Sequence[inspect.Parameter]) -> str:
    """Return the code of a call with the required arguments; if there are none, with the first argument."""
    shown = [x for x in parameters if x.default is x.empty] or parameters[:1]
    arguments = [f"{x.name}=..." if x.kind is x.KEYWORD_ONLY else x.name for x in shown]
    return f"{call}({', '.join(arguments)})"


def by_name(
    example: str = "", remedies: Mapping[str, str] = _NO_REMEDIES
) -> Callable[[_Function], _Function]:
    """Return a decorator for a function or class; a call with arguments that it lacks raises an error with a remedy.

    For a class, the constructor is decorated. It may pass ``**`` arguments on to its base class, which refuses some.

    Arguments:
        example: the code of a correct call; by default, a call with the required arguments.
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
        if not isinstance(function, type):
            return _checked(function, function, example, remedies)
        name = "__new__" if issubclass(function, tuple) else "__init__"
        setattr(function, name, _checked(getattr(function, name), function, example, remedies))
        return cast("_Function", function)

    return decorate


def _checked(
    call: Callable[..., Any], function: Callable[..., Any], example: str, remedies: Mapping[str, str]
) -> Any:
    """Return `call`, which runs for a call of `function`, with a check of its arguments."""
    parameters = inspect.signature(call).parameters
    kinds = {x.kind for x in parameters.values()}
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = sum(x.kind in by_position for x in parameters.values())
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        taken = sys.maxsize

    @functools.wraps(call)
    def checked(*positional: Any, **named: Any) -> Any:
        if len(positional) > taken or not named.keys() <= parameters.keys():
            unknown = {name: value for name, value in named.items() if name not in parameters}
            raise extra_arguments(function, positional[taken:], unknown, example, remedies)
        return call(*positional, **named)

    @functools.wraps(call)
    def passed_on(*positional: Any, **named: Any) -> Any:
        try:
            return call(*positional, **named)
        except TypeError as error:
            known = {x.name for x in _parameters(function)}
            unknown = {name: value for name, value in named.items() if name not in known}
            if not unknown or isinstance(error, KullbackError):
                raise
            raise extra_arguments(function, (), unknown, example, remedies) from error

    return passed_on if inspect.Parameter.VAR_KEYWORD in kinds else checked
