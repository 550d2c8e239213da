"""Install what a release uploads, away from the sources, run a part of the tests on it, and keep what came out.

    make wheel
    python .ci/compatibility.py --torch 2.11.0 --numpy 1.26.4 dist/*
    python .ci/compatibility.py --environment /tmp/prepared dist/*

Each wheel, and the sources as an archive, is installed into the same fresh environment, one after the other, of the
Python that runs this; `--environment` names one that has PyTorch already. The archive is compiled there against the
PyTorch of that environment. The results join those in `benchmarks/results/compatibility.json`, and
`docs/records/compatibility.md` shows them all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "compatibility.json"
PAGE = ROOT / "docs" / "records" / "compatibility.md"
TESTS = (
    "tests/kernels/native/test_library.py",
    "tests/kernels/native/test_operators.py",
    "tests/kernels/native/test_normals.py",
    "tests/losses/test_kl_div.py",
    "tests/losses/test_top_k.py",
    "tests/pairs/closed_forms/test_infinite.py",
    "tests/common/test_special.py",
)
NEEDED = ("pytest>=8.2", "hypothesis>=6.100", "mpmath>=1.3", "scipy>=1.12", "pyelftools>=0.30")
BUILD = ("hatch-fancy-pypi-readme>=25.1", "scikit-build-core>=1.0", "cmake", "ninja")
ABOUT = """
import json, platform, torch, numpy, kullback
[native] = [b for b in kullback.backends() if b.name == "native"]
print(json.dumps({
    "python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__,
    "system": f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}",
    "native": native.available, "from": kullback.__file__,
}))
"""


def run(command: list[str | Path], folder: Path, **changes: str) -> str:
    """What a command prints, in an environment that does not lead to the sources."""
    names = ("PYTHONPATH", "PYTHONHOME", "KULLBACK_NATIVE", "CMAKE_ARGS")
    environment = {name: value for name, value in os.environ.items() if name not in names} | changes
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # 1: tests failed, which is a result
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def kind_of(package: Path) -> str:
    if package.suffix == ".gz":
        return "sources, compiled"
    return "pure wheel" if package.name.endswith("-any.whl") else "native wheel"


def check(package: Path, python: Path, folder: Path) -> dict[str, object]:
    """Install a package and run the tests on it."""
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run([*pip, "uninstall", "--yes", "kullback"], folder)
    run([*pip, "install", "--no-deps", "--no-build-isolation", package], folder, KULLBACK_NATIVE="1")
    about = json.loads(run([python, "-c", ABOUT], folder))
    if Path(about.pop("from")).is_relative_to(ROOT):
        raise SystemExit("kullback is imported from the sources: not away from the tree")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", *TESTS]
    *others, last = run(command, folder).strip().splitlines()
    print(*(line for line in others if line.startswith(("FAILED", "ERROR"))), sep="\n", end="")
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    return {"package": kind_of(package), **about, **counts}


def answer(rows: list[dict[str, object]]) -> list[str]:
    """The head of the page: the measurement, the result and the conclusion."""
    failed = sum(int(str(row.get(key, 0))) for row in rows for key in ("failed", "error"))
    torch = [row["torch"] for row in sorted(rows, key=_order)]
    return textwrap.wrap(
        f"Measured: the tests of the packages of a release, installed away from the sources, in {len(rows)} "
        f"environments with PyTorch {torch[0]} to {torch[-1]}. Result: {failed} tests fail. Conclusion: these "
        "combinations work; others have not been tested.",
        120,
    )


def render(rows: list[dict[str, object]]) -> str:
    """The page of all results."""
    lines = [
        "# Compatibility",
        "",
        *answer(rows),
        "",
        "The tests are the part of the suite for the kernels, the drop-ins, the divergences and the closed forms.",
        "`.ci/compatibility.py` made this table. Tests of the native kernels are skipped for the pure wheel.",
        "",
        "| package | Python | PyTorch | NumPy | system | native kernels | passed | failed | skipped |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        failed = int(row.get("failed", 0)) + int(row.get("error", 0))
        cells = [row["package"], row["python"], row["torch"], row["numpy"], row["system"]]
        cells += ["yes" if row["native"] else "no", row.get("passed", 0), failed, row.get("skipped", 0)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _order(row: dict[str, object]) -> list[list[int]]:
    return [
        [int(number) for number in re.findall(r"\d+", str(row[key]))] for key in ("torch", "python", "numpy")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="+", type=Path, metavar="dist/*")
    parser.add_argument(
        "--environment", type=Path, help="an environment that has PyTorch; by default a fresh one"
    )
    parser.add_argument("--torch", help="the version to install")
    parser.add_argument("--numpy", help="the version to install")
    parser.add_argument("--strict", action="store_true", help="end with status 1 where a test failed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kullback-") as name:
        folder = Path(name)
        home = options.environment or folder / "environment"
        if not options.environment:
            run([sys.executable, "-m", "venv", home], folder)
        python = home.absolute() / "bin" / "python"
        pinned = [
            f"{library}=={version}"
            for library in ("torch", "numpy")
            if (version := getattr(options, library))
        ]
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        run([*pip, *pinned, *NEEDED, *BUILD], folder)
        shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        failed = False
        for package in options.packages:
            row = check(package.absolute(), python, folder)
            print(json.dumps(row), flush=True)
            failed = failed or not row.get("passed") or "failed" in row or "error" in row
            same = ("package", "python", "torch", "numpy", "system")
            rows = [old for old in rows if any(old[key] != row[key] for key in same)] + [row]
    rows.sort(
        key=lambda row: [
            [int(n) for n in re.findall(r"\d+", str(row[key]))] for key in ("torch", "python", "numpy")
        ]
    )
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    PAGE.write_text(render(rows))
    sys.exit(failed and options.strict)


if __name__ == "__main__":
    main()
