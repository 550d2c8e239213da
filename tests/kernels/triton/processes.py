"""Processes of their own for tests of Triton, whose interpreter must be chosen before Triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python at the root of the repository, without Triton's variables unless they are passed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    return subprocess.run(
        [sys.executable, *command],
        env={**inherited, **environment},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )


def run_cases(names: str, *options: str, **environment: str) -> None:
    """Run files of this folder, or tests of them, with pytest."""
    files = [str(HERE / name) for name in names.split()]
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *files, *options, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
