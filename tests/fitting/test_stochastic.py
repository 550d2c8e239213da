"""Stochastic gradients: exact where the target is in the family, and honest about what they do not know."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Poisson,
)

from kullback import JensenShannon, ReverseKL, fit
from kullback.errors import NoRuleError
from tests.refusals import refused


def t(*values: float) -> Tensor:
    return torch.tensor(values if len(values) > 1 else values[0], dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


COVARIANCE = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
STANDARD = MultivariateNormal(t(0, 0), torch.eye(2, dtype=torch.float64))


@pytest.mark.sweep
def test_a_log_density_of_vectors_sticks_the_landing() -> None:
    """Where q is the target every draw has a gradient of 0, and log p - log q is the same everywhere."""
    target = MultivariateNormal(t(1, 2), COVARIANCE)
    found = fit(
        STANDARD, to=lambda x: target.log_prob(x) + 3, generator=seeded(), max_iterations=250, draws=16
    )
    assert found.method == "stochastic"
    assert found.quantity == "negative ELBO"
    torch.testing.assert_close(found.distribution.loc, t(1, 2), rtol=0, atol=1e-3)
    torch.testing.assert_close(found.distribution.covariance_matrix, COVARIANCE, rtol=0, atol=1e-2)
    assert float(found.value) == pytest.approx(-3, abs=1e-4)
    assert found.error is None
    assert found.standard_error is not None
    assert float(found.standard_error) < 1e-4
    assert "draws" in found.notes[0]


def test_a_seed_gives_the_same_fit_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    options = {"max_iterations": 60, "draws": 8, "tol": 10.0}
    fits = [fit(STANDARD, to=lambda x: -(x**2).sum(-1), generator=seeded(3), **options) for _ in range(2)]
    assert torch.equal(fits[0].distribution.loc, fits[1].distribution.loc)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.sweep
def test_a_mixture_of_vectors_in_both_directions() -> None:
    """Far apart, the mode that is sought has the weight 0.4: the divergence is -log 0.4."""
    means = torch.tensor([[-8.0, 0.0], [8.0, 0.0]], dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    to = MixtureSameFamily(Categorical(t(0.4, 0.6)), MultivariateNormal(means, eye.expand(2, 2, 2)))
    start = Independent(Normal(t(-7, 0), t(1, 1)), 1)
    found = fit(start, to=to, kind=ReverseKL(), generator=seeded(), max_iterations=300, draws=32, starts=1)
    assert found.method == "stochastic"
    assert float(found.value) == pytest.approx(-math.log(0.4), abs=2e-3)
    assert abs(float(found.value) + math.log(0.4)) <= 5 * float(found.standard_error) + 1e-3


@pytest.mark.sweep
def test_draws_without_reparameterization_take_the_score() -> None:
    """exp(-(k - 3)^2 / 4) over the integers: the best rate, and its ELBO, by enumeration."""
    k = torch.arange(80, dtype=torch.float64)

    def value(rate: Tensor) -> Tensor:
        log_q = Poisson(rate.unsqueeze(-1)).log_prob(k)
        return (log_q.exp() * (log_q + (k - 3) ** 2 / 4)).sum(-1)

    rates = torch.linspace(1, 5, 4001, dtype=torch.float64)
    best = rates[value(rates).argmin()]
    found = fit(
        Poisson(t(2)), to=lambda x: -((x - 3) ** 2) / 4, generator=seeded(), max_iterations=300, draws=64
    )
    assert float(found.distribution.rate) == pytest.approx(float(best), abs=0.1)
    exact = float(value(found.distribution.rate.reshape(1)))
    assert abs(float(found.value) - exact) < 4 * float(found.standard_error)


def test_kinds_that_draws_cannot_estimate_are_refused() -> None:
    to = MixtureSameFamily(Categorical(t(1, 1)), Independent(Normal(torch.zeros(2, 2).double(), t(1, 1)), 1))
    with refused(NoRuleError, wanted=r"KL\(\) or ReverseKL\(\)"):
        fit(STANDARD, to=to, kind=JensenShannon())
