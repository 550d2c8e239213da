"""Answers of hostile or broken servers: bounded memory, bounded time, and one error in words."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from kullback.errors import ModelError
from kullback.models import http
from kullback.models.http import Answer, Endpoint, UnreachableError

pytest.importorskip("httpx")

GOOD = b'{"a": [1, 2]}'
Send = Callable[[socket.socket], None]


@contextmanager
def server(send: Send) -> Iterator[tuple[str, list[bytes]]]:
    """Serve every request by a function of the connection; give the address and the requests."""
    requests: list[bytes] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                requests.append(read(connection))
                send(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", requests
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


def read(connection: socket.socket) -> bytes:
    """Read a whole request: a connection closed before would be reset, and the answer lost."""
    with connection.makefile("rb") as file:
        lines = list(iter(file.readline, b"\r\n"))
        length = next((line for line in lines if line.lower().startswith(b"content-length:")), b":0")
        return b"".join(lines) + file.read(int(length.partition(b":")[2]))


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin-1")


def whole(body: bytes, *lines: str, status: str = "200 OK") -> Send:
    answer = head(f"Content-Length: {len(body)}", *lines, status=status) + body
    return lambda connection: connection.sendall(answer)


def asked(send: Send, *, timeout: float = 20.0, most_bytes: int = http.MOST_BYTES) -> tuple[Answer, int]:
    """Return the answer and how many requests it took."""
    with server(send) as (address, requests):
        endpoint = Endpoint(address, timeout=timeout, first_wait=0.01)
        try:
            return endpoint.post("/v1/completions", {}, most_bytes), len(requests)
        finally:
            endpoint.close()


def refused(send: Send, **settings: float) -> tuple[str, int]:
    """Return the error and how many requests it took."""
    with server(send) as (address, requests):
        endpoint = Endpoint(address, timeout=settings.pop("timeout", 20.0), first_wait=0.01)
        with pytest.raises(ModelError) as caught:
            endpoint.post("/v1/completions", {}, int(settings.pop("most_bytes", http.MOST_BYTES)))
        endpoint.close()
        return str(caught.value), len(requests)


def compressed(content: bytes) -> bytes:
    """The content in gzip, without the time, which would be in the names of tests."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (GOOD, None),
        (GOOD, "identity"),
        (compressed(GOOD), "gzip"),
        (compressed(GOOD), "GZip"),
        (compressed(json.dumps(list(range(200_000))).encode()), "gzip"),
    ],
)
def test_answers_are_read_whole_compressed_or_not(body: bytes, coding: str | None) -> None:
    answer, requests = asked(whole(body, *([] if coding is None else [f"Content-Encoding: {coding}"])))
    assert answer.body == (list(range(200_000)) if len(body) > 1000 else {"a": [1, 2]})
    assert requests == 1


def test_answers_in_small_pieces_are_decompressed() -> None:
    body = compressed(GOOD)

    def send(connection: socket.socket) -> None:
        connection.sendall(head("Content-Encoding: gzip", "Transfer-Encoding: chunked"))
        for byte in body:
            connection.sendall(b"1\r\n" + bytes([byte]) + b"\r\n")
        connection.sendall(b"0\r\n\r\n")

    assert asked(send)[0].body == {"a": [1, 2]}


def bomb(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    piece = bytes(1 << 20)
    return b"".join(packer.compress(piece) for _ in range(size >> 20)) + packer.flush()


@pytest.mark.sweep
def test_the_limit_holds_while_an_answer_is_decompressed() -> None:
    body, most = bomb(1 << 28), 1 << 22
    assert len(body) < most
    tracemalloc.start()
    try:
        said, requests = refused(whole(body, "Content-Encoding: gzip"), most_bytes=most)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "at most 4 MiB" in said
    assert requests == 1
    assert peak < 4 * most


def test_an_answer_of_the_most_bytes_is_taken() -> None:
    body = b'"' + b"a" * (1 << 16) + b'"'
    for sent, lines in ((body, ()), (compressed(body), ("Content-Encoding: gzip",))):
        assert asked(whole(sent, *lines), most_bytes=len(body))[0].body == body.decode()[1:-1]
        assert "a longer one" in refused(whole(sent, *lines), most_bytes=len(body) - 1)[0]


@pytest.mark.parametrize(
    ("body", "coding", "said"),
    [
        (GOOD, "gzip", "incorrect header check"),
        (zlib.compress(GOOD), "deflate", "got deflate"),
        (GOOD, "br", "got br"),
        (GOOD, "zstd", "got zstd"),
        (compressed(compressed(GOOD)), "gzip, gzip", "got gzip, gzip"),
    ],
)
def test_another_compression_is_refused_at_once(body: bytes, coding: str, said: str) -> None:
    error, requests = refused(whole(body, f"Content-Encoding: {coding}"))
    assert said in error
    assert requests == 1


def drip(start: bytes, rest: bytes) -> Send:
    def send(connection: socket.socket) -> None:
        connection.sendall(start)
        for byte in rest:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)

    return send


ENDLESS = b" " * 10_000


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("start", "rest"),
    [
        (head("Content-Length: 10000"), ENDLESS),
        (head(), ENDLESS),  # its end is that of the connection
        (head("Transfer-Encoding: chunked"), b"1\r\n \r\n" * 2000),
    ],
    ids=["length", "close", "chunked"],
)
def test_an_answer_that_never_ends_is_given_up(start: bytes, rest: bytes) -> None:
    error, requests = refused(drip(start, rest), timeout=0.4)
    assert "did not end within 0.8 seconds" in error
    assert requests == 1


def test_a_slow_answer_within_the_limit_is_taken() -> None:
    assert asked(drip(head(f"Content-Length: {len(GOOD)}"), GOOD), timeout=5.0)[0].body == {"a": [1, 2]}


@pytest.mark.parametrize("after", ["²", "٣", "-1", "1e3", "soon", "", "9" * 400, "0"])
def test_any_time_to_wait_is_read_or_left_aside(after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LONGEST_WAIT", 0.02)
    lines = (
        head("Content-Length: 0", status="503 Busy")[:-2] + b"Retry-After: " + after.encode() + b"\r\n\r\n"
    )
    latin = lines.replace("²".encode(), "²".encode("latin-1"))
    for answer in (lines, latin):
        with pytest.raises(UnreachableError, match="status 503"):
            asked(lambda connection, answer=answer: connection.sendall(answer))


@pytest.mark.parametrize(
    "location", ["http://a\x07b/", "http://a\x7fb/", "http://\x85/", "//[", "http://b:99999999/", "\x00", ""]
)
@pytest.mark.parametrize("status", ["301 Moved", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_a_redirection_is_refused_at_once_whatever_it_says(location: str, status: str) -> None:
    error, requests = refused(whole(b"", f"Location: {location}", status=status))
    assert requests == 1
    assert "a redirection to" in error or "illegal header line" in error
    assert all(char.isprintable() for char in error)


def test_a_lost_connection_is_tried_again() -> None:
    count = iter(range(10))

    def send(connection: socket.socket) -> None:
        place = next(count)
        if place == 1:
            connection.sendall(head("Content-Length: 100") + b"{")
        elif place == 2:
            connection.sendall(head(f"Content-Length: {len(GOOD)}") + GOOD)

    assert asked(send) == (Answer(200, {"a": [1, 2]}), 3)
