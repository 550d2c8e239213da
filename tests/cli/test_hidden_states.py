"""`kullback compare` and `kullback record` with `--head`: numbers, reports, and errors of one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.calling import run
from tests.cli.test_models import one_line
from tests.models import folders
from tests.models.hidden import locked, parts_of, record, similar, states_of, write
from tests.models.tiny import text

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and the hidden states of the base and of its int8 version, in windows of 48 tokens."""
    from kullback.models import Cut, open_model
    from kullback.models.text import take_texts

    root = tmp_path_factory.mktemp("hidden")
    (root / "words.txt").write_text(text()[:3000])
    windows, _ = Cut(context=48).windows(open_model(folders.base()), take_texts("test", text()[:3000]))
    prompts = [windows.window(number)[0] for number in range(len(windows))]
    for name, source in (("base", folders.base()), ("int8", folders.int8())):
        record(
            transformers.AutoModelForCausalLM.from_pretrained(source).eval(), prompts, root / f"{name}.hidden"
        )
    return root


def test_the_command_line_has_the_numbers_of_the_models(root: Path, tmp_path: Path) -> None:
    base, int8, words = folders.base(), folders.int8(), root / "words.txt"
    hidden = [root / "base.hidden", "--head", base], [root / "int8.hidden", "--head", int8]
    heads = ["--head", base, "--head", int8]
    calls = {
        "models": [base, int8, "--text", words, "--context", 48],
        "candidate": [base, *hidden[1], "--text", words, "--context", 48],
        "base": [hidden[0][0], int8, *hidden[0][1:], "--text", words, "--context", 48],
        "both": [root / "base.hidden", root / "int8.hidden", *heads],
        "one at a time": [root / "base.hidden", root / "int8.hidden", *heads, "--one-at-a-time"],
    }
    means = {}
    for name, arguments in calls.items():
        report = tmp_path / f"{name}.json"
        result = run("compare", *arguments, "--json", report)
        assert result.exit_code == 0, result.output
        candidate = json.loads(report.read_text())["candidates"][0]
        means[name] = candidate["comparison"]["divergences"]["kl_pq"]["mean"]
    for name in ("candidate", "base", "both"):
        assert means[name] == pytest.approx(means["models"], rel=1e-6)
    assert means["one at a time"] == pytest.approx(means["models"], rel=0.1)  # by draws


@pytest.mark.sweep
def test_several_candidates_share_a_head_and_record_needs_no_text(root: Path, tmp_path: Path) -> None:
    result = run("record", root / "base.hidden", "--head", folders.base(), "-o", tmp_path / "base.klref")
    assert result.exit_code == 0, result.output
    result = run(
        "compare", tmp_path / "base.klref", root / "int8.hidden", root / "base.hidden", "--head", folders.base(),
        "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert [Path(each["model"]["name"]).name for each in report["candidates"]] == [
        "base.hidden",
        "int8.hidden",
    ]
    assert report["candidates"][0]["model"]["kind"] == "hidden states"


@pytest.mark.sweep
def test_a_similar_model_as_the_head_is_named_in_the_short_output(root: Path, tmp_path: Path) -> None:
    base = folders.base()
    model = similar(transformers.AutoModelForCausalLM.from_pretrained(base).eval(), 0.08)
    prompts = [load_file(path)["token_ids"] for path in sorted((root / "base.hidden").glob("*.safetensors"))]
    served = record(model, prompts, tmp_path / "similar.hidden")
    for name, others in (
        ("Q", []),
        (str(served), [root / "base.hidden"]),
    ):  # of several, the warning names one
        result = run("compare", base, served, *others, "--head", base)
        assert result.exit_code == 0, result.output
        words = "".join(result.output.split())  # a long path is broken at the end of a line
        assert f"{name}: warning: the hidden states differ from the states of".replace(" ", "") in words
    assert "more than rounding does; another model may have made them (--head)".replace(" ", "") in words
    assert "warning" not in run("compare", base, root / "base.hidden", "--head", base).output


def test_bad_input_is_one_line(root: Path, tmp_path: Path) -> None:
    base, int8, words = folders.base(), folders.int8(), root / "words.txt"
    model = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    tokens = torch.arange(2, 50)
    last = states_of(model, tokens, [2])
    cut = write(tmp_path / "cut" / "0.safetensors", tokens, last)
    cut.write_bytes(cut.read_bytes()[:-9])
    write(tmp_path / "mixed" / "0.safetensors", tokens, last)
    write(tmp_path / "mixed" / "1.safetensors", tokens, last.bfloat16())
    write(tmp_path / "layer" / "0.safetensors", tokens, states_of(model, tokens, [0, 1]))
    write(tmp_path / "norm" / "0.safetensors", tokens, parts_of(model)[1](last).detach())
    write(tmp_path / "width" / "0.safetensors", tokens, last[..., :60])
    write(tmp_path / "prefix" / "0.safetensors", tokens, last[16:])
    busy = write(tmp_path / "busy" / "0.safetensors", tokens, last)
    empty = tmp_path / "none.hidden"
    empty.mkdir()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    served, head = root / "int8.hidden", ["--head", base]
    cases: dict[tuple[object, ...], str] = {
        ("compare", base, tmp_path / "cut", *head): "truncated or damaged",
        ("compare", base, tmp_path / "mixed", *head): "the same dtype",
        ("compare", base, tmp_path / "layer", *head): "the input of block 1 (id 1)",
        ("compare", base, tmp_path / "norm", *head): "the states after the final norm",
        ("compare", base, tmp_path / "width", *head): "width 64",
        ("compare", base, tmp_path / "prefix", *head): "--no-enable-prefix-caching",
        ("compare", base, tmp_path / "busy", *head): "is held",
        ("compare", base, served): "--head MODEL",
        ("compare", base, served, "--head", tmp_path / "adapter"): "an adapter of PEFT",
        ("compare", base, served, "--head", tmp_path / "none"): "config.json",
        ("compare", base, served, *head, *head): "wanted one head: the head of the model",
        ("compare", base, int8, "--text", words, *head): "leave --head out",
        ("compare", base, tmp_path / "nowhere", "--text", words, *head): "nowhere, or leave --head out",
        ("compare", base, served, *head, "--text", words, "--context", 50): "at index",
        ("compare", base, served, *head, "--score", "assistant"): "Write: --score all",
        ("compare", base, served, *head, "--context", 512): "wanted 48, as in",
        (
            "compare",
            base,
            served,
            "--head",
            folders.other_tokenizer(),
        ): "name the model that made these files (--head)",
        ("record", served, *head, "--score", "assistant", "-o", tmp_path / "x.klref"): "Write: --score all",
        ("compare", served, int8, *head, "--noise-floor"): "a file or server; leave --noise-floor out",
        (
            "compare",
            base,
            int8,
            "--text",
            words,
            "--noise-floor",
            "--one-at-a-time",
        ): "--noise-floor, --one-at-a-time",
        ("compare", base, empty, *head): f"no .safetensors in {empty}",
        ("compare", base, empty, *head, "--text", words): f"no .safetensors in {empty}",
        ("compare", served, empty, *head): f"no .safetensors in {empty}",
        (
            "compare",
            served,
            served,
            *head,
            *head,
            *head,
        ): "one head for all 2 folders of hidden states, or 2 heads",
        ("record", empty, *head, "-o", tmp_path / "x.klref"): f"no .safetensors in {empty}",
        ("compare", base, served, *head, "--json", served / "x.json"): "a folder to read",
        ("compare", base, served, *head, "--json", base / "x.json"): "a folder to read",
        ("record", served, "-o", tmp_path / "x.klref"): "--head MODEL",
        ("record", served, *head, "--text", words, "-o", tmp_path / "x.klref"): "leave --text out",
        ("record", base, "-o", tmp_path / "x.klref"): "--text FILE",
        ("record", tmp_path / "layer", *head, "-o", tmp_path / "x.klref"): "the input of block 1 (id 1)",
    }
    with locked(busy):
        for arguments, said in cases.items():
            assert said in one_line(run(*arguments)), arguments
    assert not (tmp_path / "x.klref").exists()
