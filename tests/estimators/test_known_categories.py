"""Intervals from counts of P's draws and a known Q: coverage, exact where two categories can be enumerated."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch.distributions import Bernoulli, Categorical, Distribution, Geometric, OneHotCategorical, Poisson

from kullback import Samples, kl_estimate
from kullback.estimators.known_categories import UnseenByP, ends_from_counts
from kullback.estimators.known_density import from_density


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def ends(x, q):
    estimate = from_density(Samples(x), q)
    return float(estimate.interval[0]), float(estimate.interval[1])


def exact_coverage(n, p, q):
    """Return how often the interval holds KL, over all counts of a category with p, and its mean width."""
    truth = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    of_q = Categorical(double([1 - q, q]))
    covered = width = 0.0
    for count in range(n + 1):
        probability = binom.pmf(count, n, p)
        if probability < 1e-6:
            continue
        low, high = ends([0] * (n - count) + [1] * count, of_q)
        covered += probability * (low <= truth + 1e-12 and truth <= high + 1e-12)
        width += probability * (high - low)
    return covered, width


@pytest.mark.parametrize(
    ("n", "p", "q"),
    [
        (30, 0.02, 0.5),
        (100, 0.02, 0.1),
        (100, 0.02, 0.5),
        (200, 0.01, 1e-4),
        (500, 0.01, 1e-4),
        (50, 0.05, 0.2),
        (300, 0.01, 0.05),
        (50, 0.1, 0.5),
        (50, 0.3, 0.5),
        (50, 0.06, 0.02),  # one draw is Q's own proportion
        (10, 0.3, 0.1),
        (50, 0.074, 1e-6),
        (1000, 0.001, 0.1),
        (40, 0.5, 0.1),
        (30, 0.5, 0.5),
    ],
)
def test_two_categories_are_covered(n, p, q):
    """Of all counts, as often as 95 % or nearly so, and by an interval that ends."""
    covered, width = exact_coverage(n, p, q)
    assert covered >= 0.945
    assert width < math.inf


def test_draws_of_one_category_leave_room_for_the_other():
    estimate = kl_estimate(Samples([0] * 30), Categorical(double([0.5, 0.5])))
    low, high = (float(end) for end in estimate.interval)
    most = 1 - 0.025 ** (1 / 30)  # of the other category, by the binomial distribution
    assert low <= math.log(2) + most * math.log(most) + (1 - most) * math.log1p(-most)
    assert high >= math.log(2)
    low, high = ends([0] * 200, Categorical(double([1 - 1e-4, 1e-4])))
    most = 1 - 0.025 ** (1 / 200)
    assert high > most * math.log(most / 1e-4) - most


def test_one_hot_draws_and_booleans_are_categories():
    p = double([0.98, 0.01, 0.01])
    q = double([0.9, 1e-4, 0.0999])
    x = torch.tensor([0] * 97 + [2] * 3)
    one_hot = torch.nn.functional.one_hot(x, 3)
    assert ends(one_hot, OneHotCategorical(q)) == pytest.approx(ends(x, Categorical(q)))
    assert ends(x, Categorical(q))[1] > float((p * (p / q).log()).sum())
    assert ends([0] * 28 + [1] * 2, Bernoulli(double(0.5))) == pytest.approx(
        ends([0] * 28 + [1] * 2, Categorical(double([0.5, 0.5])))
    )


def test_two_distributions_of_a_hundred_and_three_categories():
    p, q = np.array([0.98, 0.01, 0.01]), np.array([0.9, 1e-4, 0.0999])
    truth = float(np.sum(p * np.log(p / q)))
    found = [
        ends(np.random.default_rng(seed).choice(3, 50, p=p), Categorical(torch.from_numpy(q)))
        for seed in range(100)
    ]
    assert sum(low <= truth <= high for low, high in found) >= 91


def measured(draw, q, truth, repetitions):
    found = [ends(draw(np.random.default_rng(seed)), q) for seed in range(repetitions)]
    covered = sum(low <= truth <= high for low, high in found) / repetitions
    return covered, sum(high == math.inf for _, high in found) / repetitions


def zeta_against_geometric(power, p):
    k = np.arange(1.0, 2e6)
    weight = k**-power
    of_p = weight / weight.sum()
    return float(np.sum(of_p * (np.log(of_p) - math.log(p) - (k - 1) * math.log1p(-p))))


@pytest.mark.sweep
@pytest.mark.parametrize(("power", "p"), [(2.3, 0.3), (2.8, 0.5)])
def test_a_heavy_tail_of_log_ratios_is_allowed_for(power, p):
    """It is covered in 55 % and 84 % of draws otherwise; the truncated sum of 2.3 is within 2 %."""
    truth = zeta_against_geometric(power, p)
    covered, _ = measured(lambda rng: rng.zipf(power, 1000) - 1, Geometric(double(p)), truth, 100)
    assert covered >= 0.9


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("draw", "q", "truth"),
    [
        (lambda rng: rng.poisson(5, 200), Poisson(double(5.0)), 0.0),
        (lambda rng: rng.geometric(0.3, 200) - 1, Geometric(double(0.5)), 0.274327),
    ],
)
def test_a_light_tail_keeps_its_upper_end(draw, q, truth):
    covered, opened = measured(draw, q, truth, 100)
    assert covered >= 0.9
    assert opened <= 0.05


def test_clusters_count_as_fewer_draws():
    x = np.repeat(np.random.default_rng(0).integers(0, 3, 40), 5)
    q = Categorical(double([0.2, 0.3, 0.5]))
    clustered = from_density(Samples(x, cluster=np.arange(200) // 5), q).interval
    once = from_density(Samples(x[::5]), q).interval
    assert float(clustered[1] - clustered[0]) == pytest.approx(float(once[1] - once[0]), rel=0.25)
    assert float(clustered[1] - clustered[0]) > 1.5 * float(np.diff(ends(x, q))[0])
    one = from_density(Samples([0] * 100, cluster=np.arange(100) // 5), Categorical(double([0.5, 0.5])))
    assert float(one.interval[0]) < ends([0] * 100, Categorical(double([0.5, 0.5])))[0]


def test_many_categories_near_q_have_an_upper_end_no_lower_than_chance():
    """Of 500 degrees of freedom chi-squared is normal, and its end agrees with that of 300."""
    found = []
    for size in (300, 302):
        counts = np.random.default_rng(1).multinomial(20_000, np.full(size, 1 / size)).astype(float)
        log_q = np.full(size, -math.log(size))
        _, high = ends_from_counts(
            counts, log_q, UnseenByP(-math.inf, -math.inf), 2e4, 1.96, estimate=0.0, added=0.0
        )
        found.append(high)
    assert found[1] == pytest.approx(found[0], rel=0.05)


def test_vectors_too_many_to_list_have_the_rest_of_q_unseen():
    q = torch.distributions.Independent(Bernoulli(torch.full((2,), 0.5, dtype=torch.float64)), 1)
    low, high = ends(torch.zeros(30, 2), q)
    assert low < 2 * math.log(2) - 0.2
    assert high >= 2 * math.log(2)


def test_an_upper_end_below_zero_is_open():
    """A Q that gives twice the probability there is: every log p / q is -log 2."""

    class Twice(Distribution):
        support = Poisson(1.0).support

        def log_prob(self, value):
            return Poisson(double(5.0)).log_prob(value) + math.log(2)

    x = np.random.default_rng(0).poisson(5, 2000)
    estimate = from_density(Samples(x), Twice(validate_args=False))
    assert float(estimate.value) == 0
    assert float(estimate.interval[1]) == math.inf
    assert any("below 0" in note for note in estimate.notes)
