"""Log-probabilities in the format of OpenAI's API, which other servers also use.

Chats have ``choices[].logprobs.content[] = {token, bytes, logprob, top_logprobs: [{token, bytes, logprob}]}``,
completions ``choices[].logprobs = {tokens, token_logprobs, top_logprobs: [{token: logprob}]}``, with ``echo``
also for the prompt. Tokens are text; vLLM writes ``token_id:123`` when asked to, and llama-server adds ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from kullback.io.top_k.records import (
    CLAMPED,
    ENTRY,
    Collected,
    Place,
    Tokens,
    get,
    lists,
    require,
    require_one_length,
    token_id,
)


def has_log_probs(record: object) -> bool:
    """Return whether a record is such a response with log-probabilities."""
    choices = get(record, "choices")
    return isinstance(choices, list) and any(
        get(choice, "logprobs") is not None for choice in cast("list[Any]", choices)
    )


def read(record: Any, place: Place, tokens: Tokens | None) -> Iterator[Collected]:
    """Read the choices of one response, each a sequence."""
    if not has_log_probs(record):
        raise place.error(
            wanted="choices with logprobs",
            got="a response without them, or with null",
            instead="ask for them: logprobs=true and top_logprobs=20 for a chat, logprobs=5 for a completion",
        )
    for number, choice in enumerate(get(record, "choices")):
        found, here = get(choice, "logprobs"), place.at(f"choice {number}")
        if found is not None:
            content = get(found, "content")
            yield _completion(found, here, tokens) if content is None else _chat(content, here, tokens)


def _chat(content: Any, place: Place, tokens: Tokens | None) -> Collected:
    collected = Collected(place)
    for position, entry in enumerate(lists(content, "content, a list", place)):
        here = place.at(f"position {position}")
        listed = lists(get(entry, "top_logprobs"), "top_logprobs, a list", here)
        if not listed:
            raise _no_list(here)
        collected.add(
            position,
            [(_id(each, tokens, here), require(each, "logprob", ENTRY, here)) for each in listed],
            _id(entry, tokens, here),
            _known(require(entry, "logprob", ENTRY, here)),
        )
    return collected


def _completion(found: Any, place: Place, tokens: Tokens | None) -> Collected:
    texts, values, listed = (get(found, name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if listed is None:
        raise _no_list(place)
    require_one_length(place, tokens=texts, token_logprobs=values, top_logprobs=listed)
    collected = Collected(place)
    ids: list[int | None] = []
    for position, (text, value, entries) in enumerate(zip(texts, values, listed, strict=True)):
        here = place.at(f"position {position}")
        if not entries:
            # The first token of a prompt, which may be one that no text names.
            collected.skipped += 1
            ids.append(token_id(text, None, tokens, here) if _is_named(text, tokens) else None)
            continue
        ids.append(token_id(text, None, tokens, here))
        if not isinstance(entries, Mapping):
            raise here.malformed("a mapping from tokens to log-probabilities", entries)
        collected.add(
            position,
            [
                (token_id(each, None, tokens, here), x)
                for each, x in cast("Mapping[Any, Any]", entries).items()
            ],
            ids[-1],
            _known(value),
        )
    if None not in ids:
        collected.set_tokens(ids)
    return collected


def _is_named(text: Any, tokens: Tokens | None) -> bool:
    return isinstance(text, str) and (text.startswith("token_id:") or (tokens is not None and text in tokens))


def _no_list(place: Place) -> Exception:
    return place.error(
        wanted="top_logprobs, the most probable tokens",
        got="the chosen token alone",
        instead="ask for them: top_logprobs=20 for a chat, logprobs=5 for a completion",
    )


def _id(entry: Any, tokens: Tokens | None, place: Place) -> int:
    found = get(entry, "id")
    return (
        token_id(get(entry, "token"), get(entry, "bytes"), tokens, place)
        if found is None
        else cast("int", found)
    )


def _known(value: Any) -> Any:
    """Return the log-probability of the true token; None for -9999, which means less than the listed ones."""
    return None if value == CLAMPED else value
