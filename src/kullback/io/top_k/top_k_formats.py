"""Opening top-k log-probabilities by their format."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from kullback.common.constraints import Arguments, OfType, OneOf
from kullback.common.files import check_input
from kullback.common.shared_constraints import CLASSES
from kullback.errors import invalid_type
from kullback.io.source_files import FileReference, closed_on_error
from kullback.io.top_k import axolotl, llama_server, openai, sglang, vllm
from kullback.io.top_k.records import ParquetRows, ReadRecord, RecordReader, Records, Tokens
from kullback.io.top_k.source import TopKReader, TopKSource
from kullback.io.top_k.top_k_arrays import ARRAY_FORMATS, array_format, open_arrays, open_folder

# How each format of JSON records is recognized and read, the most particular first.
RECORD_FORMATS: dict[str, tuple[Callable[[object], bool], ReadRecord]] = {
    "vllm": (vllm.has_prompt_log_probs, vllm.read),
    "sglang": (sglang.has_meta_info, sglang.read),
    "llama-server": (llama_server.has_probabilities, llama_server.read),
    "openai": (openai.has_log_probs, openai.read),
    "axolotl": (axolotl.has_fields, axolotl.reader_of(None)),
}
TOP_K_FORMATS = (*RECORD_FORMATS, *ARRAY_FORMATS)

_ARGUMENTS = Arguments(
    "open_top_k",
    format=OneOf(TOP_K_FORMATS, instead="leave format= out, and it is recognized", optional=True),
    classes=CLASSES,
    tokens=OfType(
        (Mapping,),
        wanted="a mapping from the tokens' text or bytes to their ids",
        instead="tokens={text: id for id, text in enumerate(tokens)}",
        optional=True,
    ),
)


def open_top_k(
    source: object,
    format: str | None = None,  # noqa: A002 - the word for it
    *,
    key: str | None = None,
    tokens: Mapping[Any, int] | None = None,
    classes: int | None = None,
    name: str = "source",
) -> TopKSource:
    """Open log-probabilities of the most probable tokens, as inference servers return and distillation tools store them.

    | format | what it is | the true token |
    |---|---|---|
    | ``vllm`` | `RequestOutput` objects with `prompt_logprobs`; responses of the server, with `prompt_logprobs` | yes |
    | ``sglang`` | responses of ``/generate`` with `return_logprob` and `top_logprobs_num` | yes |
    | ``openai`` | chats with `top_logprobs`, completions with `logprobs` (and `echo`), of any server; they need `tokens` unless they give ids | yes |
    | ``llama-server`` | responses of ``/completion`` with `n_probs` | the generated one |
    | ``axolotl`` | rows of Parquet or JSON lines with `llm_text_generation_vllm_logprobs`, or another `key` | no |
    | ``safetensors`` | tensors `indices` and `log_probs` (..., k); `labels`, `label_log_probs`, `log_tail` if known | if stored |
    | ``mlx-dwq`` | tensors `indices` and `logits` (batch, length, k), in a file or a folder | no |
    | ``nemo-rl`` | tensors `teacher_topk_indices`, `teacher_topk_logits` (batch, length, k), in a file or a dictionary | with `input_ids` |

    Responses are objects as they came or as ``json`` decodes them, a ``.json`` file of one or of a list, or a
    ``.jsonl`` file with one in each line, which is read line by line. Values are checked as they are read: natural
    log-probabilities at most 0, each token once at a position, probabilities that sum to at most 1 (within 1e-4 for
    float32, in which servers compute; 1e-6 for float64).

    Arguments:
        source: a path, or the objects themselves.
        format: one of `TOP_K_FORMATS`; left out, it is recognized.
        key: the field of the log-probabilities, for axolotl's rows.
        tokens: the ids of tokens by their text or bytes, for formats without ids.
        classes: the number of all classes, if the file does not store it.
        name: the argument that the source was passed as, for error messages.

    Returns:
        A `TopKSource`, to be closed by ``with`` or ``close()``.

    Raises:
        FileError: the file is missing, damaged, or of none of the formats, or has no log-probabilities.
        ArgumentValueError: `format` is none of the words, or `classes` not positive.
        ArgumentTypeError: `source` is neither a path nor objects.

    Example:
        >>> import json, pathlib, tempfile, kullback.io
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "responses.jsonl"
        >>> entries = {"11": {"logprob": -2.5, "rank": 3}, "8": {"logprob": -0.5, "rank": 1}}
        >>> line = json.dumps({"choices": [{"prompt_logprobs": [None, entries], "prompt_token_ids": [1, 11]}]})
        >>> _ = path.write_text(line)
        >>> with kullback.io.open_top_k(path, classes=32000) as source:
        ...     for block in source.blocks():
        ...         block.indices, block.log_probs, block.labels
        (tensor([[11,  8]]), tensor([[-2.5000, -0.5000]]), tensor([11]))
    """  # noqa: E501 - a table
    _, number, _ = _ARGUMENTS.check(format=format, classes=classes, tokens=tokens).values()
    ids = cast("Tokens | None", tokens)
    if not isinstance(source, str | os.PathLike):
        return TopKSource(_open_objects(source, _Wanted(format, key, ids), name), number)
    ref = FileReference(Path(cast("str", source)), name)
    check_input(ref.path, name)
    with (
        ref.decoding("top-k log-probabilities"),
        closed_on_error(_open_path(ref, _Wanted(format, key, ids))) as reader,
    ):
        return TopKSource(reader, number)


class _Wanted(NamedTuple):
    """The caller's settings of the source."""

    format: str | None
    key: str | None
    tokens: Tokens | None


def _open_objects(source: object, wanted: _Wanted, name: str) -> TopKReader:
    ref = FileReference(Path(f"({type(source).__name__})"), name)
    if isinstance(source, Mapping):
        held = cast("Mapping[str, Any]", source)
        if wanted.format in ARRAY_FORMATS or (wanted.format is None and array_format(held) is not None):
            return open_arrays(ref, wanted.format, held)
    elif isinstance(source, bytes | int | float) or source is None:
        raise invalid_type(
            "open_top_k",
            name,
            wanted="a path, responses of a server, or a dictionary of tensors",
            got=f"a {type(source).__name__}",
            instead="open_top_k('responses.jsonl')",
        )
    is_list = isinstance(source, Sequence) and not hasattr(source, "prompt_logprobs")
    objects = list(cast("Sequence[Any]", source)) if is_list else [source]
    return _open_records(Records(ref, objects), wanted)


def _open_path(ref: FileReference, wanted: _Wanted) -> TopKReader:
    suffix = ref.path.suffix.lower()
    if ref.path.is_dir():
        return open_folder(ref, wanted.format)
    if suffix in (".safetensors", ".pt", ".pth"):
        return open_arrays(ref, wanted.format)
    if suffix == ".parquet":
        return _open_records(ParquetRows(ref), wanted)
    if suffix in (".json", ".jsonl", ".ndjson"):
        return _open_records(Records(ref), wanted)
    ref.open().close()
    raise ref.error(
        wanted="a .json, .jsonl, .parquet, .safetensors or .pt file, or a folder",
        got=f"extension {suffix!r}",
        instead="rename the file to its format's extension",
    )


def _open_records(records: Records | ParquetRows, wanted: _Wanted) -> TopKReader:
    found = wanted.format or ("axolotl" if wanted.key is not None else None)
    if found is None:
        place, record = next(iter(records), (None, None))
        if place is None:
            raise records.ref.error(
                wanted="at least one response", got="none", instead="store the server's responses"
            )
        found = next((each for each, (fits, _) in RECORD_FORMATS.items() if fits(record)), None)
        if found is None:
            held = sorted(map(str, cast("Mapping[Any, Any]", record))) if isinstance(record, Mapping) else []
            raise place.error(
                wanted=f"log-probabilities in the form of {', '.join(RECORD_FORMATS)}",
                got=f"fields {', '.join(held[:12])}" if held else f"a {type(record).__name__}",
                instead="ask the server for log-probabilities, and store its responses as they come",
            )
    if found not in RECORD_FORMATS:
        raise records.ref.error(
            wanted=f"the files of format={found!r}", got="records", instead="leave format= out"
        )
    if wanted.key is not None and found != "axolotl":
        raise records.ref.error(
            wanted=f"no key= for {found}", got=f"key={wanted.key!r}", instead="leave key= out"
        )
    read = axolotl.reader_of(wanted.key) if found == "axolotl" else RECORD_FORMATS[found][1]
    return RecordReader(found, records, read, wanted.tokens)
