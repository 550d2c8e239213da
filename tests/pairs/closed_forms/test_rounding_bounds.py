"""The bounds on the rounding of closed forms, and ends of floats, against mpmath."""

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
    Cauchy,
    Distribution,
    Exponential,
    Gamma,
    Gumbel,
    HalfNormal,
    InverseGamma,
    Kumaraswamy,
    Laplace,
    LogNormal,
    MultivariateNormal,
    Normal,
    Pareto,
    Uniform,
    Weibull,
)

from kullback import kl_divergence, kl_estimate

Build = Callable[..., Distribution]


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def normal(m: mpf, s: mpf, n: mpf, t: mpf) -> mpf:
    return mp.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - mpf(1) / 2


def laplace(m: mpf, s: mpf, n: mpf, t: mpf) -> mpf:
    d = abs(m - n)
    return mp.log(t / s) + (d + s * mp.exp(-d / s)) / t - 1


def cauchy(m: mpf, s: mpf, n: mpf, t: mpf) -> mpf:
    return mp.log(((s + t) ** 2 + (m - n) ** 2) / (4 * s * t))


def beta(a: mpf, b: mpf, c: mpf, d: mpf) -> mpf:
    logs = mp.digamma(a) - mp.digamma(a + b), mp.digamma(b) - mp.digamma(a + b)
    log_beta = [mp.loggamma(x) + mp.loggamma(y) - mp.loggamma(x + y) for x, y in ((a, b), (c, d))]
    return log_beta[1] - log_beta[0] + (a - c) * logs[0] + (b - d) * logs[1]


def exponential(r: mpf, s: mpf) -> mpf:
    return mp.log(r / s) + s / r - 1


def to_gamma(entropy: mpf, log: mpf, mean: mpf, c: mpf, rate: mpf) -> mpf:
    """KL to a Gamma distribution from the entropy of X, E log X and E X."""
    return mp.loggamma(c) - c * mp.log(rate) - (c - 1) * log + rate * mean - entropy


def log_normal_gamma(m: mpf, s: mpf, c: mpf, rate: mpf) -> mpf:
    entropy = m + mp.log(2 * mp.pi * mp.e * s**2) / 2
    return to_gamma(entropy, m, mp.exp(m + s**2 / 2), c, rate)


def inverse_gamma_gamma(a: mpf, b: mpf, c: mpf, rate: mpf) -> mpf:
    entropy = a + mp.log(b) + mp.loggamma(a) - (1 + a) * mp.digamma(a)
    return to_gamma(entropy, mp.log(b) - mp.digamma(a), b / (a - 1), c, rate)


def weibull_gamma(scale: mpf, k: mpf, c: mpf, rate: mpf) -> mpf:
    entropy = mp.euler * (1 - 1 / k) + mp.log(scale / k) + 1
    return to_gamma(entropy, mp.log(scale) - mp.euler / k, scale * mp.gamma(1 + 1 / k), c, rate)


def log_normal_normal(m: mpf, s: mpf, n: mpf, t: mpf) -> mpf:
    mean = mp.exp(m + s**2 / 2)
    spread = mean**2 * mp.expm1(s**2) + (mean - n) ** 2
    return mp.log(2 * mp.pi * t**2) / 2 + spread / (2 * t**2) - m - mp.log(2 * mp.pi * mp.e * s**2) / 2


def compare(p: Build, q: Build, formula: Callable[..., mpf], x: Tensor, y: Tensor) -> tuple[mpf, mpf, mpf]:
    """How far the answer is off, the error that it claims, and the truth."""
    found = kl_estimate(p(*x, validate_args=False), q(*y, validate_args=False))
    assert found.error is not None
    with mpmath.workdps(400):
        true = formula(*(mpf(t) for t in (*x.tolist(), *y.tolist())))
        return abs(found.value.item() - true), mpf(found.error.item()), true


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("family", "formula"),
    [(Normal, normal), (Laplace, laplace), (Cauchy, cauchy), (Beta, beta), (Exponential, exponential)],
)
def test_the_bound_holds_the_rounding_to_the_dtype(
    family: Build, formula: Callable[..., mpf], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    count = 1 if formula is exponential else 2
    for _ in range(20):
        x, y = (torch.exp(2 * torch.randn(count, generator=generator)).to(dtype) for _ in range(2))
        off, error, true = compare(family, family, formula, x, y)
        assert off <= error + 4e-16 * true, (x, y)
        assert error <= (2e-7 if dtype == torch.float32 else 3e-12) * true + 1e-14


@pytest.mark.parametrize(
    ("p", "q", "formula", "x", "y"),
    [
        (Beta, Beta, beta, (5.4e-8, 0.011), (9.5e-4, 9.8e8)),  # b and a + b of P nearly cancel
        (Beta, Beta, beta, (1e-8, 0.01), (1e-8, 1e9)),
        (LogNormal, Gamma, log_normal_gamma, (518.9, 1e-4), (96486474.9, 4.2e-218)),
        (LogNormal, Normal, log_normal_normal, (0.0, 1.3e-7), (0.999996, 1.29e-7)),
        (LogNormal, Normal, log_normal_normal, (-633.1, 1.06e-5), (1.0986e-275, 1.166e-280)),
        (InverseGamma, Gamma, inverse_gamma_gamma, (30.3, 1.7e-25), (28.3, 4.9e27)),
        (InverseGamma, Gamma, inverse_gamma_gamma, (232290.3, 3160600171449334.0), (232260.3, 1.7e-5)),
        (Weibull, Gamma, weibull_gamma, (4.56e10, 71251.0), (3.086e9, 0.0677)),
        (Weibull, Gamma, weibull_gamma, (0.968, 4669.8), (13261284.4, 13697167.4)),
    ],
)
def test_the_bound_holds_where_large_terms_cancel(
    p: Build, q: Build, formula: Callable[..., mpf], x: tuple[float, float], y: tuple[float, float]
) -> None:
    off, error, true = compare(p, q, formula, *(torch.tensor(t, dtype=torch.float64) for t in (x, y)))
    assert off <= error
    assert error <= 1e-6 * true + 1e-9


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (Uniform(0.0, 1.0), Beta(1.0, 1.0)),
        (Uniform(0.0, 1.0), Beta(2.0, 3.0)),
        (Uniform(0.25, 1.0), Kumaraswamy(2.0, 3.0)),
        (Beta(2.0, 3.0), Uniform(0.0, 1.0)),
        (Uniform(1.5, 2.0), Pareto(1.5, 2.0)),
        (Pareto(1.5, 2.0), Exponential(2.0)),
    ],
)
def test_an_end_that_both_have_makes_no_bound_wide(p: Distribution, q: Distribution) -> None:
    assert float(kl_estimate(p, q).error) < 1e-5  # the parameters are of float32


def test_a_sharp_weibull_beside_a_gamma_keeps_its_digits() -> None:
    # log Gamma(1 + 1 / k) is near 0 and is multiplied by the large concentration.
    x, y = (torch.tensor(t, dtype=torch.float64) for t in ((1.0, 2.0**17), (2.0**33, 2.0**33)))
    off, _, true = compare(Weibull, Gamma, weibull_gamma, x, y)
    assert off <= 1e-10 * true


def test_a_variance_beyond_floats_that_a_small_mean_makes_up_for() -> None:
    # E X is e^-1e5, and the quotient of E X^2 and its square e^1e5.
    a, b, s = (torch.tensor(x, dtype=torch.float64) for x in (1.5e-4, 1.2e7, 4.5e-292))
    value = kl_divergence(Kumaraswamy(a, b), Normal(0.0 * s, s))
    with mpmath.workdps(60):
        x, y, t = (mpf(z.item()) for z in (a, b, s))
        harmonic = mp.digamma(1 + y) + mp.euler
        log_x = -harmonic / x
        square = y * mp.exp(mp.loggamma(1 + 2 / x) + mp.loggamma(y) - mp.loggamma(1 + 2 / x + y))
        true = (
            mp.log(2 * mp.pi * t**2) / 2 + square / (2 * t**2) + mp.log(x * y) + (x - 1) * log_x - (y - 1) / y
        )
        assert abs(value.item() - true) <= 1e-10 * true


def test_derivatives_that_overflow_are_infinite() -> None:
    at = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (3.7e98, 3.3e123, 0.0, 1.3e-156)]
    value = kl_divergence(Laplace(*at[:2]), Laplace(*at[2:]))
    gradient = torch.autograd.grad(value, at)
    assert math.isfinite(value.item())
    assert gradient[3] == -math.inf
    assert all(bool(x.isfinite()) for x in gradient[:3])


@pytest.mark.parametrize(
    "at", [(0.0, 1.7e-10, -5.1e20, 9.9e-25), (0.5, 4.7e12, -4.6e29, 7.4e-7), (3.0, 1e80, -1e84, 2e60)]
)
def test_the_derivative_by_the_scale_of_a_laplace_far_away(at: tuple[float, float, float, float]) -> None:
    scale_p = torch.tensor(at[1], dtype=torch.float64, requires_grad=True)
    value = kl_divergence(Laplace(number(at[0]), scale_p), Laplace(number(at[2]), number(at[3])))
    (gradient,) = torch.autograd.grad(value, scale_p)
    with mpmath.workdps(300):
        m, s, n, t = (mpf(x) for x in at)
        y = abs(m - n) / s
        assert value.item() == pytest.approx(float(laplace(m, s, n, t)), rel=1e-14)
        assert gradient.item() == pytest.approx(float((1 + y) * mp.exp(-y) / t - 1 / s), rel=1e-14)


@pytest.mark.parametrize("less", [1e-3, 1e-8, 1e-15])
def test_a_laplace_that_is_nearly_too_wide_for_a_gumbel(less: float) -> None:
    given = [number(x).requires_grad_() for x in (0.5, 0.75 * (1 - less), 0.25, 0.75)]
    value = kl_divergence(Laplace(*given[:2]), Gumbel(*given[2:]))
    found = torch.autograd.grad(value, given)
    with mpmath.workdps(60):
        m, s, n, t = (mpf(x.item()) for x in given)
        c, r = (m - n) / t, s / t
        grown, room = mp.exp(-c), 1 - r**2
        true = c + grown / room - mp.log(2 * r) - 1
        by_loc, by_ratio = (1 - grown / room) / t, 2 * r * grown / room**2 - 1 / r
        wanted = by_loc, by_ratio / t, -by_loc, -(by_loc * c + by_ratio * r / t)
        assert value.item() == pytest.approx(float(true), rel=1e-14, abs=0)
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.item() == pytest.approx(float(theirs), rel=1e-13, abs=0)


@pytest.mark.parametrize(("first", "second"), [(1e200, 1.0), (1.0, 1e200), (1e-200, 1.0), (1e200, 1e-200)])
def test_factors_of_covariances_whose_squares_are_no_floats(first: float, second: float) -> None:
    one = torch.ones((), dtype=torch.float64)
    p, q = (
        MultivariateNormal(torch.zeros(2).double(), scale_tril=torch.diag(torch.stack([x * one, one])))
        for x in (first, second)
    )
    expected = kl_divergence(Normal(0 * one, first * one), Normal(0 * one, second * one))
    torch.testing.assert_close(kl_divergence(p, q), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (lambda x: Normal(0 * x, x, validate_args=False), -1.0),
        (lambda x: Gamma(x, 1 + 0 * x, validate_args=False), -1.0),
        (lambda x: Exponential(x, validate_args=False), -1.0),
    ],
)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_unchecked_parameters_out_of_range_give_nan(p: Build, q: float, shape: tuple[int, ...]) -> None:
    wrong, right = (torch.full(shape, x, dtype=torch.float64) for x in (q, 1.0))
    assert bool(kl_divergence(p(wrong), p(right)).isnan().all())


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (Exponential(number(4.5e-84)), Laplace(number(2.4e266), number(2.5e-158))),
        (Laplace(number(-1.2e168), number(5.3e-178)), Gumbel(number(-1.1e168), number(7.5e-178))),
        (HalfNormal(number(2e11)), Gumbel(number(9.1e119), number(9.7e-196))),
        (Normal(number(1e250), number(1e200)), Laplace(number(0.0), number(1e-150))),
        (Gumbel(number(1e300), number(1e150)), Gumbel(number(0.0), number(1e-160))),
    ],
    ids=str,
)
def test_terms_that_overflow_do_not_cancel(p: Distribution, q: Distribution) -> None:
    assert kl_divergence(p, q) == math.inf


def test_a_mean_too_small_for_floats_beside_a_laplace() -> None:
    value = kl_divergence(Exponential(number(1.4e260)), Laplace(number(0.0), number(1.25e240)))
    with mpmath.workdps(600):
        rate, scale = mpf(1.4e260), mpf(1.25e240)
        assert value.item() == pytest.approx(
            float(mp.log(2 * scale * rate) - 1 + 1 / (rate * scale)), rel=1e-13
        )


@pytest.mark.parametrize(
    "parameters",
    [(1e156, 1.0, 1.0), (3e105, 9e94, 1.0), (1e300, -5.0, 1e-10), (1e308, 1e-300, 1.0), (2.0, 0.7, 3.0)],
)
def test_gradients_of_exponential_and_laplace_at_the_ends(parameters: tuple[float, float, float]) -> None:
    def exact(rate: mpf, loc: mpf, scale: mpf) -> mpf:
        beyond = 2 * mp.exp(-rate * loc) / rate if loc > 0 else 2 * (1 / rate - loc)
        return mp.log(2 * scale * rate) - 1 + (loc - 1 / rate + beyond) / scale

    given = [number(x).requires_grad_() for x in parameters]
    value = kl_divergence(Exponential(given[0]), Laplace(*given[1:]))
    found = torch.autograd.grad(value, given)
    with mp.workdps(700):
        at = [mpf(x) for x in parameters]
        assert abs(value.item() - exact(*at)) <= 1e-12 * abs(exact(*at))
        for i, (x, derivative) in enumerate(zip(at, found, strict=True)):
            step = abs(x) * mpf(10) ** -200
            moved = [[*at[:i], x + sign * step, *at[i + 1 :]] for sign in (1, -1)]
            truth = (exact(*moved[0]) - exact(*moved[1])) / (2 * step)
            assert abs(derivative.item() - truth) <= 1e-10 * abs(truth) + mpf(10) ** -320


def test_under_vmap_bounds_are_the_same_and_overflow_is_infinite() -> None:
    a = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)

    def estimated(x: Tensor) -> tuple[Tensor, Tensor | None]:
        found = kl_estimate(Weibull(number(1.0), number(2.0)), Gamma(x, number(1.0), validate_args=False))
        return found.value, found.error

    values, errors = torch.func.vmap(estimated)(a)
    each = [estimated(x) for x in a]
    torch.testing.assert_close(values, torch.stack([x[0] for x in each]), rtol=1e-14, atol=0)
    assert errors is not None
    assert bool((errors < 1e-11).all())

    def far(x: Tensor) -> Tensor:
        p, q = ((x, 1.0), (-x, 1e-200))
        return kl_divergence(*(Gumbel(loc, number(s), validate_args=False) for loc, s in (p, q)))

    assert torch.func.vmap(far)(number(1e200).reshape(1)).tolist() == [math.inf]
