"""axolotl's datasets for distillation, as Parquet or JSON lines: one row for each text.

A field (by default `llm_text_generation_vllm_logprobs`) has, for each position, a list of ``{"token": "token_id:123",
"logprob": -0.5}``; in the later form it has lists of numbers, and `target_token_ids` has the tokens. Positions that are
null or empty, or masked by `target_mask`, have no distribution. Releases of axolotl differ in which token a row
predicts, so the true token is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from kullback.io.top_k.records import Collected, Place, Tokens, get, lists, token_id

FIELDS = ("llm_text_generation_vllm_logprobs", "target_logprobs", "logprobs")
_IDS, _MASK = "target_token_ids", "target_mask"


def has_fields(record: object) -> bool:
    """Return whether a record has fields of axolotl."""
    return isinstance(record, Mapping) and (
        FIELDS[0] in record or (_IDS in record and any(name in record for name in FIELDS[1:]))
    )


def reader_of(key: str | None) -> Callable[[Any, Place, Tokens | None], Iterator[Collected]]:
    """Return the function that reads a record whose log-probabilities are in the field `key`."""

    def read(record: Any, place: Place, tokens: Tokens | None) -> Iterator[Collected]:
        name = key or next((each for each in FIELDS if get(record, each) is not None), FIELDS[0])
        found = get(record, name)
        if found is None:
            raise place.error(
                wanted=f"a field {name!r}",
                got="none, or null",
                instead="pass key= with the name of the field, axolotl's logprobs_field",
            )
        rows = lists(found, f"{name}, a list", place)
        ids = get(record, _IDS)
        masks = get(record, _MASK) or [None] * len(rows)
        if len(lists(masks, f"{_MASK}, a list", place)) != len(rows) or (
            ids is not None and len(lists(ids, f"{_IDS}, a list", place)) != len(rows)
        ):
            raise place.error(
                wanted=f"as many rows of {_IDS} and {_MASK} as of {name}, {len(rows)}",
                got=f"{len(masks)} and {'none' if ids is None else len(ids)}",
                instead="write the dataset again",
            )
        collected = Collected(place)
        for position, row in enumerate(rows):
            here = place.at(f"position {position}")
            mask = masks[position]
            if not row or (isinstance(mask, list) and not any(cast("list[Any]", mask))):
                collected.skipped += 1
            elif ids is None:
                collected.add(position, _entries(row, tokens, here))
            else:
                collected.add(position, _pairs(row, ids[position], here))
        yield collected

    return read


def _entries(row: Any, tokens: Tokens | None, place: Place) -> list[tuple[int, Any]]:
    entries = lists(row, 'a list of {"token", "logprob"}', place)
    return [(token_id(get(each, "token"), None, tokens, place), get(each, "logprob")) for each in entries]


def _pairs(row: Any, ids: Any, place: Place) -> list[tuple[Any, Any]]:
    values, tokens = lists(row, "a list of log-probabilities", place), lists(ids, f"{_IDS}, lists", place)
    if len(values) != len(tokens):
        raise place.error(
            wanted=f"as many log-probabilities as {_IDS}, {len(tokens)}",
            got=str(len(values)),
            instead="write the dataset again",
        )
    return list(zip(tokens, values, strict=True))
