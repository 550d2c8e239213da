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
    FisherSnedecor,
    Gamma,
    GeneralizedPareto,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Kumaraswamy,
    Laplace,
    LogNormal,
    Normal,
    Pareto,
    Poisson,
    StudentT,
    Uniform,
    VonMises,
    Weibull,
)

from kullback import kl_divergence, kl_estimate, register_kl
from kullback.errors import ArgumentValueError
from kullback.pairs.closed_forms.shortcuts import fused_divergence
from kullback.pairs.densities.density import densities_of
from kullback.pairs.families.infinite import ALWAYS_INFINITE
from kullback.pairs.support import is_infinite
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
    FisherSnedecor: FisherSnedecor,
    GeneralizedPareto: lambda a, b: GeneralizedPareto(a, b, (a - b) / (a + b)),
    InverseGamma: InverseGamma,
    Kumaraswamy: Kumaraswamy,
    LogNormal: LogNormal,
    StudentT: lambda a, b: StudentT(a, b, b),
    VonMises: VonMises,
    Weibull: Weibull,
}


def test_they_are_infinite_by_the_other_rules_too_and_have_no_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = (4 * torch.randn(4, 50, generator=generator)).exp().double().requires_grad_()
    made = [(kind_p, kind_q) for kind_p in MADE for kind_q in MADE if (kind_p, kind_q) in ALWAYS_INFINITE]
    assert set(made) == ALWAYS_INFINITE
    for kind_p, kind_q in made:
        pair = f"{kind_p.__name__} || {kind_q.__name__}"
        p, q = MADE[kind_p](numbers[0], numbers[1]), MADE[kind_q](numbers[2], numbers[3])
        value = fused_divergence(p, q)
        assert value is not None, pair
        assert (value.shape, value.dtype) == ((50,), torch.float64), pair
        assert bool(value.isposinf().all()), pair
        assert bool(kl_estimate(p, q).value.isposinf().all()), pair
        densities = densities_of(p, q)
        assert densities is not None, pair
        infinite = is_infinite(*densities)
        assert infinite is not None, pair
        assert bool(infinite.all()), pair
        (gradient,) = torch.autograd.grad(kl_divergence(p, q).sum(), numbers)
        assert not bool(gradient.any()), pair
        with torch.no_grad():
            assert not kl_divergence(p, q).requires_grad, pair


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
