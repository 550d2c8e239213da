"""Parameters that are NaN, of distributions that do not validate: NaN for their elements of the batch, by any rule."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Cauchy,
    Dirichlet,
    Distribution,
    Gamma,
    Geometric,
    HalfCauchy,
    Independent,
    Kumaraswamy,
    Laplace,
    MixtureSameFamily,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Pareto,
    Poisson,
    Uniform,
    Weibull,
)

from kullback import KL, Divergence, Renyi, TotalVariation, divergence, estimate, kl_divergence

Build = Callable[..., Distribution]


def unchecked(family: Build) -> Build:
    return lambda *parameters: family(*parameters, validate_args=False)


def independent(loc: torch.Tensor, scale: torch.Tensor) -> Distribution:
    base = Normal(loc.unsqueeze(-1), scale.unsqueeze(-1), validate_args=False)
    return Independent(base, 1, validate_args=False)


def mixture(loc: torch.Tensor, scale: torch.Tensor) -> Distribution:
    weights = Categorical(torch.full((*loc.shape, 2), 0.5, dtype=torch.float64))
    parts = Normal(torch.stack([loc, loc + 3], -1), torch.stack([scale, scale], -1), validate_args=False)
    return MixtureSameFamily(weights, parts, validate_args=False)


def vector(loc: torch.Tensor, scale: torch.Tensor) -> Distribution:
    root = torch.diag_embed(torch.stack([scale, torch.ones_like(scale)], -1))
    return MultivariateNormal(torch.stack([loc, loc], -1), scale_tril=root, validate_args=False)


def simplex(a: torch.Tensor, b: torch.Tensor) -> Distribution:
    return Dirichlet(torch.stack([a, b], -1), validate_args=False)


# P with its parameters, Q with its own: closed forms, in C++ and not, reductions, sums and integrals.
PAIRS: dict[str, tuple[Build, tuple[float, ...], Build, tuple[float, ...]]] = {
    "Normal, Normal": (unchecked(Normal), (0.0, 1.0), unchecked(Normal), (1.0, 2.0)),
    "Weibull, Normal": (unchecked(Weibull), (1.0, 2.0), unchecked(Normal), (1.0, 2.0)),
    "Pareto, Laplace": (unchecked(Pareto), (1.0, 3.0), unchecked(Laplace), (1.0, 2.0)),
    "Uniform, Normal": (unchecked(Uniform), (0.0, 1.0), unchecked(Normal), (1.0, 2.0)),
    "Independent, Independent": (independent, (0.0, 1.0), independent, (1.0, 2.0)),
    "MultivariateNormal, MultivariateNormal": (vector, (0.0, 1.0), vector, (1.0, 2.0)),
    "Dirichlet, Dirichlet": (simplex, (1.0, 2.0), simplex, (3.0, 4.0)),
    "Bernoulli, Poisson": (unchecked(Bernoulli), (0.3,), unchecked(Poisson), (2.0,)),
    "Bernoulli, Geometric": (unchecked(Bernoulli), (0.3,), unchecked(Geometric), (0.4,)),
    "Poisson, Geometric": (unchecked(Poisson), (3.0,), unchecked(Geometric), (0.3,)),
    "Binomial, Poisson": (lambda p: Binomial(9, p, validate_args=False), (0.3,), unchecked(Poisson), (2.0,)),
    "NegativeBinomial, Poisson": (unchecked(NegativeBinomial), (3.0, 0.3), unchecked(Poisson), (2.0,)),
    "Gamma, Laplace": (unchecked(Gamma), (2.0, 1.0), unchecked(Laplace), (1.0, 1.0)),
    "Gamma, Cauchy": (unchecked(Gamma), (2.0, 1.0), unchecked(Cauchy), (1.0, 1.0)),
    "Beta, Kumaraswamy": (unchecked(Beta), (2.0, 3.0), unchecked(Kumaraswamy), (2.0, 2.0)),
    "HalfCauchy, HalfCauchy": (unchecked(HalfCauchy), (1.0,), unchecked(HalfCauchy), (2.0,)),
    "Uniform, Cauchy": (unchecked(Uniform), (0.0, 1.0), unchecked(Cauchy), (1.0, 1.0)),
    "Mixture, Normal": (mixture, (0.0, 1.0), unchecked(Normal), (1.0, 2.0)),
}
OF_VECTORS = ("Independent, Independent", "MultivariateNormal, MultivariateNormal", "Dirichlet, Dirichlet")
KINDS: tuple[Divergence, ...] = (KL(), Renyi(0.5), TotalVariation())
CASES = [
    pytest.param(name, kind, id=f"{name}, {type(kind).__name__}")
    for name in PAIRS
    for kind in (KINDS[:2] if name in OF_VECTORS else KINDS)
]


def answer(p: Distribution, q: Distribution, kind: Divergence) -> torch.Tensor:
    return kl_divergence(p, q) if isinstance(kind, KL) else divergence(p, q, kind)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_nan_gives_nan_and_no_other_element_changes(name: str, kind: Divergence) -> None:
    build_p, at_p, build_q, at_q = PAIRS[name]
    size = len(at_p) + len(at_q)
    # In row i of the batch parameter i is NaN; the last row is as it should be.
    table = torch.tensor([*at_p, *at_q], dtype=torch.float64).repeat(size + 1, 1)
    table[range(size), range(size)] = math.nan
    columns = [x.clone().requires_grad_() for x in table.unbind(-1)]
    values = answer(build_p(*columns[: len(at_p)]), build_q(*columns[len(at_p) :]), kind)
    assert values[:-1].isnan().all()

    alone = [x[-1].detach().clone().requires_grad_() for x in columns]
    value = answer(build_p(*alone[: len(at_p)]), build_q(*alone[len(at_p) :]), kind)
    assert values[-1].item() == pytest.approx(value.item(), rel=1e-9)
    found = torch.autograd.grad(values[-1], columns)
    for x, true in zip(found, torch.autograd.grad(value, alone), strict=True):
        assert x[-1].item() == pytest.approx(true.item(), rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("name", PAIRS)
def test_one_number_that_is_nan_gives_nan(name: str) -> None:
    build_p, at_p, build_q, at_q = PAIRS[name]
    p = build_p(*(torch.tensor(math.nan, dtype=torch.float64) for _ in at_p))
    q = build_q(*(torch.tensor(x, dtype=torch.float64) for x in at_q))
    for value in (kl_divergence(p, q), kl_divergence(q, p)):
        assert value.shape == ()
        assert value.isnan()


@pytest.mark.parametrize("means", [[0.0, math.nan], [math.nan, math.nan]])
def test_an_element_that_is_nan_has_no_standard_error(means: list[float]) -> None:
    p = Normal(torch.tensor(means), torch.ones(2), validate_args=False)
    q = Normal(torch.ones(2), torch.ones(2))
    drawn = estimate(p, q, method="monte_carlo", generator=torch.Generator().manual_seed(0))
    assert (drawn.method, drawn.error) == ("monte_carlo", None)
    assert drawn.standard_error is not None
    is_nan = [math.isnan(x) for x in means]
    assert (drawn.value.isnan().tolist(), drawn.standard_error.isnan().tolist()) == (is_nan, is_nan)
