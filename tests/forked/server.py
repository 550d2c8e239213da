"""Import what commands need; then fork for each client a process that runs its program, until pytest ends."""

import gc
import importlib
import json
import os
import select
import socket
import sys
from io import TextIOWrapper
from typing import Any

IMPORTED = [
    *(
        "click",
        "narwhals",
        "numpy",
        "pyarrow.compute",
        "pyarrow.csv",
        "pyarrow.parquet",
        "scipy.special",
        "torch",
    ),
    *("rich.console", "rich.markup", "rich.progress", "rich.table", "scipy.stats", "kullback.pairs"),
    *("kullback.cli.commands", "kullback.cli.prediction_comparison", "kullback.tables.compare_two_tables"),
]


def received(connection: socket.socket) -> tuple[list[Any], dict[int, int]]:
    """A client's request, and its standard streams by number."""
    length = int.from_bytes(connection.recv(8), "big")
    text, given = b"", list[int]()
    while len(text) < length:
        block, more, _, _ = socket.recv_fds(connection, length - len(text), 3)
        text, given = text + block, [*given, *more]
    *request, numbers = json.loads(text)
    return request, dict(zip(numbers, given, strict=True))


def serve(path: str) -> tuple[list[Any], dict[int, int]]:
    """Return, in a process forked for it, the request of each client."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    os.write(1, b"listening")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:  # pytest has closed it
            sys.exit()
        connection, _ = listener.accept()
        if os.fork():  # the server goes on, while the other waits for the program
            connection.close()
            os.wait()
            continue
        if os.fork():
            os._exit(0)
        listener.close()
        request, streams = received(connection)
        program = os.fork()
        if not program:
            connection.close()
            return request, streams
        for stream in streams.values():
            os.close(stream)
        _, status = os.waitpid(program, 0)
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
        os._exit(0)


def take(streams: dict[int, int]) -> None:
    """Make these the standard streams, as Python does at its start."""
    for number, (name, mode) in enumerate((("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb"))):
        os.close(number)
        stream = None
        if number in streams:
            os.dup2(streams[number], number)
            os.close(streams[number])
            stream = TextIOWrapper(
                os.fdopen(number, mode, closefd=False),
                encoding="utf-8",
                errors="backslashreplace" if name == "stderr" else "strict",
                line_buffering=name == "stderr" or os.isatty(number),
            )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def main() -> None:
    """Import, serve, and be each program."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that the end of each process need not look at what was imported
    (program, *arguments), folder, variables = (request := serve(sys.argv[1]))[0]
    take(request[1])
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["-c", *arguments]
    sys.path[0] = ""
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - a test's own program


if __name__ == "__main__":
    main()
