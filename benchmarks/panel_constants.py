"""Vary the constants of the panels of integrals: how many cases of the sweep become wrong, at how many points.

python benchmarks/panel_constants.py          # measures all settings, and writes their results
python benchmarks/panel_constants.py --quick  # measures fewer pairs, and writes nothing
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the oracles of the tests

from tests.oracles.sweep import load
from tests.oracles.sweep_checks import check, total
from torch import Tensor
from torch.distributions import Laplace, Normal

from kullback import TotalVariation, divergence
from kullback.pairs.integration.line import Line

RESULTS = Path(__file__).parent / "results" / "panel_constants.json"
ROOMS = ("kullback.pairs.integration", "kullback.pairs")
KINDS = ("KL", "JensenShannon", "TotalVariation")
# The constant, by its module and its name, and the settings; the second one is the chosen one.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "quadrature._FIRST_PANELS": (8, 16, 32),
    "pieces._FIRST_PANELS": (6, 12, 24),
    "panels.SAFETY": (1.0, 4.0, 16.0),
    "line.NEGLIGIBLE": (38.0, 46.0, 60.0),
    "line._NARROW": (0.05, 0.25, 1.0),
    "line._OUTER_PANELS": (8, 24, 48),
    "pieces._NARROW": (1e2, 1e4, 1e6),
    "pieces._ONE_PLACE": (1e-4, 1e-2, 1.0),
    "pieces._POINTS_TO_THE_END": (6, 25, 100),
    "f_divergence._OF_A_CORNER": (0.0, 0.03, 0.3),
    "pieces._CROSSINGS": (2, 8, 32),
    "line._JUMP": (1e-10, 1e-6, 1e-3),
    "pieces.SAME": (1e-13, 1e-11, 1e-9),
    "line._MANY_PEAKS": (4, 16, 64),
    "pieces._FALL": (6, 12, 24),
    "summation._PANELS": (8, 32, 128),
    "summation._NEGLIGIBLE": (-70.0, -140.0, -280.0),
    "f_divergence._AIM_OF_SLOPES": (1e-13, 1e-12, 1e-11),
    "shared_ends.LEAST_VALUE": (1e-14, 1e-12, 1e-10),
    "shared_ends._FLAT": (1e-9, 1e-7, 1e-5),
    "quadrature._FARTHEST": (300.0, 345.0, 350.0),
    "univariate._FIRST_EVALUATIONS": (600, 1200, 2400),
}
# The constants that change the time alone, and their settings likewise.
TIMED: dict[str, tuple[Any, ...]] = {
    "pieces._FEW_INTERVALS": (0, 1000, 100_000),
    "univariate._BLOCK": (64, 512, 4096),
}
MANY = 2048
# Every pair with a number that this divides.
EVERY = 12


@contextmanager
def changed(name: str, value: Any) -> Iterator[None]:
    """Give a constant another value in every module of the rooms that has it by this name."""
    file, _, constant = name.rpartition(".")
    own = importlib.import_module(next(f"{x}.{file}" for x in ROOMS if find_spec(f"{x}.{file}")))
    modules = [own]
    if not constant.startswith("_"):
        rooms = [module for path, module in sys.modules.items() if path.startswith("kullback.") and module]
        modules += [module for module in rooms if constant in vars(module)]
    before = getattr(own, constant)
    for module in modules:
        setattr(module, constant, value)
    try:
        yield
    finally:
        for module in modules:
            setattr(module, constant, before)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the points at which the densities are evaluated."""
    counts: list[int] = []
    original = Line.points

    def points(self: Line, v: Tensor) -> Any:
        counts.append(v.numel())
        return original(self, v)

    Line.points = points  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        Line.points = original  # type: ignore[method-assign]


def measured(name: str, value: Any, every: int) -> dict[str, Any]:
    """Return how many answers are wrong or refused with a setting, and the number of points per case."""
    with changed(name, value) if "." in name else nullcontext(), counted() as counts:
        count = total(check(entry, KINDS)[0] for entry in load()[::every])
    wrong = count.values + count.bounds + count.gradients
    print(name, value, wrong, count.refused, round(sum(counts) / count.cases), sep="\t", flush=True)
    return {
        "constant": name,
        "value": value,
        "cases": count.cases,
        "wrong": wrong,
        "refused": count.refused,
        "points": round(sum(counts) / count.cases),
    }


def timed(name: str, value: Any) -> dict[str, Any]:
    """Return the milliseconds of the processor for one total variation, and for a batch of them, with a setting."""

    def milliseconds(size: int) -> float:
        p, q = Normal(torch.zeros(size), 1.0), Laplace(torch.linspace(-1, 1, size), 1.3)
        times: list[float] = []
        for _ in range(5):
            before = time.process_time()
            divergence(p, q, TotalVariation())
            times.append(1000 * (time.process_time() - before))
        return round(min(times), 1)

    with changed(name, value):
        row = {"constant": name, "value": value, "one": milliseconds(1), "batch": milliseconds(MANY)}
    print(*row.values(), sep="\t", flush=True)
    return row


def main(every: int, *, stored: bool) -> None:
    rows = [measured("all as chosen", None, every)]
    for name, (low, _, high) in SETTINGS.items():
        rows += [measured(name, value, every) for value in (low, high)]
    rows += [timed(name, value) for name, values in TIMED.items() for value in values]
    if stored:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(10 * EVERY if "--quick" in sys.argv else EVERY, stored="--quick" not in sys.argv)
