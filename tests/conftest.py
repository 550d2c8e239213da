"""What every test shares: threads, hypothesis' profile, and a browser where there is one."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
from hypothesis import HealthCheck, settings

# Several pytest-xdist workers share the cores, so each computes on one.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# The same examples on every run: a failure seen once is seen again. Timing says nothing on a busy machine.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a headless-capable Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"no browser here: none of {', '.join(names)} is on the path")
    return found
