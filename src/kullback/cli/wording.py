"""Errors about arguments of the library, said of the options that a command has in their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from kullback.errors import ArgumentValueError

__all__ = ["in_options"]

_ERROR = re.compile(r"\w+\((\w+=\.\.\.(?:, \w+=\.\.\.)*)\): (.*)\. Write: (.*)", re.DOTALL)


@contextmanager
def in_options(names: Mapping[str, str], remedy: Callable[[str, str], str]) -> Generator[None]:
    """Name the option of the command, not the argument of the library, in errors.

    Arguments:
        names: the option, or the argument of the command, for each argument of the library; errors about any other
            one stay as they are.
        remedy: returns what to write instead, of the first such argument and of what the library says to write.

    Example:
        >>> from kullback.errors import invalid_value
        >>> with in_options({"bins": "--bins"}, lambda name, instead: "--bins 20"):
        ...     raise invalid_value("f", "bins", wanted="few", got="many", instead="bins=20")
        Traceback (most recent call last):
            ...
        kullback.errors.ArgumentValueError: --bins: wanted few; got many. Write: --bins 20
    """
    try:
        yield
    except ArgumentValueError as error:
        found = _ERROR.fullmatch(str(error))
        arguments = [each.removesuffix("=...") for each in found[1].split(", ")] if found else []
        if found is None or any(each not in names for each in arguments):
            raise
        options = ", ".join(names[each] for each in arguments)
        raise ArgumentValueError(f"{options}: {found[2]}. Write: {remedy(arguments[0], found[3])}") from None
