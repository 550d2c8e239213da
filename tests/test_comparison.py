"""`compare` calls the function that the command line would call, and refuses arguments of two sorts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from click.testing import CliRunner

import kullback
from kullback import Logits, Probs, compare
from kullback.cli import model_comparison, prediction_comparison, table_comparison
from kullback.cli.commands import kullback as command
from kullback.comparison import subject_of
from kullback.errors import ArgumentTypeError, KullbackError
from kullback.io import open_rows
from tests.refusals import refused

LOGITS = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
TABLE = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0] * 10, "kind": ["a", "b"] * 20})


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The functions that `compare` calls, instead of these functions."""
    made: list[tuple[str, Any]] = []
    for subject in ("predictions", "tables", "models"):
        module = import_module(f"kullback.{subject}")
        original = getattr(module, f"compare_{subject}")

        def record(*sides: Any, subject: str = subject, **options: Any) -> None:
            made.append((subject, options))

        record.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        monkeypatch.setattr(module, f"compare_{subject}", record)
    return made


def files(folder: Path) -> dict[str, Path]:
    paths = {
        name: folder / name
        for name in ("a.npy", "b.npy", "a.parquet", "b.parquet", "ids.parquet", "q4.gguf", "a.csv")
    }
    np.save(paths["a.npy"], LOGITS.numpy())
    np.save(paths["b.npy"], LOGITS.numpy() + 1)
    for name in ("a.parquet", "b.parquet"):
        TABLE.to_parquet(paths[name])
    pyarrow.parquet.write_table(pa.table({"0": [1, 2], "1": [3, 4]}), paths["ids.parquet"])
    paths["q4.gguf"].write_bytes(b"GGUF")
    paths["a.csv"].write_text("0,1\n0.5,0.5\n")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    return paths | {"model": folder / "model"}


BY_PATH = [
    (("a.npy", "b.npy"), {"representation": "logits"}, "predictions"),
    (("a.npy", "b.npy"), {}, "predictions"),
    (("a.csv", "a.csv"), {"representation": "probs"}, "predictions"),
    (("a.parquet", "b.parquet"), {}, "tables"),
    (("a.parquet", "b.parquet"), {"cluster": "kind"}, "tables"),
    (("a.parquet", "b.parquet"), {"worst": 3}, "predictions"),
    (("a.parquet", "b.parquet"), {"representation": "probs"}, "predictions"),
    (("ids.parquet", "ids.parquet"), {}, "predictions"),
    (("model", "q4.gguf"), {}, "models"),
    (("a.npy", "q4.gguf"), {}, "models"),
    (("a.parquet", "b.parquet"), {"texts": "some text"}, "models"),
]


@pytest.mark.parametrize(("names", "options", "subject"), BY_PATH)
def test_files_decide_as_on_the_command_line(
    names: tuple[str, str],
    options: dict[str, Any],
    subject: str,
    tmp_path: Path,
    calls: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = files(tmp_path)
    sides = [paths[name] for name in names]
    for a, b in (sides, map(str, sides)):
        compare(a, b, **options)
        assert calls.pop() == (subject, options)
    # The command line: each comparison is replaced by a function that takes down its name.
    taken: list[str] = []
    for module, name, kind in (
        (table_comparison, "run_table_comparison", "tables"),
        (model_comparison, "run_model_comparison", "models"),
        (prediction_comparison, "run_prediction_comparison", "predictions"),
    ):
        monkeypatch.setattr(module, name, lambda *_, kind=kind, **__: taken.append(kind) or [])
    flags = {"representation": "--as", "cluster": "--cluster", "worst": "--worst", "texts": "--text"}
    arguments = [part for name, value in options.items() for part in (flags[name], str(value))]
    CliRunner().invoke(command, ["compare", *map(str, sides), *arguments], catch_exceptions=False)
    assert taken == [subject]


@pytest.mark.parametrize(
    ("a", "b", "subject"),
    [
        (Logits(LOGITS), Logits(LOGITS), "predictions"),
        (LOGITS, LOGITS.numpy(), "predictions"),
        (Probs([[0.5, 0.5]]), "q.npy", "predictions"),
        (TABLE, TABLE, "tables"),
        (TABLE, "after.csv", "tables"),
        (pl.DataFrame(TABLE), pl.DataFrame(TABLE).lazy(), "tables"),
        (pa.table({"x": [1]}), pa.table({"x": [1]}), "tables"),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), "models"),
        ("base.gguf", ["q8.gguf", "q4.gguf"], "models"),
        ("base.gguf", {"mine": torch.nn.Linear(2, 2)}, "models"),
        ("base.klref", "http://localhost:8000", "models"),
    ],
)
def test_objects_decide(a: Any, b: Any, subject: str, calls: Any) -> None:
    compare(a, b)
    assert [name for name, _ in calls] == [subject]
    assert subject_of((a, b)) == subject


def test_an_open_file_of_rows_is_predictions_or_the_side_of_a_model(tmp_path: Path, calls: Any) -> None:
    with open_rows(files(tmp_path)["a.npy"], representation="logits") as source:
        for other, subject in ((Logits(LOGITS), "predictions"), ("q4.gguf", "models")):
            compare(source, other)
            assert calls.pop()[0] == subject


def test_results_are_those_of_the_functions() -> None:
    p, q = Logits(LOGITS), Logits(LOGITS.flip(0))
    ours, direct = compare(p, q, worst=2), kullback.compare_predictions(p, q, worst=2)
    assert ours.divergences["kl_pq"].mean == direct.divergences["kl_pq"].mean  # type: ignore[union-attr]
    assert [c.name for c in compare(TABLE, TABLE, columns=["size"]).columns] == ["size"]  # type: ignore[union-attr]


THREE = r"compare_predictions\(a, b\), compare_tables\(a, b\) or compare_models\(a, b, texts\)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compare(TABLE, Logits(LOGITS)), rf"got tables and predictions. Write: {THREE}"),
        (lambda: compare(TABLE, torch.nn.Linear(2, 2)), rf"got tables and models. Write: {THREE}"),
        (lambda: compare(TABLE, "q4.gguf"), rf"got tables and models. Write: {THREE}"),
        (lambda: compare(Logits(LOGITS), 5), rf"got predictions and int 5. Write: {THREE}"),
        (lambda: compare(None, None), rf"^compare\(a=\.\.\., b=\.\.\.\): .*Write: {THREE}"),
        (
            lambda: compare(TABLE, TABLE, labels=[1]),
            r"compare\(labels=.*wanted options of compare_tables.*Write: compare_predictions\(a, b, labels=",
        ),
        (
            lambda: compare(Logits(LOGITS), Logits(LOGITS), weights="x"),
            r"compare\(weights=.*wanted options of compare_predictions.*Write: compare_tables\(a, b, weights=",
        ),
        (
            lambda: compare(TABLE, TABLE, buckets=3),
            r"compare\(buckets=.*one of columns, exclude, weights, cluster.*bins",
        ),
        (
            lambda: compare(TABLE, TABLE, bin=3),
            r"compare\(bin=.*Write: bins= instead of bin=",
        ),
    ],
)
def test_refusals(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        call()


def test_errors_of_the_function_are_its_own() -> None:
    with refused(KullbackError, call="compare_tables", argument="columns"):
        compare(TABLE, TABLE, columns=3)
