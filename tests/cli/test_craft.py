"""The command line as a tool among others: examples that run, completion, colors, narrow terminals, exit statuses."""

from __future__ import annotations

import inspect
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from kullback.cli.commands import kullback
from tests.forked import command
from tests.mismatch.dumps import tiny_run, write_nemo_rl, write_prime_rl, write_rows
from tests.models import folders
from tests.models.tiny import text

ROOT = Path(__file__).parents[2]
COMMANDS = {"kullback": kullback, **kullback.commands}
NARROW = 60
COLOR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-7]|38|4[0-7]|48|9[0-7])[;m]")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the files that the examples name."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    p = random.normal(size=(40, 4)).astype("float32")
    for name, rows in {"p": p, "float32": p, "q": p + 0.1 * p, "int8": p + 0.1 * p}.items():
        np.save(f"{name}.npy", rows)
    np.save("logits.npy", random.normal(size=(512, 8)).astype("float32"))
    np.save("tokens.npy", random.integers(0, 8, 512))
    entries = {"11": {"logprob": -2.5}, "8": {"logprob": -0.5}}
    response = {"prompt_logprobs": [None, entries], "prompt_token_ids": [1, 11]}
    Path("served.jsonl").write_text(json.dumps(response) + "\n")
    table = pd.DataFrame({"x": random.normal(size=300), "y": random.integers(0, 3, 300)})
    for name in ("before", "after", "reference"):
        table.to_parquet(f"{name}.parquet")
    for name in ("monday", "tuesday", "today"):
        table.to_csv(f"{name}.csv", index=False)
    return tmp_path


def run(*arguments: str, **environment: str):
    # Its help is 80 wide unless it is told.
    width = {"terminal_width": int(environment["COLUMNS"])} if "COLUMNS" in environment else {}
    return CliRunner(env=environment).invoke(kullback, arguments, **width)


def examples(name: str) -> list[str]:
    """The calls that the help of a command shows."""
    blocks = re.findall(r"\x08\n((?:.+\n?)+)", inspect.cleandoc(COMMANDS[name].callback.__doc__))
    calls = re.sub(r"\\\n\s*", "", "".join(blocks)).splitlines()
    return [call.strip() for call in calls]


@pytest.mark.sweep
@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_the_help_run(name, here):
    calls = examples(name)
    assert calls
    if any("llama-8b" in call for call in calls):
        pytest.importorskip("transformers")
        for made, folder in (
            (folders.base, "llama-8b"),
            (folders.int8, "q8.gguf"),
            (folders.bf16, "q4.gguf"),
        ):
            shutil.copytree(made(), folder)
        Path("wiki.txt").write_text(text()[:2000])
    if name == "mismatch":
        sampled = tiny_run()
        write_prime_rl(sampled, Path("run"))
        write_nemo_rl(sampled, Path("logs"))
        write_rows(sampled.columns(), Path("tokens.parquet"))
    for call in calls:
        program, *arguments = shlex.split(call)
        assert program == "kullback"
        result = run(*arguments)
        assert result.exit_code == 0, (call, result.output)


def complete(line: str, **environment: str) -> list[str]:
    """What bash is offered for the last word of a line, each with its type."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return run(_KULLBACK_COMPLETE="bash_complete", **words, **environment).output.splitlines()


@pytest.mark.sweep
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_for_completion(shell):
    environment = os.environ | {"_KULLBACK_COMPLETE": f"{shell}_source"}
    done = subprocess.run(command(), env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"_KULLBACK_COMPLETE={shell}_complete".encode() in done.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, check=True)


def test_commands_options_and_values_are_completed():
    assert complete("kullback com") == ["plain,compare"]
    assert complete("kullback compare --no-pro") == ["plain,--no-progress"]
    assert "plain,log-probs" in complete("kullback compare p.npy q.npy --as ")


@pytest.mark.parametrize(
    "line",
    ["compare p", "compare p.npy q", "record m", "watch r", "watch r.csv t", "convert s", "convert s.npy d"],
)
def test_files_are_completed(line):
    assert complete(f"kullback {line}") == [f"file,{line.split()[-1]}"]


def on_a_terminal(*arguments: str, **environment: str) -> bytes:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    held = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    changed = held | {"TERM": "xterm-256color", "COLUMNS": "80"} | environment
    with subprocess.Popen(command(*arguments), stdout=theirs, stderr=theirs, env=changed) as running:
        os.close(theirs)
        written = b""
        while True:
            try:
                block = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            written += block
            if not block:
                break
    os.close(ours)
    assert running.returncode == 1, written
    return written


@pytest.mark.sweep
def test_no_color_is_respected(here):
    call = ("compare", "before.parquet", "after.parquet", "--as", "table", "--fail-below", "psi=1")
    assert COLOR.search(on_a_terminal(*call))
    plain = on_a_terminal(*call, NO_COLOR="1")
    assert b"psi" in plain
    assert COLOR.search(plain) is None


CALLS = [
    ("compare", "p.npy", "q.npy", "--as", "logits"),
    ("compare", "before.parquet", "monday.csv", "--as", "table"),
    ("watch", "reference.parquet", "monday.csv"),
    ("watch", "reference.parquet", "monday.csv", "tuesday.csv"),
    ("pairs",),
    ("pairs", "Normal"),
    ("pairs", "Normal", "--full"),
    ("pairs", "Normal", "Poisson"),
    ("backends",),
    *((name, "--help") for name in kullback.commands),
    ("--help",),
]


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_sixty_columns_are_enough_and_a_pipe_gets_no_control_characters(call, here):
    result = run(*call, COLUMNS=str(NARROW), FORCE_COLOR="", TERM="xterm-256color")
    assert result.exit_code == 0, result.output
    lines = result.output.split("\n")
    assert max(map(len, lines)) <= NARROW
    assert all(line.isprintable() for line in lines)


@pytest.mark.heavy
@pytest.mark.parametrize(("ending", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_ended_writes_nothing_and_says_by_what(ending, status, here):
    before = {path.name for path in here.iterdir()}
    call = ["compare", "p.npy", "q.npy", "--as", "logits", "--html", "page.html", "--json", "page.json"]
    started = here / "started"
    program = (
        "import pathlib, time, kullback.cli.prediction_comparison as predictions\n"
        "def forever(*_, **__):\n"
        f"    pathlib.Path({str(started)!r}).touch()\n"
        "    time.sleep(600)\n"
        "predictions.compare_predictions = forever\n"
        "from kullback.cli import main\n"
        "main()"
    )
    with subprocess.Popen([sys.executable, "-c", program, *call], stderr=subprocess.PIPE) as running:
        while not started.exists() and running.poll() is None:
            time.sleep(0.02)
        running.send_signal(ending)
        _, errors = running.communicate()
    assert (running.returncode, errors) == (status, b"")
    assert {path.name for path in here.iterdir()} == before | {"started"}


def test_every_exit_status_is_documented(here):
    page = (ROOT / "docs" / "cli.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE))
    assert list(rows) == ["0", "1", "2", "3", "70", "130", "141", "143"]
    gate = ("compare", "p.npy", "q.npy", "--as", "logits", "--fail-above", "mean=0")
    assert run(*gate[:-2]).exit_code == 0
    assert run(*gate).exit_code == 1
    assert run("compare", "p.npy", "none.npy", "--as", "logits").exit_code == 2
