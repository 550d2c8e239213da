"""Second derivatives of divergences of distributions: by every route, against the oracle of the sweep and formulas."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian as double_backward
from torch.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    Cauchy,
    Distribution,
    Gamma,
    Geometric,
    Gumbel,
    HalfNormal,
    InverseGamma,
    Kumaraswamy,
    Laplace,
    LogNormal,
    MixtureSameFamily,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
    TransformedDistribution,
    Uniform,
    VonMises,
    Weibull,
)
from torch.distributions.transforms import ExpTransform
from torch.func import hessian, jacfwd, jacrev

from kullback import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    Jeffreys,
    JensenShannon,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
    divergence,
)

Function = Callable[[Tensor], Tensor]
ROUTES: dict[str, Callable[[Function], Any]] = {
    "double backward": lambda f: lambda x: double_backward(f, x),
    "func.hessian": hessian,
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(f)),
    "jacrev of jacrev": lambda f: jacrev(jacrev(f)),
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(f)),
}
SMOOTH: list[Divergence] = [
    KL(),
    ReverseKL(),
    Jeffreys(),
    JensenShannon(),
    SkewKL(0.3),
    Renyi(0.5),
    SquaredHellinger(),
    Alpha(0.3),
    ChiSquared(),
]
KINDS = [*SMOOTH, TotalVariation()]


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def mixture(family: Any, first: Tensor, second: Tensor) -> MixtureSameFamily:
    return MixtureSameFamily(Categorical(tensor(0.4, 0.6)), family(first, second))


# P and Q from all their parameters, and these.
PAIRS: dict[str, tuple[Callable[[Tensor], tuple[Distribution, Distribution]], Tensor]] = {
    "Normal": (lambda x: (Normal(x[0], x[1]), Normal(x[2], x[3])), tensor(0.5, 1.0, 0.0, 1.1)),
    "a corner of P": (
        lambda x: (Laplace(x[0], x[1]), StudentT(x[2], x[3], x[4])),
        tensor(0.5, 1.1, 5, 0.1, 1.3),
    ),
    "a corner of Q": (lambda x: (Gamma(x[0], x[1]), Laplace(x[2], x[3])), tensor(2.0, 1.2, 0.7, 1.4)),
    "corners of a mixture": (
        lambda x: (mixture(Laplace, x[:2], x[2:4]), mixture(Laplace, x[4:6], x[6:])),
        tensor(0.1, 1.7, 0.6, 0.9, 0.4, -1.0, 1.2, 2.0),
    ),
    "jumps inside": (
        lambda x: (mixture(Uniform, x[:2], x[2:4]), Normal(x[4], x[5])),
        tensor(-0.3, 0.4, 1.0, 1.7, 0.3, 2.0),
    ),
    "ends": (lambda x: (Uniform(x[0], x[1]), Normal(x[2], x[3])), tensor(0.1, 2.0, 0.3, 1.2)),
    "far ends": (lambda x: (Beta(x[0], x[1]), Kumaraswamy(x[2], x[3])), tensor(1.6, 2.6, 1.5, 2.2)),
    "integers": (lambda x: (Poisson(x[0]), Poisson(x[1])), tensor(3.0, 2.0)),
    "total counts": (
        lambda x: (NegativeBinomial(x[0], probs=x[1]), NegativeBinomial(x[2], probs=x[3])),
        tensor(3.0, 0.4, 2.2, 0.5),
    ),
    "classes": (
        lambda x: (Categorical(logits=x[:3]), Categorical(logits=x[3:])),
        tensor(0.4, 0.3, 1, 1, 0.3, 0),
    ),
}
# Whose Q lives where P does not.
WIDER_Q = ("jumps inside", "ends", "a corner of Q")


def value_of(name: str, kind: Divergence) -> Function:
    make = PAIRS[name][0]
    return lambda x: divergence(*make(x), kind)


def gradient(f: Function, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x), x)[0]


def differences(f: Function, x: Tensor, step: float = 1e-5) -> Tensor:
    """Central differences of first gradients, which are tested against mpmath elsewhere."""
    steps = step * torch.eye(len(x), dtype=x.dtype)
    return torch.stack([(gradient(f, x + h) - gradient(f, x - h)) / (2 * step) for h in steps])


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", PAIRS)
def test_every_route_gives_the_derivative_of_the_gradient(name: str, kind: Divergence) -> None:
    f, x = value_of(name, kind), PAIRS[name][1]
    if isinstance(kind, ReverseKL | Jeffreys) and name in WIDER_Q:
        assert f(x).isinf()
        return
    expected = differences(f, x)
    seed = sum(map(ord, name + kind.name))
    others = random.Random(seed).sample(sorted(ROUTES.keys() - {"double backward"}), 1)  # noqa: S311
    routes = ROUTES if name == "classes" else ("double backward", *others)
    for route in routes:
        torch.testing.assert_close(
            ROUTES[route](f)(x), expected, rtol=2e-5, atol=2e-6 * float(expected.abs().max())
        )


@pytest.mark.sweep
@pytest.mark.parametrize("route", ROUTES)
def test_every_route_of_one_pair(route: str) -> None:
    f, x = value_of("a corner of P", JensenShannon()), PAIRS["a corner of P"][1]
    torch.testing.assert_close(ROUTES[route](f)(x), differences(f, x), rtol=1e-5, atol=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "kind", [KL(), JensenShannon(), TotalVariation(), ChiSquared()], ids=lambda kind: kind.name
)
@pytest.mark.parametrize("name", ["a corner of P", "jumps inside"])
def test_first_derivatives_agree_with_differences_of_values_in_both_modes(
    name: str, kind: Divergence
) -> None:
    f, x = value_of(name, kind), PAIRS[name][1]
    step = 1e-4 * torch.eye(len(x), dtype=x.dtype)
    expected = torch.stack([(f(x + h) - f(x - h)) / 2e-4 for h in step])
    for found in (gradient(f, x), jacfwd(f)(x), jacrev(f)(x)):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def wide_and_narrow(x: Tensor, scale: float, narrow: tuple[float, float]) -> Distribution:
    """Return a mixture of a wide component, which x moves by its scale, and a narrow one at a fixed place."""
    loc, narrow_scale = (tensor(number)[0] for number in narrow)
    return mixture(
        Normal, torch.stack([5 + scale * x[0], loc]), torch.stack([scale * torch.exp(x[1]), narrow_scale])
    )


# P and Q, where moving the wide parts moves them across others that are far narrower.
BESIDE_NARROW: dict[str, Callable[[Tensor], tuple[Distribution, Distribution]]] = {
    "components of Q": lambda x: (
        wide_and_narrow(0 * x, 850.0, (0.2, 1e-3)),
        wide_and_narrow(x, 129.0, (2.0, 3e-6)),
    ),
    "components of both": lambda x: (
        wide_and_narrow(x, 129.0, (2.0, 3e-6)),
        wide_and_narrow(x / 2, 100.0, (2.000005, 4e-6)),
    ),
    "Q": lambda x: (Normal(0.3 + x[0], torch.exp(x[1])), StudentT(3.0, tensor(0.1)[0], tensor(1e-5)[0])),
}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("components of Q", JensenShannon()),
        ("components of both", KL()),
        ("components of both", Renyi(0.5)),
        ("Q", KL()),
    ],
    ids=str,
)
def test_a_wide_density_beside_a_far_narrower_one(name: str, kind: Divergence) -> None:
    def f(x: Tensor) -> Tensor:
        return divergence(*BESIDE_NARROW[name](x), kind)

    x = torch.zeros(2, dtype=torch.float64)
    expected = differences(f, x, step=1e-4)
    torch.testing.assert_close(
        double_backward(f, x), expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max())
    )


@pytest.mark.parametrize("kind", [KL(), JensenShannon()], ids=lambda kind: kind.name)
def test_corners_of_maps_of_variables(kind: Divergence) -> None:
    """The place of such a corner is rounded in another way than the edges of the panels at it."""

    def f(loc: Tensor) -> Tensor:
        return divergence(TransformedDistribution(Laplace(loc, 0.14), ExpTransform()), Gamma(3.5, 9.1), kind)

    loc = torch.linspace(-0.9, 0.9, 7, dtype=torch.float64)
    found = torch.stack([torch.as_tensor(double_backward(f, x)) for x in loc])
    step = 1e-5
    expected = (gradient(lambda x: f(x).sum(), loc + step) - gradient(lambda x: f(x).sum(), loc - step)) / (
        2 * step
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_against_mpmath() -> None:
    with mpmath.workdps(30):
        m = mpmath.mpf("0.5")

        def density(x: Any) -> Any:
            z = (x - mpmath.mpf("0.1")) / mpmath.mpf("1.3")
            size = mpmath.gamma(3) / mpmath.gamma(2.5) / mpmath.sqrt(5 * mpmath.pi) / mpmath.mpf("1.3")
            return size * (1 + z**2 / 5) ** -3

        def of_q(loc: Any) -> Any:
            """E_P[-log q]; the rest of KL changes with no location."""
            b = mpmath.mpf("1.1")
            edges = [-mpmath.inf, loc - 4, loc, loc + 4, mpmath.inf]
            return mpmath.quad(
                lambda x: -mpmath.exp(-abs(x - loc) / b) / (2 * b) * mpmath.log(density(x)), edges
            )

        h = mpmath.mpf("1e-4")
        true = float((of_q(m + h) - 2 * of_q(m) + of_q(m - h)) / h**2)
    assert true == pytest.approx(0.4626, abs=1e-4)
    q = StudentT(tensor(5.0)[0], tensor(0.1)[0], tensor(1.3)[0])
    for route in ROUTES.values():
        found = route(lambda x: divergence(Laplace(x, 1.1), q, KL()))(tensor(0.5)[0])
        assert found.item() == pytest.approx(true, rel=1e-7)


def fisher_information(family: Any, x: Tensor) -> float:
    """By the first parameter, from formulas."""
    digamma_1 = float(torch.polygamma(1, x[0]))
    if family is Laplace:
        return float(1 / x[1] ** 2)
    if family is NegativeBinomial:
        n = torch.arange(400, dtype=torch.float64)
        mass = torch.exp(NegativeBinomial(x[0], probs=x[1]).log_prob(n))
        return digamma_1 - float((mass * torch.polygamma(1, x[0] + n)).sum())
    if family is Gamma:
        return digamma_1
    formulas: dict[Any, Tensor] = {Normal: 1 / x[1] ** 2, Cauchy: 1 / (2 * x[1] ** 2), Gumbel: 1 / x[1] ** 2}
    return formulas[family].item()


@pytest.mark.parametrize("kind", [*SMOOTH], ids=lambda kind: kind.name)
@pytest.mark.parametrize("family", [Laplace, NegativeBinomial, Gamma, Normal, Cauchy, Gumbel])
def test_curvature_at_equality_is_fisher_information(family: Any, kind: Divergence) -> None:
    x = tensor(2.3, 0.4)
    factors: dict[Any, float] = {
        Jeffreys: 2,
        JensenShannon: 0.25,
        SkewKL: 0.49,
        Renyi: 0.5,
        SquaredHellinger: 0.25,
        ChiSquared: 2,
    }
    expected = factors.get(type(kind), 1.0) * fisher_information(family, x)
    make = (lambda a, b: NegativeBinomial(a, probs=b)) if family is NegativeBinomial else family
    for side in (0, 1):

        def f(a: Tensor, side: int = side) -> Tensor:
            pair = make(a, x[1]), make(x[0], x[1])
            return divergence(pair[side], pair[1 - side], kind)

        for route in ("double backward", "func.hessian"):
            assert ROUTES[route](f)(x[0]).item() == pytest.approx(expected, rel=1e-6), (route, side)


def test_the_gradient_by_a_total_count_is_that_of_different_counts() -> None:
    def f(x: Tensor) -> Tensor:
        return divergence(
            NegativeBinomial(x, probs=tensor(0.4)[0]), NegativeBinomial(3.0, probs=tensor(0.6)[0]), KL()
        )

    x = tensor(3.0)[0]
    assert gradient(f, x).item() == pytest.approx(((f(x + 1e-4) - f(x - 1e-4)) / 2e-4).item(), rel=1e-6)


FAMILIES: list[tuple[Callable[[Tensor], Distribution], tuple[float, float], tuple[float, float]]] = [
    (lambda x: Normal(x[0], x[1]), (-1, 1), (0.6, 2)),
    (lambda x: Laplace(x[0], x[1]), (-1, 1), (0.6, 1.2)),
    (lambda x: Gumbel(x[0], x[1]), (-1, 1), (0.8, 0.9)),
    (lambda x: StudentT(6.0, x[0], x[1]), (-1, 1), (0.8, 2)),
    (lambda x: Gamma(x[0], x[1]), (1.5, 3), (1.2, 2)),
    (lambda x: LogNormal(x[0], x[1]), (-0.5, 0.5), (0.3, 0.6)),
    (lambda x: InverseGamma(x[0], x[1]), (4.5, 7), (1, 2)),
    (lambda x: Weibull(x[0], x[1]), (0.7, 2), (1.5, 2.5)),
    (lambda x: HalfNormal(x[0] * x[1]), (0.7, 1), (0.7, 1)),
    (lambda x: Beta(x[0], x[1]), (1.5, 3), (1.5, 3)),
    (lambda x: Kumaraswamy(x[0], x[1]), (1.5, 3), (1.5, 3)),
    (lambda x: NegativeBinomial(x[0], probs=x[1]), (1.5, 3), (0.3, 0.6)),
    (lambda x: Poisson(x[0] * x[1]), (1.5, 3), (0.6, 1)),
    (lambda x: Geometric(x[0] * x[1]), (0.5, 0.9), (0.6, 0.9)),
    (lambda x: Bernoulli(x[0] * x[1]), (0.5, 0.9), (0.6, 0.9)),
]


@pytest.mark.parametrize("seed", range(24))
def test_scan_of_families_and_kinds(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    (make_p, *ranges_p) = rng.choice(FAMILIES)
    others = [row for row in FAMILIES if row[0](tensor(0.8, 0.9)).support is make_p(tensor(0.8, 0.9)).support]
    (make_q, *ranges_q) = rng.choice(others)
    x = tensor(*(rng.uniform(*each) for each in (*ranges_p, *ranges_q)))
    for kind in rng.sample(KINDS, 3):

        def f(x: Tensor, kind: Divergence = kind) -> Tensor:
            return divergence(make_p(x[:2]), make_q(x[2:]), kind)

        if not math.isfinite(f(x)):
            continue
        expected = differences(f, x)
        scale = float(expected.abs().max())
        for route in ("double backward", rng.choice(sorted(ROUTES))):
            torch.testing.assert_close(ROUTES[route](f)(x), expected, rtol=1e-4, atol=1e-5 * scale + 1e-7)


INFINITE_PAIRS = [
    (lambda m: Cauchy(0.0, 1.0), lambda m: Normal(m, 1.0), "kl"),
    (lambda m: Cauchy(0.0, 1.0), lambda m: Normal(m, 1.0), "renyi:2"),
    (lambda m: Normal(m, 1.0), HalfNormal, "chi2"),
    (lambda m: StudentT(2.0, m), lambda m: Normal(0.0, 1.0), "kl"),
    (lambda m: Uniform(m - 1, m), lambda m: Uniform(m, m + 1), "reverse_kl"),
    (lambda m: Beta(0.1, 0.1), lambda m: Beta(9 * m, m), "alpha:2"),
    (Poisson, Bernoulli, "chi2"),
]


@pytest.mark.parametrize("pair", INFINITE_PAIRS)
def test_an_infinite_value_has_derivatives_of_zero(
    pair: tuple[Callable[[Tensor], Distribution], Callable[[Tensor], Distribution], str],
) -> None:
    m = torch.tensor(0.3, requires_grad=True)
    derivative = divergence(pair[0](m), pair[1](m), pair[2])
    assert derivative.isinf()
    for _ in range(3):
        (derivative,) = torch.autograd.grad(derivative, m, create_graph=True)
        assert derivative.item() == 0


def js_of_laplace_and_uniform(x: Any, middle: Any) -> Any:
    """Return JS(Laplace(x, 1), Uniform(middle - 1, middle + 1)) with mpmath."""
    low, high = middle - 1, middle + 1

    def terms(t: Any) -> Any:
        p, q = mpmath.exp(-abs(t - x)) / 2, mpmath.mpf(1) / 2
        m = (p + q) / 2
        return (p * mpmath.log(p / m) + q * mpmath.log(q / m)) / 2

    outside = mpmath.log(2) / 2 * (mpmath.exp(low - x) + mpmath.exp(x - high)) / 2
    return mpmath.quad(terms, [low, x, high]) + outside


@pytest.mark.sweep
@pytest.mark.parametrize("distance", [0.0, 1e-12, 1e-10, 3e-10, 1e-8, 1e-5, 1e-4])
def test_a_corner_next_to_a_center(distance: float) -> None:
    """A corner that is almost at an edge of panels: differences over the distance between them would be rounding."""
    x, middle = torch.tensor(0.7, dtype=torch.float64), 0.7 + distance
    with mpmath.workdps(30):
        expected = mpmath.diff(lambda x: js_of_laplace_and_uniform(x, mpmath.mpf(middle)), 0.7, 2)

    def f(x: Tensor) -> Tensor:
        low, high = tensor(middle - 1, middle + 1)
        return divergence(Laplace(x, 1.0), Uniform(low, high), JensenShannon())

    for route in ("double backward", "func.hessian"):
        assert ROUTES[route](f)(x).item() == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.sweep
@pytest.mark.parametrize("x", [-0.4, 0.7])
def test_marks_that_are_one_place_after_rounding(x: float) -> None:
    """Both centers and the corner are one place: their distances, which are rounding, are no scale for the panels."""

    def js(x: Any, center: Any) -> Any:
        normalizer = 2 * mpmath.pi * mpmath.besseli(0, 2)

        def terms(t: Any) -> Any:
            p, q = mpmath.exp(-abs(t - x) / 2) / 4, mpmath.exp(2 * mpmath.cos(t - center)) / normalizer
            m = (p + q) / 2
            return (p * mpmath.log(p / m) + q * mpmath.log(q / m)) / 2

        inside = mpmath.quad(terms, [-mpmath.pi, x - 1, x, x + 1, mpmath.pi])
        outside = (mpmath.exp((-mpmath.pi - x) / 2) + mpmath.exp((x - mpmath.pi) / 2)) / 2
        return inside + mpmath.log(2) / 2 * outside

    with mpmath.workdps(30):
        expected = mpmath.diff(lambda at: js(at, mpmath.mpf(x)), x, 2)
    place = torch.tensor(x, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return divergence(Laplace(x, 2.0), VonMises(place, tensor(2.0)[0]), JensenShannon())

    for route in ("double backward", "func.hessian"):
        assert ROUTES[route](f)(place).item() == pytest.approx(float(expected), rel=1e-9)
