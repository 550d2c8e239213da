"""The exit statuses of every command."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """An exit status."""

    SUCCESS = 0
    GATE_FAILED = 1
    WRONG_INPUT = 2  # a wrong argument, or a file or table that cannot be used
    UNCLEAR = 3  # no gate fails, and at least one gate is unclear
    UNEXPECTED = 70  # an unexpected error in this package; EX_SOFTWARE of sysexits.h has this number
    INTERRUPTED = 130  # the status that a shell reports for a program ended by Ctrl-C
    CLOSED_PIPE = 141  # the status that a shell reports for a program ended by SIGPIPE
