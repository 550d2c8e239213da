"""What torch gets wrong for pairs of distributions, by its number or section in the research page, is right here.

Those of discrete distributions are in closed_forms/test_discrete.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mpf
from torch.distributions import (
    Beta,
    Categorical,
    Cauchy,
    Chi2,
    ContinuousBernoulli,
    Dirichlet,
    Distribution,
    Exponential,
    Gamma,
    Geometric,
    Gumbel,
    HalfCauchy,
    Independent,
    Laplace,
    Normal,
    StudentT,
    TransformedDistribution,
    Uniform,
    Wishart,
)
from torch.distributions.transforms import AbsTransform

from kullback import kl_divergence
from kullback.errors import KullbackError

F32, F64 = torch.float32, torch.float64
F64_ZERO = torch.zeros((), dtype=torch.float64)
Given = tuple[float | None, ...]

# dtype, P and its arguments, Q and its arguments, the divergence by mpmath.
WRONG_IN_TORCH: dict[str, tuple[torch.dtype, type[Distribution], Given, type[Distribution], Given, float]] = {
    "R1.1 support by >= and or": (F64, ContinuousBernoulli, (0.3,), Uniform, (0.0, 1.0), 0.0293862022),
    "R1.2 support by >= and or": (F64, Uniform, (0.0, 1.0), ContinuousBernoulli, (0.3,), 0.0297361233),
    "R1.3 support by >= and or": (F64, Uniform, (0.0, 0.5), ContinuousBernoulli, (0.3,), 0.511058839),
    "R1.4 support by >= and or": (F64, ContinuousBernoulli, (0.3,), Uniform, (0.0, 2.0), 0.722533383),
    "R1.5 support by >= and or": (F64, ContinuousBernoulli, (0.3,), Uniform, (-1.0, 1.0), 0.722533383),
    "R7.44 extreme": (F32, ContinuousBernoulli, (0.499,), Normal, (0.0, 1.0), 1.08543922),
    "R7.45 extreme": (F32, ContinuousBernoulli, (0.499,), Normal, (1.5, 0.5), 2.39379209),
    "R7.46 extreme": (F32, ContinuousBernoulli, (0.499,), Exponential, (3.0,), 0.40038839),
    "R7.47 extreme": (F64, ContinuousBernoulli, (0.3,), ContinuousBernoulli, (None, 100.0), 52.4019659),
    "R7.48 extreme": (F64, ContinuousBernoulli, (0.3,), ContinuousBernoulli, (None, -100.0), 38.4464661),
    "R7.49 extreme": (F32, ContinuousBernoulli, (0.3,), ContinuousBernoulli, (None, 20.0), 8.42920381),
    "R7.50 extreme": (
        F32,
        ContinuousBernoulli,
        (None, 20.0),
        ContinuousBernoulli,
        (None, 20.2),
        4.96694859e-5,
    ),
    "R7.51 extreme": (
        F64,
        ContinuousBernoulli,
        (None, 100.0),
        ContinuousBernoulli,
        (None, 101.0),
        4.96691468e-5,
    ),
    "R7.52 extreme": (F64, Beta, (1.0, 1.0), ContinuousBernoulli, (None, 100.0), 45.3948298),
    "R7.53 extreme": (F32, Beta, (1.0, 1.0), ContinuousBernoulli, (None, 20.0), 7.00426772),
    "R7.54 extreme": (F32, Uniform, (0.25, 0.5), ContinuousBernoulli, (None, 20.0), 10.8905621),
    "R7.55 extreme": (F64, ContinuousBernoulli, (None, 100.0), Exponential, (1.0,), 4.59517019),
    "R8.56 leaves the range": (F32, Normal, (0.0, 1e-06), Normal, (0.0, 1e20), 59.3672124),
    "R8.57 leaves the range": (F32, Cauchy, (0.0, 1.0), Cauchy, (0.0, 1e20), 44.6654075),
    "R8.58 leaves the range": (F32, Cauchy, (0.0, 1e20), Cauchy, (0.0, 1e20), 0.0),
    "R8.59 leaves the range": (F32, HalfCauchy, (1e20,), HalfCauchy, (1e20,), 0.0),
    "R8.60 leaves the range": (F32, Laplace, (0.0, 1.0), Normal, (0.0, 1e20), 45.2774932),
    "R8.61 leaves the range": (F32, Exponential, (1.0,), Normal, (0.0, 1e20), 45.9706404),
    "R9.62 cancels": (F32, Gamma, (1000000.0, 1000000.0), Gamma, (2.0, 3.0), 6.291593),
    "R9.63 cancels": (F32, Gamma, (1000000.0, 1.0), Gamma, (1000100.0, 1.0), 0.00499983584),
    "R9.64 cancels": (F32, Gamma, (1000.0, 1.0), Gamma, (1001.0, 1.0), 0.000500083333),
    "R9.65 cancels": (F32, Beta, (1000000.0, 1000000.0), Beta, (2.0, 3.0), 6.12307341),
    "R9.66 cancels": (F32, Beta, (1000.0, 2000.0), Beta, (1001.0, 2000.0), 0.000333407407),
    "R9.67 cancels": (F32, Beta, (1000000.0, 1000000.0), Uniform, (0.0, 1.0), 6.52853777),
    "R9.68 cancels": (F32, Chi2, (10000.0,), Chi2, (10001.0,), 2.50016667e-5),
    "R9.69 cancels": (F32, Gamma, (1000000.0, 1.0), Normal, (1000000.0, 1.0), 499992.592),
    "R9.70 cancels": (F32, Gamma, (1000000.0, 1000000.0), Exponential, (1.0,), 6.48881708),
    "R9.74 cancels": (F64, Gamma, (1000000.0, 1.0), Gamma, (1000000.01, 1.0), 5.00000249e-11),
    "R9.76 cancels": (F32, Gumbel, (1000.0, 0.001), Gumbel, (1000.0, 0.00101), 8.96341106e-5),
    "R9.77 cancels": (F64, Uniform, (0.0, 1.0), Gumbel, (0.0, 1e20), 47.0517019),
    "R9.78 cancels": (F32, Uniform, (0.25, 0.5), Gumbel, (0.0, 1000000.0), 16.2018049),
    "R9.79 cancels": (F32, Uniform, (1000.0, 1001.0), Gamma, (1000.0, 1.0), 4.37356592),
    "R10.80 nearly equal": (F32, Cauchy, (0.5, 1.3), Cauchy, (0.5, 1.301), 1.478291e-7),
    "R10.81 nearly equal": (F32, Laplace, (0.5, 1.3), Laplace, (0.5, 1.3001), 2.9592585e-9),
    "R10.82 nearly equal": (F32, Exponential, (1.3,), Exponential, (1.3001,), 2.95941028e-9),
    "R10.85 nearly equal": (F32, Beta, (2.5, 1.3), Beta, (2.50025, 1.3), 5.92867945e-9),
    "R10.86 nearly equal": (F32, Gamma, (2.5, 1.3), Gamma, (2.50025, 1.3), 1.53354591e-8),
}


def made(family: type[Distribution], given: Given, dtype: torch.dtype) -> Distribution:
    return family(*(None if value is None else torch.tensor(value, dtype=dtype) for value in given))


@pytest.mark.parametrize("name", WRONG_IN_TORCH)
def test_what_torch_gets_wrong_is_right(name: str) -> None:
    dtype, family_p, p, family_q, q, truth = WRONG_IN_TORCH[name]
    value = kl_divergence(made(family_p, p, dtype), made(family_q, q, dtype))
    assert value.dtype == dtype
    assert value.item() == pytest.approx(truth, rel=1e-8 if dtype == F64 else 1e-6, abs=0)


# Section 3.3: dtype, P, Q, the place of the argument asked for, the derivative by it.
SLOPES: dict[str, tuple[torch.dtype, type[Distribution], Given, type[Distribution], Given, str, float]] = {
    "saturated": (F64, ContinuousBernoulli, (None, 100.0), ContinuousBernoulli, (None, 100.0), "q.1", 0.0),
    "saturated q": (F64, ContinuousBernoulli, (0.3,), ContinuousBernoulli, (None, 100.0), "q.1", 0.5597775),
    "saturated p": (F32, ContinuousBernoulli, (None, 20.0), ContinuousBernoulli, (0.3,), "p.1", 0.052118202),
    "near the center": (F32, ContinuousBernoulli, (0.4989,), Normal, (0.0, 1.0), "p.0", 0.16515174),
    "support by >= and or": (F64, Uniform, (0.0, 0.5), ContinuousBernoulli, (0.3,), "q.0", 0.85820239),
    "at an end of Beta": (F64, Uniform, (0.0, 1.0), Beta, (1.0, 1.0), "p.1", -1.0),
    "at the end of Gamma": (F64, Uniform, (0.0, 1.0), Gamma, (1.0, 1.0), "p.0", 1.5),
    "cancels": (F64, Uniform, (0.0, 1.0), Gumbel, (0.0, 1e20), "p.1", -1.0),
    "cancels in float32": (F32, Gamma, (1e6, 1e6), Gamma, (2.0, 3.0), "p.0", 1.4999992e-6),
}


@pytest.mark.parametrize("name", SLOPES)
def test_gradients_that_torch_gets_wrong_are_right(name: str) -> None:
    dtype, family_p, given_p, family_q, given_q, asked, truth = SLOPES[name]
    p, q = (
        [None if x is None else torch.tensor(x, dtype=dtype, requires_grad=True) for x in given]
        for given in (given_p, given_q)
    )
    kl_divergence(family_p(*p), family_q(*q)).backward()
    side, _, place = asked.partition(".")
    parameter = {"p": p, "q": q}[side][int(place)]
    assert parameter is not None
    assert parameter.grad is not None
    assert parameter.grad.item() == pytest.approx(truth, rel=1e-6, abs=0)


def test_a_wishart_has_gradients_to_p() -> None:
    df = torch.tensor(5.0, dtype=F64, requires_grad=True)
    root = torch.tensor([[1.0, 0.0], [0.3, 1.2]], dtype=F64, requires_grad=True)
    q = Wishart(torch.tensor(6.0, dtype=F64), scale_tril=2 * torch.eye(2, dtype=F64))
    kl_divergence(Wishart(df, scale_tril=root), q).backward()
    assert df.grad is not None
    assert root.grad is not None
    assert df.grad.item() == pytest.approx(-0.96757296, rel=1e-7)
    assert root.grad[0, 0].item() == pytest.approx(-4.75, rel=1e-7)


def test_a_transform_that_folds_keeps_identical_laws_identical() -> None:
    p, q = (TransformedDistribution(Normal(x, 1.0), AbsTransform()) for x in (1.0, -1.0))
    try:
        value = kl_divergence(p, q)
    except KullbackError:
        return  # an error is no wrong value
    assert value.item() == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (Categorical(torch.tensor([0.2, 0.3, 0.5])), Categorical(torch.tensor([1.0]))),
        (Dirichlet(torch.ones(3)), Dirichlet(torch.ones(1))),
        (Independent(Normal(torch.zeros(3), 1.0), 1), Independent(Normal(torch.zeros(1), 1.0), 1)),
    ],
)
def test_events_of_different_size_are_an_error(p: Distribution, q: Distribution) -> None:
    with pytest.raises(KullbackError):
        kl_divergence(p, q)


def test_an_infinite_pair_broadcasts() -> None:
    p: Any = Independent(Normal(torch.zeros(2, 3), 1.0), 1)
    q: Any = Independent(Uniform(torch.zeros(4, 2, 3), 1.0), 1)
    value = kl_divergence(p, q)
    assert value.shape == (4, 2)
    assert value.isposinf().all()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("p", "q", "formula", "variables"),
    [
        (Cauchy, Cauchy, "cauchy", (1e120, 1e-100, 0.0, 1.0)),
        (Cauchy, Cauchy, "cauchy", (0.0, 1e-120, 0.0, 1e120)),
        (Cauchy, Cauchy, "cauchy", (1e160, 1e-100, -1e160, 1e-60)),
        (StudentT, Normal, "student_t", (3.0, 0.0, 1e-120, 0.0, 1e120)),
        (StudentT, Normal, "student_t", (3.0, 0.5, 1e-120, 0.0, 1.0)),
    ],
)
def test_scales_at_the_ends_of_the_range_leave_a_value_and_its_gradient(
    p: type[Distribution], q: type[Distribution], formula: str, variables: tuple[float, ...]
) -> None:
    x = [torch.tensor(v, dtype=F64, requires_grad=True) for v in variables]
    split = 2 if p is Cauchy else 3
    value = kl_divergence(p(*x[:split]), q(*x[split:]))
    gradient = torch.autograd.grad(value, x)
    with mpmath.workdps(700):
        at = [mpmath.mpf(v) for v in variables]
        assert float(abs(value.item() / FORMULAS[formula](*at) - 1)) < 1e-12
        for i, found in enumerate(gradient):
            step = abs(at[i]) * mpmath.mpf(10) ** -300 or mpmath.mpf(10) ** -500
            sides = [FORMULAS[formula](*at[:i], at[i] + s * step, *at[i + 1 :]) for s in (1, -1)]
            truth = (sides[0] - sides[1]) / (2 * step)
            assert found.item() == pytest.approx(float(truth), rel=1e-7, abs=1e-250), (i, float(truth))


def true_cauchy(x: mpf, s: mpf, y: mpf, t: mpf) -> mpf:
    return mpmath.log(((s + t) ** 2 + (x - y) ** 2) / (4 * s * t))


def true_student_t_to_normal(df: mpf, x: mpf, s: mpf, y: mpf, t: mpf) -> mpf:
    half = df / 2
    entropy = (
        (half + 0.5) * (mpmath.digamma(half + 0.5) - mpmath.digamma(half))
        + mpmath.log(df) / 2
        + mpmath.log(mpmath.beta(half, mpmath.mpf(1) / 2))
        + mpmath.log(s)
    )
    variance = s**2 * df / (df - 2)
    return mpmath.log(2 * mpmath.pi * t**2) / 2 + (variance + (x - y) ** 2) / (2 * t**2) - entropy


FORMULAS = {"cauchy": true_cauchy, "student_t": true_student_t_to_normal}


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (Normal(F64_ZERO, 1.0), Gumbel(F64_ZERO, 0.026)),
        (Geometric(torch.tensor(5e-324, dtype=F64)), Geometric(torch.tensor(0.5, dtype=F64))),
        (Gamma(torch.tensor(2.0, dtype=F64), 1e-200), Gamma(torch.tensor(2.0, dtype=F64), 1e110)),
        (Gumbel(F64_ZERO, 1e120), Gumbel(F64_ZERO, 1e-120)),
        (Laplace(F64_ZERO - 800, 0.5), Gumbel(F64_ZERO, 1.0)),
        (StudentT(3.0, F64_ZERO, 1e120), Normal(F64_ZERO, 1e-120)),
    ],
    ids=str,
)
def test_what_overflows_is_infinite_and_not_the_largest_number(p: Distribution, q: Distribution) -> None:
    assert kl_divergence(p, q) == math.inf


@pytest.mark.parametrize(
    ("p", "q", "truth"),
    [
        (1e-305, 0.5, 6.931471805599453e304),
        (1e-309, 2e-309, 0.3068528194400547),
        (2e-309, 1e-309, 0.1931471805599453),
    ],
)
def test_trials_with_odds_beyond_the_range_have_their_divergence(p: float, q: float, truth: float) -> None:
    found = kl_divergence(Geometric(torch.tensor(p, dtype=F64)), Geometric(torch.tensor(q, dtype=F64)))
    assert found.item() == pytest.approx(truth, rel=1e-9)
