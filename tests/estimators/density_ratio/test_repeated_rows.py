"""Vectors of few bits: the classifiers' estimate, and what they miss at vectors that occur again."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from kullback import Estimate, Samples, kl_estimate
from kullback.estimators.density_ratio.classifiers import missed, share_of_repeated
from kullback.estimators.logistic import Labeled

EVERY = np.array(list(itertools.product([0, 1], repeat=10)))


def product(probability: float) -> np.ndarray:
    return np.prod(np.where(EVERY == 1, probability, 1 - probability), axis=1)


def tilted(p: np.ndarray, log_ratio: np.ndarray) -> np.ndarray:
    weights = p * np.exp(log_ratio)
    return weights / weights.sum()


SIGNS = 1 - 2 * EVERY
UNIFORM = product(0.5)
OF_PAIRS = tilted(UNIFORM, 0.25 * (SIGNS[:, 0] * SIGNS[:, 1] + SIGNS[:, 2] * SIGNS[:, 3] - SIGNS[:, 4]))
OF_PARITY = tilted(UNIFORM, 0.8 * SIGNS.prod(1))
EVEN = np.where(SIGNS.prod(1) > 0, 1 / 512, 0.0)


def drawn(p: np.ndarray, seed: int, n: int) -> np.ndarray:
    return EVERY[np.random.default_rng(seed).choice(len(EVERY), n, p=p)]


def kl(p: np.ndarray, q: np.ndarray) -> float:
    return float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())


def upper(estimate: Estimate) -> float:
    return math.inf if estimate.interval is None else float(estimate.interval[1])


@pytest.mark.sweep
def test_vectors_of_ten_bits_have_finite_intervals_that_cover() -> None:
    covered = finite = repetitions = 0
    for p, q in ((UNIFORM, UNIFORM), (UNIFORM, product(0.4)), (OF_PAIRS, UNIFORM)):
        for n in (300, 700):
            estimate = kl_estimate(Samples(drawn(p, n, n)), Samples(drawn(q, n + 1, n)))
            repetitions += 1
            low = 0.0 if estimate.interval is None else float(estimate.interval[0])
            covered += low <= kl(p, q) <= upper(estimate)
            finite += upper(estimate) < 1.0
    assert covered == repetitions, covered
    assert finite >= 0.75 * repetitions, finite


@pytest.mark.sweep
def test_the_allowance_covers_what_constant_log_odds_miss() -> None:
    for p, most_open in ((UNIFORM, 0.12), (tilted(UNIFORM, 0.3 * SIGNS.prod(1)), 0.5), (OF_PARITY, 1.0)):
        for n in (300, 1000):
            covered = is_open = 0
            for seed in range(60):
                x = np.concatenate([drawn(p, seed, n), drawn(UNIFORM, 1000 + seed, n)]).astype(float)
                draws = Labeled(x, np.arange(2 * n) < n, np.ones(2 * n), np.arange(2 * n))
                half = np.random.default_rng(seed).integers(0, 2, 2 * n)
                shift = missed(draws, [half], [np.zeros(2 * n)], 0.95)
                covered += shift.nats >= kl(p, UNIFORM)
                is_open += shift.nats == math.inf
            assert covered >= 54, (n, covered)
            assert is_open <= 60 * most_open, (n, is_open)


def test_too_few_equal_rows_show_nothing() -> None:
    x = np.arange(40.0)[:, None]
    draws = Labeled(x, np.arange(40) < 20, np.ones(40), np.arange(40))
    assert share_of_repeated(x, draws.units) == 0.0
    assert share_of_repeated(np.repeat(x, 2, axis=0), np.repeat(np.arange(40), 2)) == 0.0
    assert share_of_repeated(np.repeat(x, 2, axis=0), np.arange(80)) == 1.0
    shift = missed(draws, [np.arange(40) % 2], [np.zeros(40)], 0.95)
    assert shift.nats == math.inf
    assert "Too few samples have equal coordinates" in shift.note


@pytest.mark.sweep
@pytest.mark.parametrize("as_numbers", [False, True])
def test_a_parity_that_the_classifiers_miss_opens_the_interval(as_numbers: bool) -> None:
    for p in (OF_PARITY, EVEN):
        x, y = drawn(p, 1, 1000), drawn(UNIFORM, 2, 1000)
        if as_numbers:
            estimate = kl_estimate(Samples(x.astype(float)), Samples(y.astype(float)))
            assert any("the classifiers miss about" in note for note in estimate.notes), estimate.notes
        else:
            estimate = kl_estimate(Samples(x), Samples(y))
        assert upper(estimate) == math.inf, estimate
        assert estimate.interval is None or float(estimate.interval[0]) <= kl(p, UNIFORM)


@pytest.mark.sweep
def test_other_codes_and_another_order_of_rows_give_the_same_interval() -> None:
    x, y = drawn(UNIFORM, 3, 400), drawn(product(0.45), 4, 400)
    wanted = kl_estimate(Samples(x), Samples(y))
    assert wanted.method == "density_ratio"
    assert any("classifiers of the components" in note for note in wanted.notes)
    rng = np.random.default_rng(0)
    for change in (lambda z: z.astype(bool), lambda z: 5 + 2 * z, rng.permutation):
        other = kl_estimate(Samples(change(x), independent=True), Samples(change(y), independent=True))
        assert upper(other) == pytest.approx(upper(wanted), rel=1e-6), change


def test_components_with_more_values_weights_and_clusters_have_intervals() -> None:
    rng = np.random.default_rng(5)
    x, y = (np.stack([rng.integers(0, k, 600) for k in (5, 4, 3, 3, 2)], axis=1) for _ in "xy")
    for options in ({}, {"weights": rng.uniform(0.5, 1.5, 600)}, {"cluster": np.repeat(np.arange(200), 3)}):
        estimate = kl_estimate(Samples(x, **options), Samples(y, **options))
        assert estimate.interval is not None, options
        assert float(estimate.interval[0]) == 0.0, options
        assert upper(estimate) < 0.7, (options, estimate)
