"""KL from draws to a known density, against closed forms; infinities, weights, clusters and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import cauchy, norm
from torch.distributions import (
    Bernoulli,
    Categorical,
    Cauchy,
    Exponential,
    Geometric,
    Independent,
    MultivariateNormal,
    Normal,
    Poisson,
    Uniform,
    kl_divergence,
)

from kullback import Samples
from kullback.errors import ArgumentTypeError, ArgumentValueError, NoRuleError
from kullback.estimators.knn.pilot import local_log_density
from kullback.estimators.known_categories import category_surprise
from kullback.estimators.known_density import from_density
from tests.refusals import refused


def double(value):
    return torch.tensor(value, dtype=torch.float64)


Q = Normal(double(1.0), double(1.5))
TRUTH = math.log(1.5) + 2 / 4.5 - 0.5


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def estimated(x, q, seed=0, **options):
    return from_density(x if isinstance(x, Samples) else Samples(x), q, generator=seeded(seed), **options)


def covers(estimate, truth):
    return float(estimate.interval[0]) <= truth <= float(estimate.interval[1])


def coverage(draw, q, truth, repetitions):
    found = [estimated(draw(np.random.default_rng(seed)), q, seed) for seed in range(repetitions)]
    return sum(covers(each, truth) for each in found) / repetitions


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("draw", "q", "truth"),
    [
        (lambda rng: rng.standard_normal(200), Q, TRUTH),
        (lambda rng: rng.standard_cauchy(200), Cauchy(double(1.0), double(1.0)), math.log(5 / 4)),
        (lambda rng: rng.poisson(4, 1000), Poisson(double(5.0)), 4 * math.log(4 / 5) + 1),
    ],
)
def test_the_interval_covers(draw, q, truth):
    """A hundred repetitions: fewer than 90 of them are a chance of 2 % at 95 %."""
    assert coverage(draw, q, truth, 100) >= 0.89


def test_five_dimensions():
    mean = np.array([0.4, 0, 0, 0, 0])
    covariance = 0.3 ** np.abs(np.arange(5)[:, None] - np.arange(5))
    precision = np.linalg.inv(covariance)
    truth = (np.trace(precision) + mean @ precision @ mean - 5 + np.linalg.slogdet(covariance)[1]) / 2
    x = np.random.default_rng(0).standard_normal((1000, 5))
    estimate = estimated(x, MultivariateNormal(double(mean.tolist()), double(covariance.tolist())))
    assert covers(estimate, truth)
    assert abs(float(estimate.value) - truth) < 0.08  # without the reference draws it is 0.07 off on average
    assert estimate.method == "from_density"
    assert estimate.n == (1000, 0)


def test_five_dimensions_of_heavy_tails():
    """Where neighbors in the coordinates as they are give 0.54."""
    x = np.random.default_rng(0).standard_cauchy((1000, 5))
    q = Independent(Cauchy(torch.ones(5, dtype=torch.float64), double(1.0)), 1)
    estimate = estimated(x, q)
    assert covers(estimate, 5 * math.log(5 / 4))
    assert abs(float(estimate.value) - 5 * math.log(5 / 4)) < 0.15


def test_densities_with_an_edge_in_three_dimensions():
    x = np.random.default_rng(0).exponential(1, (1000, 3))
    q = Independent(Exponential(torch.full((3,), 2.0, dtype=torch.float64)), 1)
    estimate = estimated(x, q)
    assert covers(estimate, 3 * (1 - math.log(2)))
    assert abs(float(estimate.value) - 3 * (1 - math.log(2))) < 0.25


def test_equal_distributions():
    x = np.random.default_rng(0).standard_normal(1000)
    estimate = estimated(x, Normal(double(0.0), double(1.0)))
    assert covers(estimate, 0.0)
    assert abs(float(estimate.value)) < 0.06


def test_a_common_map_changes_nothing():
    """KL(exp(X) || LogNormal) is KL(X || Normal), though the estimates differ a little."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(2000))
    plain = estimated(x, Q)
    mapped = estimated(x.exp(), torch.distributions.LogNormal(double(1.0), double(1.5)))
    assert float(plain.value) == pytest.approx(float(mapped.value), abs=0.06)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (Poisson(4.0), Poisson(5.0)),
        (Poisson(100.0), Poisson(110.0)),
        (Bernoulli(0.3), Bernoulli(0.5)),
        (Geometric(0.3), Geometric(0.5)),
        (Categorical(torch.tensor([0.5, 0.3, 0.2])), Categorical(torch.tensor([0.2, 0.3, 0.5]))),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_integers(p, q, dtype):
    torch.manual_seed(1)
    x = p.sample((4000,)).to(dtype)
    estimate = estimated(x, q)
    assert covers(estimate, float(kl_divergence(p, q)))
    assert estimate.method == "from_density"
    assert float(estimate.standard_error) < 0.05


def test_booleans():
    estimate = estimated(np.random.default_rng(0).random(4000) < 0.3, Bernoulli(double(0.5)))
    assert covers(estimate, 0.3 * math.log(0.6) + 0.7 * math.log(1.4))


def test_many_categories_and_few_draws():
    """A thousand categories, mostly unseen in 1000 draws: what they add is taken off, and the interval is wide."""
    probabilities = np.arange(1, 1001) ** -1.1
    probabilities /= probabilities.sum()
    other = np.arange(1, 1001) ** -0.8
    other /= other.sum()
    x = np.random.default_rng(0).choice(1000, 1000, p=probabilities)
    estimate = estimated(x, Categorical(torch.from_numpy(other)))
    truth = float(np.sum(probabilities * np.log(probabilities / other)))
    assert covers(estimate, truth)
    assert any("without draws" in note for note in estimate.notes)


def test_the_entropy_of_categories_is_less_biased_than_the_shares():
    probabilities = np.full(200, 1 / 200)
    found, shares = [], []
    for seed in range(200):
        counts = np.bincount(np.random.default_rng(seed).choice(200, 300, p=probabilities), minlength=200)
        counts = counts[counts > 0].astype(float)
        surprise, unseen = category_surprise(counts, 300.0)
        found.append(counts @ surprise / 300 + unseen)
        shares.append(-(counts / 300) @ np.log(counts / 300))
    truth = math.log(200)
    assert abs(np.mean(found) - truth) < 0.03
    assert abs(np.mean(shares) - truth) > 0.2


def test_the_local_density_of_many_draws_is_the_density():
    x = np.random.default_rng(0).standard_normal((4000, 1))
    logs = local_log_density(x, (50, 200)).logs
    inner = np.abs(x[:, 0]) < 1.5
    assert np.abs(logs[inner, 0] - norm.logpdf(x[inner, 0])).mean() < 0.15
    heavy = np.random.default_rng(0).standard_cauchy((4000, 1))
    logs = local_log_density(heavy, (50, 200)).logs
    assert np.abs(logs[:, 0] - cauchy.logpdf(heavy[:, 0])).mean() < 0.15


def test_draws_outside_of_q_make_it_infinite():
    x = np.array([0.5, 1.5, -0.5] + [0.1 * i for i in range(50)])
    estimate = estimated(x, Exponential(double(1.0)))
    assert float(estimate.value) == math.inf
    assert "Q has density 0 at 1 of 53 draws, the first at index 2" in estimate.notes[0]
    bounded = estimated(
        np.random.default_rng(0).standard_normal((100, 2)), Independent(Uniform(torch.zeros(2), 1.0), 1)
    )
    assert float(bounded.value) == math.inf
    assert float(estimated(torch.tensor([0, 1, 1, -1, 2]), Poisson(double(5.0))).value) == math.inf


def test_an_atom_makes_it_infinite_and_a_tie_is_said():
    x = np.random.default_rng(0).standard_normal(500)
    atom = np.where(np.arange(500) < 100, 0.25, x)
    estimate = estimated(atom, Q)
    assert float(estimate.value) == math.inf
    assert "atom" in estimate.notes[0]
    tied = estimated(np.append(x, x[0]), Q)
    assert covers(tied, TRUTH)
    assert any("1 of 501 draws equal another" in note for note in tied.notes)


def test_draws_on_a_line_in_the_plane():
    x = np.random.default_rng(0).standard_normal((500, 1))
    q = MultivariateNormal(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    for flat in (np.hstack([x, 2 * x]), np.hstack([x, np.ones_like(x)])):
        estimate = estimated(flat, q)
        assert float(estimate.value) == math.inf
        assert "fewer than 2 dimensions" in estimate.notes[0]


def test_the_value_depends_on_the_draws_alone_and_the_global_generator_stays_as_it_was():
    x = np.random.default_rng(0).standard_normal(200)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = estimated(x, Q, 3)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.value, estimated(x, Q, 4).value)


def test_weights_make_draws_of_another_distribution():
    """Draws of N(0, 1.3²) weighted to N(0, 1), and of categories weighted to others."""
    x = 1.3 * np.random.default_rng(0).standard_normal(3000)
    weights = np.exp(-(x**2) / 2 + (x / 1.3) ** 2 / 2)
    assert covers(estimated(Samples(x, weights=weights), Q), TRUTH)
    assert not covers(estimated(Samples(x), Q), TRUTH)
    a, b = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    categories = np.random.default_rng(0).integers(0, 3, 5000)
    estimate = estimated(Samples(categories, weights=a[categories]), Categorical(torch.from_numpy(b)))
    assert covers(estimate, float(np.sum(a * np.log(a / b))))


def test_clusters_of_copies_count_once():
    x = np.random.default_rng(0).standard_normal((300, 1))
    copies = np.repeat(x, 5, axis=0) + 1e-6 * np.random.default_rng(1).standard_normal((1500, 1))
    groups = np.repeat(np.arange(300), 5)
    estimate = estimated(Samples(copies, cluster=groups), Q)
    once = estimated(x, Q)
    assert covers(estimate, TRUTH)
    assert float(estimate.standard_error) > 0.7 * float(once.standard_error)
    assert not covers(estimated(copies, Q), TRUTH)  # taken as independent, they look like atoms
    categories = np.repeat(np.random.default_rng(0).poisson(4, 300), 5)
    clustered = estimated(Samples(categories, cluster=groups), Poisson(double(5.0)))
    assert covers(clustered, 4 * math.log(4 / 5) + 1)
    assert float(clustered.standard_error) > 2 * float(
        estimated(categories, Poisson(double(5.0))).standard_error
    )


def test_clusters_that_are_all_alike_count_as_independent_draws():
    x = torch.arange(100) % 2
    q = Categorical(double([0.3, 0.7]))
    alike, free = (estimated(Samples(x, **options), q) for options in ({"cluster": np.arange(100) // 2}, {}))
    assert covers(alike, -math.log(0.21) / 2 - math.log(2))
    assert alike.interval[0] <= free.interval[0] + 0.001
    assert alike.interval[1] >= free.interval[1] - 0.001


def test_half_precision_draws():
    """Rounded to 11 bits: ties, but no atoms."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(500)).half()
    estimate = estimated(x, Normal(1.0, 1.5))
    assert estimate.value.dtype == torch.float64
    assert float(estimate.value) == pytest.approx(TRUTH, abs=0.12)


def test_a_distribution_without_sampling_or_support():
    class Bare(torch.distributions.Distribution):
        def log_prob(self, value):
            return Q.log_prob(value)

    x = np.random.default_rng(0).standard_normal(1000)
    assert covers(estimated(x, Bare(validate_args=False)), TRUTH)


@pytest.mark.parametrize(
    ("x", "q", "words"),
    [
        (torch.tensor([0.5]), Q, "at least 16 draws"),
        (torch.randn(12, 5), Independent(Normal(torch.zeros(5), 1.0), 1), "at least 16 draws"),
        (torch.randn(20, 40), Independent(Normal(torch.zeros(40), 1.0), 1), "at least 82 draws"),
        (torch.randn(50, 2), Q, "event_shape"),
        (torch.randn(50, 2), Normal(torch.zeros(2), 1.0), "Independent"),
        (torch.randn(50, 2), Independent(Normal(torch.zeros(3), 1.0), 1), "components"),
        (torch.tensor([math.inf] + [0.0] * 49), Q, "1 of 50 with an infinity or NaN, the first at index 0"),
    ],
)
def test_what_does_not_fit_is_refused(x, q, words):
    with refused(ArgumentValueError, says=words):
        from_density(Samples(x), q)


def test_too_few_clusters_are_refused():
    with refused(ArgumentValueError, wanted="clusters"):
        from_density(Samples(torch.randn(100), cluster=np.arange(100) % 5), Q)


def test_kinds_that_differ_are_refused():
    with refused(ArgumentTypeError, got="has a density"):
        from_density(Samples([1, 2, 3] * 10), Q)
    with refused(ArgumentTypeError, instead="strings"):
        from_density(Samples(["a", "b"] * 10), Poisson(1.0))
    with refused(ArgumentTypeError, wanted="Distribution"):
        from_density(Samples(torch.randn(30)), Samples(torch.randn(30)))


def test_the_other_way_round_is_explained():
    with refused(NoRuleError, instead=r"Samples\(p\.sample"):
        from_density(Q, Samples(torch.randn(30)))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (lambda rng: rng.beta(0.5, 0.5, 50), 0.241564),
        (lambda rng: rng.beta(3, 3, 200), 0.267864),
        (lambda rng: rng.uniform(0.1, 0.4, 200), math.log(1 / 0.3)),
    ],
)
def test_densities_with_edges_are_covered(draw, truth):
    """Where the reference that is nearer is chosen by chance, and where P's edges are sharper than either's."""
    assert coverage(draw, Uniform(double(0.0), double(1.0)), truth, 80) >= 0.9


def test_an_upper_end_below_zero_is_open():
    """A density that adds up to two: KL to it is -log 2."""

    class Twice(torch.distributions.Distribution):
        def log_prob(self, value):
            return Normal(double(0.0), double(1.0)).log_prob(value) + math.log(2)

    estimate = estimated(np.random.default_rng(0).standard_normal(300), Twice(validate_args=False))
    assert float(estimate.interval[1]) == math.inf
    assert any("below 0" in note for note in estimate.notes)


def unequal(*groups):
    """Return cluster labels from numbers of clusters and their sizes."""
    counts, sizes = np.array(groups).T
    return np.repeat(np.arange(counts.sum()), np.repeat(sizes, counts))


def drawn_in_clusters(cluster, shape, correlation=0.0):
    def draw(rng):
        own = rng.standard_normal((cluster.max() + 1, *shape))[cluster]
        free = rng.standard_normal((len(cluster), *shape))
        return Samples(correlation**0.5 * own + (1 - correlation) ** 0.5 * free, cluster=cluster)

    return draw


def drawn_with_weights(n, shape, weights, cluster=None):
    def draw(rng):
        return Samples(rng.standard_normal((n, *shape)), weights=weights(rng, n), cluster=cluster)

    return draw


def weighted_to_standard(n, sd, weights):
    """Draws of N(0, sd²), weighted to represent N(0, 1), times weights that are unrelated to the draws."""

    def draw(rng):
        x = sd * rng.standard_normal(n)
        return Samples(x, weights=np.exp(-(x**2) / 2 + (x / sd) ** 2 / 2) * weights(rng, n))

    return draw


def gamma(shape):
    return lambda rng, n: rng.gamma(shape, 1.0, n) + 1e-12


SHIFTED = Normal(double(0.5), double(1.0))
PLANE = MultivariateNormal(torch.full((2,), 0.5).double(), torch.eye(2).double())
FEW_LARGE, MILD = unequal((150, 1), (10, 30)), unequal((60, 2), (60, 5))
UNEQUAL = {
    "10 large clusters": (drawn_in_clusters(FEW_LARGE, ()), SHIFTED, 0.04),
    "10 large clusters, correlated": (drawn_in_clusters(FEW_LARGE, (), 0.5), SHIFTED, 0.06),
    "clusters of 2 and 5": (drawn_in_clusters(MILD, ()), SHIFTED, 0.04),
    "weights gamma(0.2)": (drawn_with_weights(450, (), gamma(0.2)), SHIFTED, 0.06),
    "weights gamma(1)": (drawn_with_weights(450, (), gamma(1.0)), SHIFTED, 0.06),
    "both": (drawn_with_weights(450, (), gamma(0.2), FEW_LARGE), SHIFTED, 0.06),
    "weights that depend on x": (weighted_to_standard(500, 1.3, gamma(50.0)), SHIFTED, 0.04),
    "weights that depend on x in part": (weighted_to_standard(1000, 1.3, gamma(1.0)), SHIFTED, 0.04),
    "2-D, 10 large clusters": (drawn_in_clusters(FEW_LARGE, (2,)), PLANE, 0.06),
    "2-D, weights gamma(1)": (drawn_with_weights(450, (2,), gamma(1.0)), PLANE, 0.06),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_unequal_clusters_and_weights_have_no_bias(name):
    """The mean value of 20 data sets is near the truth, and the intervals cover, for imbalances of every kind."""
    draw, q, near = UNEQUAL[name]
    estimates = [estimated(draw(np.random.default_rng([seed, 7])), q, seed) for seed in range(20)]
    truth = 0.125 if q is SHIFTED else 0.25
    assert abs(np.mean([float(estimate.value) for estimate in estimates]) - truth) < near
    assert sum(covers(estimate, truth) for estimate in estimates) >= 18


def test_a_few_heavy_weights_leave_an_estimate():
    """Five of 450 draws have most of the weight: as few effective draws as this once stopped the references."""
    x = np.random.default_rng(0).standard_normal(450)
    estimate = estimated(Samples(x, weights=np.where(np.arange(450) < 5, 1000.5, 1.0)), Q)
    assert covers(estimate, TRUTH)
