"""The example data is what its README says, and the script that made it still runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NAMES = {"float32", "int8", "labels", "windows"}


def load(folder: Path) -> dict[str, np.ndarray]:
    return {path.stem: np.load(path) for path in folder.glob("*.npy")}


def held_out_cross_entropy(data: dict[str, np.ndarray], model: str) -> float:
    logits, labels = torch.from_numpy(data[model]).double(), torch.from_numpy(data["labels"]).long()
    return F.cross_entropy(logits, labels).item()


def assert_files_fit_together(data: dict[str, np.ndarray]) -> None:
    assert data.keys() == NAMES
    for model in ("float32", "int8"):
        assert (data[model].shape, data[model].dtype) == ((4096, 256), np.float16)
        assert np.isfinite(data[model]).all()
    assert (data["labels"].shape, data["labels"].dtype) == ((4096,), np.uint8)
    assert data["windows"].dtype == np.int16
    assert (data["windows"] == np.repeat(np.arange(32), 128)).all()


def test_the_shipped_files_fit_together():
    assert_files_fit_together(load(EXAMPLES / "data"))


def test_the_shipped_models_predict_as_the_readme_says():
    data = load(EXAMPLES / "data")
    text = (EXAMPLES / "data" / "README.md").read_text()
    said = re.search(r"cross-entropy (\d\.\d+) nats per byte as trained, (\d\.\d+) rounded", text)
    measured = [held_out_cross_entropy(data, model) for model in ("float32", "int8")]
    assert said is not None
    assert measured == pytest.approx([float(number) for number in said.groups()], abs=1e-6)


def test_the_shipped_models_differ_a_little_everywhere():
    data = {name: torch.from_numpy(x).double() for name, x in load(EXAMPLES / "data").items()}
    p, q = data["float32"].log_softmax(-1), data["int8"].log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    assert kl.min() > 0
    assert 1e-5 < kl.mean() < 1e-2


@pytest.mark.heavy
def test_the_script_trains_rounds_and_writes(tmp_path):
    command = [
        sys.executable,
        str(EXAMPLES / "train_byte_models.py"),
        "--steps",
        "40",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    data = load(tmp_path)
    assert_files_fit_together(data)
    before_training = np.log(256)
    assert held_out_cross_entropy(data, "float32") < 0.75 * before_training
    assert (data["float32"] != data["int8"]).any()


@pytest.mark.sweep
def test_the_script_refuses_too_few_steps(tmp_path):
    command = [sys.executable, str(EXAMPLES / "train_byte_models.py"), "--steps", "3", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--steps 3 is too few" in done.stderr
    assert list(tmp_path.iterdir()) == []
