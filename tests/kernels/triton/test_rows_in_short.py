"""A small case of each kind in Triton's interpreter, and one compiled kernel; `test_rows` has all of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tests.kernels.triton.processes import run_cases

if importlib.util.find_spec("triton") is not None:

    def test_each_kind_is_that_of_the_reference() -> None:
        run_cases("cases.py", "-k", "in_short", KULLBACK_TRITON_DEVICE="cpu", TRITON_INTERPRET="1")

    def test_kl_compiles_within_its_limit(tmp_path: Path) -> None:
        run_cases("compile_for_gpus.py", "-k", "in_short", TRITON_CACHE_DIR=str(tmp_path))
