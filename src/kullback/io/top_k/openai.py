"""Log-probabilities in the format of OpenAI's API, which other servers also use.

Chats have ``choices[].logprobs.content[] = {token, bytes, logprob, top_logprobs: [{token, bytes, logprob}]}``.
Completions have ``choices[].logprobs = {tokens, token_logprobs, top_logprobs: [{token: logprob}]}``, which includes the
prompt with ``echo``. Tokens are text. On request, vLLM writes ``token_id:123`` instead. llama-server adds ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kullback.io.top_k.records import CLAMPED, RecordPlace, TopKSequence, get


def has_log_probs(record: object) -> bool:
    """Return whether a record is a response of OpenAI's API with log-probabilities."""
    choices = get(record, "choices")
    return isinstance(choices, list) and any(get(choice, "logprobs") is not None for choice in choices)


def read(record: Any, place: RecordPlace) -> Iterator[TopKSequence]:
    """Read the choices of one response; each choice is a sequence."""
    if not has_log_probs(record):
        raise place.error(
            wanted="choices with logprobs",
            got="a response without them, or with null",
            instead="ask for them: logprobs=true and top_logprobs=20 for a chat, logprobs=5 for a completion",
        )
    for number, choice in enumerate(get(record, "choices")):
        log_probs, here = get(choice, "logprobs"), place.at(f"choice {number}")
        if log_probs is not None:
            content = get(log_probs, "content")
            yield _completion(log_probs, here) if content is None else _chat(content, here)


def _chat(content: Any, place: RecordPlace) -> TopKSequence:
    sequence = TopKSequence(place)
    for position, entry in enumerate(place.list(content, "content, a list")):
        here = place.at(position)
        listed = _require_list(here.list(get(entry, "top_logprobs"), "top_logprobs, a list"), here)
        chosen, *entries = [_pair(x, here) for x in (entry, *listed)]
        sequence.add(position, entries, chosen[0], _unless_clamped(chosen[1]))
    return sequence


def _completion(log_probs: Any, place: RecordPlace) -> TopKSequence:
    columns = {name: get(log_probs, name) for name in ("tokens", "token_logprobs", "top_logprobs")}
    if columns["top_logprobs"] is None:
        _require_list([], place)
    sequence = TopKSequence(place)
    ids: list[int | None] = []
    for position, (text, value, entries) in enumerate(place.aligned(columns)):
        here = place.at(position)
        if not entries:
            # This is the first token of a prompt, which may have no text.
            sequence.skipped += 1
            named = isinstance(text, str) and (text.startswith("token_id:") or text in (place.tokens or ()))
            ids.append(here.token_id(text) if named else None)
            continue
        ids.append(here.token_id(text))
        if not isinstance(entries, Mapping):
            raise here.malformed("a mapping from tokens to log-probabilities", entries)
        pairs = [(here.token_id(word), x) for word, x in entries.items()]
        sequence.add(position, pairs, ids[-1], _unless_clamped(value))
    if None not in ids:
        sequence.set_tokens(ids)
    return sequence


def _require_list(listed: Any, place: RecordPlace) -> Any:
    if not listed:
        raise place.error(
            wanted="top_logprobs, the most probable tokens",
            got="the chosen token alone",
            instead="ask for them: top_logprobs=20 for a chat, logprobs=5 for a completion",
        )
    return listed


def _pair(entry: Any, place: RecordPlace) -> tuple[Any, Any]:
    """Return the id and the log-probability of an entry of a chat."""
    token = get(entry, "id")
    if token is None:
        token = place.token_id(get(entry, "token"), get(entry, "bytes"))
    return token, place.require(entry, "logprob", "an entry with a logprob")


def _unless_clamped(value: Any) -> Any:
    """Return the log-probability of the true token; None for -9999, which means any value below the listed values."""
    return None if value == CLAMPED else value
