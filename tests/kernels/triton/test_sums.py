"""The Triton kernels of sums: interpreted, and on the GPU where there is one, each in a process of its own.

`test_rows_in_short` has small cases.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.kernels.triton.processes import run_cases
from tests.kernels.triton.test_rows import DEVICES

if importlib.util.find_spec("triton") is not None:

    @pytest.mark.heavy
    @pytest.mark.parametrize("device", DEVICES)
    def test_the_cases_hold(device: str) -> None:
        interpreted = {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
        run_cases("sums_cases.py", KULLBACK_TRITON_DEVICE=device, **interpreted)

    @pytest.mark.heavy
    def test_the_kernels_compile_for_gpus_that_are_not_here(tmp_path: Path) -> None:
        run_cases("compile_sums.py", TRITON_CACHE_DIR=str(tmp_path))
