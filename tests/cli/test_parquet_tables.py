"""Two Parquet files are tables without `--as table`, unless they can be predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from kullback.cli.commands import kullback


def compared(folder: Path, columns: dict[str, Any], *options: str) -> Result:
    random = np.random.default_rng(0)
    names = [str(folder / name) for name in ("p.parquet", "q.parquet")]
    for name in names:
        order = random.permutation(len(next(iter(columns.values()))))
        parquet.write_table(pa.table(columns).take(order), name)
    return CliRunner().invoke(kullback, ["compare", *names, *options])


NUMBERS = np.random.default_rng(1).normal(size=200)
WORDS = ["a", "b"] * 100
COUNTS = np.random.default_rng(2).integers(1, 9, 200)
LISTS = [[0.25, 0.75]] * 200


@pytest.mark.sweep
@pytest.mark.parametrize("columns", [{"x": NUMBERS}, {"x": WORDS}, {"x": COUNTS, "y": WORDS}])
def test_tables_need_no_as(tmp_path: Path, columns: dict[str, Any]) -> None:
    found = compared(tmp_path, columns)
    assert found.exit_code == 0, found.output
    assert "PSI" in found.output
    assert "The largest PSI first; in nats" in compared(tmp_path, columns, "--full").output
    assert compared(tmp_path, columns, "--as", "table").output == found.output


@pytest.mark.parametrize("columns", [{"0": COUNTS, "1": COUNTS}, {"probs": LISTS}])
def test_what_can_be_predictions_is_no_table(tmp_path: Path, columns: dict[str, Any]) -> None:
    assert "PSI" not in compared(tmp_path, columns).output


def test_options_of_predictions_and_other_files_are_not_taken_for_tables(tmp_path: Path) -> None:
    wide = {"0": np.abs(NUMBERS), "1": np.abs(NUMBERS[::-1])}
    assert "mean" in compared(tmp_path, wide, "--as", "counts").output
    assert "PSI" not in compared(tmp_path, wide, "--worst", "3").output
    (tmp_path / "q.parquet").write_bytes(b"PAR1 damaged")
    broken = CliRunner().invoke(
        kullback, ["compare", str(tmp_path / "p.parquet"), str(tmp_path / "q.parquet")]
    )
    assert broken.exit_code == 2
