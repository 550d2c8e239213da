"""Log-probabilities of the tokens that llama-server generates, which ``n_probs`` of ``/completion`` requests.

Since December 2024, each token is ``{id, token, bytes, logprob, top_logprobs: [{id, token, bytes, logprob}]}``. With
``post_sampling_probs``, a token has ``prob`` and ``top_probs`` instead of ``logprob`` and ``top_logprobs``. Earlier
versions write ``{content, probs: [{tok_str, prob}]}``, without ids and with the probabilities after the samplers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from kullback.io.top_k.records import RecordPlace, TopKSequence, get

_AFTER_SAMPLERS = (
    "the probabilities are those after the samplers (temperature, top-k, top-p ...), not the model's own: leave out "
    "post_sampling_probs, or use a llama-server of 2025 or later"
)


def has_probabilities(record: object) -> bool:
    """Return whether a record is from llama-server."""
    return _tokens_of(record) is not None


def read(record: Any, place: RecordPlace) -> Iterator[TopKSequence]:
    """Read the generated tokens of one response."""
    tokens = _tokens_of(record)
    if tokens is None:
        raise place.error(
            wanted="completion_probabilities",
            got="a response without them",
            instead="ask for them: n_probs=20 in the request, without stream",
        )
    sequence = TopKSequence(place)
    for position, entry in enumerate(place.list(tokens, "completion_probabilities, a list")):
        here = place.at(position)
        fields = ("probs", "top_probs", "top_logprobs")
        field = next((name for name in fields if get(entry, name) is not None), fields[-1])
        listed = here.list(get(entry, field), f"{field}, a list")
        is_after = field != "top_logprobs"
        if is_after:
            sequence.notes.add(_AFTER_SAMPLERS)
        if field == "probs":
            entries = [(here.token_id(get(x, "tok_str")), _log_prob(x, here)) for x in listed]
            sequence.add(position, entries, here.token_id(get(entry, "content")) if entries else None)
            continue
        chosen, *entries = [
            (
                here.require(x, "id", "a token with its id"),
                _log_prob(x, here) if is_after else get(x, "logprob"),
            )
            for x in (entry, *listed)
        ]
        sequence.add(position, entries, *chosen)
    yield sequence


def _tokens_of(record: object) -> Any:
    tokens = get(record, "completion_probabilities")
    return get(record, "probs") if tokens is None else tokens  # the documentation's name


def _log_prob(entry: Any, place: RecordPlace) -> float:
    probability = get(entry, "prob")
    if isinstance(probability, bool) or not isinstance(probability, int | float) or not probability >= 0:
        raise place.malformed("a probability of 0 or more", probability)
    return math.log(probability) if probability > 0 else -math.inf
