"""Log-probabilities from TRL's server, ``trl vllm-serve``: responses of ``/get_sequence_logprobs/`` and ``/generate/``.

As JSON `logprobs` and `logprob_token_ids` are lists of sequences of positions of entries, null for NaN. The binary form
has base64 of little-endian arrays of `shape` (sequences, positions, k): float32 `logprobs_b64` and int32
`token_ids_b64`, padded with -inf, and of (sequences, positions, 1) `actual_logprobs_b64` and `actual_token_ids_b64` for
the true token. Each position is a token of the completion.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from kullback.io.top_k.records import Collected, Place, Tokens, get, lists, require_one_length


def has_sequence_log_probs(record: object) -> bool:
    """Return whether a record is from TRL's server."""
    return any(get(record, name) is not None for name in ("logprob_token_ids", "logprobs_b64"))


def read(record: Any, place: Place, tokens: Tokens | None) -> Iterator[Collected]:
    """Read the sequences of one response."""
    del tokens
    if get(record, "logprobs_b64") is not None:
        yield from _binary(record, place)
        return
    values = lists(get(record, "logprobs"), "logprobs, a list", place)
    ids = lists(get(record, "logprob_token_ids"), "logprob_token_ids, a list", place)
    chosen = get(record, "completion_ids") or [None] * len(ids)
    require_one_length(place, logprobs=values, logprob_token_ids=ids, completion_ids=chosen)
    for number, (value_rows, id_rows, labels) in enumerate(zip(values, ids, chosen, strict=True)):
        here = place.at(f"sequence {number}")
        true = [None] * len(id_rows) if labels is None else labels
        require_one_length(here, logprobs=value_rows, logprob_token_ids=id_rows, completion_ids=true)
        collected = Collected(here)
        if labels is not None:
            collected.set_tokens(labels)
        for position, (row, row_ids, label) in enumerate(zip(value_rows, id_rows, true, strict=True)):
            require_one_length(here.at(f"position {position}"), logprobs=row, logprob_token_ids=row_ids)
            pairs = [(i, x) for i, x in zip(row_ids, row, strict=True) if x is not None]
            if pairs:
                collected.add(position, pairs, label)
            else:
                collected.skipped += 1
        yield collected


def _binary(record: Any, place: Place) -> Iterator[Collected]:
    shape = lists(get(record, "shape"), "shape, a list", place)
    if len(shape) != 3 or not all(type(size) is int and 0 <= size < 2**31 for size in shape):
        raise place.malformed("a shape of three sizes", str(shape))
    lengths = lists(get(record, "completion_lengths"), "completion_lengths, a list", place)
    if len(lengths) != shape[0] or not all(type(each) is int and 0 <= each <= shape[1] for each in lengths):
        raise place.malformed(f"{shape[0]} completion_lengths from 0 to {shape[1]}", str(lengths))
    values = _array(record, "logprobs_b64", "<f4", shape, place)
    ids = _array(record, "token_ids_b64", "<i4", shape, place)
    true_values = true_ids = None
    if get(record, "actual_logprobs_b64") is not None:
        true_values = _array(record, "actual_logprobs_b64", "<f4", [*shape[:2], 1], place)
        true_ids = _array(record, "actual_token_ids_b64", "<i4", [*shape[:2], 1], place)
    for number, length in enumerate(lengths):
        collected = Collected(place.at(f"sequence {number}"))
        if true_ids is not None:
            collected.set_tokens(true_ids[number, :length, 0].tolist())
        for position in range(length):
            row = values[number, position].tolist()
            if all(x == -math.inf for x in row):  # as where vLLM gave none
                collected.skipped += 1
                continue
            label = label_value = None
            if true_ids is not None and true_values is not None:
                label = int(true_ids[number, position, 0])
                label_value = float(true_values[number, position, 0])
            collected.add(position, zip(ids[number, position].tolist(), row, strict=True), label, label_value)
        yield collected


def _array(record: Any, name: str, dtype: str, shape: list[int] | Any, place: Place) -> Any:
    text = get(record, name)
    try:
        data = base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise place.malformed(f"{name}, base64", text) from None
    wanted = math.prod(shape) * np.dtype(dtype).itemsize
    if len(data) != wanted:
        raise place.error(
            wanted=f"{wanted} bytes in {name} for shape {list(shape)}",
            got=str(len(data)),
            instead="store the response as it came",
        )
    return np.frombuffer(data, dtype).reshape(shape)
