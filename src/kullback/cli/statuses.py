"""The exit statuses of every command."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """An exit status."""

    SUCCESS = 0
    GATE_FAILED = 1
    WRONG_INPUT = 2  # a wrong argument, or a file or table that cannot be used
    UNCLEAR = 3  # no gate fails, and the data do not decide at least one of them
    UNEXPECTED = 70  # an error inside of this package, EX_SOFTWARE of sysexits.h
    INTERRUPTED = 130  # as a shell reports a program that Ctrl-C ended
    CLOSED_PIPE = 141  # as a shell reports a program that SIGPIPE ended
