"""What an attacker, a stranger or a tired user brings to the command line: one clear line, and nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.cli.calling import one_line, run, run_line
from tests.forked import command

COMMAND = [sys.executable, "-c", "from kullback.cli import main; main()"]
NASTY = "\x1b[2J\r\nkullback: gate passed"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def predictions():
    p = np.random.default_rng(0).normal(size=(30, 4)).astype("float32")
    np.save("p.npy", p)
    np.save("q.npy", p + 0.1)
    np.save("tokens.npy", np.arange(12) % 4)
    np.save("scored.npy", p[:4])


@pytest.fixture
def tables():
    random = np.random.default_rng(0)
    for name, shift in (("ref", 0), ("mon", 1)):
        pd.DataFrame({"x": random.normal(shift, 1, 400)}).to_csv(f"{name}.csv", index=False)


COMPARE = "compare p.npy q.npy --as logits"
CONVERT = "convert --as logits --tokens tokens.npy --n-ctx 6 scored.npy"


def contents() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}


# Nothing is lost


@pytest.mark.parametrize(
    "arguments",
    [
        "ref.csv mon.csv --profile mon.csv --rebuild",
        "ref.csv mon.csv --profile mon.csv",
        "ref.csv mon.csv --profile folder/../ref.csv --rebuild",
        "ref.csv mon.csv --profile soft --rebuild",
        "ref.csv mon.csv --profile hard --rebuild",
        "ref.csv mon.csv --save-batch hard",
        "ref.csv mon.csv --save-batch ref.csv.profile.json",
        "ref.csv mon.csv --save-batch x --json folder/../x",
        "ref.csv mon.csv --html soft",
        "re*.csv mon.csv --json ref.csv",
        "r*f.csv mon.csv --profile ref.csv --rebuild",
        "ref.csv **/mo*.csv --save-batch soft2 --profile p.json",
    ],
)
def test_watch_writes_over_none_of_its_inputs(tables, arguments):
    Path("folder").mkdir()
    Path("soft").symlink_to("ref.csv")
    Path("soft2").symlink_to("mon.csv")
    Path("hard").hardlink_to("mon.csv")
    before = contents()
    one_line(run_line(f"watch {arguments}"), "one of the other files")
    assert contents() == before


def test_watch_replaces_a_profile_through_its_link(tables):
    Path("kept").mkdir()
    Path("link.json").symlink_to("kept/profile.json")
    assert run("watch", "ref.csv", "mon.csv", "--profile", "link.json").exit_code == 0
    assert Path("link.json").is_symlink()
    first = Path("kept/profile.json").stat().st_ino
    assert run("watch", "ref.csv", "mon.csv", "--profile", "link.json", "--rebuild").exit_code == 0
    assert Path("link.json").is_symlink()
    assert Path("kept/profile.json").stat().st_ino != first


@pytest.mark.parametrize("target", ["/dev/null", "link", "pipe"])
@pytest.mark.parametrize(
    ("call", "start"),
    [
        ("watch ref.csv mon.csv --save-batch", b'{"schema"'),
        ("watch ref.csv mon.csv --json", b"{"),
        ("watch ref.csv mon.csv --html", b"<!"),
        (CONVERT, b"_logits_"),
    ],
)
def test_a_command_writes_to_what_a_path_leads_to(tables, predictions, target, call, start):
    if "--html" in call and target == "pipe":
        pytest.skip("a page may be more than a pipe holds")
    os.mkfifo("pipe")
    Path("link").symlink_to("real.kld")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    result = run_line(f"{call} {target}")
    assert (result.exit_code, result.output if call == CONVERT else result.stderr) == (0, "")
    if target == "link":
        assert Path("link").is_symlink()
        assert Path("real.kld").read_bytes().startswith(start)
    elif target == "pipe":
        assert Path("pipe").is_fifo()
        assert os.read(reader, len(start)) == start
    os.close(reader)


@pytest.mark.parametrize("full", ["--save-batch", "--json", "--html"])
def test_where_an_output_of_watch_cannot_be_written_the_line_names_those_written_before(tables, full):
    assert run("watch", "ref.csv").exit_code == 0
    Path("batch.json").write_text("an earlier batch")
    names = {"--save-batch": "batch.json", "--json": "found.json", "--html": "page.html"}
    before = contents()
    after = list(names.values())[: list(names).index(full)]
    reports = " ".join(f"{option} {name}" for option, name in (names | {full: "/dev/full"}).items())
    line = one_line(run_line(f"watch ref.csv mon.csv {reports}"), "cannot write /dev/full")
    assert (f"(already written: {', '.join(after)})" in line) == bool(after)
    assert {name for name, content in contents().items() if content != before.get(name)} == set(after)


@pytest.mark.parametrize(
    ("weights", "got"), [("-1", "the value -1.0"), ("no", "values of type string"), ("", "missing values")]
)
@pytest.mark.parametrize("command", [("compare", "--as", "table"), ("watch",)])
def test_what_is_wrong_with_weights_names_the_option(command, weights, got):
    Path("w.csv").write_text(f"x,a w\n1,1\n2,{weights}\n")
    line = one_line(run(*command, "w.csv", "w.csv", "--weights", "a w"), "--weights: wanted", "in 'a w'", got)
    assert "weights=" not in line


@pytest.mark.parametrize("target", ["/dev/null", "pipe", "folder"])
def test_a_profile_is_kept_in_a_file(tables, target):
    os.mkfifo("pipe")
    Path("folder").mkdir()
    one_line(run("watch", "ref.csv", "mon.csv", "--profile", target, "--rebuild"), target)
    assert Path("pipe").is_fifo()


def test_convert_over_a_hard_link_of_its_source_is_refused(predictions):
    Path("other.kld").hardlink_to("scored.npy")
    before = contents()
    one_line(run_line(f"{CONVERT} other.kld"), "one of the other files")
    assert contents() == before


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_file_and_never_the_status_of_a_gate(predictions, ending):
    rows = np.random.default_rng(0).normal(size=(60_000, 128)).astype("float32")
    np.save("many.npy", rows)
    np.save("ids.npy", np.zeros(120_004, int))
    before = {path.name for path in Path().iterdir()}
    arguments = ["convert", "many.npy", "x.kld", "--as", "logits", "--tokens", "ids.npy", "--n-ctx", "120004"]
    with subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE) as running:
        for _ in range(600):  # until it writes
            if running.poll() is not None or any(
                "x.kld" in name or "deleted" in name for name in opened(running.pid)
            ):
                break
            time.sleep(0.05)
        running.send_signal(ending)
        status = running.wait()
    assert status != 1
    assert {path.name for path in Path().iterdir()} - before <= ({"x.kld"} if status == 0 else set())


HANGUP = """
import signal, sys
signal.signal(signal.SIGHUP, getattr(signal, sys.argv.pop(1)))
from kullback.cli import main
try:
    main()
except SystemExit:
    signal.raise_signal(signal.SIGHUP)
    print("goes on")
"""


@pytest.mark.parametrize(("before", "status"), [("SIG_DFL", 129), ("SIG_IGN", 0)])
def test_what_nohup_started_survives_the_terminal(before, status):
    done = subprocess.run(
        [sys.executable, "-c", HANGUP, before, "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert ("goes on" in done.stdout) == (status == 0)


def opened(pid: int) -> list[str]:
    """The files that a process has open."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except OSError:
            continue
    return found


# Status 1 is for a gate alone


def test_an_unexpected_error_ends_with_status_70(predictions, monkeypatch):
    def broken(*_arguments, **_settings):
        raise RuntimeError("first\nsecond \x1b[31m")

    monkeypatch.setattr("kullback.cli.prediction_comparison.compare_predictions", broken)
    one_line(
        run_line(COMPARE),
        "unexpected RuntimeError: first second",
        r"\x1b",
        status=70,
    )
    monkeypatch.setenv("KULLBACK_DEBUG", "1")
    assert isinstance(run_line(COMPARE).exception, RuntimeError)


def test_an_interrupt_is_no_failed_gate(predictions, monkeypatch):
    def interrupted(*_arguments, **_settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("kullback.cli.prediction_comparison.compare_predictions", interrupted)
    assert run_line(COMPARE).exit_code == 130


@pytest.mark.sweep
def test_a_closed_pipe_is_no_traceback():
    with subprocess.Popen(
        command("pairs", "--markdown"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait() == 141


@pytest.mark.heavy
@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_a_terminal_without_unicode_shows_what_it_can(predictions, locale):
    name = os.fsdecode(b"\xff\xc3\xa9.npy")
    Path("p.npy").rename(name)
    environment = os.environ | locale
    for arguments in (["pairs", "Normal"], ["compare", name, "q.npy", "--as", "logits"]):
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, env=environment, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout
    missing = subprocess.run(
        [*COMMAND, "compare", name, "none.npy", "--as", "logits"],
        capture_output=True,
        env=environment,
        check=False,
    )
    assert (missing.returncode, missing.stderr.count(b"\n")) == (2, 1)


# Names and numbers


@pytest.mark.parametrize("name", [NASTY, "x" * 200 + "\n" + "\x1b[31m", "\u202egnp.exe", "a\x07b"])
def test_names_are_escaped_and_cut_in_every_error(predictions, name):
    for arguments in (
        ("compare", name, "q.npy", "--as", "logits"),
        ("compare", f"{name}.npy", "q.npy", "--as", "logits"),
        ("compare", "p.npy", "q.npy", "--as", "logits", "--key", name * 50),
        ("compare", "p.npy", "q.npy", "--as", "logits", "--labels", name),
        ("compare", "p.npy", "q.npy", "--as", name),
        ("compare", "p.npy", "q.npy", "--as", "logits", "--fail-above", f"{name}=1"),
        ("calc", name, "Normal(0, 1)"),
        ("convert", name, "x.kld", "--tokens", "tokens.npy", "--n-ctx", "8"),
        ("watch", name, "q.csv"),
        ("pairs", name),
        (name,),
    ):
        one_line(run(*arguments))


def test_a_column_forges_no_line(tables):
    for name in ("ref", "mon"):
        table = pd.read_csv(f"{name}.csv")
        table.columns = [NASTY]
        table.to_parquet(f"{name}.parquet")
    result = run("compare", "ref.parquet", "mon.parquet", "--as", "table", "--fail-above", "psi=0.01")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("kullback: gate failed: ")
    assert "\x1b" not in result.output
    assert not any(line.startswith("kullback: gate passed") for line in result.output.splitlines())


@pytest.mark.parametrize(
    ("call", "option", "values"),
    [
        (COMPARE, "--block-mb", "inf nan 1e308"),
        (COMPARE, "--bootstrap", "1000000000000 1e12"),
        (COMPARE, "--seed", "100000000000000000000000 1e23"),
        (COMPARE, "--worst", "-1"),
        (COMPARE, "--fail-above", "mean=nan"),
        ("calc 'Normal(0, 1)' 'Normal(1, 1)'", "--base", "nan inf 0 -2 1"),
    ],
)
def test_numbers_beyond_use_are_refused(predictions, call, option, values):
    for value in values.split():
        one_line(run_line(f"{call} {option} {value}"), option.removeprefix("--"))


def test_the_largest_seed_and_many_draws_are_taken(predictions):
    result = run_line(f"compare p.npy q.npy --as logits --seed {2**63 - 1} --bootstrap 2000 --json")
    assert json.loads(result.stdout)["rows"] == 30


# What is no file


@pytest.mark.parametrize("path", ["/dev/zero", "pipe", "loop", "."])
def test_no_input_blocks_or_never_ends(predictions, tables, path):
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    for arguments in (
        ("compare", path, "q.npy", "--as", "logits"),
        ("compare", "p.npy", "q.npy", "--as", "logits", "--labels", path),
        ("compare", "p.npy", "q.npy", "--as", "logits", "--cluster", path),
        ("compare", path, "mon.csv", "--as", "table"),
        ("watch", path, "mon.csv"),
        ("watch", "ref.csv", path),
        ("watch", "ref.csv", "mon.csv", "--profile", path),
        ("convert", "scored.npy", "x.kld", "--as", "logits", "--tokens", path, "--n-ctx", "6"),
    ):
        one_line(run(*arguments))


def test_tables_given_as_predictions_are_told_how_to_be_compared(tables):
    pd.DataFrame({"x": ["a", "b"]}).to_parquet("t.parquet")
    Path("t.ndjson").write_text('{"x": 1}\n')
    Path("text.csv").write_text("name,age\nann,3\nbob,4\n")
    for name in ("t.parquet", "t.ndjson", "text.csv"):
        one_line(run("compare", name, name, "--as", "probs"), "--as table")
    one_line(run("compare", "ref.csv", "mon.csv"), "--as table")


# calc


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ("Independent(3, 1)", "Normal(0, 1)"),
        ("Normal([], 1)", "Normal([], 1)"),
        ("Normal(0, 1)", "Normal([], 1)"),
        ("Normal([0, 1], 1)", "Normal([0, 1, 2], 1)"),
        ("TransformedDistribution(Normal(0, 1), 3)", "Normal(0, 1)"),
        ("MixtureSameFamily(3, 4)", "Normal(0, 1)"),
        ("Distribution()", "Normal(0, 1)"),
        ("Multinomial(3, [[]])", "Multinomial(3, [[]])"),
    ],
)
def test_hostile_expressions_end_in_one_line(p, q):
    one_line(run("calc", p, q))


@pytest.mark.parametrize("text", ["Beta(1e-320, 1)", "Gamma(1e-320, 1)", "Beta(1e308, 1e308)"])
def test_calc_never_prints_nan(text):
    for q in (text, "Beta(0.5, 2)" if "Beta" in text else "Gamma(0.5, 2)"):
        assert "nan" not in run("calc", text, q).stdout


# Tensors in files of torch.save


@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:torch.quantize_per_tensor"
)  # once each
@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (lambda x: x.requires_grad_(), None),
        (lambda x: torch.nested.nested_tensor([x, x]), "nested"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "qint8"),
        (lambda x: x.to("meta"), "meta"),
        (lambda x: x.to_sparse(), "sparse"),
        (lambda x: x.to(torch.complex64), "complex64"),
    ],
    ids=["grad", "nested", "quantized", "meta", "sparse", "complex"],
)
def test_tensors_of_every_kind_are_read_or_refused(predictions, make, answer):
    torch.save(make(torch.from_numpy(np.load("p.npy"))), "p.pt")
    result = run("compare", "p.pt", "q.npy", "--as", "logits")
    if answer is None:
        assert result.exit_code == 0, result.output
    else:
        one_line(result, "p.pt", answer)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32])
@pytest.mark.parametrize("name", ["labels.pt", "labels.safetensors"])
def test_labels_that_are_no_integers_are_refused(predictions, name, dtype):
    labels = torch.zeros(30).to(dtype)
    if name.endswith("pt"):
        torch.save(labels, name)
    else:
        from safetensors.torch import save_file

        save_file({"labels": labels}, name)
    one_line(run("compare", "p.npy", "q.npy", "--as", "logits", "--labels", name), name)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"99999999999999999999\n" * 30, "whole numbers"),
        (b"\xff\xfe\n" * 30, "UTF-8"),
        (b"1\n" * 29 + b"\n", "line"),
        (b"", "empty"),
    ],
)
def test_texts_that_are_no_labels_are_refused(predictions, content, word):
    Path("labels.txt").write_bytes(content)
    one_line(run("compare", "p.npy", "q.npy", "--as", "logits", "--labels", "labels.txt"), word)


@pytest.mark.parametrize(
    "content",
    [
        b"a,b\n\xff\xfe,1\n",
        b"1,2\n3,\xff\n",
        b"a,b\n1," + b"9" * 200_000 + b"\n",
        b'"' + b"x" * 200_000 + b'",1\n',
        b"a\x00,b\n",
    ],
)
def test_texts_that_are_no_numbers_are_refused(content):
    Path("p.csv").write_bytes(content)
    one_line(run("compare", "p.csv", "p.csv", "--as", "logits"), "p.csv")


def test_a_header_with_impossible_sizes_is_refused():
    for shape in ("(-1, 5)", "(2, -5)", "(4611686018427387904, 4)", "(True, 2)", "(1, 2"):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
        header += b" " * (118 - len(header) - 1) + b"\n"
        Path("p.npy").write_bytes(
            b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)
        )
        one_line(run("compare", "p.npy", "p.npy", "--as", "logits"), "p.npy")
        one_line(run("compare", "p.npy", "p.npy", "--as", "logits", "--labels", "p.npy"), "p.npy")
