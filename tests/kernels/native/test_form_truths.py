"""The closed forms in C++ at the places where a formula changes or loses digits: values and gradients of mpmath."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mpf
from torch.distributions import (
    Beta,
    ContinuousBernoulli,
    Distribution,
    Exponential,
    Gamma,
    Gumbel,
    Laplace,
    Normal,
    Pareto,
    Uniform,
)

from kullback.kernels.native import library
from kullback.pairs.registry import fused_divergence

if library.missing() is not None:
    pytest.skip(f"no native kernels here: {library.missing()}", allow_module_level=True)

Truth = Callable[..., Any]
Points = list[tuple[float, ...]]


def cumulant(x: Any) -> Any:
    return mpmath.log(mpmath.expm1(x) / x) if x else mpf(0)


def moments(x: Any) -> tuple[Any, Any, Any]:
    """The mean, the variance and minus the entropy of the ContinuousBernoulli of a logit."""
    if not x:
        return mpf(1) / 2, mpf(1) / 12, mpf(0)
    with mpmath.extradps(100):
        mean = 1 / (1 - mpmath.exp(-x)) - 1 / x
        return mean, 1 / x**2 - 1 / (4 * mpmath.sinh(x / 2) ** 2), x * mean - cumulant(x)


def of_logits(p: Any, q: Any) -> Any:
    return cumulant(q) - cumulant(p) - moments(p)[0] * (q - p)


def logit_of(x: Any) -> Any:
    return mpmath.log(x / (1 - x))


def to_normal(p: Any, loc: Any, scale: Any) -> Any:
    mean, variance, entropy = moments(p)
    return (
        (variance + (mean - loc) ** 2) / (2 * scale**2) + mpmath.log(2 * mpmath.pi * scale**2) / 2 + entropy
    )


def to_exponential(p: Any, rate: Any) -> Any:
    mean, _, entropy = moments(p)
    return rate * mean - mpmath.log(rate) + entropy


def from_uniform(low: Any, high: Any, q: Any) -> Any:
    return cumulant(q) - q * (low + high) / 2 - mpmath.log(high - low)


def from_beta(a: Any, b: Any, q: Any) -> Any:
    total = mpmath.psi(0, a + b)
    logs = (a - 1) * (mpmath.psi(0, a) - total) + (b - 1) * (mpmath.psi(0, b) - total)
    return logs - mpmath.log(mpmath.beta(a, b)) + cumulant(q) - q * a / (a + b)


def normal_laplace(loc_p: Any, scale_p: Any, loc_q: Any, scale_q: Any) -> Any:
    shift = loc_p - loc_q
    folded = scale_p * mpmath.sqrt(2 / mpmath.pi) * mpmath.exp(-((shift / scale_p) ** 2) / 2)
    folded += shift * mpmath.erf(shift / (scale_p * mpmath.sqrt(2)))
    return folded / scale_q + mpmath.log(2 * scale_q / scale_p) - mpmath.log(2 * mpmath.pi * mpmath.e) / 2


def gamma_gamma(a: Any, r: Any, b: Any, s: Any) -> Any:
    entropies = mpmath.loggamma(b) - mpmath.loggamma(a) + (a - b) * mpmath.psi(0, a)
    return entropies + b * mpmath.log(r / s) + a * (s / r - 1)


def pareto_exponential(scale: Any, alpha: Any, rate: Any) -> Any:
    return mpmath.log(alpha / (scale * rate)) - 1 - 1 / alpha + scale * rate * alpha / (alpha - 1)


def exponential_normal(r: Any, loc: Any, scale: Any) -> Any:
    squares = (1 / r**2 + (1 / r - loc) ** 2) / (2 * scale**2)
    return mpmath.log(r) - 1 + mpmath.log(2 * mpmath.pi * scale**2) / 2 + squares


def exponential_gumbel(r: Any, loc: Any, scale: Any) -> Any:
    decay = mpmath.exp(loc / scale) * r / (r + 1 / scale)
    return mpmath.log(r * scale) - 1 + (1 / r - loc) / scale + decay


def beta_exponential(a: Any, b: Any, r: Any) -> Any:
    return from_beta(a, b, mpf(0)) - mpmath.log(r) + r * a / (a + b)


def of(family: type[Distribution], *names: str) -> Callable[..., Distribution]:
    return lambda *at: family(**dict(zip(names, at, strict=True)), validate_args=False)


LOGITS = [
    0.0, 1e-20, -1e-12, 3e-5, -0.1, 0.9999999, -1.0000001, 2.5, -30.0, 99.0, 300.0,
]  # fmt: skip
PROBS = [1e-15, 1e-7, 0.3, 0.5 - 1e-12, 0.5, 0.5 + 3e-6, 0.7, 1 - 1e-6, 1 - 1e-15]
BY_LOGITS, BY_PROBS = of(ContinuousBernoulli, "logits"), of(ContinuousBernoulli, "probs")
NORMAL, EXPONENTIAL = of(Normal, "loc", "scale"), of(Exponential, "rate")
UNIFORM, BETA = of(Uniform, "low", "high"), of(Beta, "concentration1", "concentration0")
GAMMA, GUMBEL = of(Gamma, "concentration", "rate"), of(Gumbel, "loc", "scale")
NEAR = [0.0, 1e-9, -1e-5, 0.01, 0.31]
CLOSE_LOGITS = [(x, x * (1 + 0.1 * d) + d) for x, d in product(LOGITS, NEAR)]
CLOSE_PROBS = [(x, x * (1 + d * (1 - x))) for x, d in product(PROBS, NEAR)]
ENDS = [(0.0, 1.0), (1e-9, 1 - 1e-9), (0.2, 0.200001), (0.0, 0.5), (0.6, 1.0)]
OUTER = [(0.0, 1.0), (-1e-9, 1.0), (-3.0, 7.0), (-1e9, 1.5)]
CONCENTRATIONS = [(1.0, 1.0), (1 + 1e-9, 1.0), (0.01, 30.0), (1e6, 1e6), (3e-6, 2e-6)]
ONES = [1.0, 1 + 1e-12, 1 - 1e-7, 1.01, 0.5001, 1.4999, 1.5001, 30.0, 1e-8, 1e9]
RATES = [1.0, 2.0**-30, 3e8]
SCALES = [(0.0, 1.0), (0.4, 1e-3), (-7.0, 30.0)]

Case = tuple[Callable[..., Distribution], int, Callable[..., Distribution], Truth, Points]


def flat(*parts: list[Any]) -> Points:
    tuples = ([x if isinstance(x, tuple) else (x,) for x in part] for part in parts)
    return [sum(point, ()) for point in product(*tuples)]


def with_logits_of(truth: Truth, *places: int) -> Truth:
    return lambda *at: truth(*(logit_of(x) if i in places else x for i, x in enumerate(at)))


# How P is made, of how many numbers, how Q is made, the truth, and where.
CASES: dict[str, Case] = {
    "CB || CB": (BY_LOGITS, 1, BY_LOGITS, of_logits, flat(LOGITS, LOGITS) + CLOSE_LOGITS),
    "CB || Normal": (BY_LOGITS, 1, NORMAL, to_normal, flat(LOGITS, SCALES)),
    "CB || Exponential": (BY_LOGITS, 1, EXPONENTIAL, to_exponential, flat(LOGITS, RATES)),
    "CB || Uniform": (
        BY_LOGITS,
        1,
        UNIFORM,
        lambda p, low, high: moments(p)[2] + mpmath.log(high - low),
        flat(LOGITS, OUTER),
    ),
    "Uniform || CB": (UNIFORM, 2, BY_LOGITS, from_uniform, flat(ENDS, LOGITS)),
    "Beta || CB": (BETA, 2, BY_LOGITS, from_beta, flat(CONCENTRATIONS, LOGITS)),
    "CB(probs) || CB(probs)": (
        BY_PROBS,
        1,
        BY_PROBS,
        with_logits_of(of_logits, 0, 1),
        flat(PROBS, PROBS) + CLOSE_PROBS,
    ),
    "CB(probs) || Normal": (BY_PROBS, 1, NORMAL, with_logits_of(to_normal, 0), flat(PROBS, SCALES)),
    "CB(probs) || Exponential": (
        BY_PROBS,
        1,
        EXPONENTIAL,
        with_logits_of(to_exponential, 0),
        flat(PROBS, RATES),
    ),
    "Uniform || CB(probs)": (UNIFORM, 2, BY_PROBS, with_logits_of(from_uniform, 2), flat(ENDS, PROBS)),
    "Beta || CB(probs)": (BETA, 2, BY_PROBS, with_logits_of(from_beta, 2), flat(CONCENTRATIONS, PROBS)),
    "Normal || Laplace": (
        NORMAL,
        2,
        of(Laplace, "loc", "scale"),
        normal_laplace,
        flat([(x, 1.0) for x in (0.0, 1e-9, -0.7, 0.70711, -0.7072, 2.0, 8.3, -40.0, 1e9)], [(0.0, 0.9)])
        + flat([(0.3, 1e-6), (0.3, 1e6)], SCALES),
    ),
    "Exponential || Gamma": (
        EXPONENTIAL,
        1,
        GAMMA,
        lambda r, b, s: gamma_gamma(mpf(1), r, b, s),
        flat(RATES, ONES, [1.0, 1 + 1e-9, 5.0]),
    ),
    "Gamma || Exponential": (
        GAMMA,
        2,
        EXPONENTIAL,
        lambda a, r, s: gamma_gamma(a, r, mpf(1), s),
        flat(ONES, RATES, [1.0, 1 + 1e-9, 5.0]),
    ),
    "Exponential || Normal": (EXPONENTIAL, 1, NORMAL, exponential_normal, flat(RATES, SCALES)),
    "Exponential || Gumbel": (
        EXPONENTIAL,
        1,
        GUMBEL,
        exponential_gumbel,
        flat(RATES, [(0.0, 1.0), (3.0, 7.0)]),
    ),
    "Beta || Exponential": (BETA, 2, EXPONENTIAL, beta_exponential, flat(CONCENTRATIONS, RATES)),
    "Pareto || Exponential": (
        of(Pareto, "scale", "alpha"),
        2,
        EXPONENTIAL,
        pareto_exponential,
        flat([(1.0, 1 + 1e-9), (3e-5, 2.5), (7.0, 1e8)], RATES),
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_mpmath(name: str) -> None:
    make_p, count, make_q, truth, points = CASES[name]
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in zip(*points, strict=True)]
    value = fused_divergence(make_p(*leaves[:count]), make_q(*leaves[count:]))
    assert value is not None
    gradients = torch.autograd.grad(value.sum(), leaves)
    with mpmath.workdps(90):
        for i, point in enumerate(points):
            at = [mpf(x) for x in point]
            true = truth(*at)
            step = mpf(10) ** -30
            by = []
            for j, x in enumerate(at):
                h = step * (abs(x) + (mpf(0) if x else mpf(10) ** -5))
                above, below = ([*at[:j], x + d, *at[j + 1 :]] for d in (h, -h))
                by.append((truth(*above) - truth(*below)) / (2 * h))
            # What a relative change of the inputs by a few units in their last place does, is no error.
            moved = sum((abs(x * d) for x, d in zip(at, by, strict=True)), mpf(0))
            found = value[i].item()
            assert abs(found - true) <= 1e-13 * true + 1e-15 * moved + 1e-15, (point, found, float(true))
            for x, d, gradient in zip(at, by, gradients, strict=True):
                error, scale = abs(gradient[i].item() - d), max(abs(true), moved, 1)
                assert error <= 1e-11 * abs(d) + 1e-13 * scale / max(abs(x), 1), (
                    point,
                    gradient[i].item(),
                    float(d),
                )
