"""Safe output to standard streams that are closed, cannot be written, or are read by a build server."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from typing import IO, Any

from kullback.common.display import without_commands

NAMES = "stdout", "stderr"


class CheckedStream:
    """A text stream that escapes commands to build servers, because names in the data may look like such commands."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._line = stream, ""  # `_line` is the beginning of an incomplete line

    def write(self, text: str) -> int:
        """Write the text, with commands escaped."""
        if not isinstance(text, str):
            return self._stream.write(text)  # this call raises a TypeError
        whole = self._line + text
        escaped = without_commands(whole)[len(self._line) :]
        self._line = whole.rpartition("\n")[2][:100]
        self._stream.write(escaped)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write the lines, with commands escaped."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def open_closed() -> None:
    """Replace each standard stream that was closed before the program started by the null device."""
    for name in NAMES:
        if getattr(sys, name) is None:
            _discard(name)


def discard_unwritable() -> None:
    """Replace each stream that cannot be written by the null device.

    Otherwise, the interpreter would fail to write the rest at exit, and change the exit status.
    """
    for name in NAMES:
        try:
            getattr(sys, name).flush()
        except (OSError, ValueError, AttributeError):
            _discard(name)


@contextmanager
def closed_pipe_allowed() -> Generator[None]:
    """Skip the rest of the output if its reader (such as ``head``) has closed the pipe.

    The exit status then depends only on the gates.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_unwritable()


def print_error(line: str, file: IO[Any] | None = None) -> None:
    """Print a line to standard error, or to `file`; if printing fails, only the exit status shows the error."""
    stream = sys.stderr if file is None else file
    if stream is not None:
        with suppress(OSError, ValueError):
            print(line, file=stream, flush=True)
    discard_unwritable()


def _discard(name: str) -> None:
    setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - open until the process ends
