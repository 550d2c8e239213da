"""`kullback compare --text` and `kullback record`: exit statuses, files, one-line errors."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import Result
from safetensors.torch import load_file, save_file

from tests.cli.calling import run
from tests.models import folders
from tests.models.tiny import REPOSITORY, text

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(text()[:3000])
    return path


def one_line(result: Result) -> str:
    """Return the error of a call that may also print what libraries say of models."""
    assert result.exit_code == 2, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("kullback:")]
    assert len(lines) == 1, result.output
    assert "Traceback" not in result.output
    return lines[0]


@pytest.mark.sweep
def test_the_reports_of_one_run_agree(words: Path, tmp_path: Path) -> None:
    files = {name: tmp_path / f"report.{name}" for name in ("json", "html", "md")}
    result = run(
        "compare", folders.base(), folders.int8(), folders.bf16(), "--text", words, "--context", 48,
        "--json", files["json"], "--html", files["html"], "--markdown", files["md"], "--noise-floor",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    held = json.loads(files["json"].read_text())
    assert held["schema"] == "kullback.models/1"
    assert [Path(each["model"]["name"]).name for each in held["candidates"]] == ["bf16", "int8"]
    assert held["noise_floor"]["comparison"]["divergences"]["kl_pq"]["mean"] > 0
    mean = held["candidates"][0]["comparison"]["divergences"]["kl_pq"]["mean"]
    shown = f"{mean:.7f}"
    assert f" {1e6 * mean:.0f} µnat " in result.output
    assert shown in files["md"].read_text()
    assert shown in files["html"].read_text()


def test_the_lines_of_llama_cpp_are_those_of_its_numbers(words: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.json"
    result = run(
        "compare", folders.base(), folders.int8(), "--text", words, "--context", 48, "--format", "llama.cpp",
        "--json", page,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    held = json.loads(page.read_text())["candidates"][0]["comparison"]
    lines = dict(line.split(":", 1) for line in result.output.splitlines() if ":" in line)
    shown = {name.strip(): value.split()[0] for name, value in lines.items()}
    kl, labels = held["divergences"]["kl_pq"], held["labels"]
    assert shown["Mean    KLD"] == f"{kl['mean']:.6f}"
    assert shown["Maximum KLD"] == f"{kl['maximum']:.6f}"
    assert float(shown["Mean PPL(base)"]) == pytest.approx(labels["perplexity_p"]["mean"], abs=2e-4)
    assert float(shown["Same top p"]) == pytest.approx(100 * held["top1_agreement"]["value"], abs=1e-3)
    both = run("compare", folders.base(), folders.int8(), "--text", words, "--format", "llama.cpp", "--json")
    assert "--json FILE" in one_line(both)


@pytest.mark.sweep
def test_gates_hold_for_every_candidate(words: Path) -> None:
    arguments = ("compare", folders.base(), folders.int8(), folders.bf16(), "--text", words, "--context", 48)
    assert run(*arguments, "--fail-above", "mean=1").exit_code == 0
    failed = run(*arguments, "--fail-above", "mean=0.001")
    assert failed.exit_code == 1
    assert "int8: mean is" in failed.output
    assert "bf16: mean is" not in failed.output


def test_a_recorded_reference_is_a_base(words: Path, tmp_path: Path) -> None:
    path = tmp_path / "base.klref"
    result = run("record", folders.base(), "--text", words, "-o", path, "--context", 48)
    assert result.exit_code == 0, result.output
    line = re.fullmatch(r"(.*): the predictions of ([\d,]+) tokens, ([\d.]+) kB\n", result.stdout)
    assert line is not None, result.output
    assert line[1] == str(path)
    assert float(line[3]) == pytest.approx(path.stat().st_size / 1000, rel=0.01)
    recorded = int(line[2].replace(",", ""))
    result = run("compare", path, folders.int8(), "--json")
    assert result.exit_code == 0, result.output
    held = json.loads(result.output)["candidates"][0]
    assert held["comparison"]["rows"] == recorded
    assert held["known"] == "reference"
    assert held["certain"]["kl_pq"][0] <= held["drawn"]["kl_pq"]["mean"]
    refused = run("record", folders.base(), "--text", words, "-o", words)
    assert "name another one" in one_line(refused)
    assert words.read_text() == text()[:3000]


@pytest.mark.heavy
def test_what_cannot_be_is_one_line_and_writes_nothing(words: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    base, int8 = folders.base(), folders.int8()
    short = tmp_path / "short.txt"
    short.write_text(text()[:300])
    server = "http://127.0.0.1:9"
    assert one_line(run("record", server, "--text", words, "-o", tmp_path / "x.klref")) == (
        f"kullback: model = {server}: wanted a folder of a Hugging Face model or a .gguf file; got a server, which "
        "gives only its most probable classes; name a folder with its config.json, or a .gguf file"
    )
    cases = {
        ("compare", base, int8): "--text FILE",
        ("compare", base, int8, "--text", tmp_path / "none.txt"): "wanted a readable file",
        ("compare", base, tmp_path / "none.gguf", "--text", words): "nothing there",
        ("compare", base, int8, "--text", short): "or a smaller context (--context ",
        ("compare", base, int8, "--text", words, "--labels", words): "--labels is for comparing predictions",
        ("compare", base, int8, "--text", words, "--bins", "5"): "--bins is for comparing tables",
        ("compare", base, int8, "--text", words, "--resume", words): "one of the other files",
        ("compare", base, int8, "--text", words, "--score", "assistant"): "conversations",
        ("compare", base, folders.other_tokenizer(), "--text", words, "--context", "48"): "the same tokens",
        ("compare", base, "http://127.0.0.1:9", "--text", words, "--context", "48"): "127.0.0.1",
    }
    for arguments, said in cases.items():
        assert said in one_line(run(*arguments, "--html", page)), arguments
        assert not page.exists()


def test_a_device_that_is_not_there_and_outputs_without_a_path_are_refused(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    compare = ("compare", folders.base(), folders.int8(), "--text", words, "--context", 48, "--windows", 4)
    for device in ("foo", "meta"):
        line = one_line(run(*compare, "--device", device))
        assert "wanted a device that torch can use on this machine" in line
        assert line.endswith("; --device cpu (Loading(device='cpu'))")
    for flag in ("--html", "--markdown", "--resume"):
        assert one_line(run(*compare, flag, "-")).endswith("got -; name a file, or /dev/stdout")
    assert "got -" in one_line(run("record", folders.base(), "--text", words, "-o", "-"))
    assert not list(tmp_path.iterdir())
    assert run(*compare, "--device", "cpu", "--markdown", "/dev/stdout").exit_code == 0


@pytest.mark.parametrize("output", ["--json", "--html", "--markdown", "--resume", "record"])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "new"])
def test_no_output_goes_into_the_folder_of_a_model(
    words: Path, tmp_path: Path, output: str, file: str
) -> None:
    import shutil

    model = tmp_path / "model"
    shutil.copytree(folders.int8(), model)
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    if output == "record":
        runs = [("record", model, "--text", words, "-o", model / file)]
    else:
        sides = (folders.base(), model), (model, folders.base()), (folders.base(), folders.bf16(), model)
        runs = [("compare", *names, "--text", words, output, model / file) for names in sides]
    for arguments in runs:
        assert "a folder to read" in one_line(run(*arguments))
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


def test_options_of_models_are_refused_without_them(tmp_path: Path) -> None:
    data = Path(__file__).parents[2] / "examples" / "data"
    files = data / "float32.npy", data / "int8.npy"
    assert "--text FILE" in one_line(run("compare", *files, files[1], "--as", "logits"))
    assert "--context is for comparing models" in one_line(
        run("compare", *files, "--as", "logits", "--context", "64")
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "an empty file"),
        (b"\xff\xfe\x00", "wanted UTF-8"),
        (b'{"text": "a"}\n{"other": 1}\n', "line 2"),
        (b'{"text": "a"}\nnot json\n', "no JSON in line 2"),
        (b'{"text": "a"}\n{"messages": [{"role": "user", "content": "b"}]}\n', "write two files"),
        (b"[" * 100_000, "no JSON in line 1"),
    ],
)
def test_damaged_texts_are_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_bytes(content)
    assert said in one_line(run("compare", folders.base(), folders.int8(), "--text", path))


def test_a_pipe_is_no_text(tmp_path: Path) -> None:
    import os

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "a pipe" in one_line(run("compare", folders.base(), folders.int8(), "--text", pipe))


@pytest.mark.sweep
def test_the_commands_of_the_page_on_less_text_run(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (REPOSITORY / "docs" / "tutorial" / "language_models.md").read_text(encoding="utf-8")
    calls = [
        line.split()[1:] for line in page.splitlines() if re.match("kullback compare .*--until-sure", line)
    ]
    assert len(calls) == 3
    names = {
        "llama-3-8b": folders.base(),
        "q4.gguf": folders.int8(),
        "q4-a.gguf": folders.int8(),
        "q4-b.gguf": folders.bf16(),
        "wiki.txt": words,
    }
    for call in calls:
        result = run(*(names.get(word, word) for word in call), "--context", 24, "--json", "report.json")
        held = json.loads(Path("report.json").read_text())["until_sure"]
        assert held["goal"] == call[call.index("--until-sure") + 1]
        assert held["decided"]
        assert result.exit_code == 0, result.output


def test_a_gate_is_judged_by_the_interval_that_holds_at_every_look(words: Path) -> None:
    call = "compare", folders.base(), folders.int8(), "--text", words, "--context", 24
    result = run(*call, "--until-sure", "mean=0.001", "--fail-above", "mean=0.001")
    assert result.exit_code == 1, result.output
    assert "int8: above the limit after" in " ".join(result.output.split())
    few = run(*call, "--until-sure", "mean=0.0013", "--windows", 4, "--fail-above", "mean=0.0013")
    assert few.exit_code == 3, few.output
    assert "cannot tell: mean is" in few.output


def test_a_goal_that_cannot_be_read_or_reached_ends_in_one_line(words: Path) -> None:
    call = "compare", folders.base(), folders.int8(), "--text", words
    for goal in ("mean", "mean=0", "width=%", "order"):
        line = one_line(run(*call, "--until-sure", goal))
        assert "--until-sure: wanted" in line
        assert line.endswith("Write: --until-sure mean=0.01")
    assert one_line(run(*call, "--until-sure", "width=10")).endswith("Write: --until-sure width=10%")
    for option in ("--noise-floor", "--one-at-a-time"):
        line = one_line(run(*call, "--until-sure", "mean=0.1", option))
        assert f"got {option}, which reads every window; leave {option} out" in line
    line = one_line(run(*call, "--noise-floor", "--one-at-a-time"))
    assert line.startswith(
        "kullback: --noise-floor, --one-at-a-time: wanted one of the two; got both: --one-at-a-time"
    )
    assert line.endswith("leave --noise-floor out")
    assert run(*call, "--one-at-a-time", "--windows", 4).exit_code == 0
    resumed = one_line(run(*call, "--one-at-a-time", "--resume", words.with_name("kept.state")))
    assert resumed.endswith("leave --one-at-a-time out")
    assert "models" in one_line(
        run("compare", "a.npy", "b.npy", "--as", "logits", "--until-sure", "mean=0.1")
    )


@pytest.mark.sweep
def test_a_limit_below_the_noise_floor_of_the_base_is_refused_with_the_floor(
    words: Path, tmp_path: Path
) -> None:
    near = Path(shutil.copytree(folders.bf16(), tmp_path / "near"))
    weights = load_file(near / "model.safetensors")
    next(iter(weights.values()))[0, 0] *= 1.01
    save_file(weights, near / "model.safetensors", {"format": "pt"})
    call = "compare", folders.bf16(), near, "--text", words, "--context", 48, "--noise-floor"
    result = run(*call, "--fail-above", "mean=1e-7")
    assert result.exit_code == 3, result.output
    said = " ".join(result.output.split())
    assert "mean at most 1e-07 is below the noise floor: rounding alone moves P by" in said
    remedy = said.partition("--fail-above ")[2].split()[0]
    assert "below the noise floor" not in run(*call, "--fail-above", remedy).output
    clear = run(
        "compare",
        folders.bf16(),
        folders.int8(),
        "--text",
        words,
        "--context",
        48,
        "--fail-above",
        "mean=1e-7",
    )
    assert clear.exit_code == 1, clear.output


def test_runs_divide_the_error_rate_and_need_a_goal(words: Path) -> None:
    call = "compare", folders.base(), folders.int8(), "--text", words, "--context", 24
    said = [
        " ".join(run(*call, "--until-sure", "mean=0.0001", *runs).output.split())
        for runs in ((), ("--runs", 1000), ("--runs", 1))
    ]
    assert "at 95 % confidence over all looks" in said[0] == said[2]
    assert "at 99.995 % confidence over all looks" in said[1]
    read = [int(each.partition("decided after ")[2].split()[0]) for each in said]
    assert read[0] < read[1]
    refusal = one_line(run(*call, "--runs", 10))
    assert "--runs: wanted a goal" in refusal
    assert "got 10 without --until-sure. Write: --until-sure mean=0.01" in refusal
