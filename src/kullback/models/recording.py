"""`record_reference`, which writes a model's predictions over a text as a reference file."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from pathlib import Path

from kullback.common.constraints import Arguments, Whole
from kullback.common.extra_arguments import by_name
from kullback.common.files import check_writable
from kullback.errors import invalid_value
from kullback.io import RowStream
from kullback.io.reference_writer import STORED, ReferenceWriter
from kullback.io.row_sources import checked
from kullback.models.language_model import LanguageModel
from kullback.models.open_model import LOADING, Loading, open_model
from kullback.models.side import DenseSide
from kullback.models.text import CUT, Cut, take_texts
from kullback.predictions.run import BLOCK_BYTES, Progress

CALL = "record_reference"
HASHED_AT_ONCE = 1 << 22

_ARGUMENTS = Arguments(CALL, **STORED, block_bytes=Whole(least=1, example=BLOCK_BYTES))


@by_name()
def record_reference(
    model: object,
    texts: object,
    path: str | os.PathLike[str],
    *,
    top: int = 64,
    tail_draws: int = 32,
    seed: int = 0,
    cut: Cut = CUT,
    loading: Loading = LOADING,
    block_bytes: int = BLOCK_BYTES,
    progress: Progress | None = None,
) -> list[str]:
    r"""Write a model's predictions over a text as a reference file, for comparisons with other models.

    For each scored token, the file has the `top` most probable classes and the exact mass of all other classes. It also
    has `tail_draws` random draws from the other classes with their probabilities, and the token's own log-probability.
    With the defaults, a token takes 0.8 kB; the logits of 128,256 classes take 256 kB or more. `compare_models` takes
    the file as the base or as a candidate. The estimates of the divergences are then unbiased, and the intervals
    include the sampling noise.

    Arguments:
        model: a folder of a Hugging Face causal language model, a ``.gguf`` file, a module, or a
            `kullback.io.RowStream` with `windows`.
        texts: the text that the model reads, as for `compare_models`; None for a stream.
        path: the path of the file to write, by convention with the extension ``.klref``.
        top: the number of most probable classes to keep.
        tail_draws: the number of classes to draw from the other classes.
        seed: the seed of the draws.
        cut: how the text is cut into windows, and which tokens are scored.
        loading: how the model is opened.
        block_bytes: the most memory of a block of logits, in bytes.
        progress: a function that is called with the number of recorded tokens and the number of all scored tokens; None
            for no calls.

    Returns:
        remarks on the file, as sentences.

    Raises:
        ModelError: the model cannot be loaded or run, or gives NaN; the text is shorter than a window.
        FileError: the file cannot be written; no partial file remains.
        ArgumentTypeError, ArgumentValueError: an argument is of the wrong type or value.

    Example:
        >>> from kullback.models import record_reference
        >>> record_reference("llama-3-8b", "some long text", "llama.klref")  # doctest: +SKIP
        []
    """
    top, tail_draws, seed, block_bytes = _ARGUMENTS.check(
        top=top, tail_draws=tail_draws, seed=seed, block_bytes=block_bytes
    ).values()
    check_writable(path)
    with ExitStack() as stack:
        side, metadata = _side(stack, model, texts, cut, loading)
        writer = stack.enter_context(
            ReferenceWriter(path, side.windows, top=top, tail_draws=tail_draws, seed=seed, metadata=metadata)
        )
        for block in side.blocks(rows=max(1, block_bytes // (4 * side.classes))):
            writer.add(block)
            if progress is not None:
                progress(writer.written, side.windows.rows)
    return writer.notes


def _side(
    stack: ExitStack, model: object, texts: object, cut: Cut, loading: Loading
) -> tuple[DenseSide, dict[str, str]]:
    """Return a model over a text, or a stream over its own windows, as a side; and the metadata of the file."""
    if isinstance(model, RowStream):
        source = checked(model, "model")
        if source.windows is None:
            raise invalid_value(
                CALL,
                "model",
                wanted="a stream with the windows of its tokens",
                got=f"{type(model).__name__} without `windows`",
                instead="a RowStream whose attribute `windows` is a kullback.io.Windows",
            )
        return DenseSide.of_file(source, source.windows), {**source.metadata, "model": source.name}
    text = take_texts(CALL, texts)
    opened = stack.enter_context(open_model(model, loading))
    windows, _ = cut.windows(opened, text)
    metadata = {"context": str(cut.context), "score": cut.score} | _describe(opened)
    return DenseSide(opened.info, windows, opened), metadata


def _describe(model: LanguageModel) -> dict[str, str]:
    info = model.info
    known = {
        "model": info.name,
        "model_kind": info.kind,
        "model_hash": _hash_of(Path(info.name)),
        "dtype": info.dtype,
        "parameters": info.parameters,
        "file_bytes": info.file_bytes,
        "tokenizer": model.vocabulary.fingerprint,
        "bos": model.bos,
    }
    return {key: str(value) for key, value in known.items() if value is not None}


def _hash_of(path: Path) -> str | None:
    """Return the SHA-256 of a model's weight files in the order of their names; None if there are no such files."""
    if path.is_file():
        files = [path]
    else:
        patterns = ("*.safetensors", "*.bin")
        files = sorted(each for pattern in patterns for each in path.glob(pattern)) if path.is_dir() else []
    if not files:
        return None
    digest = hashlib.sha256()
    for each in files:
        with each.open("rb") as file:
            while part := file.read(HASHED_AT_ONCE):
                digest.update(part)
    return digest.hexdigest()
