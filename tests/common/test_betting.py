"""Intervals that hold at every look: exact enumeration of all orders, and seeded simulations of 10,000 looks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from kullback.common.arrays import Floats
from kullback.common.betting import log_wealth, lower_end, upper_end

POPULATIONS = {
    "equal": [0.3, 0.3, 0.3, 0.3, 0.3, 0.3],
    "one large": [0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
    "spread": [0.0, 0.1, 0.2, 0.45, 0.8, 1.0],
    "mostly large": [1.0, 1.0, 0.9, 1.0, 0.0, 1.0],
}


def all_orders(values: list[float], sizes: list[int]) -> tuple[Floats, Floats]:
    """The sums and sizes of the units in every order, each of shape (orders, units)."""
    orders = np.array(list(itertools.permutations(range(len(values)))))
    return (np.array(values) * np.array(sizes))[orders], np.array(sizes, dtype=float)[orders]


@pytest.mark.parametrize("values", POPULATIONS.values(), ids=POPULATIONS.keys())
@pytest.mark.parametrize("sizes", [[4] * 6, [1, 2, 3, 4, 5, 9]], ids=["equal sizes", "unequal sizes"])
def test_the_wealth_is_a_fair_game_over_all_orders(values: list[float], sizes: list[int]) -> None:
    sums, of_units = all_orders(values, sizes)
    mean = sums[0].sum() / of_units[0].sum()
    for x, m in ((sums, mean), (of_units - sums, 1 - mean)):
        wealth = np.exp(log_wealth(x, of_units, m))
        # The average over all orders is the expectation, and a fair game keeps it.
        np.testing.assert_allclose(wealth.mean(0), 1, rtol=1e-8)
        for error in (0.5, 0.2, 0.05):
            assert (wealth.max(1) >= 1 / error).mean() <= error
        # A mean above the true one is an unfair bet, which loses; one below wins.
        assert (np.exp(log_wealth(x, of_units, 1.1 * m)).mean(0) < 1 + 1e-12).all()


@pytest.mark.sweep
@pytest.mark.parametrize("values", POPULATIONS.values(), ids=POPULATIONS.keys())
@pytest.mark.parametrize("sizes", [[4] * 6, [1, 2, 3, 4, 5, 9]], ids=["equal sizes", "unequal sizes"])
def test_an_end_is_wrong_in_few_of_all_orders_and_exact_at_the_last_unit(
    values: list[float], sizes: list[int]
) -> None:
    sums, of_units = all_orders(values, sizes)
    mean, error = sums[0].sum() / of_units[0].sum(), 0.4
    wrong = np.zeros(2)
    for x, n in zip(sums[::45], of_units[::45], strict=True):
        lows = [lower_end(x[:read], n, low=0.0, error=error) for read in range(len(x) + 1)]
        highs = [upper_end(x[:read], n, high=1.0, error=error) for read in range(len(x) + 1)]
        assert lows[0] == 0
        assert highs[0] == 1
        assert lows[-1] == pytest.approx(mean, rel=1e-12)
        assert highs[-1] == pytest.approx(mean, rel=1e-12)
        rest = [n[read:].sum() / n.sum() for read in range(len(x) + 1)]
        for read, share in enumerate(rest):  # the certain bounds, whatever the unread units are
            known = x[:read].sum() / n.sum()
            assert lows[read] >= known - 1e-12
            assert highs[read] <= known + share + 1e-12
        wrong += max(lows[:-1]) > mean + 1e-9, min(highs[:-1]) < mean - 1e-9
    assert (wrong / len(sums[::45]) <= error).all()


@pytest.mark.sweep
def test_the_ends_follow_from_the_wealth_by_a_grid() -> None:
    generator = np.random.default_rng(5)
    sizes = generator.integers(3, 9, 60).astype(float)
    sums = generator.beta(1, 6, 60) * sizes
    grid = np.linspace(0, 1, 2_001)[1:-1]
    for read in (1, 7, 40, 59):
        x, limit = sums[:read], -math.log(0.05)
        certain = x.sum() / sizes.sum(), (x.sum() + sizes[read:].sum()) / sizes.sum()
        inside = [
            m for m in grid if certain[0] <= m <= certain[1]
            and log_wealth(x, sizes, m).max() < limit
            and log_wealth(sizes[:read] - x, sizes, 1 - m).max() < limit
        ]  # fmt: skip
        low, high = lower_end(x, sizes, low=0.0, error=0.05), upper_end(x, sizes, high=1.0, error=0.05)
        assert inside[0] - 1e-3 <= low <= inside[0]
        assert inside[-1] <= high <= inside[-1] + 1e-3
        # Another unit and another zero of the values change nothing but the numbers.
        shifted = lower_end(3 * x - 2 * sizes[:read], sizes, low=-2.0, error=0.05)
        assert shifted == pytest.approx(3 * low - 2, abs=1e-5)


def test_infinite_sums_leave_no_upper_end() -> None:
    sums, sizes = np.array([0.1, math.inf]), np.full(4, 2.0)
    assert lower_end(sums, sizes, low=0.0, error=0.05) == math.inf
    assert upper_end(sums, sizes, high=1.0, error=0.05) == math.inf
    assert upper_end(sums[:1], sizes, high=math.inf, error=0.05) == math.inf


def test_units_before_the_first_bet_count_without_a_bet() -> None:
    sums, sizes = np.array([0.9, 0.9, 0.1, 0.1]), np.ones(8)
    wealth = log_wealth(sums, sizes, 0.5, first=2)
    assert wealth[:2] == pytest.approx([0, 0], abs=1e-15)
    assert wealth[2] < 0


LOOKS, TEXTS = 10_000, 250


def texts(name: str) -> tuple[Floats, Floats]:
    """Values in [0, 1] of shape (texts, looks), each text in random order, and the sizes of the units."""
    generator = np.random.default_rng(sum(map(ord, name)))
    shape, sizes = (TEXTS, LOOKS), np.ones(LOOKS)
    if name == "heavy tails":
        values = np.minimum(generator.pareto(1.2, shape) / 500, 1)
    elif name == "rare rows":
        values = (np.arange(LOOKS) < 20) * np.ones(shape)
    elif name == "clusters":  # a text of five books, each with its own level
        values = np.repeat(generator.beta(0.5, 5, (TEXTS, 5)), LOOKS // 5, 1)
        values = values * generator.beta(5, 1, shape)
    elif name == "equal sides":  # the difference of two candidates whose means over the text are equal
        values = generator.beta(1, 20, shape)
        values = (1 + values - generator.permuted(values, axis=1)) / 2
    elif name == "unequal sizes":
        sizes = generator.integers(1, 50, LOOKS).astype(float)
        values = generator.beta(1, 20, shape) * (1 + 5 * (sizes > 40)) / 6
    else:
        values = generator.beta(2, 200, shape)
    return generator.permuted(values * sizes, axis=1) if name != "unequal sizes" else values * sizes, sizes


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["heavy tails", "rare rows", "clusters", "equal sides", "light tails"])
@pytest.mark.parametrize("error", [0.05, 0.2])
def test_no_look_of_ten_thousand_is_wrong_more_often_than_promised(name: str, error: float) -> None:
    sums, sizes = texts(name)
    means = sums.mean(1, keepdims=True)
    # Three standard errors of the share of wrong texts, if the promise were kept exactly.
    most = error + 3 * math.sqrt(error * (1 - error) / TEXTS)
    for x, m in ((sums, means), (1 - sums, 1 - means)):
        wrong = (log_wealth(x, sizes, m).max(1) >= -math.log(error)).mean()
        assert wrong <= most


@pytest.mark.sweep
def test_units_of_unequal_sizes_keep_the_promise() -> None:
    sums, sizes = texts("unequal sizes")
    generator = np.random.default_rng(8)
    order = generator.permuted(np.tile(np.arange(LOOKS), (TEXTS, 1)), axis=1)
    means = sums.sum(1, keepdims=True) / sizes.sum()
    sums, of_units = np.take_along_axis(sums, order, 1), sizes[order]
    for x, m in ((sums, means), (of_units - sums, 1 - means)):
        wrong = (log_wealth(x, of_units, m).max(1) >= -math.log(0.05)).mean()
        assert wrong <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / TEXTS)


@pytest.mark.sweep
def test_repeated_intervals_of_student_are_wrong_where_the_bets_are_not() -> None:
    """The control: the same texts mislead intervals that are made for one look, at 95 %."""
    sums, _ = texts("light tails")
    read = np.arange(1, LOOKS + 1)
    means = np.cumsum(sums, 1) / read
    variances = np.maximum(np.cumsum(sums**2, 1) / read - means**2, 0) * read / np.maximum(read - 1, 1)
    errors = np.sqrt(variances / read * (1 - read / LOOKS))
    wrong = np.abs(means - means[:, -1:])[:, 10:-1] > 1.96 * errors[:, 10:-1]
    assert wrong.any(1).mean() > 0.4


@pytest.mark.sweep
def test_the_ends_are_near_what_a_single_look_gives() -> None:
    """At 2,000 of 10,000 units, an end valid at all looks is at most 2.5 times as far as an end for one look."""
    sums, sizes = texts("light tails")
    for x in sums[:5]:
        error = 1.96 * x[:2000].std() / math.sqrt(2000) * math.sqrt(0.8)
        mean = x[:2000].mean()
        low = lower_end(x[:2000], sizes, low=0.0, error=0.025)
        high = upper_end(x[:2000], sizes, high=0.1, error=0.025)
        assert mean - 2.5 * error < low < mean < high < mean + 2.5 * error
