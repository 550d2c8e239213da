"""Several processes that share the rows of predictions: the same report to the last byte, and one error for all."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from kullback import compare_predictions, report
from kullback.cli.commands import kullback
from kullback.parallel.workers import Workers, worker_count
from tests import fuzz_states
from tests.forked import python
from tests.parallel.world import SIZES, Rank

ROWS, CLASSES = 700, 257  # 127 rows in a part: six blocks of one part each
SECONDS = 120


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    p = random.normal(size=(ROWS, CLASSES)).astype("float32")
    return {
        "p": p,
        "q": p + random.normal(scale=0.3, size=p.shape).astype("float32"),
        "labels": random.integers(CLASSES, size=ROWS),
        "clusters": np.arange(ROWS) // 10,
        "groups": random.integers(3, size=ROWS),
    }


def compared(place: Rank, given: dict[str, np.ndarray], **options: Any) -> str:
    found = compare_predictions(
        given["p"],
        given["q"],
        representation="logits",
        labels=given["labels"],
        cluster=given["clusters"],
        groups=given["groups"],
        bootstrap=50,
        block_bytes=1,
        group=place.group if place.size > 1 else None,
        **options,
    )
    return report.json.dumps(found)


class _StopError(Exception):
    pass


def resumed(place: Rank) -> list[str]:
    """A comparison that was stopped by all, then goes on; the first goes on from what one process began."""
    folder = Path(os.environ["KULLBACK_TEST_FOLDER"]) / f"resumed {place.size}"
    folder.mkdir(exist_ok=True)
    given = arrays()

    def stop(done: int, _total: int | None) -> None:
        if done >= 300:
            raise _StopError

    def begin(place: Rank, state: Path) -> None:
        with pytest.raises(_StopError):
            compared(place, given, resume=state, progress=stop)

    state = folder / "of several"
    begin(place, state)
    found = [compared(place, given, resume=state)]
    state = folder / "of one"
    if place.rank == 0:
        begin(Rank(0, 1, None), state)
        assert state.stat().st_size
    found.append(compared(place, given, resume=state))
    if place.rank == 0:
        assert list(folder.iterdir()) == []
    return found


def damaged_on_the_first(place: Rank) -> str:
    state = Path(os.environ["KULLBACK_TEST_FOLDER"]) / f"damaged {place.size}"
    if place.rank == 0:
        state.write_text("my notes")
    try:
        return compared(place, arrays(), resume=state)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return f"{type(error).__name__}: {error}"


def from_text(place: Rank) -> str:
    """Files of which no worker knows the number of rows before it has read them."""
    folder = Path(os.environ["KULLBACK_TEST_FOLDER"]) / f"{place.size}.{place.rank}"
    folder.mkdir()
    given = arrays()
    paths = [folder / f"{name}.csv" for name in ("p", "q")]
    for name, path in zip(("p", "q"), paths, strict=True):
        np.savetxt(path, given[name][:300], delimiter=",", fmt="%.9g")
    group = place.group if place.size > 1 else None
    found = compare_predictions(*paths, representation="logits", bootstrap=0, block_bytes=1, group=group)
    # Each worker has a folder of its own.
    return report.json.dumps(found).replace(str(folder), "")


def error_of(place: Rank, **changes: Any) -> str:
    try:
        return compared(place, arrays() | changes)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return f"{type(error).__name__}: {error}"


def bad_rows(place: Rank) -> str:
    """Rows of two blocks are no distributions: all report the first."""
    p = arrays()["p"]
    p[650], p[300] = np.nan, np.nan
    return error_of(place, p=p)


def missing_on_the_last(place: Rank) -> str:
    return error_of(place, **({"p": "nowhere.npy"} if place.rank == place.size - 1 else {}))


def other_file_on_the_last(place: Rank) -> str:
    if place.rank < place.size - 1:
        return error_of(place)
    return error_of(place, **{name: x[:600] for name, x in arrays().items()})


def together(place: Rank) -> list[Any]:
    """What `Workers` gives, and raises where the middle worker fails by no error of kullback's."""
    workers = Workers("call", place.group)
    found: list[Any] = [workers.gather(lambda: place.rank), workers.each(lambda: place.rank)]
    try:
        workers.each(lambda: 1 // (place.rank - place.size // 2))
    except Exception as error:  # noqa: BLE001 - the test looks at it
        found.append(f"{type(error).__name__}: {error}")
    return found


CASES: dict[str, Any] = {
    "predictions": lambda place: compared(place, arrays()),
    "predictions, llama.cpp": lambda place: compared(place, arrays(), llama_cpp=True),
    "predictions of text": from_text,
    "predictions, resumed": resumed,
    "predictions, damaged state": damaged_on_the_first,
    "predictions, bad rows": bad_rows,
    "predictions, missing": missing_on_the_last,
    "predictions, other file": other_file_on_the_last,
    "workers": together,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["predictions", "predictions, llama.cpp", "predictions of text"])
def test_reports_are_the_same_to_the_last_byte(results, name, size):
    (one,) = results[name, 1]
    assert '"rows":' in one
    assert results[name, size] == [one] * size


@pytest.mark.heavy
@pytest.mark.parametrize("size", SIZES)
def test_what_was_stopped_goes_on_with_any_number_of_workers(results, size):
    (one,) = results["predictions", 1]
    assert results["predictions, resumed", size] == [[one, one]] * size


@pytest.mark.parametrize("size", SIZES)
def test_a_state_that_is_none_ends_all(results, size):
    found = results["predictions, damaged state", size]
    assert found == found[:1] * size
    assert "wanted a file that an earlier run wrote" in found[0]


@pytest.mark.parametrize("size", SIZES)
def test_a_bad_row_is_reported_everywhere_as_by_one_process(results, size):
    (one,) = results["predictions, bad rows", 1]
    assert one.startswith("FileError")
    assert "300" in one
    assert results["predictions, bad rows", size] == [one] * size


@pytest.mark.parametrize("size", SIZES[1:])
def test_a_file_that_one_worker_lacks_ends_all(results, size):
    texts = results["predictions, missing", size]
    assert all(text == texts[0] for text in texts)
    assert texts[0].startswith("FileError")
    assert "nowhere.npy" in texts[0]


@pytest.mark.parametrize("size", SIZES[1:])
def test_files_of_other_shape_end_all(results, size):
    for text in results["predictions, other file", size]:
        assert "wanted the same files and settings on every worker" in text


@pytest.mark.parametrize("size", SIZES[1:])
def test_an_unexpected_error_of_one_worker_ends_all(results, size):
    for rank, (all_ranks, own, text) in enumerate(results["workers", size]):
        assert (all_ranks, own) == (list(range(size)), rank)
        failed = size // 2
        wanted = (
            "ZeroDivisionError" if rank == failed else f"KullbackError: worker {failed}: ZeroDivisionError"
        )
        assert text.startswith(wanted)


def test_one_process_alone_needs_no_group():
    workers = Workers("call")
    assert (workers.rank, workers.size, workers.gather(lambda: "a")) == (0, 1, ["a"])
    with pytest.raises(ZeroDivisionError):
        workers.each(lambda: 1 // 0)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    source = Path(sys.modules["kullback"].__file__ or "").parents[1]
    return {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", **more}


def write(folder: Path) -> list[str]:
    for name, x in arrays().items():
        np.save(folder / f"{name}.npy", x)
    options = ["--as", "logits", "--labels", "labels.npy", "--cluster", "clusters.npy", "--bootstrap", "50"]
    return ["compare", "p.npy", "q.npy", *options, "--block-mb", "0.1"]


@pytest.mark.heavy
def test_torchrun_shares_the_rows_and_one_worker_writes(tmp_path, monkeypatch):
    arguments = write(tmp_path)
    run = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        free_port(),
    ]
    done = subprocess.run(
        [*run, "-m", "kullback", *arguments, "--json", "two.json", "--fail-above", "mean=100"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("mean KL(P||Q)") == 1
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(kullback, [*arguments, "--json", "one.json", "--fail-above", "mean=100"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "two.json").read_bytes() == (tmp_path / "one.json").read_bytes()


KILLED = """
import os, signal, sys
from kullback.predictions import compare_two_predictions as compare
measure, left = compare.measure, int(os.environ.get("KULLBACK_TEST_CALLS", "0"))
def counted(*given, **settings):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(*given, **settings)
compare.measure = counted
from kullback.cli import main
main(may_have_workers=True)
"""


def run_workers(
    arguments: list[str],
    folders: list[Path],
    killed: int | None = None,
    **given: str,
) -> tuple[list[int], list[str]]:
    """Run a command with a worker in each folder; return their exit codes and what they wrote to standard error.

    Arguments:
        arguments: of the command.
        folders: where each worker runs.
        killed: which of them is killed, in the call after as many as KULLBACK_TEST_CALLS.
        given: further variables of their environment.
    """
    port = free_port()
    started: list[subprocess.Popen[str]] = []
    for rank, folder in enumerate(folders):
        place = {"RANK": str(rank), "WORLD_SIZE": str(len(folders)), "MASTER_PORT": port}
        program = (
            KILLED
            if rank == killed
            else "from runpy import run_module; run_module('kullback', None, '__main__')"
        )
        started.append(
            subprocess.Popen(
                python(program, *arguments),
                cwd=folder,
                env=environment(MASTER_ADDR="127.0.0.1", **place, **given),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        errors = [process.communicate(timeout=SECONDS)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    return [process.returncode for process in started], errors


@pytest.mark.parametrize("how", ["killed", "missing"])
def test_a_worker_that_fails_ends_all_in_one_line(tmp_path, how):
    arguments = [*write(tmp_path), "--json", "out.json"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folders = [tmp_path, elsewhere if how == "missing" else tmp_path]
    codes, errors = run_workers(arguments, folders, killed=1 if how == "killed" else None)
    lines = [[line for line in text.splitlines() if line.startswith("kullback: ")] for text in errors]
    assert codes[0] == 2, errors
    assert len(lines[0]) == 1
    assert not (tmp_path / "out.json").exists()
    if how == "killed":
        assert "wanted an answer from all 2 workers; worker 0 has none" in lines[0][0]
    else:
        assert codes[1] == 2
        assert lines[0] == lines[1]
        assert "p.npy" in lines[0][0]


@pytest.mark.heavy
@pytest.mark.parametrize("killed", [0, 1])
def test_what_a_killed_worker_ended_goes_on(killed, tmp_path, monkeypatch):
    """Each worker is killed in its third block; then all start again, one more of them."""
    arguments = [*write(tmp_path), "--resume", "state"]
    for size in (2, 3):
        codes, errors = run_workers(
            [*arguments, "--json", "again.json"],
            [tmp_path] * size,
            killed=killed if size == 2 else None,
            KULLBACK_TEST_CALLS="2",
        )
        if size == 2:
            assert codes[1 - killed] == 2, errors
            assert not (tmp_path / "again.json").exists()
            # Two rounds of two blocks were finished.
            assert len(fuzz_states.records_of(tmp_path / "state")[1]) == 4
        else:
            assert codes == [0] * size, errors
    assert not (tmp_path / "state").exists()
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(kullback, [*arguments[:-2], "--json", "whole.json"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "a.csv", "b.csv", "--as", "table"],
        ["compare", "a", "b", "--text", "c.txt"],
        ["record", "a", "--text", "c.txt", "-o", "a.klref"],
        ["watch", "a.csv"],
        ["convert", "a.npy", "a.kld", "--tokens", "t.npy", "--n-ctx", "4"],
    ],
)
def test_what_workers_do_not_share_is_refused(arguments, monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    assert worker_count() == 2
    result = CliRunner().invoke(kullback, arguments, obj=True)
    assert result.exit_code == 2
    assert "torchrun started 2 workers, which share the rows of predictions" in result.stderr
    assert result.stderr.count("\n") == 1
    as_script = CliRunner().invoke(kullback, arguments)  # which is never a worker
    assert "workers" not in as_script.output
    assert "no such file" in as_script.output.lower()
