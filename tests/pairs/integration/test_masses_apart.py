"""Powers of p / q that are largest where neither P nor Q has mass, and infinite ones of integers: against mpmath."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor
from torch.distributions import (
    Binomial,
    Categorical,
    Distribution,
    Geometric,
    Laplace,
    MixtureSameFamily,
    NegativeBinomial,
    Normal,
    Poisson,
)

from kullback import Alpha, ChiSquared, Renyi, TotalVariation, divergence, kl_divergence


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64, requires_grad=True)


def poisson(rate: float) -> Callable[[mpf], mpf]:
    return lambda x: x * mp.log(rate) - rate - mp.loggamma(x + 1)


def binomial(n: int, p: float) -> Callable[[mpf], mpf]:
    choices = mp.loggamma(n + 1)
    return lambda x: (
        choices - mp.loggamma(x + 1) - mp.loggamma(n - x + 1) + x * mp.log(p) + (n - x) * mp.log1p(-p)
    )


def negative_binomial(r: float, p: float) -> Callable[[mpf], mpf]:
    return lambda x: (
        mp.loggamma(x + r) - mp.loggamma(r) - mp.loggamma(x + 1) + x * mp.log(p) + r * mp.log1p(-p)
    )


@pytest.mark.parametrize(
    ("p", "q", "log_p", "log_q", "last"),
    [
        (Binomial(47, number(0.99)), Poisson(number(0.09)), binomial(47, 0.99), poisson(0.09), 47),
        (Binomial(24, number(0.39)), Binomial(24, number(0.99)), binomial(24, 0.39), binomial(24, 0.99), 24),
        (
            Poisson(number(50.0)),
            NegativeBinomial(number(0.355), number(0.2288)),
            poisson(50.0),
            negative_binomial(0.355, 0.2288),
            400,
        ),
    ],
    ids=["binomial-poisson", "binomials", "poisson-negative-binomial"],
)
def test_the_masses_themselves_are_counted_too(
    p: Distribution,
    q: Distribution,
    log_p: Callable[[mpf], mpf],
    log_q: Callable[[mpf], mpf],
    last: int,
) -> None:
    with mpmath.workdps(40):
        total = mp.fsum(mp.exp(2 * log_p(mpf(x)) - log_q(mpf(x))) for x in range(last + 1))
        assert divergence(p, q, Renyi(2.0)).item() == pytest.approx(float(mp.log(total)), rel=1e-12)
        assert divergence(p, q, ChiSquared()).item() == pytest.approx(float(total - 1), rel=1e-9)


@pytest.mark.sweep
def test_densities_far_from_each_other() -> None:
    p, q = Normal(number(0.0), number(1.0)), Laplace(number(50.0), number(0.1))
    with mpmath.workdps(40):
        m, b = mpf(50), mpf(0.1)
        integrand = [
            mp.quad(lambda x: mp.exp(-(x**2) + abs(x - m) / b), part)
            for part in (mp.linspace(-40, 50, 91), mp.linspace(50, 100, 51))
        ]
        true = float(mp.log(sum(integrand) * 2 * b / (2 * mp.pi)))
    assert divergence(p, q, Renyi(2.0)).item() == pytest.approx(true, rel=1e-10)


@pytest.mark.parametrize(
    ("p", "q", "order"),
    [
        (Geometric(number(0.3)), Poisson(number(146.6)), 2.0),
        (Geometric(number(0.3)), Poisson(number(1.6)), 1.5),
        (NegativeBinomial(number(3.0), number(0.12)), Poisson(number(0.016)), 2.0),
        (Poisson(number(60.0)), Geometric(number(0.02)), -0.5),
    ],
    ids=str,
)
def test_a_geometric_tail_beside_a_poisson_one_has_infinite_powers(
    p: Distribution, q: Distribution, order: float
) -> None:
    assert divergence(p, q, Alpha(order)) == math.inf


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_probabilities_of_few_digits_are_normalized_anew(dtype: torch.dtype) -> None:
    given = (
        torch.tensor([0.2, 0.3, 0.5, 0.1, 0.7], dtype=dtype),
        torch.tensor([0.25, 0.3, 0.4, 0.15, 0.9], dtype=dtype),
    )
    p, q = map(Categorical, given)
    exact = [Categorical(d.probs.double()) for d in (p, q)]
    rounding = torch.finfo(dtype).eps
    for kind in (TotalVariation(), ChiSquared(), Renyi(2.0)):
        expected = divergence(*exact, kind).item()
        assert divergence(p, q, kind).item() == pytest.approx(expected, rel=rounding)
    centers, widths = torch.tensor([0.0, 2.0], dtype=dtype), torch.tensor([1.0, 0.5], dtype=dtype)
    weights = Categorical(torch.tensor([0.3, 0.7], dtype=dtype))
    mixture = MixtureSameFamily(weights, Normal(centers, widths))
    same = MixtureSameFamily(Categorical(weights.probs.double()), Normal(centers.double(), widths.double()))
    found = kl_divergence(mixture, Normal(centers[0], widths[0])).item()
    expected = kl_divergence(same, Normal(centers[0].double(), widths[0].double())).item()
    assert found == pytest.approx(expected, rel=rounding)
