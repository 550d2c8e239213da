"""Processes that start in a moment: forked from one that has imported torch and the command line.

`python(program, *arguments)` is a command that does what `[sys.executable, "-c", program, *arguments]` does. It has
its own folder, variables and standard streams, open or closed, and ends with the same status. A test starts Python
itself where the start is the point: a locale, a library that is missing, what is imported, memory. So does a test that
sends a signal.
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MAIN = "from kullback.cli import main; main()"
HERE = Path(__file__).parent


def python(program: str, *arguments: str) -> list[str]:
    """The command that runs a program with arguments."""
    return [sys.executable, "-I", "-S", str(HERE / "client.py"), listening(), program, *arguments]


def command(*arguments: str) -> list[str]:
    """The command that runs kullback's command line."""
    return python(MAIN, *arguments)


@functools.cache
def listening() -> str:
    """Start the server of this process; return the path of its socket."""
    folder = tempfile.TemporaryDirectory(prefix="kullback-forked-")
    path = str(Path(folder.name) / "socket")
    one_thread = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, str(HERE / "server.py"), path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=one_thread,
    )
    atexit.register(_end, server, folder)
    assert server.stdout is not None
    assert server.stdout.read() == b"listening"
    return path


def _end(server: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
    server.communicate()  # closes its standard input
    folder.cleanup()
