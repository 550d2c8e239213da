"""Requests to a server: JSON over one connection pool, with timeouts, retries, and answers of bounded size."""

from __future__ import annotations

import json
import os
from threading import Event
from typing import Any, NamedTuple

from kullback.errors import ModelError, printable
from kullback.optional import load

__all__ = ["Answer", "Endpoint", "UnreachableError"]

ATTEMPTS = 5
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds; each wait is twice the one before
CONNECT_TIMEOUT = 10.0
MOST_BYTES = 1 << 28  # of an answer
# Statuses that may pass: too early, too many requests, an error, or a restart behind a proxy.
RETRIED = {408, 425, 429, 500, 502, 503, 504}
REDIRECTS = range(300, 400)
NOT_ALLOWED = {401, 403}


class UnreachableError(ModelError):
    """A server does not answer, or only with errors, after all attempts; `reason` says what came last."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Answer(NamedTuple):
    """What a server answered: the status, and the JSON or None."""

    status: int
    body: Any

    @property
    def is_good(self) -> bool:
        """Whether the request was carried out."""
        return 200 <= self.status < 300


class Endpoint:
    """A server at an address.

    Arguments:
        address: as in ``http://localhost:8000``; a ``/v1`` at its end is ignored.
        api_key_env: the name of the environment variable with the key that the server asks for. The key goes into the
            ``Authorization`` header and into no message.
        timeout: how many seconds the server may take before it sends something.
        first_wait: how many seconds to wait before the second attempt.

    Raises:
        ModelError: the address is none, or the environment variable is not set.
        OptionalDependencyError: httpx is not installed.
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
        self.address = _checked(httpx, address)
        self._first_wait = first_wait
        self._stopped = Event()
        self._key = None
        if api_key_env is not None:
            self._key = os.environ.get(api_key_env, "").strip()
            if not self._key:
                raise ModelError(
                    f"model = {self.address}: wanted the key in the environment variable {printable(api_key_env)}; got "
                    f"none; set it: export {printable(api_key_env)}=..."
                )
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=CONNECT_TIMEOUT),
            follow_redirects=False,  # the key and the text go to the address that was named, and to no other
        )

    def get(self, path: str) -> Answer:
        """Send a GET request."""
        return self._request("GET", path, None, MOST_BYTES)

    def post(self, path: str, body: object, most_bytes: int = MOST_BYTES) -> Answer:
        """Send a POST request with JSON, and read at most `most_bytes` of the answer."""
        return self._request("POST", path, body, most_bytes)

    def stop(self) -> None:
        """Let requests in other threads make no further attempt, until `resume`."""
        self._stopped.set()

    def resume(self) -> None:
        """Let requests be tried again."""
        self._stopped.clear()

    def close(self) -> None:
        """Close the connections."""
        self.stop()
        self._client.close()

    def message(self, answer: Answer) -> str:
        """Return what the server said went wrong, in one line, without the key."""
        body = answer.body
        for name in ("error", "message", "detail"):
            if isinstance(body, dict) and name in body:
                body = body[name]
        text = body if isinstance(body, str) else json.dumps(body) if body is not None else "no explanation"
        return f"status {answer.status}: {self._without_key(printable(text, 300))}"

    def _request(self, method: str, path: str, body: object, most_bytes: int) -> Answer:
        wait, reason = self._first_wait, "no answer"
        for attempt in range(ATTEMPTS):
            if attempt and self._stopped.wait(wait):
                break
            wait = min(2 * wait, LONGEST_WAIT)
            try:
                answer, after = self._once(method, path, body, most_bytes)
            except self._httpx.HTTPError as error:
                reason = self._without_key(_in_short(error))
                continue
            if answer.status not in RETRIED:
                return self._accepted(answer)
            reason = self.message(answer)
            wait = min(max(wait, after), LONGEST_WAIT)
        raise UnreachableError(
            f"{self.address}: wanted a server that answers; got {reason}; check that it runs and that the address is "
            "right, and see its log",
            reason,
        )

    def _once(self, method: str, path: str, body: object, most_bytes: int) -> tuple[Answer, float]:
        with self._client.stream(method, self.address + path, json=body) as response:
            content = bytearray()
            for part in response.iter_bytes():
                content += part
                if len(content) > most_bytes:
                    raise ModelError(
                        f"{self.address}: wanted an answer of at most {most_bytes >> 20} MiB; got a longer one; ask "
                        "for fewer tokens (--top), or take a smaller --context"
                    )
            status = response.status_code
            after = response.headers.get("retry-after", "")
            location = response.headers.get("location", "")
        if status in REDIRECTS:
            return Answer(status, location), 0.0
        return Answer(status, _decoded(bytes(content))), float(after) if after.isdigit() else 0.0

    def _accepted(self, answer: Answer) -> Answer:
        if answer.status in REDIRECTS:
            raise ModelError(
                f"{self.address}: wanted an answer; got a redirection to {printable(answer.body, 200)}; give that "
                "address if it is the server's"
            )
        if answer.status in NOT_ALLOWED:
            instead = "check the key" if self._key else "name the variable with its key (--api-key-env NAME)"
            raise ModelError(f"{self.address}: the server refuses access ({self.message(answer)}); {instead}")
        return answer

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


def _checked(httpx: Any, address: str) -> str:
    shown = printable(address, 200)
    try:
        url = httpx.URL(address)
    except (httpx.InvalidURL, ValueError) as error:
        raise ModelError(
            f"model = {shown}: wanted an address; got none ({error}); write http://localhost:8000"
        ) from None
    if url.userinfo:
        raise ModelError(
            f"model = {url.scheme}://...@{url.host}: wanted an address without a password; got one with it; put the "
            "key into an environment variable and name that (--api-key-env NAME)"
        )
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise ModelError(
            f"model = {shown}: wanted an address as http://host:port; got another; write http://localhost:8000"
        )
    return address.strip().rstrip("/").removesuffix("/v1").rstrip("/")


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _in_short(error: Exception) -> str:
    return printable(" ".join(str(error).split()) or type(error).__name__, 200)
