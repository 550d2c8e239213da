"""Conversations and completions: records of chat data, and the tokens of the replies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from kullback.common.plain_values import JsonObject, decoded
from kullback.errors import ModelError, printable, quoted
from kullback.models.language_model import LanguageModel, Message

WANTED = (
    '{"text": "..."}, {"messages": [{"role": ..., "content": ...}]} or {"prompt": ..., "completion": ...}'
)
# Fields that change the prompt in ways that are not supported. A record with such a field is refused.
UNSUPPORTED = "documents", "functions", "chat_template", "chat_template_kwargs"
# The names that chat templates use for the field with the thoughts of a reply.
REASONING = "reasoning_content", "reasoning", "thinking"
THINK = "<think>"
# The roles of tokens: added by a template, and in the prompt or the completion of a record of texts.
TEMPLATE, PROMPT, COMPLETION = "template", "prompt", "completion"


def unreadable(*, wanted: str, got: str, instead: str) -> ModelError:
    """Return the error for a text that a model or its template cannot read."""
    return ModelError.at("text", "text", wanted=wanted, got=got, instead=instead)


class WrongRecordError(Exception):
    """A record is not a text, a conversation or a completion; the message describes the record."""


@dataclass(frozen=True)
class Conversation:
    """A conversation as a list of messages; the assistant's replies are scored.

    Messages and tools are as `LanguageModel.chat_text` takes them. The content of a message is a text, or None in a
    message with tool calls. The messages before the index `first_scored` are the prompt.
    """

    messages: Sequence[Message]
    tools: Sequence[Any] | None = None
    first_scored: int = 0


@dataclass(frozen=True)
class Completion:
    """A prompt and a completion as text. The completion is scored, and no template is applied."""

    prompt: str
    completion: str


Document = str | Conversation | Completion


def read_record(record: object) -> Document:
    """Return the document that a record or a list of messages describes.

    A record has a ``"text"``; or ``"messages"``, with ``"tools"`` if there are any; or a ``"prompt"`` and a
    ``"completion"``, which are both text or both messages.
    """
    if isinstance(record, list | tuple):
        return Conversation(_messages(cast("Sequence[Any]", record)))
    if not isinstance(record, Mapping):
        raise WrongRecordError("neither")
    fields = cast("Mapping[str, Any]", record)
    if isinstance(fields.get("text"), str):
        return fields["text"]
    for name in UNSUPPORTED:
        if fields.get(name):
            raise WrongRecordError(f'"{name}", which would change the prompt and is not supported,')
    tools = _tools(fields.get("tools"))
    if "messages" in fields:
        return Conversation(_messages(fields["messages"]), tools)
    prompt, completion = fields.get("prompt"), fields.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        if tools:
            raise WrongRecordError('"tools" with a prompt that is text')
        return Completion(prompt, completion)
    if isinstance(prompt, list) and isinstance(completion, list):
        before = _messages(cast("Sequence[Any]", prompt))
        return Conversation([*before, *_messages(cast("Sequence[Any]", completion))], tools, len(before))
    raise WrongRecordError("neither")


def texts_of(document: Document) -> list[str]:
    """Return the texts in a document."""
    if isinstance(document, str):
        return [document]
    if isinstance(document, Completion):
        return [document.prompt, document.completion]
    return [message["content"] for message in document.messages if message["content"]]


def _messages(record: object) -> list[Message]:
    if not isinstance(record, list | tuple) or not record:
        raise WrongRecordError("neither")
    return [_message(each, number) for number, each in enumerate(cast("Sequence[Any]", record), 1)]


def _message(record: object, number: int) -> Message:
    """Return a message with the content as text and the arguments of tool calls as objects, as templates take them."""
    if not isinstance(record, Mapping) or not isinstance(record.get("role"), str):
        raise WrongRecordError("neither")
    message = dict(cast("Mapping[str, Any]", record))
    content = message.get("content")
    if isinstance(content, list | tuple):
        parts = cast("Sequence[Any]", content)
        texts = [
            each.get("text") for each in parts if isinstance(each, Mapping) and each.get("type") == "text"
        ]
        if len(parts) != 1 or not texts or not isinstance(texts[0], str):
            raise WrongRecordError(
                f"{len(parts)} parts, or one that is not text, as the content of message {number}"
            )
        content = texts[0]
    calls = message.get("tool_calls") or []
    if content is None and not calls:
        raise WrongRecordError(f"neither content nor tool_calls in message {number}")
    if content is not None and not isinstance(content, str):
        raise WrongRecordError(f"a content that is not text in message {number}")
    message["content"] = content
    if calls:
        message["tool_calls"] = [_call(each, number) for each in calls]
    return message


def _call(record: object, number: int) -> JsonObject:
    call = cast("Mapping[str, Any]", record) if isinstance(record, Mapping) else {}
    function = call.get("function", call)
    arguments = function.get("arguments", {}) if isinstance(function, Mapping) else None
    if isinstance(arguments, str):  # OpenAI's API gives the arguments as JSON text
        arguments = decoded(arguments or "{}")
    if not isinstance(arguments, dict) or not isinstance(function.get("name"), str):
        raise WrongRecordError(
            f"a tool call without a name, or with arguments that are not an object, in message {number}"
        )
    function = {**function, "arguments": arguments}
    return {**call, "function": function} if "function" in call else function


def _tools(record: object) -> list[Any] | None:
    tools = record
    if isinstance(tools, str):  # tables store tools as JSON text, because a column has one type
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            raise WrongRecordError('"tools" that are no JSON') from None
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(each, dict) for each in cast("list[Any]", tools)):
        raise WrongRecordError('"tools" that is not a list of objects')
    return cast("list[Any]", tools)


def reply_tokens(
    model: LanguageModel, document: Conversation | Completion, number: int
) -> tuple[list[int], list[bool]]:
    """Return the tokens of a conversation or completion, and which of them are scored; `number` is for errors."""
    if isinstance(document, Completion):
        return _completion_tokens(model, document, number)
    tokens = document_tokens(model, document, number)
    scored = [False] * len(tokens)
    for place, message in enumerate(document.messages):
        if message["role"] == "assistant" and place >= document.first_scored:
            reply = _reply(model, document, tokens, place, number)
            scored[reply] = [True] * (reply.stop - reply.start)
    if scored:
        scored[0] = False
    return tokens, scored


def document_tokens(model: LanguageModel, document: Document, number: int) -> list[int]:
    """Return all tokens of a document, as the model reads them; `number` is for errors."""
    if not isinstance(document, Conversation):
        text = document if isinstance(document, str) else document.prompt + document.completion
        return ([] if model.bos is None else [model.bos]) + model.encode(text)
    text = model.chat_text(document.messages, tools=document.tools, reply_follows=False)
    _require_all(model, document, text, number)
    return model.chat_encode(text)


def token_roles(model: LanguageModel, document: Conversation | Completion, number: int) -> list[str]:
    """Return the role of each token: its message's, or `TEMPLATE` if the template adds it; `PROMPT` or `COMPLETION`.

    A reply is all that follows its beginning, with its last token, as in `reply_tokens`. In other messages, only the
    tokens with text of the content get the role. That text is replaced to find where the template writes it.
    """
    if isinstance(document, Completion):
        return [COMPLETION if scored else PROMPT for scored in _completion_tokens(model, document, number)[1]]
    tokens = document_tokens(model, document, number)
    text = model.chat_text(document.messages, tools=document.tools, reply_follows=False)
    spans = model.vocabulary.spans(tokens, text.encode())
    if spans is None:
        raise model.error(
            wanted="tokens that spell the text of the template, whose roles are asked for",
            got=f"others in conversation {number}",
            instead="group by a key of the records (--group KEY), or score the replies (--score assistant)",
        )
    roles = [TEMPLATE] * len(tokens)
    for place, message in enumerate(document.messages):
        if message["role"] == "assistant":
            chosen = _reply(model, document, tokens, place, number)
            roles[chosen] = ["assistant"] * (chosen.stop - chosen.start)
        elif message["content"]:
            low, high = _place_of_content(model, document, text, place, number)
            for token, (start, stop) in enumerate(spans):
                if start < high and stop > low:
                    roles[token] = message["role"]
    return roles


def _place_of_content(
    model: LanguageModel, document: Conversation, text: str, place: int, number: int
) -> tuple[int, int]:
    """Return the bytes of the template's text at which the content of a message begins and ends."""
    mark = next(name for i in range(len(text) + 1) if (name := f"content{i}") not in text)
    messages = [*document.messages]
    messages[place] = {**messages[place], "content": mark}
    marked = model.chat_text(messages, tools=document.tools, reply_follows=False)
    before, _, after = marked.partition(mark)
    is_inside = len(before) + len(after) <= len(text) and text.startswith(before) and text.endswith(after)
    if mark not in marked or not is_inside:
        raise unreadable(
            wanted="a chat template that writes the content of a message once, and the rest of the text alike",
            got=f"another at message {place + 1} of conversation {number}",
            instead="group by a key of the records (--group KEY), or score the replies (--score assistant)",
        )
    return len(before.encode()), len(text.encode()) - len(after.encode())


def _reply(
    model: LanguageModel, document: Conversation, tokens: Sequence[int], place: int, number: int
) -> slice:
    """Return the places of the tokens of the reply in a message, without its beginning; `number` is for errors."""
    messages, tools = document.messages, document.tools
    before = model.chat_text(messages[:place], tools=tools, reply_follows=True) if place else ""
    after = model.chat_text(messages[: place + 1], tools=tools, reply_follows=False)
    ends = [model.chat_encode(before) if before else [], model.chat_encode(after)]
    if any(tokens[: len(end)] != end for end in ends) or not after.startswith(before):
        raise unreadable(
            wanted="a chat template that only adds to a conversation",
            got=f"one that rewrites earlier messages of conversation {number}",
            instead=(
                "templates that drop <think> from earlier replies do. Score the last reply alone, as "
                'the "completion" of a "prompt" of messages'
            ),
        )
    _require_reply(messages[place], before, after[len(before) :], place, number)
    return slice(len(ends[0]), len(ends[1]))


def _completion_tokens(
    model: LanguageModel, document: Completion, number: int
) -> tuple[list[int], list[bool]]:
    start = [] if model.bos is None else [model.bos]
    prompt = start + model.encode(document.prompt)
    tokens = start + model.encode(document.prompt + document.completion)
    if tokens[: len(prompt)] != prompt:
        raise unreadable(
            wanted="a completion that begins with a token of its own",
            got=f"one that begins within a token in record {number}",
            instead="move the space at the end of the prompt to the beginning of the completion",
        )
    return tokens, [0 < place >= len(prompt) for place in range(len(tokens))]


def _require_all(model: LanguageModel, document: Conversation, text: str, number: int) -> None:
    """Refuse a template that omits tools, calls or messages, or that writes a null content as the word None."""
    messages, tools = document.messages, document.tools
    where = f"conversation {number}"
    if tools and model.chat_text(messages, tools=None, reply_follows=False) == text:
        raise _left_out("tools", where)
    if any(message["content"] is None for message in messages):
        empty = [{**message, "content": message["content"] or ""} for message in messages]
        if model.chat_text(empty, tools=tools, reply_follows=False).count("None") < text.count("None"):
            raise unreadable(
                wanted="a chat template that takes a content of null",
                got=f"one that writes None in {where}",
                instead='write "content": "" there',
            )
    for place, message in enumerate(messages, 1):
        what = f"message {place} of {where}"
        for call in message.get("tool_calls") or ():
            if call.get("function", call)["name"] not in text:
                raise _left_out("tool_calls", what)
        if message["role"] != "assistant" and not _is_in(message["content"] or "", text):
            raise _left_out(f"the content of role {quoted(message['role'])}", what)


def _left_out(what: str, where: str) -> ModelError:
    return unreadable(
        wanted=f"a chat template that writes {what}",
        got=f"one that leaves them out or changes them in {where}",
        instead="use a model with such a template, or leave that out",
    )


def _is_in(content: str, text: str) -> bool:
    """Return whether a text contains a message's content without surrounding blanks, unchanged or as a JSON string."""
    content = content.strip()
    forms = content, json.dumps(content)[1:-1], json.dumps(content, ensure_ascii=False)[1:-1]
    return any(form in text for form in forms)


def _require_reply(message: Message, before: str, text: str, place: int, number: int) -> None:
    """Refuse a template that changes a reply, for which it adds `text` after `before`."""
    thoughts = next((message[name] for name in REASONING if isinstance(message.get(name), str)), "").strip()
    content = (message["content"] or "").strip()
    if before.rstrip().endswith(THINK):  # templates of models that always think begin a reply with <think>
        content = content.removeprefix(THINK).lstrip()
    rest = text.partition(thoughts)[2] if thoughts else text
    if thoughts and thoughts not in text:
        fault = "leaves out the reasoning of"
    elif content not in rest:
        fault = "leaves out or changes"
    elif not thoughts and (
        (before and not rest.lstrip().startswith(content)) or (not content and THINK in rest)
    ):
        fault = "adds to the beginning of"
    else:
        return
    raise unreadable(
        wanted="a chat template that writes replies unchanged",
        got=(
            f"one that {fault} the reply in message {place + 1} of conversation {number}, like "
            f"templates with <think>: {printable(text.strip(), 80)!r}"
        ),
        instead=(
            "change the reply to the template's form, or apply the template yourself and score the "
            "whole text (--score all)"
        ),
    )
