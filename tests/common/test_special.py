"""The functions that closed forms are made of, against mpmath at 60 digits, with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import mpmath
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

from kullback.common import special
from kullback.common.special import log_mean_decay
from kullback.pairs.families.continuous_bernoulli import (
    continuous_bernoulli_divergence,
    continuous_bernoulli_variance,
    mean_from_end,
)
from kullback.pairs.families.von_mises import log_i0_bregman, mean_cosine

SMALL = (1e-8, 3e-5, 2e-3, 0.0039, 0.0041, 0.019, 0.021, 0.1, 0.3)
SIGNED = tuple(sign * x for sign in (1, -1) for x in (*SMALL, 0.45, 0.51, 0.69, 0.71, 1.0, 5.0, 30.0, 300.0))
SIZES = (1e-30, 1e-6, 0.3, 1.0, 2.5, 9.99, 10.01, 39.0, 41.0, 1e4, 1e8)
NEARBY = tuple(sign * x for sign in (1, -1) for x in SMALL)


def lgamma_bregman(a: mpf, b: mpf) -> mpf:
    return mp.loggamma(b) - mp.loggamma(a) - (b - a) * mp.digamma(a)


def remainder(a: mpf, b: mpf) -> mpf:
    return lgamma_bregman(a, b) - b * mp.log(b / a) + b - a


def log_i0(a: mpf, b: mpf) -> mpf:
    derivative = mp.besseli(1, a) / mp.besseli(0, a)
    return mp.log(mp.besseli(0, b) / mp.besseli(0, a)) - (b - a) * derivative


def normalizer(a: mpf, b: mpf) -> mpf:
    return mp.log(mp.expm1(b) / b) - mp.log(mp.expm1(a) / a) - (b - a) * (1 / (1 - mp.exp(-a)) - 1 / a)


def logit_difference(p: mpf, q: mpf) -> mpf:
    return mp.log(p / (1 - p)) - mp.log(q / (1 - q))


ONE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[mpf], mpf], tuple[float, ...]]] = {
    "expm1mx": (special.expm1mx, lambda d: mp.exp(d) - 1 - d, SIGNED),
    "log1pmx": (special.log1pmx, lambda z: mp.log(1 + z) - z, (*NEARBY, 2.0, 1e10, -0.9)),
    "stirling_remainder": (special.stirling_remainder, lambda x: mp.loggamma(x) - x * mp.log(x) + x, SIZES),
    "digamma_minus_log": (special.digamma_minus_log, lambda x: mp.digamma(x) - mp.log(x), SIZES),
    "digamma": (special.digamma, mp.digamma, SIZES),
    "trigamma": (special.trigamma, lambda x: mp.psi(1, x), SIZES),
    "bounded_exp": (special.bounded_exp, mp.exp, SIGNED),
    "log_mean_decay": (log_mean_decay, lambda x: mp.log((1 - mp.exp(-x)) / x), SIZES),
    "mean_from_end": (mean_from_end, lambda x: 1 / x - 1 / mp.expm1(x), SIZES),
    "continuous_bernoulli_variance": (
        continuous_bernoulli_variance,
        lambda x: 1 / x**2 - 1 / (4 * mp.sinh(x / 2) ** 2),
        SIGNED,
    ),
    "ein": (special.ein, lambda y: mp.quad(lambda t: -mp.expm1(-t) / t, [0, y]), (1e-9, 0.01, 0.7, 1.9)),
    "scaled_e1": (
        special.scaled_e1,
        lambda y: mp.exp(y) * mp.e1(y),
        (1e-300, 1e-9, 0.3, 1.0, 1.99, 2.01, 5.0, 80.0, 1e4),
    ),
    "mean_cosine": (mean_cosine, lambda k: mp.besseli(1, k) / mp.besseli(0, k), SIZES),
}
TWO: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[mpf, mpf], mpf]]] = {
    "log_ratio": (special.log_ratio, lambda a, b: mp.log(a / b)),
    "itakura_saito": (special.itakura_saito, lambda a, b: a / b - 1 - mp.log(a / b)),
    "stirling_bregman": (special.stirling_bregman, remainder),
    "lgamma_bregman": (special.lgamma_bregman, lgamma_bregman),
    "log_i0_bregman": (log_i0_bregman, log_i0),
    "normalizer": (lambda a, b: continuous_bernoulli_divergence(a, b, b - a), normalizer),
    "logit_difference": (special.logit_difference, logit_difference),
}


def derivative(f: Callable[..., mpf], at: list[mpf], i: int) -> mpf:
    step = mpf(10) ** -40 * abs(at[i])
    sides = [f(*at[:i], at[i] + sign * step, *at[i + 1 :]) for sign in (1, -1)]
    return (sides[0] - sides[1]) / (2 * step)


def check(
    f: Callable[..., Tensor], truth: Callable[..., mpf], at: tuple[float, ...], near: float, gradient: float
) -> None:
    x = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in at]
    value = f(*x)
    derivatives = torch.autograd.grad(value, x)
    with mpmath.workdps(120):
        exact = [mpf(a) for a in at]
        true = truth(*exact)
        assert abs(value.item() - true) <= near * abs(true), (at, float(true))
        expected = [derivative(truth, exact, i) for i in range(len(at))]
        natural = max(abs(s * a) for s, a in zip(expected, exact, strict=True))
        for found, s, a in zip(derivatives, expected, at, strict=True):
            assert abs(found.item() - s) <= gradient * abs(s) + 1e-14 * natural / abs(a), (at, float(s))


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_number(name: str) -> None:
    f, truth, points = ONE[name]
    for x in points:
        check(f, truth, (x,), 1e-11, 1e-8)


def pairs(name: str) -> Iterator[tuple[float, float]]:
    if name == "logit_difference":
        sizes: tuple[float, ...] = (1e-30, 1e-6, 0.3, 0.5, 0.75, 1 - 1e-9)
        yield from ((p, p * (1 - d)) for p in sizes for d in SMALL)
        return
    sizes = SIZES if name != "normalizer" else (*SIZES[1:], *(-x for x in SIZES[1:]))
    yield from ((a, b) for a, b in product(sizes, repeat=2) if a != b)
    yield from ((a, a * (1 + d)) for a in sizes for d in NEARBY)


@pytest.mark.sweep
@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_numbers(name: str) -> None:
    f, truth = TWO[name]
    for a, b in pairs(name):
        check(f, truth, (a, b), 1e-10, 1e-8)


@pytest.mark.parametrize(
    "name", ["log_ratio", "itakura_saito", "stirling_bregman", "lgamma_bregman", "log_i0_bregman"]
)
def test_equal_arguments_give_0_with_gradient_0(name: str) -> None:
    a = torch.tensor(SIZES, dtype=torch.float64, requires_grad=True)
    b = a.detach().clone().requires_grad_()
    value = TWO[name][0](a, b)
    assert torch.equal(value, torch.zeros_like(value))
    if name != "log_ratio":
        for gradient in torch.autograd.grad(value.sum(), [a, b]):
            assert torch.equal(gradient, torch.zeros_like(gradient))


def test_an_overflow_is_infinite_and_leaves_no_nan_in_gradients() -> None:
    d = torch.tensor([1e4, 1e300, -1e300], dtype=torch.float64, requires_grad=True)
    c = torch.full_like(d, 2.0).detach().requires_grad_()
    for value in (special.expm1mx(d), special.scaled_expm1mx(c, d)):
        assert value.tolist() == [mpmath.inf, mpmath.inf, pytest.approx(1e300, rel=1.1)]
        kept = torch.where(value.isinf(), 0, value).sum()
        for gradient in torch.autograd.grad(
            kept, [x for x in (d, c) if x is d or value.grad_fn is not None], allow_unused=True
        ):
            assert gradient is None or gradient[:2].eq(0).all()


def test_a_small_factor_takes_the_exponential_beyond_its_range() -> None:
    c, d = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (1e-30, 715.0))
    value = special.scaled_expm1mx(c, d)
    with mpmath.workdps(50):
        truth = mpf(1e-30) * (mp.exp(715) - 716)
    assert value.item() == pytest.approx(float(truth), rel=1e-12)
    (by_d,) = torch.autograd.grad(value, d)
    assert by_d.item() == pytest.approx(float(truth), rel=1e-12)
