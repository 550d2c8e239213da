"""Check one source file: lint, types, the order of imports, its examples and all tests of its room.

    make check FILE=src/kullback/pairs/solve.py

A room is a folder of `tests` that mirrors a folder of `src/kullback`, or the test file of a module.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The tests of the modules and folders that no folder or file of `tests` is named after.
TESTS = {
    "src/kullback/__init__.py": ["tests/test_package.py"],
    "src/kullback/__main__.py": ["tests/cli"],
    "src/kullback/functional.py": ["tests/losses"],
    "src/kullback/nn.py": ["tests/losses"],
    "src/kullback/operands.py": ["tests/test_dispatch.py", "tests/test_representations.py"],
    "src/kullback/partial_rows.py": ["tests/io", "tests/losses/test_sampled_tail.py"],
    "src/kullback/policy.py": ["tests/losses/test_controllers.py", "tests/losses/test_log_probs.py"],
    "csrc/closed_forms": ["tests/kernels/native", "tests/pairs/closed_forms"],
    "csrc": ["tests/kernels/native", "tests/losses/test_kl_div.py"],
    "benchmarks": ["tests/test_benchmarks.py", "tests/test_gpu_run.py"],
    "docs": ["tests/test_docs.py", "tests/test_links.py"],
    "examples": ["tests/test_examples.py"],
}


def tests_of(file: Path) -> list[str]:
    """Return the tests of the room of a file, whose path is relative to the repository."""
    for place in (file, *file.parents):
        name = place.as_posix()
        if name in TESTS:
            return TESTS[name]
        if name.startswith("tests"):
            return [file.as_posix()]
        mirrored = Path("tests") / Path(*place.parts[2:])
        if name.startswith("src/kullback/"):
            test = mirrored.with_name(f"test_{mirrored.stem}.py")
            if (ROOT / mirrored).is_dir():
                return [mirrored.as_posix()]
            if place == file and (ROOT / test).is_file():
                return [test.as_posix()]
    raise SystemExit(
        f"check: no tests belong to {file}; name a file of src/kullback, csrc, docs, tests or benchmarks"
    )


def main(argument: str) -> None:
    file = Path(argument).resolve()
    if not file.is_file():
        raise SystemExit(
            f"check: there is no file {argument}; write, for example, make check FILE=src/kullback/samples.py"
        )
    file = file.relative_to(ROOT)
    python = file.suffix == ".py"
    source = python and file.parts[0] == "src"
    checks = [
        ["ruff", "check", file] if python else [],
        ["ruff", "format", "--check", file] if python else [],
        ["pyright", file] if source else [],
        [
            "pytest",
            "-q",
            "-n",
            "auto",
            "--maxprocesses",
            "4",
            "tests/test_layers.py",
            *([file] if source else []),
            *tests_of(file),
        ],
    ]
    failed = [
        check
        for check in checks
        if check and subprocess.run([sys.executable, "-m", *check], cwd=ROOT, check=False).returncode
    ]
    if failed:
        raise SystemExit(f"check: {', '.join(check[0] for check in failed)} did not pass")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("check: name one file, as in make check FILE=src/kullback/samples.py")
    main(sys.argv[1])
