"""Derivatives where P and Q begin or end at the same place, or have equal maps with parameters of their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian as double_backward
from torch.distributions import (
    AffineTransform,
    Beta,
    Distribution,
    Exponential,
    ExpTransform,
    Gamma,
    GeneralizedPareto,
    HalfCauchy,
    HalfNormal,
    Independent,
    MultivariateNormal,
    Normal,
    Pareto,
    TransformedDistribution,
    Uniform,
    Weibull,
)
from torch.func import hessian, jacfwd, jacrev

from kullback import (
    KL,
    ChiSquared,
    Divergence,
    JensenShannon,
    Renyi,
    ReverseKL,
    TotalVariation,
    divergence,
    kl_divergence,
)
from kullback.errors import NoRuleError


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def shifted(base: Distribution, loc: Tensor, sign: float = 1.0) -> Distribution:
    return TransformedDistribution(base, [AffineTransform(loc, number(sign))])


# Families that begin at a parameter, at 0.5 or less.
STARTS: dict[str, Callable[[Tensor], Distribution]] = {
    "generalized Pareto": lambda x: GeneralizedPareto(x, number(1.3), number(0.4)),
    "generalized Pareto without a power": lambda x: GeneralizedPareto(x, number(1.3), number(0.0)),
    "Exponential": lambda x: shifted(Exponential(number(1.2)), x),
    "HalfNormal": lambda x: shifted(HalfNormal(number(1.2)), x),
    "HalfCauchy": lambda x: shifted(HalfCauchy(number(1.2)), x),
    "Gamma": lambda x: shifted(Gamma(number(2.5), number(1.0)), x),
    "Weibull": lambda x: shifted(Weibull(number(1.0), number(2.5)), x),
    "Pareto": lambda x: Pareto(x, number(1.5)),
    "Uniform": lambda x: Uniform(x, number(9.0)),
    "exponential of a shifted one": lambda x: TransformedDistribution(
        Exponential(number(1.2)), [AffineTransform(torch.log(x), number(1.0)), ExpTransform()]
    ),
}
PS = {
    "Uniform": Uniform(number(0.5), number(1.5)),
    "Beta": shifted(Beta(number(3.0), number(3.0)), number(0.5)),
    "Gamma": shifted(Gamma(number(3.0), number(3.0)), number(0.5)),
    "HalfNormal": shifted(HalfNormal(number(0.7)), number(0.5)),
}
KINDS: list[Divergence] = [KL(), JensenShannon(), Renyi(0.5), TotalVariation(), ChiSquared()]


def one_sided(f: Callable[[Tensor], Tensor], x: Tensor, step: float) -> float:
    return float(-3 * f(x) + 4 * f(x + step) - f(x + 2 * step)) / (2 * step)


def slope(f: Callable[[Tensor], Tensor], x: Tensor) -> float:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x), x)[0].item()


@pytest.mark.sweep
@pytest.mark.parametrize("of_q", STARTS)
def test_the_derivative_by_a_shared_start_is_that_of_a_wider_q(of_q: str) -> None:
    x, rises = number(0.5), of_q in ("Gamma", "Weibull")
    of_ps = ["Gamma"] if rises else [sorted(PS)[len(of_q) % 4], "Uniform"]
    for of_p in of_ps:
        for kind in (KINDS[0], KINDS[1 + (len(of_q) + len(of_p)) % 4]):

            def f(x: Tensor, of_p: str = of_p, kind: Divergence = kind) -> Tensor:
                return divergence(PS[of_p], STARTS[of_q](x), kind)

            if f(x).isfinite():
                assert slope(f, x) == pytest.approx(one_sided(f, x, -1e-6), rel=1e-4, abs=1e-6), (of_p, kind)


def test_ends_above_and_ends_of_p_and_kinds_that_are_finite_inside_alone() -> None:
    def above(x: Tensor) -> Tensor:
        return divergence(PS["Uniform"], shifted(HalfNormal(number(1.2)), x, -1.0), KL())

    assert slope(above, number(1.5)) == pytest.approx(0.5 / 1.2**2, rel=1e-8)  # E[z] / scale

    def of_p(x: Tensor) -> Tensor:
        return divergence(shifted(HalfNormal(number(0.7)), x), STARTS["Exponential"](number(0.5)), KL())

    assert slope(of_p, number(0.5)) == pytest.approx(1.2, rel=1e-8)

    def reverse(x: Tensor) -> Tensor:
        return divergence(PS["HalfNormal"], STARTS["Exponential"](x), ReverseKL())

    assert slope(reverse, number(0.5)) == pytest.approx(one_sided(reverse, number(0.5), 1e-6), rel=1e-4)


def test_derivatives_of_a_generalized_pareto_in_closed_form() -> None:
    # By the location first -(1 + c) E[1 / (s + c x)], then -c (1 + c) E[1 / (s + c x)^2].
    def f(x: Tensor) -> Tensor:
        return kl_divergence(
            Uniform(number(0.0), number(1.0)), GeneralizedPareto(x, number(1.3), number(0.4))
        )

    x = number(0.0)
    first, second = -1.4 / 0.4 * float(torch.log(number(1.7 / 1.3))), -1.4 * (1 / 1.3 - 1 / 1.7)
    assert jacfwd(f)(x).item() == pytest.approx(first, rel=1e-8)
    assert jacrev(f)(x).item() == pytest.approx(first, rel=1e-8)
    for route in (lambda f: lambda x: double_backward(f, x), hessian, lambda f: jacfwd(jacfwd(f))):
        assert route(f)(x).item() == pytest.approx(second, rel=1e-7)


def test_an_infinite_derivative_is_zero_and_equal_distributions_have_none() -> None:
    steep = slope(lambda x: kl_divergence(PS["Uniform"], STARTS["Gamma"](x)), number(0.5))
    assert steep == 0
    same = STARTS["generalized Pareto"]
    for kind in KINDS:
        assert slope(lambda x, kind=kind: divergence(same(number(0.5)), same(x), kind), number(0.5)) == 0


def test_a_batch_with_shared_ends_in_some_elements() -> None:
    x = torch.tensor([0.5, 0.3], dtype=torch.float64, requires_grad=True)
    value = divergence(PS["Uniform"], STARTS["HalfNormal"](x), JensenShannon())
    found = torch.autograd.grad(value.sum(), x)[0]
    for i, start in enumerate((0.5, 0.3)):
        alone = slope(
            lambda x: divergence(PS["Uniform"], STARTS["HalfNormal"](x), JensenShannon()), number(start)
        )
        assert found[i].item() == pytest.approx(alone, rel=1e-9)


ROUTES: list[Any] = [
    lambda f: lambda x: double_backward(f, x),
    hessian,
    lambda f: jacfwd(jacfwd(f)),
    lambda f: jacrev(jacrev(f)),
]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "factor"),
    [(KL(), 1.0), (ReverseKL(), 1.0), (JensenShannon(), 0.25), (Renyi(0.5), 0.5), (ChiSquared(), 2.0)],
)
def test_equal_maps_with_parameters_of_their_own_have_fisher_information(
    kind: Divergence, factor: float
) -> None:
    start = torch.tensor([0.3, 2.0], dtype=torch.float64)
    base = Normal(number(0.0), number(1.0))
    q = TransformedDistribution(base, AffineTransform(start[0], start[1]))

    def f(x: Tensor) -> Tensor:
        return divergence(TransformedDistribution(base, AffineTransform(x[0], x[1])), q, kind)

    assert f(start).item() == 0
    assert jacrev(f)(start).tolist() == [0, 0]
    expected = factor * torch.tensor([[0.25, 0.0], [0.0, 0.5]], dtype=torch.float64)
    for route in ROUTES:
        torch.testing.assert_close(route(f)(start), expected, rtol=1e-7, atol=1e-9)


def test_equal_maps_of_different_bases_have_first_derivatives() -> None:
    def f(x: Tensor) -> Tensor:
        p, q = (Independent(Normal(torch.full((2,), m).double(), 1.0), 1) for m in (0.0, 1.0))
        fixed = AffineTransform(start[:2], start[2:])
        return kl_divergence(
            TransformedDistribution(p, AffineTransform(x[:2], x[2:])), TransformedDistribution(q, fixed)
        )

    start = torch.tensor([0.3, 0.1, 1.0, 2.0], dtype=torch.float64)
    # ((a - a' - b') / b')^2 / 2 + (b / b')^2 / 2 - log(b / b') - 1 / 2 in each dimension
    expected = torch.tensor([-1.0, -0.5, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(jacrev(f)(start), expected)
    torch.testing.assert_close(jacfwd(f)(start), expected)


def test_equal_maps_of_vectors_are_one_map_or_refused() -> None:
    normals = [MultivariateNormal(torch.full((2,), m).double(), torch.eye(2).double()) for m in (0.0, 1.0)]
    loc = torch.zeros(2, dtype=torch.float64, requires_grad=True)

    def kl(first: Tensor, second: Tensor) -> Tensor:
        p, q = (
            TransformedDistribution(normal, AffineTransform(a, 2.0))
            for normal, a in zip(normals, (first, second), strict=True)
        )
        return kl_divergence(p, q)

    assert kl(loc, loc).item() == 1.0
    with pytest.raises(NoRuleError, match="separate parameters that require gradients"):
        kl(loc, loc.detach())
    with torch.no_grad():
        assert kl(loc, loc.detach()).item() == 1.0


def test_inverses_of_equal_maps_have_first_derivatives() -> None:
    x = number(0.2).requires_grad_()
    p, q = (
        TransformedDistribution(Normal(number(m), number(1.0)), AffineTransform(loc, number(2.0)).inv)
        for m, loc in ((0.0, x), (1.0, x.detach()))
    )
    for kind, expected in ((KL(), 1.0), (ChiSquared(), None)):
        found = torch.autograd.grad(divergence(p, q, kind), x)[0].item()
        # KL is (a' - a - 1)^2 / 2, and this one is e^(2 KL) - 1.
        assert found == pytest.approx(expected or 2 * math.e, rel=1e-7)
