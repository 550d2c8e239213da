"""Hand a program, its place and the open standard streams to the server; end as the program does."""

import fcntl
import json
import os
import signal
import socket
import sys
from contextlib import suppress


def main() -> None:
    """Hand over, wait and end."""
    made = socket.socket(socket.AF_UNIX)  # which gets the number of a standard stream that is closed
    connection = socket.socket(fileno=fcntl.fcntl(made.fileno(), fcntl.F_DUPFD, 3))
    made.close()
    streams = []
    for number in (0, 1, 2):
        with suppress(OSError):
            os.fstat(number)
            streams.append(number)
    path, *program = sys.argv[1:]
    connection.connect(path)
    text = json.dumps([program, os.getcwd(), dict(os.environ), streams]).encode()  # noqa: PTH109 - pathlib takes longer
    connection.sendall(len(text).to_bytes(8, "big"))
    connection.sendall(text[socket.send_fds(connection, [text], streams) :])
    status = int.from_bytes(connection.recv(4), "big", signed=True)
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
