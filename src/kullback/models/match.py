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
from kullback.models.language_model import LanguageModel, ModelInfo
from kullback.models.open_model import Opened
from kullback.models.server import ServerModel
from kullback.models.side import DenseSide, ListedSide, ReferenceSide, Side
from kullback.models.text import Score, Text, make_windows
from kullback.models.vocabulary import SharedClasses, share_classes

__all__ = ["Cut", "Matched", "match_sides", "require_classes", "shared_classes"]

CALL = "compare_models"


class Cut(NamedTuple):
    """How a text is cut into windows."""

    context: int
    score: Score
    most_windows: int | None


class Matched(NamedTuple):
    """The sides of a comparison, with windows of the same tokens.

    Attributes:
        sides: the base and the candidates.
        windows: the windows in the base's tokens.
        documents: the document of each window.
        context: the most tokens of a window.
        score: which tokens are scored.
        words: the text of every class of the base, or None where it is unknown.
        notes: remarks, as sentences.
    """

    sides: list[Side]
    windows: Windows
    documents: Tensor
    context: int
    score: str
    words: list[str] | None
    notes: list[str]


def match_sides(base: Opened, others: Sequence[Opened], text: Text | None, cut: Cut) -> Matched:
    """Give every side its windows, and refuse those that read other tokens than the base.

    Raises:
        ModelError: a model reads other tokens, or no side can read a text.
        FileError: a file holds other tokens.
    """
    everyone = [base, *others]
    reader = next((each for each in everyone if _reads(each)), None)
    context, score = cut.context, str(cut.score)
    if isinstance(base, Reference):
        windows, documents = base.windows, torch.zeros(len(base.windows), dtype=torch.int64)
        held = base.metadata
        context = int(held.get("context", "0") if held.get("context", "").isdecimal() else 0) or int(
            windows.offsets.diff().max()
        )
        score = held.get("score", score)
        if text is not None and isinstance(reader, LanguageModel):
            _require_reference_of(base, reader, text, cut)
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
        windows, documents = make_windows(
            reader, text, context=cut.context, score=cut.score, most=cut.most_windows
        )
    sides = [_side(each, base, reader, windows, text, cut) for each in everyone]
    words = None
    if isinstance(reader, LanguageModel):
        count = max(reader.classes, len(reader.vocabulary))
        words = [reader.vocabulary.text(index) for index in range(count)]
    left_out = 0
    if text is not None and cut.most_windows is None and not isinstance(base, Reference):
        left_out = len(text.documents) - len(documents.unique())
    notes = (
        [f"{left_out:,} of {len(text.documents):,} documents hold no scored token."]
        if text and left_out
        else []
    )
    return Matched(sides, windows, documents, context, score, words, notes)


def _reads(opened: Opened) -> bool:
    return isinstance(opened, LanguageModel) and not isinstance(opened, ServerModel)


def _side(
    opened: Opened,
    base: Opened,
    reader: Any,
    windows: Windows,
    text: Text | None,
    cut: Cut,
) -> Side:
    if isinstance(opened, Reference):
        return ReferenceSide.of(opened)
    if isinstance(opened, RowSource):
        return DenseSide.of_file(opened, windows)
    if isinstance(opened, TopKSource | ServerModel):
        return _listed(opened, base, reader, windows, text, cut)
    if isinstance(base, Reference):
        _require_tokenizer_of(base, opened)
    elif opened is not reader:
        windows = _own_windows(opened, reader, windows, text, cut)
    return DenseSide(opened.info, windows, opened)


def _listed(
    opened: TopKSource | ServerModel, base: Opened, reader: Any, windows: Windows, text: Text | None, cut: Cut
) -> ListedSide:
    known = base if isinstance(base, Reference) else reader
    classes = known.classes if known is not None else 0
    if isinstance(opened, TopKSource):
        info = ModelInfo(opened.name, opened.format, None, opened.classes or classes)
        return ListedSide(info, windows, opened)
    _require_same_text(opened, reader, base, text, cut)
    opened.info = replace(opened.info, classes=classes)
    if reader is not None:
        opened.vocabulary = reader.vocabulary
    return ListedSide(opened.info, windows, opened)


def _own_windows(
    opened: LanguageModel, reader: LanguageModel, windows: Windows, text: Text | None, cut: Cut
) -> Windows:
    """Return the windows in a model's own tokens, which must be the same tokens."""
    same_words = opened.vocabulary.fingerprint == reader.vocabulary.fingerprint
    if (same_words and opened.bos == reader.bos) or text is None:
        return windows
    own, _ = make_windows(opened, text, context=cut.context, score=cut.score, most=cut.most_windows)
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


def _require_tokenizer_of(base: Reference, opened: LanguageModel) -> None:
    """Refuse a model whose vocabulary is another than that of a reference, which holds no texts of tokens."""
    wanted = base.metadata.get("tokenizer")
    if wanted is not None and wanted != opened.vocabulary.fingerprint:
        raise ModelError(
            f"{printable(opened.name)}: wanted the tokenizer that {base.ref.shown} was recorded with; got another "
            f"(fingerprint {opened.vocabulary.fingerprint[:12]} for {printable(wanted[:12])}); compare with the model "
            "itself, whose tokens can be matched by their bytes"
        )


def _require_reference_of(base: Reference, reader: LanguageModel, text: Text, cut: Cut) -> None:
    """Refuse a text that is not the one a reference was recorded with."""
    windows, _ = make_windows(reader, text, context=cut.context, score=cut.score, most=cut.most_windows)
    if not (
        torch.equal(windows.tokens, base.windows.tokens) and torch.equal(windows.scored, base.windows.scored)
    ):
        held = base.metadata
        raise FileError(
            f"base = {base.ref.shown}: wanted a reference of this text; got one of other tokens (context "
            f"{printable(held.get('context', 'unknown'))}, score {printable(held.get('score', 'unknown'))}); leave the "
            "text out, or record the reference again"
        )


def _require_same_text(server: ServerModel, reader: Any, base: Opened, text: Text | None, cut: Cut) -> None:
    """Refuse a server that cuts the text into other tokens."""
    if isinstance(base, Reference) and (reader is None or text is None):
        if text is None:
            raise invalid_value(
                CALL,
                "texts",
                wanted="the text of the reference, to tell whether the server reads the same tokens",
                got="None",
                instead="texts=pathlib.Path('corpus.txt') (--text FILE)",
            )
        _require_reference_of(base, server, text, cut)
        return
    if reader is None:
        raise ModelError(
            f"{printable(server.name)}: wanted a model or a reference to compare the server with; got files alone"
        )
    if server.bos is not None and server.bos != reader.bos:
        raise ModelError(
            f"{printable(server.name)}: wanted windows that begin as those of {printable(reader.name)}; got another "
            "first token (BOS); compare models of one tokenizer"
        )
    for document in () if text is None else text.documents:
        for each in [document] if isinstance(document, str) else [message["content"] for message in document]:
            server.require_same_tokens(each, reader.encode)


def require_classes(base: Side, side: Side) -> None:
    """Refuse another number of classes, where both are known."""
    if base.classes and side.classes and base.classes != side.classes:
        raise ModelError(
            f"{printable(side.info.name)}: wanted {base.classes} classes, as {printable(base.info.name)} has; got "
            f"{side.classes}; use predictions over one vocabulary"
        )


def shared_classes(base: DenseSide, side: DenseSide) -> SharedClasses | None:
    """Return the classes that two sides share, or None where all are the same."""
    if isinstance(base.model, LanguageModel) and isinstance(side.model, LanguageModel):
        return share_classes(base.model.vocabulary, side.model.vocabulary, (base.classes, side.classes))
    require_classes(base, side)
    return None
