"""Divergences other than KL of categories: intervals that hold, and estimates with little bias."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch

from kullback import (
    Alpha,
    ChiSquared,
    Counts,
    JensenShannon,
    Renyi,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
    divergence,
    estimate,
)
from kullback.estimators.discrete.categorical_estimators import describe_kind, measured
from kullback.estimators.discrete.formulas import CategoryCounts
from kullback.generators import parse
from tests.oracles.sample_cases import zipf

BOUNDED = [JensenShannon(), JensenShannon(0.1), SquaredHellinger(), SkewKL(0.1), Alpha(0.9), TotalVariation()]
UNBOUNDED = [ChiSquared(), Alpha(1.5), Alpha(-1.0), Renyi(2.0)]
KINDS = [*BOUNDED, Renyi(0.5), *UNBOUNDED]
LARGEST = {"js:0.5": math.log(2), "js:0.1": 0.32508297, "hellinger": 1.0, "tv": 1.0, "alpha:0.9": 1 / 0.09}


TOGETHER = [([50, 50, 0], [0, 0, 90]), ([1, 1, 1, 0, 0], [0, 0, 0, 1, 1]), ([9], [9]), ([1], [1])]


def truth(kind, p, q):  # noqa: PLR0911  # one for each formula
    """By the definition, in float64: sums over the categories that have mass."""
    p, q = (np.asarray(x, float) for x in (p, q))
    if isinstance(kind, TotalVariation):
        return np.abs(p - q).sum() / 2
    if isinstance(kind, SquaredHellinger):
        return ((np.sqrt(p) - np.sqrt(q)) ** 2).sum() / 2
    if isinstance(kind, JensenShannon):
        m = kind.beta * p + (1 - kind.beta) * q
        return kind.beta * scipy.stats.entropy(p, m) + (1 - kind.beta) * scipy.stats.entropy(q, m)
    if isinstance(kind, SkewKL):
        return scipy.stats.entropy(p, kind.alpha * p + (1 - kind.alpha) * q)
    alpha = 2.0 if isinstance(kind, ChiSquared) else kind.alpha
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where((p > 0) & (q > 0), p**alpha * q ** (1 - alpha), 0.0)
    if (alpha > 1 and bool((p[q == 0] > 0).any())) or (alpha < 0 and bool((q[p == 0] > 0).any())):
        return math.inf
    if isinstance(kind, Renyi):
        if terms.sum() == 0:
            return math.inf
        return math.log(terms.sum()) / (alpha - 1)
    return (terms.sum() - 1) / (1.0 if isinstance(kind, ChiSquared) else alpha * (alpha - 1))


def interval_of(kind, a, b):
    """The ends for each row of counts."""
    table = CategoryCounts.of(torch.as_tensor(a), torch.as_tensor(b))
    low, high = describe_kind(table, kind, 0.95).ends
    assert not bool((low.isnan() | high.isnan()).any())
    assert bool((low <= high).all())
    return low, high


def held(interval, t):
    """Say which intervals hold t; one that is all there can be holds it."""
    low, high = interval
    return ((low <= t + 1e-12) & (t <= high + 1e-12)).numpy()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("n", "m"), [(20, 20), (30, 60)])
def test_intervals_hold_by_enumeration_of_all_counts_of_two_categories(kind, n, m):
    first, second = (x.ravel() for x in np.meshgrid(np.arange(n + 1), np.arange(m + 1), indexing="ij"))
    a, b = np.stack([first, n - first], -1), np.stack([second, m - second], -1)
    interval = interval_of(kind, a, b)
    for p in (0.02, 0.1, 0.3, 0.5, 0.9):
        for q in (0.02, 0.05, 0.1, 0.3, 0.5):
            weight = scipy.stats.binom.pmf(first, n, p) * scipy.stats.binom.pmf(second, m, q)
            assert weight @ held(interval, truth(kind, [p, 1 - p], [q, 1 - q])) >= 0.93, (p, q)


CASES = {
    "P = Q": (np.full(5, 0.2), np.full(5, 0.2), 200, 200),
    "P = Q, a hundred": (np.full(100, 0.01), np.full(100, 0.01), 1000, 1000),
    "few draws": (np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.3, 0.5]), 30, 60),
    "unequal sizes": (np.array([0.4, 0.3, 0.15, 0.1, 0.05]), np.full(5, 0.2), 100, 2000),
    "Zipf": (zipf(100, 1.1), zipf(100, 0.8), 1000, 1000),
    "most categories unseen": (zipf(1000, 1.1), zipf(1000, 0.8), 300, 300),
    "one category differs": (
        np.r_[0.05, np.full(99, 0.95 / 99)],
        np.r_[0.01, np.full(99, 0.99 / 99)],
        1000,
        1000,
    ),
    "Q lacks a category": (np.array([0.5, 0.47, 0.03]), np.array([0.5, 0.5, 0.0]), 200, 200),
    "nothing in common": (np.array([0.5, 0.5, 0, 0]), np.array([0, 0, 0.5, 0.5]), 100, 100),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("case", CASES)
def test_intervals_hold_on_draws(case, kind):
    p, q, n, m = CASES[case]
    repetitions = 30 if len(p) > 500 else 100
    rng = np.random.default_rng(len(case))
    a, b = rng.multinomial(n, p, repetitions), rng.multinomial(m, q, repetitions)
    slack = 2 * math.sqrt(0.93 * 0.07 / repetitions)
    assert held(interval_of(kind, a, b), truth(kind, p, q)).mean() >= 0.93 - slack


@pytest.mark.parametrize("kind", BOUNDED, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("a", "b"), TOGETHER)
def test_bounded_kinds_have_finite_ends_whatever_is_unseen(kind, a, b):
    found = estimate(Counts(a), Counts(b), kind=kind)
    low, high = found.interval
    assert 0 <= low <= high < math.inf
    if kind.name in LARGEST:
        assert float(high) <= LARGEST[kind.name] + 1e-6


@pytest.mark.parametrize("kind", UNBOUNDED, ids=lambda kind: kind.name)
def test_unbounded_kinds_have_no_end_where_a_draw_is_alone(kind):
    p, q = Counts([50, 40, 3]), Counts([60, 70, 0])
    sides = (q, p) if kind == Alpha(-1.0) else (p, q)
    found = estimate(*sides, kind=kind)
    assert found.interval[1] == math.inf
    assert found.interval[0] < math.inf
    assert "upper limit is infinite" in " ".join(found.notes)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["chi2", "alpha:3", "renyi:2"])
def test_powers_are_estimated_without_bias(name):
    """The mean over all counts, each weighted by its probability."""
    n, p, q = 40, 0.35, 0.5
    first, second = (x.ravel() for x in np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij"))
    weight = scipy.stats.binom.pmf(first, n, p) * scipy.stats.binom.pmf(second, n, q)
    kind = parse(name)
    sides = (torch.tensor(np.stack([x, n - x], -1)) for x in (first, second))
    found = measured(kind, CategoryCounts.of(*sides))
    wanted, plain = truth(kind, [p, 1 - p], [q, 1 - q]), found.value.numpy()
    if name == "renyi:2":  # whose power is what has no bias
        wanted, plain = math.exp(wanted), np.exp(plain)
    # The value is cut at 0, which only the half of a percent of counts near P = Q feels.
    assert abs(weight @ plain - wanted) < 0.25 * abs(
        weight @ self_plugin(kind, name, first, second, n) - wanted
    )


def self_plugin(kind, name, first, second, n):
    a, b = np.stack([first, n - first], -1) / n, np.stack([second, n - second], -1).clip(0.5) / n
    values = np.array([truth(kind, x, y / y.sum()) for x, y in zip(a, b, strict=True)])
    return np.exp(values) if name == "renyi:2" else values


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [*BOUNDED, Renyi(0.5)], ids=lambda kind: kind.name)
def test_bounded_kinds_lose_most_of_their_bias(kind):
    p, q = zipf(10, 1.0), np.full(10, 0.1)
    rng = np.random.default_rng(1)
    a, b = (torch.from_numpy(rng.multinomial(200, x, 2000)) for x in (p, q))
    wanted = truth(kind, p, q)
    value = measured(kind, CategoryCounts.of(a, b)).value
    plain = divergence(Counts(a.double()), Counts(b.double()), kind)
    assert abs(float(value.mean()) - wanted) < 0.4 * abs(float(plain.mean()) - wanted)


def test_the_intervals_of_renyi_are_those_of_its_power():
    a, b = Counts([300, 200, 100]), Counts([100, 200, 250])
    for alpha in (0.3, 1.7):
        ends = [
            torch.log1p(alpha * (alpha - 1) * x) / (alpha - 1)
            for x in estimate(a, b, kind=Alpha(alpha)).interval
        ]
        torch.testing.assert_close(list(estimate(a, b, kind=Renyi(alpha)).interval), ends)
    for kind, same in (("alpha:1", "kl"), ("renyi:1", "kl"), ("alpha:0", "reverse_kl"), ("skew:0", "kl")):
        assert estimate(a, b, kind=kind).interval == estimate(a, b, kind=same).interval


def test_standard_errors_are_the_spread_of_the_values():
    p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.2, 0.2, 0.3, 0.3])
    rng = np.random.default_rng(2)
    a, b = (torch.from_numpy(rng.multinomial(1000, x, 500)) for x in (p, q))
    for kind in KINDS:
        found = measured(kind, CategoryCounts.of(a, b))
        assert float(found.error.mean()) == pytest.approx(float(found.value.std()), rel=0.12), kind


@pytest.mark.sweep
def test_more_draws_narrow_the_interval_to_the_truth():
    p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.2, 0.2, 0.3, 0.3])
    for kind in KINDS:
        widths = []
        for n in (10**3, 10**5, 10**9, 10**12):
            low, high = estimate(Counts(p * n), Counts(q * n), kind=kind).interval
            assert low <= truth(kind, p, q) <= high
            widths.append(float(high - low))
        assert widths[1] < widths[0] / 5
        assert widths[3] < 1e-3 * widths[0]
