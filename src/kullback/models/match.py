"""Matching the sides of a comparison: the same tokens for all sides, and the classes that two sides share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypedDict, cast, get_args

import torch
from torch import Tensor

from kullback.common.shared_constraints import FEWEST_TOKENS, Score
from kullback.errors import ArgumentValueError, ModelError, invalid_value, printable
from kullback.io import Reference, RowSource, TopKSource
from kullback.io.windows import Windows
from kullback.models.conversations import texts_of
from kullback.models.groups import Origins, groups_of, pattern_of
from kullback.models.hidden_states import HiddenStates
from kullback.models.language_model import LanguageModel, ModelInfo
from kullback.models.open_model import Opened
from kullback.models.server import ServerModel
from kullback.models.side import DenseSide, ListedSide, ModelSide, ReferenceSide
from kullback.models.text import Cut, Text, documents_of_runs
from kullback.models.vocabulary import SharedClasses, Words, share_classes
from kullback.predictions.groups import Groups

CALL = "compare_models"
# The types of sides that may store windows.
Holder = Reference | RowSource


class Matched(NamedTuple):
    """The base and the candidates as sides, with windows of the same tokens, in the base's numbers.

    `documents` has the document of each window, and `groups` the group of each scored token. `words` has the text of
    every class of the base, or is None if these texts are unknown.
    """

    sides: list[ModelSide]
    windows: Windows
    documents: Tensor
    context: int
    score: str
    words: list[str] | None
    notes: list[str]
    groups: Groups | None = None


def match_sides(base: Opened, others: Sequence[Opened], text: Text | None, cut: Cut) -> Matched:
    """Assign windows to every side, and refuse sides that read other tokens than the base.

    Raises:
        ModelError: a model reads other tokens, or no side can read a text.
        FileError: a file holds other tokens.
    """
    everyone = [base, *others]
    reader = next((each for each in everyone if isinstance(each, LanguageModel) and _reads(each)), None)
    context, score = cut.chosen
    holder = _holder_of_windows(everyone, text)
    left_out = 0
    if holder is not None:
        windows, documents = _windows_of(holder), _documents_of(holder)
        cut, stored = _cut_of(holder, cut), _stored_settings(holder)
        context = stored.get("context", int(windows.offsets.diff().max()))
        score = stored.get("score", cut.chosen[1])
        if text is not None and reader is not None:
            _require_holder_of(holder, reader, text, cut)
        elif text is not None and not any(isinstance(each, ServerModel) for each in everyone):
            raise invalid_value(
                CALL,
                "texts",
                wanted="None, as the text is the reference's and no side can read another",
                got="a text",
                instead={"texts": None},
            )
    else:
        if reader is None:
            raise invalid_value(
                CALL,
                "base",
                wanted="a model among the sides, whose tokenizer cuts the text",
                got="none",
                instead="compare_predictions(p, q) for two files",
            )
        if text is None:
            raise _without_text("a text")
        windows, documents = cut.windows(reader, text)
        if cut.most_windows is None:
            left_out = len(text.documents) - len(documents.unique())
    matcher = _Matcher(holder, reader, windows, text, cut)
    sides = [matcher.side(each) for each in everyone]
    words, shower = None, reader or _words_of_head(everyone)
    if shower is not None:
        known, classes = shower.vocabulary, sides[0].classes if reader is None else reader.classes
        words = [known.text(index) for index in range(max(classes, len(known)))]
    notes: list[str] = []
    if text is not None and left_out:
        notes.append(f"{left_out:,} of {len(text.documents):,} documents hold no scored token.")
    groups = None
    if cut.groups is not None:
        groups, remarks = _groups(cut, shower, text, windows, documents if holder is None else None)
        notes += remarks
    return Matched(sides, windows, documents, context, score, words, notes, groups)


def _groups(
    cut: Cut,
    shower: LanguageModel | Words | None,
    text: Text | None,
    windows: Windows,
    documents: Tensor | None,
) -> tuple[Groups, list[str]]:
    """Return the group of each scored token, and remarks.

    Arguments:
        cut: how the text was cut, and the rule of the groups.
        shower: the model whose tokens the windows have, or these tokens alone; None without both.
        text: the text; None if a side stores the windows and there is no text.
        documents: the document of each window; None to cut the text for them.
    """
    if shower is None or (isinstance(shower, Words) and pattern_of(str(cut.groups)) is None):
        got, instead = "files alone", {"groups": None}
        wanted = "a model among the sides, whose tokenizer shows the groups"
        raise invalid_value("Cut", "groups", wanted=wanted, got=got, instead=instead)
    origins = None
    if text is not None and not isinstance(shower, Words):
        of_window = cut.windows(shower, text)[1] if documents is None else documents
        origins = Origins(text.documents, text.records, of_window)
    return groups_of(str(cut.groups), shower, windows, origins, are_stored=documents is None)


def _words_of_head(everyone: Sequence[Opened]) -> Words | None:
    """Return the tokens in the folder of a head of hidden states; None if no side has them."""
    streams = (side.stream for side in everyone if isinstance(side, RowSource))
    words = (stream.head.words for stream in streams if isinstance(stream, HiddenStates))
    return next((each for each in words if each is not None), None)


def _holder_of_windows(everyone: Sequence[Opened], text: Text | None) -> Holder | None:
    """Return the side whose stored windows the comparison uses; None if a text is cut into windows instead."""
    holders = cast("list[Holder]", [side for side in everyone if _holds_windows(side)])
    holders.sort(key=_finds_windows)  # these can follow the order of another side
    if not holders:
        return None
    first = holders[0]
    has_order = first is everyone[0] and not _finds_windows(first)
    return first if has_order or text is None or not any(map(_reads, everyone)) else None


def _cut_of(holder: Holder, cut: Cut) -> Cut:
    """Return how the text of the stored windows was cut.

    Raises:
        ArgumentValueError: `cut` has another context or score than the windows, or fewer windows.
    """
    stored, size = _stored_settings(holder), len(_windows_of(holder))
    for name, value in stored.items():
        if (chosen := getattr(cut, name)) not in (None, value):
            raise _not_stored(holder, name, str(value), chosen)
    if cut.most_windows is not None and cut.most_windows < size:
        raise _not_stored(holder, "most_windows", f"all {size} windows", cut.most_windows)
    return replace(cut, **stored)


class _StoredSettings(TypedDict, total=False):
    """The settings that determined the stored windows of a text; each may be unknown."""

    context: int
    score: Score


def _stored_settings(holder: Holder) -> _StoredSettings:
    context, score = holder.metadata.get("context", ""), holder.metadata.get("score")
    stored = _StoredSettings()
    if context.isdecimal() and len(context) < 10 and int(context) >= FEWEST_TOKENS:
        stored["context"] = int(context)
    if score in get_args(Score):
        stored["score"] = cast("Score", score)
    return stored


def _not_stored(holder: Holder, name: str, wanted: str, got: object) -> ArgumentValueError:
    wanted = f"{wanted}, as in {holder.ref.shown}"
    return ArgumentValueError.at(
        f"Cut({name}=...)", name, wanted=wanted, got=str(got), instead="leave it out"
    )


def _finds_windows(opened: Opened) -> bool:
    return isinstance(opened, RowSource) and opened.finds_windows


def _holds_windows(opened: Opened) -> bool:
    return isinstance(opened, Reference) or (isinstance(opened, RowSource) and opened.windows is not None)


def _windows_of(holder: Holder) -> Windows:
    return cast("Windows", holder.windows)


def _documents_of(holder: Holder) -> Tensor:
    """Return the document of each stored window; a file without documents has one."""
    windows, stored = len(_windows_of(holder)), holder.metadata.get("documents")
    if stored is None:
        return torch.zeros(windows, dtype=torch.int64, device="cpu")
    documents = documents_of_runs(stored, windows)
    if documents is None:
        wanted = f"metadata documents such as 0:2 1:3, of {windows} windows together"
        raise holder.ref.error(
            wanted=wanted, got=repr(printable(stored, 40)), instead="record the file again"
        )
    return documents


def _reads(opened: Opened) -> bool:
    return isinstance(opened, LanguageModel) and not isinstance(opened, ServerModel)


def _without_text(wanted: str) -> ArgumentValueError:
    instead = "texts=pathlib.Path('corpus.txt')"
    return invalid_value(CALL, "texts", wanted=wanted, got="None", instead=instead)


@dataclass(frozen=True)
class _Matcher:
    """Assigns to each side the windows of the comparison.

    The `holder` is the reference or stream that stores the windows; None if a text is cut. The `reader` is the first
    model that can cut a text into tokens.
    """

    holder: Holder | None
    reader: LanguageModel | None
    windows: Windows
    text: Text | None
    cut: Cut

    def side(self, opened: Opened) -> ModelSide:
        """Return an opened model or file as a side."""
        if _holds_windows(opened) and opened is not self.holder:
            opened = self._with_same_windows(cast("Holder", opened))
        if isinstance(opened, Reference):
            return ReferenceSide.of(opened)
        if isinstance(opened, RowSource):
            return DenseSide.of_file(opened, self.windows)
        if isinstance(opened, TopKSource | ServerModel):
            return self._listed(opened)
        windows = self.windows
        if self.holder is not None:
            # The holder does not store the texts of tokens, so only the fingerprints can be compared.
            _require_fingerprint(printable(opened.name), opened.vocabulary.fingerprint, self.holder)
        elif self.reader is not None and opened is not self.reader:
            windows = self._own_windows(opened, self.reader)
        return DenseSide(opened.info, windows, opened)

    def _listed(self, opened: TopKSource | ServerModel) -> ListedSide:
        known = self.holder or self.reader
        classes = 0 if known is None else known.classes
        if isinstance(opened, TopKSource):
            info = ModelInfo(opened.name, opened.format, None, opened.classes or classes)
            return ListedSide(info, self.windows, opened)
        self._require_same_text(opened)
        opened.info = replace(opened.info, classes=classes)
        if self.reader is not None:
            opened.vocabulary = self.reader.vocabulary
        return ListedSide(opened.info, self.windows, opened)

    def _own_windows(self, opened: LanguageModel, reader: LanguageModel) -> Windows:
        """Return the windows in a model's own token numbers; the model must cut the text into the same tokens."""
        windows = self.windows
        same_words = opened.vocabulary.fingerprint == reader.vocabulary.fingerprint
        if (same_words and opened.bos == reader.bos) or self.text is None:
            return windows
        own, _ = self.cut.windows(opened, self.text)
        pairs = zip(windows.tokens.tolist(), own.tokens.tolist(), strict=False)
        other = (
            f"{opened.vocabulary.text(b)!r} for {reader.vocabulary.text(a)!r} at token {place}"
            for place, (a, b) in enumerate(pairs)
            if reader.vocabulary.get(a) != opened.vocabulary.get(b)
        )
        lengths = len(own.tokens), len(windows.tokens)
        difference = next(other, None)
        if difference is None and lengths[0] == lengths[1]:
            return Windows(own.tokens, windows.offsets, windows.scored)
        raise ModelError.at(
            printable(opened.name),
            wanted=f"a tokenizer that cuts the text into the same tokens as {printable(reader.name)}'s",
            got=f"{difference or f'{lengths[0]} tokens for {lengths[1]}'}",
            instead="compare models of one tokenizer",
        )

    def _with_same_windows(self, opened: Holder) -> Holder:
        """Return a side with the windows of the comparison; refuse a side of other tokens."""
        if self.holder is not None:
            _require_fingerprint(opened.ref.shown, opened.metadata.get("tokenizer"), self.holder)
            instead = "record both of one text, with one context and score"
        else:
            reader = cast("LanguageModel", self.reader)
            _require_fingerprint(printable(reader.name), reader.vocabulary.fingerprint, opened)
            instead = "leave the text out, or record the reference again"
        if isinstance(opened, RowSource) and opened.finds_windows:
            return opened.over(self.windows)
        _require_windows(opened, self.windows, instead)
        return opened

    def _require_same_text(self, server: ServerModel) -> None:
        """Refuse a server that cuts the text into other tokens than the comparison."""
        if self.holder is not None and (self.reader is None or self.text is None):
            if self.text is None:
                raise _without_text(
                    "the text of the reference, which shows whether the server reads the same tokens"
                )
            _require_holder_of(self.holder, server, self.text, self.cut)
            return
        reader = self.reader
        if reader is None:
            raise ModelError.at(
                printable(server.name),
                wanted="a model or a reference to compare the server with",
                got="files alone",
                instead="name one of these as P or Q",
            )
        if server.bos is not None and server.bos != reader.bos:
            raise ModelError.at(
                printable(server.name),
                wanted=f"windows that begin as in {printable(reader.name)}",
                got="another first token (BOS)",
                instead="compare models of one tokenizer",
            )
        for document in () if self.text is None else self.text.documents:
            for each in texts_of(document):
                server.require_same_tokens(each, reader.encode)


def _require_fingerprint(name: str, fingerprint: str | None, holder: Holder) -> None:
    """Refuse a vocabulary that differs from the vocabulary of a reference or stream."""
    wanted = holder.metadata.get("tokenizer")
    if None not in (wanted, fingerprint) and wanted != fingerprint:
        raise ModelError.at(
            name,
            wanted=f"the tokenizer that {holder.ref.shown} was recorded with",
            got=(
                f"another (fingerprint {printable(str(fingerprint)[:12])} for {printable(str(wanted)[:12])})"
            ),
            instead="compare with the model itself, whose tokens can be matched by their bytes"
            if isinstance(holder, Reference)
            else "name the model that made these files (--head)",
        )


def _require_holder_of(holder: Holder, reader: LanguageModel, text: Text, cut: Cut) -> None:
    """Refuse a text if the holder was recorded with another text."""
    windows, _ = cut.windows(reader, text)
    _require_windows(holder, windows, "leave the text out, or record the reference again")


def _require_windows(holder: Holder, windows: Windows, instead: str) -> None:
    """Refuse a holder of other windows."""
    own, stored = _windows_of(holder), holder.metadata
    pairs = (own.tokens, windows.tokens), (own.offsets, windows.offsets), (own.scored, windows.scored)
    if not all(torch.equal(*pair) for pair in pairs):
        raise holder.ref.error(
            wanted="a reference of this text",
            got=f"one of other tokens (context {printable(stored.get('context', 'unknown'))}, score "
            f"{printable(stored.get('score', 'unknown'))})",
            instead=instead,
        )


def require_classes(base: ModelSide, side: ModelSide) -> None:
    """Refuse a side whose number of classes differs from the base's, if both numbers are known."""
    if base.classes and side.classes and base.classes != side.classes:
        raise ModelError.at(
            printable(side.info.name),
            wanted=f"{base.classes} classes, as {printable(base.info.name)} has",
            got=str(side.classes),
            instead="use predictions over one vocabulary",
        )


def shared_classes(base: DenseSide, side: DenseSide) -> SharedClasses | None:
    """Return the classes that two sides share; None if both have the same classes."""
    if isinstance(base.model, LanguageModel) and isinstance(side.model, LanguageModel):
        return share_classes(base.model.vocabulary, side.model.vocabulary, (base.classes, side.classes))
    require_classes(base, side)
    return None
