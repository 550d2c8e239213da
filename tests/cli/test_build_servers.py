"""Names of columns, categories and files are no commands to GitHub Actions, whose logs are what the command prints."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

import kullback
from kullback.cli.streams import CheckedStream
from kullback.common.display import without_commands
from tests.forked import command

COMMAND = re.compile(r"^\s*::|##\[|##vso\[", re.MULTILINE)  # what the runners look for
NAMES = ["::error::boom", "  ::add-mask::x", "##vso[task.complete]y", "z ##[error]"]


def table(shift: int) -> pa.Table:
    random = np.random.default_rng(shift)
    columns: dict[str, object] = {name: random.integers(0, 5, 300) + shift for name in NAMES[:2]}
    columns |= {name: [NAMES[i] for i in random.integers(shift, 3 + shift, 300)] for name in NAMES[2:]}
    return pa.table(columns)


def printed(*arguments: str, folder: Path, width: int = 80) -> str:
    done = subprocess.run(
        command(*arguments),
        cwd=folder,
        env={**os.environ, "COLUMNS": str(width)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.mark.sweep
@pytest.mark.parametrize("width", [200, 80, 30])
def test_the_command_line_prints_no_commands(tmp_path: Path, width: int) -> None:
    files = ["::error::a.csv", "::notice::b.csv"]
    for shift, name in enumerate(files):
        csv.write_csv(table(shift), tmp_path / name)
    text = printed("compare", *files, "--as", "table", folder=tmp_path, width=width)
    assert "boom" in text or width < 80
    assert not COMMAND.search(text)
    profile = printed("watch", "::debug::p.json", files[0], folder=tmp_path, width=width)
    assert not COMMAND.search(profile)
    missing = printed("compare", files[0], "::error::none.csv", "--as", "table", folder=tmp_path, width=width)
    assert "none.csv" in missing
    assert not COMMAND.search(missing)


def test_a_printed_result_holds_no_commands() -> None:
    text = str(kullback.compare_tables(table(0), table(1)))
    assert "boom" in text
    assert not COMMAND.search(text)


def test_pieces_of_a_line_are_seen_together() -> None:
    import io

    sink = io.StringIO()
    stream = CheckedStream(sink)
    for piece in ("a", "::b\n", "  ", "::c\n", ":", ":d\n::e"):
        stream.write(piece)
    assert not COMMAND.search(sink.getvalue())
    assert sink.getvalue().startswith("a::b\n")
    with pytest.raises(TypeError):
        stream.write(b"bytes")  # type: ignore[arg-type]


def test_what_is_no_command_stays() -> None:
    for text in ("a::b", "x ## [y]", "# ::c", "std::vector\nfoo"):
        assert without_commands(text) == text
