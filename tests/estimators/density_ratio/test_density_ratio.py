"""KL by a classifier between draws, against closed forms, and what it does with weights, clusters and bad draws."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from kullback import Samples
from kullback.errors import ArgumentTypeError, ArgumentValueError, OptionalDependencyError
from kullback.estimators.density_ratio import classifier_estimate
from kullback.estimators.density_ratio.classifier_estimate import density_ratio
from kullback.estimators.density_ratio.classifiers import gaussian_kl, gaussian_log_odds
from kullback.estimators.draws import Draws
from kullback.estimators.evidence import Evidence, interval_from
from kullback.estimators.logistic import Labeled, calibrated
from tests.refusals import refused


def gaussian_truth(mean, covariance):
    """KL(N(0, I) || N(mean, covariance))."""
    precision = np.linalg.inv(covariance)
    d = len(mean)
    return (np.trace(precision) + mean @ precision @ mean - d + np.linalg.slogdet(covariance)[1]) / 2


MEAN = np.array([0.4, 0.0, 0.0])
COVARIANCE = 0.3 ** np.abs(np.arange(3)[:, None] - np.arange(3))
GAUSSIAN_TRUTH = gaussian_truth(MEAN, COVARIANCE)


def gaussians(n, m, seed=0):
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(COVARIANCE)
    return rng.standard_normal((n, 3)), MEAN + rng.standard_normal((m, 3)) @ root.T


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def covers(estimate, truth):
    return float(estimate.interval[0]) <= truth <= float(estimate.interval[1])


def labeled(x, y, weights=None):
    n = len(x) + len(y)
    return Labeled(
        np.concatenate([x, y]),
        np.arange(n) < len(x),
        np.ones(n) if weights is None else weights,
        np.arange(n),
    )


@pytest.mark.sweep
def test_gaussian_draws():
    x, y = gaussians(1000, 1500, seed=2)
    estimate = density_ratio(Samples(x), Samples(y), generator=seeded())
    assert covers(estimate, GAUSSIAN_TRUTH)
    assert abs(float(estimate.value) - GAUSSIAN_TRUTH) < 0.08
    assert float(estimate.standard_error) < 0.05
    assert estimate.n == (1000, 1500)
    assert estimate.method == "density_ratio"
    assert estimate.value.dtype == torch.float64
    assert estimate.value.shape == ()


@pytest.mark.heavy
def test_twenty_dimensions_and_a_thousand_draws():
    mean = np.array([0.4] + [0.0] * 19)
    covariance = 0.3 ** np.abs(np.arange(20)[:, None] - np.arange(20))
    rng = np.random.default_rng(3)
    x, y = (
        rng.standard_normal((1000, 20)),
        mean + rng.standard_normal((1000, 20)) @ np.linalg.cholesky(covariance).T,
    )
    estimate = density_ratio(Samples(x), Samples(y), generator=seeded())
    truth = gaussian_truth(mean, covariance)
    assert covers(estimate, truth)
    assert (
        abs(float(estimate.value) - truth) < 0.2
    )  # what the best nearest-neighbor package misses on average


@pytest.mark.sweep
def test_heavy_tails():
    """Independent Cauchy coordinates, of which a Gaussian or a quadratic form is absurd."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_cauchy((1000, 3)), 1 + rng.standard_cauchy((1000, 3))
    estimate = density_ratio(Samples(x), Samples(y), generator=seeded())
    truth = 3 * math.log(5 / 4)
    assert covers(estimate, truth)
    assert abs(float(estimate.value) - truth) < 0.2
    assert not any("Gaussian" in note for note in estimate.notes)


@pytest.mark.sweep
def test_equal_distributions():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((1000, 4)), rng.standard_normal((1000, 4))
    estimate = density_ratio(Samples(x), Samples(y), generator=seeded())
    assert abs(float(estimate.value)) < 0.02
    assert covers(estimate, 0.0)


@pytest.mark.sweep
def test_a_ratio_that_no_gaussian_has():
    """Symmetric mixtures: the first two moments are equal, and KL by quadrature is 0.372."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(3000) * 0.5 + np.where(rng.random(3000) < 0.5, 1.0, -1.0)
    y = rng.standard_normal(3000) * math.sqrt(1.25)
    grid = np.linspace(-8, 8, 200_001)
    p = (np.exp(-2 * (grid - 1) ** 2) + np.exp(-2 * (grid + 1) ** 2)) / math.sqrt(2 * math.pi)
    q = np.exp(-(grid**2) / 2.5) / math.sqrt(2.5 * math.pi)
    truth = float(np.sum(p * np.log(np.maximum(p, 1e-300) / q)) * (grid[1] - grid[0]))
    estimate = density_ratio(Samples(x), Samples(y), generator=seeded())
    assert covers(estimate, truth)
    assert abs(float(estimate.value) - truth) < 0.05


@pytest.mark.sweep
def test_a_generator_gives_the_same_number():
    x, y = gaussians(200, 200)
    first, second = (density_ratio(Samples(x), Samples(y), generator=seeded(5)) for _ in range(2))
    assert torch.equal(first.value, second.value)
    assert torch.equal(first.standard_error, second.standard_error)


@pytest.mark.sweep
def test_the_draws_may_be_moved_and_scaled():
    x, y = gaussians(500, 500)
    plain = density_ratio(Samples(x), Samples(y), generator=seeded())
    moved = density_ratio(Samples(100 * x - 7), Samples(100 * y - 7), generator=seeded())
    assert float(moved.value) == pytest.approx(float(plain.value), abs=0.02)


def test_half_precision_draws():
    x, y = gaussians(500, 500)
    estimate = density_ratio(
        Samples(torch.tensor(x).half()), Samples(torch.tensor(y).half()), generator=seeded()
    )
    assert estimate.value.dtype == torch.float64
    assert covers(estimate, GAUSSIAN_TRUTH)


@pytest.mark.sweep
def test_weights_make_draws_of_another_distribution():
    """Draws of N(0, 1.3²) weighted to N(0, 1)."""
    rng = np.random.default_rng(0)
    x, y = 1.3 * rng.standard_normal((1500, 1)), 1 + 1.5 * rng.standard_normal((1500, 1))
    weights = np.exp(-(x[:, 0] ** 2) / 2 + (x[:, 0] / 1.3) ** 2 / 2)
    weighted = density_ratio(Samples(x, weights=weights), Samples(y), generator=seeded())
    plain = density_ratio(Samples(x), Samples(y), generator=seeded())
    truth = math.log(1.5) + 2 / 4.5 - 0.5
    assert covers(weighted, truth)
    assert abs(float(weighted.value) - truth) < 0.08
    assert float(plain.value) < truth - 0.1


@pytest.mark.sweep
def test_the_scale_of_weights_is_of_no_account():
    x, y = gaussians(300, 300)
    weights = np.random.default_rng(0).random(300)
    first, second = (
        density_ratio(Samples(x, weights=scale * weights), Samples(y), generator=seeded())
        for scale in (1, 1000)
    )
    assert float(first.value) == pytest.approx(float(second.value), rel=1e-9)


@pytest.mark.sweep
def test_copies_in_one_cluster_tell_no_more_than_one_of_them():
    x, y = gaussians(150, 1500)
    copies = np.repeat(x, 10, axis=0) + 1e-3 * np.random.default_rng(1).standard_normal((1500, 3))
    groups = np.repeat(np.arange(150), 10)
    clustered = density_ratio(Samples(copies, cluster=groups), Samples(y), generator=seeded())
    once = density_ratio(Samples(x), Samples(y), generator=seeded())
    assert float(clustered.standard_error) == pytest.approx(float(once.standard_error), rel=0.25)
    assert float(clustered.value) == pytest.approx(float(once.value), abs=float(once.standard_error))
    assert covers(clustered, GAUSSIAN_TRUTH)


def test_clusters_stay_in_one_fold():
    x, y = gaussians(60, 40)
    groups = np.repeat(np.arange(20), 3)
    draws = Labeled.of(Draws.of(Samples(x, cluster=groups)), Draws.of(Samples(y)))
    folds = classifier_estimate._folds(draws, 5, np.random.default_rng(0))
    assert all(len(set(folds[:60][groups == group])) == 1 for group in range(20))
    assert [int((folds[60:] == fold).sum()) for fold in range(5)] == [8] * 5


def test_a_classifier_of_ones_own():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2000, 2)), rng.standard_normal((2000, 2)) + np.array([1.0, 0.0])
    estimate = density_ratio(
        Samples(x), Samples(y), generator=seeded(), classifier=LogisticRegression(max_iter=500)
    )
    assert "LogisticRegression 100%" in estimate.notes[0]
    assert covers(estimate, 0.5)


def test_a_classifier_that_is_certain_stays_finite():
    from sklearn.neighbors import KNeighborsClassifier

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((200, 1)), rng.standard_normal((200, 1)) + 8
    estimate = density_ratio(
        Samples(x), Samples(y), generator=seeded(), classifier=KNeighborsClassifier(n_neighbors=1)
    )
    assert math.isfinite(float(estimate.value))


@pytest.mark.sweep
def test_far_apart_is_said():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((300, 1)), rng.standard_normal((300, 1)) + 6
    estimate = density_ratio(Samples(x), Samples(y), generator=seeded())
    assert float(estimate.value) > math.log(300)
    assert 2 < float(estimate.interval[0]) < 18
    assert float(estimate.interval[1]) == math.inf
    assert any("separates many of P's draws from all of Q's" in note for note in estimate.notes)


@pytest.mark.sweep
def test_constant_and_repeated_columns():
    x, y = gaussians(300, 300)
    ones = np.ones((300, 1))
    constant = density_ratio(Samples(np.hstack([x, ones])), Samples(np.hstack([y, ones])), generator=seeded())
    repeated = density_ratio(Samples(np.hstack([x, x])), Samples(np.hstack([y, y])), generator=seeded())
    for estimate in (constant, repeated):
        assert math.isfinite(float(estimate.value))
        assert covers(estimate, GAUSSIAN_TRUTH)


@pytest.mark.sweep
def test_more_dimensions_than_draws():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 60)), rng.standard_normal((40, 60))
    estimate = density_ratio(Samples(x), Samples(y), generator=seeded())
    assert covers(estimate, 0.0)
    assert not any("Gaussian" in note for note in estimate.notes)


@pytest.mark.parametrize(
    ("x", "y", "options", "words"),
    [
        (torch.zeros(1, 2), torch.zeros(50, 2), {}, "two draws of each side"),
        (torch.randn(50, 2), torch.randn(9, 2), {}, "9 draws"),
        (torch.randn(50, 2), torch.randn(50, 3), {}, "same number of components"),
        (
            torch.randn(50, 2),
            torch.randn(50, 2),
            {"folds": 1},
            r"\(folds=\.\.\.\): wanted an integer of 2 or more; got 1",
        ),
        (torch.randn(50, 2), torch.randn(50, 2), {"confidence": 95}, "between 0 and 1"),
        (
            torch.tensor([math.inf] + [0.0] * 49),
            torch.randn(50),
            {},
            "1 of 50 with an infinity or NaN, the first at index 0",
        ),
    ],
)
def test_what_cannot_be_estimated_is_refused(x, y, options, words):
    with pytest.raises(ArgumentValueError, match=words):
        density_ratio(Samples(x), Samples(y), **options)


def test_too_few_clusters_are_refused():
    x = torch.randn(100, 2)
    with refused(ArgumentValueError, got="3 clusters"):
        density_ratio(Samples(x, cluster=np.arange(100) % 3), Samples(x + 1))


def test_categories_are_refused():
    with refused(ArgumentTypeError, got="categories"):
        density_ratio(Samples([1, 2, 3] * 10), Samples([1, 2, 2] * 10))


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with refused(OptionalDependencyError, instead="pip install scikit-learn"):
        density_ratio(Samples(torch.randn(50)), Samples(torch.randn(50)))


def test_the_gaussian_value_is_unbiased_and_its_influence_gives_its_variance():
    """Few draws, so that the plug-in's bias of 0.17 would show."""
    n = 60
    ones = np.ones(n)
    found = [gaussian_kl(*gaussians(n, n, seed), ones, ones, n, n) for seed in range(1000)]
    values = np.array([value for value, *_ in found])
    assert values.mean() == pytest.approx(GAUSSIAN_TRUTH, abs=4 * values.std() / math.sqrt(1000))
    errors = [math.sqrt((of_p**2).sum() + (of_q**2).sum()) for _, of_p, of_q in found]
    assert np.mean(errors) == pytest.approx(values.std(), rel=0.2)


def test_the_gaussian_value_of_equal_weights_is_the_unweighted_one():
    x, y = gaussians(50, 70)
    plain = gaussian_kl(x, y, np.ones(50), np.ones(70), 50, 70)
    scaled = gaussian_kl(x, y, np.full(50, 3.0), np.full(70, 0.1), 50, 70)
    assert plain[0] == pytest.approx(scaled[0], rel=1e-12)


def test_the_gaussian_log_odds_approach_the_densities():
    x, y = gaussians(200_000, 200_000)
    ones = np.ones(200_000)
    at = np.random.default_rng(9).standard_normal((100, 3))
    right = multivariate_normal(np.zeros(3)).logpdf(at) - multivariate_normal(MEAN, COVARIANCE).logpdf(at)
    np.testing.assert_allclose(gaussian_log_odds(x, y, ones, ones)(at), right, atol=0.05)


def test_calibration_undoes_zeal():
    """Log-odds three times too large are brought back; ones that say nothing become the prior's."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20_000, 1)), rng.standard_normal((20_000, 1)) + 1
    draws = labeled(x, y)
    right = 0.5 - draws.x[:, 0]
    found, influence, features = calibrated(3 * right, draws)
    np.testing.assert_allclose(found, right, atol=0.1)
    assert influence.shape == features.shape == (40_000, 2)
    noise, _, _ = calibrated(-right, draws)
    np.testing.assert_allclose(noise, 0, atol=1e-9)


def test_calibration_agrees_with_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((300, 1)), rng.standard_normal((500, 1)) + 1
    weights = rng.random(800)
    draws = labeled(x, y, weights)
    raw = 0.3 - draws.x[:, 0] ** 2 / 5 - draws.x[:, 0]
    model = LogisticRegression(C=np.inf, tol=1e-10).fit(raw[:, None], draws.from_p, sample_weight=weights)
    np.testing.assert_allclose(calibrated(raw, draws)[0], model.decision_function(raw[:, None]), atol=1e-4)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [0, 14, 25])
def test_the_upper_end_has_its_own_error_where_the_estimate_is_near_zero_by_chance(seed):
    """30 clusters of 20 in 3-D: at these estimates, a third of KL or less, the error is no half of that at KL."""
    rng, group, truth = np.random.default_rng(seed), np.repeat(np.arange(30), 20), 0.135
    p, q = (
        Samples(
            0.3**0.5 * rng.standard_normal((30, 3))[group] + 0.7**0.5 * rng.standard_normal((600, 3)) + shift,
            cluster=group,
        )
        for shift in (0, 0.3)
    )
    estimate = density_ratio(p, q, generator=seeded(seed))
    assert float(estimate.value) < truth / 3
    assert covers(estimate, truth)


def test_an_upper_end_is_what_its_own_error_does_not_reject():
    def upper(raw, error, constant=None, **more):
        # Two draws of P whose influences have this error together, and two of Q without influence.
        draws = Draws.of(Samples(torch.zeros(2, dtype=torch.float64)))
        rest = math.sqrt(error**2 - (constant or 0.0) ** 2) / 2
        evidence = Evidence(
            raw, influence=(np.array([rest, -rest]), np.zeros(2)), error=constant or 0.0, **more
        )
        return float(interval_from(evidence, 0.95, draws, draws).ends[1])

    z = 1.959963985
    for raw in (-0.2, 0.0, 0.01, 0.3):
        high = upper(raw, 0.0301, rate=0.02, constant=0.03)
        assert (max(raw, 0.0) - high) ** 2 == pytest.approx(z**2 * (0.03**2 + 0.02 * high))
    assert upper(0.3, 0.5, rate=0.02) == upper(0.3, 0.5)
    assert upper(0.0, 0.001, rate=0.02, groups=10) > 1.3 * upper(0.0, 0.001, rate=0.02)


@pytest.mark.sweep
def test_other_random_splits_move_the_value_little(monkeypatch):
    """The standard deviation of the value over seeds is at most 3 % of the interval's width."""
    rng = np.random.default_rng(2)
    p, q = Samples(rng.standard_normal((150, 12))), Samples(rng.standard_normal((150, 12)) + 0.3)
    estimates = []
    for seed in range(6):
        monkeypatch.setattr(classifier_estimate, "rng_of", lambda *_, s=seed: np.random.default_rng(s))
        estimates.append(density_ratio(p, q))
    widths = [float(estimate.interval[1] - estimate.interval[0]) for estimate in estimates]
    assert np.std([float(estimate.value) for estimate in estimates], ddof=1) < 0.03 * np.median(widths)
