"""Standard streams that are closed, full, or pipes that nobody reads: the exit status stays true."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.forked import MAIN, command

COMMAND = [sys.executable, "-c", MAIN]
WRONG = ("calc", "Norml(0, 1)", "Normal(1, 1)")
RIGHT = ("calc", "Normal(0, 1)", "Normal(1, 1)")
VERSION = ("--version",)
FULL = pytest.param("2>/dev/full", marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full"))


def redirected(arguments: tuple[str, ...], redirection: str) -> tuple[int, str, str]:
    # What loads no torch starts Python itself, with its streams as they are.
    line = [*COMMAND, *arguments] if arguments == VERSION else command(*arguments)
    done = subprocess.run(
        ["/bin/sh", "-c", f"{shlex.join(line)} {redirection}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def unread(arguments: tuple[str, ...]) -> tuple[int, bytes]:
    """Run with a standard error that nobody reads."""
    with subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stderr.close()
        said = running.stdout.read()
        return running.wait(), said


@pytest.fixture
def gated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A comparison of which a gate fails."""
    monkeypatch.chdir(tmp_path)
    p = np.random.default_rng(0).normal(size=(30, 4)).astype("float32")
    np.save("p.npy", p)
    np.save("q.npy", p[::-1])
    return "compare", "p.npy", "q.npy", "--as", "logits", "--fail-above", "mean=1e-9", "--json", "found.json"


@pytest.mark.sweep
@pytest.mark.parametrize("redirection", [FULL, "2>&-", ">&- 2>&-"])
def test_an_error_that_cannot_be_said_has_status_2(redirection: str) -> None:
    assert redirected(WRONG, redirection) == (2, "", "")


def test_an_error_that_nobody_reads_has_status_2() -> None:
    assert unread(WRONG) == (2, b"")


@pytest.mark.sweep
@pytest.mark.parametrize("redirection", [FULL, "2>&-", ">&- 2>&-"])
def test_a_gate_that_cannot_be_said_has_status_1(gated: tuple[str, ...], redirection: str) -> None:
    code, said, error = redirected(gated, redirection)
    assert (code, error) == (1, "")
    assert "gate failed" not in said
    assert Path("found.json").stat().st_size > 1000


def test_a_gate_that_nobody_reads_has_status_1(gated: tuple[str, ...]) -> None:
    assert unread(gated)[0] == 1


@pytest.mark.sweep
@pytest.mark.parametrize("arguments", [RIGHT, VERSION, ("pairs", "Normal")])
@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-"])
def test_a_run_with_closed_streams_succeeds(arguments: tuple[str, ...], redirection: str) -> None:
    code, said, error = redirected(arguments, redirection)
    assert (code, error) == (0, "")
    assert bool(said) == (redirection == "2>&-")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full")
def test_output_for_which_there_is_no_room_is_one_line() -> None:
    code, _, error = redirected(RIGHT, ">/dev/full")
    assert (code, error.count("\n")) == (2, 1)
    assert "No space left" in error
