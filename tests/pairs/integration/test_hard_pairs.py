"""Pairs on which quadrature went wrong without saying so: each stands for a kind of fault. Truths are mpmath's."""

from __future__ import annotations

import functools
import math
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor, tensor
from torch.distributions import (
    Beta,
    Categorical,
    Cauchy,
    Distribution,
    Exponential,
    Gamma,
    Geometric,
    Gumbel,
    InverseGamma,
    Kumaraswamy,
    Laplace,
    LogNormal,
    MixtureSameFamily,
    Normal,
    Pareto,
    StudentT,
    TransformedDistribution,
    Uniform,
    VonMises,
    Weibull,
)
from torch.distributions.transforms import ExpTransform, PowerTransform, SigmoidTransform, TanhTransform

from kullback import (
    Alpha,
    SkewKL,
    divergence,
    kl_divergence,
    kl_estimate,
)
from kullback.errors import ConvergenceError
from kullback.pairs import SolveOptions, estimate
from tests.oracles.sweep import parameters as parameters_of_spec
from tests.oracles.sweep_checks import KINDS
from tests.oracles.sweep_extended import truth


def double(*x: float) -> Tensor:
    return tensor(x[0] if len(x) == 1 else x, dtype=torch.float64)


def mixture(family: Any, weights: list[float], *parameters: list[float]) -> Distribution:
    return MixtureSameFamily(Categorical(double(*weights)), family(*(double(*x) for x in parameters)))


NARROW = {
    "a narrow part of Q": (
        Normal(double(0.0), 1.0),
        mixture(Normal, [1.0, math.exp(-2)], [0.0, 2.0], [1.0, 1e-4]),
        ["Normal", 0.0, 1.0],
        ["Mixture", [1.0, math.exp(-2)], ["Normal", 0.0, 1.0], ["Normal", 2.0, 1e-4]],
    ),
    "a narrow part on the half-line": (
        LogNormal(double(0.0), 1.0),
        mixture(LogNormal, [1.0, 1.0], [0.0, 1.0], [1.0, 1e-4]),
        ["LogNormal", 0.0, 1.0],
        ["Mixture", [1.0, 1.0], ["LogNormal", 0.0, 1.0], ["LogNormal", 1.0, 1e-4]],
    ),
    "a narrow part of P": (
        mixture(Normal, [1.0, 1.0], [0.0, 10.0], [1.0, 1e-4]),
        Normal(double(0.0), 3.0),
        ["Mixture", [1.0, 1.0], ["Normal", 0.0, 1.0], ["Normal", 10.0, 1e-4]],
        ["Normal", 0.0, 3.0],
    ),
    "a corner of log q far from its narrow parts": (
        mixture(Normal, [1.5, 0.5], [-0.3, -1.1], [0.2, 1e-3]),
        mixture(Normal, [0.2, 3.8, 1.0], [1.7, -0.35, -0.05], [0.01, 2e-6, 0.007]),
        ["Mixture", [1.5, 0.5], ["Normal", -0.3, 0.2], ["Normal", -1.1, 1e-3]],
        [
            "Mixture",
            [0.2, 3.8, 1.0],
            ["Normal", 1.7, 0.01],
            ["Normal", -0.35, 2e-6],
            ["Normal", -0.05, 0.007],
        ],
    ),
    "masses that do not meet": (
        mixture(Normal, [8.0, 1.0], [-1.4, 2.6], [5e-4, 8e-4]),
        mixture(Normal, [3.0, 0.2], [0.5, 2.5], [9e-5, 2e-5]),
        ["Mixture", [8.0, 1.0], ["Normal", -1.4, 5e-4], ["Normal", 2.6, 8e-4]],
        ["Mixture", [3.0, 0.2], ["Normal", 0.5, 9e-5], ["Normal", 2.5, 2e-5]],
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", NARROW)
def test_narrow_parts_are_met_and_the_error_is_a_bound(name: str) -> None:
    p, q, spec_p, spec_q = NARROW[name]
    true = truth(spec_p, spec_q, [0.0 for spec in (spec_p, spec_q) for _ in parameters_of_spec(spec)]).values[
        "KL"
    ]
    assert true is not None
    found = kl_estimate(p, q)
    assert found.error is not None
    assert abs(found.value.item() - true) <= found.error.item() + 4e-16 * true
    assert found.error < 1e-6 * true


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", [StudentT, Cauchy])
def test_kinds_of_gumbel_and_heavy_tails_have_their_values_and_gradients(kind: str, family: Any) -> None:
    shape = [3.0] if family is StudentT else []
    spec_p, spec_q = ["Gumbel", 0.2, 1.1], [family.__name__, *shape, -0.1, 0.9]
    direction = [0.7, -0.4, *[0.5] * len(shape), 0.3, 0.6]
    for first, second, along in (
        (spec_p, spec_q, direction),
        (spec_q, spec_p, direction[2:] + direction[:2]),
    ):
        known = truth(first, second, along)
        true, derivative = known.values[kind], known.derivatives[kind]
        parameters = [double(x).requires_grad_() for x in (*first[1:], *second[1:])]
        split = len(first) - 1
        makers = {"Gumbel": Gumbel, "StudentT": StudentT, "Cauchy": Cauchy}
        p = makers[first[0]](*parameters[:split])
        q = makers[second[0]](*parameters[split:])
        if true is None or math.isinf(true):
            assert true is None or divergence(p, q, KINDS[kind]) == math.inf
            continue
        value = divergence(p, q, KINDS[kind])
        assert value.item() == pytest.approx(true, rel=1e-8)
        gradient = torch.autograd.grad(value, parameters)
        assert derivative is not None
        found = sum(float(g) * d for g, d in zip(gradient, along, strict=True))
        assert found == pytest.approx(derivative, rel=1e-6)


@pytest.mark.parametrize(
    ("p", "q", "parameters"),
    [
        (Normal, Gumbel, ([0.0, 1.0], [0.0, 0.026])),
        (Geometric, Geometric, ([5e-324], [0.5])),
        (Gumbel, Gumbel, ([0.0, 1.0], [1000.0, 1.0])),
        (LogNormal, Exponential, ([800.0, 1.0], [1.0])),
    ],
)
def test_what_is_beyond_float64_is_infinite_and_has_no_gradient(p: Any, q: Any, parameters: Any) -> None:
    given = [[double(x).requires_grad_() for x in side] for side in parameters]
    value = kl_divergence(p(*given[0], validate_args=False), q(*given[1], validate_args=False))
    assert value == math.inf
    for gradient in torch.autograd.grad(value, [x for side in given for x in side]):
        assert gradient == 0


def test_an_element_that_overflows_leaves_the_gradients_of_others_alone() -> None:
    loc, scale = double(0.0, 0.5).requires_grad_(), double(1.0, 1.0).requires_grad_()
    value = kl_divergence(Normal(loc, scale), Gumbel(double(0.0), double(0.026, 2.0)))
    alone = double(0.5).requires_grad_()
    expected = kl_divergence(Normal(alone, double(1.0)), Gumbel(double(0.0), double(2.0)))
    assert value.isinf().tolist() == [True, False]
    (gradient,) = torch.autograd.grad(value[1], loc)
    assert gradient.tolist() == pytest.approx([0.0, torch.autograd.grad(expected, alone)[0].item()])


def test_a_value_that_leaves_float64_on_the_nodes_is_refused_not_called_infinite() -> None:
    p = mixture(Normal, [1.0, 1.0], [0.0, 1.0], [1.0, 1.0])
    with pytest.raises(
        ConvergenceError
    ):  # about e^555, but log q is beyond float64 where the terms are largest
        kl_divergence(p, Gumbel(double(0.0), 0.03))


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize(
    ("base", "transform", "q", "true"),
    [
        (
            lambda v: Exponential(double(3.0), validate_args=v),
            ExpTransform(),
            Pareto(double(1.0), 2.0),
            math.log(1.5) - 1 / 3,
        ),
        (lambda v: Uniform(double(0.0), 1.0, validate_args=v), ExpTransform(), Gamma(double(2.0), 1.0), math.e - 2),
        (
            lambda v: Exponential(double(3.0), validate_args=v),
            SigmoidTransform(),
            Beta(double(2.0), 1.0),
            # log 3 - 3 y - log x (1 - x) - log 2 x with x = sigmoid(y), in the mean
            float(mpmath.quad(lambda y: 3 * mpmath.exp(-3 * y) * (mpmath.log(3) - 3 * y - mpmath.log(2)
                + 2 * mpmath.log1p(mpmath.exp(-y)) + y + mpmath.log1p(mpmath.exp(-y))), [0, 1, 5, mpmath.inf])),
        ),
        (
            lambda v: Beta(double(2.0), 3.0, validate_args=v),
            PowerTransform(double(2.0)),
            Beta(double(2.0), 1.0),
            # Beta(2, 3)'s log-density less that of x where x^2 has Beta(2, 1): 4 x^3
            float(mpmath.quad(lambda x: 12 * x * (1 - x) ** 2 * mpmath.log(3 * (1 - x) ** 2 / x**2), [0, 0.5, 1])),
        ),
        (
            lambda v: Exponential(double(2.0), validate_args=v),
            TanhTransform(),
            Uniform(double(-1.0), 1.0),
            # log 2 - 2 y - log(1 - tanh^2 y) + log 2, in the mean
            float(mpmath.quad(lambda y: 2 * mpmath.exp(-2 * y) * (2 * mpmath.log(2) - 2 * y
                + 2 * mpmath.log(mpmath.cosh(y))), [0, 1, 5, mpmath.inf])),
        ),
    ],
    ids=["Exp(Exponential)", "Exp(Uniform)", "Sigmoid(Exponential)", "Power(Beta)", "Tanh(Exponential)"],
)  # fmt: skip
def test_a_map_knows_its_image(
    base: Any, transform: Any, q: Distribution, true: float, validate: bool
) -> None:
    p = TransformedDistribution(base(validate), [transform], validate_args=validate)
    found = kl_estimate(p, q)
    assert found.value.item() == pytest.approx(true, rel=1e-12)
    assert found.error is not None
    assert abs(found.value.item() - true) <= found.error.item() + 1e-15


def test_a_map_that_nothing_is_known_of_is_asked_on_its_image_only() -> None:
    class Cube(torch.distributions.transforms.Transform):
        domain = codomain = torch.distributions.constraints.real
        bijective = True
        sign = +1

        def _call(self, x: Tensor) -> Tensor:
            return x**3

        def _inverse(self, y: Tensor) -> Tensor:
            return y.sign() * y.abs() ** (1 / 3)

        def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
            return math.log(3) + 2 * x.abs().log()

    # x^3 of a Uniform(1, 2) has the density of x^(-2/3) / 3 on (1, 8)
    p = TransformedDistribution(Uniform(double(1.0), 2.0), [Cube()])
    true = float(mpmath.quad(lambda x: mpmath.log(7 / (3 * x**2)), [1, 2]))
    assert kl_divergence(p, Uniform(double(1.0), 8.0)).item() == pytest.approx(true, rel=1e-9)
    assert kl_divergence(p, Uniform(double(2.0), 8.0)) == math.inf


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("p", "q", "parameters"),
    [(Kumaraswamy, Beta, (0.05, 0.05, 0.5, 0.5)), (Beta, Kumaraswamy, (0.03, 0.06, 0.5, 3.0))],
)
def test_gradients_at_singular_ends(p: Any, q: Any, parameters: tuple[float, ...]) -> None:
    spec_p, spec_q = [p.__name__, *parameters[:2]], [q.__name__, *parameters[2:]]
    direction = [0.3 * parameters[0], -0.2 * parameters[1], 0.5 * parameters[2], 0.4 * parameters[3]]
    known = truth(spec_p, spec_q, direction)
    given = [double(x).requires_grad_() for x in parameters]
    value = kl_divergence(p(*given[:2]), q(*given[2:]))
    assert value.item() == pytest.approx(known.values["KL"], rel=1e-8)
    found = sum(float(g) * d for g, d in zip(torch.autograd.grad(value, given), direction, strict=True))
    assert found == pytest.approx(known.derivatives["KL"], rel=1e-7)


def student_laplace(df: float) -> float:
    """E log p - E log q, with E|x| and the entropy of Student's t in closed form."""
    with mpmath.workdps(40):
        n = mpmath.mpf(df)
        constant = mpmath.loggamma((n + 1) / 2) - mpmath.loggamma(n / 2) - mpmath.log(n * mpmath.pi) / 2
        mean = 2 * mpmath.sqrt(n / mpmath.pi) * mpmath.gamma((n + 1) / 2) / (mpmath.gamma(n / 2) * (n - 1))
        entropy = (n + 1) / 2 * (mpmath.digamma((n + 1) / 2) - mpmath.digamma(n / 2)) - constant
        return float(-entropy + mean + mpmath.log(2))


def inverse_gamma_laplace(a: float) -> float:
    with mpmath.workdps(40):
        a = mpmath.mpf(a)
        entropy = a + mpmath.loggamma(a) - (1 + a) * mpmath.digamma(a)
        return float(-entropy + 1 / (a - 1) + mpmath.log(2))


@pytest.mark.parametrize("index", [1.01, 1.02, 1.05, 1.1, 1.3])
def test_tails_that_barely_have_a_mean(index: float) -> None:
    laplace = Laplace(double(0.0), 1.0)
    for p, true in (
        (StudentT(double(index)), student_laplace(index)),
        (InverseGamma(double(index), 1.0), inverse_gamma_laplace(index)),
    ):
        found = kl_estimate(p, laplace)
        assert found.error is not None
        assert abs(found.value.item() - true) <= found.error.item()
        assert found.error < 1e-9 * true
    df = double(index).requires_grad_()
    (gradient,) = torch.autograd.grad(kl_divergence(StudentT(df), laplace), df)
    assert gradient.item() == pytest.approx(float(mpmath.diff(student_laplace, index, h=1e-6)), rel=1e-5)


def test_claimed_errors_are_bounds_at_extreme_shapes() -> None:
    cases: list[tuple[Distribution, Distribution, float]] = []
    with mpmath.workdps(40):
        for shape in (1e-6, 1.0, 5.0):
            a, b, c, d = map(mpmath.mpf, (1e-6, shape, 2, 3))
            psi = mpmath.digamma
            exact = (
                mpmath.log(mpmath.beta(c, d) / mpmath.beta(a, b))
                + (a - c) * psi(a)
                + (b - d) * psi(b)
                + (c - a + d - b) * psi(a + b)
            )
            cases.append((Beta(double(float(a)), float(b)), Beta(double(2.0), 3.0), float(exact)))
        a = mpmath.mpf(1e-8)
        exact = -mpmath.loggamma(a) + (a - 1) * mpmath.digamma(a) - a + a + mpmath.log(2)
        cases.append((Gamma(double(1e-8), 1.0), Laplace(double(0.0), 1.0), float(exact)))
    for p, q, true in cases:
        found = kl_estimate(p, q, method="quadrature")
        assert found.error is not None
        assert abs(found.value.item() - true) <= found.error.item(), (p, q)


def test_the_error_of_a_small_value_knows_the_rounding_of_logarithms() -> None:
    with mpmath.workdps(40):
        k, s = mpmath.mpf(1e4), mpmath.mpf(0.01)
        scaled = mpmath.besseli(0, k) * mpmath.exp(-k)

        def term(x: Any) -> Any:
            log_p = k * (mpmath.cos(x) - 1) - mpmath.log(2 * mpmath.pi * scaled)
            log_q = -((x / s) ** 2) / 2 - mpmath.log(s) - mpmath.log(2 * mpmath.pi) / 2
            return mpmath.exp(log_p) * (log_p - log_q)

        true = 2 * float(mpmath.quad(term, [0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.3, 1, mpmath.pi]))
    found = kl_estimate(VonMises(double(0.0), 1e4), Normal(double(0.0), 0.01))
    assert found.error is not None
    assert abs(found.value.item() - true) <= found.error.item()


@functools.cache
def truth_of_narrow_mixtures() -> dict[str, float | None]:
    spec_p = ["Mixture", [1.0, 2.0], ["Normal", 0.0, 1.0], ["Normal", 1.0, 1e-5]]
    spec_q = ["Mixture", [2.0, 1.0], ["Normal", 0.0, 1.2], ["Normal", 1.0, 2e-5]]
    return truth(spec_p, spec_q, [0.0] * 12).values


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_an_error_that_is_a_bound_for_narrow_parts(kind: str) -> None:
    p = mixture(Normal, [1.0, 2.0], [0.0, 1.0], [1.0, 1e-5])
    q = mixture(Normal, [2.0, 1.0], [0.0, 1.0], [1.2, 2e-5])
    true = truth_of_narrow_mixtures()[kind]
    assert true is not None
    if math.isinf(true):
        assert float(divergence(p, q, KINDS[kind])) == true
        return
    found = estimate("divergence", p, q, SolveOptions(), KINDS[kind])
    assert found.error is not None
    assert abs(found.value.item() - true) <= found.error.item() + 4e-16 * true
    assert found.error < 1e-6 * true


def test_more_evaluations_are_used_where_they_are_needed() -> None:
    locs, scales = [0.0, 1.3, 2.7, 4.1, 9.2], [0.1, 0.2, 0.05, 0.3, 1.0]
    p, q, kind = mixture(Laplace, [1.0] * 5, locs, scales), Cauchy(double(0.0), 1.0), Alpha(0.3)
    with pytest.raises(ConvergenceError, match=r"max_evaluations=10000") as refused:
        divergence(p, q, kind, rtol=1e-12, max_evaluations=1_000)
    assert refused.value.estimate.kind == "alpha:0.3"
    assert refused.value.estimate.error is not None
    found = divergence(p, q, kind, rtol=1e-12, max_evaluations=10_000)
    off = (refused.value.estimate.value - found).abs()
    assert off <= refused.value.estimate.error + 1e-9 * found


@pytest.mark.parametrize("with_gradients", [False, True])
def test_mass_of_q_between_the_parts_of_p_counts(with_gradients: bool) -> None:
    """P's density underflows there; without Q's mass the value would be log(3 / 2) - 1 / 3."""
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=with_gradients)
    wide = torch.full((3,), 0.01, dtype=torch.float64)
    places = torch.tensor([-2.0, 2.0, 0.0], dtype=torch.float64)
    p = MixtureSameFamily(
        Categorical(logits=torch.zeros(2, dtype=torch.float64)), Normal(places[:2], wide[:2])
    )
    q = MixtureSameFamily(Categorical(logits=logits), Normal(places, wide))
    value = kl_divergence(p, q)
    assert float(value.detach()) == pytest.approx(math.log(1.5), rel=1e-12)
    if with_gradients:
        (gradient,) = torch.autograd.grad(value, [logits])
        torch.testing.assert_close(gradient, torch.tensor([-1, -1, 2], dtype=torch.float64) / 6)


@pytest.mark.heavy
def test_gradients_of_densities_that_are_far_narrower_than_the_distance_from_their_end() -> None:
    scale, k, loc, b = (
        torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (1e-3, 1e4, -1.0, 1.0)
    )
    value = divergence(Weibull(scale, k), Laplace(loc, b), Alpha(0.3))
    found = [x.item() for x in torch.autograd.grad(value, (scale, k, loc, b))]

    def truth(scale: Any, k: Any, loc: Any, b: Any) -> Any:
        # With u = (x / scale)^k, p dx is e^-u du.
        def f(u: Any) -> Any:
            q = mp.exp(-(scale * u ** (1 / k) - loc) / b) / (2 * b)
            return (q / (k / scale * u ** (1 - 1 / k) * mp.exp(-u))) ** mpf(0.7) * mp.exp(-u)

        return (mp.quad(f, [0, 1, 4, 16, 64, 400]) - 1) / (mpf(0.3) * mpf(-0.7))

    with mp.workdps(50):
        at = [mpf(x) for x in (1e-3, 1e4, -1.0, 1.0)]
        assert value.item() == pytest.approx(float(truth(*at)), rel=1e-9)
        for i, x in enumerate(found):
            h = mpf(10) ** -15 * abs(at[i])
            moved = [truth(*(y + side * h * (i == j) for j, y in enumerate(at))) for side in (1, -1)]
            assert x == pytest.approx(float((moved[0] - moved[1]) / (2 * h)), rel=1e-7), i


def test_gradients_of_densities_that_do_not_overlap_are_zero() -> None:
    # p and q have at most e^-1e14 of their masses in common, and the divergence is -log 0.3.
    parameters = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (1e-8, 3.0, 1e-3, 1e4)]
    value = divergence(Weibull(*parameters[:2]), Weibull(*parameters[2:]), SkewKL(0.3))
    assert value.item() == pytest.approx(-math.log(0.3), rel=1e-10)
    for x, slope in zip(parameters, torch.autograd.grad(value, parameters), strict=True):
        assert abs(x.item() * slope.item()) < 1e-12
