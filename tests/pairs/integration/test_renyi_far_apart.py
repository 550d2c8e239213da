"""Renyi's divergence of distributions that are far apart: its sum is far below or above 1. Truths are by mpmath."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Binomial,
    Categorical,
    Distribution,
    Geometric,
    Gumbel,
    Laplace,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
)

from kullback import Alpha, JensenShannon, Renyi, SquaredHellinger, divergence, estimate

M = mpmath.mpf


def double(x: float | list[float]) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


# Each family with its logarithm of the density, by mpmath.
def poisson(rate: float) -> tuple[Distribution, Any]:
    return Poisson(double(rate)), lambda k: k * mpmath.log(rate) - rate - mpmath.loggamma(k + 1)


def geometric(p: float) -> tuple[Distribution, Any]:
    p = float(p)
    return Geometric(double(p)), lambda k: k * mpmath.log(1 - M(p)) + mpmath.log(M(p))


def binomial(n: int, p: float) -> tuple[Distribution, Any]:
    def log(k: int) -> Any:
        return mpmath.log(mpmath.binomial(n, k)) + k * mpmath.log(M(p)) + (n - k) * mpmath.log(1 - M(p))

    return Binomial(n, double(p)), log


def negative_binomial(n: float, p: float) -> tuple[Distribution, Any]:
    def log(k: int) -> Any:
        of_n = mpmath.loggamma(k + M(n)) - mpmath.loggamma(M(n)) - mpmath.loggamma(k + 1)
        return of_n + n * mpmath.log(1 - M(p)) + k * mpmath.log(M(p))

    return NegativeBinomial(double(n), double(p)), log


def normal(loc: float, scale: float) -> tuple[Distribution, Any]:
    constant = mpmath.log(M(scale) * mpmath.sqrt(2 * mpmath.pi))
    return Normal(double(loc), double(scale)), lambda x: -(((x - loc) / M(scale)) ** 2) / 2 - constant


def laplace(loc: float, scale: float) -> tuple[Distribution, Any]:
    return Laplace(double(loc), double(scale)), lambda x: -abs(x - loc) / M(scale) - mpmath.log(2 * M(scale))


def gumbel() -> tuple[Distribution, Any]:
    return Gumbel(double(0.0), double(1.0)), lambda x: -x - mpmath.exp(-x)


def student_t(df: int, loc: float, scale: float) -> tuple[Distribution, Any]:
    d = M(df)
    constant = mpmath.loggamma((d + 1) / 2) - mpmath.loggamma(d / 2) - mpmath.log(d * mpmath.pi) / 2
    return StudentT(
        double(df), double(loc), double(scale)
    ), lambda x: constant - mpmath.log(M(scale)) - (d + 1) / 2 * mpmath.log1p(((x - loc) / M(scale)) ** 2 / d)


def classes(probs: list[float]) -> tuple[Distribution, Any]:
    return Categorical(double(probs)), lambda k: mpmath.log(M(probs[k]))


SUMS: list[tuple[tuple[Distribution, Any], tuple[Distribution, Any], float, int]] = [
    ((Bernoulli(double(0.3)), lambda k: mpmath.log(M("0.3") if k else M("0.7"))), poisson(47.0), 0.3, 2),
    (classes([0.55, 0.45]), negative_binomial(192.7, 0.784), 0.3, 2),
    (binomial(100, 0.01), poisson(900.0), 0.4, 101),
    (geometric(0.9), poisson(300.0), 0.3, 900),
    (poisson(300.0), geometric(0.5), 1.2, 1500),
    (poisson(1000.0), geometric(0.5), 3.0, 9000),
    (poisson(0.2), binomial(60, 0.999), 0.9, 61),
]
INTEGRALS: list[tuple[tuple[Distribution, Any], tuple[Distribution, Any], float, tuple[int, int]]] = [
    (laplace(0.0, 1.0), normal(60.0, 1.0), 0.3, (-40, 120)),
    (laplace(3.0, 2.0), normal(-60.0, 1.0), 0.8, (-120, 60)),
    (gumbel(), normal(60.0, 1.0), 0.7, (-20, 140)),
    (student_t(5, 0.0, 1.0), laplace(200.0, 1.0), 0.5, (-60, 280)),
    (normal(0.0, 1.0), laplace(100.0, 0.1), 2.0, (-60, 60)),
    (normal(0.0, 1.0), student_t(5, 300.0, 0.1), 3.0, (-60, 60)),
]


def of_sum(log_p: Any, log_q: Any, alpha: float, count: int) -> float:
    with mpmath.workdps(30):
        terms = (mpmath.exp(M(alpha) * log_p(k) + (1 - M(alpha)) * log_q(k)) for k in range(count))
        return float(mpmath.log(mpmath.fsum(terms)) / (M(alpha) - 1))


def of_integral(log_p: Any, log_q: Any, alpha: float, ends: tuple[int, int]) -> float:
    with mpmath.workdps(20):
        power = lambda x: mpmath.exp(M(alpha) * log_p(x) + (1 - M(alpha)) * log_q(x))  # noqa: E731
        step = (ends[1] - ends[0]) // 170 or 1
        return float(mpmath.log(mpmath.quad(power, range(ends[0], ends[1] + 1, step))) / (M(alpha) - 1))


@pytest.mark.heavy
def test_sums_and_integrals_keep_their_digits() -> None:
    cases: list[tuple[Any, Callable[..., float]]] = [
        *((case, of_sum) for case in SUMS),
        *((case, of_integral) for case in INTEGRALS),
    ]
    for ((p, log_p), (q, log_q), alpha, extent), truth in cases:
        found, true = estimate(p, q, Renyi(alpha)), truth(log_p, log_q, alpha, extent)
        error = abs(float(found.value) - true)
        assert error <= 1e-9 * true, (p, q, alpha, found, true)
        assert found.error is not None
        assert error <= float(found.error) + 1e-15 * true, (p, q, alpha, found, true)


def test_a_sum_that_reaches_far_beyond_both() -> None:
    """The terms p^1.5 q^-0.5 are largest near n = 20,000, where P with mean 1,225 has almost no mass."""
    p = NegativeBinomial(double(523.08), double(0.7008))
    q = NegativeBinomial(double(0.5859), double(0.37107))
    assert float(divergence(p, q, Renyi(1.5))) == pytest.approx(3906.644249, rel=1e-9)


def test_a_batch_has_near_and_far_elements() -> None:
    rates = double([47.0, 0.2, 200.0]).requires_grad_()
    p = Bernoulli(double(0.3))
    value = divergence(p, Poisson(rates), Renyi(0.3))
    alone = torch.stack([divergence(p, Poisson(rate), Renyi(0.3)) for rate in rates.detach()])
    assert torch.allclose(value.detach(), alone, rtol=1e-12)
    (slopes,) = torch.autograd.grad(value.sum(), rates)

    def exact(rate: Tensor) -> Tensor:
        log_q = torch.stack([-rate, rate.log() - rate])
        log_p = double([0.7, 0.3]).log()
        return torch.logsumexp(0.3 * log_p.unsqueeze(-1) + 0.7 * log_q, 0) / -0.7

    (right,) = torch.autograd.grad(exact(rates).sum(), rates)
    assert torch.allclose(slopes, right, rtol=1e-9)


def test_derivatives_of_far_pairs() -> None:
    def renyi(p: Tensor, rate: Tensor) -> Tensor:
        return divergence(Bernoulli(p), Poisson(rate), Renyi(0.3))

    def exact(p: Tensor, rate: Tensor) -> Tensor:
        logs = torch.stack([0.3 * (1 - p).log() - 0.7 * rate, 0.3 * p.log() + 0.7 * (rate.log() - rate)])
        return logs.logsumexp(0) / -0.7

    at = double(0.3), double(47.0)
    for kind in (torch.autograd.functional.jacobian, torch.autograd.functional.hessian):
        found, right = (torch.stack([*map(torch.as_tensor, _flat(kind(f, at)))]) for f in (renyi, exact))
        assert torch.allclose(found, right, rtol=1e-7, atol=1e-9), (found, right)
    location = double(0.0).requires_grad_()
    value = divergence(Laplace(location, 1.0), Normal(double(60.0), 1.0), Renyi(0.3))
    (slope,) = torch.autograd.grad(value, location)
    with torch.no_grad():
        ends = [
            divergence(Laplace(double(x), 1.0), Normal(double(60.0), 1.0), Renyi(0.3)) for x in (1e-3, -1e-3)
        ]
    assert float(slope) == pytest.approx(float(ends[0] - ends[1]) / 2e-3, rel=1e-5)


def _flat(x: Any) -> list[Any]:
    return [y for part in x for y in _flat(part)] if isinstance(x, tuple) else [x]


def test_other_kinds_stay_right_far_apart() -> None:
    for p, q in ((Bernoulli(double(0.3)), Poisson(double(470.0))), (Laplace(0.0, 1.0), Normal(600.0, 1.0))):
        for kind, true in ((JensenShannon(), 0.69314718), (SquaredHellinger(), 1.0), (Alpha(0.3), 1 / 0.21)):
            assert float(divergence(p, q, kind)) == pytest.approx(true, rel=1e-6), (p, kind)
