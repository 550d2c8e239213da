"""Maps that lose digits: the estimate is right although draws after the map round to an end, or it is refused."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, stats
from scipy.special import log_ndtr
from torch import Tensor
from torch.distributions import (
    Beta,
    Categorical,
    Dirichlet,
    Distribution,
    Gamma,
    HalfCauchy,
    Independent,
    LogisticNormal,
    LogNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
    Uniform,
    constraints,
)
from torch.distributions.transforms import (
    AffineTransform,
    CumulativeDistributionTransform,
    ExpTransform,
    SigmoidTransform,
    SoftplusTransform,
    TanhTransform,
    Transform,
)

from kullback import Estimate, kl_divergence, kl_estimate
from kullback.errors import NoRuleError

TANH, SIGMOID, EXP, SOFTPLUS = TanhTransform(), SigmoidTransform(), ExpTransform(), SoftplusTransform()
CDF = CumulativeDistributionTransform(Normal(0.0, 1.0))


def mapped(base: Distribution, *steps: Transform) -> TransformedDistribution:
    return TransformedDistribution(base, list(steps))


def mixture(centers: list[float], scale: float, *steps: Transform) -> MixtureSameFamily:
    return MixtureSameFamily(
        Categorical(torch.ones(len(centers))), mapped(Normal(torch.tensor(centers), scale), *steps)
    )


def of_normals(a: float, b: float) -> float:
    """KL(N(0, a) || N(0, b)), scales a and b; a bijective map of both does not change it."""
    return (a / b) ** 2 / 2 - 0.5 - math.log(a / b)


def sigmoid_against(log_q: object, scale: float, center: float = 0.0) -> float:
    """KL of the sigmoid of a Normal against a density on (0, 1), from log y and log(1 - y), by mpmath."""

    def term(u: mpmath.mpf) -> mpmath.mpf:
        log_p = -(((u - center) / scale) ** 2) / 2 - mpmath.log(scale * mpmath.sqrt(2 * mpmath.pi))
        log_y, log_rest = -mpmath.log1p(mpmath.exp(-u)), -mpmath.log1p(mpmath.exp(u))
        return mpmath.exp(log_p) * (log_p - log_y - log_rest - log_q(log_y, log_rest))  # type: ignore[operator]

    ends = [center + k * scale for k in range(-12, 13, 2)]
    return float(mpmath.quad(term, sorted({*ends, 0.0})))


def wide(*scales: float) -> MultivariateNormal:
    return MultivariateNormal(torch.zeros(len(scales)), torch.diag(torch.tensor(scales)) ** 2)


def draw(p: Distribution, q: Distribution, draws: int = 10_000) -> Estimate:
    return kl_estimate(p, q, method="monte_carlo", draws=draws, generator=torch.Generator().manual_seed(0))


def beta(a: int, b: int) -> object:
    return lambda x, y: (a - 1) * x + (b - 1) * y - mpmath.log(mpmath.beta(a, b))


THREE = torch.zeros(3)


def cases() -> dict[str, tuple[Distribution, Distribution, float]]:
    return {
        "tanh": (mapped(Normal(0.0, 6.0), TANH), mapped(Normal(0.0, 3.0), TanhTransform()), of_normals(6, 3)),
        "tanh in float64": (
            mapped(Normal(torch.tensor(0.0).double(), 60.0), TANH),
            mapped(Normal(torch.tensor(0.0).double(), 30.0), TANH),
            of_normals(2, 1),
        ),
        "sigmoid against a flat density": (
            mapped(Normal(0.0, 20.0), SIGMOID),
            Beta(1.0, 1.0),
            sigmoid_against(beta(1, 1), 20),
        ),
        "sigmoid against Beta": (mapped(Normal(0.0, 20.0), SIGMOID), Beta(2.0, 3.0), sigmoid_against(beta(2, 3), 20)),
        "tanh against Uniform": (
            mapped(Normal(0.0, 6.0), TANH),
            Uniform(-1.0, 1.0),
            sigmoid_against(beta(1, 1), 12),
        ),
        "tanh, then a shift": (
            mapped(Normal(0.0, 6.0), TANH, AffineTransform(1.0, 3.0)),
            Uniform(-2.0, 4.0),
            sigmoid_against(beta(1, 1), 12),
        ),
        "overflow": (LogNormal(0.0, 100.0), LogNormal(0.0, 50.0), of_normals(2, 1)),
        "overflow of a heavy tail": (
            LogNormal(0.0, 60.0),
            HalfCauchy(1.0),
            sigmoid_against(
                lambda x, y: mpmath.log(2 / mpmath.pi) - 2 * y - mpmath.log(1 + mpmath.exp(2 * (x - y))), 60
            ),
        ),
        "two maps": (mapped(Normal(0.0, 3.0), EXP, EXP), mapped(Normal(0.0, 2.0), EXP, EXP), of_normals(3, 2)),
        "softplus": (
            mapped(Normal(-100.0, 30.0), SOFTPLUS),
            mapped(Normal(-100.0, 20.0), SOFTPLUS),
            of_normals(30, 20),
        ),
        "one distribution function": (mapped(Normal(0.0, 30.0), CDF), mapped(Normal(0.0, 15.0), CDF), of_normals(2, 1)),
        "Independent": (
            Independent(mapped(Normal(THREE, 6.0), TANH), 1),
            Independent(mapped(Normal(THREE, 3.0), TANH), 1),
            3 * of_normals(2, 1),
        ),
        "a map of vectors against numbers": (
            mapped(wide(20.0, 20.0), SIGMOID),
            Independent(Beta(torch.ones(2), torch.ones(2)), 1),
            2 * sigmoid_against(beta(1, 1), 20),
        ),
        "a map of vectors": (mapped(wide(6.0, 60.0), TANH), mapped(wide(3.0, 30.0), TANH), 2 * of_normals(2, 1)),
        "the simplex": (
            LogisticNormal(torch.zeros(2), 30 * torch.ones(2)),
            LogisticNormal(torch.zeros(2), 20 * torch.ones(2)),
            2 * of_normals(30, 20),
        ),
        "a map that is undone in Q": (
            Normal(0.0, 20.0),
            mapped(Beta(2.0, 3.0), SIGMOID.inv),
            sigmoid_against(beta(2, 3), 20),
        ),
    }  # fmt: skip


@pytest.mark.sweep
def test_saturating_maps_give_the_divergence() -> None:
    for name, (p, q, true) in cases().items():
        found = draw(p, q)
        assert found.standard_error is not None
        error = abs(float(found.value) - true)
        assert error <= 5 * float(found.standard_error) + 1e-5 * true, (name, found, true)
        assert float(found.standard_error) < 0.02 * (1 + true), (name, found)


def test_mixtures_of_saturated_components_give_the_divergence() -> None:
    """The two parts of P hardly overlap, so KL is nearly the mean of theirs, less the entropy of the weights."""
    part = [sigmoid_against(beta(1, 1), 2, center) for center in (-40.0, 40.0)]
    true = sum(part) / 2 - math.log(2)
    p = mixture([-40.0, 40.0], 2.0, SIGMOID)
    for q in (Beta(1.0, 1.0), Uniform(0.0, 1.0)):
        found = draw(p, q)
        assert abs(float(found.value) - true) <= 5 * float(found.standard_error), found  # type: ignore[arg-type]
    both = draw(p, mixture([-41.0, 39.0], 2.0, SIGMOID))  # both components moved by half a scale
    assert abs(float(both.value) - 0.125) <= 5 * float(both.standard_error)  # type: ignore[arg-type]


def test_gradients_through_saturated_draws_are_those_before_the_map() -> None:
    scale = torch.tensor(6.0, requires_grad=True)
    p, q = mapped(Normal(0.0, scale), TANH), mapped(Normal(0.0, 3.0), TANH)
    value = kl_divergence(p, q, method="monte_carlo", generator=torch.Generator().manual_seed(0))
    (slope,) = torch.autograd.grad(value, scale)
    assert float(slope) == pytest.approx(6 / 9 - 1 / 6, rel=0.02)
    location = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    p = mapped(Normal(location, 20.0), SIGMOID)
    value = kl_divergence(p, Beta(2.0, 3.0), method="monte_carlo", generator=torch.Generator().manual_seed(0))
    (slope,) = torch.autograd.grad(value, location)
    change = sigmoid_against(beta(2, 3), 20, 0.5) - sigmoid_against(beta(2, 3), 20, -0.5)
    assert float(slope) == pytest.approx(change, rel=0.02)


class Clamped(Transform):
    """A tanh that stops before 1, as policies use it. It is not one-to-one, although it says so."""

    domain, codomain, bijective, sign = constraints.real, constraints.interval(-1, 1), True, 1

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh().clamp(-0.99, 0.99)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return TANH.log_abs_det_jacobian(x, y)


REFUSED: dict[str, tuple[Distribution, Distribution]] = {
    "draws that torch clamps": (Gamma(0.01, 1.0), Gamma(0.02, 1.0)),
    "draws near both ends": (Beta(0.01, 0.01), Beta(0.02, 0.02)),
    "a simplex of corners": (Dirichlet(torch.full((3,), 0.01)), Dirichlet(torch.full((3,), 0.02))),
    "a clamp": (mapped(Normal(0.0, 6.0), Clamped()), Uniform(-1.0, 1.0)),
}


def test_lost_digits_that_matter_are_refused() -> None:
    for name, (p, q) in REFUSED.items():
        with pytest.raises(NoRuleError) as caught:
            draw(p, q)
        text = str(caught.value)
        assert "keep their digits" in text or "one-to-one" in text or "numbers at the draws" in text, (
            name,
            text,
        )


def test_distribution_functions_and_large_squares_keep_their_digits() -> None:
    """Their densities are logarithms of the distances from the ends, so that no draw is too far out."""
    normal, wide = stats.norm(0, 30), stats.norm(0, 300)
    of_cdf = integrate.quad(
        lambda y: (
            normal.pdf(y)
            * (normal.logpdf(y) - stats.norm.logpdf(y) - math.log(6) - log_ndtr(y) - log_ndtr(-y))
        ),
        -400,
        400,
        limit=200,
    )[0]
    of_squares = integrate.quad(
        lambda t: wide.pdf(t) * (wide.logpdf(t) - t - math.log(2 / math.pi) + np.logaddexp(0, 2 * t)),
        -4000,
        4000,
        limit=200,
    )[0]
    cases: tuple[tuple[Distribution, Distribution, float], ...] = (
        (mapped(Normal(0.0, 30.0), CDF), Beta(2.0, 2.0), of_cdf),
        (Normal(0.0, 30.0), mapped(Beta(2.0, 2.0), CDF.inv), of_cdf),
        (LogNormal(0.0, 300.0), HalfCauchy(1.0), of_squares),
    )
    for number, (p, q, right) in enumerate(cases):
        answer = draw(p, q)
        assert abs(float(answer.value) - right) <= 5 * float(answer.standard_error) + 1e-5 * right, number  # type: ignore[arg-type]
        assert float(kl_divergence(p, q)) == pytest.approx(right, rel=1e-6), number


def test_the_remedies_of_lost_digits_work() -> None:
    assert float(kl_divergence(Gamma(0.01, 1.0), Gamma(0.02, 1.0), method="auto")) > 0
    before = draw(Normal(0.0, 30.0), Normal(0.0, 15.0))
    assert float(before.value) == pytest.approx(of_normals(2, 1), rel=0.02)
    p, q = (Beta(*torch.full((2, 1), x, dtype=torch.float64)) for x in (0.3, 0.4))
    assert float(draw(p, q).value) == pytest.approx(float(kl_divergence(p, q)), rel=0.1)


def test_a_tail_that_is_too_heavy_for_q_is_infinite_also_from_draws() -> None:
    p = Independent(HalfCauchy(torch.ones(2)), 1)
    assert draw(p, Independent(Gamma(torch.ones(2), torch.ones(2)), 1)).value == torch.inf
