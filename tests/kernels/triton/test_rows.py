"""The Triton kernel: interpreted, compiled, and on the GPU where there is one, each in a process of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from tests.kernels.triton.processes import run, run_cases

pytestmark = pytest.mark.heavy

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


if importlib.util.find_spec("triton") is not None:

    @pytest.mark.parametrize("device", DEVICES)
    def test_the_cases_hold(device: str) -> None:
        interpreted = {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
        run_cases("cases.py", KULLBACK_TRITON_DEVICE=device, **interpreted)

    def test_the_kernel_compiles_for_gpus_that_are_not_here(tmp_path: Path) -> None:
        run_cases("compile_for_gpus.py", TRITON_CACHE_DIR=str(tmp_path))


def test_kullback_needs_no_triton() -> None:
    program = """
import sys
import torch
before = "triton" in sys.modules
from kullback import KL
from kullback.common import optional
from kullback.kernels import RowDivergence, value_and_gradient
from kullback.kernels.triton import triton_rows as rows
assert ("triton" in sys.modules) == before, "importing kullback imports triton"
find = optional.find_spec
optional.find_spec = lambda name: None if name == "triton" else find(name)
p = torch.zeros(2, 3)
assert "not installed" in rows.missing()
assert not rows.serves(KL(), p, p)
assert (value_and_gradient(RowDivergence(KL()), p, p, None, (True, True))[0] == 0).all()
"""
    done = run("-c", program, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
