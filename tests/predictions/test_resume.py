"""A comparison that was stopped at any point goes on from its state to the same report, and trusts nothing in it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from kullback import Logits, compare_predictions, report
from kullback.cli.commands import kullback
from kullback.errors import ArgumentTypeError, FileError
from kullback.io import write_llama_base
from kullback.predictions import checkpoint, compare_two_predictions
from kullback.predictions.checkpoint import Checkpoint, fingerprint
from kullback.predictions.collect import TABLE_ROWS, Collector
from kullback.predictions.measure import measure
from kullback.predictions.run import Run
from tests import fuzz, fuzz_states
from tests.forked import MAIN, python
from tests.refusals import refused

ROWS, CLASSES = 900, 257  # 127 rows in a part: eight blocks of one part each
PART = 127
SECONDS = 120


class _StopError(Exception):
    pass


def stop_at(rows: int) -> Callable[[int, int | None], None]:
    def progress(done: int, _total: int | None) -> None:
        if done >= rows:
            raise _StopError

    return progress


@pytest.fixture(scope="module")
def arrays() -> dict[str, Any]:
    generator = np.random.default_rng(7)
    p = generator.normal(size=(ROWS, CLASSES)).astype("float32")
    return {
        "p": p,
        "q": p + generator.normal(scale=0.3, size=p.shape).astype("float32"),
        "labels": generator.integers(CLASSES, size=ROWS),
        "cluster": np.arange(ROWS) // 30,
    }


def compared(p: Any, q: Any, **options: Any) -> str:
    settings = {"representation": "logits", "bootstrap": 50, "block_bytes": 1, **options}
    return report.json.dumps(compare_predictions(p, q, **settings))


def stopped(p: Any, q: Any, state: Path, at: int = 400, **options: Any) -> bytes:
    """Stop a comparison, and return the state it leaves."""
    with pytest.raises(_StopError):
        compared(p, q, resume=state, progress=stop_at(at), **options)
    return state.read_bytes()


def write_npy(path: Path, x: Any) -> Path:
    np.save(path.with_suffix(".npy"), x)
    return path.with_suffix(".npy")


def write_fortran(path: Path, x: Any) -> Path:
    return write_npy(path, np.asfortranarray(x))


def write_npz(path: Path, x: Any) -> Path:
    np.savez_compressed(path.with_suffix(".npz"), x=x)
    return path.with_suffix(".npz")


def write_pt(path: Path, x: Any) -> Path:
    torch.save(torch.from_numpy(x), path.with_suffix(".pt"))
    return path.with_suffix(".pt")


def write_safetensors(path: Path, x: Any) -> Path:
    save_file({"x": torch.from_numpy(x).bfloat16()}, path.with_suffix(".safetensors"))
    return path.with_suffix(".safetensors")


def write_parquet(path: Path, x: Any) -> Path:
    table = pa.table({"x": list(x)})
    pq.write_table(table, path.with_suffix(".parquet"), row_group_size=100)
    return path.with_suffix(".parquet")


def write_csv(path: Path, x: Any) -> Path:
    np.savetxt(path.with_suffix(".csv"), x, delimiter=",", fmt="%.9g")
    return path.with_suffix(".csv")


def in_memory(_path: Path, x: Any) -> Any:
    return torch.from_numpy(x)


WRITERS = [
    write_npy, write_fortran, write_npz, write_pt, write_safetensors, write_parquet, write_csv, in_memory,
]  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize("write", WRITERS, ids=lambda each: each.__name__)
def test_a_run_that_was_stopped_goes_on_to_the_same_report(write, arrays, tmp_path):
    p, q = (write(tmp_path / name, arrays[name]) for name in ("p", "q"))
    options = {"labels": arrays["labels"], "cluster": arrays["cluster"]}
    state = tmp_path / "state"
    whole = compared(p, q, **options)
    seen: list[int] = []
    for at in (1, 400, ROWS):
        stopped(p, q, state, at, **options)
        seen.clear()
        # Blocks of another size, which begin and end elsewhere.
        again = compared(
            p, q, resume=state, block_bytes=3 * 4 * PART * CLASSES, progress=lambda n, _: seen.append(n), **options
        )  # fmt: skip
        assert again == whole
        assert seen[0] >= at
        assert not state.exists()


def test_a_base_file_of_llama_cpp_says_the_same_of_all_its_rows(arrays, tmp_path):
    window = 20
    tokens = torch.randint(CLASSES, (ROWS // 9 * window,), generator=torch.Generator().manual_seed(1))
    base = tmp_path / "base.kld"
    write_llama_base(base, tokens, torch.from_numpy(arrays["p"]), n_ctx=window)
    q, state = write_npy(tmp_path / "q", arrays["q"]), tmp_path / "state"
    options = {"representation": (None, "logits"), "llama_cpp": True}
    whole = compared(base, q, **options)
    stopped(base, q, state, **options)
    assert compared(base, q, resume=state, **options) == whole


def test_a_resume_without_an_earlier_run_is_a_run_and_leaves_nothing(arrays, tmp_path):
    state = tmp_path / "state"
    assert compared(arrays["p"], arrays["q"], resume=state) == compared(arrays["p"], arrays["q"])
    assert list(tmp_path.iterdir()) == []
    state.touch()  # as mktemp makes it
    compared(arrays["p"], arrays["q"], resume=state)
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_was_finished_nothing_is_left(arrays, tmp_path):
    bad = arrays["p"].copy()
    bad[3, 5] = np.nan
    p, state = write_npy(tmp_path / "p", bad), tmp_path / "state"
    with refused(FileError, instead="NaN"):
        compared(p, arrays["q"], resume=state)
    assert not state.exists()


def test_the_statistics_do_not_depend_on_how_many_rows_come_at_a_time():
    generator = torch.Generator().manual_seed(2)
    p, q = (torch.randn(2 * TABLE_ROWS + 100, 5, generator=generator) for _ in "pq")
    found = measure(p, q, ("logits", "logits"), None)
    answers: list[str] = []
    for rows in (1000, 33, len(p)):
        collector = Collector(len(p), None, None, Run(worst=0, bootstrap=0))
        for table in found.table.split(rows):
            collector.add(table, [])
        side = compare_two_predictions.open_source(p, "logits", None, "p")
        answers.append(report.json.dumps(collector.comparison(side, side, [])))
    assert answers == answers[:1] * 3


@pytest.mark.parametrize("how", ["shrinks", "grows", "goes", "is replaced"])
@pytest.mark.parametrize("write", WRITERS[:-1], ids=lambda each: each.__name__)
def test_a_file_that_changes_while_it_is_read_is_one_error_or_the_same_report(write, how, arrays, tmp_path):
    p, q = (write(tmp_path / name, arrays[name]) for name in ("p", "q"))
    whole, held = compared(p, q, bootstrap=0), p.read_bytes()

    def change(done: int, _total: int | None) -> None:
        if done != 2 * PART:
            return
        if how in ("goes", "is replaced"):
            p.unlink()
        if how == "shrinks":
            os.truncate(p, len(held) // 3)
        elif how != "goes":
            with p.open("ab") as file:
                file.write(held[len(held) // 2 :] if how == "grows" else b"hello")

    try:
        assert compared(p, q, bootstrap=0, progress=change) == whole
    except FileError as error:
        text = str(error)
        assert "\n" not in text
        assert "got ;" not in text


# ---- what a state is of


def test_a_state_of_other_inputs_or_options_is_refused(arrays, tmp_path, monkeypatch):
    p, q = (write_npy(tmp_path / name, arrays[name]) for name in ("p", "q"))
    state = tmp_path / "state"
    held = stopped(p, q, state, labels=arrays["labels"])
    stamp = q.stat()
    other = tmp_path / "other.npy"
    np.save(other, arrays["q"] + 1)
    of_others: list[dict[str, Any]] = [
        {"q": other},
        {"p": q, "q": p},
        {"worst": 3},
        {"labels": None},
        {"labels": arrays["labels"][::-1].copy()},
        {"representation": "log-probs"},
    ]
    for changes in of_others:
        with pytest.raises(
            FileError, match=r"resume = .*wanted the state of .* of another comparison; repeat the command"
        ):
            compared(**{"p": p, "q": q, "labels": arrays["labels"], "resume": state, **changes})
        assert state.read_bytes() == held
    with q.open("r+b") as file:  # the same size and time of change, another beginning
        file.seek(200)
        file.write(b"\0\0")
    os.utime(q, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with refused(FileError, got="of another"):
        compared(p, q, labels=arrays["labels"], resume=state)
    np.save(q, arrays["q"])
    os.utime(q, (1, 1))
    with refused(FileError, got="of another"):
        compared(p, q, labels=arrays["labels"], resume=state)
    os.utime(q, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "own_version", lambda: "0.0.1")
        with refused(FileError, wanted="by the same version"):
            compared(p, q, labels=arrays["labels"], resume=state)
    # The command that began it, and what rows do not depend on.
    options = {"labels": arrays["labels"], "bootstrap": 20, "cluster": arrays["cluster"], "llama_cpp": True}
    assert compared(p, q, resume=state, **options) == compared(p, q, **options)


def test_a_tensor_is_known_by_its_content(arrays, tmp_path):
    state = tmp_path / "state"
    p, q = torch.from_numpy(arrays["p"]), torch.from_numpy(arrays["q"]).bfloat16()
    stopped(p, q, state)
    changed = q.clone()
    changed[ROWS - 1, 0] += 1
    with refused(FileError, got="of another"):
        compared(p, changed, resume=state)
    assert compared(Logits(p), q.clone(), representation=(None, "logits"), resume=state) == compared(p, q)


@pytest.mark.parametrize(
    "content", [b"my notes\n", b"\x93NUMPY", b"{}\n", b"[" * 100_000, b'{"schema": 1}\n']
)
def test_another_file_is_left_alone(content, arrays, tmp_path):
    state = tmp_path / "notes.txt"
    state.write_bytes(content)
    with refused(FileError, wanted="that an earlier run wrote"):
        compared(arrays["p"], arrays["q"], resume=state)
    assert state.read_bytes() == content


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_database_of_another_program_is_left_alone(journal, arrays, tmp_path):
    state = tmp_path / "their.db"
    with closing(sqlite3.connect(state)) as database, database:
        database.execute(f"PRAGMA journal_mode = {journal}")
        database.execute("CREATE TABLE record (number, digest, content)")
    before = state.read_bytes()
    with refused(FileError, wanted="that an earlier run wrote"):
        compared(arrays["p"], arrays["q"], resume=state)
    assert [path.name for path in tmp_path.iterdir()] == ["their.db"]
    assert state.read_bytes() == before


def test_a_path_that_cannot_be_a_state_is_refused(arrays, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, said in (
        (tmp_path, "cannot write"),
        (tmp_path / "missing" / "state", "cannot write"),
        (pipe, "a pipe or a device"),
        (Path("/dev/full"), "a pipe or a device"),
        (Path("a\0b"), "cannot write"),
        (tmp_path / ("x" * 300), "cannot write"),
    ):
        with pytest.raises(FileError, match=said):
            compared(arrays["p"], arrays["q"], resume=path)


def test_a_file_in_use_is_refused(arrays, tmp_path):
    state = tmp_path / "state"
    held = Checkpoint(state, fingerprint(a=1))
    with refused(FileError, got="another run is writing"):
        compared(arrays["p"], arrays["q"], resume=state)
    held.close(remove=True)
    compared(arrays["p"], arrays["q"], resume=state)


def test_a_link_leads_to_the_state_and_stays(arrays, tmp_path):
    state, link = tmp_path / "state", tmp_path / "link"
    link.symlink_to(state)
    stopped(arrays["p"], arrays["q"], link)
    assert state.stat().st_size
    compared(arrays["p"], arrays["q"], resume=link)
    assert not state.exists()


# ---- torn and damaged states


def test_a_state_that_ends_anywhere_is_refused_or_goes_on_to_the_same_report(arrays, tmp_path):
    p, q, state = arrays["p"][:300], arrays["q"][:300], tmp_path / "state"
    whole = compared(p, q, bootstrap=0)
    content = stopped(p, q, state, 200, bootstrap=0)
    rng = fuzz.random.Random(3)
    for size in (0, 1, 99, 100, 4095, 4096, 4097, len(content) - 1, *rng.choices(range(len(content)), k=10)):
        state.write_bytes(content[:size])
        try:
            assert compared(p, q, bootstrap=0, resume=state) == whole, size
            assert not state.exists()
        except FileError:
            assert state.read_bytes() == content[:size]
    state.write_bytes(b"")
    assert compared(p, q, bootstrap=0, resume=state) == whole


def test_a_power_failure_at_any_change_of_the_disk_goes_on_to_the_same_report(arrays, tmp_path):
    """Copies of the file and its journal, taken while a record is written, are what a killed run leaves."""
    p, q = arrays["p"][:300], arrays["q"][:300]
    whole = compared(p, q, bootstrap=0)
    state, journal = tmp_path / "state", tmp_path / "state-journal"
    stopped(p, q, state, 200, bootstrap=0)
    identity, records = fuzz_states.records_of(state)
    fuzz_states.forge(state, identity, records[:-1])
    images: set[tuple[bytes, bytes]] = set()

    def image(*_: object) -> None:
        images.add((state.read_bytes(), journal.read_bytes() if journal.exists() else b""))

    torn = Checkpoint(state, identity)
    assert list(torn.records()) == records[:-1]
    database = torn._database
    database.execute("PRAGMA cache_size = 1")
    database.execute("PRAGMA cache_spill = 1")
    database.set_progress_handler(image, 1)
    torn.add([{**records[-1][0], "padding": "x" * 100_000}])
    torn.close(remove=False)
    changed = [each for each in images if each[1]]
    assert len({each[0] for each in changed}) > 1  # pages of an unfinished record are among these
    for content, log in changed:
        state.write_bytes(content)
        journal.write_bytes(log)
        assert compared(p, q, bootstrap=0, resume=state) == whole
        assert not journal.exists()


def test_a_damaged_state_is_refused_or_changes_nothing(arrays, tmp_path):
    p, q, state = arrays["p"][:300], arrays["q"][:300], tmp_path / "state"
    whole = compared(p, q, bootstrap=0)
    held = stopped(p, q, state, 200, bootstrap=0)
    refused = 0
    for seed in range(60):
        damaged = fuzz.damage(held, fuzz.random.Random(seed))
        state.write_bytes(damaged)
        try:
            assert compared(p, q, bootstrap=0, resume=state) == whole, seed
        except FileError:
            assert state.read_bytes() == damaged
            refused += 1
    assert 20 < refused < 60


CHANGES = {
    "the first is missing": "DELETE FROM record WHERE number = 0",
    "two have each other's place": "UPDATE record SET number = 1 - number + 10 WHERE number < 2;"
    "UPDATE record SET number = number - 10 WHERE number > 9",
    "one is there twice": "INSERT INTO record SELECT 9, digest, content FROM record WHERE number = 0",
    "a digit is another": "UPDATE record SET content = CAST(replace(content, '[', '[1') AS BLOB) WHERE number = 1",
    "a digest is text": "UPDATE record SET digest = 'a' WHERE number = 1",
    "a record is a number": "UPDATE record SET content = 7 WHERE number = 1",
    "a record is missing": "UPDATE record SET content = NULL WHERE number = 1",
    "no comparison": "DELETE FROM comparison",
    "two comparisons": "INSERT INTO comparison SELECT * FROM comparison",
    "no table": "DROP TABLE record",
    "no table of comparisons": "DROP TABLE comparison",
    "other columns": "ALTER TABLE record RENAME COLUMN digest TO sum",
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_state_is_refused(how, arrays, tmp_path):
    state = tmp_path / "state"
    stopped(arrays["p"], arrays["q"], state)
    with closing(sqlite3.connect(state)) as database, database:
        database.executescript(CHANGES[how])
    before = state.read_bytes()
    with pytest.raises(FileError, match=r"resume = .*(a damaged one|of another comparison); "):
        compared(arrays["p"], arrays["q"], resume=state)
    assert state.read_bytes() == before


# ---- the command: killed, interrupted, without room


ENDED = """
import os, random, signal, sys, time
from kullback.predictions import compare_two_predictions as compare
measure, calls = compare.measure, 0
signal.signal(signal.SIGINT, signal.default_int_handler)  # the background jobs of a shell ignore it
how, at = sys.argv.pop(1), int(sys.argv.pop(1))
def counted(*given, **settings):
    global calls
    calls += 1
    if calls == at:
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(60 if how == "SIGKILL" else 0)
    return measure(*given, **settings)
compare.measure = counted
from kullback.cli import main
main()
"""
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
from kullback.cli import main
main()
"""


@pytest.fixture
def command(arrays, tmp_path, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    for name in ("p", "q", "labels"):
        np.save(f"{name}.npy", arrays[name])
    options = ["--as", "logits", "--labels", "labels.npy", "--bootstrap", "50", "--block-mb", "0.1"]
    return ["compare", "p.npy", "q.npy", *options, "--resume", "state"]


def reports(name: str) -> list[str]:
    return ["--json", f"{name}.json", "--html", f"{name}.html"]


def ran(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        python(program, *arguments),
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


def assert_goes_on(command: list[str]) -> None:
    """The next run gives the report of a run without `--resume`, and leaves no state."""
    result = CliRunner().invoke(kullback, [*command, *reports("again")])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(kullback, [*command[:-2], *reports("whole")])
    assert result.exit_code == 0, result.output
    for kind in ("json", "html"):
        assert Path(f"again.{kind}").read_bytes() == Path(f"whole.{kind}").read_bytes()
    left = {path.name for path in Path().iterdir()}
    assert left == {"p.npy", "q.npy", "labels.npy", *reports("again")[1::2], *reports("whole")[1::2]}


@pytest.mark.heavy
@pytest.mark.parametrize("ending", ["SIGKILL", "SIGINT"])
def test_a_killed_command_goes_on(ending, command):
    at = fuzz.random.Random(f"{ending}").randrange(2, 8)
    done = ran(ENDED, ending, str(at), *command, *reports("again"))
    assert done.returncode == (-signal.SIGKILL if ending == "SIGKILL" else 130), done.stderr
    assert done.stderr == ""
    assert not Path("again.json").exists()
    _, records = fuzz_states.records_of(Path("state"))
    assert len(records) in (at - 2, at - 1)  # the signal may come in the next block
    assert_goes_on(command)


@pytest.mark.sweep
def test_a_disk_without_room_is_one_line_and_the_run_goes_on(command):
    whole = ran(MAIN, *command, "--json", "x.json")
    assert whole.returncode == 0, whole.stderr
    Path("x.json").unlink()
    done = ran(LIMITED, "100000", *command, *reports("again"))
    assert done.returncode == 2
    assert done.stderr.startswith("kullback: cannot write state: disk I/O error; ")
    assert done.stderr.count("\n") == 1
    assert 0 < Path("state").stat().st_size <= 100_000
    assert_goes_on(command)


@pytest.mark.sweep
def test_the_state_stays_until_the_reports_are_written(command, monkeypatch):
    def full(*_: object) -> None:
        raise FileError("cannot write again.json: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("kullback.cli.outputs.write_all", full)
        result = CliRunner().invoke(kullback, [*command, *reports("again")])
    assert result.exit_code == 2
    with monkeypatch.context() as patch:  # no row is measured again
        patch.setattr(compare_two_predictions, "measure", None)
        result = CliRunner().invoke(kullback, [*command, *reports("again")])
    assert result.exit_code == 0, result.output
    assert not Path("state").exists()
    assert_goes_on(command)


@pytest.mark.parametrize("name", ["p.npy", "labels.npy", "again.json", "link"])
def test_a_state_that_is_another_file_is_refused(name, command):
    os.link("q.npy", "link")
    before = Path("q.npy").read_bytes()
    result = CliRunner().invoke(kullback, [*command[:-1], name, *reports("again")])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"kullback: cannot write {name}: it is one of the other files")
    assert result.stderr.count("\n") == 1
    assert Path("q.npy").read_bytes() == before
    assert not Path("again.json").exists()


@pytest.mark.parametrize("name", ["/dev/full", "/dev/stdin", "missing/state", "."])
def test_a_state_that_cannot_be_written_is_refused_before_the_work(name, command, monkeypatch):
    monkeypatch.setattr(compare_two_predictions, "measure", None)
    result = CliRunner().invoke(kullback, [*command[:-1], name, *reports("again")])
    assert result.exit_code == 2
    assert name in result.stderr
    assert result.stderr.count("\n") == 1


def test_tables_have_no_state(command):
    result = CliRunner().invoke(kullback, ["compare", "a.csv", "b.csv", "--as", "table", "--resume", "state"])
    assert result.exit_code == 2
    assert "--resume is for comparing predictions and models; leave it out" in result.stderr


@pytest.mark.parametrize("given", [3, b"state", ["state"], True])
def test_a_state_is_a_path(given, arrays):
    from kullback.models import Run

    said = r"\(resume=...\): wanted the path of a file, or None; got "
    with pytest.raises(ArgumentTypeError, match=f"compare_predictions{said}"):
        compare_predictions(Logits(arrays["p"]), Logits(arrays["q"]), resume=given)
    with pytest.raises(ArgumentTypeError, match=f"Run{said}"):
        Run(resume=given)


def test_an_empty_file_that_was_there_is_removed_too(arrays, tmp_path):
    state = tmp_path / "state"
    state.touch()
    compared(arrays["p"], arrays["q"], resume=state)
    assert not state.exists()
