"""Renyi's and the alpha divergences of exponential families in closed form: against mpmath and quadrature."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import mpmath
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor
from torch.distributions import (
    Beta,
    Cauchy,
    Chi2,
    Dirichlet,
    Distribution,
    Exponential,
    Gamma,
    HalfNormal,
    Independent,
    InverseGamma,
    Laplace,
    LogNormal,
    MultivariateNormal,
    Normal,
    Poisson,
    StudentT,
)

from kullback import Alpha, ChiSquared, Renyi, SquaredHellinger, divergence, kl_divergence
from kullback.errors import ConvergenceError, NoRuleError
from kullback.pairs.solve import estimate
from kullback.pairs.solve_options import SolveOptions
from tests.refusals import refused

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
    closed = estimate("divergence", p, q, SolveOptions(), kind)
    assert closed.method == "closed_form"
    method = "summation" if isinstance(p, Poisson) else "quadrature"
    nodes = estimate("divergence", p, q, SolveOptions(method=method), kind)
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
    found = estimate("divergence", p, q, SolveOptions(), Alpha(order))
    assert found.error == 0


def test_poissons_of_mean_0_have_their_limits() -> None:
    none, some = Poisson(torch.tensor(0.0)), Poisson(torch.tensor(2.5))
    assert divergence(none, none, Renyi(0.5)) == 0
    assert divergence(none, some, Renyi(3.0)) == 2.5
    assert divergence(some, none, Renyi(0.5)) == 2.5
    assert divergence(none, some, Alpha(-1.0)) == math.inf


@pytest.mark.sweep
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


NEXT_TO = (1e-18, 1e-9, 1e-3, 1 - 1e-6, 1 - 1e-12, 1 + 1e-12)


@pytest.mark.parametrize("alpha", NEXT_TO)
@pytest.mark.parametrize("name", FAMILIES)
def test_orders_next_to_0_and_1_keep_all_digits(name: str, alpha: float) -> None:
    family, integral, pairs = FAMILIES[name]
    for first, second in pairs:
        at = [torch.tensor(x, dtype=torch.float64) for x in (first, second)]
        value = divergence(family(at[0]), family(at[1]), Renyi(alpha)).item()
        with mpmath.workdps(90):
            true = truth(integral, alpha, *([mpf(x) for x in side] for side in (first, second)))
            assert value == math.inf if mp.isinf(true) else abs(value - true) <= 1e-11 * true, (first, second)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ((1e200, 1e200), (0.0, 1.0)),
        ((0.0, 1e-200), (0.0, 1e200)),
        ((0.0, 1e200), (0.0, 1e-200)),
        ((5e199, 1e-200), (0.0, 1e200)),
    ],
)
def test_scales_whose_squares_are_no_floats(p: tuple[float, float], q: tuple[float, float]) -> None:
    at = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (*p, *q)]
    for alpha in (1e-3, 0.5, 1 - 1e-9):
        value = divergence(Normal(*at[:2]), Normal(*at[2:]), Renyi(alpha))
        with mpmath.workdps(900):
            true = truth(normal, alpha, [mpf(x) for x in p], [mpf(x) for x in q])
            assert value.item() == math.inf if true > 1.7e308 else abs(value.item() - true) <= 1e-12 * true
        assert not any(bool(x.isnan()) for x in torch.autograd.grad(value, at))


def test_a_power_too_large_for_floats_is_infinite_without_a_gradient() -> None:
    loc, scale = (torch.tensor(x, requires_grad=True) for x in (100.0, 1.0))
    value = divergence(Normal(0.0, scale), Normal(loc, 1.0), ChiSquared())
    assert value == math.inf
    assert torch.autograd.grad(value, (loc, scale)) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [0.3, 0.5, 1 - 1e-9, 2.0])
@pytest.mark.parametrize("condition", [1.0, 1e4, 1e6])
def test_covariances_as_they_were_given(alpha: float, condition: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=generator))[0]
    c = (turn * torch.tensor([1.0, condition**-0.5, 1 / condition])) @ turn.mT
    c = ((c + c.mT) / 2).to(dtype)
    k = (c * 1.1 + torch.eye(3) / 10).to(dtype)
    m, n = torch.tensor([0.3, -0.2, 1.0], dtype=dtype), torch.tensor([0.2, 0.0, 0.9], dtype=dtype)
    p, q = MultivariateNormal(m, c, validate_args=False), MultivariateNormal(n, k, validate_args=False)
    found = estimate("divergence", p, q, SolveOptions(), Renyi(alpha))
    with mpmath.workdps(50):
        a = mpf(alpha)
        first, second, shift = mp.matrix(c.tolist()), mp.matrix(k.tolist()), mp.matrix((m - n).tolist())
        both = a * second + (1 - a) * first
        logs = mp.log(mp.det(both)) - (1 - a) * mp.log(mp.det(first)) - a * mp.log(mp.det(second))
        true = a / 2 * (shift.T * mp.inverse(both) * shift)[0] + logs / (2 * (1 - a))
        assert found.error is not None
        assert abs(found.value.item() - true) <= found.error.item()
        assert found.error.item() <= (1e-9 if dtype == torch.float64 else 2e-7) * true


@pytest.mark.parametrize("kind", [ChiSquared(), SquaredHellinger(), Renyi(0.3), Alpha(-0.2)], ids=repr)
def test_independent_normals_beside_multivariate_ones(kind: Renyi) -> None:
    loc, scale = torch.tensor([0.3, -1.0]).double(), torch.tensor([1.0, 2.0]).double()
    other = torch.tensor([0.0, -0.5]).double(), torch.tensor([1.2, 1.9]).double()
    p, q = Independent(Normal(loc, scale), 1), Independent(Normal(*other), 1)
    full_p, full_q = (MultivariateNormal(m, torch.diag(s * s)) for m, s in ((loc, scale), other))
    expected = divergence(p, q, kind)
    for a, b in ((p, full_q), (full_p, q), (full_p, full_q)):
        torch.testing.assert_close(divergence(a, b, kind), expected, rtol=1e-12, atol=0)


def test_negative_orders_of_independent_dimensions() -> None:
    p, q = (
        Laplace(torch.tensor(m).double(), torch.tensor([1.0, 1.1]).double()) for m in ([0.0, 0.0], [0.1, 0.2])
    )
    each = divergence(p, q, Alpha(-0.2))
    together = divergence(Independent(p, 1), Independent(q, 1), Alpha(-0.2))
    torch.testing.assert_close(together, ((1 + 0.24 * each).prod() - 1) / 0.24, rtol=1e-9, atol=0)


def test_a_refusal_names_what_was_given() -> None:
    p = Independent(Laplace(torch.zeros(2), torch.ones(2)), 1)
    with refused(NoRuleError, got=r"Alpha\(alpha=0.3\) of \(Independent, Independent\) by closed_form"):
        divergence(p, p, Alpha(0.3), method="closed_form")
    roots = torch.diag_embed(torch.tensor([[1.0, 1.0], [1e160, 1.0]], dtype=torch.float64))
    wide, one = (
        MultivariateNormal(torch.zeros(2, dtype=torch.float64), scale_tril=x) for x in (roots, roots[:1])
    )
    with refused(NoRuleError, wanted="scales of P below 1e150 times Q's"):
        divergence(wide, one, Renyi(0.5))


@pytest.mark.parametrize("kind", [Renyi(0.3), Renyi(0.7), Alpha(0.3), Alpha(0.7)], ids=repr)
def test_errors_of_small_orders_name_the_sides_and_the_kind_of_the_user(kind):
    """Orders below 1/2 exchange P and Q on the way; so do sums of dimensions."""
    scale = torch.tensor([-1.0, 1.0])
    good = Independent(StudentT(torch.tensor([2.0, 3.0])), 1)
    bad = Independent(Cauchy(torch.zeros(2), scale, validate_args=False), 1)
    with refused(call="divergence", argument="q", wanted="positive scale"):
        divergence(good, bad, kind)
    with refused(call="divergence", argument="p", wanted="positive scale"):
        divergence(bad, good, kind)
    fine = Independent(Cauchy(torch.zeros(2), scale.abs()), 1)
    with refused(ConvergenceError, got=re.escape(repr(kind))) as caught:
        divergence(good, fine, kind, rtol=1e-13, atol=1e-30, max_evaluations=100)
    rough = caught.value.estimate
    value = float(divergence(good, fine, kind))
    assert rough.kind == kind.name
    assert abs(float(rough.value) - value) <= float(rough.error)
