"""`--config`: options from a file have the values and the errors of the command line, which wins over the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from kullback.cli.commands import kullback
from kullback.cli.config_file import TABLES as TABLES_OF_COMMANDS
from tests.cli.calling import one_line
from tests.models import folders
from tests.models.tiny import text as words

PREDICTIONS = ("compare", "p.npy", "q.npy")
TABLES = ("compare", "p.csv", "q.csv")
WATCH = ("watch", "p.csv", "q.csv")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    for name in ("p", "q"):
        np.save(f"{name}.npy", draws.normal(size=(40, 8)).astype("float32"))
        pd.DataFrame({"a": np.arange(60) % 7 + 1, "b,c": np.arange(60) % 5, "w": 1.0}).to_csv(
            f"{name}.csv", index=False
        )
    Path("labels.txt").write_text("1\n" * 40)


def run(*arguments: str, config: str) -> Result:
    Path("run.toml").write_text(config)
    return CliRunner().invoke(kullback, [*arguments, "--config", "run.toml"])


@pytest.mark.parametrize(
    ("call", "config", "flags"),
    [
        (
            PREDICTIONS,
            'as = "logits"\nbootstrap = 50\nblock-mb = 1\nlabels = "labels.txt"\nfail-above = ["mean=9", "top1=1"]',
            "--as logits --bootstrap 50 --block-mb 1 --labels labels.txt --fail-above mean=9 --fail-above top1=1",
        ),
        (
            TABLES,
            'as = "table"\nbins = 4\nconfidence = 0.5\ncolumns = "a,w"\njoint = [["a", "w"]]\nseed = 3',
            "--as table --bins 4 --confidence 0.5 --columns a,w --joint a,w --seed 3",
        ),
        (
            WATCH,
            'weights = "w"\ncolumns = ["a"]\n[watch]\nindependent = true\n[record]\ntop = 3\n[compare]\nas = "probs"',
            "--weights w --columns a --independent",
        ),
    ],
)  # fmt: skip
def test_a_file_gives_the_result_of_its_flags(call: tuple[str, ...], config: str, flags: str) -> None:
    of_file = run(*call, "--json", "file.json", config=config)
    of_flags = CliRunner().invoke(kullback, [*call, *flags.split(), "--json", "flags.json"])
    assert (of_file.exit_code, of_file.stderr) == (0, "") == (of_flags.exit_code, of_flags.stderr)
    assert of_file.stdout == of_flags.stdout
    assert Path("file.json").read_text() == Path("flags.json").read_text()


def test_a_file_may_have_a_table_for_each_command_that_takes_one() -> None:
    takers = {
        name for name, each in kullback.commands.items() if any(x.name == "config" for x in each.params)
    }
    assert takers == set(TABLES_OF_COMMANDS)
    record = {"sequence": 0, "position": 0, "sampler_log_prob": -1.0, "trainer_log_prob": -1.5}
    Path("run.jsonl").write_text(f"{json.dumps(record)}\n")
    config = "[mismatch]\nratio = 1.5\n[compare]\nbins = 3"
    assert json.loads(run("mismatch", "run.jsonl", "--json", config=config).stdout)["ratio"] == 1.5


def test_a_byte_order_mark_is_no_part_of_the_file() -> None:
    assert run(*PREDICTIONS, "--json", config='\N{BYTE ORDER MARK}as = "logits"').exit_code == 0


def test_an_array_names_a_column_with_a_comma() -> None:
    result = run(*TABLES, "--json", config='as = "table"\ncolumns = ["b,c"]')
    assert [each["name"] for each in json.loads(result.stdout)["columns"]] == ["b,c"]


def test_the_command_line_wins_over_the_table_of_the_command_and_that_over_the_rest() -> None:
    config = 'as = "table"\nconfidence = 0.5\n[compare]\nconfidence = 0.6\njson = "-"'
    for flags, level in (((), 0.6), (("--confidence", "0.7"), 0.7)):
        assert json.loads(run(*TABLES, *flags, config=config).stdout)["confidence"] == level
    # A gate of the command line replaces those of the file.
    gates = 'as = "logits"\nfail-above = ["mean.value=0"]'
    assert run(*PREDICTIONS, config=gates).exit_code == 1
    assert run(*PREDICTIONS, "--fail-above", "mean.value=9", config=gates).exit_code == 0


@pytest.mark.parametrize(
    ("call", "config", "said"),
    [
        (PREDICTIONS, "fail-abov = []", 'got no such option. Write: fail-above = ["METRIC=LIMIT"]'),
        (PREDICTIONS, "[compare]\nbinz = 3", "binz: wanted an option of kullback compare; got no such option. Write"),
        (PREDICTIONS, "nothing-like-it = 3", "Write: one of kullback compare --help"),
        (PREDICTIONS, 'config = "other.toml"', "config: wanted an option of kullback compare"),
        (PREDICTIONS, "[other]\nbins = 3", "other: wanted an option of kullback compare"),
        (PREDICTIONS, "compare = 3", "compare: wanted an option of kullback compare"),
        (("watch", "p.csv"), "worst = 3", "worst: wanted an option of kullback watch"),
        (PREDICTIONS, 'fail-above = "mean=1"', "fail-above: wanted an array of strings; got 'mean=1'. Write: fail"),
        (PREDICTIONS, "fail-above = [1]", "fail-above: wanted an array of strings; got [1]"),
        (PREDICTIONS, 'full = "yes"', "full: wanted true or false; got 'yes'. Write: full = true"),
        (PREDICTIONS, "full = 1", "full: wanted true or false; got 1"),
        (PREDICTIONS, "worst = true", "worst: wanted an integer of 0 or more; got True. Write: worst = 10"),
        (PREDICTIONS, "worst = 2.5", "worst: wanted an integer of 0 or more; got 2.5"),
        (PREDICTIONS, "worst = -1", "worst: wanted an integer of 0 or more; got -1"),
        (PREDICTIONS, "block-mb = inf", "block-mb: wanted a number above 0, at most 1.04858e+06; got inf"),
        (PREDICTIONS, 'as = "scores"', "as: wanted one of 'logits', 'log-probs', 'probs', 'counts', 'table'; got"),
        (PREDICTIONS, "as = 3", "as: wanted one of 'logits', 'log-probs', 'probs', 'counts', 'table'; got 3"),
        (PREDICTIONS, "html = 3", 'html: wanted a string; got 3. Write: html = "FILE"'),
        (PREDICTIONS, "labels = 2026-11-29", "labels: wanted a string; got datetime.date"),
        (PREDICTIONS, "columns = [1]", 'columns: wanted a string; got [1]. Write: columns = "A,B"'),
        (PREDICTIONS, "columns = []", "columns: wanted names of columns"),
        (PREDICTIONS, 'joint = [["a"]]', "joint: wanted names of two or more columns"),
        (PREDICTIONS, 'as = "logits"\nbins = 3', "bins is for comparing tables; leave it out, or add --as table"),
        (PREDICTIONS, 'as = "logits"\ntext = "t"\nkey-p = "x"', "key-p is for comparing predictions; leave it out"),
        (TABLES, 'as = "table"\nresume = "x"', "resume is for comparing predictions and models; leave it out"),
        (PREDICTIONS, 'as = "logits"\nfail-above = ["meen=1"]', "run.toml: fail-above: meen=1: wanted METRIC=LIMIT"),
        (PREDICTIONS, 'as = "logits"\nfail-above = ["meen=1"]', '; write fail-above = ["mean=1"]'),
        (PREDICTIONS, 'as = "logits"\nfail-below = ["top1=2"]', 'Write: fail-below = ["top1=0.01"]'),
        (PREDICTIONS, 'as = "logits"\nfail-below = ["labels.difference=0"]', "fail-below: labels.difference=..."),
        (TABLES, 'as = "table"\nfail-above = ["psi[a=1"]', "run.toml: fail-above: psi[a=1: wanted METRIC=LIMIT"),
        (WATCH[:2], 'fail-above = ["psi=1"]', "run.toml: fail-above: wanted a batch to check; got none"),
        (PREDICTIONS, "worst = ", "--config run.toml: wanted a file of TOML; got Invalid value"),
        (PREDICTIONS, "x = " + "[" * 10_000, "--config run.toml: wanted a file of TOML"),
        (PREDICTIONS, "\x1b[2J = 3", "wanted a file of TOML"),
        (PREDICTIONS, r'"a\u001b\nb" = 3', r"a\x1b\nb: wanted an option of kullback compare"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_the_file_and_the_key(
    call: tuple[str, ...], config: str, said: str
) -> None:
    assert "run.toml" in one_line(run(*call, config=config), said)


@pytest.mark.parametrize("remedy", ['fail-above = ["mean=9"]', 'fail-below = ["top1=0.01"]'])
def test_a_gate_that_an_error_about_a_file_names_is_a_gate_of_a_file(remedy: str) -> None:
    broken = remedy.replace("mean", "meen").replace("0.01", "2")
    one_line(run(*PREDICTIONS, config=f'as = "logits"\n{broken}'), remedy)
    assert run(*PREDICTIONS, config=f'as = "logits"\n{remedy}').exit_code in (0, 3)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("none.toml", "--config none.toml: wanted a readable file; got No such file or directory; check the path"),
        (".", "--config .: wanted a readable file; got Is a directory; check the path"),
        ("/dev/zero", "--config = /dev/zero: wanted a file"),
    ],
)  # fmt: skip
def test_a_path_that_is_no_file_is_refused(path: str, said: str) -> None:
    one_line(CliRunner().invoke(kullback, [*PREDICTIONS, "--config", path]), said)


@pytest.mark.parametrize("output", ["--json", "--html", "--markdown"])
def test_no_report_replaces_the_file(output: str) -> None:
    for call in ((*PREDICTIONS, "--as", "logits"), (*TABLES, "--as", "table"), WATCH):
        one_line(run(*call, output, "run.toml", config="seed = 1"), "one of the other files")
        assert Path("run.toml").read_text() == "seed = 1"


def test_the_page_shows_the_example() -> None:
    root = Path(__file__).parents[2]
    example = (root / "examples" / "compare.toml").read_text(encoding="utf-8")
    assert f"```toml\n{example}```" in (root / "docs" / "cli.md").read_text(encoding="utf-8")


def test_paths_are_relative_to_the_current_folder() -> None:
    Path("settings").mkdir()
    Path("settings/run.toml").write_text('as = "logits"\nlabels = "labels.txt"\njson = "-"')
    result = CliRunner().invoke(kullback, [*PREDICTIONS, "--config", "settings/run.toml"])
    assert json.loads(result.stdout)["labels"]["labeled"] == 40


def test_a_reference_is_recorded_with_a_file() -> None:
    pytest.importorskip("transformers")
    Path("words.txt").write_text(words()[:1500])
    config = 'text = "words.txt"\noutput = "base.klref"\n[record]\ncontext = 48\ntop = 5\ntail-draws = 3'
    assert run("record", str(folders.base()), config=config).exit_code == 0
    flags = ("--text", "words.txt", "-o", "flags.klref", "--context", "48", "--top", "5", "--tail-draws", "3")
    assert CliRunner().invoke(kullback, ["record", str(folders.base()), *flags]).exit_code == 0
    assert Path("base.klref").read_bytes() == Path("flags.klref").read_bytes()
    one_line(run("record", str(folders.base()), config="top = 3"), "Missing option", "--output")
    one_line(
        run("record", str(folders.base()), config='output = "x.klref"'),
        "wanted a text, which the model reads",
    )
