"""Sources that miss turns are seen in the spectrum of categories and numbers; independent rows and cycles are not taken
for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kullback.common import turn_spectrum
from kullback.common.serial_dependence import category_scores, number_scores, serial_dependence
from kullback.common.turn_spectrum import spectral_turns

Array = np.ndarray[Any, Any]


def states(rng: np.random.Generator, units: int, times: int, categories: int, kept: float) -> Array:
    """Draw the category of each unit at each time, which it keeps from time to time with a probability."""
    shares = np.arange(categories, 0, -1) / (categories * (categories + 1) / 2)
    x = rng.choice(categories, (times, units), p=shares)
    for t in range(1, times):
        x[t] = np.where(rng.random(units) < kept, x[t - 1], x[t])
    return x


def scores(x: Array) -> Array:
    if x.dtype.kind == "i":
        return category_scores(np.unique(x, return_inverse=True)[1])
    return number_scores(x.reshape(len(x), -1))


def test_the_density_is_the_fourier_series_of_the_correlations() -> None:
    k = np.arange(1, 400)
    for f, m, gap, share, part in (
        (0.03, 30.0, 0.1, 0.6, 0.85),
        (0.11, 17.5, 0.3, 0.3, 0.95),
        (0.2, 10.0, 0, 1, 0.5),
    ):
        correlations = share * part**k * np.exp(-2 * np.pi**2 * f**2 * gap * m * k)
        series = 1 + 2 * (correlations * np.cos(2 * np.pi * f * m * k)).sum()
        size = part * np.exp(-2 * np.pi**2 * f**2 * gap * m)
        density = turn_spectrum._density(2 * np.cos(2 * np.pi * f * m), share, size)
        assert density == pytest.approx(series, rel=1e-9)


def test_independent_rows_have_no_turns() -> None:
    draws: dict[str, Callable[[np.random.Generator, int], Array]] = {
        "normal": lambda rng, n: rng.standard_normal(n),
        "heavy tails": lambda rng, n: rng.standard_cauchy(n),
        "three columns": lambda rng, n: rng.standard_normal((n, 3)),
        "mostly 0": lambda rng, n: np.where(rng.random(n) < 0.8, 0.0, rng.exponential(size=n)),
        "counts": lambda rng, n: rng.poisson(0.3, n).astype(float),
        "coin": lambda rng, n: rng.integers(0, 2, n),
        "rare category": lambda rng, n: (rng.random(n) < 0.04).astype(int),
        "unequal categories": lambda rng, n: rng.choice(5, n, p=[0.5, 0.3, 0.15, 0.03, 0.02]),
        "many categories": lambda rng, n: rng.integers(0, 100, n),
        "one category": lambda _, n: np.zeros(n, dtype=int),
        "a category for each row": lambda rng, n: rng.permutation(n),
    }
    for name, draw in draws.items():
        for seed, n in enumerate([5, 40, 60, 60, 150, 150, 150, 300, 300, 300, 1100]):
            rng = np.random.default_rng([seed, 31])
            assert spectral_turns(scores(draw(rng, n)), scores(draw(rng, n + 7))) is None, (name, n)


def test_panels_of_categories_with_gaps_are_seen() -> None:
    for categories, kept, gap, least in (
        (2, 0.8, 0.1, 8),
        (5, 0.8, 0.3, 7),
        (2, 0.95, 0.3, 5),
        (5, 0.95, 0.45, 5),
    ):
        seen = []
        for seed in range(8):
            rng = np.random.default_rng([seed, 32])
            sides = [states(rng, 40, 15, categories, kept).ravel()[rng.random(600) >= gap] for _ in range(2)]
            distance = spectral_turns(*map(scores, sides))
            seen += [] if distance is None else [distance]
        assert len(seen) >= least, (categories, kept, gap)
        assert 0.8 < np.median(seen) / (40 * (1 - gap)) < 1.2, (categories, kept, gap)


def test_more_searches_need_more_evidence() -> None:
    rng = np.random.default_rng(33)
    side = scores(states(rng, 40, 15, 2, 0.8).ravel()[rng.random(600) >= 0.1])
    assert spectral_turns(side) is not None
    assert spectral_turns(side, searches=10**30) is None


def test_periods_blocks_and_cycles_are_not_taken_for_missed_turns() -> None:
    """Complete panels keep their period, and rows that resemble their neighbors keep their blocks."""
    time = np.arange(900)

    def panel(rng: np.random.Generator) -> Array:
        return (rng.standard_normal((1, 40)) + rng.standard_normal((15, 40))).ravel()

    def together(rng: np.random.Generator) -> Array:
        return np.repeat(0.4 * rng.standard_normal(40), 30) + rng.standard_normal(1200)

    draws: dict[str, tuple[Callable[[np.random.Generator], Array], set[str]]] = {
        "panel": (panel, {"period"}),
        "panel of categories": (lambda rng: states(rng, 40, 15, 3, 0.8).ravel(), {"period", "uneven"}),
        "groups together": (together, {"blocks"}),
        "season": (lambda rng: np.sin(2 * np.pi * time / 30) + rng.standard_normal(900), {"blocks"}),
    }
    for name, (draw, kinds) in draws.items():
        uneven = 0
        for seed in range(6):
            dependence = serial_dependence(scores(draw(np.random.default_rng([seed, 34]))))
            assert dependence is not None, name
            assert dependence.kind in kinds, (name, seed)
            uneven += dependence.kind == "uneven"
        assert uneven <= 1, name


def test_a_panel_with_gaps_that_resembles_a_period_or_blocks_is_uneven() -> None:
    """Few units at many times show one by chance, if they are alike. Then phases, or blocks, are not independent."""
    kinds = []
    for seed in range(24):
        rng = np.random.default_rng([seed, 35])
        x = (3 * rng.standard_normal((1, 20)) + rng.standard_normal((20, 20))).ravel()
        dependence = serial_dependence(scores(x[rng.random(400) >= 0.1]))
        kinds += [] if dependence is None else [dependence.kind]
    assert kinds.count("uneven") >= 0.6 * len(kinds) > 0, kinds
