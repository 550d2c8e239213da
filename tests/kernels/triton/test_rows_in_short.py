"""Small cases in Triton's interpreter, and one compiled kernel; `test_rows` and `test_sums` have all of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.kernels.triton.processes import run_cases

if importlib.util.find_spec("triton") is not None:

    def test_each_kind_and_small_sums_are_those_of_the_reference() -> None:
        """One process interprets both kernels: it takes longer to start than to compute."""
        files = "cases.py::test_parity_in_short sums_cases.py"
        small = "in_short or (small_rows and bfloat16 and True-1.0) or (fifty_digits and float32)"
        run_cases(files, "-k", small, KULLBACK_TRITON_DEVICE="cpu", TRITON_INTERPRET="1")

    @pytest.mark.sweep
    def test_kl_compiles_within_its_limit(tmp_path: Path) -> None:
        run_cases("compile_for_gpus.py", "-k", "in_short", TRITON_CACHE_DIR=str(tmp_path))
