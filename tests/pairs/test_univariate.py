"""Closed forms between univariate continuous families: against quadrature, torch, mpmath and known wrong answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import (
    Beta,
    Cauchy,
    Chi2,
    ContinuousBernoulli,
    Distribution,
    Exponential,
    FisherSnedecor,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Kumaraswamy,
    Laplace,
    LogNormal,
    Normal,
    Pareto,
    StudentT,
    Uniform,
    VonMises,
    Weibull,
    kl,
)

from kullback import kl_divergence, kl_estimate
from kullback.pairs.densities.density import density_of
from kullback.pairs.families.registration import ALWAYS_INFINITE
from kullback.pairs.integration.quadrature import integrate_kl
from kullback.pairs.registry import plan_for
from kullback.pairs.solve_options import Tolerance
from kullback.pairs.support import is_infinite
from tests.pairs.random_members import PARAMETERS, draw_parameters

BATCH = 5
# Chi2 has the formulas of Gamma.
PLANS = {pair: plan_for(*pair).closed_form for pair in product(PARAMETERS, repeat=2) if Chi2 not in pair}
FORMS = {pair: form.function for pair, form in PLANS.items() if form is not None}
# tests/pairs/closed_forms/test_infinite.py has the pairs that are infinite for all parameters.
PAIRS = [pair for pair in FORMS if pair not in ALWAYS_INFINITE]
SELF = [p for p, q in PAIRS if p is q]


def name(pair: Any) -> str:
    return "-".join(family.__name__ for family in pair) if isinstance(pair, tuple) else pair.__name__


def members(pair: tuple[type, type]) -> tuple[list[Tensor], list[Tensor]]:
    return draw_parameters(pair[0], BATCH, 1), draw_parameters(pair[1], BATCH, 2, of_q=True)


NAMES: dict[type, tuple[str, ...]] = {
    Beta: ("concentration1", "concentration0"),
    Kumaraswamy: ("concentration1", "concentration0"),
    Chi2: ("df",),
    Uniform: ("low", "high"),
    ContinuousBernoulli: ("probs",),
}


def names_of(family: type[Distribution]) -> tuple[str, ...]:
    return NAMES[family] if family in NAMES else tuple(family.arg_constraints)


def unchecked(family: type[Distribution], at: Sequence[Tensor]) -> Distribution:
    """A distribution whose constructor has not run: those of torch look at the data, some even unasked."""
    if family not in (ContinuousBernoulli, StudentT, FisherSnedecor):
        return family(*at, validate_args=False)
    made = family.__new__(family)
    vars(made).update(zip(names_of(family), at, strict=True))
    return made


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize("pair", PAIRS, ids=name)
def test_a_closed_form_is_what_quadrature_gives_and_so_is_its_gradient(pair: tuple[type, type]) -> None:
    at_p, at_q = members(pair)
    parameters = [x.requires_grad_() for x in (*at_p, *at_q)]
    p, q = pair[0](*at_p), pair[1](*at_q)
    density_p, density_q = density_of(p), density_of(q)
    assert density_p is not None
    assert density_q is not None
    infinite = is_infinite(density_p, density_q)
    finite = torch.ones(BATCH, dtype=torch.bool) if infinite is None else ~infinite.expand(BATCH)
    assert finite.sum() >= 2, "a draw that tests something"
    integral = integrate_kl(
        density_p.mapped(lambda x: x.unsqueeze(-1)),
        density_q.mapped(lambda x: x.unsqueeze(-1)),
        torch.Size([BATCH]),
        Tolerance(1e-12, 1e-15, 10_000),
    )
    value = FORMS[pair](p, q)
    torch.testing.assert_close(value[finite], integral.value[finite], rtol=1e-10, atol=1e-13)
    for ours, theirs in zip(
        *(
            torch.autograd.grad(torch.where(finite, x, 0).sum(), parameters, retain_graph=True)
            for x in (value, integral.value)
        ),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)


# torch says +inf for these at ordinary parameters.
WRONG_IN_TORCH = {(ContinuousBernoulli, Uniform), (Uniform, ContinuousBernoulli)}
IN_TORCH = [pair for pair in PAIRS if pair in kl._KL_REGISTRY and pair not in WRONG_IN_TORCH]


@pytest.mark.parametrize("pair", IN_TORCH, ids=name)
def test_a_closed_form_is_torchs_where_that_is_right(pair: tuple[type, type]) -> None:
    at_p, at_q = members(pair)
    p, q = pair[0](*at_p), pair[1](*at_q)
    torch.testing.assert_close(kl_divergence(p, q), kl.kl_divergence(p, q), rtol=1e-9, atol=1e-12)


def test_every_pair_of_torchs_is_served() -> None:
    for (p, q), rule in kl._KL_REGISTRY.items():
        if (
            p in PARAMETERS
            and q in PARAMETERS
            and "infinity" not in rule.__name__
            and "infinite" not in rule.__name__
        ):
            at_p, at_q = members((p, q))
            found = kl_estimate(p(*at_p), q(*at_q))
            assert found.method == "closed_form" or bool(found.value.isinf().all()), (p, q)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("family", SELF, ids=name)
def test_the_same_distribution_is_at_0_with_gradient_0(family: type, dtype: torch.dtype) -> None:
    first = [x.to(dtype).requires_grad_() for x in draw_parameters(family, BATCH, 3)]
    second = [x.detach().clone().requires_grad_() for x in first]
    value = kl_divergence(family(*first), family(*second))
    assert torch.equal(value, torch.zeros_like(value))
    for gradient in torch.autograd.grad(value.sum(), first + second):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.sweep
@pytest.mark.parametrize("pair", PAIRS, ids=name)
def test_it_is_the_same_under_vmap_and_looks_at_no_data(pair: tuple[type, type]) -> None:
    at_p, at_q = members(pair)

    def divergence(*at: Tensor) -> Tensor:
        split = len(at_p)
        return FORMS[pair](unchecked(pair[0], at[:split]), unchecked(pair[1], at[split:]))

    expected = divergence(*at_p, *at_q)
    found = torch.func.vmap(divergence)(*at_p, *at_q)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13, equal_nan=True)
    # A fake tensor has no data: a branch on it raises.
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert divergence(*(mode.from_tensor(x) for x in (*at_p, *at_q))).shape == (BATCH,)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "pair", [(Normal, Normal), (Gamma, Gamma), (Uniform, Beta), (Beta, LogNormal)], ids=name
)
def test_it_compiles_in_one_graph(pair: tuple[type, type]) -> None:
    at_p, at_q = members(pair)
    p, q = pair[0](*at_p, validate_args=False), pair[1](*at_q, validate_args=False)
    compiled = torch.compile(FORMS[pair], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(p, q), FORMS[pair](p, q), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("pair", PAIRS, ids=name)
def test_where_it_is_infinite_no_gradient_is_nan(pair: tuple[type, type]) -> None:
    sizes = [1e-30, 1e-6, 0.4, 1.0, 7.0, 1e8, 1e30]
    order = torch.Generator().manual_seed(1)

    def any_of(family: type) -> list[Tensor]:
        drawn: list[Tensor] = []
        for parameter in names_of(family):
            is_size = parameter in ("loc", "scale", "rate", "low", "high")
            allowed = torch.tensor(sizes if is_size else sizes[1:-1], dtype=torch.float64)
            drawn.append(allowed[torch.randint(len(allowed), (64,), generator=order)])
        if family is ContinuousBernoulli:
            drawn = [x / (1 + x) for x in drawn]
        if family is Uniform:
            drawn[1] = 2 * drawn[0] + drawn[1]
        return [x.requires_grad_() for x in drawn]

    at_p, at_q = any_of(pair[0]), any_of(pair[1])
    value = kl_divergence(pair[0](*at_p, validate_args=False), pair[1](*at_q, validate_args=False))
    assert not bool(value.isnan().any())
    assert bool((value >= 0).all())
    finite = torch.where(value.isfinite(), value, 0)
    for x, gradient in zip((*at_p, *at_q), torch.autograd.grad(finite.sum(), (*at_p, *at_q)), strict=True):
        assert not bool(gradient.isnan().any()), x[gradient.isnan()]


# Textbook formulas, which at 80 digits do not cancel.
def mp_gamma(a: mpf, r: mpf, b: mpf, s: mpf) -> mpf:
    return (a - b) * mp.digamma(a) - mp.loggamma(a) + mp.loggamma(b) + b * mp.log(r / s) + a * (s - r) / r


def mp_beta(a: mpf, b: mpf, c: mpf, d: mpf) -> mpf:
    def log_beta(x: mpf, y: mpf) -> mpf:
        return mp.loggamma(x) + mp.loggamma(y) - mp.loggamma(x + y)

    derivatives = (a - c) * mp.digamma(a) + (b - d) * mp.digamma(b) + (c + d - a - b) * mp.digamma(a + b)
    return log_beta(c, d) - log_beta(a, b) + derivatives


def mp_gumbel(m: mpf, b: mpf, n: mpf, c: mpf) -> mpf:
    return (
        mp.log(c / b) + mp.euler * (b / c - 1) + mp.exp((n - m) / c) * mp.gamma(b / c + 1) - 1 + (m - n) / c
    )


def mp_weibull(s: mpf, k: mpf, t: mpf, j: mpf) -> mpf:
    return mp_gumbel(-mp.log(s), 1 / k, -mp.log(t), 1 / j)


def mp_von_mises(m: mpf, k: mpf, n: mpf, j: mpf) -> mpf:
    derivative = mp.besseli(1, k) / mp.besseli(0, k)
    return mp.log(mp.besseli(0, j) / mp.besseli(0, k)) + derivative * (k - j * mp.cos(m - n))


def mp_continuous_bernoulli(p: mpf, q: mpf) -> mpf:
    a, b = mp.log(p / (1 - p)), mp.log(q / (1 - q))

    def normalizer(x: mpf) -> mpf:
        return mp.log(mp.expm1(x) / x)

    return normalizer(b) - normalizer(a) - (b - a) * (1 / (1 - mp.exp(-a)) - 1 / a)


NEAR: dict[type[Distribution], tuple[Callable[..., mpf], list[tuple[float, ...]]]] = {
    Normal: (
        lambda m, s, n, t: mp.log(t / s) + (s * s + (m - n) ** 2) / (2 * t * t) - mpf(1) / 2,
        [(2.0, 1.3), (1e20, 1e-3)],
    ),
    Laplace: (
        lambda m, b, n, c: mp.log(c / b) + (b * mp.exp(-abs(m - n) / b) + abs(m - n)) / c - 1,
        [(2.0, 1.3), (1e-20, 1e-20)],
    ),
    Cauchy: (
        lambda m, s, n, t: mp.log(((s + t) ** 2 + (m - n) ** 2) / (4 * s * t)),
        [(2.0, 1.3), (1e20, 1e20), (1e-30, 1e30)],
    ),
    Gumbel: (mp_gumbel, [(2.0, 1.3), (0.0, 1e-20)]),
    Exponential: (lambda r, s: mp.log(r / s) + s / r - 1, [(1.3,), (1e-30,)]),
    Gamma: (mp_gamma, [(2.5, 1.3), (1e-6, 1e10), (9.9, 2.0), (1e8, 1e-5)]),
    InverseGamma: (mp_gamma, [(2.5, 1.3), (1e4, 1e-5)]),
    Weibull: (mp_weibull, [(2.5, 1.3), (1e10, 40.0)]),
    HalfNormal: (lambda s, t: mp.log(t / s) + s * s / (2 * t * t) - mpf(1) / 2, [(1.3,)]),
    HalfCauchy: (lambda s, t: mp.log((s + t) ** 2 / (4 * s * t)), [(1.3,), (1e20,)]),
    Beta: (mp_beta, [(2.5, 1.3), (1e-6, 1e-3), (1e8, 3.0), (1e6, 1e6)]),
    VonMises: (mp_von_mises, [(0.3, 1.3), (0.3, 1e-6), (3.0, 39.9), (1.0, 1e8)]),
    ContinuousBernoulli: (mp_continuous_bernoulli, [(0.3,), (0.5001,), (1e-6,), (1 - 1e-9,)]),
}


@pytest.mark.parametrize("relative", [1e-8, 1e-5, 1e-3, 0.03, 0.2])
@pytest.mark.parametrize("family", NEAR, ids=name)
def test_nearly_equal_distributions_keep_their_digits(family: type, relative: float) -> None:
    formula, points = NEAR[family]
    for at in points:
        other = [x * (1 + relative * (1 if i % 2 else -1)) for i, x in enumerate(at)]
        p, q = [number(x).requires_grad_() for x in at], [number(x).requires_grad_() for x in other]
        value = kl_divergence(family(*p), family(*q))
        gradient = [g.item() for g in torch.autograd.grad(value, p + q)]
        with mpmath.workdps(80):
            exact = [mpf(x) for x in (*at, *other)]
            truth = formula(*exact)
            assert abs(value.item() - truth) <= 1e-11 * truth, (at, float(truth))
            derivatives = [derivative(formula, exact, i) for i in range(len(exact))]
            natural = max(abs(s * x) for s, x in zip(derivatives, exact, strict=True))
            for found, true, x in zip(gradient, derivatives, exact, strict=True):
                assert abs(found - true) <= 1e-8 * abs(true) + 1e-13 * natural / (abs(x) or 1), (
                    at,
                    float(true),
                )


def derivative(formula: Callable[..., mpf], at: list[mpf], i: int) -> mpf:
    step = mpf(10) ** -35 * (abs(at[i]) or 1)
    sides = [formula(*at[:i], at[i] + sign * step, *at[i + 1 :]) for sign in (1, -1)]
    return (sides[0] - sides[1]) / (2 * step)


def logits(x: float) -> dict[str, float]:
    return {"logits": x}


# What torch gets wrong: its family of P and parameters, Q's, and the true value (research notes, R1 ... R10).
WRONG_VALUES: list[tuple[str, type, Any, type, Any, float]] = [
    ("f64", ContinuousBernoulli, (0.3,), Uniform, (0, 1), 0.0293862022),
    ("f64", Uniform, (0, 1), ContinuousBernoulli, (0.3,), 0.0297361233),
    ("f64", Uniform, (0, 0.5), ContinuousBernoulli, (0.3,), 0.511058839),
    ("f64", ContinuousBernoulli, (0.3,), Uniform, (0, 2), 0.722533383),
    ("f64", ContinuousBernoulli, (0.3,), Uniform, (-1, 1), 0.722533383),
    ("f32", ContinuousBernoulli, (0.499,), Normal, (0, 1), 1.08543922),
    ("f32", ContinuousBernoulli, (0.499,), Normal, (1.5, 0.5), 2.39379209),
    ("f32", ContinuousBernoulli, (0.499,), Exponential, (3,), 0.40038839),
    ("f64", ContinuousBernoulli, (0.3,), ContinuousBernoulli, logits(100), 52.4019659),
    ("f64", ContinuousBernoulli, (0.3,), ContinuousBernoulli, logits(-100), 38.4464661),
    ("f32", ContinuousBernoulli, (0.3,), ContinuousBernoulli, logits(20), 8.42920381),
    ("f32", ContinuousBernoulli, logits(20), ContinuousBernoulli, logits(20.2), 4.96694859e-5),
    ("f64", ContinuousBernoulli, logits(100), ContinuousBernoulli, logits(101), 4.96691468e-5),
    ("f64", Beta, (1, 1), ContinuousBernoulli, logits(100), 45.3948298),
    ("f32", Beta, (1, 1), ContinuousBernoulli, logits(20), 7.00426772),
    ("f32", Uniform, (0.25, 0.5), ContinuousBernoulli, logits(20), 10.8905621),
    ("f64", ContinuousBernoulli, logits(100), Exponential, (1,), 4.59517019),
    ("f32", Normal, (0, 1e-6), Normal, (0, 1e20), 59.3672124),
    ("f32", Cauchy, (0, 1), Cauchy, (0, 1e20), 44.6654075),
    ("f32", Cauchy, (0, 1e20), Cauchy, (0, 1e20), 0.0),
    ("f32", HalfCauchy, (1e20,), HalfCauchy, (1e20,), 0.0),
    ("f32", Laplace, (0, 1), Normal, (0, 1e20), 45.2774932),
    ("f32", Exponential, (1,), Normal, (0, 1e20), 45.9706404),
    ("f32", Gamma, (1e6, 1e6), Gamma, (2, 3), 6.291593),
    ("f32", Gamma, (1e6, 1), Gamma, (1000100, 1), 0.00499983584),
    ("f32", Gamma, (1000, 1), Gamma, (1001, 1), 0.000500083333),
    ("f32", Beta, (1e6, 1e6), Beta, (2, 3), 6.12307341),
    ("f32", Beta, (1000, 2000), Beta, (1001, 2000), 0.000333407407),
    ("f32", Beta, (1e6, 1e6), Uniform, (0, 1), 6.52853777),
    ("f32", Chi2, (10000,), Chi2, (10001,), 2.50016667e-5),
    ("f32", Gamma, (1e6, 1), Normal, (1e6, 1), 499992.592),
    ("f32", Gamma, (1e6, 1e6), Exponential, (1,), 6.48881708),
    ("f64", Gamma, (1e6, 1), Gamma, (1000000.01, 1), 5.00000249e-11),
    ("f32", Gumbel, (1000, 0.001), Gumbel, (1000, 0.00101), 8.96341106e-5),
    ("f64", Uniform, (0, 1), Gumbel, (0, 1e20), 47.0517019),
    ("f32", Uniform, (0.25, 0.5), Gumbel, (0, 1e6), 16.2018049),
    ("f32", Uniform, (1000, 1001), Gamma, (1000, 1), 4.37356592),
    ("f32", Cauchy, (0.5, 1.3), Cauchy, (0.5, 1.301), 1.478291e-7),
    ("f32", Laplace, (0.5, 1.3), Laplace, (0.5, 1.3001), 2.9592585e-9),
    ("f32", Exponential, (1.3,), Exponential, (1.3001,), 2.95941028e-9),
    ("f32", Beta, (2.5, 1.3), Beta, (2.50025, 1.3), 5.92867945e-9),
    ("f32", Gamma, (2.5, 1.3), Gamma, (2.50025, 1.3), 1.53354591e-8),
]
DTYPES = {"f32": torch.float32, "f64": torch.float64}


def build(family: type, at: Any, dtype: torch.dtype) -> tuple[Distribution, dict[str, Tensor]]:
    names = at if isinstance(at, dict) else dict(zip(names_of(family), at, strict=True))
    tensors = {key: torch.tensor(float(x), dtype=dtype, requires_grad=True) for key, x in names.items()}
    return family(**tensors), tensors


@pytest.mark.parametrize(
    ("width", "p", "at_p", "q", "at_q", "truth"),
    WRONG_VALUES,
    ids=[f"{r[1].__name__}-{r[3].__name__}-{r[5]}" for r in WRONG_VALUES],
)
def test_values_that_torch_gets_wrong(
    width: str, p: type, at_p: Any, q: type, at_q: Any, truth: float
) -> None:
    first, tensors_p = build(p, at_p, DTYPES[width])
    second, tensors_q = build(q, at_q, DTYPES[width])
    value = kl_divergence(first, second)
    assert value.dtype == DTYPES[width]
    assert math.isclose(value.item(), truth, rel_tol=1e-6 if width == "f32" else 2e-9, abs_tol=0)
    for gradient in torch.autograd.grad(value, [*tensors_p.values(), *tensors_q.values()]):
        assert bool(gradient.isfinite())


WRONG_GRADIENTS: list[tuple[str, type, Any, type, Any, str, float]] = [
    ("f64", ContinuousBernoulli, logits(100), ContinuousBernoulli, logits(100), "q.logits", 0.0),
    ("f64", ContinuousBernoulli, (0.3,), ContinuousBernoulli, logits(100), "q.logits", 0.5597775),
    ("f32", ContinuousBernoulli, logits(20), ContinuousBernoulli, (0.3,), "p.logits", 0.052118202),
    ("f32", ContinuousBernoulli, (0.4989,), Normal, (0, 1), "p.probs", 0.16515174),
    ("f64", Uniform, (0, 0.5), ContinuousBernoulli, (0.3,), "q.probs", 0.85820239),
    ("f64", Uniform, (0, 1), Beta, (1, 1), "p.high", -1.0),
    ("f64", Uniform, (0, 1), Gamma, (1, 1), "p.low", 1.5),
    ("f64", Uniform, (0, 1), Gumbel, (0, 1e20), "p.high", -1.0),
    ("f32", Gamma, (1e6, 1e6), Gamma, (2, 3), "p.concentration", 1.4999992e-6),
]


@pytest.mark.parametrize(
    ("width", "p", "at_p", "q", "at_q", "which", "truth"),
    WRONG_GRADIENTS,
    ids=[f"{r[1].__name__}-{r[3].__name__}-{r[5]}" for r in WRONG_GRADIENTS],
)
def test_gradients_that_torch_gets_wrong(
    width: str, p: type, at_p: Any, q: type, at_q: Any, which: str, truth: float
) -> None:
    first, tensors_p = build(p, at_p, DTYPES[width])
    second, tensors_q = build(q, at_q, DTYPES[width])
    tensors = {f"p.{key}": x for key, x in tensors_p.items()} | {
        f"q.{key}": x for key, x in tensors_q.items()
    }
    (gradient,) = torch.autograd.grad(kl_divergence(first, second), [tensors[which]])
    assert math.isclose(gradient.item(), truth, rel_tol=1e-6 if width == "f32" else 1e-7, abs_tol=0)


def test_parameters_of_different_shapes_broadcast() -> None:
    p, q = Gamma(torch.full((3, 1), 2.0), 1.0), Uniform(torch.zeros(4), 1.0)
    assert kl_divergence(q, p).shape == (3, 4)
    assert torch.equal(kl_divergence(p, q), torch.full((3, 4), math.inf))


def test_families_meet_where_their_laws_do() -> None:
    rate, loc, scale = number(1.7), number(0.4), number(1.1)
    assert kl_divergence(Gamma(number(1.0), rate), Exponential(rate)) == 0
    assert kl_divergence(Exponential(rate), Gamma(number(1.0), rate)) == 0
    assert kl_divergence(Weibull(1 / rate, number(1.0)), Exponential(rate)) < 1e-30
    assert abs(kl_divergence(Weibull(1 / rate, number(1.0)), Gamma(number(1.0), rate))) < 1e-30
    assert kl_divergence(Beta(number(1.0), number(1.0)), Uniform(number(0.0), number(1.0))) == 0
    assert kl_divergence(Cauchy(loc, scale), StudentT(number(1.0), loc, scale)).abs() < 1e-15
    far = [
        kl_divergence(StudentT(number(df), loc, scale), Normal(loc, scale)).item() * df**2
        for df in (1e4, 1e6, 1e8)
    ]
    assert far == pytest.approx([1.75, 1.75, 1.75], rel=1e-3)


def test_a_pareto_or_uniform_that_leaves_no_room_has_its_one_sided_derivative() -> None:
    low = number(0.0).requires_grad_()
    value = kl_divergence(Uniform(low, number(1.0)), Uniform(number(0.0), number(2.0)))
    assert torch.autograd.grad(value, low)[0] == 1
    scale = number(2.0).requires_grad_()
    value = kl_divergence(Pareto(scale, number(3.0)), Pareto(number(2.0), number(5.0)))
    assert torch.autograd.grad(value, scale)[0] == 2.5


@pytest.mark.sweep
@pytest.mark.parametrize("family", [Normal, Laplace, Cauchy, HalfCauchy, LogNormal, Weibull], ids=name)
def test_quadrature_knows_the_second_derivatives_by_the_ends_of_a_uniform(family: type) -> None:
    at = (number(0.3), number(1.9), *(x[0] for x in draw_parameters(family, 1, 7)))

    def divergence(*at: Tensor) -> Tensor:
        return kl_estimate(Uniform(*at[:2]), family(*at[2:]), method="quadrature").value

    hessian = torch.autograd.functional.hessian(divergence, at)
    step = 1e-5
    for i, x in enumerate(at):
        for j in range(len(at)):
            sides: list[Tensor] = []
            for side in (step, -step):
                moved = [y.clone().requires_grad_() for y in (*at[:i], x + side, *at[i + 1 :])]
                sides.append(torch.autograd.grad(divergence(*moved), moved)[j])
            expected = (sides[0] - sides[1]) / (2 * step)
            torch.testing.assert_close(hessian[i][j], expected, rtol=1e-6, atol=1e-7)
