"""vLLM's log-probabilities of prompts, from `RequestOutput` objects and from the JSON of vLLM's OpenAI-compatible
server.

For each prompt, `prompt_logprobs` is a list. Element i is a mapping from token ids to log-probabilities given the
tokens before i. The true token i is first in the mapping, followed by the k most probable tokens. The first element is
None. In JSON, the ids are text. With `flat_logprobs`, parallel lists have the same data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from kullback.io.top_k.records import RecordPlace, TopKSequence, get

_GUESSED = "the true tokens are taken to stand first at each position, as vLLM writes them"


def has_prompt_log_probs(record: object) -> bool:
    """Return whether a record is from vLLM, with log-probabilities of the prompt."""
    return bool(_prompts(record))


def read(record: Any, place: RecordPlace) -> Iterator[TopKSequence]:
    """Read the prompts of one response."""
    prompts = _prompts(record)
    if not prompts:
        raise place.error(
            wanted="prompt_logprobs",
            got="a response without them, or with null",
            instead="ask for them: SamplingParams(prompt_logprobs=20), or prompt_logprobs=20 in the request",
        )
    for prompt in prompts:
        ids = get(prompt, "prompt_token_ids") or get(record, "prompt_token_ids")
        yield _sequence(get(prompt, "prompt_logprobs"), ids, place)


def _prompts(record: object) -> list[Any]:
    """Return the parts with log-probabilities: the choices of a completion, or the whole response of a chat."""
    choices = get(record, "choices")
    parts = [record, *(choices if isinstance(choices, list) else [])]
    return [part for part in parts if get(part, "prompt_logprobs") is not None]


def _sequence(listed: Any, ids: Any, place: RecordPlace) -> TopKSequence:
    sequence = TopKSequence(place)
    if hasattr(listed, "start_indices"):
        rows = _flat_rows(listed, place)
    else:
        rows = [_row(row, i, place) for i, row in enumerate(place.list(listed, "prompt_logprobs, a list"))]
    if ids is not None:
        if len(place.list(ids, "prompt_token_ids, a list")) != len(rows):
            raise place.error(
                wanted=f"as many prompt_logprobs as prompt_token_ids, {len(ids)}",
                got=str(len(rows)),
                instead="turn off prefix caching: with it vLLM omits the prompt's first tokens",
            )
        sequence.set_tokens(ids)
    in_order = True
    for position, row in enumerate(rows):
        if not row:
            sequence.skipped += 1
            continue
        here = place.at(position)
        label = next(iter(row)) if ids is None else ids[position]
        if ids is None:
            in_order = in_order and _ascends([get(entry, "rank") for entry in list(row.values())[1:]])
        entries = {
            token: here.require(entry, "logprob", "an entry with a logprob") for token, entry in row.items()
        }
        sequence.add(position, entries.items(), label, entries.get(label) if isinstance(label, int) else None)
    if ids is None and in_order:
        sequence.notes.add(_GUESSED)
    elif ids is None:
        # Some program after vLLM has sorted the entries, so the true token is no longer known.
        sequence.forget_labels()
    return sequence


def _ascends(ranks: list[Any]) -> bool:
    return all(isinstance(rank, int) for rank in ranks) and all(a < b for a, b in pairwise(ranks))


def _row(row: Any, position: int, place: RecordPlace) -> dict[int, Any]:
    if row is None:
        return {}
    if not isinstance(row, Mapping):
        raise place.at(position).malformed("a mapping from token ids", row)
    entries: dict[int, Any] = {}
    for key, entry in row.items():
        try:
            token = int(key)
        except (TypeError, ValueError):
            token = None
        # In JSON, a key must be the text that Python writes for the id, so that no two keys have the same id.
        if token is None or (isinstance(key, str) and key != str(token)):
            raise place.at(position).malformed("token ids as keys", key)
        entries[token] = entry
    return entries


def _flat_rows(flat: Any, place: RecordPlace) -> list[dict[int, Any]]:
    """Return the rows of a FlatLogprobs, which may list the true token twice."""
    ends, columns = list(flat.end_indices), [list(x) for x in (flat.token_ids, flat.logprobs, flat.ranks)]
    if any(len(column) != len(columns[0]) for column in columns) or (ends and ends[-1] > len(columns[0])):
        raise place.malformed("a FlatLogprobs whose lists have one length", flat)
    rows: list[dict[int, Any]] = []
    for start, end in zip(flat.start_indices, ends, strict=True):
        row: dict[int, Any] = {}
        for token, value, rank in zip(*(column[int(start) : int(end)] for column in columns), strict=True):
            row.setdefault(int(token), {"logprob": value, "rank": None if rank is None else int(rank)})
        rows.append(row)
    return rows
