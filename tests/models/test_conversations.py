"""Chat data as it is written today: calls of tools, parts, prompts with completions, and templates with thoughts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from kullback.errors import ArgumentValueError, FileError, KullbackError, ModelError
from kullback.models.huggingface_model import HuggingFaceModel
from kullback.models.language_model import ModelInfo
from kullback.models.text import Cut, read_texts, take_texts
from tests.models import tiny
from tests.refusals import refused

# A template that writes calls, tools and thoughts, as those of Qwen and Hermes do: thoughts of the last reply alone.
TOOLS_TEMPLATE = """
{%- if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{% endif %}
{%- for message in messages %}
{{- '<|' + message.role + '|>' }}
{%- if message.role == 'assistant' and loop.last and message.reasoning_content %}
{{- '<think>' + message.reasoning_content + '</think>' }}{% endif %}
{%- if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- '<call>' + call.function.name + call.function.arguments | tojson + '</call>' }}{% endfor %}
{{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def call(arguments: Any) -> dict[str, Any]:
    return {"type": "function", "id": "1", "function": {"name": "add", "arguments": arguments}}


USER = {"role": "user", "content": "How much is it?"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [call({"a": 1, "b": [2]})]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": '{"sum": "3"}'}
REPLY = {"role": "assistant", "content": "It is three."}


class Reader(HuggingFaceModel):
    """The tokenizer of a model, and its template."""

    def __init__(self, template: str = TOOLS_TEMPLATE) -> None:
        self.tokenizer = tiny.make_tokenizer()
        self.tokenizer.chat_template = template
        self.info = ModelInfo("reader", "module")
        self.bos = 0


def read(records: list[Any], template: str = TOOLS_TEMPLATE, folder: Path | None = None) -> tuple[str, str]:
    """Return the text that a model reads, and the scored parts of it."""
    texts: Any = records
    if folder is not None:
        (folder / "records.jsonl").write_text("\n".join(map(json.dumps, records)))
        texts = read_texts(folder / "records.jsonl")
    reader = Reader(template)
    windows, _ = Cut(score="assistant").windows(reader, take_texts("compare_models", texts))
    decode = reader.tokenizer.decode
    return decode(windows.tokens.tolist()), decode(windows.tokens[windows.scored].tolist())


def refusal_of(records: list[Any], template: str = TOOLS_TEMPLATE) -> str:
    with pytest.raises(KullbackError) as caught:
        read(records, template)
    return str(caught.value)


@pytest.mark.parametrize("from_file", [False, True])
def test_calls_of_tools_are_scored_and_the_tools_are_in_the_prompt(from_file: bool, tmp_path: Path) -> None:
    record = {"messages": [USER, CALLS, RESULT, REPLY], "tools": [TOOL]}
    text, scored = read([record], folder=tmp_path if from_file else None)
    assert text.startswith("<tools>" + json.dumps(TOOL))
    assert scored == '<call>add{"a": 1, "b": [2]}</call></s>It is three.</s>'
    bare = read([record | {"tools": None}])
    assert bare == (text.removeprefix(f"<tools>{json.dumps(TOOL)}</tools>"), scored)


@pytest.mark.parametrize(
    "same",
    [
        CALLS | {"content": ""},
        CALLS | {"tool_calls": [call('{"a": 1, "b": [2]}')]},  # as OpenAI's API writes them
        {key: value for key, value in CALLS.items() if key != "content"},
    ],
)
def test_a_call_is_read_alike_however_it_is_written(same: dict[str, Any]) -> None:
    messages = [USER, CALLS, RESULT, REPLY]
    assert read([[USER, same, RESULT, REPLY]]) == read([messages])
    assert read([{"messages": messages, "tools": json.dumps([TOOL])}]) == read(
        [{"messages": messages, "tools": [TOOL]}]
    )


def test_a_part_of_text_is_the_text() -> None:
    in_parts = [USER | {"content": [{"type": "text", "text": USER["content"]}]}, REPLY]
    assert read([in_parts]) == read([[USER, REPLY]])
    prefix = "<|user|>How much is it?</s><|assistant|>"
    assert read([[USER, REPLY]]) == (f"{prefix}It is three.</s>", "It is three.</s>")


def test_prompts_and_completions_of_messages() -> None:
    whole = [USER, REPLY, USER, CALLS]
    text, scored = read([{"prompt": whole[:3], "completion": whole[3:], "tools": [TOOL]}])
    assert text == read([{"messages": whole, "tools": [TOOL]}])[0]
    assert scored == '<call>add{"a": 1, "b": [2]}</call></s>'


def test_prompts_and_completions_of_text_need_no_template() -> None:
    record = {"prompt": "The sum of one and two", "completion": " is three."}
    for template in ("", TOOLS_TEMPLATE):
        assert read([record, record], template) == (
            2 * "<s>The sum of one and two is three.",
            2 * " is three.",
        )
    within = {"prompt": "The sum of one and t", "completion": "wo is three."}
    assert "move the space" in refusal_of([within])
    empty = {"prompt": "", "completion": "The sum is three."}
    assert read([empty])[1] == "The sum is three."


PLAIN = tiny.CHAT_TEMPLATE
DROPS_TOOL_ROLE = TOOLS_TEMPLATE.replace(
    "for message in messages", "for message in messages if message.role != 'tool'"
)
WITHOUT_CALLS = TOOLS_TEMPLATE.replace("message.tool_calls or []", "[]")
WITHOUT_TOOLS = TOOLS_TEMPLATE.replace("{%- if tools %}", "{%- if false %}")


@pytest.mark.parametrize(
    ("record", "template", "said"),
    [
        ({"messages": [USER, REPLY], "tools": [TOOL]}, PLAIN, "writes tools"),
        ({"messages": [USER, REPLY], "tools": [TOOL]}, WITHOUT_TOOLS, "writes tools"),
        ([USER, CALLS], PLAIN, "conversation that the chat template takes"),
        ([USER, CALLS | {"content": "Let us see."}], WITHOUT_CALLS, "writes tool_calls"),
        ([USER, CALLS], WITHOUT_CALLS, "writes tool_calls"),
        ([USER, CALLS, RESULT, REPLY], DROPS_TOOL_ROLE, "the content of role 'tool'"),
        (
            [USER | {"content": [{"type": "image", "url": "x"}]}, REPLY],
            PLAIN,
            "1 parts, or one that is not text",
        ),
        ([USER | {"content": 2 * [{"type": "text", "text": "a"}]}, REPLY], PLAIN, "2 parts"),
        ([USER | {"content": None}, REPLY], PLAIN, "neither content nor tool_calls in message 1"),
        ([USER, {"role": "assistant"}], PLAIN, "neither content nor tool_calls in message 2"),
        ([USER | {"content": 3}, REPLY], PLAIN, "a content that is not text in message 1"),
        (
            [USER, CALLS | {"tool_calls": [call("not json")]}],
            TOOLS_TEMPLATE,
            "arguments that are not an object",
        ),
        ([USER, CALLS | {"tool_calls": [{"type": "function"}]}], TOOLS_TEMPLATE, "without a name"),
        ({"messages": [USER, REPLY], "tools": "{"}, TOOLS_TEMPLATE, "no JSON"),
        ({"messages": [USER, REPLY], "tools": ["add"]}, TOOLS_TEMPLATE, "not a list of objects"),
        ({"messages": [USER, REPLY], "documents": ["a"]}, TOOLS_TEMPLATE, '"documents", which would change'),
        (
            {"messages": [USER, REPLY], "chat_template_kwargs": {"a": 1}},
            TOOLS_TEMPLATE,
            "would change the prompt",
        ),
        ({"prompt": "a", "completion": [REPLY]}, TOOLS_TEMPLATE, "neither"),
        (
            {"prompt": "a", "completion": " b", "tools": [TOOL]},
            TOOLS_TEMPLATE,
            "with a prompt that is text",
        ),
        ({"conversations": [{"from": "human", "value": "a"}]}, TOOLS_TEMPLATE, "neither"),
        ({"messages": []}, TOOLS_TEMPLATE, "neither"),
        ({"messages": "a"}, TOOLS_TEMPLATE, "neither"),
    ],
)
def test_nothing_of_a_record_is_ignored(record: Any, template: str, said: str, tmp_path: Path) -> None:
    assert said in refusal_of([record], template)
    if isinstance(record, dict):
        with pytest.raises((FileError, ModelError), match="wanted"):
            read([record], template, tmp_path)


class SaysNone(Reader):
    """A template that writes a content of null as a word, as transformers before 5 and llama-cpp-python allow it."""

    def chat_text(self, messages: Any, *, tools: Any = None, reply_follows: bool) -> str:
        return "".join(
            f"{each['role']}:{each['content']}{'add' * ('tool_calls' in each)}|" for each in messages
        ) + ("assistant:" * reply_follows)


def test_a_null_that_a_template_writes_as_a_word_is_refused_with_a_remedy_that_works() -> None:
    def window(message: dict[str, Any]) -> Any:
        texts = take_texts("compare_models", [[USER, message]])
        return Cut(score="assistant").windows(SaysNone(), texts)[0]

    with refused(ModelError, instead='write "content": ""'):
        window(CALLS)
    windows = window(CALLS | {"content": ""})
    assert Reader().tokenizer.decode(windows.tokens[windows.scored].tolist()) == "add|"


# Thoughts

THINKS = {"role": "assistant", "content": "<think>One and two.</think>It is three."}
REASONS = REPLY | {"reasoning_content": "One and two."}
SHOWN = "<think>One and two.</think>It is three.</s>"
DROPS = TOOLS_TEMPLATE.replace("{{ message.content }}", "{{ message.content.split('</think>')[-1] }}")
EMPTY = "{%- if message.role == 'assistant' and '<think>' not in (message.content or '') %}<think></think>{% endif %}"
ADDS = TOOLS_TEMPLATE.replace(
    "{%- if message.content %}",
    EMPTY + "{%- if message.content %}",
)
BEGINS = TOOLS_TEMPLATE.replace("{{ '<|assistant|>' }}", "{{ '<|assistant|><think>' }}")
NO_REASONING = TOOLS_TEMPLATE.replace("message.reasoning_content %}", "false %}")
CHANGES = TOOLS_TEMPLATE.replace("{{ message.content }}", "{{ message.content | replace('three', '3') }}")


def test_thoughts_that_a_template_writes_are_scored() -> None:
    assert read([[USER, THINKS]])[1] == SHOWN
    assert read([[USER, REASONS]])[1] == SHOWN
    assert read([[USER, THINKS]], BEGINS)[1] == SHOWN.removeprefix("<think>")
    assert read([[USER, THINKS]], ADDS)[1] == SHOWN


@pytest.mark.parametrize(
    ("messages", "template", "said"),
    [
        ([USER, THINKS], DROPS, "leaves out or changes the reply in message 2"),
        ([USER, REASONS], NO_REASONING, "leaves out the reasoning of the reply in message 2"),
        ([USER, REPLY], ADDS, "adds to the beginning of the reply in message 2"),
        ([USER, CALLS], ADDS, "adds to the beginning of the reply in message 2"),
        ([USER, REPLY], BEGINS, "earlier messages of conversation 1"),
        ([USER, REPLY], CHANGES, "leaves out or changes"),
        ([USER, REASONS, USER, REPLY], TOOLS_TEMPLATE, "earlier messages of conversation 1"),
    ],
)
def test_templates_that_drop_or_add_thoughts_are_refused(
    messages: list[dict[str, Any]], template: str, said: str
) -> None:
    assert said in refusal_of([messages], template)


def test_the_last_reply_can_be_scored_where_a_template_drops_earlier_thoughts() -> None:
    text, scored = read([{"prompt": [USER, REASONS, USER], "completion": [REASONS]}])
    assert scored == SHOWN
    assert text.count("<think>") == 1


def test_a_reply_written_as_the_template_writes_it_is_taken() -> None:
    assert read([[USER, REPLY]], DROPS)[1] == "It is three.</s>"
    written = {"role": "assistant", "content": "<think></think>It is three."}
    assert read([[USER, written]], ADDS)[1] == "<think></think>It is three.</s>"


def test_a_text_that_names_a_file_is_told_from_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(take_texts("compare_models", "wiki.txt").documents) == ["wiki.txt"]
    Path("wiki.txt").write_text("some words")
    with refused(
        ArgumentValueError, call="compare_models", argument="texts", instead=r"pathlib\.Path\('wiki.txt'\)"
    ):
        take_texts("compare_models", "wiki.txt")
    assert list(take_texts("compare_models", Path("wiki.txt")).documents) == ["some words"]


def test_texts_and_records_are_not_mixed(tmp_path: Path) -> None:
    with refused(FileError, instead="write two files"):
        read([{"text": "a"}, {"prompt": "a", "completion": " b"}], folder=tmp_path)
    with refused(ArgumentValueError, wanted="in every item"):
        take_texts("compare_models", [[USER, REPLY], {"a": 1}])


def test_texts_may_begin_with_a_byte_order_mark_and_json_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('\N{BYTE ORDER MARK}{"text": "a b"}\n{"text": "c"}\n', encoding="utf-8")
    assert read_texts(path).documents == ["a b", "c"]
    with pytest.raises(FileError, match=r"write one record in each line of a \.jsonl file"):
        read_texts(path.rename(tmp_path / "texts.json"))
