"""Servers' log-probabilities of given tokens: row i of a text predicts the token after position i."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from kullback.common.constraints import Arguments, Whole
from kullback.common.extra_arguments import by_name
from kullback.common.words import STORED
from kullback.errors import ArgumentValueError, invalid_type, invalid_value
from kullback.io.top_k.records import CLAMPED, get

_CALL = "scored_text"
_ARGUMENTS = Arguments(_CALL, start=Whole(least=0, example=0))


@by_name()
def scored_text(
    response: object, *, ids: Sequence[Sequence[int]] | Tensor | None = None, start: int = 0
) -> dict[str, Tensor]:
    """Read a server's log-probabilities of given token ids at each position of a prompt, for `Scored`.

    | server | request | response |
    |---|---|---|
    | vLLM | `prompt_logprob_token_ids`, a list for each position, padded by -1; `prompt_logprob_start` | `prompt_token_id_logprobs`, an array or the base64 text of a ``.npy`` file, and `prompt_token_ids` |
    | SGLang | ``/generate`` with `token_ids_logprob`, `return_logprob`, ``logprob_start_len=0`` | `meta_info` with `input_token_ids_logprobs`, and the tokens in `input_token_logprobs` |

    The log-probability -9999, which servers write for -inf in JSON, becomes -inf.

    Arguments:
        response: the original object, or the decoded JSON.
        ids: the `prompt_logprob_token_ids` of the request to vLLM, which the response lacks; None for SGLang.
        start: the `prompt_logprob_start` of the request to vLLM.

    Returns:
        a dict with the names of trainers' batches: ``input_ids``, shape (tokens,); ``teacher_indices`` and
        ``teacher_log_probs``, shape (tokens, k). Row i has log-probabilities of the token after position i. The index
        -1 and the log-probability -inf are padding, as at the last position.

    Raises:
        ArgumentTypeError: the response has none of these fields.
        ArgumentValueError: `ids`, the log-probabilities and the tokens have different lengths, `start` is negative, or
            a field cannot be decoded.

    Example:
        >>> import kullback.io
        >>> response = {"prompt_token_ids": [1, 42, 7], "prompt_token_id_logprobs": [[-0.5, -1.5], [-0.25, float("-inf")]]}
        >>> text = kullback.io.scored_text(response, ids=[[42, 5], [7, -1]])
        >>> text["teacher_indices"]
        tensor([[42,  5],
                [ 7, -1],
                [-1, -1]])
    """  # noqa: E501 - a table
    start = _ARGUMENTS.check(start=start)["start"]
    meta = get(response, "meta_info")
    if get(meta, "input_token_ids_logprobs") is not None:
        tokens, listed, log_probs = _of_sglang(meta)
    else:
        tokens, listed, log_probs = _of_vllm(response, ids, start)
    if bool(((listed < 0) & (log_probs != -torch.inf)).any()):
        raise _wrong("ids", "-1 only where the log-probability is -inf", "-1 with a log-probability")
    following = len(tokens) - start - len(listed)
    sides = 0, 0, start, following
    return {
        "input_ids": tokens,
        STORED[0]: torch.nn.functional.pad(listed, sides, value=-1),
        STORED[1]: torch.nn.functional.pad(log_probs, sides, value=-torch.inf),
    }


def _of_vllm(response: object, ids: object, start: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens of a prompt, and the ids and log-probabilities of each scored position."""
    choices = get(response, "choices")
    parts = [response, *(cast("list[Any]", choices) if isinstance(choices, list) else [])]
    stored = next(
        (x for x in (get(part, "prompt_token_id_logprobs") for part in parts) if x is not None), None
    )
    tokens = next((x for x in (get(part, "prompt_token_ids") for part in parts) if x is not None), None)
    if stored is None or tokens is None:
        raise invalid_type(
            _CALL,
            "response",
            wanted="prompt_token_id_logprobs with prompt_token_ids (vLLM), or input_token_ids_logprobs (SGLang)",
            got=", ".join(map(str, response)) if isinstance(response, Mapping) else type(response).__name__,
            instead="the response to a request with prompt_logprob_token_ids and return_token_ids=True",
        )
    if ids is None:
        raise _wrong("ids", "the prompt_logprob_token_ids of the request, which vLLM does not return", "None")
    log_probs = _log_probs(stored)
    listed = _integers("ids", ids)
    rows = len(tokens) - 1 - start
    if listed.shape != log_probs.shape or listed.ndim != 2 or len(listed) != rows:
        shapes = f"shape {tuple(listed.shape)}, and log-probabilities of shape {tuple(log_probs.shape)}"
        raise _wrong(
            "ids", f"{rows} rows, one for each token after position {start}, as log-probabilities", shapes
        )
    return _integers("response", tokens), listed, log_probs


def _of_sglang(meta: object) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens of a prompt, and the ids and log-probabilities of each scored position."""
    scored, own = get(meta, "input_token_ids_logprobs"), get(meta, "input_token_logprobs")
    try:
        tokens = [entry[1] for entry in own]
        rows = [[(entry[1], entry[0]) for entry in row or []] for row in scored]
        listed = [[token for token, _ in row] for row in rows]
        log_probs = [[log_prob for _, log_prob in row] for row in rows]
    except (TypeError, IndexError, KeyError):
        wanted, got = "lists of entries [log-probability, id, text]", "other fields"
        raise _wrong("response", wanted, got, "the response as it came") from None
    count = get(meta, "prompt_tokens")
    if len(rows) != len(tokens) or any(listed[:1]) or (type(count) is int and count != len(tokens)):
        wanted = "a list for each token of the prompt, null for the first token"
        got = f"{len(rows)} lists for {count if type(count) is int else len(tokens)} tokens"
        raise _wrong("response", wanted, got, "logprob_start_len=0 in the request")
    k = max(map(len, listed), default=0)
    listed = [row + [-1] * (k - len(row)) for row in listed[1:]]
    padded = [row + [-torch.inf] * (k - len(row)) for row in log_probs[1:]]
    return (
        _integers("response", tokens),
        _integers("response", listed).reshape(-1, k),
        _log_probs(padded).reshape(-1, k),
    )


def _log_probs(stored: object) -> Tensor:
    """Return log-probabilities from an array, nested lists or the base64 text of a ``.npy`` file, in float32."""
    try:
        if isinstance(stored, str | bytes):
            stored = np.load(io.BytesIO(base64.b64decode(stored, validate=True)), allow_pickle=False)
        values = torch.tensor(np.asarray(stored, dtype=np.float32), device="cpu")
    except (ValueError, TypeError, EOFError) as error:
        wanted = "log-probabilities in an array, lists or the base64 text of a .npy file"
        raise _wrong("response", wanted, str(error) or "other data", "the response as it came") from None
    return torch.where(values == CLAMPED, -torch.inf, values)


def _integers(argument: str, values: Any) -> Tensor:
    try:
        return torch.tensor(np.asarray(values, dtype=np.int64), device="cpu")
    except (ValueError, TypeError, OverflowError):
        got = type(values).__name__ + " of other entries"
        raise _wrong(argument, "lists of token ids, padded by -1 to one length", got) from None


def _wrong(argument: str, wanted: str, got: str, instead: str = "") -> ArgumentValueError:
    instead = instead or "ids=request['prompt_logprob_token_ids'], and start=request['prompt_logprob_start']"
    return invalid_value(_CALL, argument, wanted=wanted, got=got, instead=instead)
