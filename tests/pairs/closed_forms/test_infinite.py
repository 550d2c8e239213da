"""Pairs that are infinite for all parameters: what the rules in their order find, and no gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Cauchy,
    ContinuousBernoulli,
    Distribution,
    Exponential,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Laplace,
    Normal,
    Pareto,
    Poisson,
    Uniform,
)

from kullback import kl_divergence, kl_estimate, register_kl
from kullback.errors import ArgumentValueError
from kullback.pairs.closed_forms.infinite import ALWAYS_INFINITE
from kullback.pairs.closed_forms.shortcuts import fused_divergence
from tests.refusals import refused

Make = Callable[[Tensor, Tensor], Distribution]
MADE: dict[type, Make] = {
    Normal: Normal,
    Laplace: Laplace,
    Cauchy: Cauchy,
    Gumbel: Gumbel,
    Exponential: lambda a, _: Exponential(a),
    Gamma: Gamma,
    HalfNormal: lambda a, _: HalfNormal(a),
    HalfCauchy: lambda a, _: HalfCauchy(a),
    Beta: Beta,
    ContinuousBernoulli: lambda a, _: ContinuousBernoulli(logits=a),
    Pareto: Pareto,
    Uniform: lambda a, b: Uniform(a, a + b),
    Poisson: lambda a, _: Poisson(a),
    Bernoulli: lambda a, _: Bernoulli(logits=a),
    Binomial: lambda a, _: Binomial(7, logits=a),
}


@pytest.mark.parametrize("types", ALWAYS_INFINITE, ids=lambda x: " || ".join(t.__name__ for t in x))
def test_they_are_infinite_by_the_other_rules_too_and_have_no_gradient(types: tuple[type, type]) -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = (4 * torch.randn(4, 50, generator=generator)).exp().double().requires_grad_()
    p, q = MADE[types[0]](numbers[0], numbers[1]), MADE[types[1]](numbers[2], numbers[3])
    value = fused_divergence(p, q)
    assert value is not None
    assert (value.shape, value.dtype) == ((50,), torch.float64)
    assert bool(value.isposinf().all())
    assert bool(kl_estimate(p, q).value.isposinf().all())
    (gradient,) = torch.autograd.grad(kl_divergence(p, q).sum(), numbers)
    assert not bool(gradient.any())
    with torch.no_grad():
        assert not kl_divergence(p, q).requires_grad


def test_a_poisson_of_rate_0_is_finite() -> None:
    p, q = Poisson(torch.tensor([0.0, 1.0])), Bernoulli(torch.tensor([0.5, 0.5]))
    assert fused_divergence(p, q) is None
    torch.testing.assert_close(kl_divergence(p, q), torch.tensor([2.0, torch.inf]).log())


def test_other_shapes_and_dtypes_take_the_other_rules() -> None:
    p = Normal(torch.zeros(3, 1), torch.ones(3, 1))
    assert kl_divergence(p, Uniform(torch.zeros(2), torch.ones(2))).shape == (3, 2)
    assert kl_divergence(p, Beta(torch.ones(3, 1).double(), 1.0)).dtype == torch.float64
    with refused(ArgumentValueError, wanted="batch shapes that broadcast"):
        kl_divergence(Normal(torch.zeros(3), 1.0), Beta(torch.ones(2), 1.0))


@pytest.mark.usefixtures("registered_rules")
def test_a_rule_of_the_user_comes_first() -> None:
    @register_kl(Normal, Uniform)
    def kl_of_user(p: Normal, q: Uniform) -> Tensor:
        return p.loc * 0 + 7

    assert float(kl_divergence(Normal(0.0, 1.0), Uniform(0.0, 1.0))) == 7
