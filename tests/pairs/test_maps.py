"""A divergence does not depend on how a map is spelled: maps, sides, families and kinds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Beta,
    Cauchy,
    ComposeTransform,
    CumulativeDistributionTransform,
    Distribution,
    Exponential,
    ExpTransform,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Independent,
    IndependentTransform,
    Laplace,
    LogNormal,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Pareto,
    SigmoidTransform,
    SoftplusTransform,
    StackTransform,
    StudentT,
    TanhTransform,
    TransformedDistribution,
    Uniform,
    Weibull,
)
from torch.distributions.transforms import PowerTransform, Transform

from kullback import JensenShannon, cross_entropy, divergence, estimate, kl_bounds, kl_divergence, kl_estimate

Spelling = list[Transform]


def double(x: object) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def cdf(d: Distribution) -> Transform:
    return CumulativeDistributionTransform(d)


def standard(family: Any) -> Any:
    return family(double(0.0), double(1.0))


def power(exponent: float) -> Transform:
    return PowerTransform(double(exponent))


EXP, SIGMOID, TANH, SOFTPLUS = ExpTransform(), SigmoidTransform(), TanhTransform(), SoftplusTransform()
HALF = AffineTransform(0.0, 0.5)
TURN = AffineTransform(0.0, -1.0)

# Each line is one map in several spellings: the first one is the plainest.
MAPS: dict[str, list[Spelling]] = {
    "affine": [
        [AffineTransform(0.5, 2.0)],
        [AffineTransform(-0.25, 0.5).inv],
        [AffineTransform(0.5, 2.0, cache_size=1)],
        [ComposeTransform([AffineTransform(0.5, 2.0)]).inv.inv],
        [ComposeTransform([HALF, AffineTransform(-0.25, 1.0)]).inv],
        [IndependentTransform(AffineTransform(0.5, 2.0), 0)],
        [EXP, EXP.inv, AffineTransform(0.5, 2.0)],
        [AffineTransform(0.3, 1.0), AffineTransform(-0.3, 1.0), AffineTransform(double(0.5), double(2.0))],
        [cdf(standard(Normal)), cdf(standard(Normal)).inv, AffineTransform(0.5, 2.0)],
        [EXP, power(2.0), AffineTransform(0.0, math.exp(0.5)), EXP.inv],
    ],
    "exp": [
        [EXP],
        [EXP.inv.inv],
        [ExpTransform(cache_size=1)],
        [SOFTPLUS, SOFTPLUS.inv, EXP],
        [TANH, TANH.inv, EXP],
        [EXP, power(3.0), power(1 / 3)],
        [AffineTransform(0.0, 1.0).inv, EXP],
    ],
    "sigmoid": [
        [SIGMOID],
        [HALF, TANH, AffineTransform(0.5, 0.5)],
        [TURN, EXP, AffineTransform(1.0, 1.0), power(-1.0)],
        [cdf(TransformedDistribution(standard(Uniform), [SIGMOID.inv]))],
        [TURN, SOFTPLUS, TURN, EXP],
    ],
    "softplus": [
        [SOFTPLUS],
        [EXP, AffineTransform(1.0, 1.0), EXP.inv],
        [ComposeTransform([SOFTPLUS.inv]).inv],
        [TURN, SIGMOID, EXP.inv, TURN],
    ],
    "log": [
        [EXP.inv],
        [ComposeTransform([EXP]).inv],
        [power(0.5), EXP.inv, AffineTransform(0.0, 2.0)],
    ],
    "square": [[power(2.0)], [power(0.5).inv], [EXP.inv, AffineTransform(0.0, 2.0), EXP]],
    "softplus inverse": [[SOFTPLUS.inv], [EXP, AffineTransform(-1.0, 1.0), EXP.inv]],
    "logit": [
        [SIGMOID.inv],
        [AffineTransform(-1.0, 2.0), TANH.inv, AffineTransform(0.0, 2.0)],
        [AffineTransform(0.5, 0.5).inv, TANH.inv, HALF.inv],
        [power(-1.0), AffineTransform(-1.0, 1.0), EXP.inv, TURN],
    ],
    "normal scores": [
        [cdf(standard(Normal)).inv],
        [cdf(Normal(double(0.5), double(2.0))).inv, AffineTransform(0.5, 2.0).inv],
    ],
    "normal cdf": [[cdf(standard(Normal))], [AffineTransform(0.5, 2.0), cdf(Normal(double(0.5), double(2.0)))]],
    "laplace cdf": [[cdf(standard(Laplace))], [HALF, cdf(Laplace(double(0.0), double(0.5)))]],
    "cauchy cdf": [[cdf(standard(Cauchy))], [HALF, cdf(Cauchy(double(0.0), double(0.5)))]],
    "gumbel cdf": [[cdf(standard(Gumbel))], [TURN, EXP, TURN, EXP]],
    "exponential cdf": [[cdf(Exponential(double(1.0)))], [TURN, EXP, AffineTransform(1.0, -1.0)]],
}  # fmt: skip

FAMILIES: dict[str, list[tuple[Distribution, Any]]] = {
    "line": [
        (Normal(double(0.25), double(1.25)), stats.norm(0.25, 1.25)),
        (StudentT(double(4.0), double(0.25), double(0.75)), stats.t(4, 0.25, 0.75)),
        (Gumbel(double(0.25), double(1.5)), stats.gumbel_r(0.25, 1.5)),
    ],
    "positive": [
        (Gamma(double(2.0), double(1.5)), stats.gamma(2, scale=1 / 1.5)),
        (LogNormal(double(0.25), double(0.75)), stats.lognorm(0.75, scale=math.exp(0.25))),
        (Weibull(double(1.0), double(1.5)), stats.weibull_min(1.5)),
    ],
    "unit": [
        (Beta(double(2.0), double(3.0)), stats.beta(2, 3)),
        (standard(Uniform), stats.uniform()),
        (Beta(double(1.5), double(1.25)), stats.beta(1.5, 1.25)),
    ],
}
FROM_TO = {
    **dict.fromkeys(("affine",), ("line", "line")),
    **dict.fromkeys(("exp", "softplus"), ("line", "positive")),
    **dict.fromkeys(("sigmoid", "normal cdf", "laplace cdf", "cauchy cdf", "gumbel cdf"), ("line", "unit")),
    **dict.fromkeys(("log", "softplus inverse"), ("positive", "line")),
    "square": ("positive", "positive"),
    **dict.fromkeys(("logit", "normal scores"), ("unit", "line")),
    "exponential cdf": ("positive", "unit"),
}
PAIRS = ((0, 1, "kl"), (2, 1, "kl"), (1, 0, "reverse_kl"), (2, 0, "hellinger"), (0, 2, "jeffreys"))
ENDS = {"line": (-60.0, 60.0), "positive": (0.0, 200.0), "unit": (0.0, 1.0)}


def true_divergence(p: Any, q: Any, kind: str, ends: tuple[float, float]) -> float:
    """The divergence of two distributions of SciPy, by its quadrature."""

    def integral(first: Any, second: Any) -> float:
        def integrand(x: float) -> float:
            log_p, log_q = first.logpdf(x), second.logpdf(x)
            if kind == "hellinger":
                return math.exp((log_p + log_q) / 2)
            return math.exp(log_p) * (log_p - log_q) if log_p > -700 else 0.0

        points = [x for x in (-5.0, -1.0, 0.1, 0.5, 0.9, 2.0, 5.0) if ends[0] < x < ends[1]]
        return integrate.quad(integrand, *ends, points=points, limit=400, epsabs=1e-13, epsrel=1e-12)[0]

    if kind == "hellinger":
        return 1 - integral(p, q)
    return (kind != "reverse_kl") * integral(p, q) + (kind != "kl") * integral(q, p)


def mapped(d: Distribution, maps: Spelling) -> TransformedDistribution:
    return TransformedDistribution(d, maps, validate_args=False)


@pytest.mark.heavy
def test_the_same_map_of_p_and_q_in_two_spellings_changes_nothing() -> None:
    for name, spellings in MAPS.items():
        side = FROM_TO[name][0]
        for i, (first, second, kind) in enumerate(PAIRS):
            (p, true_p), (q, true_q) = FAMILIES[side][first], FAMILIES[side][second]
            right = true_divergence(true_p, true_q, kind, ENDS[side])
            for k, spelling in enumerate(spellings):
                other = spellings[(k + 1 + i) % len(spellings)]
                value = float(divergence(mapped(p, spelling), mapped(q, other), kind))
                # SciPy's range is finite; the tail of a Student t beyond it holds 1e-7 of the value.
                assert abs(value - right) <= 2e-7 * right + 1e-10, (
                    name,
                    first,
                    second,
                    kind,
                    k,
                    value,
                    right,
                )


@pytest.mark.sweep
def test_a_map_of_one_side_gives_one_answer_in_all_spellings() -> None:
    for name, spellings in MAPS.items():
        before, after = FROM_TO[name]
        for first, second, kind in PAIRS[:4]:
            p, q = FAMILIES[before][first][0], FAMILIES[after][second][0]
            plain = estimate(mapped(p, spellings[0]), q, kind)
            for spelling in spellings[1:]:
                other = estimate(mapped(p, spelling), q, kind)
                message = name, first, second, kind, spelling, float(plain.value), float(other.value)
                if bool(plain.value.isinf()):
                    assert bool(other.value.isinf()), message
                    continue
                allowed = 1e-9 * abs(plain.value) + plain.error + other.error
                assert bool(abs(other.value - plain.value) <= allowed), message


LOGISTIC = mapped(standard(Uniform), [SIGMOID.inv])
ROUND_TRIPS = ([EXP, EXP.inv], [SOFTPLUS, SOFTPLUS.inv], [TANH, TANH.inv], [SIGMOID, SIGMOID.inv])


def t_of(df: float, loc: float, scale: float) -> StudentT:
    return StudentT(double(df), double(loc), double(scale))


# P, Q and KL(P || Q), by mpmath at 40 digits, with the density of the logistic distribution written out.
TRUTHS: dict[str, tuple[Distribution, Distribution, float]] = {
    "student, logistic": (t_of(4, 0, 1), LOGISTIC, 0.0772680746),
    "lognormal, logistic": (LogNormal(double(0.0), double(1.0)), LOGISTIC, 0.8392524600),
    "beta, inverse affine": (
        Beta(double(2.0), double(3.0)),
        mapped(standard(Normal), [AffineTransform(0.0, 1.0).inv, SIGMOID]),
        0.1321125832,
    ),
    **{
        f"student, round trip {i}": (t_of(5, 0, 2), mapped(standard(Normal), maps), 1.9316220136)
        for i, maps in enumerate(ROUND_TRIPS)
    },
}


def test_known_answers_that_were_infinite() -> None:
    for name, (p, q, right) in TRUTHS.items():
        answer = kl_estimate(p, q)
        assert abs(float(answer.value) - right) < 1e-9, (name, answer.value, right)
        assert answer.error is not None
        assert float(answer.error) < 1e-9, name
        assert abs(float(divergence(q, p, "reverse_kl")) - right) < 1e-9, name
    (p, q, right), back = TRUTHS["student, logistic"], float(kl_divergence(LOGISTIC, t_of(4, 0, 1)))
    assert abs(float(divergence(p, q, "jeffreys")) - right - back) < 1e-10
    entropy = float(p.entropy())
    assert abs(float(cross_entropy(p, q)) - right - entropy) < 1e-9
    assert abs(float(kl_divergence(t_of(2, 1, 2), LOGISTIC)) - 0.766561) < 1e-6


def test_numbers_in_a_map_have_the_precision_of_the_distribution() -> None:
    """A Python number such as 0.3 was rounded to float32 also in a map of float64."""
    p, q = Gumbel(double(0.1), double(1.1)), standard(Normal)
    pairs = [mapped(p, [AffineTransform(*x)]) for x in ((0.3, 0.7), (double(0.3), double(0.7)))]
    values = [float(kl_divergence(d, q)) for d in pairs]
    assert abs(values[0] - values[1]) < 1e-13 * values[1]


@pytest.mark.sweep
def test_slow_tails_are_resolved_before_the_map() -> None:
    """Exp, sigmoid and softplus bring the line's ends so close to 0 or 1 that float64 cannot resolve them."""
    slow = t_of(1.3, 0.2, 0.7)
    for maps, back, q in (
        ([EXP], [EXP.inv], HalfCauchy(double(1.0))),
        ([SIGMOID], [SIGMOID.inv], Beta(double(2.0), double(3.0))),
        ([SOFTPLUS], [SOFTPLUS.inv], Gamma(double(2.0), double(1.5))),
        ([cdf(standard(Laplace))], [cdf(standard(Laplace)).inv], Beta(double(0.5), double(0.4))),
    ):
        value, before = kl_divergence(mapped(slow, maps), q), kl_divergence(slow, mapped(q, back))
        assert bool(value.isfinite()), maps
        torch.testing.assert_close(value, before, rtol=1e-9, atol=0)
    # E_P[-log q] is E|X| to first order: SciPy integrates the tails as powers.
    density = stats.t(1.3, 0.2, 0.7)

    def integrand(x: float) -> float:
        return density.pdf(x) * (density.logpdf(x) + 2 * np.logaddexp(0, -x) + x)

    right = sum(
        integrate.quad(integrand, *ends, limit=500)[0] for ends in ((-np.inf, -50), (-50, 50), (50, np.inf))
    )
    assert abs(float(kl_divergence(slow, LOGISTIC)) - right) < 1e-6


@pytest.mark.sweep
def test_gradients_flow_through_inverses_and_distribution_functions() -> None:
    cases: tuple[tuple[Callable[[Tensor], Distribution], Distribution], ...] = (
        (lambda m: mapped(standard(Normal), [AffineTransform(m, 2.0).inv, SIGMOID]), Beta(double(2.0), double(3.0))),
        (lambda m: mapped(standard(Normal), [AffineTransform(m, 2.0).inv, SOFTPLUS]), Gamma(double(2.0), double(1.0))),
        (lambda m: mapped(standard(Uniform), [SIGMOID.inv, AffineTransform(m, 1.0)]), t_of(4, 0, 1)),
        (lambda m: mapped(standard(Uniform), [cdf(Normal(m, double(2.0))).inv]), t_of(4, 0, 1)),
        (lambda m: mapped(standard(Normal), [cdf(Normal(m, double(2.0)))]), Beta(double(2.0), double(3.0))),
    )  # fmt: skip
    step = 1e-4
    for number, (member, other) in enumerate(cases):
        for kind in ("kl", "reverse_kl", "js"):

            def value(m: Tensor, kind: str = kind, member: Any = member, other: Any = other) -> Tensor:
                return divergence(member(m), other, kind)

            m = double(0.4).requires_grad_()
            first = torch.autograd.grad(value(m), m, create_graph=True)[0]
            second = torch.autograd.grad(first, m)[0]
            below, here, above = (float(value(double(0.4 + k * step))) for k in (-1, 0, 1))
            assert abs(float(first.detach()) - (above - below) / (2 * step)) < 1e-7, (number, kind)
            assert abs(float(second) - (above + below - 2 * here) / step**2) < 1e-5, (number, kind)
            of_func = torch.func.grad(value)(double(0.4))
            torch.testing.assert_close(of_func, first.detach(), rtol=1e-10, atol=0)


def test_tails_after_a_map_decide_what_is_infinite() -> None:
    normal, laplace, slow = standard(Normal), standard(Laplace), t_of(4, 0, 1)
    infinite = (
        (mapped(slow, [cdf(normal)]), mapped(normal, [cdf(laplace)])),  # E[X^2] is finite, but not e^|X|
        (slow, mapped(Gamma(double(2.0), double(1.5)), [EXP.inv])),
        (LogNormal(double(0.0), double(1.0)), mapped(standard(Uniform), [SIGMOID])),
        (normal, mapped(Pareto(double(1.0), double(2.0)), [EXP.inv])),
    )
    for number, (p, q) in enumerate(infinite):
        for kind in ("kl", "jeffreys", "chi2"):
            assert float(divergence(p, q, kind)) == math.inf, (number, kind)


@pytest.mark.sweep
def test_wrappers_and_affine_maps_of_normal_vectors() -> None:
    """Renyi's divergence, and every other kind, sees the normal vector inside."""
    root = double([[1.0, 0.0], [0.5, 1.5]])
    mean, shift, factor = double([0.5, -1.0]), double([0.1, 0.2]), double([2.0, -0.5])
    q = MultivariateNormal(double([0.0, 0.0]), 9 * torch.eye(2, dtype=torch.float64))
    image = MultivariateNormal(shift + factor * mean, factor.diag() @ root @ root.mT @ factor.diag())
    covariance = root @ root.mT
    vectors = (
        MultivariateNormal(mean, scale_tril=root),
        MultivariateNormal(mean, covariance),
        MultivariateNormal(mean, precision_matrix=torch.linalg.inv(covariance)),
        LowRankMultivariateNormal(mean, root, double([1e-12, 1e-12])),
    )
    independent = Independent(Normal(mean, double([1.0, 2.0])), 1)
    plain = Independent(Normal(shift + factor * mean, double([2.0, 1.0])), 1)
    spellings: tuple[Spelling, ...] = (
        [AffineTransform(shift, factor)],
        [AffineTransform(shift, factor, event_dim=1)],
        [IndependentTransform(AffineTransform(shift, factor), 1)],
        [AffineTransform(-shift / factor, 1 / factor, event_dim=1).inv],
        [StackTransform([AffineTransform(0.0, 1.0)] * 2, dim=-1), AffineTransform(shift, factor)],
    )
    for kind in ("kl", "reverse_kl", "renyi:0.5", "renyi:2", "hellinger", "jeffreys"):
        right, right_independent = divergence(image, q, kind), divergence(plain, q, kind)
        for number, maps in enumerate(spellings):
            for wrapped in (False, True):
                for vector in vectors:
                    d: Distribution = mapped(vector, maps)
                    d = Independent(d, 0) if wrapped else d
                    torch.testing.assert_close(divergence(d, q, kind), right, rtol=1e-8, atol=0)
                value = divergence(mapped(independent, maps), Independent(q, 0) if wrapped else q, kind)
                torch.testing.assert_close(
                    value, right_independent, rtol=1e-9, atol=0, msg=f"{kind} {number}"
                )


def test_an_independent_without_dimensions_is_its_base() -> None:
    p, q = (MultivariateNormal(double([m, 0.5]), torch.eye(2, dtype=torch.float64)) for m in (1.0, 0.0))
    nothing = Independent(p, 0)
    right = double(0.5)
    for kind in ("kl", "jeffreys"):
        expected = right * (1 if kind == "kl" else 2)
        torch.testing.assert_close(divergence(nothing, q, kind), expected)
        torch.testing.assert_close(divergence(p, Independent(Independent(q, 0), 0), kind), expected)
    torch.testing.assert_close(cross_entropy(nothing, q), p.entropy() + right)
    estimates = [
        kl_estimate(d, q, method="monte_carlo", generator=torch.Generator().manual_seed(0))
        for d in (p, nothing)
    ]
    assert torch.equal(estimates[0].value, estimates[1].value)
    assert float(kl_divergence(Independent(standard(Normal), 0), Independent(standard(Normal), 0))) == 0
    weights = torch.distributions.Categorical(double([0.5, 0.5]))
    both = MultivariateNormal(
        double([[1.0, 0.5], [0.0, 0.5]]), torch.eye(2, dtype=torch.float64).expand(2, 2, 2)
    )
    bounds = [kl_bounds(MixtureSameFamily(weights, d), q) for d in (both, Independent(both, 0))]
    assert torch.equal(torch.stack(bounds[0]), torch.stack(bounds[1]))


def test_equal_distribution_functions_cancel() -> None:
    """The two maps are equal, but different objects, so that each class needs a comparison by value."""
    p, q = Laplace(double(1.3449), double(2.6799)), Normal(double(-2.7373), double(3.3906))
    right = true_divergence(stats.laplace(1.3449, 2.6799), stats.norm(-2.7373, 3.3906), "kl", (-150.0, 150.0))
    families: tuple[Callable[[], Distribution], ...] = (
        lambda: standard(Laplace),
        lambda: standard(Normal),
        lambda: t_of(3, 0, 1),
        lambda: mapped(standard(Uniform), [SIGMOID.inv]),
        lambda: Gumbel(double(0.5), double(2.0)),
    )
    for number, family in enumerate(families):
        for invert in (False, True):
            maps = [[SIGMOID, cdf(family()).inv] if invert else [cdf(family())] for _ in range(2)]
            if number == 2 and invert:
                continue  # torch's Student t has no quantiles
            value = float(kl_divergence(mapped(p, maps[0]), mapped(q, maps[1])))
            assert abs(value - right) < 1e-9, (number, invert, value, right)
    half = HalfNormal(double(2.0))
    uniform = mapped(half, [cdf(HalfNormal(double(2.0)))])
    assert float(kl_divergence(standard(Uniform), uniform)) < 1e-12


def _kl_from_log_or_logit(name: str, low: float, high: float, loc: float, scale: float) -> float:
    """KL(f(U) || N(loc, scale)) with U uniform: -H(U) - E log(dx/dy) + E -log q(f(x)), by mpmath."""
    a, b, s = mpf(low), mpf(high), mpf(scale)
    f = mp.log if name == "log" else lambda x: mp.log(x) - mp.log(1 - x)
    log_slope = (lambda x: -mp.log(x)) if name == "log" else lambda x: -mp.log(x) - mp.log(1 - x)

    def term(x: mpf) -> mpf:
        log_q = -(((f(x) - mpf(loc)) / s) ** 2) / 2 - mp.log(s * mp.sqrt(2 * mp.pi))
        return -mp.log(b - a) - log_slope(x) - log_q

    return float(mp.quad(term, [a, (a + b) / 2, b]) / (b - a))


@pytest.mark.parametrize(
    ("name", "ends"),
    [("log", [(0, 2), (0.1, 2)]), ("logit", [(0, 1), (0.1, 0.9), (0, 0.8), (0.2, 1)])],
)
def test_a_batch_may_mix_elements_with_finite_and_with_infinite_ends(
    name: str, ends: list[tuple[float, float]]
) -> None:
    low, high = torch.tensor(ends, dtype=torch.float64).unbind(-1)
    step = ExpTransform() if name == "log" else SigmoidTransform()
    low.requires_grad_()
    p = TransformedDistribution(Uniform(low, high, validate_args=False), [step.inv])
    q = Normal(torch.tensor(0.2, dtype=torch.float64), 1.5)
    values = kl_divergence(p, q)
    (gradient,) = torch.autograd.grad(values.sum(), low)
    back = divergence(q, p, JensenShannon())
    for i, (a, b) in enumerate(ends):
        truth = _kl_from_log_or_logit(name, a, b, 0.2, 1.5)
        assert values[i].item() == pytest.approx(truth, rel=1e-9), (a, b)
        end = torch.tensor(a, dtype=torch.float64, requires_grad=True)
        alone = TransformedDistribution(Uniform(end, high[i], validate_args=False), [step.inv])
        (slope,) = torch.autograd.grad(kl_divergence(alone, q), end)
        assert gradient[i].item() == pytest.approx(slope.item(), rel=1e-7), (a, b)
        assert back[i].item() == pytest.approx(divergence(q, alone, JensenShannon()).item(), rel=1e-9), (a, b)


def test_the_corner_of_a_distribution_function_is_inside_of_the_stated_error() -> None:
    forward = cdf(Laplace(double(0.0), double(1.0)))  # its density has a corner at 0
    beta = Beta(double(0.01), double(1.0))
    for loc, scale in ((3.0, 1.0), (0.3005, 0.3447), (-0.5405, 0.3848), (1.5947, 0.471)):

        def term(x: mpf, loc: float = loc, scale: float = scale) -> mpf:
            log_p = -(((x - loc) / scale) ** 2) / 2 - mp.log(scale) - mp.log(2 * mp.pi) / 2
            log_y = x - mp.log(2) if x < 0 else mp.log1p(-mp.exp(-x) / 2)
            log_q = mp.log(0.01) + (mpf(0.01) - 1) * log_y - abs(x) - mp.log(2)
            return mp.exp(log_p) * (log_p - log_q)

        steps = (-40, -16, -8, -4, -2, 0, 2, 4, 8, 16, 40)
        with mp.workdps(30):
            truth = mp.quad(term, sorted([mpf(0), *(loc + k * mpf(scale) for k in steps)]))
        normal = Normal(double(loc), double(scale))
        onto_a_line = [forward.inv, AffineTransform(1.0, 2.0)]
        for p, q in (
            (TransformedDistribution(normal, [forward]), beta),
            (TransformedDistribution(normal, [onto_a_line[1]]), TransformedDistribution(beta, onto_a_line)),
        ):
            result = kl_estimate(p, q)
            assert abs(result.value.item() - truth) <= result.error.item() <= 1e-9 * truth


def test_a_finite_end_below_a_distribution_function_is_inside_of_the_stated_error() -> None:
    # Such a density is known only by its log_prob, which is extrapolated next to 1.
    for shape, loc, scale, (a, b) in ((0.5, 3.0, 0.5, (0.7, 1.5)), (2.0, 1.0, 2.0, (0.7, 1.5))):
        with mp.workdps(30):
            constant = mp.log(2 * mpf(scale)) - mp.loggamma(shape) + mp.log(mp.beta(a, b))

            def term(x: mpf, shape: float = shape, loc: float = loc, scale: float = scale) -> mpf:
                z = (x - loc) / mpf(scale)
                logs = z - mp.log(2), mp.log1p(-mp.exp(z) / 2) if z < 0 else 0
                if z >= 0:
                    logs = mp.log1p(-mp.exp(-z) / 2), -z - mp.log(2)
                log_q = (a - 1) * logs[0] + (b - 1) * logs[1] - abs(z)  # noqa: B023
                log_p = (mpf(shape) - 1) * mp.log(x) - x
                return mp.exp(log_p) / mp.gamma(shape) * (log_p - log_q + constant)  # noqa: B023

            truth = mp.quad(
                term, sorted({mpf(0), mpf(loc), *map(mpf, ("1e-8", "1e-3", 0.1, 1, 5, 20, 80, 300))})
            )
        p = TransformedDistribution(
            Gamma(double(shape), double(1.0)), [cdf(Laplace(double(loc), double(scale)))]
        )
        result = kl_estimate(p, Beta(double(a), double(b)))
        assert abs(result.value.item() - truth) <= result.error.item() <= 1e-7 * truth
