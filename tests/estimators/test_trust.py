"""Where draws cannot tell, estimates say so: an interval covers, is open above, or is refused with the right reason."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import digamma, gammaln
from torch.distributions import Laplace, Normal, StudentT, Uniform

from kullback import Samples, kl_estimate
from kullback.estimators import (
    coverage_adjusted,
    density_ratio,
    from_density,
    histogram,
    log_ratio,
    nearest_neighbors,
    variational_estimate,
)
from kullback.estimators.density_ratio import classifier_estimate
from kullback.estimators.draws import Draws, number_from_scores, variance_of_sum
from kullback.estimators.evidence import SIDE_P, SIDE_Q, note_on_sign
from kullback.estimators.surfaces import common_span
from kullback.estimators.tails import fit_tail_by_moments, heaviness, tail_allowance, unseen_by_q, upper_end

LITTLE = "divergence near 0"


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def coverage(draw_p, draw_q, truth, n, repetitions, estimate=kl_estimate):
    """How often the interval covers, and how often it is open above."""
    held = opened = 0
    for seed in range(repetitions):
        rng = np.random.default_rng([seed, n])
        p, q = (
            side if isinstance(side, Samples) else Samples(side) for side in (draw_p(rng, n), draw_q(rng, n))
        )
        low, high = map(float, estimate(p, q).interval)
        held += low <= truth <= high
        opened += math.isinf(high)
    return held / repetitions, opened / repetitions


def normal(shift=0.0, scale=1.0):
    return lambda rng, n: shift + scale * rng.standard_normal(n)


def student(dof):
    return lambda rng, n: rng.standard_t(dof, n)


def of_categories(*probabilities):
    return lambda rng, n: rng.choice(len(probabilities), n, p=probabilities)


def gaussian(covariance):
    root = np.linalg.cholesky(covariance)
    return lambda rng, n: rng.standard_normal((n, len(root))) @ root.T


# --- P where Q is not ------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("p", "q", "truth", "n"),
    [
        (student(3), normal(), 0.645540, 1000),
        (student(3), normal(0, 3**0.5), 0.194845, 1000),
        (student(5), normal(), 0.124769, 1000),
        (lambda rng, n: rng.random(n), lambda rng, n: 0.97 * rng.random(n), math.inf, 2000),
        (lambda rng, n: rng.standard_normal(n).round(1), normal(), math.inf, 1000),
        (of_categories(0.5, 0.47, 0.03), of_categories(0.5, 0.5 - 1e-9, 1e-9), 0.487420, 400),
        (of_categories(0.5, 0.49, 0.01), of_categories(0.5, 0.5, 0.0), math.inf, 2000),
        (lambda rng, n: rng.zipf(2.0, n), lambda rng, n: rng.zipf(2.5, n), 0.081029, 2000),
        (lambda rng, n: rng.geometric(0.1, n), lambda rng, n: rng.geometric(0.2, n), 0.366900, 2000),
    ],
)
def test_intervals_hold_where_p_reaches_beyond_q(p, q, truth, n):
    """40 repetitions: at 95 %, fewer than 35 have a chance of 1.4 %."""
    held, _ = coverage(p, q, truth, n, 40)
    assert held >= 0.875


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("p", "q", "truth", "most_open"),
    [
        (normal(), normal(), 0.0, 0.2),
        (normal(), normal(1, 1.5), 0.349910, 0.1),
        (lambda rng, n: rng.random(n), lambda rng, n: rng.random(n), 0.0, 0.2),
        (lambda rng, n: rng.exponential(1, n), lambda rng, n: rng.exponential(1, n), 0.0, 0.2),
        (lambda rng, n: rng.standard_cauchy(n), lambda rng, n: 1 + rng.standard_cauchy(n), 0.223144, 0.1),
        (lambda rng, n: rng.geometric(0.2, n), lambda rng, n: rng.geometric(0.1, n), 0.222015, 0.1),
        (of_categories(*[0.01] * 100), of_categories(*[0.01] * 100), 0.0, 0.1),
    ],
)
def test_intervals_are_not_open_without_need(p, q, truth, most_open):
    held, opened = coverage(p, q, truth, 1000, 40)
    assert held >= 0.875
    assert opened <= most_open


def test_an_atom_that_both_sides_have_is_no_reason_to_open():
    held, opened = coverage(
        lambda rng, n: rng.standard_normal(n) * (rng.random(n) > 0.3),
        lambda rng, n: rng.standard_normal(n) * (rng.random(n) > 0.3),
        0.0,
        1000,
        30,
    )
    assert held >= 0.85
    assert opened <= 0.2


def test_draws_of_p_in_a_gap_of_q_are_found():
    finite = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        y = rng.random(2000) + 2 * rng.integers(0, 2, 2000)
        x = rng.random(2000) + 2 * rng.integers(0, 2, 2000)
        finite += bool(histogram(Samples(x), Samples(y)).interval[1].isfinite())
        x[:40] = 1.1 + 0.8 * rng.random(40)
        found = histogram(Samples(x), Samples(y))
        assert float(found.interval[1]) == math.inf
        assert any("upper limit is infinite" in note for note in found.notes)
    assert finite >= 4  # one in ten is open by chance


def test_several_draws_beyond_q_are_said_where_the_upper_end_is_kept():
    y = np.sort(np.random.default_rng(0).standard_normal(96))
    x = np.append(y, y[-1] + np.arange(0.5, 2.5, 0.5))
    unseen = unseen_by_q(x, np.full(100, 0.01), y, 100)
    assert unseen.draws == pytest.approx(4)
    verdict = upper_end(unseen, 1.0)
    assert math.isfinite(verdict.nats)
    assert f"4 % of {SIDE_P}'s samples are outside the range of {SIDE_Q}'s samples" in verdict.note
    assert math.isinf(upper_end(unseen, 1e-3).nats)


def test_categories_that_q_never_showed_are_said_where_the_upper_end_is_kept():
    often, twice, once = np.arange(280).repeat(8), np.arange(280, 288).repeat(2), np.arange(288, 292)
    a, b = (
        np.arange(300).repeat(6),
        np.concatenate([often, twice, once]),
    )  # eight of P's categories Q never showed
    found = coverage_adjusted(Samples(a), Samples(b))
    assert bool(found.interval[1].isfinite())
    assert any("assumes that these categories" in note for note in found.notes)
    found = coverage_adjusted(Samples(np.append(a, [292] * 20)), Samples(b))
    assert float(found.interval[1]) == math.inf


@pytest.mark.sweep
def test_rare_categories_that_are_alike_keep_their_upper_end():
    weights = np.arange(1, 1001.0) ** -1.1
    held, opened = coverage(*[of_categories(*weights / weights.sum())] * 2, 0.0, 10_000, 20)
    assert held >= 0.85
    assert opened <= 0.2


# --- Vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_neighbors_that_resolve_q_poorly_give_way_to_a_classifier():
    correlated = np.array([[1, 0.9], [0.9, 1]])
    truth = (10.526315789473685 - 2 + math.log(0.19)) / 2
    for seed in range(3):
        rng = np.random.default_rng(seed)
        p, q = Samples(gaussian(np.eye(2))(rng, 1000)), Samples(gaussian(correlated)(rng, 1000))
        alone = nearest_neighbors(p, q)
        assert float(alone.interval[1]) == math.inf
        found = kl_estimate(p, q, generator=seeded(seed))
        assert found.method == "density_ratio"
        assert abs(float(found.value) - truth) < abs(float(alone.value) - truth)
        assert float(found.interval[0]) < truth


@pytest.mark.sweep
def test_separable_vectors_have_no_upper_end_and_a_value_that_depends_little_on_the_splits(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((150, 30)), rng.standard_normal((150, 30)) + 2
    found = []
    for seed in range(3):
        monkeypatch.setattr(classifier_estimate, "rng_of", lambda *_, s=seed: np.random.default_rng(s))
        found.append(density_ratio(Samples(x), Samples(y)))
    values = np.array([float(each.value) for each in found])
    assert np.ptp(values) < 1.5
    for each in found:
        assert float(each.interval[1]) == math.inf
        assert 1 < float(each.interval[0]) < 15 * 4 + 1e-9
        assert not any(LITTLE in note for note in each.notes)


def test_a_component_that_is_almost_always_zero_in_q_makes_nothing_infinite():
    """As pixels at the edge of an image are: not a plane, but an atom."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((300, 3)), rng.standard_normal((300, 3))
    x[:, 2] *= rng.random(300) < 0.3
    y[:, 2] = 0
    assert common_span(*map(Draws.of, (Samples(x), Samples(y)))).infinite == ""


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_total_among_the_components_changes_nothing(dtype):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((1000, 2)), rng.standard_normal((1000, 2)) + 0.5
    with_total = [Samples(np.column_stack([side, side.sum(1)]).astype(dtype)) for side in (x, y)]
    found = nearest_neighbors(*with_total)
    span = common_span(*map(Draws.of, with_total))
    plain = nearest_neighbors(span.p, span.q)
    assert span.p.tensor.shape == (1000, 2)
    assert float(found.value) == float(plain.value)
    assert float(found.interval[0]) <= 0.25 <= float(found.interval[1])
    assert any("follows from the others" in note for note in found.notes)


@pytest.mark.sweep
def test_proportions_are_covered():
    a, b = np.array([2.0, 3, 4, 5]), np.full(4, 3.0)
    constants = gammaln(a.sum()) - gammaln(b.sum()) - (gammaln(a) - gammaln(b)).sum()
    truth = float(constants + ((a - b) * (digamma(a) - digamma(a.sum()))).sum())
    held, _ = coverage(
        lambda rng, n: rng.dirichlet(a, n),
        lambda rng, n: rng.dirichlet(b, n),
        truth,
        1000,
        20,
        nearest_neighbors,
    )
    assert held >= 0.85


@pytest.mark.parametrize("estimate", [nearest_neighbors, density_ratio])
def test_planes_that_differ_are_infinitely_far(estimate):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((300, 2)), rng.standard_normal((300, 3))
    flat = Samples(np.column_stack([x, x.sum(1)]))
    for p, q in ((flat, Samples(y)), (Samples(y), flat)):
        found = estimate(p, q)
        assert float(found.value) == float(found.interval[0]) == math.inf
        assert "plane" in found.notes[0]


def test_few_draws_of_many_components_are_no_plane():
    rng = np.random.default_rng(0)
    p, q = (Draws.of(Samples(rng.random((20, 30)))) for _ in range(2))
    span = common_span(p, q)
    assert span.p is p
    assert span.infinite == ""


# --- Notes -----------------------------------------------------------------------------------------------------------


def test_little_divergence_is_said_only_where_the_error_is_small():
    assert LITTLE in note_on_sign(-0.01, 0.01)[0]
    assert LITTLE not in note_on_sign(-0.4, 0.5)[0]
    assert LITTLE not in note_on_sign(-0.4, math.inf)[0]
    assert note_on_sign(0.1, 1.0) == []


def test_samples_without_a_common_category_are_not_called_alike():
    found = coverage_adjusted(Samples(["a", "b", "c"] * 5), Samples(["d", "e", "f"] * 5))
    assert not any(LITTLE in note for note in found.notes)


# --- Known densities -------------------------------------------------------------------------------------------------

STANDARD = Normal(double(0.0), double(1.0))
T3 = StudentT(double(3.0), double(0.0), double(1.0))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("p", "q", "truth", "n", "largest_error"),
    [
        (STANDARD, T3, 0.0691516, 100, 0.06),
        (STANDARD, Laplace(double(0.0), double(1.0)), 0.0721106, 30, 0.06),
        (STANDARD, Laplace(double(0.0), double(1.0)), 0.0721106, 100, 0.06),
        (STANDARD, Laplace(double(0.0), double(1.0)), 0.0721106, 1000, 0.02),
    ],
)
def test_the_control_variate_does_no_harm(p, q, truth, n, largest_error):
    held, errors = 0, []
    for seed in range(60):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            x = p.sample((n,))
        found = log_ratio(Samples(x), p.log_prob, q.log_prob)
        held += float(found.interval[0]) <= truth <= float(found.interval[1])
        errors.append(float(found.value) - truth)
    assert held >= 51
    assert math.sqrt(np.mean(np.square(errors))) < largest_error


def test_heavy_log_ratios_are_covered():
    held = 0
    for seed in range(60):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            x = T3.sample((1000,))
        found = log_ratio(Samples(x), T3.log_prob, STANDARD.log_prob)
        held += float(found.interval[0]) <= 0.645540 <= float(found.interval[1])
    assert held >= 53
    assert any("tail" in note for note in found.notes)


@pytest.mark.sweep
def test_waves_against_a_known_uniform():
    held = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.random(8000)
        x = x[2 * rng.random(8000) < 1 + np.cos(40 * np.pi * x)][:1000]
        found = from_density(Samples(x), Uniform(double(0.0), double(1.0)), generator=seeded(seed))
        held += float(found.interval[0]) <= 1 - math.log(2) <= float(found.interval[1])
    assert held >= 16


@pytest.mark.sweep
@pytest.mark.parametrize(("shift", "n"), [(1.0, 100), (1.0, 1000), (2.0, 1000)])
def test_the_lower_end_of_a_critic_is_below_kl(shift, n):
    """With the best critic, whose bound is KL; 200 repetitions: 20 above have a chance below 0.2 % at 5 %."""
    lows = []
    for seed in range(200):
        draws = seeded(seed)
        x, y = (torch.randn(n, generator=draws, dtype=torch.float64) for _ in range(2))
        found = variational_estimate(Samples(x), Samples(y + shift), lambda z: shift**2 / 2 - shift * z)
        lows.append(float(found.interval[0]))
    assert np.mean(np.array(lows) > shift**2 / 2) < 0.1
    assert n < 1000 or np.median(lows) > 0.25 * shift**2


# --- Clusters --------------------------------------------------------------------------------------------------------


def clustered(shift=0.0, d=1):
    def draw(rng, n):
        group = np.repeat(np.arange(20), n // 20)
        x = (rng.standard_normal((20, d))[group] + rng.standard_normal((n, d))) / math.sqrt(2)
        return Samples(x + shift, cluster=group)

    return draw


@pytest.mark.sweep
def test_few_clusters_of_equal_distributions_are_covered():
    held, _ = coverage(clustered(), clustered(), 0.0, 1000, 60)
    assert held >= 0.88


@pytest.mark.sweep
def test_clusters_of_vectors_do_not_raise_the_value():
    rng = np.random.default_rng(0)
    found = [
        kl_estimate(clustered(d=3)(rng, 400), clustered(d=3)(rng, 400), generator=seeded(seed))
        for seed in range(3)
    ]
    assert all(each.method == "density_ratio" for each in found)
    assert np.mean([float(each.value) for each in found]) < 0.06


def test_the_variance_of_a_sum_takes_clusters_together():
    terms = double([1.0, -1.0, 2.0, -2.0])
    assert float(variance_of_sum(terms)) == pytest.approx(10 * 4 / 3)
    assert float(variance_of_sum(terms, torch.tensor([0, 0, 5, 5]))) == 0
    assert float(variance_of_sum(terms, torch.tensor([0, 1, 0, 1]))) == pytest.approx(18 * 2)
    assert float(variance_of_sum(terms[:1])) == math.inf


def test_copies_in_clusters_tell_what_one_of_each_tells():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 2))
    draws = Draws(torch.from_numpy(np.repeat(x, 4, axis=0)), cluster=np.repeat(np.arange(50), 4))
    assert number_from_scores(draws.x, draws) == pytest.approx(50)
    assert number_from_scores(x, Draws(torch.from_numpy(x))) == 50


# --- Tails -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [-0.5, 0.0, 0.3])
def test_a_tail_is_fitted_by_its_moments(shape):
    rng = np.random.default_rng(1)
    u = rng.random(20_000)
    x = np.sort(-np.log(u) if shape == 0 else (u**-shape - 1) / shape)
    found = fit_tail_by_moments(x)
    assert found.shape == pytest.approx(shape, abs=0.05)
    assert found.scale == pytest.approx(1, abs=0.05)
    assert float(found.log_survival(np.array([0.5]))[0]) == pytest.approx(
        math.log((x > 0.5).mean()), abs=0.05
    )


def test_the_allowance_grows_with_the_tail():
    rng = np.random.default_rng(0)
    shares = np.full(2000, 1 / 2000)
    light, heavy = rng.standard_normal(2000), rng.pareto(2.0, 2000)
    assert tail_allowance(np.ones(2000), shares, 2000) == 0
    assert 0 <= tail_allowance(light, shares, 2000) < 0.02
    assert tail_allowance(heavy, shares, 2000) > 0.1
    assert tail_allowance(rng.pareto(0.9, 2000), shares, 2000) == math.inf
    assert heaviness(light) < 0.1
    assert heaviness(heavy) > 0.3


# --- Global states ---------------------------------------------------------------------------------------------------


def test_no_estimate_changes_the_global_random_states():
    from sklearn.linear_model import SGDClassifier

    rng = np.random.default_rng(0)
    x, y = Samples(rng.standard_normal((100, 2))), Samples(rng.standard_normal((100, 2)))
    line = Samples(rng.standard_normal(100))
    before, legacy = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = density_ratio(x, y, generator=seeded(), classifier=SGDClassifier(loss="log_loss"))
    second = density_ratio(x, y, generator=seeded(), classifier=SGDClassifier(loss="log_loss"))
    kl_estimate(x, y, generator=seeded())
    from_density(line, STANDARD, generator=seeded())
    assert float(first.value) == float(second.value)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (np.random.get_state()[1] == legacy).all()  # noqa: NPY002


@pytest.mark.parametrize("against", ["numbers", "categories", "a density", "a critic"])
def test_draws_of_weight_0_are_not_there(against):
    random = np.random.default_rng(4)
    x, group = random.random(600), np.repeat(np.arange(60), 10)
    kept = (x < 0.9) & (group < 30)
    y = Samples(random.random(600))
    if against == "categories":
        x, y = (10 * x).astype(int), Samples((10 * y.tensor).long())

    def estimate(p, q):
        if against == "a critic":
            return variational_estimate(p, q, lambda at: 1 - at)
        return kl_estimate(p, q, generator=seeded())

    other = Uniform(0.0, 1.0) if against == "a density" else y
    weighted = Samples(x, weights=kept.astype(float), cluster=group)
    sides = [(weighted, other), (Samples(x[kept], cluster=group[kept]), other)]
    if against != "a density":
        sides += [(y, weighted), (y, Samples(x[kept], cluster=group[kept]))]
    found = [estimate(p, q) for p, q in sides]
    for one, same in zip(found[::2], found[1::2], strict=True):
        assert float(one.value) == pytest.approx(float(same.value), rel=1e-9)
        assert [*map(float, one.interval)] == pytest.approx([*map(float, same.interval)], rel=1e-9)


def test_the_variance_between_clusters_is_right_whatever_their_sizes():
    rng = np.random.default_rng(2)
    sizes = np.array([400, *[10] * 30, *[50] * 3])
    cluster = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))
    found = []
    for _ in range(400):
        x = torch.from_numpy(rng.standard_normal(len(sizes)))[cluster]
        found.append(float(variance_of_sum((x - x.mean()) / len(x), cluster)))
    assert np.mean(found) == pytest.approx(np.square(sizes / sizes.sum()).sum(), rel=0.1)


@pytest.mark.sweep
def test_intervals_hold_with_clusters_of_very_unequal_sizes():
    rng, missed = np.random.default_rng(9), 0
    probabilities = np.array([0.4, 0.3, 0.15, 0.1, 0.05])

    def drawn():
        sizes = np.ceil(rng.lognormal(2, 1.2, 60)).astype(int)
        own = rng.dirichlet(9 * probabilities, 60)
        x = np.concatenate([rng.choice(5, size, p=each) for size, each in zip(sizes, own, strict=True)])
        return Samples(x, cluster=np.repeat(np.arange(60), sizes))

    for _ in range(120):
        missed += float(coverage_adjusted(drawn(), drawn()).interval[0]) > 0
    assert missed <= 12  # 6 expected
