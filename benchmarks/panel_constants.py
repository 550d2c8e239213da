"""Vary the constants of the panels of integrals: how many cases of the sweep become wrong, at how many points.

python benchmarks/panel_constants.py          # measures all settings, and writes their results
python benchmarks/panel_constants.py --quick  # measures fewer pairs, and writes nothing
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the oracles of the tests

from tests.oracles.sweep import load
from tests.oracles.sweep_checks import check, total
from torch import Tensor

from kullback.pairs.integration.line import Line

RESULTS = Path(__file__).parent / "results" / "panel_constants.json"
ROOM = "kullback.pairs.integration"
KINDS = ("KL", "JensenShannon", "TotalVariation")
# The constant, by its module and its name, and the settings; the second one is the chosen one.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "quadrature._FIRST_PANELS": (8, 16, 32),
    "piece_panels._FIRST_PANELS": (6, 12, 24),
    "gauss_kronrod.SAFETY": (1.0, 4.0, 16.0),
    "line.NEGLIGIBLE": (38.0, 46.0, 60.0),
    "line._NARROW": (0.05, 0.25, 1.0),
    "line._OUTER_PANELS": (8, 24, 48),
    "pieces._NARROW": (1e2, 1e4, 1e6),
    "pieces._ONE_PLACE": (1e-4, 1e-2, 1.0),
    "piece_panels._POINTS_TO_THE_END": (6, 25, 100),
    "f_divergence._OF_A_CORNER": (0.0, 0.03, 0.3),
    "crossings._CROSSINGS": (2, 8, 32),
    "breaks._JUMP": (1e-10, 1e-6, 1e-3),
}
# Every pair with a number that this divides.
EVERY = 12


@contextmanager
def changed(name: str, value: Any) -> Iterator[None]:
    """Give a constant another value in every module of the room that has it by this name."""
    constant = name.rpartition(".")[2]
    own = importlib.import_module(f"{ROOM}.{name.rpartition('.')[0]}")
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


def main(every: int, *, stored: bool) -> None:
    rows = [measured("all as chosen", None, every)]
    for name, (low, _, high) in SETTINGS.items():
        rows += [measured(name, value, every) for value in (low, high)]
    if stored:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(10 * EVERY if "--quick" in sys.argv else EVERY, stored="--quick" not in sys.argv)
