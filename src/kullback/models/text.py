"""Texts as windows of tokens: a running text that is cut as in llama.cpp, documents, and conversations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, OfType
from kullback.common.extra_arguments import by_name
from kullback.common.files import check_input
from kullback.common.shared_constraints import CONTEXT, FEWEST_TOKENS, SCORE, WINDOWS, Score
from kullback.errors import FileError, invalid_type, invalid_value
from kullback.io.windows import Windows
from kullback.models.conversations import (
    WANTED,
    Completion,
    Conversation,
    Document,
    WrongRecordError,
    document_tokens,
    read_record,
    reply_tokens,
    unreadable,
)
from kullback.models.groups import pattern_of
from kullback.models.language_model import LanguageModel

# A text of at most this many characters may be the name of a file, passed as a string by mistake.
_LONGEST_NAME = 255
_GROUPS = OfType(
    (str,), wanted="'role', 're:PATTERN', a key of the records, or None", example="role", optional=True
)
_CUT = Arguments("Cut", context=CONTEXT, score=SCORE, most_windows=WINDOWS, groups=_GROUPS)
LONGEST_LINE = 64 * 1024 * 1024  # characters in a line of JSON


@dataclass(frozen=True)
class Text:
    """The texts, or the conversations and completions, that the models read, and the record of each, if any.

    Only whole windows of one `running` text are read, as in llama.cpp. The last window of a document may be shorter.
    """

    documents: Sequence[Document]
    running: bool
    records: Sequence[Mapping[str, Any] | None] = (None,)

    @property
    def are_conversations(self) -> bool:
        """Whether the documents are conversations or completions, whose replies are scored."""
        return not isinstance(self.documents[0], str)


def read_texts(path: Path) -> Text:
    """Read a text file, or a JSONL file of records.

    A record has a ``"text"``; or ``"messages"``, with ``"tools"`` if there are any; or a ``"prompt"`` and a
    ``"completion"``, which are both text or both messages.

    Raises:
        FileError: the file cannot be read, is empty, is not UTF-8, or has a line that is not such a record.
    """
    check_input(path, "text")
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _wrong(
            path,
            wanted="UTF-8",
            got=f"the byte {error.object[error.start]:#04x} at byte {error.start}",
            instead="convert the file to UTF-8",
        ) from None
    except (OSError, IsADirectoryError) as error:
        raise _wrong(
            path, wanted="a readable file", got=f"{error.strerror or error}", instead="check the path"
        ) from None
    if not content.strip():
        raise _wrong(path, wanted="text", got="an empty file", instead="name a file with some thousand words")
    if path.suffix.lower() == ".json":
        instead = "write one record in each line of a .jsonl file, or name a .txt file"
        raise _wrong(path, wanted="a text file, or records in JSONL", got="a .json file", instead=instead)
    if path.suffix.lower() not in (".jsonl", ".ndjson"):
        return Text([content], running=True)
    content = content.removeprefix("\N{BYTE ORDER MARK}")
    lines = [
        _document(path, number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()
    ]
    documents = [document for document, _ in lines]
    if len({isinstance(each, str) for each in documents}) > 1:
        raise _wrong(
            path,
            wanted='"text" in every line, or "messages" or a "prompt" and "completion" in every line',
            got="both",
            instead="write two files",
        )
    return Text(documents, running=False, records=[record for _, record in lines])


def _wrong(path: Path, *, wanted: str, got: str, instead: str) -> FileError:
    return FileError.at(f"text = {path}", "text", wanted=wanted, got=got, instead=instead)


def _document(path: Path, number: int, line: str) -> tuple[Document, Mapping[str, Any]]:
    def wrong(got: str) -> FileError:
        return _wrong(
            path, wanted=f"{WANTED} in every line", got=f"{got} in line {number}", instead="correct that line"
        )

    if len(line) > LONGEST_LINE:
        raise wrong(f"{len(line):,} characters")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise wrong("no JSON") from None
    try:
        return read_record(record if isinstance(record, dict) else None), record
    except WrongRecordError as error:
        raise wrong(str(error)) from None


def take_texts(call: str, texts: object) -> Text:
    """Return the argument `texts` as a `Text`: a path, a running text, a list of documents, or a list of
    conversations.
    """
    if isinstance(texts, Text):
        return texts
    if isinstance(texts, Path):
        return read_texts(texts)
    if isinstance(texts, str):
        if not texts.strip():
            raise invalid_value(
                call, "texts", wanted="a text", got="an empty one", instead="texts='some words'"
            )
        if len(texts) <= _LONGEST_NAME and "\n" not in texts and Path(texts).is_file():
            raise invalid_value(
                call,
                "texts",
                wanted="the text itself, or a pathlib.Path",
                got=f"{texts!r}, the name of a file",
                instead=f"texts=pathlib.Path({texts!r})",
            )
        return Text([texts], running=True)
    items = list(cast("Iterable[Any]", texts)) if isinstance(texts, list | tuple) else []
    try:
        documents = [each if isinstance(each, str) else read_record(each) for each in items]
    except WrongRecordError as error:
        raise invalid_value(
            call,
            "texts",
            wanted=f"a text, or {WANTED}, or its messages, in every item",
            got=str(error),
            instead="texts=[[{'role': 'user', 'content': '...'}, {'role': 'assistant', 'content': '...'}]]",
        ) from None
    if len({isinstance(each, str) for each in documents}) == 1:
        records = [each if isinstance(each, Mapping) else None for each in items]
        return Text(documents, running=False, records=records)
    raise invalid_type(
        call,
        "texts",
        wanted="a text, a list of texts, a list of conversations, or a pathlib.Path",
        got=type(texts).__name__
        if not isinstance(texts, list | tuple)
        else "a list of something else or of nothing",
        instead="texts=pathlib.Path('corpus.txt')",
    )


@by_name()
@dataclass(frozen=True)
class Cut:
    """How a text is cut into windows, and which tokens are scored.

    The tokens of a running text are cut into consecutive windows, as in ``llama-perplexity``; a shorter rest at the end
    is dropped. Each conversation is one window. If the tokenizer adds a first token (BOS) to texts, BOS replaces the
    first token of each window.

    Attributes:
        context: the number of tokens in a window, and the largest number of tokens in a conversation. None for the
            context of a reference file, or 512 without such a file.
        score: ``"second-half"`` scores the tokens after position ``context // 2`` of each window. ``"all"`` scores all
            tokens but the first. ``"assistant"`` scores the replies in conversations and the completions of prompts.
            None for the score of a reference file, or ``"second-half"`` without such a file.
        most_windows: the largest number of windows to read; None for all windows.
        groups: the groups of scored tokens; every statistic is also computed in each group. None for no groups.
            ``"role"`` groups by the role of the message, or ``"prompt"`` and ``"completion"``. Tokens that a template
            adds are in group ``"template"``. ``"re:PATTERN"`` groups by a regular expression of Python, which is
            searched in the text of each window. The tokens that overlap a match are in group ``"match"``, or in the
            group of the first named part, as in ``re:(?P<number>[0-9]+)|(?P<word>[a-z]+)``. All others are in
            ``"rest"``. Any other text is a key of the records, with one value for all tokens of a record, or a list
            with a value for each. A pattern may run forever, so it must be your own. There are at most 32 groups.

    Raises:
        ArgumentValueError: an attribute has a wrong value.

    Example:
        >>> Cut(context=2)
        Traceback (most recent call last):
            ...
        kullback.errors.ArgumentValueError: Cut(context=...): wanted an integer of 3 or more, or None; got 2. Write: ...
    """

    context: int | None = None
    score: Score | None = None
    most_windows: int | None = None
    groups: str | None = None

    def __post_init__(self) -> None:
        _CUT.settle(self)
        pattern_of(self.groups or "")

    @property
    def chosen(self) -> tuple[int, Score]:
        """The context and the score, with the defaults for None."""
        return self.context or 512, self.score or "second-half"

    def windows(self, model: LanguageModel, text: Text) -> tuple[Windows, Tensor]:
        """Return the windows of a text in a model's tokens, and the number of each window's document.

        Raises:
            ArgumentValueError: `score` does not fit the kind of the text.
            ModelError: the text is shorter than a window, a conversation is longer than a window, or the template
                changes a reply.
        """
        (context, score), most = self.chosen, self.most_windows
        if score != "all" and text.are_conversations != (score == "assistant"):
            wanted = (
                "conversations with score='assistant', and no other text" if score == "assistant" else "text"
            )
            got, instead = "text", "second-half"
            if text.are_conversations:
                got, instead = "conversations", "assistant"
            raise invalid_value("Cut", "score", wanted=wanted, got=got, instead={"score": instead})
        cuts: list[tuple[int, list[int], list[bool]]] = []
        for number, document in enumerate(text.documents):
            if isinstance(document, str):
                cut = _cut(model, document, context, score, running=text.running)
            else:
                cut = [_conversation(model, document, context, score, number + 1)]
            cuts += ((number, *window) for window in cut)
            if most is not None and len(cuts) >= most:
                cuts = cuts[:most]
                break
        cuts = [window for window in cuts if any(window[2])]
        if not cuts and text.are_conversations:
            wanted, got = "conversations with a reply", "no reply"
            raise invalid_value("Cut", "score", wanted=wanted, got=got, instead={"score": "all"})
        if not cuts:
            least = context if text.running else FEWEST_TOKENS
            lengths = (len(model.encode(each)) for each in text.documents if isinstance(each, str))
            tokens = max(lengths, default=0) + (model.bos is not None)
            fits = text.running and tokens >= FEWEST_TOKENS
            raise unreadable(
                wanted=f"at least one window of {least} tokens",
                got=f"{tokens}",
                instead="give a longer text" + f" or a smaller context (--context {tokens})" * fits,
            )
        lengths = torch.tensor([0, *(len(tokens) for _, tokens, _ in cuts)], device="cpu")
        windows = Windows(
            torch.tensor([token for _, tokens, _ in cuts for token in tokens], device="cpu"),
            lengths.cumsum(0),
            torch.tensor([each for _, _, scored in cuts for each in scored], device="cpu"),
        )
        return windows, torch.tensor([number for number, _, _ in cuts], device="cpu")


CUT = Cut()


def _cut(
    model: LanguageModel, text: str, context: int, score: Score, *, running: bool
) -> list[tuple[list[int], list[bool]]]:
    start = [] if model.bos is None else [model.bos]
    tokens = start + model.encode(text)
    windows: list[tuple[list[int], list[bool]]] = []
    for first in range(0, len(tokens), context):
        window = tokens[first : first + context]
        if len(window) < (context if running else FEWEST_TOKENS):
            break
        if model.bos is not None:
            window[0] = model.bos
        before = len(window) // 2 if score == "second-half" else 0
        windows.append((window, [place > before for place in range(len(window))]))
    return windows


def _conversation(
    model: LanguageModel, document: Conversation | Completion, context: int, score: Score, number: int
) -> tuple[list[int], list[bool]]:
    """Return the tokens of a conversation or completion, and which of them are scored: the replies, or all."""
    if score == "all":
        tokens = document_tokens(model, document, number)
        scored = [place > 0 for place in range(len(tokens))]
    else:
        tokens, scored = reply_tokens(model, document, number)
    if len(tokens) > context:
        raise unreadable(
            wanted=f"conversations of at most {context} tokens",
            got=f"{len(tokens)} in conversation {number}",
            instead=f"allow more (--context {len(tokens)}), or leave that conversation out",
        )
    return tokens, scored


def runs_of_documents(documents: Tensor) -> str:
    """Return the document of each window as text for the metadata of a reference file.

    Example:
        >>> runs_of_documents(torch.tensor([0, 0, 1, 3, 3]))
        '0:2 1:1 3:2'
    """
    numbers, counts = documents.unique_consecutive(return_counts=True)
    return " ".join(
        f"{number}:{count}" for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
    )


def documents_of_runs(text: str, windows: int) -> Tensor | None:
    """Return the document of each window from the text of `runs_of_documents`; None if it is not such a text."""
    if not re.fullmatch(r"\d{1,9}:\d{1,9}( \d{1,9}:\d{1,9})*", text, re.ASCII):
        return None
    runs = torch.tensor([[*map(int, run.split(":"))] for run in text.split(" ")], device="cpu")
    numbers, counts = runs.unbind(-1)
    if int(counts.sum()) != windows or bool((numbers.diff() <= 0).any()):
        return None
    return torch.repeat_interleave(numbers, counts)
