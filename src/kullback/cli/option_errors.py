"""Errors about arguments of the library, rewritten for the options of a command."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from kullback.errors import BY_PLACE, ArgumentValueError


@contextmanager
def in_options(
    options: Mapping[str, str], remedies: Mapping[str, str] = MappingProxyType({})
) -> Generator[None]:
    """Convert errors about arguments of the library, raised in the context, to errors about options of the command.

    Arguments:
        options: the option or argument of the command for each argument of the library; errors about other arguments
            stay unchanged.
        remedies: remedies for errors, by the name of the library's argument, in place of other remedies than values of
            options.

    Example:
        >>> from kullback.errors import invalid_value
        >>> with in_options({"bins": "--bins"}):
        ...     raise invalid_value("f", "bins", wanted="few", got="many", instead={"bins": 20})
        Traceback (most recent call last):
            ...
        kullback.errors.ArgumentValueError: --bins: wanted few; got many. Write: --bins 20
    """
    try:
        yield
    except ArgumentValueError as error:
        arguments = () if error.explanation is None else error.explanation.arguments
        if not arguments or any(name not in options for name in arguments):
            raise
        place = ", ".join(options[name] for name in arguments)
        parts = {
            "call": "",
            "place": place,
            "instead": _remedy(error, options) or remedies.get(arguments[0], error.instead),
        }
        if _is_without(error, options):
            parts["wording"] = BY_PLACE  # the remedy is a sentence, and nothing to write
        raise error.replace(options, **parts) from None


def _is_without(error: ArgumentValueError, options: Mapping[str, str]) -> bool:
    """Return whether the remedy is a call without an option: a value of None or False for it."""
    return bool(error.remedy) and all(
        name in options and (value is None or value is False) for name, value in error.remedy.items()
    )


def _remedy(error: ArgumentValueError, options: Mapping[str, str]) -> str | None:
    if not error.remedy or any(each not in options for each in error.remedy):
        return None
    if _is_without(error, options):
        return f"leave {' and '.join(options[each] for each in error.remedy)} out"
    return " ".join(f"{options[each]} {_word(value)}" for each, value in error.remedy.items())


def _word(value: object) -> str:
    """Return a value as one shell word; list items are joined by commas, and only the first of nested lists is used."""
    while isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple):
        value = value[0]
    return shlex.quote(",".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
