"""``kullback compare --format llama.cpp``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from kullback.io import write_llama_base
from kullback.predictions import compare_predictions
from kullback.report import llama_cpp
from tests.cli.calling import one_line, run, run_line


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A base file, base.kld, and Q's logits at its scored positions, q.npy, in the current directory."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    p = random.normal(size=(4 * 31, 30)).astype("float32") * 3
    write_llama_base("base.kld", torch.arange(4 * 64) % 30, torch.from_numpy(p), n_ctx=64)
    np.save("q.npy", p + 0.2 * random.normal(size=p.shape).astype("float32"))


def test_the_lines_are_printed_and_nothing_else(base):
    result = run_line("compare base.kld q.npy --as-q logits --format llama.cpp --json x.json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = compare_predictions("base.kld", "q.npy", representation=(None, "logits"), llama_cpp=True)
    assert result.stdout == llama_cpp.render(found)
    lines = result.stdout.splitlines()
    assert lines[0].startswith("chunk ")
    assert len([line for line in lines if re.match(r" +\d+    ", line)]) == 4
    total = json.loads(Path("x.json").read_text())["llama_cpp"]["total"]
    assert f"Mean    KLD: {total['kld'][0]:10.6f} ± {total['kld'][1]:10.6f}" in lines


def test_the_parsers_of_others_read_the_lines(base):
    text = run_line("compare base.kld q.npy --as-q logits --format llama.cpp").stdout
    number = r"(-?\d+\.\d+)"
    for pattern in (
        rf"Mean PPL\(Q\)\s+:\s+{number} ±\s+{number}",
        rf"Cor\(ln\(PPL\(Q\)\), ln\(PPL\(base\)\)\):\s+{number}%",
        rf"99\.9%\s+KLD:\s+{number}",
        rf"Same top p:\s+{number} ±\s+{number} %",
        rf"RMS Δp\s+:\s+{number} ±\s+{number} %",
    ):
        assert re.search(pattern, text), pattern


def test_few_rows_have_chunks_alone_and_it_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    p = torch.randn(7, 9, generator=torch.Generator().manual_seed(0))
    write_llama_base("base.kld", torch.arange(16) % 9, p[:7], n_ctx=16)
    np.save("q.npy", p.numpy())
    result = run_line("compare base.kld q.npy --as-q logits --format llama.cpp")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 3
    assert "no statistics of fewer than 100 rows" in result.stderr


def test_gates_still_hold(base):
    options = ["--as-q", "logits", "--format", "llama.cpp", "--fail-above", "ppl_ratio=0.1"]
    result = run("compare", "base.kld", "q.npy", *options)
    assert result.exit_code == 1
    assert "ppl_ratio" in result.stderr


def test_what_does_not_go_together_is_refused(base):
    compare = ("compare", "q.npy", "q.npy", "--as", "logits", "--format", "llama.cpp")
    one_line(run(*compare), "--labels FILE")
    one_line(run(*compare, "--json"), "--json FILE")
    Path("t.csv").write_text("a\n1\n")
    table = ("compare", "t.csv", "t.csv", "--as", "table")
    one_line(run(*table, "--format", "llama.cpp"), "--format is for comparing predictions")
    # The remedies.
    np.save("labels.npy", np.arange(4 * 31) % 30)
    assert run(*compare, "--labels", "labels.npy").exit_code == 0
    assert run(*compare, "--labels", "labels.npy", "--json", "x.json").exit_code == 0
