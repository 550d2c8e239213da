"""Sources that take turns and miss some of them: they are seen, and independent rows are not taken for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kullback.common.missed_turns import missed_turns

Array = np.ndarray[Any, Any]


def panel(rng: np.random.Generator, units: int, times: int, missing: float) -> Array:
    """Draw a panel that is sorted by time, with rows missing at random; half the variance is of units."""
    x = rng.standard_normal((1, units)) + rng.standard_normal((times, units))
    return x.ravel()[rng.random(units * times) >= missing][:, None]


def test_independent_rows_miss_no_turns() -> None:
    draws: dict[str, Callable[[np.random.Generator, int], Array]] = {
        "normal": lambda rng, n: rng.standard_normal((n, 1)),
        "heavy tails": lambda rng, n: rng.standard_cauchy((n, 1)),
        "three columns": lambda rng, n: rng.standard_normal((n, 3)),
        "counts": lambda rng, n: rng.poisson(0.5, (n, 1)).astype(float),
        "coin": lambda rng, n: rng.integers(0, 2, (n, 1)).astype(float),
        "mostly 0": lambda rng, n: np.where(rng.random((n, 1)) < 0.7, 0.0, rng.standard_normal((n, 1))),
    }
    for name, draw in draws.items():
        for seed, n in enumerate([20, 59, 61, 90, 90, 150, 150, 150, 300, 300]):
            rng = np.random.default_rng([seed, 3])
            assert missed_turns(draw(rng, n), draw(rng, n + 7)) == {}, (name, n)


def test_panels_with_missing_rows_are_seen() -> None:
    for units, times, missing in ((80, 12, 0.15), (80, 12, 0.05), (200, 6, 0.1), (40, 20, 0.1)):
        seen = []
        for seed in range(8):
            rng = np.random.default_rng([seed, 4])
            sides = [panel(rng, units, times, missing) for _ in range(2)]
            seen += missed_turns(*sides).values()
        assert len(seen) >= 6, (units, times, missing)
        share = np.median(seen) / (units * (1 - missing))
        assert 0.8 < share < 1.2, (units, times, missing)


def test_the_column_of_a_panel_is_named() -> None:
    rng = np.random.default_rng(5)
    x = panel(rng, 80, 12, 0.1)
    columns = np.hstack([rng.standard_normal((len(x), 2)), x])
    assert list(missed_turns(columns)) == [2]


def test_few_units_at_few_times_are_seen() -> None:
    """Before, 19 of 40 were seen, none of the named seeds."""
    for seed in (1, 3, 7, 12, 33, 34):
        rng = np.random.default_rng([seed, 6])
        assert missed_turns(*[panel(rng, 60, 8, 0.15) for _ in range(2)]), seed
