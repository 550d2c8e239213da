"""The standard streams, which may be closed, on a full disk, or a pipe that nobody reads."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO, Any

__all__ = ["discard_unwritable", "open_closed", "print_error"]

NAMES = "stdout", "stderr"


def open_closed() -> None:
    """Open the null device in the place of streams that were closed before the start: output there is not wanted."""
    for name in NAMES:
        if getattr(sys, name) is None:
            _discard(name)


def discard_unwritable() -> None:
    """Drop what a stream does not take: the interpreter, writing it at its end, would change the exit status."""
    for name in NAMES:
        try:
            getattr(sys, name).flush()
        except (OSError, ValueError, AttributeError):
            _discard(name)


def print_error(line: str, file: IO[Any] | None = None) -> None:
    """Print a line to standard error, or to `file`; where it cannot be written, the exit status has to tell.

    Arguments:
        line: the line.
        file: where to print it instead.
    """
    stream = sys.stderr if file is None else file
    if stream is not None:
        with suppress(OSError, ValueError):
            print(line, file=stream, flush=True)
    discard_unwritable()


def _discard(name: str) -> None:
    setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - open to the end
