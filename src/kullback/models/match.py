"""Match the sides of a comparison: the same tokens for all, and the classes they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kullback.errors import FileError, ModelError, invalid_value, printable
from kullback.io import Reference, RowSource, TopKSource
from kullback.io.windows import Windows
from kullback.models.conversations import texts_of
from kullback.models.language_model import LanguageModel, ModelInfo
from kullback.models.open_model import Opened
from kullback.models.server import ServerModel
from kullback.models.side import DenseSide, ListedSide, ModelSide, ReferenceSide
from kullback.models.text import Score, Text, make_windows
from kullback.models.vocabulary import SharedClasses, share_classes

CALL = "compare_models"


class Cut(NamedTuple):
    """How a text is cut into windows."""

    context: int
    score: Score
    most_windows: int | None

    def windows(self, model: LanguageModel, text: Text) -> tuple[Windows, Tensor]:
        """Return the windows of a text in a model's tokens, and the document of each."""
        return make_windows(model, text, context=self.context, score=self.score, most=self.most_windows)


class Matched(NamedTuple):
    """The sides of a comparison, with windows of the same tokens.

    Attributes:
        sides: the base and the candidates.
        windows: the windows in the base's tokens.
        documents: the document of each window.
        context: the most tokens of a window.
        score: which tokens are scored.
        words: the text of every class of the base, or None if it is unknown.
        notes: remarks, as sentences.
    """

    sides: list[ModelSide]
    windows: Windows
    documents: Tensor
    context: int
    score: str
    words: list[str] | None
    notes: list[str]


def match_sides(base: Opened, others: Sequence[Opened], text: Text | None, cut: Cut) -> Matched:
    """Give every side its windows, and refuse sides that read other tokens than the base.

    Raises:
        ModelError: a model reads other tokens, or no side can read a text.
        FileError: a file holds other tokens.
    """
    everyone = [base, *others]
    reader = next((each for each in everyone if _reads(each)), None)
    context, score = cut.context, str(cut.score)
    held = _reference_of_windows(everyone, text)
    if held is not None:
        windows, documents = held.windows, torch.zeros(len(held.windows), dtype=torch.int64)
        told = held.metadata
        context = int(told.get("context", "0") if told.get("context", "").isdecimal() else 0) or int(
            windows.offsets.diff().max()
        )
        score = told.get("score", score)
        if text is not None and isinstance(reader, LanguageModel):
            _require_reference_of(held, reader, text, cut)
        elif text is not None and not any(isinstance(each, ServerModel) for each in everyone):
            raise invalid_value(
                CALL,
                "texts",
                wanted="None, as the text is the reference's and no side can read another",
                got="a text",
                instead="texts=None (without --text)",
            )
    else:
        if not isinstance(reader, LanguageModel):
            raise invalid_value(
                CALL,
                "base",
                wanted="a model among the sides, whose tokenizer cuts the text",
                got="none",
                instead="compare_predictions(p, q) for two files",
            )
        if text is None:
            raise invalid_value(
                CALL,
                "texts",
                wanted="a text",
                got="None",
                instead="texts=pathlib.Path('corpus.txt') (--text FILE)",
            )
        windows, documents = cut.windows(reader, text)
    sides = [_side(each, held, reader, windows, text, cut) for each in everyone]
    words = None
    if isinstance(reader, LanguageModel):
        count = max(reader.classes, len(reader.vocabulary))
        words = [reader.vocabulary.text(index) for index in range(count)]
    left_out = 0
    if text is not None and cut.most_windows is None and held is None:
        left_out = len(text.documents) - len(documents.unique())
    notes = (
        [f"{left_out:,} of {len(text.documents):,} documents hold no scored token."]
        if text and left_out
        else []
    )
    return Matched(sides, windows, documents, context, score, words, notes)


def _reference_of_windows(everyone: Sequence[Opened], text: Text | None) -> Reference | None:
    """Return the reference whose windows the comparison uses: the base, or without a text the first reference."""
    base = everyone[0]
    if isinstance(base, Reference):
        return base
    references = (each for each in everyone if isinstance(each, Reference))
    return next(references, None) if text is None or not any(map(_reads, everyone)) else None


def _reads(opened: Opened) -> bool:
    return isinstance(opened, LanguageModel) and not isinstance(opened, ServerModel)


def _side(
    opened: Opened,
    held: Reference | None,
    reader: Any,
    windows: Windows,
    text: Text | None,
    cut: Cut,
) -> ModelSide:
    if isinstance(opened, Reference):
        if opened is not held:
            _require_same_windows(opened, held, reader, windows)
        return ReferenceSide.of(opened)
    if isinstance(opened, RowSource):
        return DenseSide.of_file(opened, windows)
    if isinstance(opened, TopKSource | ServerModel):
        return _listed(opened, held, reader, windows, text, cut)
    if held is not None:
        _require_tokenizer_of(held, opened)
    elif opened is not reader:
        windows = _own_windows(opened, reader, windows, text, cut)
    return DenseSide(opened.info, windows, opened)


def _listed(
    opened: TopKSource | ServerModel,
    held: Reference | None,
    reader: Any,
    windows: Windows,
    text: Text | None,
    cut: Cut,
) -> ListedSide:
    known = reader if held is None else held
    classes = known.classes if known is not None else 0
    if isinstance(opened, TopKSource):
        info = ModelInfo(opened.name, opened.format, None, opened.classes or classes)
        return ListedSide(info, windows, opened)
    _require_same_text(opened, reader, held, text, cut)
    opened.info = replace(opened.info, classes=classes)
    if reader is not None:
        opened.vocabulary = reader.vocabulary
    return ListedSide(opened.info, windows, opened)


def _own_windows(
    opened: LanguageModel, reader: LanguageModel, windows: Windows, text: Text | None, cut: Cut
) -> Windows:
    """Return the windows in a model's own token numbers; the tokens must be the same."""
    same_words = opened.vocabulary.fingerprint == reader.vocabulary.fingerprint
    if (same_words and opened.bos == reader.bos) or text is None:
        return windows
    own, _ = cut.windows(opened, text)
    same = len(own.tokens) == len(windows.tokens)
    if same:
        pairs = zip(windows.tokens.tolist(), own.tokens.tolist(), strict=True)
        same = all(_token(reader.vocabulary, a) == _token(opened.vocabulary, b) for a, b in pairs)
    if not same:
        raise ModelError(
            f"{printable(opened.name)}: wanted a tokenizer that cuts the text into the same tokens as "
            f"{printable(reader.name)}'s; got {_difference(reader, windows, opened, own)}; compare models of one "
            "tokenizer"
        )
    return Windows(own.tokens, windows.offsets, windows.scored)


def _token(vocabulary: Sequence[Any], index: int) -> Any:
    return vocabulary[index] if index < len(vocabulary) else None


def _difference(a: LanguageModel, ours: Windows, b: LanguageModel, theirs: Windows) -> str:
    for place, (x, y) in enumerate(zip(ours.tokens.tolist(), theirs.tokens.tolist(), strict=False)):
        if _token(a.vocabulary, x) != _token(b.vocabulary, y):
            return f"{b.vocabulary.text(y)!r} for {a.vocabulary.text(x)!r} at token {place}"
    return f"{len(theirs.tokens)} tokens for {len(ours.tokens)}"


def _require_tokenizer_of(held: Reference, opened: LanguageModel) -> None:
    """Refuse a model whose vocabulary differs from a reference's: the reference does not store the tokens' texts."""
    _require_fingerprint(printable(opened.name), opened.vocabulary.fingerprint, held)


def _require_fingerprint(name: str, found: str | None, held: Reference) -> None:
    wanted = held.metadata.get("tokenizer")
    if None not in (wanted, found) and wanted != found:
        raise ModelError(
            f"{name}: wanted the tokenizer that {held.ref.shown} was recorded with; got another (fingerprint "
            f"{printable(str(found)[:12])} for {printable(str(wanted)[:12])}); compare with the model itself, whose "
            "tokens can be matched by their bytes"
        )


def _require_same_windows(opened: Reference, held: Reference | None, reader: Any, windows: Windows) -> None:
    """Refuse a reference whose tokens differ from the tokens of the comparison."""
    if held is not None:
        _require_fingerprint(opened.ref.shown, opened.metadata.get("tokenizer"), held)
    else:
        _require_tokenizer_of(opened, reader)
    if not _same_windows(opened.windows, windows):
        raise _other_text(
            opened,
            "leave the text out, or record the reference again"
            if held is None
            else "record both of one text, with one --context and --score",
        )


def _same_windows(a: Windows, b: Windows) -> bool:
    return all(
        torch.equal(*pair) for pair in ((a.tokens, b.tokens), (a.offsets, b.offsets), (a.scored, b.scored))
    )


def _require_reference_of(held: Reference, reader: LanguageModel, text: Text, cut: Cut) -> None:
    """Refuse a text that is not the one a reference was recorded with."""
    windows, _ = cut.windows(reader, text)
    if not _same_windows(windows, held.windows):
        raise _other_text(held, "leave the text out, or record the reference again")


def _other_text(held: Reference, instead: str) -> FileError:
    told = held.metadata
    return held.ref.error(
        wanted="a reference of this text",
        got=f"one of other tokens (context {printable(told.get('context', 'unknown'))}, score "
        f"{printable(told.get('score', 'unknown'))})",
        instead=instead,
    )


def _require_same_text(
    server: ServerModel, reader: Any, held: Reference | None, text: Text | None, cut: Cut
) -> None:
    """Refuse a server that cuts the text into other tokens."""
    if held is not None and (reader is None or text is None):
        if text is None:
            raise invalid_value(
                CALL,
                "texts",
                wanted="the text of the reference, which shows whether the server reads the same tokens",
                got="None",
                instead="texts=pathlib.Path('corpus.txt') (--text FILE)",
            )
        _require_reference_of(held, server, text, cut)
        return
    if reader is None:
        raise ModelError(
            f"{printable(server.name)}: wanted a model or a reference to compare the server with; got files alone"
        )
    if server.bos is not None and server.bos != reader.bos:
        raise ModelError(
            f"{printable(server.name)}: wanted windows that begin as in {printable(reader.name)}; got another "
            "first token (BOS); compare models of one tokenizer"
        )
    for document in () if text is None else text.documents:
        for each in texts_of(document):
            server.require_same_tokens(each, reader.encode)


def require_classes(base: ModelSide, side: ModelSide) -> None:
    """Refuse another number of classes, where both are known."""
    if base.classes and side.classes and base.classes != side.classes:
        raise ModelError(
            f"{printable(side.info.name)}: wanted {base.classes} classes, as {printable(base.info.name)} has; got "
            f"{side.classes}; use predictions over one vocabulary"
        )


def shared_classes(base: DenseSide, side: DenseSide) -> SharedClasses | None:
    """Return the classes that two sides share, or None if all are the same."""
    if isinstance(base.model, LanguageModel) and isinstance(side.model, LanguageModel):
        return share_classes(base.model.vocabulary, side.model.vocabulary, (base.classes, side.classes))
    require_classes(base, side)
    return None
