"""`refused`: a test expects an error by its parts, so that the wording of a kind of message is pinned in one test."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from kullback.errors import KullbackError

PARTS = ("call", "argument", "wanted", "got", "instead")


def parts(error: KullbackError) -> tuple[object, ...]:
    """The parts of an error's message."""
    return tuple(getattr(error, name) for name in PARTS)


@contextmanager
def refused(
    kind: type[Exception] | tuple[type[Exception], ...] = KullbackError,
    *,
    call: str | None = None,
    argument: str | None = None,
    wanted: str = "",
    got: str = "",
    instead: str = "",
    says: str = "",
) -> Generator[pytest.ExceptionInfo[KullbackError]]:
    """Expect an error of kullback.

    Arguments:
        kind: its class.
        call: its call; None for any.
        argument: its argument; None for any.
        wanted: a regular expression that is found in its accepted values; `got` and `instead` likewise.
        says: a regular expression that is found in one of these three, where a table of cases is about all of them.
    """
    with pytest.raises(kind) as caught:
        yield caught  # pyright: ignore[reportReturnType]
    error = caught.value
    assert isinstance(error, KullbackError), repr(error)
    assert None not in parts(error), f"{error!r} has no parts"
    assert call in (None, error.call), f"call {error.call!r}: {error}"
    assert argument in (None, error.argument), f"argument {error.argument!r}: {error}"
    for name, pattern in (("wanted", wanted), ("got", got), ("instead", instead)):
        text = getattr(error, name)
        assert re.search(pattern, text), f"{name} {text!r} does not contain {pattern!r}: {error}"
    assert any(re.search(says, getattr(error, name)) for name in PARTS[2:]), (
        f"no part contains {says!r}: {error}"
    )
