"""SGLang's log-probabilities, which are in `meta_info` of a response of ``/generate`` with ``return_logprob``.

`input_token_logprobs` has an entry ``[log-probability, id, text]`` for each token of the prompt. `input_top_logprobs`
has for each token a list of such entries for the most probable tokens, or null for the first token. Without these
fields, the fields of the output are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kullback.io.top_k.records import RecordPlace, TopKSequence, get


def has_meta_info(record: object) -> bool:
    """Return whether a record is from SGLang."""
    return get(record, "meta_info") is not None


def read(record: Any, place: RecordPlace) -> Iterator[TopKSequence]:
    """Read one response: the prompt, or the generated text if the prompt's log-probabilities were not requested."""
    meta = get(record, "meta_info")
    side = next((side for side in ("input", "output") if get(meta, f"{side}_top_logprobs")), None)
    if side is None:
        raise place.error(
            wanted="meta_info with input_top_logprobs",
            got="a response without it",
            instead="ask for them: return_logprob=true, logprob_start_len=0, top_logprobs_num=20",
        )
    field = f"{side}_top_logprobs"
    true = f"{side}_token_logprobs"
    rows = list(place.aligned({field: get(meta, field)}, {true: get(meta, true) or None}))
    prompt = get(meta, "prompt_tokens")
    # `logprob_start_len` may have moved the first token.
    first = max(0, prompt - len(rows)) if side == "input" and type(prompt) is int else 0
    sequence = TopKSequence(place)
    if first == 0 and all(label for _, label in rows):
        sequence.set_tokens(_pair(label, place)[0] for _, label in rows)
    for position, (entries, label) in enumerate(rows, start=first):
        if not entries:
            sequence.skipped += 1
            continue
        here = place.at(position)
        pairs = [_pair(entry, here) for entry in here.list(entries, f"{field}, lists of lists")]
        sequence.add(position, pairs, *((None, None) if label is None else _pair(label, here)))
    yield sequence


def _pair(entry: Any, place: RecordPlace) -> tuple[Any, Any]:
    """Return the id and the log-probability of an entry."""
    parts = place.list(entry, "an entry [log-probability, id, text]")
    if len(parts) < 2:
        raise place.malformed("an entry [log-probability, id, text]", entry)
    return parts[1], parts[0]
