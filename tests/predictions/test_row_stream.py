"""A `RowStream` of one's own, in at most 60 lines, gets gates, the page, JSON, and continues after a kill."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from kullback import Logits, compare, compare_predictions
from kullback.cli.gates import parse_gate
from kullback.errors import ArgumentValueError, FileError
from kullback.io import RowStream
from kullback.models import Loading, Run, compare_models, record_reference
from kullback.report import document, html, markdown
from tests.refusals import refused

# A folder of hidden states, a head and the tokens that they predict.
STREAM = '''
import hashlib
from pathlib import Path

import numpy as np
import torch

from kullback.io import RowStream, Windows


class HiddenStates(RowStream):
    """The logits of hidden states: their products with the rows of a head."""

    dtype = torch.float64

    def __init__(self, folder):
        self.name, self._folder = str(folder), Path(folder)
        self._hidden = np.load(self._folder / "hidden.npy", mmap_mode="r")
        self._head = torch.from_numpy(np.load(self._folder / "head.npy"))
        tokens = torch.from_numpy(np.load(self._folder / "tokens.npy"))
        self.rows, self.classes = len(self._hidden), len(self._head)
        scored = torch.arange(len(tokens)) % 21 > 0
        self.windows = Windows(tokens, torch.arange(0, len(tokens) + 1, 21), scored)

    def blocks(self, *, rows, first=0):
        for start in range(first, self.rows, rows):
            hidden = torch.from_numpy(self._hidden[start : start + rows].copy())
            yield (hidden[:, None] * self._head).sum(-1)

    def identity(self):
        files = sorted(self._folder.glob("*.npy"))
        return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
'''
KILLED = """
import os, signal, sys
from pathlib import Path
from kullback import compare_predictions
from streams import HiddenStates

def progress(done, total):
    if done >= 600:
        os.kill(os.getpid(), signal.SIGKILL)

p, q = map(HiddenStates, sys.argv[1:])
compare_predictions(p, q, block_bytes=1, resume="state", progress=progress)
"""
ROWS, CLASSES, WIDTH = 60 * 20, 257, 4  # 127 rows in a part


def test_the_stream_takes_at_most_60_lines() -> None:
    assert len(STREAM.strip().splitlines()) <= 60


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return P and Q as streams, in a folder with their module."""
    monkeypatch.chdir(tmp_path)
    Path("streams.py").write_text(STREAM)
    rng = np.random.default_rng(4)
    head, hidden = rng.normal(size=(CLASSES, WIDTH)), rng.normal(size=(ROWS, WIDTH))
    tokens = rng.integers(CLASSES, size=60 * 21)
    for name, noise in (("p", 0.0), ("q", 0.2)):
        Path(name).mkdir()
        np.save(f"{name}/hidden.npy", hidden + noise * rng.normal(size=hidden.shape))
        np.save(f"{name}/head.npy", head)
        np.save(f"{name}/tokens.npy", tokens)
    return [_module().HiddenStates(name) for name in "pq"]


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("streams", "streams.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def logits(stream: RowStream) -> torch.Tensor:
    return torch.cat(list(stream.blocks(rows=10**6)))


def test_a_stream_of_ones_own_gets_the_numbers_of_a_tensor(sides: list[Any]) -> None:
    p, q = sides
    found = compare_predictions(p, q, block_bytes=1)
    same = compare_predictions(
        *(Logits(logits(side)) for side in sides), labels=p.windows.labels, cluster=p.windows.clusters
    )
    fields, of_tensors = found.to_dict(), same.to_dict()
    for name in ("p_name", "q_name", "notes"):
        del fields[name], of_tensors[name]
    assert fields == of_tensors
    assert (found.p_name, found.q_name) == ("p", "q")
    assert compare(p, q).to_json() == compare_predictions(p, q).to_json()


def test_a_stream_of_ones_own_gets_gates_and_every_medium(sides: list[Any]) -> None:
    found = compare_predictions(*sides)
    mean = found.divergences["kl_pq"]
    verdicts = [
        parse_gate(f"mean={limit}", "above").verdict([(None, found, None)])
        for limit in (2 * mean.mean, mean.mean, mean.mean / 2)
    ]
    assert [each.outcome for each in verdicts] == ["passed", "unclear", "failed"]
    assert json.loads(found.to_json())["divergences"]["kl_pq"]["mean"] == mean.mean
    pages = [html.render(document(found, verdicts)), markdown.render(document(found, verdicts)), str(found)]
    for page in pages:
        assert "KL(P" in page
    assert all(verdicts[2].limit in page for page in pages[:2])


def test_a_killed_run_of_a_stream_goes_on_to_the_same_report(sides: list[Any]) -> None:
    whole = compare_predictions(*sides).to_json()
    done = subprocess.run([sys.executable, "-c", KILLED, "p", "q"], check=False, env=_environment())
    assert done.returncode == -signal.SIGKILL
    assert Path("state").exists()
    seen: list[int] = []
    again = compare_predictions(*sides, resume="state", progress=lambda done, _: seen.append(done))
    assert seen[0] >= 508
    assert again.to_json() == whole
    assert not Path("state").exists()


@pytest.mark.sweep
def test_the_state_of_another_stream_is_refused(sides: list[Any]) -> None:
    subprocess.run([sys.executable, "-c", KILLED, "p", "q"], check=False, env=_environment())
    changed = np.load("q/hidden.npy")
    changed[-1] += 1
    np.save("q/hidden.npy", changed)
    with refused(FileError, got="of another"):
        compare_predictions(sides[0], _module().HiddenStates("q"), resume="state")


def _environment() -> dict[str, str]:
    import os

    return os.environ | {"PYTHONPATH": str(Path.cwd())}


@pytest.mark.parametrize("kinds", ["stream, stream", "stream, file", "file, stream", "stream, reference"])
def test_models_are_compared_with_streams_without_a_text(sides: list[Any], kinds: str) -> None:
    given: list[Any] = list(sides)
    for place, kind in enumerate(kinds.split(", ")):
        if kind == "file":
            np.save(f"{place}.npy", logits(sides[place]).log_softmax(-1).numpy())
            given[place] = f"{place}.npy"
        if kind == "reference":
            record_reference(sides[place], None, f"{place}.klref", top=64, tail_draws=64)
            given[place] = f"{place}.klref"
    candidate = compare_models(
        *given, loading=Loading(representation="log-probs"), run=Run(bootstrap=50)
    ).candidates[0]
    exact = compare_predictions(*sides, bootstrap=0).divergences["kl_pq"].mean
    found = candidate.comparison.divergences["kl_pq"].mean
    assert found == pytest.approx(exact, rel=0.1 if "reference" in kinds else 1e-9)
    assert candidate.comparison.clusters == 60
    assert candidate.passages


def test_a_stream_without_windows_cannot_be_recorded() -> None:
    class Plain(RowStream):
        name, classes, rows = "plain", 2, 1

        def blocks(self, *, rows: int, first: int = 0) -> Any:
            yield torch.zeros(1 - first, 2)

    with refused(ArgumentValueError, argument="model", wanted="windows of its tokens"):
        record_reference(Plain(), None, "x.klref")
