"""Requests to a server in JSON, over one connection pool, with retries and with limits on the size and time of
answers.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from threading import Event
from typing import Any, NamedTuple

from kullback.common.optional import load
from kullback.common.plain_values import decoded
from kullback.errors import BY_EVENT, ModelError, printable
from kullback.models.language_model import not_opened

ATTEMPTS = 5
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds; each wait is twice the previous wait
CONNECT_TIMEOUT = 10.0
MOST_BYTES = 1 << 28  # the largest size of a decompressed answer in bytes
LONGEST_IN_TIMEOUTS = 2  # the longest time of a whole request, in multiples of `timeout`
# Statuses of temporary failures: a timeout, too early, too many requests, an error, or a restart behind a proxy.
RETRIED = {408, 425, 429, 500, 502, 503, 504}
REDIRECTS = range(300, 400)
GZIP = 16 + zlib.MAX_WBITS  # zlib then expects the gzip format
NOT_ALLOWED = {401, 403}
# Words in httpx's message for a lost connection, which is a temporary failure. Other protocol errors come from a wrong
# answer of the server.
LOST = "disconnected", "closed"


class _PassingError(Exception):
    """One attempt failed, but the next attempt may succeed; `after` is the wait in seconds that the server asks for."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


class UnreachableError(ModelError):
    """A server gave no answer, or only errors, in all attempts; `got` describes the last failure."""


class Answer(NamedTuple):
    """A server's answer: the status, and the decoded JSON (None if the content is not JSON)."""

    status: int
    body: Any

    @property
    def is_good(self) -> bool:
        """Whether the request was carried out."""
        return 200 <= self.status < 300


class Endpoint:
    """A server at an address, such as ``http://localhost:8000``; a ``/v1`` at the end is ignored.

    The key in the environment variable `api_key_env` is sent in the ``Authorization`` header and appears in no message.
    `timeout` is the seconds until the next bytes, and `first_wait` those before the second attempt.
    """

    def __init__(
        self,
        address: str,
        *,
        api_key_env: str | None = None,
        timeout: float = 300.0,
        first_wait: float = FIRST_WAIT,
    ) -> None:
        self._httpx = httpx = load("httpx", "a model on a server")
        tenacity = load("tenacity", "a model on a server")
        self.address = _checked(httpx, address)
        self._stopped = Event()
        self._key = None
        if api_key_env is not None:
            self._key = os.environ.get(api_key_env, "").strip()
            if not self._key:
                raise not_opened(
                    self.address,
                    wanted=f"the key in the environment variable {printable(api_key_env)}",
                    got="none",
                    instead=f"set it: export {printable(api_key_env)}=...",
                )
        self._longest = LONGEST_IN_TIMEOUTS * timeout
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx.Client(
            headers=headers | {"Accept-Encoding": "gzip"},
            timeout=httpx.Timeout(timeout, connect=CONNECT_TIMEOUT),
            follow_redirects=False,  # the key and the text are sent to the given address alone
            event_hooks={"response": [self._refuse_redirection]},  # before httpx reads the new address
        )
        self._backoff = tenacity.wait_exponential(first_wait, max=LONGEST_WAIT)
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_PassingError),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=self._wait,
            sleep=self._sleep,
            reraise=True,
        )

    def get(self, path: str) -> Answer:
        """Send a GET request."""
        return self._request("GET", path, None, MOST_BYTES)

    def post(self, path: str, body: object, most_bytes: int = MOST_BYTES) -> Answer:
        """Send a POST request with JSON, and read at most `most_bytes` of the answer."""
        return self._request("POST", path, body, most_bytes)

    def stop(self) -> None:
        """Stop further attempts of requests in other threads, until `resume` is called."""
        self._stopped.set()

    def resume(self) -> None:
        """Allow further attempts after `stop`."""
        self._stopped.clear()

    def close(self) -> None:
        """Close the connections."""
        self.stop()
        self._client.close()

    def message(self, answer: Answer) -> str:
        """Return the server's error message, in one line, without the key."""
        body = answer.body
        for name in ("error", "message", "detail"):
            if isinstance(body, dict) and name in body:
                body = body[name]
        text = body if isinstance(body, str) else json.dumps(body) if body is not None else "no explanation"
        return f"status {answer.status}: {self._without_key(printable(text, 300))}"

    def _request(self, method: str, path: str, body: object, most_bytes: int) -> Answer:
        try:
            return self._retrying(self._once, method, path, body, most_bytes)
        except _PassingError as error:
            raise self._unreachable(str(error)) from None

    def _once(self, method: str, path: str, body: object, most_bytes: int) -> Answer:
        """Make one attempt; it raises `_PassingError` if the next attempt may succeed."""
        ends = time.monotonic() + self._longest
        try:
            with self._client.stream(method, self.address + path, json=body) as response:
                content = self._content(response, most_bytes, ends)
        except zlib.error as error:
            raise self._unreachable(str(error)) from None
        except self._httpx.HTTPError as error:
            said = " ".join(str(error).split()) or type(error).__name__
            reason = self._without_key(printable(said, 200))
            is_answer = isinstance(error, self._httpx.ProtocolError)
            if is_answer and not any(word in reason for word in LOST):
                raise self._unreachable(reason) from None
            raise _PassingError(reason) from None
        answer = Answer(response.status_code, decoded(content))
        if answer.status in RETRIED:
            after = response.headers.get("retry-after", "")
            seconds = float(after) if after.isascii() and after.isdecimal() else 0.0
            raise _PassingError(self.message(answer), seconds)
        if answer.status in NOT_ALLOWED:
            instead = "check the key" if self._key else "name the variable with its key (--api-key-env NAME)"
            raise ModelError.at(
                self.address,
                wanted="access to the server",
                got=f"the server refuses access ({self.message(answer)})",
                instead=instead,
                wording=BY_EVENT,
            )
        return answer

    def _wait(self, state: Any) -> float:
        """Return the seconds to wait after a failed attempt."""
        return min(max(self._backoff(state), state.outcome.exception().after), LONGEST_WAIT)

    def _sleep(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise self._unreachable("a stop before the next attempt")

    def _unreachable(self, reason: str) -> UnreachableError:
        return UnreachableError.at(
            self.address,
            wanted="a server that answers",
            got=reason,
            instead="check that it runs and that the address is right, and see its log",
        )

    def _content(self, response: Any, most_bytes: int, ends: float) -> bytes:
        """Read and decompress an answer piece by piece; refuse one that is too long or takes too much time."""
        coding = response.headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity", "gzip"):
            raise ModelError.at(
                self.address,
                wanted="an answer that is plain or compressed with gzip",
                got=printable(coding, 40),
                instead="see the settings of the server, or of a proxy before it",
            )
        content, gzip = bytearray(), zlib.decompressobj(GZIP) if coding == "gzip" else None
        for piece in response.iter_raw():
            # httpx would decompress a whole piece of any size. This loop stops at one byte more than allowed.
            part = piece if gzip is None else gzip.decompress(piece, most_bytes + 1 - len(content))
            if len(content) + len(part) > most_bytes:
                raise ModelError.at(
                    self.address,
                    wanted=f"an answer of at most {most_bytes >> 20} MiB",
                    got="a longer one",
                    instead="ask for fewer tokens (--top), or take a smaller context (--context)",
                )
            if time.monotonic() > ends:
                raise UnreachableError.at(
                    self.address,
                    wanted="an answer",
                    got=f"an answer that did not end within {self._longest:g} seconds",
                    instead="take a smaller context (--context), or see the server's log",
                )
            content += part
        return bytes(content)

    def _refuse_redirection(self, response: Any) -> None:
        if response.status_code in REDIRECTS:
            location = self._without_key(printable(response.headers.get("location", ""), 200))
            raise ModelError.at(
                self.address,
                wanted="an answer",
                got=f"a redirection to {location}",
                instead="give that address if it is the server's",
            )

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


def _checked(httpx: Any, address: str) -> str:
    shown = printable(address, 200)
    try:
        url = httpx.URL(address)
    except (httpx.InvalidURL, ValueError) as error:
        raise not_opened(
            shown, wanted="an address", got=f"none ({error})", instead="write http://localhost:8000"
        ) from None
    if url.userinfo:
        raise not_opened(
            f"{url.scheme}://...@{url.host}",
            wanted="an address without a password",
            got="one with it",
            instead="put the key into an environment variable and name that (--api-key-env NAME)",
        )
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise not_opened(
            shown,
            wanted="an address as http://host:port",
            got="another",
            instead="write http://localhost:8000",
        )
    return address.strip().rstrip("/").removesuffix("/v1").rstrip("/")
