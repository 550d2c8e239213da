"""All cases that the worker processes run, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.parallel import test_collectives, test_heads, test_rows, test_training, test_workers

CASES: dict[str, Callable[..., Any]] = {
    **test_rows.CASES,
    **test_heads.CASES,
    **test_collectives.CASES,
    **test_training.CASES,
    **test_workers.CASES,
}
