"""llama-server's log-probabilities of the tokens that it generates: ``n_probs`` of ``/completion``.

Today each token is ``{id, token, bytes, logprob, top_logprobs: [{id, token, bytes, logprob}]}``; with
``post_sampling_probs`` it has ``prob`` and ``top_probs`` instead. Before December 2024 it was ``{content, probs:
[{tok_str, prob}]}``, with the probabilities after the samplers and without ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from kullback.io.top_k.records import Collected, Place, Tokens, get, lists, require, token_id

_AFTER_SAMPLERS = (
    "the probabilities are those after the samplers (temperature, top-k, top-p ...), not the model's own: leave out "
    "post_sampling_probs, or use a llama-server of 2025 or later"
)


def has_probabilities(record: object) -> bool:
    """Return whether a record is from llama-server."""
    return _tokens_of(record) is not None


def read(record: Any, place: Place, tokens: Tokens | None) -> Iterator[Collected]:
    """Read the generated tokens of one response."""
    found = _tokens_of(record)
    if found is None:
        raise place.error(
            wanted="completion_probabilities",
            got="a response without them",
            instead="ask for them: n_probs=20 in the request, without stream",
        )
    collected = Collected(place)
    for position, entry in enumerate(lists(found, "completion_probabilities, a list", place)):
        _add(collected, position, entry, tokens, place.at(f"position {position}"))
    yield collected


def _tokens_of(record: object) -> Any:
    found = get(record, "completion_probabilities")
    if found is None:
        found = get(record, "probs")  # the documentation's name for it
    return found


def _add(collected: Collected, position: int, entry: Any, tokens: Tokens | None, place: Place) -> None:
    if get(entry, "probs") is not None:  # the old form
        collected.notes.add(_AFTER_SAMPLERS)
        listed = lists(get(entry, "probs"), "probs, a list", place)
        pairs = [
            (token_id(get(each, "tok_str"), None, tokens, place), _log_of(get(each, "prob"), place))
            for each in listed
        ]
        chosen = token_id(get(entry, "content"), None, tokens, place) if pairs else None
        collected.add(position, pairs, chosen)
        return
    after = get(entry, "top_probs") is not None
    if after:
        collected.notes.add(_AFTER_SAMPLERS)
    listed = lists(get(entry, "top_probs" if after else "top_logprobs"), "top_logprobs, a list", place)
    collected.add(
        position,
        [(require(each, "id", "a token with its id", place), _value(each, after, place)) for each in listed],
        require(entry, "id", "a token with its id", place),
        _value(entry, after, place),
    )


def _value(entry: Any, after: bool, place: Place) -> Any:
    value = get(entry, "prob" if after else "logprob")
    return _log_of(value, place) if after else value


def _log_of(probability: Any, place: Place) -> float:
    if isinstance(probability, bool) or not isinstance(probability, int | float) or not probability >= 0:
        raise place.malformed("a probability of 0 or more", probability)
    return math.log(probability) if probability > 0 else -math.inf
