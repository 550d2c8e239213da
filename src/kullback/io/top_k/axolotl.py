"""axolotl's datasets for distillation in Parquet or JSON lines, with one row for each text.

A field (by default `llm_text_generation_vllm_logprobs`) has, for each position, a list of
``{"token": "token_id:123", "logprob": -0.5}``. In a later form, the field has lists of numbers, and `target_token_ids`
has the tokens. Positions that are null or empty, or masked by `target_mask`, have no distribution. Releases of axolotl
differ in the token that a position predicts, so the true token is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kullback.io.top_k.records import RecordPlace, TopKSequence, get

FIELDS = ("llm_text_generation_vllm_logprobs", "target_logprobs", "logprobs")
_IDS, _MASK = "target_token_ids", "target_mask"


def has_fields(record: object) -> bool:
    """Return whether a record has fields of axolotl."""
    return isinstance(record, Mapping) and (
        FIELDS[0] in record or (_IDS in record and any(name in record for name in FIELDS[1:]))
    )


def read(record: Any, place: RecordPlace) -> Iterator[TopKSequence]:
    """Read one row, whose log-probabilities are in the field that the caller names, or in one of `FIELDS`."""
    name = place.key or next((name for name in FIELDS if get(record, name) is not None), FIELDS[0])
    listed = get(record, name)
    if listed is None:
        raise place.error(
            wanted=f"a field {name!r}",
            got="none, or null",
            instead="pass key= with the name of the field, axolotl's logprobs_field",
        )
    ids, masks = get(record, _IDS), get(record, _MASK) or None
    sequence = TopKSequence(place)
    rows = place.aligned({name: listed}, {_IDS: ids, _MASK: masks})
    for position, (row, tokens, mask) in enumerate(rows):
        here = place.at(position)
        if not row or (isinstance(mask, list) and not any(mask)):
            sequence.skipped += 1
        elif ids is None:
            entries = here.list(row, 'a list of {"token", "logprob"}')
            sequence.add(position, [(here.token_id(get(x, "token")), get(x, "logprob")) for x in entries])
        else:
            sequence.add(position, here.aligned({_IDS: tokens, name: row}))
    yield sequence
