"""Intervals of samples whose weights are so unequal that few draws have most of the weight."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kullback import Samples, kl_estimate
from kullback.estimators.discrete.categorical_estimators import bias_corrected
from kullback.estimators.discrete.counts import count_categories
from kullback.estimators.draws import Draws

SHARES, OTHERS = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])


def pareto(rng, n):
    return 1 + rng.pareto(1.2, n)


def lognormal(rng, n):
    return np.exp(1.5 * rng.standard_normal(n))


def equal(rng, n):
    return None


def numbers(of_p, of_q, shift=0.0):
    """Return a function that draws both sides from normal distributions, with weights unrelated to the draws."""
    return lambda rng, n: (
        Samples(rng.standard_normal(n), weights=of_p(rng, n)),
        Samples(shift + rng.standard_normal(n), weights=of_q(rng, n)),
    )


def tilted(slope_p, slope_q):
    """Return a function that draws both sides from N(0, 1), with weights that make them N(slope, 1)."""

    def draw(rng, n):
        sides = ((rng.standard_normal(n), slope) for slope in (slope_p, slope_q))
        return tuple(Samples(x, weights=np.exp(slope * x)) for x, slope in sides)

    return draw


def categories(of_p, of_q, shares_q=SHARES):
    return lambda rng, n: (
        Samples(rng.choice(3, n, p=SHARES), weights=of_p(rng, n)),
        Samples(rng.choice(3, n, p=shares_q), weights=of_q(rng, n)),
    )


# Each case has a function that draws both sides, their KL, and the number of draws.
CASES = {
    "numbers, 100": (numbers(pareto, equal), 0.0, 100),
    "numbers, 500": (numbers(pareto, equal), 0.0, 500),
    "numbers of Q": (numbers(equal, pareto), 0.0, 500),
    "numbers on both sides": (numbers(pareto, pareto), 0.0, 100),
    "lognormal weights": (numbers(lognormal, equal), 0.0, 100),
    "shifted numbers": (numbers(pareto, equal, 0.7), 0.245, 500),
    "tilted apart, 500": (tilted(1.0, -0.5), 1.125, 500),
    "tilted apart, 2000": (tilted(1.0, -0.5), 1.125, 2000),
    "tilted alike, 500": (tilted(1.0, 1.0), 0.0, 500),
    "tilted alike, 2000": (tilted(1.0, 1.0), 0.0, 2000),
    "categories, 100": (categories(pareto, equal), 0.0, 100),
    "categories, 500": (categories(pareto, equal), 0.0, 500),
    "categories on both sides": (categories(pareto, pareto), 0.0, 500),
    "unlike categories": (
        categories(pareto, equal, OTHERS),
        float(SHARES @ np.log(SHARES / OTHERS)),
        500,
    ),
}


def intervals(name, repetitions, estimate=kl_estimate):
    draw, truth, n = CASES[name]
    found = (estimate(*draw(np.random.default_rng([7, i]), n)).interval for i in range(repetitions))
    return [(float(ends[0]) <= truth <= float(ends[1]), float(ends[1])) for ends in found if ends is not None]


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_intervals_hold_their_level(name):
    given = intervals(name, 200)
    assert len(given) >= 110  # otherwise no interval is given
    assert np.mean([covers for covers, _ in given]) >= 0.93
    assert np.mean([end < math.inf for _, end in given]) >= 0.6


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["js", "hellinger"])
@pytest.mark.parametrize("name", ["categories, 500", "categories on both sides"])
def test_intervals_of_bounded_kinds_hold_their_level(name, kind):
    given = intervals(name, 200, lambda p, q: bias_corrected(p, q, kind=kind))
    assert np.mean([covers for covers, _ in given]) >= 0.93


def test_a_draw_among_lighter_ones_limits_the_effective_number():
    """One draw has most of its category's weight: the counts are at most Kish's number, (sum w)^2 / sum w^2."""
    x = np.arange(400) % 20
    weights = np.where(np.arange(400) == 3, 100.0, 1.0)
    kish = weights.sum() ** 2 / (weights**2).sum()
    table = count_categories("kl_estimate", Samples(x, weights=weights), Samples(x))
    assert float(table.a.sum()) == pytest.approx(kish)
    assert any("400 draws of unequal weights" in note for note in table.notes)


def test_weights_that_follow_from_categories_do_not_limit_the_effective_number():
    x = np.arange(400) % 20
    weights = np.where(x == 3, 100.0, 1.0)
    assert Draws.of(Samples(x, weights=weights)).is_heavy
    table = count_categories("kl_estimate", Samples(x, weights=weights), Samples(x))
    kish = weights.sum() ** 2 / (weights**2).sum()
    assert float(table.a.sum()) > 3 * kish


def test_mild_weights_are_not_heavy():
    rng = np.random.default_rng(0)
    for weights in (np.exp(0.5 * rng.standard_normal(500)), rng.random(500), rng.integers(1, 6, 500) / 500):
        p, q = Samples(rng.standard_normal(500), weights=weights), Samples(rng.standard_normal(500))
        assert not Draws.of(p).is_heavy
        estimate = kl_estimate(p, q, generator=torch.Generator().manual_seed(0))
        assert estimate.interval is not None
        assert not any("unequal weights" in note for note in estimate.notes)
