"""`record_reference`: a model's predictions over a text as a reference file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from kullback.common.constraints import Arguments, Whole
from kullback.common.files import check_writable
from kullback.io.reference_writer import STORED, ReferenceWriter
from kullback.models.language_model import LanguageModel
from kullback.models.open_model import LOADING, Loading, open_model
from kullback.models.side import DenseSide
from kullback.models.text import CUT, Cut, take_texts
from kullback.predictions.run import BLOCK_BYTES, Progress

CALL = "record_reference"
HASHED_AT_ONCE = 1 << 22

_ARGUMENTS = Arguments(CALL, **STORED, block_bytes=Whole(least=1, example=BLOCK_BYTES))


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
    r"""Write a model's predictions over a text as a reference file, which any other model can be compared with.

    For each scored token, the file has the `top` most probable classes, the exact mass of all others, `tail_draws`
    random draws from the others with their probabilities, and the token's own log-probability. This takes 0.8 kB with
    the defaults; the logits of 128,256 classes take 256 kB or more. `compare_models` takes the file as its base or as a
    candidate. Its estimates of the divergences are unbiased, and their intervals include the sampling noise.

    Arguments:
        model: a folder of a Hugging Face causal language model, a ``.gguf`` file, or a module.
        texts: the text that the model reads, as for `compare_models`.
        path: the file to write, by custom with the extension ``.klref``.
        top: how many of the most probable classes to keep.
        tail_draws: how many classes to draw from the others.
        seed: the seed of the draws.
        cut: how the text is cut into windows, and which tokens are scored.
        loading: how the model is opened.
        block_bytes: the most that a block of logits may take in memory.
        progress: called with the number of scored tokens and the total.

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
    text = take_texts(CALL, texts)
    with open_model(model, loading) as opened:
        windows, _ = cut.windows(opened, text)
        metadata = {"context": str(cut.context), "score": cut.score} | _describe(opened)
        side = DenseSide(opened.info, windows, opened)
        with ReferenceWriter(
            path, windows, top=top, tail_draws=tail_draws, seed=seed, metadata=metadata
        ) as writer:
            for block in side.blocks(max(1, block_bytes // (4 * side.classes)), 0):
                writer.add(block)
                if progress is not None:
                    progress(writer.written, windows.rows)
    return writer.notes


def _describe(model: LanguageModel) -> dict[str, str]:
    info = model.info
    found = {
        "model": info.name,
        "model_kind": info.kind,
        "model_hash": _hash_of(Path(info.name)),
        "dtype": info.dtype,
        "parameters": info.parameters,
        "file_bytes": info.file_bytes,
        "tokenizer": model.vocabulary.fingerprint,
        "bos": model.bos,
    }
    return {key: str(value) for key, value in found.items() if value is not None}


def _hash_of(path: Path) -> str | None:
    """Return the SHA-256 of a model's weights, file by file in the order of their names; None if there are none."""
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
