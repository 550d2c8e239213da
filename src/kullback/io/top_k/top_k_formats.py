"""`open_top_k`, and the formats of top-k log-probabilities that this function can open."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from kullback.common.constraints import Arguments, OfType, OneOf
from kullback.common.extra_arguments import by_name
from kullback.common.files import check_input
from kullback.common.shared_constraints import CLASSES
from kullback.errors import FileError, invalid_type
from kullback.io.source_files import FileReference, closed_on_error
from kullback.io.top_k import axolotl, llama_server, openai, sglang, vllm
from kullback.io.top_k.records import (
    RecordFormat,
    RecordReader,
    Records,
    Tokens,
    json_records,
    objects_as_records,
    parquet_records,
)
from kullback.io.top_k.source import TopKReader, TopKSource
from kullback.io.top_k.top_k_arrays import ArrayFormat, matching_format, open_arrays, open_folder

_Kind = TypeVar("_Kind")
TOP_K_FORMATS: dict[str, RecordFormat | ArrayFormat] = {
    "vllm": RecordFormat(vllm.has_prompt_log_probs, vllm.read),
    "sglang": RecordFormat(sglang.has_meta_info, sglang.read),
    "llama-server": RecordFormat(llama_server.has_probabilities, llama_server.read),
    "openai": RecordFormat(openai.has_log_probs, openai.read),
    "axolotl": RecordFormat(axolotl.has_fields, axolotl.read, takes_key=True),
    "safetensors": ArrayFormat("indices", "log_probs", ("labels", "label_log_probs", "log_tail")),
    "mlx-dwq": ArrayFormat("indices", "logits", logits=True),
    "nemo-rl": ArrayFormat(
        "teacher_topk_indices", "teacher_topk_logits", ("input_ids", "input_lengths"), logits=True
    ),
}
"""The formats of top-k log-probabilities by their names.

`open_top_k` reads a file without a named format by the first of these formats that recognizes the file.
"""

_ARGUMENTS = Arguments(
    "open_top_k",
    classes=CLASSES,
    tokens=OfType(
        (Mapping,),
        wanted="a mapping from the tokens' text or bytes to their ids",
        instead="tokens={text: id for id, text in enumerate(tokens)}",
        optional=True,
    ),
)


@by_name()
def open_top_k(
    source: object,
    format: str | RecordFormat | ArrayFormat | None = None,  # noqa: A002 - the usual word
    *,
    key: str | None = None,
    tokens: Mapping[Any, int] | None = None,
    classes: int | None = None,
    name: str = "source",
) -> TopKSource:
    """Open log-probabilities of the most probable tokens, which inference servers return and distillation tools store.

    | format | records | the true token |
    |---|---|---|
    | ``vllm`` | `RequestOutput` objects with `prompt_logprobs`; responses of the server, with `prompt_logprobs` | yes |
    | ``sglang`` | responses of ``/generate`` with `return_logprob` and `top_logprobs_num` | yes |
    | ``openai`` | chats with `top_logprobs`, completions with `logprobs` (and `echo`), of any server; they need `tokens` unless they give ids | yes |
    | ``llama-server`` | responses of ``/completion`` with `n_probs` | the generated one |
    | ``axolotl`` | rows of Parquet or JSON lines with `llm_text_generation_vllm_logprobs`, or another `key` | no |
    | ``safetensors`` | tensors `indices` and `log_probs` (..., k); `labels`, `label_log_probs`, `log_tail` if known | if stored |
    | ``mlx-dwq`` | tensors `indices` and `logits` (batch, length, k), in a file or a folder | no |
    | ``nemo-rl`` | tensors `teacher_topk_indices`, `teacher_topk_logits` (batch, length, k), in a file or a dictionary | with `input_ids` |

    Responses are the original objects, decoded JSON, or a file. A ``.json`` file has a response or a list of responses.
    A ``.jsonl`` file has one response in each line, and is read line by line. Reading checks the values. Natural
    log-probabilities must be at most 0, and each token must occur once at a position. Probabilities must sum to at most
    1, within 1e-6 for float64. Servers compute in float32, so the limit for float32 is 1e-4.

    Arguments:
        source: a path, or the objects themselves.
        format: a name in `TOP_K_FORMATS`, or a format of your own; None to recognize the format.
        key: the field of the log-probabilities, for axolotl's rows; None for the usual fields.
        tokens: a mapping from the text or bytes of tokens to their ids, for formats without ids; None for other
            formats.
        classes: the number of all classes, if the file does not store it; None if it is unknown.
        name: the name of the argument that holds the source, for error messages.

    Returns:
        a `TopKSource`, which ``with`` or ``close()`` closes.

    Raises:
        FileError: the file is missing or damaged, has none of the formats, or has no log-probabilities.
        ArgumentValueError: `format` is not a known name, or `classes` is not positive.
        ArgumentTypeError: `source` is neither a path nor objects.

    Example:
        >>> import json, pathlib, tempfile, kullback.io
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "responses.jsonl"
        >>> entries = {"11": {"logprob": -2.5, "rank": 3}, "8": {"logprob": -0.5, "rank": 1}}
        >>> line = json.dumps({"choices": [{"prompt_logprobs": [None, entries], "prompt_token_ids": [1, 11]}]})
        >>> _ = path.write_text(line)
        >>> with kullback.io.open_top_k(path, classes=32000) as source:
        ...     for block in source.blocks():
        ...         block.top_indices, block.top_log_probs, block.labels
        (tensor([[11,  8]]), tensor([[-2.5000, -0.5000]]), tensor([11]))
    """  # noqa: E501 - a table
    number, tokens = _ARGUMENTS.check(classes=classes, tokens=tokens).values()
    formats = _candidates(format)
    is_path = isinstance(source, str | os.PathLike)
    ref = FileReference(Path(source if is_path else f"({type(source).__name__})"), name)
    if not is_path:
        return TopKSource(_open_objects(ref, source, formats, key, tokens), number)
    check_input(ref.path, name)
    with (
        ref.decoding("top-k log-probabilities"),
        closed_on_error(_open_path(ref, formats, key, tokens)) as reader,
    ):
        return TopKSource(reader, number)


_Formats = dict[str, RecordFormat | ArrayFormat]


def _candidates(format: str | RecordFormat | ArrayFormat | None) -> _Formats:  # noqa: A002
    """Return a mapping from names to the formats that the source may have."""
    if format is None:
        return TOP_K_FORMATS
    if isinstance(format, RecordFormat | ArrayFormat):
        name = next((name for name, known in TOP_K_FORMATS.items() if known is format), "own format")
        return {name: format}
    instead = "leave format= out, and it is recognized"
    OneOf(tuple(TOP_K_FORMATS), instead=instead).check("open_top_k", "format", format)
    return {format: TOP_K_FORMATS[format]}


def _open_objects(
    ref: FileReference, source: object, formats: _Formats, key: str | None, tokens: Tokens | None
) -> TopKReader:
    arrays = _of_type(ArrayFormat, formats)
    if isinstance(source, Mapping) and (len(arrays) == len(formats) or matching_format(arrays, source)):
        return open_arrays(ref, arrays, source)
    if isinstance(source, bytes | int | float) or source is None:
        raise invalid_type(
            "open_top_k",
            ref.name,
            wanted="a path, responses of a server, or a dictionary of tensors",
            got=f"a {type(source).__name__}",
            instead="open_top_k('responses.jsonl')",
        )
    is_list = isinstance(source, Sequence) and not hasattr(source, "prompt_logprobs")
    objects = list(cast("Sequence[Any]", source)) if is_list else [source]
    return _open_records(ref, partial(objects_as_records, ref, objects), formats, key, tokens)


def _open_path(ref: FileReference, formats: _Formats, key: str | None, tokens: Tokens | None) -> TopKReader:
    suffix = ref.path.suffix.lower()
    if ref.path.is_dir() or suffix in (".safetensors", ".pt", ".pth"):
        arrays = _of_type(ArrayFormat, formats)
        if not arrays:
            raise _other_format(ref, formats, "tensors")
        return open_folder(ref, arrays) if ref.path.is_dir() else open_arrays(ref, arrays)
    ref.open().close()
    if suffix in (".parquet", ".json", ".jsonl", ".ndjson"):
        read = parquet_records if suffix == ".parquet" else json_records
        return _open_records(ref, partial(read, ref), formats, key, tokens)
    raise ref.error(
        wanted="a .json, .jsonl, .parquet, .safetensors or .pt file, or a folder",
        got=f"extension {suffix!r}",
        instead="rename the file to its format's extension",
    )


def _open_records(
    ref: FileReference, records: Records, formats: _Formats, key: str | None, tokens: Tokens | None
) -> TopKReader:
    known = _of_type(RecordFormat, formats)
    if not known:
        raise _other_format(ref, formats, "records")
    if key is not None and len(known) > 1:
        known = {name: of for name, of in known.items() if of.takes_key}
    name = next(iter(known))
    if len(known) > 1:
        place, record = next(records(), (None, None))
        if place is None:
            raise ref.error(
                wanted="at least one response", got="none", instead="store the server's responses"
            )
        recognized = next((name for name, of in known.items() if of.recognizes(record)), None)
        if recognized is None:
            fields = sorted(map(str, record)) if isinstance(record, Mapping) else []
            raise place.error(
                wanted=f"log-probabilities in the form of {', '.join(known)}",
                got=f"fields {', '.join(fields[:12])}" if fields else f"a {type(record).__name__}",
                instead="ask the server for log-probabilities, and store its responses as they come",
            )
        name = recognized
    if key is not None and not known[name].takes_key:
        raise ref.error(wanted=f"no key= for {name}", got=f"key={key!r}", instead="leave key= out")
    return RecordReader(ref, name, known[name], records, tokens=tokens, key=key)


def _of_type(kind: type[_Kind], formats: _Formats) -> dict[str, _Kind]:
    return {name: of for name, of in formats.items() if isinstance(of, kind)}


def _other_format(ref: FileReference, formats: _Formats, got: str) -> FileError:
    wanted = f"the files of format={next(iter(formats))!r}"
    return ref.error(wanted=wanted, got=got, instead="leave format= out")
