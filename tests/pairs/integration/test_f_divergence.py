"""Divergences other than KL between distributions: against mpmath, known formulas, and what cannot be finite."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    Cauchy,
    Dirichlet,
    Distribution,
    Exponential,
    Gamma,
    GeneralizedPareto,
    Geometric,
    Gumbel,
    HalfNormal,
    Independent,
    Laplace,
    LogNormal,
    MultivariateNormal,
    Normal,
    OneHotCategorical,
    Poisson,
    StudentT,
    TransformedDistribution,
    Uniform,
    Wishart,
)
from torch.distributions.transforms import ExpTransform

from kullback import (
    Alpha,
    ChiSquared,
    Jeffreys,
    JensenShannon,
    Logits,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
    divergence,
    kl_divergence,
)
from kullback.errors import ArgumentValueError, ConvergenceError, NoRuleError
from kullback.pairs.solve import estimate
from kullback.pairs.solve_options import SolveOptions

BOUNDED = [
    TotalVariation(),
    SquaredHellinger(),
    JensenShannon(),
    JensenShannon(0.2),
    SkewKL(0.1),
    Alpha(0.3),
    Renyi(0.5),
]
STEEP = [ChiSquared(), Renyi(2.0), Alpha(1.5), Alpha(-0.5)]


def doubles(*numbers: float) -> list[torch.Tensor]:
    return [torch.tensor(x, dtype=torch.float64) for x in numbers]


def density(d: Any) -> tuple[Callable[[Any], Any], list[Any]]:
    """The density in mpmath, 0 outside the support, and where the support begins and ends."""
    a, b = ([mpmath.mpf(float(x)) for x in parameters_of(d)] + [None])[:2]
    if isinstance(d, Normal):
        return (lambda x: mpmath.npdf(x, a, b)), [-mpmath.inf, a - 3 * b, a, a + 3 * b, mpmath.inf]
    if isinstance(d, Cauchy):
        return (lambda x: 1 / (mpmath.pi * b * (1 + ((x - a) / b) ** 2))), [
            -mpmath.inf,
            a - 3 * b,
            a,
            a + 3 * b,
            mpmath.inf,
        ]
    if isinstance(d, Laplace):
        return (lambda x: mpmath.exp(-abs(x - a) / b) / (2 * b)), [-mpmath.inf, a, mpmath.inf]
    if isinstance(d, Gamma):
        return (
            lambda x: b**a * x ** (a - 1) * mpmath.exp(-b * x) / mpmath.gamma(a) if x > 0 else mpmath.mpf(0)
        ), [0, a / b, 5 * a / b + 5, mpmath.inf]
    if isinstance(d, Beta):
        return (
            lambda x: x ** (a - 1) * (1 - x) ** (b - 1) / mpmath.beta(a, b) if 0 < x < 1 else mpmath.mpf(0)
        ), [0, mpmath.mpf(1) / 2, 1]
    return (lambda x: 1 / (b - a) if a <= x <= b else mpmath.mpf(0)), [a, b]


def parameters_of(d: Any) -> list[torch.Tensor]:
    names = {
        Gamma: ("concentration", "rate"),
        Beta: ("concentration1", "concentration0"),
        Uniform: ("low", "high"),
    }
    return [getattr(d, name) for name in names.get(type(d), ("loc", "scale"))]


def term(kind: Any, p: Any, q: Any) -> Any:
    """The integrand as its definition has it, without what adds up to 0."""
    mp = mpmath

    def kl(a: Any, b: Any) -> Any:
        return a * mp.log(a / b) if a > 0 else mp.mpf(0)

    if isinstance(kind, TotalVariation):
        return abs(p - q) / 2
    if isinstance(kind, SquaredHellinger):
        return (mp.sqrt(p) - mp.sqrt(q)) ** 2 / 2
    if isinstance(kind, JensenShannon):
        m = kind.beta * p + (1 - kind.beta) * q
        return kind.beta * kl(p, m) + (1 - kind.beta) * kl(q, m)
    if isinstance(kind, SkewKL):
        return kl(p, kind.alpha * p + (1 - kind.alpha) * q)
    if isinstance(kind, ChiSquared):
        return (p - q) ** 2 / q if q else mp.mpf(0)
    return p**kind.alpha * q ** (1 - kind.alpha) if p and q else mp.mpf(0)


def truth(kind: Any, p: Any, q: Any) -> float:
    (f, cuts_p), (g, cuts_q) = density(p), density(q)
    cuts = sorted({*cuts_p, *cuts_q, *crossings(f, g)})
    with mpmath.workdps(30):
        total = mpmath.quad(lambda x: term(kind, f(x), g(x)), cuts, maxdegree=10)
        if isinstance(kind, Renyi):
            return float(mpmath.log(total) / (kind.alpha - 1))
        if isinstance(kind, Alpha):
            return float((total - 1) / (kind.alpha * (kind.alpha - 1)))
        return float(total)


def crossings(f: Callable[[Any], Any], g: Callable[[Any], Any]) -> list[Any]:
    """Where the densities cross between -20 and 20: corners of total variation."""
    found = []
    grid = [mpmath.mpf(k) / 8 + mpmath.mpf("0.0137") for k in range(-160, 160)]
    for left, right in itertools.pairwise(grid):
        low, high, sign = left, right, mpmath.sign(f(left) - g(left))
        if sign * mpmath.sign(f(right) - g(right)) < 0:
            for _ in range(100):
                middle = (low + high) / 2
                low, high = (middle, high) if mpmath.sign(f(middle) - g(middle)) == sign else (low, middle)
            found.append(low)
    return found


LINE = [
    (Normal(*doubles(0, 1)), Normal(*doubles(1, 1.3))),
    (Normal(*doubles(0, 1)), Cauchy(*doubles(0.5, 1))),
    (Laplace(*doubles(0, 1)), Normal(*doubles(0.3, 1.5))),
    (Gamma(*doubles(2.5, 1)), Gamma(*doubles(1.5, 0.7))),
    (Gamma(*doubles(2.5, 1)), Normal(*doubles(2, 1.5))),
    (Beta(*doubles(2, 3)), Normal(*doubles(0.4, 0.3))),
    (Uniform(*doubles(0, 1)), Uniform(*doubles(0.5, 2))),
    (Uniform(*doubles(0, 1)), Beta(*doubles(1.5, 2))),
]


@pytest.mark.parametrize("kind", BOUNDED, ids=repr)
@pytest.mark.parametrize(("p", "q"), LINE, ids=lambda d: type(d).__name__)
def test_bounded_kinds_are_what_mpmath_integrates(kind: Any, p: Distribution, q: Distribution) -> None:
    expected = truth(kind, p, q)
    found = estimate("divergence", p, q, SolveOptions(), kind)
    assert float(found.value) == pytest.approx(expected, rel=1e-8, abs=1e-10)
    assert abs(float(found.value) - expected) <= float(found.error) + 1e-9
    assert float(divergence(p, q, kind)) == float(found.value)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", STEEP, ids=repr)
def test_steep_powers_where_they_are_finite(kind: Any) -> None:
    pairs = [
        (Normal(*doubles(0, 1)), Normal(*doubles(1, 1.2))),
        (Gamma(*doubles(2.5, 1)), Gamma(*doubles(2.2, 0.9))),
    ]
    for p, q in pairs:
        assert float(divergence(p, q, kind)) == pytest.approx(truth(kind, p, q), rel=1e-8)


def test_total_variation_and_hellinger_of_normals_have_their_formulas() -> None:
    for shift in (1e-6, 0.1, 1.0, 5.0):
        p, q = Normal(*doubles(0, 1)), Normal(*doubles(shift, 1))
        assert float(divergence(p, q, TotalVariation())) == pytest.approx(
            math.erf(shift / math.sqrt(8)), rel=1e-9
        )
        assert float(divergence(p, q, SquaredHellinger())) == pytest.approx(
            -math.expm1(-(shift**2) / 8), rel=1e-9
        )
        assert float(divergence(p, q, ChiSquared())) == pytest.approx(math.expm1(shift**2), rel=1e-9)
        assert float(divergence(p, q, Renyi(3.0))) == pytest.approx(1.5 * shift**2, rel=1e-9)


def test_exponentials_have_their_formulas() -> None:
    a, b = 1.3, 0.4
    p, q = Exponential(*doubles(a)), Exponential(*doubles(b))
    affinity = 2 * math.sqrt(a * b) / (a + b)
    assert float(divergence(p, q, SquaredHellinger())) == pytest.approx(1 - affinity, rel=1e-9)
    order = 1.7
    renyi = (order * math.log(a) + (1 - order) * math.log(b) - math.log(order * a + (1 - order) * b)) / (
        order - 1
    )
    assert float(divergence(p, q, Renyi(order))) == pytest.approx(renyi, rel=1e-8)


@pytest.mark.parametrize("kind", [*BOUNDED, ChiSquared(), Renyi(2.0), Renyi(0.0), Renyi(math.inf)], ids=repr)
def test_classes_give_what_their_rows_give(kind: Any) -> None:
    a, b = (torch.randn(4, 5, dtype=torch.float64) for _ in range(2))
    expected = divergence(Logits(a), Logits(b), kind)
    for family in (Categorical, OneHotCategorical):
        found = divergence(family(logits=a), family(logits=b), kind)
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", [*BOUNDED, ChiSquared(), Renyi(2.0)], ids=repr)
def test_counts_are_added_one_by_one(kind: Any) -> None:
    cases = [
        (Poisson(*doubles(3.0)), Geometric(*doubles(0.3))),
        (Poisson(*doubles(3.0)), Poisson(*doubles(4.0))),
        (Bernoulli(*doubles(0.3)), Bernoulli(*doubles(0.6))),
    ]
    for p, q in cases:
        top = 1 if isinstance(p, Bernoulli) else 400
        x = torch.arange(top + 1, dtype=torch.float64)
        masses = [[mpmath.exp(mpmath.mpf(float(y))) for y in d.log_prob(x)] for d in (p, q)]
        total = mpmath.fsum(term(kind, a, b) for a, b in zip(*masses, strict=True))
        if isinstance(kind, Renyi):
            total = mpmath.log(total) / (kind.alpha - 1)
        elif isinstance(kind, Alpha):
            total = (total - 1) / (kind.alpha * (kind.alpha - 1))
        assert float(divergence(p, q, kind)) == pytest.approx(float(total), rel=1e-9)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (Normal(*doubles(0, 1)), Normal(*doubles(0, 0.7))),  # p^2 / q grows as e^(0.02 x^2)
        (Cauchy(*doubles(0, 1)), Normal(*doubles(0, 1))),
        (Exponential(*doubles(1.0)), Exponential(*doubles(2.1))),
        (Normal(*doubles(0, 1)), Uniform(*doubles(-1, 1))),
        (Geometric(*doubles(0.1)), Poisson(*doubles(2.0))),
        (StudentT(*doubles(3.0)), Laplace(*doubles(0, 1))),
    ],
    ids=repr,
)
def test_an_infinite_chi_squared_is_infinite_or_an_error_never_a_number(
    p: Distribution, q: Distribution
) -> None:
    for kind in (ChiSquared(), Renyi(2.0)):
        assert value_or_none(p, q, kind) in {math.inf, None}


def value_or_none(p: Distribution, q: Distribution, kind: Any) -> float | None:
    try:
        return float(divergence(p, q, kind))
    except ConvergenceError:
        return None


@pytest.mark.parametrize(
    ("p", "q", "order"),
    [
        (Cauchy(*doubles(0, 1)), Normal(*doubles(0, 1)), 1.01),  # a power against e^(-x^2)
        (Cauchy(*doubles(0, 1)), StudentT(*doubles(2.0)), 2.0),  # x^-4 x^3
        (Laplace(*doubles(0, 1)), Normal(*doubles(0, 5)), 1.1),
        (Laplace(*doubles(0, 1)), Laplace(*doubles(0, 0.4)), 2.0),
        (Normal(*doubles(0, 1)), Gumbel(*doubles(0, 9)), 1.5),  # e^(x^2) against e^(e^x)
        (LogNormal(*doubles(0, 1)), Gamma(*doubles(2, 0.1)), 1.2),
        (Gamma(*doubles(3, 0.1)), LogNormal(*doubles(0, 1)), 1.2),  # next to 0
        (Beta(*doubles(0.5, 3)), Normal(*doubles(0, 1)), 2.0),  # 1 / x at an end inside Q's support
        (Uniform(*doubles(0, 1)), Beta(*doubles(2, 1)), 2.0),
        (Uniform(*doubles(0, 2)), Beta(*doubles(1, 1)), 1.5),
        (Uniform(*doubles(0, 1)), Beta(*doubles(0.3, 0.2)), -1.5),
        (Geometric(*doubles(0.1)), Geometric(*doubles(0.2)), 3.0),
    ],
    ids=repr,
)
def test_tails_decide_where_a_power_divergence_is_infinite(
    p: Distribution, q: Distribution, order: float
) -> None:
    found = estimate("divergence", p, q, SolveOptions(), Alpha(order))
    assert (float(found.value), float(found.error)) == (math.inf, 0.0)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("p", "q", "order"),
    [
        (StudentT(*doubles(5.0)), Cauchy(*doubles(0, 1)), 4.0),
        (Cauchy(*doubles(0, 1)), StudentT(*doubles(1.5)), 2.0),
        (Laplace(*doubles(0, 1)), Laplace(*doubles(0, 0.7)), 2.0),
        (Uniform(*doubles(0, 1)), Beta(*doubles(1.5, 1)), 2.0),
        (Beta(*doubles(0.8, 3)), Normal(*doubles(0, 1)), 2.0),
    ],
    ids=repr,
)
def test_and_where_it_is_finite(p: Distribution, q: Distribution, order: float) -> None:
    found = estimate("divergence", p, q, SolveOptions(), Alpha(order))
    assert 0 < float(found.value) < math.inf


def test_a_batch_may_be_infinite_in_part() -> None:
    scale = torch.tensor([0.3, 0.7, 0.45, 2.0], dtype=torch.float64, requires_grad=True)
    p, q = Laplace(*doubles(0, 1)), Laplace(0.0, scale)
    value = divergence(p, q, ChiSquared())
    assert value.isinf().tolist() == [True, False, True, False]
    (gradient,) = torch.autograd.grad(torch.where(value.isfinite(), value, 0).sum(), scale)
    # chi^2 = s^2 / (2 s - 1) - 1
    s = scale.detach()
    finite = value.detach().isfinite()
    torch.testing.assert_close(value.detach()[finite], (s**2 / (2 * s - 1) - 1)[finite], rtol=1e-9, atol=0)
    derivative = torch.where(finite, 2 * s * (s - 1) / (2 * s - 1) ** 2, 0)
    torch.testing.assert_close(gradient, derivative, rtol=1e-7, atol=1e-9)


def test_just_on_this_side_of_infinity_it_is_right_or_an_error() -> None:
    for scale in (0.75, 0.72, 0.71, 0.7075):
        p, q = Normal(*doubles(0, 1)), Normal(*doubles(0, scale))
        expected = scale**2 / math.sqrt(2 * scale**2 - 1) - 1
        assert float(divergence(p, q, ChiSquared())) == pytest.approx(expected, rel=1e-9)
        moved = Laplace(*doubles(0, 1)), Laplace(*doubles(0, scale))  # finite above 1/2
        expected = scale * 1 / (2 - 1 / scale) - 1 if scale > 0.5 else math.inf
        assert float(divergence(*moved, ChiSquared())) == pytest.approx(expected, rel=1e-8)


def test_gradients_are_those_of_the_formulas() -> None:
    loc, scale = (x.requires_grad_() for x in doubles(0.7, 1.0))
    divergence(Normal(*doubles(0, 1)), Normal(loc, scale), TotalVariation()).backward()
    assert float(loc.grad) == pytest.approx(math.exp(-(0.7**2) / 8) / math.sqrt(2 * math.pi), rel=1e-7)
    rate = doubles(1.3)[0].requires_grad_()
    divergence(Exponential(rate), Exponential(*doubles(0.4)), SquaredHellinger()).backward()
    a, b = 1.3, 0.4
    derivative = -(math.sqrt(b / a) / (a + b) - 2 * math.sqrt(a * b) / (a + b) ** 2)
    assert float(rate.grad) == pytest.approx(derivative, rel=1e-7)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "kind", [JensenShannon(), Alpha(0.3), Renyi(0.5), SkewKL(0.2), TotalVariation()], ids=repr
)
def test_gradients_are_differences_of_values(kind: Any) -> None:
    def value(a: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        return divergence(Gamma(a, 1.0), Uniform(*doubles(0.5), high), kind)

    inputs = [x.requires_grad_() for x in doubles(2.5, 3.0)]
    found = torch.autograd.grad(value(*inputs), inputs)
    for index, gradient in enumerate(found):
        step = [torch.zeros(()).double(), torch.zeros(()).double()]
        step[index] += 1e-5
        above, below = (
            value(*(x.detach() + s * d for x, d in zip(inputs, step, strict=True))) for s in (1, -1)
        )
        assert float(gradient) == pytest.approx(float(above - below) / 2e-5, rel=1e-4)


@pytest.mark.parametrize("kind", [*BOUNDED, ChiSquared(), Renyi(2.0)], ids=repr)
def test_equal_distributions_have_none_and_no_gradient(kind: Any) -> None:
    loc = torch.tensor([0.0, 3.0], dtype=torch.float64, requires_grad=True)
    found = divergence(Cauchy(loc, 1.0), Cauchy(loc.detach(), 1.0), kind)
    assert found.tolist() == [0, 0]
    assert torch.autograd.grad(found.sum(), loc)[0].tolist() == [0, 0]


def test_batches_are_element_by_element_also_where_supports_differ() -> None:
    p = Uniform(torch.zeros(3).double(), torch.tensor([1.0, 2.0, 3.0]).double())
    q = Uniform(torch.tensor([[0.0], [0.5]]).double(), torch.tensor(2.5).double())
    found = divergence(p, q, TotalVariation())
    assert found.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            alone = divergence(
                Uniform(p.low[j], p.high[j]), Uniform(q.low[i, 0], *doubles(2.5)), TotalVariation()
            )
            assert float(found[i, j]) == pytest.approx(float(alone), abs=1e-9)
    mixed = divergence(
        Normal(torch.zeros(2).double(), 1.0),
        Normal(torch.zeros(2).double(), torch.tensor([0.5, 2.0])),
        ChiSquared(),
    )
    assert mixed[0] == math.inf
    assert float(mixed[1]) == pytest.approx(4 / math.sqrt(7) - 1, rel=1e-6)


def test_a_support_may_end_for_some_elements_of_a_batch_only() -> None:
    shapes = torch.tensor([0.2, -0.5, 0.0], dtype=torch.float64)
    p, q = GeneralizedPareto(*doubles(0, 1), shapes), Gamma(*doubles(1.5, 1))
    found = divergence(p, q, TotalVariation())
    grid = torch.linspace(0, 400, 2_000_001, dtype=torch.float64)[1:]
    for i, shape in enumerate(shapes.tolist()):
        base = 1 + shape * grid
        density = torch.exp(-grid) if shape == 0 else torch.where(base > 0, base, 0).pow(-1 / shape - 1)
        difference = (density - torch.exp(q.log_prob(grid))).abs()
        assert float(found[i]) == pytest.approx(float(difference.sum()) * 2e-4 / 2, abs=2e-4)
    alone = divergence(GeneralizedPareto(*doubles(0, 1, 0.2)), q, TotalVariation())
    assert float(found[0]) == pytest.approx(float(alone), rel=1e-9)


def test_vectors_have_the_powers_in_closed_form() -> None:
    identity = torch.eye(2, dtype=torch.float64)
    p, q = (
        MultivariateNormal(torch.zeros(2).double(), identity),
        MultivariateNormal(torch.ones(2).double(), identity),
    )
    assert float(divergence(p, q, Renyi(2.0))) == pytest.approx(2.0, rel=1e-12)
    assert float(divergence(p, q, SquaredHellinger())) == pytest.approx(-math.expm1(-0.25), rel=1e-12)
    assert (
        float(divergence(p, MultivariateNormal(torch.zeros(2).double(), identity / 4), ChiSquared()))
        == math.inf
    )
    single = [Normal(torch.zeros(2).double(), 1.0), Normal(torch.tensor([0.4, -1.0]).double(), 1.5)]
    full = [MultivariateNormal(d.loc, torch.diag(d.scale**2)) for d in single]
    for kind in (Renyi(0.3), Alpha(1.4), ChiSquared()):
        one = divergence(*(Independent(d, 1) for d in single), kind)
        assert float(one) == pytest.approx(float(divergence(*full, kind)), rel=1e-9)


def test_dirichlets_of_two_classes_are_betas() -> None:
    a, b = torch.tensor([2.0, 3.0]).double(), torch.tensor([1.5, 2.5]).double()
    for kind in (Renyi(0.4), SquaredHellinger(), ChiSquared()):
        assert float(divergence(Dirichlet(a), Dirichlet(b), kind)) == pytest.approx(
            float(divergence(Beta(*a), Beta(*b), kind)), rel=1e-8
        )
    assert float(divergence(Dirichlet(a), Dirichlet(2 * a + 1), ChiSquared())) == math.inf


def test_kinds_that_are_kl_by_another_name_are_exactly_kl() -> None:
    p, q = Gamma(*doubles(2.5, 1)), Gamma(*doubles(1.5, 0.7))
    there, back = float(kl_divergence(p, q)), float(kl_divergence(q, p))
    for kind in (Alpha(1.0), Renyi(1.0), SkewKL(0.0), JensenShannon(0.0, scaled=True)):
        assert float(divergence(p, q, kind)) == there
    for kind in (Alpha(0.0), ReverseKL(), JensenShannon(1.0, scaled=True)):
        assert float(divergence(p, q, kind)) == back
    assert float(divergence(p, q, Jeffreys())) == pytest.approx(there + back)


def test_what_there_is_no_rule_for_is_an_error() -> None:
    p = Wishart(torch.tensor(5.0), torch.eye(2))
    with pytest.raises(NoRuleError, match="Wishart"):
        divergence(p, Wishart(torch.tensor(6.0), torch.eye(2)), TotalVariation())
    assert float(divergence(p, p, TotalVariation())) == 0
    with pytest.raises(NoRuleError, match="inf"):
        divergence(Normal(0.0, 1.0), Normal(0.0, 2.0), Renyi(math.inf))
    with pytest.raises(ArgumentValueError, match="discrete"):
        divergence(Normal(0.0, 1.0), Poisson(1.0), TotalVariation())


def test_bits_and_single_precision() -> None:
    p, q = Normal(0.0, 1.0), Laplace(0.0, 1.0)
    nats, bits = divergence(p, q, JensenShannon()), divergence(p, q, JensenShannon(), base=2)
    assert nats.dtype == torch.float32
    assert float(bits) == pytest.approx(float(nats) / math.log(2), rel=1e-6)


@pytest.mark.parametrize("alpha", [-0.5, -1.0])
def test_a_logarithm_with_tails_of_a_power_does_not_look_infinite(alpha: float) -> None:
    """log x reaches 1e300 there, and the density of x, of which the logarithm is that large, keeps no digit."""
    loc, width, scale = -1.2, 7.5, 0.074
    p = TransformedDistribution(Cauchy(*doubles(loc, width)), [ExpTransform()])

    def integrand(y: mpmath.mpf) -> mpmath.mpf:
        log_p = mpmath.log(width / mpmath.pi) - mpmath.log(width**2 + (y - loc) ** 2)
        log_q = y + mpmath.log(2 / mpmath.pi) / 2 - mpmath.log(scale) - mpmath.exp(2 * y) / (2 * scale**2)
        return mpmath.exp(alpha * log_p + (1 - alpha) * log_q)

    with mpmath.workdps(25):
        moment = mpmath.quad(integrand, [-300, -100, -50, -20, -10, -5, -3, -2, -1, 0, 1, 2])
        truth = float((moment - 1) / (alpha * (alpha - 1)))
    found = divergence(p, HalfNormal(*doubles(scale)), Alpha(alpha))
    assert float(found) == pytest.approx(truth, rel=1e-6)
