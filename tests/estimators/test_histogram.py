"""KL on the line from counts in bins: against closed forms, against nearest neighbors, and at the edges."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from kullback import Samples, kl_estimate
from kullback.errors import ArgumentValueError
from kullback.estimators import histogram
from tests.oracles.sample_cases import CASES, Case


def normal(rng, n):
    return rng.standard_normal((n, 1))


ON_THE_LINE = {
    **{name: CASES[name] for name in ("gauss1", "exponential", "cauchy1", "pareto", "far")},
    "equal": Case("equal", 0.0, normal, normal),
}


@functools.lru_cache(maxsize=4)
def estimates(name, n, repetitions):
    draws = [ON_THE_LINE[name].draws(n, seed) for seed in range(repetitions)]
    return draws, [histogram(Samples(x), Samples(y)) for x, y in draws]


def coverage(name, found):
    truth = ON_THE_LINE[name].truth
    return np.mean([bool(e.interval[0] <= truth <= e.interval[1]) for e in found])


def rmse(values, truth):
    return math.sqrt(np.mean(np.square(np.array(values) - truth)))


def nearest_neighbors(x, y):
    """Wang, Kulkarni and Verdu's estimates for k = 3, 4 and 5, by an independent library's neighbors."""
    own, other = cKDTree(x).query(x, [4, 5, 6])[0], cKDTree(y).query(x, [3, 4, 5])[0]
    return np.log(other / own).mean(0) + math.log(len(y) / (len(x) - 1))


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["gauss1", "cauchy1"])
def test_intervals_hold_the_divergence_as_often_as_they_say(name):
    _, found = estimates(name, 1000, 150)
    assert 0.92 <= coverage(name, found) <= 0.985
    assert np.mean([e.interval[1] == math.inf for e in found]) < 0.05


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["exponential", "pareto"])
def test_intervals_are_open_or_wide_where_three_draws_of_a_hundred_lie_beyond_q(name):
    """They carry 0.12 of the 0.31 nats, all of it extrapolated: half the intervals at most are open."""
    _, found = estimates(name, 1000, 150)
    assert coverage(name, found) >= 0.92
    finite = [e for e in found if e.interval[1] < math.inf]
    assert len(finite) > 75
    assert np.median([float(e.interval[1] - e.interval[0]) for e in finite]) < 0.3
    # The lower end, which needs no tail, is neither idle nor too high.
    lows = np.array([float(e.interval[0]) for e in found])
    assert np.mean(lows > ON_THE_LINE[name].truth) < 0.05
    assert np.median(lows) > 0.15


@pytest.mark.sweep
def test_intervals_hold_a_divergence_of_zero():
    _, found = estimates("equal", 1000, 150)
    assert 0.93 <= coverage("equal", found) <= 0.995
    highs = np.array([float(e.interval[1]) for e in found])
    # Two or three of P's draws may lie far beyond Q's by chance.
    assert np.mean(np.isinf(highs)) < 0.1
    assert all(e.interval[0] >= 0 for e in found)
    assert highs[np.isfinite(highs)].max() < 0.2


@pytest.mark.sweep
@pytest.mark.parametrize(("n", "least"), [(300, 0.87), (1000, 0.99)])
def test_a_part_of_a_uniform_outside_q_opens_the_interval(n, least):
    """3 % of P: nine draws of 300, where one or two are chance and five are not."""
    rng = np.random.default_rng(0)
    found = [histogram(Samples(rng.random(n)), Samples(0.97 * rng.random(n))) for _ in range(60)]
    assert np.mean([e.interval[1] == math.inf for e in found]) >= least
    equal = [histogram(Samples(rng.random(n)), Samples(rng.random(n))) for _ in range(60)]
    assert np.mean([e.interval[1] == math.inf for e in equal]) <= 0.15


def test_a_divergence_that_the_draws_cannot_show_has_no_upper_end():
    _, found = estimates("far", 1000, 40)
    assert coverage("far", found) == 1
    for estimate in found:
        low, high = estimate.interval
        assert low > 2
        assert high == math.inf
        assert "bins where Q has no samples" in " ".join(estimate.notes)


@pytest.mark.heavy
@pytest.mark.parametrize("name", list(ON_THE_LINE))
@pytest.mark.parametrize(("n", "repetitions"), [(1000, 40), (3000, 40)])
def test_the_error_is_less_than_that_of_nearest_neighbors(name, n, repetitions):
    truth = ON_THE_LINE[name].truth
    draws, found = estimates(name, n, repetitions)
    theirs = np.array([nearest_neighbors(x, y) for x, y in draws])
    ours = rmse([float(e.value) for e in found], truth)
    assert all(ours < rmse(theirs[:, i], truth) for i in range(3))


@pytest.mark.sweep
def test_unequal_numbers_of_draws():
    rng = np.random.default_rng(0)
    truth, values = ON_THE_LINE["gauss1"].truth, {}
    for n, m in ((1000, 20_000), (20_000, 1000)):
        found = [
            histogram(Samples(rng.standard_normal(n)), Samples(1 + 1.5 * rng.standard_normal(m)))
            for _ in range(40)
        ]
        values[n, m] = [float(e.value) for e in found]
        assert coverage("gauss1", found) >= 0.9
        assert found[0].n == (n, m)
        assert abs(np.mean(values[n, m]) - truth) < 0.02


def test_increasing_maps_change_nothing_where_both_have_draws():
    x, y = torch.randn(2, 5000, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    plain, mapped = histogram(Samples(x), Samples(y)), histogram(Samples(x.exp()), Samples(y.exp()))
    torch.testing.assert_close(mapped.value, plain.value)
    torch.testing.assert_close(mapped.interval, plain.interval)


def test_few_values_are_counted_one_by_one():
    rng = np.random.default_rng(3)
    x, y = rng.choice(6, 3000, p=[0.3, 0.3, 0.2, 0.1, 0.05, 0.05]), rng.choice(6, 3000)
    p = np.array([0.3, 0.3, 0.2, 0.1, 0.05, 0.05])
    found = histogram(Samples(x.astype(float)), Samples(y.astype(float)))
    assert found.interval[0] <= float((p * np.log(6 * p)).sum()) <= found.interval[1]
    assert "% of P's draws equal another one" in " ".join(found.notes)


def test_rounded_draws_are_noticed():
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal(4000).round(1), (1 + 1.5 * rng.standard_normal(4000)).round(1)
    found = histogram(Samples(x), Samples(y))
    assert found.interval[0] <= 0.3499 <= found.interval[1]
    assert len([note for note in found.notes if "rounded to a common step of 0.1" in note]) == 1
    # Of one side alone nothing is moved, and both sides' repeated values are said.
    found = histogram(Samples(x), Samples(y + 1e-3 * np.arange(4000).clip(max=2000)))
    assert len([note for note in found.notes if "equal another one" in note]) == 2


def test_an_atom_that_q_lacks_stays_finite_and_is_said():
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal(4000), rng.standard_normal(4000)
    x[:1000] = 0.25
    found = histogram(Samples(x), Samples(y))
    assert 0.25 * math.log(4) < float(found.value) < math.inf
    assert "25 % of P's draws equal another one" in " ".join(found.notes)


def test_the_same_draws_on_both_sides_are_noticed():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    found = histogram(Samples(x), Samples(x.flip(0)))
    assert found.value == 0
    assert "P and Q are the same draws." in found.notes


@pytest.mark.parametrize("value", [0.0, -3.5, 1e300])
def test_constant_draws_have_no_interval(value):
    found = histogram(Samples(np.full(500, value)), Samples(np.full(400, value)))
    assert found.value == 0
    assert found.interval is None
    assert "one of the bins" in " ".join(found.notes)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 1000), (1000, 1), (2, 3)])
def test_next_to_no_draws(n, m):
    rng = np.random.default_rng(6)
    found = histogram(Samples(rng.standard_normal(n)), Samples(rng.standard_normal(m)))
    assert math.isfinite(found.value)
    assert found.value >= 0
    if found.interval is None:
        assert "no interval" in " ".join(found.notes)
    else:
        assert found.interval[0] == 0


def test_disjoint_supports():
    rng = np.random.default_rng(7)
    found = histogram(Samples(rng.uniform(0, 1, 1000)), Samples(rng.uniform(5, 6, 1000)))
    assert found.interval[0] > 3
    assert found.interval[1] == math.inf
    assert math.isfinite(found.value)
    assert found.value > 6


@pytest.mark.parametrize("outlier", [1e300, -1e300, 1.7e308, 5e-324])
def test_a_huge_outlier_moves_next_to_nothing(outlier):
    rng = np.random.default_rng(8)
    x, y = rng.standard_normal(2000), 1 + 1.5 * rng.standard_normal(2000)
    plain = histogram(Samples(x), Samples(y))
    for side in (0, 1):
        sides = [x.copy(), y.copy()]
        sides[side][0] = outlier
        moved = histogram(*map(Samples, sides))
        assert float(moved.value) == pytest.approx(float(plain.value), abs=0.02)
        assert bool(moved.interval[1].isfinite())


def test_equal_weights_change_nothing_and_repeats_in_a_cluster_tell_nothing_new():
    rng = np.random.default_rng(9)
    x, y = rng.standard_normal(2000), 1 + 1.5 * rng.standard_normal(2000)
    plain = histogram(Samples(x), Samples(y))
    weighted = histogram(Samples(x, weights=np.full(2000, 0.5)), Samples(y, weights=np.full(2000, 3.0)))
    torch.testing.assert_close(weighted.value, plain.value, rtol=0.01, atol=0)
    torch.testing.assert_close(weighted.interval, plain.interval, rtol=0.02, atol=0)
    repeated = histogram(
        Samples(np.repeat(x, 6), cluster=np.repeat(np.arange(2000), 6)),
        Samples(np.repeat(y, 6), cluster=np.repeat(np.arange(2000), 6)),
    )
    torch.testing.assert_close(repeated.value, plain.value, rtol=0.03, atol=0)
    torch.testing.assert_close(repeated.interval, plain.interval, rtol=0.05, atol=0)
    assert "P's 2000 clusters" in " ".join(repeated.notes)


@pytest.mark.sweep
def test_weights_that_make_one_distribution_of_another():
    rng = np.random.default_rng(10)
    held = []
    for _ in range(40):
        x = 1.5 * rng.standard_normal(3000)
        weights = np.exp(-(x**2) / 2 + x**2 / 4.5)
        found = histogram(Samples(x, weights=weights), Samples(1 + 1.5 * rng.standard_normal(3000)))
        held.append(bool(found.interval[0] <= ON_THE_LINE["gauss1"].truth <= found.interval[1]))
    assert np.mean(held) >= 0.9


@pytest.mark.sweep
def test_clusters_widen_the_interval():
    rng = np.random.default_rng(11)
    ids = np.repeat(np.arange(50), 40)

    def clustered(location, scale):
        shared, own = rng.standard_normal((2, 2000))
        return location + scale * (math.sqrt(0.5) * shared[ids] + math.sqrt(0.5) * own)

    held, widths = [], []
    for _ in range(40):
        x, y = clustered(0, 1), clustered(1, 1.5)
        honest = histogram(Samples(x, cluster=ids), Samples(y, cluster=ids))
        naive = histogram(Samples(x), Samples(y))
        held.append(bool(honest.interval[0] <= ON_THE_LINE["gauss1"].truth <= honest.interval[1]))
        widths.append(
            float(honest.interval[1] - honest.interval[0]) / float(naive.interval[1] - naive.interval[0])
        )
    assert np.mean(held) >= 0.88
    assert np.median(widths) > 1.5


def test_the_number_of_bins_is_the_callers_if_he_says():
    x, y = torch.randn(2, 10_000, generator=torch.Generator().manual_seed(1))
    coarse = histogram(Samples(x), Samples(1 + 1.5 * y), bins=4)
    fine = histogram(Samples(x), Samples(1 + 1.5 * y))
    assert coarse.value < fine.value - 0.03


def test_the_same_draws_give_the_same_estimate_in_any_order_and_precision():
    x, y = torch.randn(2, 3000, generator=torch.Generator().manual_seed(1))
    first = histogram(Samples(x), Samples(y), generator=torch.Generator().manual_seed(0))
    again = histogram(Samples(x.flip(0)), Samples(y.double()), generator=torch.Generator().manual_seed(1))
    assert torch.equal(first.value, again.value)
    assert torch.equal(first.interval[1], again.interval[1])
    assert first.value.dtype == first.standard_error.dtype == torch.float64
    assert first.value.ndim == 0


@pytest.mark.parametrize(
    ("p", "q", "options", "message"),
    [
        (Samples([1, 2]), Samples([1, 2]), {}, "draws of numbers"),
        (Samples(torch.zeros(5, 2)), Samples(torch.zeros(5, 2)), {}, "draws of numbers"),
        (Samples([0.0, math.inf]), Samples([0.0, 1.0]), {}, "p=.*1 of 2 with an infinity"),
        (Samples([0.0, 1.0]), Samples([-math.inf, math.inf]), {}, "q=.*2 of 2 with an infinity"),
        (Samples([0.0, 1.0]), Samples([0.0, 1.0]), {"bins": 1}, "from 2 to 1,000,000"),
        (Samples([0.0, 1.0]), Samples([0.0, 1.0]), {"confidence": 95}, "between 0 and 1"),
        (Samples([0.0, 1.0]), Samples([0, 1]), {}, "categories"),
    ],
)
def test_what_cannot_be_counted_is_refused(p, q, options, message):
    with pytest.raises(ArgumentValueError, match=message):
        histogram(p, q, **options)


def test_a_gap_divides_a_bin():
    """A few draws far from all others must not share a bin with the last of these."""

    def drawn(share, seed):
        rng = np.random.default_rng(seed)
        return Samples(np.where(rng.random(2000) < share, 8 + rng.random(2000), rng.standard_normal(2000)))

    values = [float(histogram(drawn(0.03, seed), drawn(0.003, 1000 + seed)).value) for seed in range(60)]
    truth = 0.03 * math.log(10) + 0.97 * math.log(0.97 / 0.997)
    assert np.mean(values) == pytest.approx(truth, abs=0.004)


def test_atoms_that_share_bins_leave_the_upper_limit_open_with_a_remedy_that_works():
    atoms, shares = np.random.default_rng(5).standard_normal(200), np.linspace(1, 3, 200)
    shares = shares / shares.sum()
    truth = float((shares * np.log(shares / shares[::-1])).sum())
    for part, n in ((0.5, 300), (0.5, 200), (1.0, 300)):
        for dtype in (np.float64, np.float32):
            rng = np.random.default_rng(n)
            codes = [rng.choice(200, n, p=of_side) for of_side in (shares, shares[::-1])]
            x, y = (
                np.where(rng.random(n) < part, atoms[c], rng.standard_normal(n)).astype(dtype) for c in codes
            )
            found = kl_estimate(Samples(x), Samples(y))
            assert found.interval[0] <= part * truth, (part, n, dtype, found)
            assert found.interval[1] == math.inf, (part, n, dtype, found)
            assert any("which does not show how often each occurs" in note for note in found.notes), (part, n)
            assert not any("repeat:" in note for note in found.notes), (part, n, found.notes)
    # All draws at such values: their numbers are categories.
    low, high = kl_estimate(Samples(codes[0]), Samples(codes[1])).interval
    assert low <= truth <= high


def test_draws_rounded_to_float16_are_not_taken_for_atoms():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x, y = ((rng.standard_normal(2000) + shift).astype(np.float16) for shift in (0.0, 0.3))
        for dtype in (np.float16, np.float32, np.float64):
            found = histogram(Samples(x.astype(dtype)), Samples(y.astype(dtype)))
            assert not any("occur in both samples" in note for note in found.notes), (
                seed,
                dtype,
                found.notes,
            )
