"""A model's predictions over a text as a reference file: `record_reference`, and sides that are recorded when read."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, Whole
from kullback.common.extra_arguments import by_name
from kullback.common.files import (
    check_writable,
    file_hash,
    open_output,
    refuse_overwriting,
    without_folders,
    write_errors,
)
from kullback.common.words import is_address
from kullback.errors import invalid_type, invalid_value, printable, safe_repr
from kullback.io import Reference, RowSource, RowStream, TopKSource
from kullback.io.reference_writer import STORED, ReferenceWriter
from kullback.io.row_sources import checked
from kullback.io.row_stream import rows_from
from kullback.io.safetensors_file import METADATA, encoded_header, read_header
from kullback.models.hidden_states import HiddenStates
from kullback.models.huggingface_model import HuggingFaceModel, folder_of
from kullback.models.language_model import LanguageModel
from kullback.models.model_results import Recorded
from kullback.models.open_model import LOADING, Loading, open_model
from kullback.models.server import ServerModel
from kullback.models.side import DenseSide
from kullback.models.text import CUT, Cut, runs_of_documents, take_texts
from kullback.predictions.run import BLOCK_BYTES, RUN, Progress, Run

CALL, _COMPARE = "record_reference", "compare_models"
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
        return DenseSide.of_file(source, source.windows), metadata_of(source, None, loading)
    text = take_texts(CALL, texts)
    opened = stack.enter_context(open_model(model, loading))
    windows, documents = cut.windows(opened, text)
    metadata = metadata_of_windows(*cut.chosen, documents) | metadata_of(opened, texts, loading)
    return DenseSide(opened.info, windows, opened), metadata


class RecordedSide(DenseSide):
    """A side that also writes its rows as a reference file while a comparison reads it.

    A comparison that continues at a later row reads this side from row 0, so that the file has all rows.
    """

    def __init__(self, side: DenseSide, writer: ReferenceWriter) -> None:
        super().__init__(side.info, side.windows, side.model)
        self._writer = writer

    def blocks(self, *, rows: int, first: int = 0) -> Iterator[Tensor]:
        yield from rows_from(self._recorded(rows), first)

    def _recorded(self, rows: int) -> Iterator[Tensor]:
        for block in super().blocks(rows=rows):
            self._writer.add(block)
            yield block


def recorded_in(stack: ExitStack, side: DenseSide, path: Path, metadata: Mapping[str, str]) -> RecordedSide:
    """Return a side that writes the file when it is read. The stack finishes the file if there was no error."""
    public = {"model": without_folders(metadata["model"])}
    return RecordedSide(
        side, stack.enter_context(ReferenceWriter(path, side.windows, metadata={**metadata, **public}))
    )


@contextmanager
def copied(source: Reference, target: Path) -> Generator[None]:
    """Copy a reference file, without the folders in the name of its model, if the context ends without an error."""
    yield
    with write_errors(target), source.ref.open() as original, open_output(target) as file:
        _, entries = read_header(source.ref, original)
        if "model" in (metadata := entries[METADATA]):
            metadata["model"] = without_folders(metadata["model"])
        file.write(encoded_header(entries))
        shutil.copyfileobj(original, file)


def _checked_record(record: object, read: Sequence[object], run: Run) -> Path:
    """Return the path of the reference file to write; refuse a path that cannot be written or that is read, and a goal.

    Raises:
        ArgumentTypeError, ArgumentValueError, FileError: the file cannot be written by this run.
    """
    if not isinstance(record, str | os.PathLike):
        wanted, instead = "the path of a file, or None", "record='base.klref'"
        raise invalid_type(_COMPARE, "record", wanted=wanted, got=safe_repr(record), instead=instead)
    if run.goal is not None:
        raise invalid_value(
            _COMPARE,
            "record",
            wanted="a run that reads every window, as a card has all of them",
            got="a run until sure, which stops early",
            instead={"until_sure": None},
        )
    paths = [each for each in read if isinstance(each, str | os.PathLike)]
    refuse_overwriting([record], [each for each in paths if os.path.exists(each)])  # noqa: PTH110 - any text
    check_writable(record)
    return Path(record)


def require_recordable(base: object) -> None:
    """Refuse a base that gives only some classes. The address of a server is refused before it is opened."""
    if (isinstance(base, str) and is_address(base)) or isinstance(base, TopKSource | ServerModel):
        raise invalid_value(
            _COMPARE,
            "record",
            wanted="a base that gives the probability of every class: a model, hidden states or a reference",
            got=f"{printable(base if isinstance(base, str) else base.name)}, which gives only the most probable ones",
            instead={"record": None},
        )


def recorded_by(
    record: object,
    sides: Sequence[object],
    texts: object,
    cut: Cut,
    loading: Loading,
    run: Run,
    further: Mapping[str, bool | None],
) -> Recorded:
    """Check that a comparison can write this reference file, and return the arguments of that comparison.

    The sides are the base and the candidates, and `further` are other settings of `compare_models`.

    Raises:
        ArgumentTypeError, ArgumentValueError, FileError: the comparison cannot write this file.
    """
    path = _checked_record(record, [*sides, texts], run)
    require_recordable(sides[0])
    settings: dict[str, str | float] = {name: value for name, value in further.items() if value}
    for chosen, default in ((cut, CUT), (loading, LOADING), (run, RUN)):
        values = {each.name: getattr(chosen, each.name) for each in fields(chosen) if each.name != "resume"}
        settings |= {
            name: value
            for name, value in values.items()
            if isinstance(value, str | int | float) and value != getattr(default, name)
        }
    heads = tuple(side.head.name if isinstance(side, HiddenStates) else None for side in sides)
    text = str(texts) if isinstance(texts, Path) else None
    names, seed = tuple(map(_name_of, sides)), _seed_of(run.generator)
    is_command = None not in (*names, seed) and (texts is None or text is not None)
    return Recorded(path, names, heads, text, seed, settings, is_command)


def _name_of(side: object) -> str | None:
    if isinstance(side, Reference):
        return str(side.ref.path)
    if isinstance(side, HiddenStates | RowSource):
        return side.name
    return os.fspath(side) if isinstance(side, str | os.PathLike) else None


def _seed_of(generator: torch.Generator | None) -> int | None:
    """Return the seed of a generator that gave no number yet; None for another generator."""
    if generator is None:
        return 0
    unused = torch.Generator(generator.device).manual_seed(generator.initial_seed())
    return generator.initial_seed() if torch.equal(unused.get_state(), generator.get_state()) else None


def metadata_of_windows(context: int, score: str, documents: Tensor) -> dict[str, str]:
    """Return the texts in a reference file about the windows; one document needs no text."""
    known = {"context": str(context), "score": score}
    return known | ({"documents": runs_of_documents(documents)} if bool(documents.any()) else {})


def metadata_of(
    opened: LanguageModel | RowSource, texts: object, loading: Loading, others: Sequence[object] = ()
) -> dict[str, str]:
    """Return the texts in a reference file about the model and the text.

    A file of rows may not name its tokenizer. The first model in `others` then gives the tokenizer.
    """
    known: dict[str, object]
    if isinstance(opened, RowSource):
        readers = (
            each.vocabulary.fingerprint
            for each in others
            if isinstance(each, LanguageModel) and not isinstance(each, ServerModel)
        )
        known = {"tokenizer": next(readers, None), **opened.metadata}
        known |= {"model": opened.name, "text_hash": _hash_of_text(texts)}
    else:
        info = opened.info
        known = {
            "model": info.name,
            "model_kind": info.kind,
            "model_hash": weights_hash(info.name) if info.kind in ("Hugging Face", "GGUF") else None,
            "dtype": info.dtype,
            "device": _device_of(opened),
            "parameters": info.parameters,
            "file_bytes": info.file_bytes,
            "tokenizer": opened.vocabulary.fingerprint,
            "bos": opened.bos,
            "text_hash": _hash_of_text(texts),
        }
    return {key: str(value) for key, value in known.items() if value is not None}


def _device_of(model: LanguageModel) -> str | None:
    if isinstance(model, HuggingFaceModel):
        return str(next(model.model.parameters()).device)
    return getattr(model, "device", None) if model.info.kind == "GGUF" else None


def _hash_of_text(texts: object) -> str | None:
    """Return the SHA-256 of the bytes of a file or of a string; None for a list, which has no bytes."""
    if isinstance(texts, Path):
        return file_hash(texts)
    return (
        hashlib.sha256(texts.encode(errors="surrogatepass")).hexdigest() if isinstance(texts, str) else None
    )


def weights_hash(model: object) -> str | None:
    """Return the SHA-256 of a model's weight files in the order of their names; None without files, as in memory.

    The files of a name on the hub are those in the cache, where the model was loaded from.
    """
    if not isinstance(model, str | os.PathLike):
        return None
    path = folder_of(os.fspath(model))
    files = [path] if path.suffix.lower() == ".gguf" and path.is_file() else []
    if files and (split := re.fullmatch(r"(.+-)\d{5}(-of-\d{5}\.gguf)", path.name)):
        begin, end = split.groups()
        files = sorted(x for x in path.parent.iterdir() if x.name.startswith(begin) and x.name.endswith(end))
    if (path / "config.json").is_file():
        files = sorted(each for pattern in ("*.safetensors", "*.bin") for each in path.glob(pattern))
    if not files:
        return None
    digest = hashlib.sha256()
    for each in files:
        with each.open("rb") as file:
            while part := file.read(HASHED_AT_ONCE):
                digest.update(part)
    return digest.hexdigest()
