"""Which tests `make test`, `make sweeps` and `make heavy` run: together all, each test in exactly one of them.

A test is heavy if it is marked so: it builds wheels, compiles, starts a JVM, a server or a browser, trains, runs an
interpreter of GPU code, or simulates or runs processes for several seconds. A sweep is a test of many cases, or a slow
test that is marked so. `make test` takes a tenth of the sweeps, always the same, and every other test that is not
heavy.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

PARTS = ("quick", "sweeps", "heavy")
EVERYTHING = "all"
SHARE = 10
# A test with one of these fixtures is heavy.
HEAVY_FIXTURES = {"chromium"}
# From this number of cases on, a parametrized test is a sweep, unless its name says that it checks messages.
SWEEP_SIZE = 10
MESSAGES = re.compile("refus|messag|remed")


def is_heavy_file(path: Path) -> bool:
    """Whether all tests of a file are heavy. Such a file is read, not imported: its imports take seconds."""
    return path.suffix == ".py" and bool(
        re.search(r"^pytestmark = \[?pytest\.mark\.heavy\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    )


def has_example(path: Path) -> bool:
    """Whether a Python file may hold a doctest. Such a file is read, not imported."""
    return ">>>" in path.read_text(encoding="utf-8")


def share(files: Sequence[Path], worker: int, workers: int) -> Sequence[Path]:
    """The consecutive files that one of several workers imports first."""
    return files[worker * len(files) // workers : (worker + 1) * len(files) // workers]


def is_heavy(item: pytest.Item) -> bool:
    """Whether a test has the mark or uses a browser."""
    return item.get_closest_marker("heavy") is not None or not HEAVY_FIXTURES.isdisjoint(
        getattr(item, "fixturenames", ())
    )


def in_the_tenth(identity: str) -> bool:
    """Whether a case belongs to the tenth that `make test` runs: decided by its name, the same on every machine."""
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8]) % SHARE == 0


def tenth(identities: Sequence[str]) -> set[str]:
    """The identities that `make test` runs: the tenth, or of several cases the closest one if it is empty."""
    drawn = {identity for identity in identities if in_the_tenth(identity)}
    if drawn or len(identities) == 1:
        return drawn
    return {min(identities, key=lambda identity: hashlib.sha256(identity.encode()).digest())}


def part_of(items: Iterable[pytest.Item]) -> Callable[[pytest.Item], str]:
    """Return the function that tells the part of each of the collected items."""
    families: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        families[item.nodeid.partition("[")[0]].append(item)
    quick_cases: set[str] = set()
    sweeps: set[str] = set()
    for name, cases in families.items():
        is_large = len(cases) >= SWEEP_SIZE and not MESSAGES.search(name.rpartition("::")[2])
        if is_large or cases[0].get_closest_marker("sweep"):
            sweeps.add(name)
            quick_cases |= tenth([case.nodeid for case in cases])

    def part(item: pytest.Item) -> str:
        if is_heavy(item):
            return "heavy"
        is_sweep = item.nodeid.partition("[")[0] in sweeps
        return "sweeps" if is_sweep and item.nodeid not in quick_cases else "quick"

    return part


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the part that was asked for with `--part`."""
    wanted = config.getoption("part")
    if wanted == EVERYTHING:
        return
    part = part_of(items)
    chosen = [item for item in items if part(item) == wanted]
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if part(item) != wanted])
        items[:] = chosen
