"""Densities that are not normalized are refused where the draws prove it, and only there; a value is never negative."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    HalfNormal,
    Independent,
    MultivariateNormal,
    Normal,
    StudentT,
    constraints,
)

from kullback import Samples, fit, kl_divergence, kl_estimate
from kullback.errors import ArgumentValueError
from kullback.pairs.monte_carlo.from_draws import check_normalized
from tests.refusals import refused

LOG_MASS, ONE = math.log(2 * math.pi), torch.Size()


class Energy(Distribution):
    """N((1, 1), 1) times e^(log_mass), in two dimensions."""

    arg_constraints: ClassVar = {}
    support = constraints.real_vector  # type: ignore[assignment]

    def __init__(self, log_mass: float) -> None:
        self.constant = log_mass - LOG_MASS
        super().__init__(event_shape=torch.Size([2]), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.constant - ((value - 1) ** 2).sum(-1) / 2

    def sample(self, sample_shape: torch.Size = ONE) -> Tensor:
        return 1 + torch.randn((*sample_shape, 2))


class Line(Distribution):
    """N(1, 1) times e^(log_mass), on the line."""

    arg_constraints: ClassVar = {}
    support = constraints.real  # type: ignore[assignment]

    def __init__(self, log_mass: float) -> None:
        self.constant = log_mass - LOG_MASS / 2
        super().__init__(validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.constant - (value - 1) ** 2 / 2

    def sample(self, sample_shape: torch.Size = ONE) -> Tensor:
        return 1 + torch.randn(sample_shape)


P = Independent(Normal(torch.zeros(2), 1.0), 1)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("log_mass", [-3.0, -0.4, 0.3, 6.84])
def test_a_mass_other_than_1_is_refused_on_either_side(log_mass: float) -> None:
    for p, q in (
        (P, Energy(log_mass)),
        (Energy(log_mass), P),
        (Normal(0.0, 1.0), Line(log_mass)),
        (Line(log_mass), Normal(0.0, 1.0)),
    ):
        with refused(ArgumentValueError, wanted="integrate"):
            kl_divergence(p, q, method="monte_carlo", generator=seeded())


def test_a_mass_of_1_is_not_refused_at_any_number_of_draws() -> None:
    for draws in (4, 30, 10_000):
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            found = kl_estimate(P, Energy(0.0), method="monte_carlo", draws=draws, generator=generator)
            assert abs(float(found.value) - 1) < 8 * float(found.standard_error) + 0.02


def test_normalized_densities_pass_however_far_apart_or_heavy() -> None:
    """A mean of q / p below 1 proves nothing: a sharp P never reaches most of Q's mass."""
    pairs: list[tuple[Distribution, Distribution]] = [
        (Normal(0.0, 1e-4), Normal(0.0, 1.0)),
        (Normal(0.0, 1.0), Normal(30.0, 1.0)),
        (Normal(0.0, 1.0), StudentT(1.0)),
        (HalfNormal(1.0), Normal(0.0, 1.0)),
        (
            MultivariateNormal(torch.zeros(100), torch.eye(100)),
            MultivariateNormal(torch.zeros(100), 1.02 * torch.eye(100)),
        ),
    ]
    for p, q in pairs:
        for draws in (16, 2000):
            found = kl_estimate(p, q, method="monte_carlo", draws=draws, generator=seeded())
            assert 0 <= float(found.value) < math.inf, (p, q, found)


def test_the_level_is_kept_by_skewed_ratios() -> None:
    """Ratios of mean 1 that are mostly below 1 and rarely large: a test by the standard error would refuse them."""
    generator = torch.Generator().manual_seed(0)
    rare = torch.rand(50, 4000, generator=generator) < 0.001
    ratios = torch.where(rare, 900.0, (1 - 0.9) / 0.999)
    check_normalized("kl_divergence", P, P, ratios.log())
    with refused(ArgumentValueError, got=r"a mean of 1\.1"):
        check_normalized("kl_divergence", P, P, torch.full((4000,), 1.1).log())


def test_the_remedies_work() -> None:
    generator = seeded()
    x = torch.randn(2000, 2, generator=generator)
    y = 1 + torch.randn(2000, 2, generator=generator)
    low, high = kl_estimate(Samples(x), Samples(y), generator=generator).interval  # type: ignore[misc]
    assert low < 1 < high
    assert float(kl_divergence(P, Energy(0.0), method="monte_carlo", generator=generator)) == pytest.approx(
        1, abs=0.1
    )


def test_a_fit_to_a_density_that_is_not_normalized_is_refused() -> None:
    start = MultivariateNormal(torch.zeros(2), torch.eye(2))
    with refused(ArgumentValueError, wanted="integrate to 1"):
        fit(
            start,
            to=Energy(4.0),
            kind="reverse_kl",
            max_iterations=20,
            generator=seeded(),
            show_progress=False,
        )


def test_a_value_is_never_negative_and_the_note_has_the_mean() -> None:
    """With 4 draws, the mean of log p - log q is often below 0. The gradient is not cut off there."""
    p = Independent(StudentT(torch.full((2,), 5.0, dtype=torch.float64)), 1)
    negative = 0
    for seed in range(40):
        scale = torch.tensor(1.05, dtype=torch.float64, requires_grad=True)
        q = Independent(StudentT(5.0, torch.zeros(2, dtype=torch.float64), scale.expand(2)), 1)
        generator = torch.Generator().manual_seed(seed)
        found = kl_estimate(p, q, method="monte_carlo", draws=4, generator=generator)
        assert found.value >= 0
        assert (found.value == 0) == bool(found.notes)
        negative += bool(found.notes)
        (slope,) = torch.autograd.grad(found.value, scale)
        assert slope != 0
    assert 3 < negative < 37
