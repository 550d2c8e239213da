"""Renyi's and the alpha divergences of exponential families in closed form: against mpmath and quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor
from torch.distributions import (
    Beta,
    Chi2,
    Dirichlet,
    Distribution,
    Exponential,
    Gamma,
    HalfNormal,
    InverseGamma,
    LogNormal,
    Normal,
    Poisson,
)

from kullback import Alpha, ChiSquared, Renyi, SquaredHellinger, divergence, kl_divergence
from kullback.pairs.options import Options
from kullback.pairs.solve import estimate

ORDERS = (0.01, 0.3, 0.5, 0.99, 1.01, 1.5, 2.0, 7.0)
Integral = Callable[
    ..., mpf | None
]  # log of the integral of p^alpha q^(1 - alpha), None where that is infinite
Family = Callable[[Tensor], Distribution]


def of_normalizer(normalizer: Callable[..., mpf], inside: Callable[..., bool]) -> Integral:
    """By the logarithm A of a normalizer: A(mixed) - alpha A(P) - (1 - alpha) A(Q)."""

    def integral(alpha: mpf, p: list[mpf], q: list[mpf]) -> mpf | None:
        mixed = [alpha * x + (1 - alpha) * y for x, y in zip(p, q, strict=True)]
        if not inside(*mixed):
            return None
        return normalizer(*mixed) - alpha * normalizer(*p) - (1 - alpha) * normalizer(*q)

    return integral


def positive(*x: mpf) -> bool:
    return min(x) > 0


gamma = of_normalizer(lambda a, r: mp.loggamma(a) - a * mp.log(r), positive)
chi2 = of_normalizer(lambda df: mp.loggamma(df / 2) + df / 2 * mp.log(2), positive)
exponential = of_normalizer(lambda r: -mp.log(r), positive)
dirichlet = of_normalizer(lambda *c: mp.fsum(map(mp.loggamma, c)) - mp.loggamma(mp.fsum(c)), positive)


def poisson(alpha: mpf, p: list[mpf], q: list[mpf]) -> mpf:
    return p[0] ** alpha * q[0] ** (1 - alpha) - alpha * p[0] - (1 - alpha) * q[0]


def normal(alpha: mpf, p: list[mpf], q: list[mpf]) -> mpf | None:
    (m, s), (n, t) = p, q
    variance = alpha * t**2 + (1 - alpha) * s**2
    if variance <= 0:
        return None
    logs = mp.log(variance) - 2 * (1 - alpha) * mp.log(s) - 2 * alpha * mp.log(t)
    return -(logs + alpha * (1 - alpha) * (m - n) ** 2 / variance) / 2


def half_normal(alpha: mpf, p: list[mpf], q: list[mpf]) -> mpf | None:
    return normal(alpha, [mpf(0), *p], [mpf(0), *q])


# Each family: from one tensor of parameters, its integral, and pairs of parameters.
FAMILIES: dict[str, tuple[Family, Integral, list[tuple[tuple[float, ...], tuple[float, ...]]]]] = {
    "Gamma": (
        lambda x: Gamma(*x),
        gamma,
        [
            ((2.5, 1.3), (0.7, 2.1)),
            ((0.7, 2.1), (2.5, 1.3)),
            ((1e-6, 1e10), (3.0, 1e9)),
            ((1e8, 1e-5), (2e8, 2.1e-5)),
        ],
    ),
    "InverseGamma": (
        lambda x: InverseGamma(*x),
        gamma,
        [((2.5, 1.3), (0.7, 2.1)), ((40.0, 1e-9), (41.0, 1e-9))],
    ),
    "Exponential": (
        lambda x: Exponential(*x),
        exponential,
        [((1.3,), (0.4,)), ((0.4,), (1.3,)), ((1e-30,), (1e30,))],
    ),
    "Chi2": (lambda x: Chi2(*x), chi2, [((3.0,), (7.5,)), ((7.5,), (3.0,))]),
    "Beta": (
        lambda x: Beta(*x),
        dirichlet,
        [((2.5, 1.3), (0.7, 2.1)), ((1e-6, 1e-3), (0.5, 3.0)), ((1e8, 3.0), (9e7, 2.0))],
    ),
    "Dirichlet": (
        Dirichlet,
        dirichlet,
        [((0.5, 2.0, 7.0), (1.5, 1.0, 6.0)), ((1e3, 1e-3, 2.0), (2e3, 2e-3, 1.0))],
    ),
    "Poisson": (
        lambda x: Poisson(*x),
        poisson,
        [((3.0,), (4.5,)), ((4.5,), (3.0,)), ((1e-20,), (1e6,)), ((1e6,), (1e-3,))],
    ),
    "LogNormal": (
        lambda x: LogNormal(*x),
        normal,
        [((0.3, 1.2), (-0.4, 0.9)), ((30.0, 1e-3), (30.001, 1.2e-3))],
    ),
    "HalfNormal": (lambda x: HalfNormal(*x), half_normal, [((1.3,), (0.6,)), ((0.6,), (1.3,))]),
}


def truth(integral: Integral, alpha: float, p: list[mpf], q: list[mpf]) -> mpf:
    found = integral(mpf(alpha), p, q)
    if found is None:
        return mpf("inf")
    return found / (mpf(alpha) - 1)


def derivative(integral: Integral, alpha: float, at: list[mpf], i: int) -> mpf:
    half, step = len(at) // 2, mpf(10) ** -30 * abs(at[i])
    sides = [[*at[:i], at[i] + sign * step, *at[i + 1 :]] for sign in (1, -1)]
    up, down = (truth(integral, alpha, x[:half], x[half:]) for x in sides)
    return (up - down) / (2 * step)


@pytest.mark.parametrize("relative", [None, 1e-8, 1e-4, 0.1])
@pytest.mark.parametrize("name", FAMILIES)
def test_renyi_and_its_gradient_are_those_of_the_normalizer(name: str, relative: float | None) -> None:
    family, integral, pairs = FAMILIES[name]
    for alpha in ORDERS:
        for first, second in pairs:
            moved = [x * (1 + (relative or 0) * (1 if i % 2 else -1)) for i, x in enumerate(first)]
            p, q = (
                torch.tensor(x, dtype=torch.float64, requires_grad=True)
                for x in (first, moved if relative else second)
            )
            value = divergence(family(p), family(q), Renyi(alpha))
            gradient = torch.cat(torch.autograd.grad(value, (p, q)))
            with mpmath.workdps(90):
                at = [mpf(x) for x in (*p.tolist(), *q.tolist())]
                true = truth(integral, alpha, at[: len(p)], at[len(p) :])
                if mp.isinf(true):
                    assert value == math.inf
                    assert torch.equal(gradient, torch.zeros_like(gradient))
                    continue
                derivatives = [derivative(integral, alpha, at, i) for i in range(len(at))]
                natural = max(abs(s * x) for s, x in zip(derivatives, at, strict=True))
                assert abs(value.item() - true) <= 1e-10 * true + 1e-13 * natural, (alpha, first, second)
                for ours, s, x in zip(gradient.tolist(), derivatives, at, strict=True):
                    assert abs(ours - s) <= 1e-7 * abs(s) + 1e-13 * natural / (abs(x) or 1), (
                        alpha,
                        first,
                        second,
                    )


@pytest.mark.parametrize(
    "kind", [Renyi(0.5), Renyi(2.0), Alpha(-0.5), Alpha(1.5), ChiSquared(), SquaredHellinger()], ids=repr
)
@pytest.mark.parametrize(
    ("p", "q"),
    [
        (Gamma(2.5, 3.0), Gamma(2.0, 2.4)),
        (Gamma(2.5, 3.0), Exponential(2.4)),
        (Exponential(3.0), Gamma(1.2, 2.4)),
        (Exponential(3.0), Chi2(3.0)),
        (InverseGamma(2.5, 3.0), InverseGamma(2.0, 2.4)),
        (Beta(2.0, 3.0), Beta(1.7, 2.2)),
        (LogNormal(0.2, 0.7), LogNormal(0.0, 0.9)),
        (HalfNormal(0.7), HalfNormal(0.9)),
        (Normal(0.2, 0.7), Normal(0.0, 0.9)),
        (Poisson(2.0), Poisson(3.5)),
    ],
    ids=lambda d: type(d).__name__,
)
def test_a_closed_form_is_what_the_sum_over_nodes_gives(
    p: Distribution, q: Distribution, kind: Renyi
) -> None:
    closed = estimate("divergence", p, q, Options(), kind)
    assert closed.method == "closed_form"
    method = "summation" if isinstance(p, Poisson) else "quadrature"
    nodes = estimate("divergence", p, q, Options(method=method), kind)
    torch.testing.assert_close(closed.value, nodes.value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("p", "q", "order"),
    [
        (Gamma(1.0, 1.0), Gamma(2.0, 1.0), 2.0),  # concentration 2 - 2: just infinite
        (Gamma(1.0, 1.0), Gamma(1.0, 2.0), 2.0),
        (Exponential(1.0), Exponential(4.0), 1.5),
        (Beta(1.0, 3.0), Beta(2.5, 3.0), 2.0),
        (Dirichlet(torch.tensor([1.0, 2.0, 3.0])), Dirichlet(torch.tensor([1.0, 2.0, 9.0])), 1.8),
        (Poisson(1.0), Poisson(0.0), 1.5),
        (LogNormal(0.0, 2.0), LogNormal(0.0, 1.0), 2.0),
    ],
    ids=str,
)
def test_where_the_integral_diverges_the_power_divergences_are_infinite(
    p: Distribution, q: Distribution, order: float
) -> None:
    assert divergence(p, q, Renyi(order)) == math.inf
    assert divergence(p, q, Alpha(order)) == math.inf
    found = estimate("divergence", p, q, Options(), Alpha(order))
    assert found.error == 0


def test_poissons_of_mean_0_have_their_limits() -> None:
    none, some = Poisson(torch.tensor(0.0)), Poisson(torch.tensor(2.5))
    assert divergence(none, none, Renyi(0.5)) == 0
    assert divergence(none, some, Renyi(3.0)) == 2.5
    assert divergence(some, none, Renyi(0.5)) == 2.5
    assert divergence(none, some, Alpha(-1.0)) == math.inf


@pytest.mark.parametrize("name", FAMILIES)
def test_equal_distributions_are_at_0_with_gradient_0(name: str) -> None:
    family, _, pairs = FAMILIES[name]
    for at, _ in pairs:
        p, q = (torch.tensor(at, dtype=torch.float64, requires_grad=True) for _ in range(2))
        for alpha in ORDERS:
            value = divergence(family(p), family(q), Renyi(alpha))
            assert value == 0
            for gradient in torch.autograd.grad(value, (p, q)):
                assert torch.equal(gradient, torch.zeros_like(gradient))


def test_next_to_order_1_it_is_kl() -> None:
    p, q = Gamma(torch.tensor(2.0).double(), 3.0), Gamma(torch.tensor(0.7).double(), 1.0)
    assert divergence(p, q, Renyi(1 + 1e-12)).item() == pytest.approx(kl_divergence(p, q).item(), rel=1e-11)
