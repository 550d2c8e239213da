"""Closed forms in plain torch alone, at edges: under vmap no kernel goes first and no other rule mends a NaN."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import mpmath
import numpy as np
import pytest
import torch
from mpmath import mpf
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Cauchy,
    ContinuousBernoulli,
    Distribution,
    Gamma,
    Geometric,
    Gumbel,
    Pareto,
    Poisson,
    StudentT,
    Uniform,
    Weibull,
)

from kullback import kl_divergence
from kullback.common.special import log_mean_decay
from kullback.pairs.families import von_mises
from kullback.pairs.families.continuous_bernoulli import continuous_bernoulli_variance, mean_from_end
from kullback.pairs.families.gumbel import _lgamma_beyond_two
from kullback.pairs.registry import plan_for
from tests.oracles import end_truths, pair_truths
from tests.oracles.audit import measure
from tests.oracles.pairs import PAIRS
from tests.pairs.closed_forms.test_discrete import FAMILIES, chances, derivative, true_kl
from tests.pairs.closed_forms.test_ends import faults

DIGITS = 800  # for 1 - p with p = e^-800
Side = Callable[[Tensor], Distribution]


def values_and_derivatives(p: Side, q: Side, at: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Return KL and its derivatives by the parameters of P and of Q, a row for each pair of parameters."""

    def row(a: Tensor, b: Tensor) -> Tensor:
        both = torch.func.grad_and_value(lambda x, y: kl_divergence(p(x), q(y)), argnums=(0, 1))
        derivatives, value = both(a, b)
        return torch.stack([value, *derivatives])

    a, b = (torch.tensor(side, dtype=torch.float64) for side in zip(*at, strict=True))
    return torch.vmap(row)(a, b).tolist()


RATES = [1e-320, 1e-30, 0.3, 1.0, 50.0, 1e300]


def test_a_poisson_distribution_of_rate_0() -> None:
    side = partial(Poisson, validate_args=False)
    found = values_and_derivatives(side, side, [(0.0, b) for b in [0.0, *RATES]])
    assert found[0] == [0, 0, 0]
    assert found[1:] == [[b, 0, 1] for b in RATES]
    assert values_and_derivatives(side, side, [(2.0, 0.0)])[0][0] == torch.inf


CHANCES = {
    "probs": [0.0, 1e-320, 0.2, 0.29, 0.31, 0.5, 1 - 2.0**-53, 1.0],
    "logits": [-800.0, -40.0, -1.0, 0.0, 40.0, 800.0],
}


@pytest.mark.parametrize("kind", CHANCES)
def test_bernoulli_against_poisson_at_any_chances(kind: str) -> None:
    pairs = list(product(CHANCES[kind], RATES))
    found = values_and_derivatives(
        lambda x: Bernoulli(**{kind: x}, validate_args=False), partial(Poisson, validate_args=False), pairs
    )
    with mpmath.workdps(DIGITS):
        for (x, rate), row in zip(pairs, found, strict=True):
            success, failure = chances(kind, mpf(x))
            truth = mpf(rate) + mpmath.fsum(
                y * mpmath.log(y / z) for y, z in ((success, rate), (failure, 1)) if y
            )
            by_p = mpmath.log(success / rate) - mpmath.log(failure) if success and failure else mpf(0)
            by_p *= 1 if kind == "probs" else success * failure
            expected = [float(y) for y in (truth, by_p, 1 - success / rate)]
            assert row == pytest.approx(expected, rel=1e-10, abs=1e-14 if success else 0), (x, rate)


# Of what Geometric trials wait for: below the threshold of tiny chances on one side, on both and on none.
SMALL = {"probs": [1e-140, 3e-140, 1e-31, 2e-30, 0.25], "logits": [-320.0, -319.0, -75.0, -60.0, 0.0]}


@pytest.mark.sweep
@pytest.mark.parametrize("kind_q", SMALL)
@pytest.mark.parametrize("kind_p", SMALL)
@pytest.mark.parametrize("family", ["Bernoulli", "Geometric"])
def test_small_chances(family: str, kind_p: str, kind_q: str) -> None:
    make = FAMILIES[family][0]
    pairs = list(product(SMALL[kind_p], SMALL[kind_q]))
    found = values_and_derivatives(
        lambda x: make(**{kind_p: x}, validate_args=False),
        lambda x: make(**{kind_q: x}, validate_args=False),
        pairs,
    )
    for (x, y), row in zip(pairs, found, strict=True):
        with mpmath.workdps(DIGITS):
            expected = [
                float(true_kl(family, (kind_p, x), (kind_q, y))),
                derivative(lambda v, y=y: true_kl(family, (kind_p, v), (kind_q, y)), kind_p, x),
                derivative(lambda v, x=x: true_kl(family, (kind_p, x), (kind_q, v)), kind_q, y),
            ]
        if (kind_p, x) == (kind_q, y):
            assert row == [0, 0, 0]
        else:
            assert row == pytest.approx(expected, rel=1e-10, abs=0), (x, y)


def test_odds_beyond_the_range_of_floats() -> None:
    """Of the other outcome, which makes a hundredth of a value within it."""
    p, q = -712.0, -4.0
    a, b = (torch.tensor(x, dtype=torch.float64) for x in (p, q))
    value = kl_divergence(Geometric(logits=a), Geometric(logits=b))
    with mpmath.workdps(DIGITS):
        truth = float(true_kl("Geometric", ("logits", p), ("logits", q)))
    assert value.item() == pytest.approx(truth, rel=1e-12)


def formula(p: Distribution, q: Distribution) -> tuple[Tensor, None]:
    form = plan_for(type(p), type(q)).closed_form
    value = None if form is None else form.function(p, q)
    assert value is not None
    return value, None


REAL = [
    *(f"{name}|{name}" for name in ("Normal", "LogNormal", "Laplace", "Cauchy", "Gumbel", "Weibull")),
    *(
        "Normal|Laplace",
        "Laplace|Normal",
        "Normal|Gumbel",
        "Gumbel|Normal",
        "Laplace|Gumbel",
        "Gumbel|Laplace",
    ),
    *("StudentT|Normal", "Cauchy|StudentT"),
]
# Parameters at which a summand that is small elsewhere makes most of the value.
TELLING = {
    "StudentT|Normal": [
        [2 * half, 0.0, 1.0, 0.0, (half / (half - 1)) ** 0.5] for half in (1.5, 11.9, 12.1, 13.0, 40.0)
    ],
    "Gumbel|Gumbel": [[0.0, 1.0 + z, 0.4 * z, 1.0] for z in (-0.005, -0.003, 0.003, 0.005)],
    "Gumbel|Laplace": [[0.0, 1.0, center, 1.0] for center in (-4.0, -2.0, -0.7, -0.69, 0.0, 3.0)],
    "Cauchy|StudentT": [[0.0, 1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0, 1e-9], [1e9, 1.0, 5.0, 0.0, 1.0]],
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", REAL)
def test_formulas_of_the_real_line_at_ordinary_parameters(name: str) -> None:
    pair, rng = PAIRS[name], random.Random(name)  # noqa: S311
    drawn = [[*pair.p.draw(rng, False), *pair.q.draw(rng, False)] for _ in range(12)]
    if pair.p is pair.q:
        drawn += [[*at[: len(at) // 2], *pair.p.near(at[: len(at) // 2], 1e-4, rng)] for at in drawn]
    known = [(at, end_truths.truth(pair, at)) for at in drawn + TELLING.get(name, [])]
    rows = [(at, *found) for at, found in known if found is not None and found[0] < math.inf]
    assert len(rows) >= 6
    parameters, values, gradients, changes = (np.array(column) for column in zip(*rows, strict=True))
    wrong = faults(name, torch.float64, (parameters, values, gradients, changes), formula)
    assert not wrong, "\n".join(wrong)


AUDITED = pair_truths.load()


def module_of(name: str) -> str | None:
    """Where the formula of a pair of the audit stands; None where none serves it."""
    pair, split = PAIRS[name], len(PAIRS[name].p.parameters)
    at = torch.tensor(AUDITED[name][0][0])
    p, q = pair.p.build(*at[:split]), pair.q.build(*at[split:])
    form = plan_for(type(p), type(q)).closed_form
    serves = form is not None and form.function(p, q) is not None
    return form.function.__module__.rsplit(".", 1)[1] if serves else None


FORMULAS = {name: module for name in PAIRS if (module := module_of(name))}


@pytest.mark.parametrize("name", FORMULAS, ids=[f"{module}:{name}" for name, module in FORMULAS.items()])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_formulas_alone_at_the_finite_values_of_the_audit(name: str, dtype: torch.dtype) -> None:
    parameters, values, gradients = AUDITED[name]
    finite = np.isfinite(values)
    measured = measure(PAIRS[name], (parameters[finite], values[finite], gradients[finite]), dtype, formula)
    assert parameters[finite][measured.index][measured.failing].tolist() == []


@pytest.mark.parametrize("apart", [1e-3, 1e-6, 1e-9])
def test_nearly_equal_ones_of_the_real_line_keep_their_digits(apart: float) -> None:
    p, q = (0.5, 1.5), (0.5 + apart, 1.5 * (1 + apart))
    with mpmath.workdps(80):
        (m, s), (n, t) = ([mpf(x) for x in side] for side in (p, q))
        truths = {
            Cauchy: mpmath.log(((s + t) ** 2 + (m - n) ** 2) / (4 * s * t)),
            Gumbel: mpmath.log(t / s)
            + mpmath.euler * (s / t - 1)
            + mpmath.exp((n - m) / t + mpmath.loggamma(1 + s / t))
            - 1
            + (m - n) / t,
        }
    for family, truth in truths.items():
        sides = (family(*(torch.tensor(x, dtype=torch.float64) for x in side)) for side in (p, q))
        assert formula(*sides)[0].item() == pytest.approx(float(truth), rel=1e-8, abs=0), family


@pytest.mark.parametrize("z", [1e-12, -1e-12, 1e-5, -1e-5, 3.9e-3, -3.9e-3, 4.1e-3, -4.1e-3, 0.3])
def test_the_logarithm_of_gamma_near_its_zero_at_2_for_a_gumbel(z: float) -> None:
    found = _lgamma_beyond_two(torch.tensor(z, dtype=torch.float64)).item()
    with mpmath.workdps(50):
        assert found == pytest.approx(float(mpmath.loggamma(2 + mpf(z))), rel=2e-13, abs=0)


def test_a_cauchy_and_the_equal_student_t_are_0_apart() -> None:
    drawn = torch.randn(2, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loc, scale = 100 * drawn[0], (3 * drawn[1]).exp()
    value = formula(Cauchy(loc, scale), StudentT(torch.ones_like(loc), loc, scale))[0]
    assert bool((value >= 0).all())
    assert value.max().item() <= 1e-15


@pytest.mark.parametrize(("p", "q"), [("probs", "logits"), ("logits", "probs")])
def test_tiny_chances_of_trials_given_in_both_ways(p: str, q: str) -> None:
    at = {"probs": 1e-310, "logits": -713.0}
    found = values_and_derivatives(
        lambda x: Geometric(**{p: x}, validate_args=False),
        lambda x: Geometric(**{q: x}, validate_args=False),
        [(at[p], at[q])],
    )
    with mpmath.workdps(DIGITS):
        expected = float(true_kl("Geometric", (p, at[p]), (q, at[q])))
    assert found[0][0] == pytest.approx(expected, rel=1e-12, abs=0)


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("alpha", "slope"), [(2.0, 2.0), (3.0, 3.0), (1.5, 1.5)])
def test_positive_tails_from_the_same_end_and_their_slope_there(alpha: float, slope: float) -> None:
    starts = number(0.7), number(0.7)
    value = formula(Pareto(starts[0], number(2.0)), Pareto(starts[1], number(alpha)))[0]
    assert value.item() == pytest.approx(alpha / 2 - 1 - math.log(alpha / 2), rel=1e-14, abs=0)
    wanted = [0.0, 0.0] if alpha == 2 else [slope / 0.7, -slope / 0.7]
    found = torch.autograd.grad(value, starts)
    assert [x.item() for x in found] == pytest.approx(wanted, rel=1e-14, abs=0)


@pytest.mark.parametrize("apart", [1e-3, 1e-5, 1e-7])
def test_positive_ones_that_are_both_nearly_exponential(apart: float) -> None:
    k, a, rate = 1 + apart, 1 + 2 * apart, 1 + apart
    found = formula(Weibull(number(1.0), number(k)), Gamma(number(a), number(rate)))[0].item()
    with mpmath.workdps(60):
        k, a, rate = map(mpf, (k, a, rate))
        log_mean, mean = -mpmath.euler / k, mpmath.gamma(1 + 1 / k)
        true = (
            mpmath.log(k) + (k - a) * log_mean - 1 - a * mpmath.log(rate) + mpmath.loggamma(a) + rate * mean
        )
    assert found == pytest.approx(float(true), rel=1e-9, abs=0)


def test_a_positive_one_whose_mean_no_float_holds() -> None:
    for concentration in (1e-300, 1e-310, 5e-324):
        q = Gamma(number(2.0), number(1.0))
        assert formula(Weibull(number(1.0), number(concentration)), q)[0].item() == math.inf


def _variance(x: mpf) -> mpf:
    return 1 / x**2 - 1 / (4 * mpmath.sinh(x / 2) ** 2)


BOUNDED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[mpf], mpf], Sequence[float]]] = {
    "mean": (
        mean_from_end,
        lambda x: 1 / x - 1 / (mpmath.exp(x) - 1),
        (1e-9, 0.1, 0.3, 0.499, 0.501, 3.0, 50.0, 700.0),
    ),
    "decay": (
        log_mean_decay,
        lambda x: mpmath.log((1 - mpmath.exp(-x)) / x),
        (1e-9, 9e-5, 1.1e-4, 0.5, 3.0, 700.0),
    ),
    "variance": (
        continuous_bernoulli_variance,
        _variance,
        (1e-9, -0.1, 0.4, 0.65, 0.699, -0.699, 0.701, 1.5, -1.7, 30.0),
    ),
    "cosine": (
        von_mises.mean_cosine,
        lambda x: mpmath.besseli(1, x) / mpmath.besseli(0, x),
        (1e-9, 0.5, 39.0, 39.9, 40.1, 45.0, 1e3, 1e9),
    ),
    "Bessel": (
        von_mises._log_i0_minus_k,
        lambda x: mpmath.log(mpmath.besseli(0, x)) - x,
        (0.5, 39.0, 40.0, 41.0, 60.0, 1e3, 1e9),
    ),
    "curvature": (
        von_mises._log_i0_curvature,
        lambda x: 1 - (r := mpmath.besseli(1, x) / mpmath.besseli(0, x)) ** 2 - r / x,
        (0.5, 3.0, 40.0, 41.0, 60.0, 1e3),
    ),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounded_functions_on_both_sides_of_their_thresholds(name: str) -> None:
    ours, theirs, points = BOUNDED[name]
    rel = 5e-11 if name == "curvature" else 1e-12  # the former is a difference of nearly equal numbers
    found = ours(torch.tensor(points, dtype=torch.float64)).tolist()
    with mpmath.workdps(60):
        assert found == pytest.approx([float(theirs(mpf(x))) for x in points], rel=rel, abs=0)


@pytest.mark.parametrize(
    "given",
    [
        (("probs", 0.5 + 1e-5), ("probs", 0.5 - 2e-5)),
        (("logits", 4e-5), ("probs", 0.5 - 2e-5)),
        (("probs", 0.5 + 1e-5), ("logits", -8e-5)),
        (("logits", 4e-5), ("logits", -8e-5)),
        (("probs", 0.1), ("probs", 0.1 + 1e-9)),  # nearly equal
        (("logits", 40.0), ("probs", 0.9)),  # whose other parameter is rounded
        (("probs", 0.9), ("logits", 40.0)),
    ],
)
def test_bounded_ones_given_in_either_way(given: Sequence[tuple[str, float]]) -> None:
    made = [ContinuousBernoulli(**{way: number(x)}) for way, x in given]
    with mpmath.workdps(60):
        a, b = (mpmath.log(mpf(x) / (1 - mpf(x))) if way == "probs" else mpf(x) for way, x in given)

        def free(x: mpf) -> mpf:
            return mpmath.log((mpmath.exp(x) - 1) / x)

        slope = mpmath.exp(a) / (mpmath.exp(a) - 1) - 1 / a
        true = free(b) - free(a) - (b - a) * slope
    assert formula(*made)[0].item() == pytest.approx(float(true), rel=1e-10, abs=0)


def test_bounded_ones_that_are_equal_have_no_slope() -> None:
    ends = [number(x) for x in (-0.5, 1.5, -0.5, 1.5)]
    value = formula(Uniform(*ends[:2]), Uniform(*ends[2:]))[0]
    assert value.item() == 0
    assert [x.item() for x in torch.autograd.grad(value, ends)] == [0, 0, 0, 0]
