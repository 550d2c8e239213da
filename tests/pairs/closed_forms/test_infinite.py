"""Pairs that are infinite for all parameters: what the rules in their order find, and no gradient."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Bernoulli,
    Beta,
    Binomial,
    Cauchy,
    ContinuousBernoulli,
    Distribution,
    Exponential,
    ExpTransform,
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
    SigmoidTransform,
    SoftplusTransform,
    StudentT,
    TransformedDistribution,
    Uniform,
    VonMises,
    Weibull,
)

from kullback import kl_divergence, kl_estimate, register_kl
from kullback.errors import ArgumentValueError
from kullback.pairs.densities.density import Density, densities_of, density_of
from kullback.pairs.families.registration import ALWAYS_INFINITE
from kullback.pairs.family import FAMILIES
from kullback.pairs.registry import fused_divergence, plan_for
from kullback.pairs.renyi import renyi_in_closed_form
from kullback.pairs.support import is_always_finite, is_always_infinite, is_infinite, is_power_infinite
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


# ---- One function decides: the closed forms, their kernels and the maps are infinite exactly where it says.
EDGES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)  # where moments begin to exist
MAPS = (
    AffineTransform(1.0, 2.0),
    AffineTransform(0.0, -3.0),
    ExpTransform(),
    SigmoidTransform(),
    SoftplusTransform(),
)


def where_infinite(p: Density, q: Density, order: float | None = None) -> Tensor:
    """Return where KL, or Renyi's divergence of an order, is infinite by the one function."""
    infinite = is_infinite(p, q) if order is None else is_power_infinite(p, q, order)
    none = torch.zeros(12, dtype=torch.bool)
    return none if infinite is None else infinite.expand_as(none)


def with_densities(kind: type, *parameters: Tensor) -> tuple[Distribution, list[Density]]:
    """Return a distribution, its density, and for a variable on the line those of its images."""
    made = MADE[kind](*parameters)
    images = (
        [] if FAMILIES[kind].has_integers else [TransformedDistribution(made, [change]) for change in MAPS]
    )
    densities = [density for d in (made, *images) if (density := density_of(d)) is not None]
    assert len(densities) == 1 + len(images)
    return made, densities


@pytest.mark.sweep
@settings(max_examples=2)
@given(st.lists(st.sampled_from(EDGES), min_size=48, max_size=48))
def test_every_rule_is_infinite_where_supports_and_tails_say_so(drawn: list[float]) -> None:
    numbers = torch.tensor(drawn, dtype=torch.float64).reshape(4, 12)
    sides_p, sides_q = ({kind: with_densities(kind, *pair) for kind in MADE} for pair in numbers.split(2))
    for kind_p, kind_q in product(MADE, MADE):
        records = FAMILIES[kind_p], FAMILIES[kind_q]
        if records[0].has_integers != records[1].has_integers:
            continue
        pair = f"{kind_p.__name__} || {kind_q.__name__} at {drawn}"
        (p, densities_p), (q, densities_q) = sides_p[kind_p], sides_q[kind_q]
        densities = densities_p[0], densities_q[0]
        infinite = where_infinite(*densities)
        assert not is_always_infinite(*records) or bool(infinite.all()), pair
        assert not is_always_finite(kind_p, kind_q) or not bool(infinite.any()), pair
        by_kernel = fused_divergence(p, q)
        assert by_kernel is None or torch.equal(by_kernel.isposinf(), infinite), pair
        form = plan_for(kind_p, kind_q).closed_form
        by_formula = None if form is None else form.function(p, q)
        assert by_formula is None or bool(by_formula[~infinite].isfinite().all()), pair
        if form is not None:
            assert torch.equal(kl_divergence(p, q).isposinf(), infinite), pair
        for order in (0.5, 1.5, 2.0, 3.0):
            of_order = renyi_in_closed_form(p, q, order, 1 - order, wants_error=False)
            if of_order is not None:
                assert torch.equal(of_order[0].isposinf(), where_infinite(*densities, order)), (pair, order)
        for place, images in enumerate(zip(densities_p[1:], densities_q[1:], strict=True)):
            assert torch.equal(where_infinite(*images), infinite), (pair, MAPS[place])


@pytest.mark.parametrize("of_q", [False, True])
def test_one_side_under_vmap_is_infinite_and_nan_where_a_parameter_is_nan(of_q: bool) -> None:
    def value(x: Tensor) -> Tensor:
        scale, rate = (torch.ones(()), x) if of_q else (x, torch.ones(()))
        p = Normal(torch.zeros(()), scale, validate_args=False)
        return kl_divergence(p, Exponential(rate, validate_args=False))

    assert torch.vmap(value)(torch.tensor([1.0, 2.0])).tolist() == [torch.inf, torch.inf]
    is_nan = torch.vmap(value)(torch.tensor([1.0, torch.nan])).isnan()
    assert is_nan.tolist() == [False, True]
