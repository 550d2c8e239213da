"""Dependence of rows as their order shows it: false alarms, detection, the number of independent rows, blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from kullback.common.serial_dependence import (
    FEWEST_BLOCKS,
    block_labels,
    category_scores,
    number_scores,
    repeated_rows,
    serial_dependence,
)

Array = np.ndarray[Any, Any]
Draw = Callable[[np.random.Generator, int], Array]


def autoregression(rng: np.random.Generator, n: int, correlation: float, columns: int = 1) -> Array:
    """Draw a stationary Gaussian autoregression of order 1 with variance 1, shape (n, columns)."""
    noise = rng.standard_normal((n, columns)) * math.sqrt(1 - correlation**2)
    noise[0] = rng.standard_normal(columns)
    for t in range(1, n):
        noise[t] += correlation * noise[t - 1]
    return noise


INDEPENDENT: dict[str, Draw] = {
    "normal": lambda rng, n: number_scores(rng.standard_normal((n, 1))),
    "five columns": lambda rng, n: number_scores(rng.standard_normal((n, 5))),
    "lognormal": lambda rng, n: number_scores(np.exp(3 * rng.standard_normal((n, 1)))),
    "rare counts": lambda rng, n: number_scores(rng.poisson(0.02, (n, 1)).astype(float)),
    "sorted": lambda rng, n: number_scores(np.sort(rng.standard_normal((n, 1)), axis=0)),
    "coin": lambda rng, n: category_scores(rng.integers(0, 2, n)),
    "rare category": lambda rng, n: category_scores((rng.random(n) < 0.01).astype(int)),
    "identifiers": lambda rng, n: category_scores(np.unique(rng.integers(0, n, n), return_inverse=True)[1]),
    "sorted categories": lambda rng, n: category_scores(np.sort(rng.integers(0, 9, n))),
}


@pytest.mark.parametrize("name", INDEPENDENT)
@pytest.mark.parametrize("n", [30, 300, 1000])
def test_independent_rows_appear_independent(name: str, n: int) -> None:
    rng = np.random.default_rng(7)
    found = [serial_dependence(INDEPENDENT[name](rng, n)) for _ in range(40)]
    assert sum(each is not None for each in found) == 0


@pytest.mark.parametrize(("correlation", "n"), [(0.3, 1000), (0.6, 300), (0.9, 300), (0.95, 2000)])
def test_autoregressions_are_seen_and_their_number_of_independent_rows_is_about_right(
    correlation: float, n: int
) -> None:
    rng = np.random.default_rng(8)
    found = [serial_dependence(number_scores(autoregression(rng, n, correlation))) for _ in range(20)]
    times = [each.time for each in found if each is not None]
    assert len(times) == 20
    exact = (1 + correlation) / (1 - correlation)
    # From few blocks the time is measured too short at most by what the blocks' number allows.
    assert 0.7 * min(exact, n / 30) < np.median(times) < 1.6 * exact


@pytest.mark.sweep
@pytest.mark.parametrize("correlation", [0.3, 0.6, 0.9])
def test_means_of_blocks_vary_as_the_mean_does(correlation: float) -> None:
    rng = np.random.default_rng(9)
    n, ratios = 4000, []
    for _ in range(60):
        x = autoregression(rng, n, correlation)
        found = serial_dependence(number_scores(x))
        assert found is not None
        assert found.labels is not None
        means = np.bincount(found.labels, x[:, 0]) / np.bincount(found.labels)
        ratios.append(means.var(ddof=1) / len(means) * n)
    exact = (1 + correlation) / (1 - correlation)
    assert np.mean(ratios) == pytest.approx(exact, rel=0.2)


DEPENDENT: dict[str, tuple[str, Draw]] = {
    "each row three times": (
        "blocks",
        lambda rng, n: number_scores(np.repeat(rng.standard_normal((n // 3, 1)), 3, axis=0)),
    ),
    "rows of one user together": (
        "blocks",
        lambda rng, n: number_scores(
            np.repeat(rng.standard_normal((n // 25, 1)), 25, 0) + rng.standard_normal((n // 25 * 25, 1))
        ),
    ),
    "a changing spread": (
        "blocks",
        lambda rng, n: number_scores(np.exp(autoregression(rng, n, 0.95)) * rng.standard_normal((n, 1))),
    ),
    "one component of six": (
        "blocks",
        lambda rng, n: number_scores(np.hstack([autoregression(rng, n, 0.6), rng.standard_normal((n, 5))])),
    ),
    "a state that lasts": (
        "blocks",
        lambda rng, n: category_scores((autoregression(rng, n, 0.8)[:, 0] > 0).astype(int)),
    ),
    "identifiers in runs": (
        "blocks",
        lambda rng, n: category_scores(
            np.repeat(np.unique(rng.integers(0, 300, n // 3), return_inverse=True)[1], 3)
        ),
    ),
    "a season": (
        "blocks",
        lambda rng, n: number_scores(
            np.sin(np.arange(n)[:, None] * 2 * math.pi / 24) + rng.standard_normal((n, 1))
        ),
    ),
    "sources that take turns": (
        "period",
        lambda rng, n: number_scores(
            np.tile(rng.standard_normal((40, 1)), (n // 40, 1)) + rng.standard_normal((n // 40 * 40, 1))
        ),
    ),
    "a table three times": (
        "period",
        lambda rng, n: number_scores(np.tile(rng.standard_normal((n // 3, 1)), (3, 1))),
    ),
    "a table twice": (
        "period",
        lambda rng, n: number_scores(np.tile(rng.standard_normal((n // 2, 1)), (2, 1))),
    ),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_dependence_of_every_kind_is_seen(name: str) -> None:
    rng = np.random.default_rng(10)
    kind, draw = DEPENDENT[name]
    found = [serial_dependence(draw(rng, 1200)) for _ in range(20)]
    kinds = [None if each is None else each.kind for each in found]
    assert kinds.count(kind) >= 18
    assert None not in kinds


def test_sources_by_turns_are_told_apart_and_seasons_are_not() -> None:
    rng = np.random.default_rng(11)
    _, by_turns = DEPENDENT["sources that take turns"]
    found = serial_dependence(by_turns(rng, 1200))
    assert found is not None
    assert (found.length, found.is_open) == (40, False)
    assert found.labels is not None
    assert found.labels.tolist() == [row % 40 for row in range(1200)]
    _, season = DEPENDENT["a season"]
    found = serial_dependence(season(rng, 2400))
    assert found is not None
    assert found.length % 24 in (0, 1, 23)  # whole periods, one of which is seen up to a row


def test_a_short_period_may_be_a_design() -> None:
    found = serial_dependence(number_scores(np.tile([[1.0], [2.0], [3.0], [4.0]], (50, 1))))
    assert found is not None
    assert (found.kind, found.length, found.time, found.is_open) == ("pattern", 4, 1.0, False)


@pytest.mark.parametrize("n", [100, 1000])
def test_too_few_blocks_are_none(n: int) -> None:
    rng = np.random.default_rng(12)
    found = serial_dependence(number_scores(np.cumsum(rng.standard_normal((n, 1)), axis=0)))
    assert found is not None
    assert (found.labels, found.is_open) == (None, True)
    assert found.effective < n / 7


def test_blocks_are_whole_and_about_equal() -> None:
    sizes = np.bincount(block_labels(1003, 40))
    assert len(sizes) == 40
    assert set(sizes.tolist()) == {25, 26}
    assert FEWEST_BLOCKS <= 40


def few_prices(rng: np.random.Generator, values: int) -> Array:
    """Draw rows of so many prices, some more popular than others."""
    prices = np.exp(rng.normal(3, 1.2, values)).round(2)
    return rng.choice(prices, (2000, 1), p=rng.dirichlet(np.full(values, 5.0)))


def half_on_atoms(rng: np.random.Generator, atoms: int, shares: Array | None = None) -> Array:
    """Draw rows of which half are at atoms, beside a normal density."""
    values = rng.standard_normal(atoms)
    shares = np.ones(atoms) if shares is None else shares
    at = values[rng.choice(atoms, (1500, 1), p=shares / shares.sum())]
    return np.where(rng.random((1500, 1)) < 0.5, at, rng.standard_normal((1500, 1)))


REPEATED: dict[str, Callable[[np.random.Generator], Array]] = {
    "three times, shuffled": lambda rng: rng.permutation(np.repeat(rng.standard_normal((400, 1)), 3, axis=0)),
    "drawn with replacement": lambda rng: rng.standard_normal((1000, 1))[rng.integers(0, 1000, 1000)],
    "in single precision": lambda rng: (
        rng.standard_normal((1000, 1)).astype(np.float32)[rng.integers(0, 1000, 1000)].astype(float)
    ),
    "vectors, partly rounded": lambda rng: rng.permutation(
        np.repeat(np.hstack([rng.standard_normal((400, 1)), rng.integers(0, 3, (400, 1))]), 3, axis=0)
    ),
    "three times, of four decimals": lambda rng: rng.permutation(
        np.repeat(rng.standard_normal((400, 1)).round(4), 3, axis=0)
    ),
}
REPEATED |= {
    "a fifth twice": lambda rng: np.repeat(rng.standard_normal((1000, 1)), [1, 1, 1, 1, 2] * 200, axis=0),
    "half ten times": lambda rng: np.concatenate(
        [rng.standard_normal((1000, 1)), np.repeat(rng.standard_normal((100, 1)), 10, axis=0)]
    ),
    "joined to 1 to 20 orders": lambda rng: np.repeat(
        rng.standard_normal((500, 1)), np.minimum(rng.geometric(1 / 3, 500), 20), axis=0
    ),
    "drawn from a third": lambda rng: rng.standard_normal((500, 1))[rng.integers(0, 500, 1500)],
}
NOT_REPEATED: dict[str, Callable[[np.random.Generator], Array]] = {
    "normal": lambda rng: rng.standard_normal((1000, 1)),
    "rounded": lambda rng: np.round(rng.standard_normal((1000, 1)), 2),
    "rounded a little": lambda rng: np.round(rng.standard_normal((3000, 1)), 3),
    "three digits": lambda rng: np.array([[float(f"{x:.3g}")] for x in np.exp(rng.standard_normal(1000))]),
    "zero or more": lambda rng: np.maximum(rng.standard_normal((1000, 1)), 0),
    "ratios": lambda rng: rng.integers(0, 30, (1000, 1)) / rng.integers(1, 50, (1000, 1)),
    "counts": lambda rng: rng.poisson(5, (1000, 3)).astype(float),
    "prices": lambda rng: np.round(20 * np.exp(rng.standard_normal((1000, 1)))) - 0.01,
    "few prices": lambda rng: few_prices(rng, 200),
    "very few prices, in single precision": lambda rng: few_prices(rng, 30).astype(np.float32).astype(float),
    "high prices and their tax": lambda rng: np.outer(10 * few_prices(rng, 200), [1, 0.2]).round(2),
    "codes": lambda rng: rng.choice(rng.integers(10**9, 10**10, 200), (2000, 1)).astype(float),
    "half on one atom": lambda rng: half_on_atoms(rng, 1),
    "half on two atoms": lambda rng: half_on_atoms(rng, 2),
    "half on five atoms": lambda rng: half_on_atoms(rng, 5),
    "half on thirty atoms": lambda rng: half_on_atoms(rng, 30),
    "half on thirty unequal atoms": lambda rng: half_on_atoms(rng, 30, np.linspace(1, 3, 30)),
    "half on two hundred atoms": lambda rng: half_on_atoms(rng, 200),
    "half on two hundred unequal atoms": lambda rng: half_on_atoms(rng, 200, np.linspace(1, 3, 200)),
    "all on thirty atoms": lambda rng: rng.standard_normal((30, 1))[rng.integers(0, 30, 1500)],
    "an atom in one coordinate": lambda rng: np.hstack(
        [half_on_atoms(rng, 30), rng.standard_normal((1500, 1))]
    ),
    "atoms in both coordinates": lambda rng: np.hstack([half_on_atoms(rng, 30), half_on_atoms(rng, 30)]),
    "rare codes": lambda rng: rng.choice(rng.integers(10**9, 10**10, 20_000), (2400, 1)).astype(float),
}


@pytest.mark.parametrize("name", REPEATED)
def test_repeated_rows_are_counted_wherever_they_are(name: str) -> None:
    x = REPEATED[name](np.random.default_rng(13))
    found = repeated_rows(x)
    assert found is not None
    assert found.kind == "repeats"
    assert found.labels is not None
    counts = np.bincount(found.labels)
    assert found.effective == pytest.approx(len(x) ** 2 / np.square(counts).sum())
    assert len(counts) == len(np.unique(x, axis=0))


@pytest.mark.parametrize("name", NOT_REPEATED)
def test_rounded_numbers_and_atoms_are_no_repeated_rows(name: str) -> None:
    rng = np.random.default_rng(14)
    assert [repeated_rows(NOT_REPEATED[name](rng)) for _ in range(20)] == [None] * 20


def test_values_that_repeat_on_both_sides_are_atoms() -> None:
    rng = np.random.default_rng(15)
    values = rng.standard_normal((200, 1))
    x, y = (values[rng.integers(0, 200, 800)] for _ in "pq")
    assert repeated_rows(x) is not None
    assert repeated_rows(x, y) is None
    assert repeated_rows(x, rng.standard_normal((800, 1))) is not None


def grid(rng: np.random.Generator, shape: tuple[int, ...], sd: float, missing: float = 0.0) -> Array:
    """Draw a smooth field on a grid, in the order of its lines, with some points missing at random."""
    points = gaussian_filter(rng.standard_normal(shape), sd, mode="wrap").ravel()
    return points[rng.random(len(points)) >= missing]


def test_lines_of_a_grid_are_told_apart_from_seasons() -> None:
    cases: dict[str, tuple[tuple[int, ...], float, float]] = {
        "square": ((40, 40), 2.0, 0.0),
        "small square": ((30, 30), 2.0, 0.0),
        "short lines": ((100, 16), 1.5, 0.0),
        "long lines": ((16, 100), 1.5, 0.0),
        "rough": ((40, 40), 1.0, 0.0),
        "three dimensions": ((12, 12, 12), 1.5, 0.0),
        "gaps in the lines": ((40, 40), 2.0, 0.15),
    }
    for name, (shape, sd, missing) in cases.items():
        for seed in range(3):
            rng = np.random.default_rng([seed, 5])
            found = serial_dependence(number_scores(grid(rng, shape, sd, missing)[:, None]))
            assert found is not None, name
            assert found.is_open, name
            assert found.grid, name
    for period in (24, 24.3):  # a season has blocks, as before
        x = np.sin(np.arange(1200) * 2 * math.pi / period) + np.random.default_rng(6).standard_normal(1200)
        found = serial_dependence(number_scores(x[:, None]))
        assert found is not None
        assert found.grid == 0
        assert not found.is_open


def test_many_short_lines_of_a_grid_are_blocks() -> None:
    """The variance of the mean over these blocks is the one that a hundred grids have."""
    ratios, means = [], []
    for seed in range(100):
        x = grid(np.random.default_rng([seed, 6]), (400, 12), 0.7)
        means.append(x.mean())
        if seed < 10:
            found = serial_dependence(number_scores(x[:, None]))
            assert found is not None
            assert found.grid == 12
            assert found.labels is not None
            of_blocks = np.bincount(found.labels, x) / np.bincount(found.labels)
            ratios.append(found.correction * of_blocks.var(ddof=1) / len(of_blocks))
    assert 0.7 < np.mean(ratios) / np.mean(np.square(means)) < 1.5


def test_one_missing_row_moves_all_later_turns() -> None:
    for seed in range(5):
        rng = np.random.default_rng([seed, 7])
        panel = (rng.standard_normal((1, 80)) + rng.standard_normal((12, 80))).ravel()
        kinds = []
        for x in (panel, np.delete(panel, 450)):
            found = serial_dependence(number_scores(x[:, None]))
            kinds.append(found and found.kind)
        assert kinds == ["period", "uneven"], seed
