"""vLLM's log-probabilities of prompts: `RequestOutput` objects, and the JSON of its OpenAI-compatible server.

For each prompt, `prompt_logprobs` is a list whose element i is a mapping from token ids to log-probabilities given the
tokens before i: those of the true token i first, then of the k most probable; None if there is nothing before. JSON
has the ids as text. With `flat_logprobs` the same stands in parallel lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from kullback.io.top_k.records import ENTRY, Collected, Place, Tokens, get, lists, require

_INSTEAD = "ask for them: SamplingParams(prompt_logprobs=20), or prompt_logprobs=20 in the request"
_GUESSED = "the true tokens are taken to stand first at each position, as vLLM writes them"


def has_prompt_log_probs(record: object) -> bool:
    """Return whether a record is from vLLM, with log-probabilities of the prompt."""
    return any(get(part, "prompt_logprobs") is not None for part in _parts(record))


def read(record: Any, place: Place, tokens: Tokens | None) -> Iterator[Collected]:
    """Read the prompts of one response."""
    del tokens
    if not has_prompt_log_probs(record):
        raise place.error(
            wanted="prompt_logprobs", got="a response without them, or with null", instead=_INSTEAD
        )
    for part in _parts(record):
        found = get(part, "prompt_logprobs")
        if found is not None:
            ids = get(part, "prompt_token_ids") or get(record, "prompt_token_ids")
            yield _prompt(found, ids, place)


def _parts(record: object) -> list[Any]:
    """Return the record and its choices: completions have the field in each choice, chats in the response."""
    choices = get(record, "choices")
    return [record, *(cast("list[Any]", choices) if isinstance(choices, list) else [])]


def _prompt(found: Any, ids: Any, place: Place) -> Collected:
    collected = Collected(place)
    rows = _flat_rows(found, place) if hasattr(found, "start_indices") else _rows(found, place)
    if ids is not None and len(lists(ids, "prompt_token_ids, a list", place)) != len(rows):
        raise place.error(
            wanted=f"as many prompt_logprobs as prompt_token_ids, {len(ids)}",
            got=str(len(rows)),
            instead="turn off prefix caching: with it vLLM omits the prompt's first tokens",
        )
    if ids is not None:
        collected.set_tokens(ids)
    in_order = True
    for position, row in enumerate(rows):
        if not row:
            collected.skipped += 1
            continue
        here = place.at(f"position {position}")
        label = next(iter(row)) if ids is None else ids[position]
        if ids is None:
            in_order = in_order and _ascends([get(entry, "rank") for entry in list(row.values())[1:]])
        entries = [(token, require(entry, "logprob", ENTRY, here)) for token, entry in row.items()]
        collected.add(position, entries, label, dict(entries).get(label) if isinstance(label, int) else None)
    if ids is None and in_order:
        collected.notes.add(_GUESSED)
    elif ids is None:
        # Something between vLLM and here has sorted the entries: which of them is the true token is lost.
        collected.forget_labels()
    return collected


def _ascends(ranks: list[Any]) -> bool:
    known = [rank for rank in ranks if isinstance(rank, int)]
    return len(known) == len(ranks) and all(a < b for a, b in pairwise(known))


def _rows(found: Any, place: Place) -> list[dict[int, Any]]:
    rows: list[dict[int, Any]] = []
    for position, row in enumerate(lists(found, "prompt_logprobs, a list", place)):
        if row is None:
            rows.append({})
            continue
        here = place.at(f"position {position}")
        if not isinstance(row, Mapping):
            raise here.malformed("a mapping from token ids", row)
        rows.append({_id(token, here): entry for token, entry in cast("Mapping[Any, Any]", row).items()})
    return rows


def _id(key: Any, place: Place) -> int:
    """Return the token id that a key is; in JSON as text, written as Python does, so that no two keys are one id."""
    try:
        number = int(key)
    except (TypeError, ValueError):
        number = None
    if number is None or (isinstance(key, str) and key != str(number)):
        raise place.malformed("token ids as keys", key)
    return number


def _flat_rows(found: Any, place: Place) -> list[dict[int, Any]]:
    """Return the rows of a FlatLogprobs, which may list the true token twice."""
    ends = list(found.end_indices)
    columns: Sequence[Sequence[Any]] = [list(each) for each in (found.token_ids, found.logprobs, found.ranks)]
    if any(len(column) != len(columns[0]) for column in columns) or (ends and ends[-1] > len(columns[0])):
        raise place.malformed("a FlatLogprobs whose lists have one length", found)
    rows: list[dict[int, Any]] = []
    for start, end in zip(found.start_indices, ends, strict=True):
        row: dict[int, Any] = {}
        for i in range(int(start), int(end)):
            rank = columns[2][i]
            row.setdefault(
                int(columns[0][i]),
                {"logprob": columns[1][i], "rank": None if rank is None else int(rank)},
            )
        rows.append(row)
    return rows
