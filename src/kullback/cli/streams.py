"""The standard streams, which may be closed, on a full disk, a pipe that nobody reads, or read by a build server."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from typing import IO, Any

from kullback.common.display import without_commands

NAMES = "stdout", "stderr"


class CheckedStream:
    """A text stream on which no name from the data is a command to a build server (`without_commands`).

    Arguments:
        stream: the stream to write to.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self._line = stream, ""  # the beginning of the line that is not ended

    def write(self, text: str) -> int:
        """Write the text, with commands escaped."""
        if not isinstance(text, str):
            return self._stream.write(text)  # which raises
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


@contextmanager
def closed_pipe_allowed() -> Generator[None]:
    """Skip the rest of the output if its reader has left, as ``head`` does: the exit status is then up to the gates."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_unwritable()


def print_error(line: str, file: IO[Any] | None = None) -> None:
    """Print a line to standard error, or to `file`; if it cannot be written, only the exit status reports it.

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
