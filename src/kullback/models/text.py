"""Texts as windows of tokens: running text cut as llama.cpp cuts it, documents, and conversations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from kullback.errors import FileError, ModelError, invalid_type, invalid_value
from kullback.files import check_input
from kullback.io.windows import Windows
from kullback.models.language_model import LanguageModel, Message

__all__ = ["Conversation", "Score", "Text", "make_windows", "read_texts", "take_texts"]

Score = Literal["second-half", "all", "assistant"]
Conversation = Sequence[Message]
FEWEST_TOKENS = 3  # in a window: one before the first scored token, whose half is cut
LONGEST_LINE = 64 * 1024 * 1024  # bytes of a line of JSON


@dataclass(frozen=True)
class Text:
    """What the models are to read.

    Attributes:
        documents: the texts, or the conversations.
        running: whether it is one running text, of which only whole windows are read, as llama.cpp does; of each of
            several documents the last window may be shorter.
    """

    documents: Sequence[str] | Sequence[Conversation]
    running: bool

    @property
    def are_conversations(self) -> bool:
        """Whether the documents are conversations."""
        return not isinstance(self.documents[0], str)


def read_texts(path: Path) -> Text:
    """Read a text file, or a JSONL file whose lines hold ``"text"`` or ``"messages"``.

    Raises:
        FileError: it cannot be read, is empty, is not UTF-8, or a line is not as said.
    """
    check_input(path, "text")
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError(
            f"text = {path}: wanted UTF-8; got the byte {error.object[error.start]:#04x} at byte {error.start}; "
            "convert the file to UTF-8"
        ) from None
    except (OSError, IsADirectoryError) as error:
        raise FileError(
            f"text = {path}: wanted a readable file; got {error.strerror or error}; check the path"
        ) from None
    if not content.strip():
        raise FileError(
            f"text = {path}: wanted text; got an empty file; name a file with some thousand words"
        )
    if path.suffix.lower() not in (".jsonl", ".ndjson"):
        return Text([content], running=True)
    documents = [
        _document(path, number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()
    ]
    if len({isinstance(each, str) for each in documents}) > 1:
        raise FileError(
            f'text = {path}: wanted "text" in every line, or "messages" in every line; got both; write two files'
        )
    return Text(documents, running=False)


def _document(path: Path, number: int, line: str) -> Any:
    def wrong(got: str) -> FileError:
        return FileError(
            f'text = {path}: wanted {{"text": "..."}} or {{"messages": [{{"role": ..., "content": ...}}]}} in every '
            "line; "
            f"got {got} in line {number}; mend that line"
        )

    if len(line) > LONGEST_LINE:
        raise wrong(f"{len(line):,} characters")
    try:
        held = json.loads(line)
    except (ValueError, RecursionError):
        raise wrong("no JSON") from None
    if isinstance(held, dict):
        fields = cast("dict[str, Any]", held)
        if isinstance(fields.get("text"), str):
            return fields["text"]
        if _is_conversation(fields.get("messages")):
            return fields["messages"]
    raise wrong("neither")


def _is_conversation(given: object) -> bool:
    return (
        isinstance(given, list | tuple)
        and bool(given)
        and all(
            isinstance(each, dict) and all(isinstance(each.get(key), str) for key in ("role", "content"))
            for each in cast("Iterable[Any]", given)
        )
    )


def take_texts(call: str, texts: object) -> Text:
    """Return the argument `texts`: a path, a running text, a list of documents or of conversations."""
    if isinstance(texts, Text):
        return texts
    if isinstance(texts, Path):
        return read_texts(texts)
    if isinstance(texts, str):
        if not texts.strip():
            raise invalid_value(
                call, "texts", wanted="a text", got="an empty one", instead="texts='some words'"
            )
        return Text([texts], running=True)
    documents = list(cast("Iterable[Any]", texts)) if isinstance(texts, list | tuple) else []
    if documents and (
        all(isinstance(each, str) for each in documents) or all(map(_is_conversation, documents))
    ):
        return Text(documents, running=False)
    raise invalid_type(
        call,
        "texts",
        wanted="a text, a list of texts, a list of conversations, or a pathlib.Path",
        got=type(texts).__name__
        if not isinstance(texts, list | tuple)
        else "a list of something else or of nothing",
        instead="texts=pathlib.Path('corpus.txt')",
    )


def make_windows(
    model: LanguageModel, text: Text, *, context: int, score: Score, most: int | None = None
) -> tuple[Windows, Tensor]:
    """Cut texts into windows of `context` tokens, as ``llama-perplexity`` does, or conversations into one each.

    The tokens of a running text are cut one window after the other; what is left at its end is dropped. The first token
    of a window is replaced by the model's first token (BOS) where its tokenizer adds one, so that no window begins
    within a text.

    Arguments:
        model: whose tokens they are.
        text: what to cut.
        context: the number of tokens in a window, and the most that a conversation may have.
        score: ``"second-half"`` scores the tokens after position ``context // 2`` of each window, ``"all"`` those after
            its first, ``"assistant"`` the replies of conversations.
        most: the number of windows to keep.

    Returns:
        the windows, and the document of each.

    Raises:
        ArgumentValueError: `score` does not go with the text, or `context` is too small.
        ModelError: the text is shorter than a window, or a conversation longer.
    """
    if score not in get_args(Score):
        names = ", ".join(map(repr, get_args(Score)))
        raise invalid_value(
            "make_windows", "score", wanted=f"one of {names}", got=repr(score), instead="score='all'"
        )
    if context < FEWEST_TOKENS:
        raise invalid_value(
            "make_windows",
            "context",
            wanted=f"{FEWEST_TOKENS} or more",
            got=str(context),
            instead="context=512",
        )
    if text.are_conversations != (score == "assistant"):
        wanted = "conversations with score='assistant', and no other text" if score == "assistant" else "text"
        got = "conversations" if text.are_conversations else "text"
        instead = "score='assistant' (--score assistant)" if text.are_conversations else "score='second-half'"
        raise invalid_value("make_windows", "score", wanted=wanted, got=got, instead=instead)
    found: list[tuple[int, list[int], list[bool]]] = []
    for number, document in enumerate(text.documents):
        if isinstance(document, str):
            cut = _cut(model, document, context, score, running=text.running)
        else:
            cut = [_replies(model, document, context, number)]
        found += ((number, *window) for window in cut)
        if most is not None and len(found) >= most:
            found = found[:most]
            break
    found = [window for window in found if any(window[2])]
    if not found:
        raise ModelError(
            f"text: wanted at least one window of {context} tokens; got fewer tokens in all; give a longer text or a "
            f"smaller context (--context {max(FEWEST_TOKENS, context // 4)})"
        )
    lengths = torch.tensor([0, *(len(tokens) for _, tokens, _ in found)])
    windows = Windows(
        torch.tensor([token for _, tokens, _ in found for token in tokens]),
        lengths.cumsum(0),
        torch.tensor([each for _, _, scored in found for each in scored]),
    )
    return windows, torch.tensor([number for number, _, _ in found])


def _cut(
    model: LanguageModel, text: str, context: int, score: Score, *, running: bool
) -> list[tuple[list[int], list[bool]]]:
    start = [] if model.bos is None else [model.bos]
    tokens = start + model.encode(text)
    found: list[tuple[list[int], list[bool]]] = []
    for first in range(0, len(tokens), context):
        window = tokens[first : first + context]
        if len(window) < (context if running else FEWEST_TOKENS):
            break
        if model.bos is not None:
            window[0] = model.bos
        before = len(window) // 2 if score == "second-half" else 0
        found.append((window, [place > before for place in range(len(window))]))
    return found


def _replies(
    model: LanguageModel, messages: Conversation, context: int, number: int
) -> tuple[list[int], list[bool]]:
    """Return the tokens of a conversation, and which belong to the assistant's replies."""
    tokens = model.chat_tokens(messages, reply_follows=False)
    if len(tokens) > context:
        raise ModelError(
            f"text: wanted conversations of at most {context} tokens; got {len(tokens)} in conversation {number + 1}; "
            f"allow more (--context {len(tokens)}), or leave that conversation out"
        )
    scored = [False] * len(tokens)
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        ends = [
            model.chat_tokens(messages[:place], reply_follows=True) if place else [],
            model.chat_tokens(messages[: place + 1], reply_follows=False),
        ]
        if any(tokens[: len(end)] != end for end in ends):
            raise ModelError(
                f"text: wanted a chat template that only adds to a conversation; got one that rewrites conversation "
                f"{number + 1} when it goes on; score the whole text (--score all) of a file written by that template"
            )
        before, after = map(len, ends)
        scored[before:after] = [True] * (after - before)
    if scored:
        scored[0] = False
    return tokens, scored
