"""SGLang's log-probabilities: `meta_info` of a response of ``/generate`` with ``return_logprob``.

`input_token_logprobs` has ``[log-probability, id, text]`` of each token of the prompt, `input_top_logprobs` a list of
these for the most probable ones, null for the first token. Without them, the same fields of the output are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kullback.io.top_k.records import Collected, Place, Tokens, get, lists, require_one_length


def has_meta_info(record: object) -> bool:
    """Return whether a record is from SGLang."""
    return get(record, "meta_info") is not None


def read(record: Any, place: Place, tokens: Tokens | None) -> Iterator[Collected]:
    """Read one response: the prompt, or the generated text if the prompt's log-probabilities were not requested."""
    del tokens
    meta = get(record, "meta_info")
    side = next((each for each in ("input", "output") if get(meta, f"{each}_top_logprobs")), None)
    if side is None:
        raise place.error(
            wanted="meta_info with input_top_logprobs",
            got="a response without it",
            instead="ask for them: return_logprob=true, logprob_start_len=0, top_logprobs_num=20",
        )
    field = f"{side}_top_logprobs"
    listed = get(meta, field)
    true = get(meta, f"{side}_token_logprobs") or [None] * len(lists(listed, f"{field}, a list", place))
    require_one_length(place, **{field: listed, f"{side}_token_logprobs": true})
    first = _first_position(meta, len(listed)) if side == "input" else 0
    collected = Collected(place)
    if first == 0 and all(true):
        collected.set_tokens(_pair(each, place)[1] for each in true)
    for position, (entries, label) in enumerate(zip(listed, true, strict=True), start=first):
        if not entries:
            collected.skipped += 1
            continue
        here = place.at(f"position {position}")
        value, token = (None, None) if label is None else _pair(label, here)
        pairs = [_pair(each, here) for each in lists(entries, f"{field}, lists of lists", here)]
        collected.add(position, [(i, x) for x, i in pairs], token, value)
    yield collected


def _first_position(meta: Any, length: int) -> int:
    """Return the position of the first token listed, which `logprob_start_len` may have moved."""
    prompt = get(meta, "prompt_tokens")
    return prompt - length if type(prompt) is int and prompt > length else 0


def _pair(entry: Any, place: Place) -> tuple[Any, Any]:
    parts = lists(entry, "an entry [log-probability, id, text]", place)
    if len(parts) < 2:
        raise place.malformed("an entry [log-probability, id, text]", entry)
    return parts[0], parts[1]
