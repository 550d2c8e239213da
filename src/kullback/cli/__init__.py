"""The command `kullback`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from io import TextIOWrapper
from types import FrameType
from typing import NoReturn

from kullback.cli.statuses import Status
from kullback.cli.streams import CheckedStream, open_closed

__all__ = ["main"]


def main(*, may_have_workers: bool = False) -> None:
    """Run the command with the arguments of this process, or print which package to install.

    If `may_have_workers`, this process may be one of torchrun's workers. The script `kullback` is never a
    worker, even if a worker calls the script.
    """
    open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the terminal's encoding may lack some characters
    sys.stdout, sys.stderr = CheckedStream(sys.stdout), CheckedStream(sys.stderr)
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _end)
    try:
        from kullback.cli.commands import kullback
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("click", "rich"):
            raise
        sys.stderr.write(f"kullback: {error.name} is not installed. Run: pip install click rich\n")
        sys.exit(Status.WRONG_INPUT)
    try:
        kullback(prog_name="kullback", obj=may_have_workers)
    except SystemExit as end:
        workers = sys.modules.get("kullback.parallel.workers")
        if may_have_workers and workers is not None and workers.worker_count() > 1:
            _leave(end.code)
        raise


def _leave(code: object) -> NoReturn:
    """End one of several workers without Python's shutdown.

    If a thread of gloo frees a tensor during the shutdown, the process aborts.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _end(number: int, frame: FrameType | None) -> None:
    """Raise SystemExit, so that temporary files are removed before the process ends."""
    sys.exit(128 + number)
