"""Tokens by role, by regular expression and by values of records: which are in a group, and the figures of it."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from kullback.errors import ArgumentTypeError, ArgumentValueError, FileError, ModelError
from kullback.io import Windows
from kullback.models import Cut, ModelComparison, Run, Token, Vocabulary, compare_models, record_reference
from kullback.models.conversations import read_record, token_roles
from kullback.models.language_model import Message
from kullback.models.text import take_texts
from kullback.report import json as report
from tests.models.bytes_model import BYTES, BytesModel
from tests.refusals import refused
from tests.report.media import brief

SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "  user 1 and é? "}
REPLY, TOOL = {"role": "assistant", "content": "Two."}, {"role": "tool", "content": "user"}
# Every part that the template writes for these messages, with its role, by hand.
PARTS = [
    ("<system>", "template"), ("Be brief.", "system"), ("|", "template"),
    ("<user>", "template"), ("user 1 and é?", "user"), ("|", "template"),
    ("<assistant>", "template"), ("Two.|", "assistant"),
    ("<tool>", "template"), ("user", "tool"), ("|", "template"),
    ("<assistant>", "template"), ("Two.|", "assistant"),
]  # fmt: skip
CONVERSATION = [SYSTEM, USER, REPLY, TOOL, REPLY]


def table(noise: float) -> Tensor:
    base = torch.randn(BYTES, BYTES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    random = torch.Generator().manual_seed(1)
    return base + noise * torch.randn(BYTES, BYTES, generator=random, dtype=torch.float64)


class Chat(BytesModel):
    """A model of bytes with a chat template that trims contents."""

    def __init__(self, noise: float, name: str = "") -> None:
        super().__init__(name or f"noise {noise}", table(noise))

    def chat_text(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None, reply_follows: bool
    ) -> str:
        text = "".join(f"<{message['role']}>{message['content'].strip()}|" for message in messages)
        return text + "<assistant>" * reply_follows

    def chat_encode(self, text: str) -> list[int]:
        return self.encode(text)


class Repeating(Chat):
    """A template that also writes the content of the first message at the end."""

    def chat_text(self, messages: Sequence[Message], **options: Any) -> str:
        return super().chat_text(messages, **options) + messages[0]["content"]


def compared(texts: object, groups: str | None, *noises: float, **settings: Any) -> ModelComparison:
    cut = {"context": 256, "score": "all"} | settings.pop("cut", {})
    models = [Chat(noise) for noise in (0.0, *(noises or (0.2,)))]
    return compare_models(models[0], models[1:], texts, cut=Cut(groups=groups, **cut), **settings)


def kl_of_rows(windows: Windows, noise: float = 0.2) -> Tensor:
    """KL(P || Q) at each scored token, from the tables of the models."""
    before = windows.tokens[windows.scored.nonzero()[:, 0] - 1]
    log_p, log_q = (table(x)[before].log_softmax(-1) for x in (0.0, noise))
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def texts_in(result: ModelComparison, names: Sequence[str]) -> dict[str, Tensor]:
    """Which rows are in a group, by the names of all tokens of a window, which are those of every window."""
    of_rows = [name for _ in range(result.windows) for name in names[1:]]
    return {name: torch.tensor([each == name for each in of_rows]) for name in dict.fromkeys(of_rows)}


def require_figures(result: ModelComparison, rows: dict[str, Tensor]) -> None:
    """Require the rows and the mean of each group."""
    comparison = result.candidates[0].comparison
    assert {name: each.rows for name, each in comparison.groups.items()} == {
        name: int(chosen.sum()) for name, chosen in rows.items()
    }
    kl = kl_of_rows(result.text)
    for name, chosen in rows.items():
        mean = comparison.groups[name].divergences["kl_pq"].mean
        assert mean == pytest.approx(float(kl[chosen].mean()), rel=1e-9)


def test_the_role_of_every_token_is_that_of_its_message() -> None:
    expected = [role for text, role in PARTS for _ in text.encode()]
    document = read_record(CONVERSATION)
    assert not isinstance(document, str)
    assert token_roles(Chat(0.0), document, 1) == expected
    result = compared([CONVERSATION] * 12, "role")
    groups = result.candidates[0].comparison.groups
    assert list(groups) == ["system", "user", "assistant", "tool", "template"]
    require_figures(result, {name: texts_in(result, expected)[name] for name in groups})
    replies = compared([CONVERSATION] * 12, None, cut={"score": "assistant"}).candidates[0].comparison
    assert groups["assistant"].divergences["kl_pq"].mean == pytest.approx(
        replies.divergences["kl_pq"].mean, rel=1e-12
    )
    assert groups["assistant"].rows == replies.rows


def test_roles_in_the_tokens_of_a_trained_tokenizer() -> None:
    pytest.importorskip("transformers")
    from tests.models.test_conversations import CALLS, RESULT, TOOL as ADD, Reader

    reader = Reader()
    from kullback.models.huggingface_model import read_vocabulary

    reader.vocabulary = read_vocabulary(reader.tokenizer)
    messages = [USER, CALLS, RESULT, {**REPLY, "content": "It is 三 – three."}]
    document = read_record({"messages": messages, "tools": [ADD]})
    assert not isinstance(document, str)
    roles = token_roles(reader, document, 1)
    tokens = reader.chat_encode(reader.chat_text(messages, tools=[ADD], reply_follows=False))
    spelled: dict[str, str] = {}
    for role in ("user", "tool", "assistant"):
        chosen = [token for token, its in zip(tokens, roles, strict=True) if its == role]
        spelled[role] = reader.tokenizer.decode(chosen)
    assert spelled["user"].strip() == USER["content"].strip()
    assert spelled["tool"] == RESULT["content"]
    assert spelled["assistant"] == '<call>add{"a": 1, "b": [2]}</call></s>It is 三 – three.</s>'


def test_prompts_and_completions() -> None:
    record = {"prompt": "One and two", "completion": " is three."}
    result = compared([record] * 12, "role")
    names = ["prompt"] * len(record["prompt"]) + ["completion"] * len(record["completion"])
    require_figures(result, texts_in(result, names))


def test_tokens_that_overlap_a_match_are_in_its_group() -> None:
    words = "x1 = é + 三! "  # é has two bytes, and 三 has three: each byte is a token
    by_hand = {
        "re:[0-9]": {"match": [1]},
        "re:é": {"match": [5, 6]},
        "re:[é三]": {"match": [5, 6, 10, 11, 12]},
        r"re:(?P<number>\d)|(?P<letter>[x三])": {"number": [1], "letter": [0, 10, 11, 12]},
        r"re:(?P<all>x1 (?P<equal>=))": {"all": [0, 1, 2, 3]},
        r"re:x(?P<digit>\d) =": {"digit": [1]},
        "re:(?=x)|1": {"match": [1]},  # an empty match has no tokens
    }
    length = len(words.encode())
    for pattern, places in by_hand.items():
        names = ["rest"] * length
        for name, chosen in places.items():
            for place in chosen:
                names[place] = name
        result = compared([words] * 12, pattern)
        rows = texts_in(result, names)
        require_figures(result, {name: rows[name] for name in (*places, "rest") if name in rows})
    result = compared([words] * 12, r"re:(?P<one>1)|(?P<nine>9)")
    assert list(result.candidates[0].comparison.groups) == ["one", "rest"]
    assert result.notes == ["No scored token is in group 'nine'."]


def test_a_token_may_hold_several_characters_and_parts_of_them() -> None:
    """Tokens of b"a\\xc3", b"\\xa9b" and so on, whose characters are split, and bytes that are no text."""
    vocabulary = Vocabulary(
        [Token(b"<s>", special=True), Token(b"a\xc3"), Token(b"\xa9b"), Token(b"\xff"), Token(b"1 2"), None]
    )

    class Split(BytesModel):
        bos = 0

        def encode(self, text: str) -> list[int]:
            return [1, 2, 3, 4, 5, 1]

    model, other = Split("split", table(0.0)[:6, :6]), Split("other", table(0.2)[:6, :6])
    for each in (model, other):
        each.vocabulary = vocabulary
        each.info = type(each.info)(each.name, "bytes", "float64", classes=6)
    expected = {
        "re:é": [1, 2],
        "re:a": [1, 6],
        "re:b": [2],
        "re:2": [4],
        "re:\\udcff": [3],
        "re:^a": [1],  # the first token stands for no text
        "re:a$": [],
    }
    for pattern, chosen in expected.items():
        cut = Cut(context=7, score="all", groups=pattern)
        if not chosen:
            with refused(ArgumentValueError, got="matches none"):
                compare_models(model, other, ["text"] * 10, cut=cut)
            continue
        result = compare_models(model, other, ["text"] * 10, cut=cut)
        groups = result.candidates[0].comparison.groups
        assert groups["match"].rows == 10 * len(chosen), pattern
        assert groups["rest"].rows == 10 * (6 - len(chosen))


def records(values: Sequence[object], **more: Any) -> list[dict[str, Any]]:
    return [{"text": "some words of a text", "kind": value, **more} for value in values]


@pytest.mark.sweep
@pytest.mark.parametrize("from_file", [True, False])
def test_a_value_of_a_record_is_that_of_its_tokens(from_file: bool, tmp_path: Path) -> None:
    texts: Any = records(["b", "a", "c"] * 12)
    if from_file:
        texts = tmp_path / "texts.jsonl"
        texts.write_text("\n\n".join(map(json.dumps, records(["b", "a", "c"] * 12))))
    result = compared(texts, "kind", cut={"context": 8})  # three windows of each record
    assert result.windows == 3 * 36
    scored = torch.bincount(result.text.clusters)
    of_window = [name for name in ["b", "a", "c"] * 12 for _ in range(3)]
    names = [name for name, count in zip(of_window, scored.tolist(), strict=True) for _ in range(count)]
    require_figures(result, {name: torch.tensor([each == name for each in names]) for name in "abc"})
    for values, expected in (
        ([True, False], ["False", "True"]),
        ([10, 9], ["9", "10"]),
        ([1, "a"], ["1", "a"]),
    ):
        found = compared(records(values * 10), "kind").candidates[0].comparison.groups
        assert list(found) == expected


def test_a_mask_has_a_value_for_each_token() -> None:
    length = len("some words of a text")
    mask = [place % 5 == 0 for place in range(length)]
    result = compared(records([mask] * 12), "kind", cut={"context": 8, "most_windows": 35})
    of_windows = [(mask[first : first + 8])[1:] for _ in range(12) for first in (0, 8, 16)][:35]
    names = torch.tensor([each for window in of_windows for each in window])
    require_figures(result, {"False": ~names, "True": names})
    conversation = {"messages": CONVERSATION, "kind": [role for text, role in PARTS for _ in text.encode()]}
    by_mask, by_role = compared([conversation] * 12, "kind"), compared([conversation] * 12, "role")
    assert report.dumps(by_mask).count("against_rest") == 5
    for name, group in by_role.candidates[0].comparison.groups.items():
        assert repr(by_mask.candidates[0].comparison.groups[name].divergences) == repr(group.divergences)


def test_candidates_are_paired_in_each_group() -> None:
    result = compared([CONVERSATION] * 12, "role", 0.1, 0.2, 0.4)
    kl = [kl_of_rows(result.text, noise) for noise in (0.1, 0.2, 0.4)]
    rows = texts_in(result, [role for text, role in PARTS for _ in text.encode()])
    assert set(result.differences_by_group) == set(rows)
    for name, means in result.differences_by_group.items():
        for place, mean in enumerate(means):
            expected = float((kl[place + 1] - kl[place])[rows[name]].mean())
            assert mean.value == pytest.approx(expected, rel=1e-9)
            assert mean.interval == pytest.approx((expected, expected), rel=1e-6)  # all windows are alike
    page = str(result)
    assert "Group template: noise 0.2 has" in page
    frame = result.to_pandas()
    names = ["", "system", "user", "assistant", "tool", "template"]
    assert frame.group.fillna("").tolist() == 3 * names
    record = json.loads(report.dumps(result))
    assert len(record["differences_by_group"]["user"]) == 2
    assert "differences_by_group" not in json.loads(report.dumps(compared([CONVERSATION] * 12, None)))
    assert result.candidates[0].comparison.groups["user"].q_name == "noise 0.1"


TEXT = "".join(
    f"Line {number}: {chr(97 + number % 26) * (number % 9)} = {number**2}.\n" for number in range(110)
)
SHORT = TEXT[: len(TEXT) // 3]
BLOCK = 16 * BYTES * 8  # bytes of 16 rows


def test_references_have_the_figures_of_each_group(tmp_path: Path) -> None:
    cut = Cut(context=64, score="all")
    path = tmp_path / "base.klref"
    record_reference(Chat(0.0, "base"), SHORT, path, top=16, tail_draws=24, cut=cut)
    grouped = Cut(context=64, score="all", groups="re:[0-9]+")
    exact = compare_models(Chat(0.0, "base"), Chat(0.3), SHORT, cut=grouped).candidates[0]
    for texts in (None, SHORT):  # the model shows the text of the reference's tokens
        found = compare_models(path, [Chat(0.3), Chat(0.5)], texts, cut=grouped)
        candidate = found.candidates[0]
        for name, group in candidate.comparison.groups.items():
            true = exact.comparison.groups[name]
            low, high = candidate.certain_in_groups[name]["kl_pq"]
            drawn = candidate.drawn_in_groups[name]["kl_pq"]
            mean = group.divergences["kl_pq"]
            assert group.rows == true.rows
            assert low <= true.divergences["kl_pq"].mean <= high
            assert abs(mean.mean - true.divergences["kl_pq"].mean) < 5 * drawn.standard_error
            assert mean.ends[0] < true.divergences["kl_pq"].mean < mean.ends[1]
            minus = group.against_rest["kl_pq"]
            assert minus.ends[0] < true.against_rest["kl_pq"].value < minus.ends[1]
            assert minus.standard_error == pytest.approx(true.against_rest["kl_pq"].standard_error, rel=0.6)
            assert candidate.in_group(name).drawn == candidate.drawn_in_groups[name]
            assert found.differences_by_group[name][0].value > 0
        whole = candidate.comparison.divergences["kl_pq"].mean
        groups = candidate.comparison.groups.values()
        total = sum(each.rows * each.divergences["kl_pq"].mean for each in groups)
        assert total / candidate.comparison.rows == pytest.approx(whole, rel=1e-9)
    record = json.loads(report.dumps(found))["candidates"][0]
    assert (
        record["drawn_in_groups"]["match"]["kl_pq"]["mean"]
        == candidate.drawn_in_groups["match"]["kl_pq"].mean
    )


@pytest.mark.sweep
def test_top_classes_alone_give_bounds_of_each_group(tmp_path: Path) -> None:
    cut = Cut(context=64, score="all")
    path = tmp_path / "base.klref"
    record_reference(Chat(0.0, "base"), SHORT, path, top=64, tail_draws=0, cut=cut)
    grouped = Cut(context=64, score="all", groups="re:[0-9]+")
    run = Run(independent=True)  # the numbers grow along the text
    exact = compare_models(Chat(0.0, "base"), Chat(0.3), SHORT, cut=grouped, run=run).candidates[0]
    candidate = compare_models(path, Chat(0.3), SHORT, cut=grouped, run=run).candidates[0]
    assert candidate.is_lower_bound
    for name, group in candidate.comparison.groups.items():
        low, high = candidate.certain_in_groups[name]["js"]
        true = exact.comparison.groups[name].divergences["js"]
        assert low <= true.mean * (1 + 1e-6)
        assert true.mean <= high * (1 + 1e-6)
        assert group.divergences["js"].mean == low
        assert group.divergences["js"].ends[1] >= true.mean
        assert "kl_pq" not in group.against_rest
        assert group.against_rest["cross_entropy_q"].value == pytest.approx(
            exact.comparison.groups[name].against_rest["cross_entropy_q"].value, rel=1e-5
        )


@pytest.mark.sweep
def test_groups_follow_windows_in_random_order() -> None:
    whole = compared(TEXT, "re:[0-9]+", cut={"context": 64})
    found = compared(TEXT, "re:[0-9]+", cut={"context": 64}, run=Run(until_sure="width=0.0001%"))
    assert found.until_sure is not None
    assert found.until_sure.read == found.until_sure.units
    for name, group in whole.candidates[0].comparison.groups.items():
        other = found.candidates[0].comparison.groups[name]
        assert other.rows == group.rows
        assert other.divergences["kl_pq"].mean == pytest.approx(group.divergences["kl_pq"].mean, rel=1e-12)
        assert (
            other.divergences["kl_pq"].interval is None
        )  # an interval for a fixed number of windows is wrong
        assert other.against_rest["kl_pq"].interval is None
    early = compared(TEXT, "re:[0-9]+", cut={"context": 64}, run=Run(until_sure="mean=1"))
    assert early.until_sure is not None
    assert early.until_sure.read < early.until_sure.units
    comparison = early.candidates[0].comparison
    text = bytes(early.text.tokens.tolist())
    digits = torch.tensor([48 <= byte < 58 for byte in text])[early.text.scored]
    assert comparison.groups["match"].rows == int(digits.sum())
    assert comparison.groups["match"].divergences["kl_pq"].mean == pytest.approx(
        float(kl_of_rows(early.text)[digits].mean()), rel=1e-9
    )


def test_a_resumed_run_takes_other_groups(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(done: int, _: int | None) -> None:
        if done > 500:
            raise StopError

    state = tmp_path / "state"
    with pytest.raises(StopError):
        compared(TEXT, "re:a", cut={"context": 64}, run=Run(resume=state, progress=stop, block_bytes=BLOCK))
    found = compared(TEXT, "re:[0-9]+", cut={"context": 64}, run=Run(resume=state, block_bytes=BLOCK))
    whole = compared(TEXT, "re:[0-9]+", cut={"context": 64}, run=Run(block_bytes=BLOCK))
    assert repr(found.candidates[0].comparison.groups) == repr(whole.candidates[0].comparison.groups)


@pytest.mark.sweep
def test_one_at_a_time(tmp_path: Path) -> None:
    found = compared(records(["a", "b"] * 12), "kind", 0.1, 0.2, one_at_a_time=True)
    assert [list(each.comparison.groups) for each in found.candidates] == [["a", "b"]] * 2


def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from tests.cli.calling import run
    from tests.models import folders
    from tests.models.tiny import text

    page = (Path(__file__).parents[2] / "docs" / "tutorial" / "language_models.md").read_text(
        encoding="utf-8"
    )
    _, _, section = page.partition("## By role, pattern or record")
    commands = section.partition("```text")[2].partition("```")[0].strip().splitlines()
    monkeypatch.chdir(tmp_path)
    chats = [[USER, {**REPLY, "content": f"It is {number}."}] for number in range(12)]
    Path("chats.jsonl").write_text("\n".join(json.dumps({"messages": chat}) for chat in chats))
    languages = ["German", "English"] * 12
    lines = [{"text": text()[100 * i : 100 * i + 400], "language": name} for i, name in enumerate(languages)]
    Path("texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    Path("wiki.txt").write_text(text()[:9000] + " `code` 12 " * 90)
    names = {"llama-3-8b": folders.base(), "q4.gguf": folders.int8()}
    groups = ["system", "user"], ["number", "code", "rest"], ["English", "German"]
    assert len(commands) == 3
    for command, expected in zip(commands, groups, strict=True):
        arguments = [str(names.get(part, part)) for part in shlex.split(command)[1:]]
        result = run(*arguments, "--json")
        found = json.loads(result.stdout)["candidates"][0]["comparison"]["groups"]
        assert list(found) == (["user", "assistant", "template"] if "role" in command else expected)


@pytest.mark.sweep
def test_the_short_table_of_groups_names_the_first_of_several_candidates() -> None:
    texts = records([number % 3 for number in range(24)])
    shown = brief(compared(texts, "kind", 0.3, 0.1))
    assert re.search(r"^by group, noise 0\.1 +mean KL", shown, re.MULTILINE)
    assert re.search(r"^group +mean KL", brief(compared(texts, "kind", 0.3)), re.MULTILINE)
    many = records([number % 12 for number in range(24)])
    assert re.search(
        r"^farthest groups, noise 0\.1 +mean KL", brief(compared(many, "kind", 0.3, 0.1)), re.MULTILINE
    )


def test_rules_that_are_refused_and_their_remedies(tmp_path: Path) -> None:
    plain, chats = records(["a"] * 12), [CONVERSATION] * 12
    for groups in ("re:(", "re:[", "re:*", "re:(?P<a>x)(?P<a>y)"):
        with refused(
            ArgumentValueError, call="Cut", argument="groups", wanted="regular expression", instead="re:"
        ):
            Cut(groups=groups)
    with refused(ArgumentTypeError, call="Cut", argument="groups"):
        Cut(groups=3)  # pyright: ignore[reportArgumentType]
    with refused(ArgumentValueError, argument="groups", got="matches none", instead="re:"):
        compared(plain, "re:Q")
    with refused(ArgumentValueError, argument="groups", got="'assistant' alone", instead="^score='all'$"):
        compared(chats, "role", cut={"score": "assistant"})
    assert compared(chats, "role", cut={"score": "all"})
    replies, every = tmp_path / "replies.klref", tmp_path / "all.klref"
    for path, score in ((replies, "assistant"), (every, "all")):
        record_reference(Chat(0.0), chats, path, cut=Cut(context=256, score=cast("Any", score)))
    with refused(ArgumentValueError, argument="groups", instead="^record the text again with --score all"):
        compare_models(replies, Chat(0.2), chats, cut=Cut(groups="role"))
    assert compare_models(every, Chat(0.2), chats, cut=Cut(groups="role")).candidates[0].comparison.groups
    with refused(
        ArgumentValueError, argument="groups", wanted="conversations", got="plain text", instead="re:"
    ):
        compared(plain, "role")
    assert compared(plain, "re:[a-f]+")
    with refused(
        ArgumentValueError,
        argument="groups",
        got="record 1 with the keys 'text', 'kind'",
        instead="groups='kind'",
    ):
        compared(plain, "kinds")
    for wrong, got in ((None, "None"), (1.5, "1.5"), ([], r"\[\]"), ({}, r"\{\}"), ([None], "None")):
        with refused(ArgumentValueError, argument="groups", got=f"{got}.* in record 2"):
            compared(records(["a", wrong]), "kind")
    length = len("some words of a text")
    with refused(
        ArgumentValueError, argument="groups", wanted=f"each of the {length} tokens of record 2", got="3 in"
    ):
        compared(records(["a", [1, 2, 3]]), "kind")
    with refused(
        ArgumentValueError, argument="groups", wanted="at most 32", instead="^a key with fewer values, or"
    ):
        compared(records(list(range(33))), "kind")
    assert compared(records([number % 2 for number in range(33)]), "kind")
    assert compared(records(list(range(33))), "re:[a-f]+")
    crowd = [[{"role": f"guest {number}", "content": "Hello."} for number in range(40)]] * 2
    with refused(ArgumentValueError, argument="groups", wanted="at most 32", got="41"):
        compared(crowd, "role", cut={"context": 2048})
    for unstructured in (["some words of a text"] * 12, "some words of a text" * 30):
        with refused(
            ArgumentValueError, argument="groups", got="plain text, which has no records", instead="re:"
        ):
            compared(unstructured, "kind", cut={"context": 64})
    wide = [{**record, **{f"key {number}": 1 for number in range(9)}} for record in plain]
    with refused(ArgumentValueError, argument="groups", got=r"'key 5' and 3 more$", instead="re:"):
        compared(wide, "absent")
    named = "re:(?P<rest>[a-f])(?P=rest)?"
    with refused(
        ArgumentValueError, call="Cut", argument="groups", wanted="other names", got="'rest'"
    ) as error:
        Cut(groups=named)
    assert error.value.remedy == {"groups": "re:(?P<other>[a-f])(?P=other)?"}
    assert list(compared(plain, str(error.value.remedy["groups"])).candidates[0].comparison.groups) == [
        "other",
        "rest",
    ]


def test_groups_need_a_model_that_reads_the_text(tmp_path: Path) -> None:
    path, cut = tmp_path / "base.klref", Cut(context=64, score="all")
    record_reference(Chat(0.0, "base"), SHORT, path, top=16, cut=cut)
    with refused(ArgumentValueError, argument="groups", got="files alone", instead="^groups=None$"):
        compare_models(path, path, cut=Cut(groups="re:a"))
    assert compare_models(path, path)
    with refused(ArgumentValueError, argument="texts", got="'role' without a text", instead="^texts="):
        compare_models(path, Chat(0.2), cut=Cut(groups="role"))
    cut, chats = Cut(context=256, score="all", groups="role"), [CONVERSATION] * 12
    record_reference(Chat(0.0, "base"), chats, path, top=16, cut=cut)
    expected = compared(chats, "role").candidates[0].comparison.groups
    for chosen in (cut, Cut(groups="role")):  # context and score are those of the reference
        groups = compare_models(path, Chat(0.2), chats, cut=chosen).candidates[0].comparison.groups
        assert {name: each.rows for name, each in groups.items()} == {
            name: each.rows for name, each in expected.items()
        }
    with refused(FileError, wanted="a reference of this text"):
        compare_models(path, Chat(0.2), [[SYSTEM, *CONVERSATION[1:-1]]] * 12, cut=Cut(groups="role"))


def test_templates_that_do_not_show_the_roles_are_refused() -> None:
    document = read_record(CONVERSATION)
    assert not isinstance(document, str)
    with refused(
        ModelError, wanted="writes the content of a message once", got="message 1", instead="--group KEY"
    ):
        token_roles(Repeating(0.0), document, 1)
    chats: Any = [{"messages": CONVERSATION, "kind": "a"}] * 12
    models = Repeating(0.0), Repeating(0.2)
    assert compare_models(*models, chats, cut=Cut(context=256, score="all", groups="kind"))

    class Spelled(Chat):
        def chat_encode(self, text: str) -> list[int]:
            return [*self.encode(text), 0]

    with refused(ModelError, wanted="tokens that spell the text", instead="--group KEY"):
        token_roles(Spelled(0.0), document, 1)


def test_conversations_may_be_scored_as_a_whole() -> None:
    result = compared([CONVERSATION] * 12, None)
    text = "".join(text for text, _ in PARTS).encode()
    assert bytes(result.text.tokens.tolist()) == text * 12
    assert result.text.scored.tolist() == ([False] + [True] * (len(text) - 1)) * 12
    assert result.candidates[0].comparison.divergences["kl_pq"].mean == pytest.approx(
        float(kl_of_rows(result.text).mean()), rel=1e-9
    )
    with refused(ArgumentValueError, argument="score", instead="^score='assistant'$"):
        compared([CONVERSATION] * 12, None, cut={"score": "second-half"})
    without_reply = compared([[SYSTEM, USER]] * 12, "role")
    assert "assistant" not in without_reply.candidates[0].comparison.groups
    assert math.isfinite(without_reply.candidates[0].comparison.divergences["kl_pq"].mean)


def test_texts_keep_their_records(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(map(json.dumps, records(["a", "b"]))))
    assert [each and each["kind"] for each in take_texts("call", path).records] == ["a", "b"]
    with refused(FileError):
        compared(tmp_path / "nowhere.jsonl", "kind")


def test_a_text_that_is_too_short_says_how_short_and_the_remedies_work() -> None:
    base, other = BytesModel("base", torch.eye(256)), BytesModel("other", torch.zeros(256, 256))
    with refused(ModelError, wanted="of 48 tokens", got="^5$", instead=r"a smaller context \(--context 5\)$"):
        compare_models(base, other, "hello", cut=Cut(context=48))
    assert compare_models(base, other, "hello", cut=Cut(context=5)).windows == 1
    for short in ("he", ["h", "he"]):  # no context is small enough
        with refused(ModelError, got="^2$", instead="^give a longer text$"):
            compare_models(base, other, short, cut=Cut(context=48))
    chats, cut = [[{"role": "user", "content": "hello"}]], Cut(context=99, score="assistant")
    with refused(ArgumentValueError, argument="score", got="no reply", instead="^score='all'$"):
        compare_models(Chat(0.0), Chat(0.2), chats, cut=cut)
    assert compare_models(Chat(0.0), Chat(0.2), chats, cut=Cut(context=99, score="all")).windows == 1
