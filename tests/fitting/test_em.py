"""Mixtures by EM: against scikit-learn, and against the mixture that made the target."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Gamma,
    Independent,
    Laplace,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    StudentT,
)

from kullback import KL, Samples, divergence, fit
from kullback.errors import ArgumentValueError
from tests.refusals import refused

sklearn_mixture = pytest.importorskip("sklearn.mixture")


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


TWO = MixtureSameFamily(Categorical(t(0.5, 0.5)), Normal(t(-1, 1), t(1, 1)))


def test_the_history_begins_before_the_first_step() -> None:
    target = MixtureSameFamily(Categorical(t(0.3, 0.7)), Normal(t(-2, 2), t(1, 1)))
    start = MixtureSameFamily(Categorical(t(0.5, 0.5)), Normal(t(-10, -11), t(1, 1)))
    result = fit(start, to=target, generator=seeded())
    assert result.method == "em"
    assert float(result.history[0]) == float(result.before)
    assert float(result.history[-1]) == pytest.approx(float(result.value), abs=1e-9)


def test_maximum_likelihood_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-3, 1, 300), rng.normal(2, 0.5, 700)])
    found = fit(TWO, to=Samples(x))
    theirs = sklearn_mixture.GaussianMixture(2, tol=1e-12, max_iter=5000, reg_covar=0, random_state=0).fit(
        x[:, None]
    )
    assert found.method == "em"
    assert float(found.value) == pytest.approx(-theirs.score(x[:, None]), abs=1e-9)
    assert float(found.value) <= -theirs.score(x[:, None]) + 1e-12
    part = found.distribution.component_distribution
    np.testing.assert_allclose(np.sort(part.loc.numpy()), np.sort(theirs.means_[:, 0]), rtol=1e-4)


def test_vectors_with_full_and_diagonal_covariances() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(size=(200, 2)) @ [[1, 0.8], [0, 0.6]] - 2, rng.normal(size=(300, 2)) + 2])
    starts = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    mixing = Categorical(t(0.5, 0.5))
    eye = torch.eye(2, dtype=torch.float64).expand(2, 2, 2)
    full = fit(MixtureSameFamily(mixing, MultivariateNormal(starts, eye)), to=Samples(x))
    diagonal = MixtureSameFamily(
        mixing, Independent(Normal(starts, torch.ones(2, 2, dtype=torch.float64)), 1)
    )
    diagonal = fit(diagonal, to=Samples(x))
    for found, form in ((full, "full"), (diagonal, "diag")):
        options = {"tol": 1e-12, "max_iter": 5000, "reg_covar": 0, "random_state": 0}
        theirs = sklearn_mixture.GaussianMixture(2, covariance_type=form, **options).fit(x)
        assert found.method == "em"
        assert float(found.value) == pytest.approx(-theirs.score(x), abs=1e-8)


@pytest.mark.sweep
def test_a_density_is_met_by_quadrature() -> None:
    to = MixtureSameFamily(Categorical(t(0.3, 0.7)), Normal(t(-3, 2), t(1, 0.5)))
    found = fit(TWO, to=to)
    assert found.method == "em"
    assert found.quantity == "KL(to || q)"
    assert float(found.value) < 1e-15
    torch.testing.assert_close(found.distribution.component_distribution.loc, t(-3, 2), rtol=0, atol=1e-7)
    heavy = fit(TWO, to=StudentT(torch.tensor(3.0, dtype=torch.float64)))
    assert float(heavy.value) == pytest.approx(
        float(divergence(heavy.to, heavy.distribution, KL())), rel=1e-9
    )
    assert float(heavy.value) < float(fit(Normal, to=heavy.to).value)
    assert bool((heavy.history.diff() <= 1e-9).all())


@pytest.mark.sweep
def test_components_of_other_families() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = MixtureSameFamily(Categorical(t(0.5, 0.5)), Gamma(t(2, 30), t(1, 3))).sample((1000,))
    found = fit(MixtureSameFamily(Categorical(t(0.5, 0.5)), Gamma(t(1, 3), t(1, 1))), to=Samples(x))
    assert found.method == "em"
    truth = -MixtureSameFamily(Categorical(t(0.5, 0.5)), Gamma(t(2, 30), t(1, 3))).log_prob(x).mean()
    assert float(truth) - 0.01 < float(found.value) < float(truth)


def test_fixed_parameters_stay() -> None:
    x = np.random.default_rng(2).normal(size=200) * 3
    found = fit(TWO, to=Samples(x), fixed=("component_distribution.scale", "probs")).distribution
    assert torch.equal(found.component_distribution.scale, t(1, 1))
    assert torch.equal(found.mixture_distribution.probs, t(0.5, 0.5))


def test_several_starts_find_the_better_optimum_and_a_seed_repeats_them() -> None:
    """Three groups, and a start whose second and third component lie on the same one."""
    rng = np.random.default_rng(3)
    x = Samples(np.concatenate([rng.normal(m, 0.3, 100) for m in (-10, 0, 10)]))
    q = MixtureSameFamily(Categorical(t(1, 1, 1)), Normal(t(-5, 10, 10.5), t(5, 0.3, 0.3)))
    one = fit(q, to=x)
    many = fit(q, to=x, starts=6, generator=seeded())
    again = fit(q, to=x, starts=6, generator=seeded())
    assert float(many.value) < float(one.value) - 0.1
    assert torch.equal(
        many.distribution.component_distribution.loc, again.distribution.component_distribution.loc
    )
    assert sorted(many.distribution.component_distribution.loc.round().tolist()) == [-10, 0, 10]


def test_a_component_that_shrinks_to_a_point_is_refused() -> None:
    """The likelihood of a Normal on the outlier alone grows without end as its scale falls."""
    x = Samples([0.0, 0.1, 0.2, 0.3, 5.0, 0.15, 0.25])
    q = MixtureSameFamily(Categorical(t(1, 1)), Normal(t(0.1, 0.2), t(0.2, 0.3)))
    with refused(ArgumentValueError, got="from each of 4 starts"):
        fit(q, to=x, starts=4, generator=seeded(1))
    held = fit(q, to=x, fixed=("component_distribution.scale",)).distribution
    assert torch.equal(held.component_distribution.scale, t(0.2, 0.3))


def test_a_mixture_without_a_closed_form_takes_quasi_newton_steps() -> None:
    q = MixtureSameFamily(Categorical(t(1, 1)), StudentT(t(5, 5), t(-1, 1), t(1, 1)))
    to = MixtureSameFamily(Categorical(t(0.4, 0.6)), Laplace(t(-4, 4), t(1, 1)))
    found = fit(q, to=to, fixed="df")
    assert found.method == "quasi_newton"
    assert bool(found.converged)
