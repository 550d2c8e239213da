"""Distributions of users' own classes: with log_prob, support and sample they are integrated like any other."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import mpmath
import pytest
import scipy.stats
import torch
from torch.distributions import (
    AffineTransform,
    Beta,
    Categorical,
    Cauchy,
    Distribution,
    Exponential,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Independent,
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
    constraints,
)

from kullback import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    JensenShannon,
    TotalVariation,
    divergence,
    kl_divergence,
    kl_estimate,
)
from kullback.errors import ArgumentValueError, ConvergenceError, NoRuleError
from tests.refusals import refused


def doubles(*numbers: float) -> list[torch.Tensor]:
    return [torch.tensor(x, dtype=torch.float64) for x in numbers]


class Own(Distribution):
    """A class that kullback knows nothing about, with the density of another."""

    has_rsample = False

    def __init__(self, base: Distribution) -> None:
        self.base = base
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        return self.base.support

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        return self.base.log_prob(value)

    def sample(self, sample_shape: Any = torch.Size()) -> torch.Tensor:  # noqa: B008
        return self.base.sample(sample_shape)


KNOWN = [
    Normal(*doubles(0, 1)),
    Normal(*doubles(100, 1e-3)),
    Cauchy(*doubles(1, 2)),
    StudentT(*doubles(2, 0, 1)),
    Laplace(*doubles(0, 1)),
    Gumbel(*doubles(0, 0.7)),
    Gamma(*doubles(0.5, 1)),
    InverseGamma(*doubles(2, 1)),
    LogNormal(*doubles(0, 1)),
    Beta(*doubles(0.5, 0.5)),
    HalfCauchy(*doubles(1)),
    Pareto(*doubles(1, 0.5)),
    Uniform(*doubles(0, 1)),
]


@pytest.mark.sweep
@pytest.mark.parametrize("p", KNOWN, ids=lambda d: type(d).__name__)
def test_they_have_the_divergence_of_the_same_law_finite_or_not(p: Distribution) -> None:
    for q in KNOWN:
        try:
            expected = float(kl_divergence(p, q))
        except ConvergenceError:
            continue
        assert float(kl_divergence(Own(p), Own(q))) == pytest.approx(expected, rel=1e-6, abs=1e-8), q
        assert float(kl_divergence(Own(p), q)) == pytest.approx(expected, rel=1e-6, abs=1e-8), q


def kl_of_betas(a: float, b: float, c: float, d: float) -> mpmath.mpf:
    with mpmath.workdps(30):
        constant = mpmath.log(mpmath.beta(c, d)) - mpmath.log(mpmath.beta(a, b))
        terms = [(x - y) * (mpmath.psi(0, x) - mpmath.psi(0, mpmath.mpf(a) + b)) for x, y in ((a, c), (b, d))]
        return constant + mpmath.fsum(terms)


def test_extrapolations_next_to_an_end_are_inside_of_the_stated_error() -> None:
    # Next to 1, x is rounded. With a small second parameter, much of the mass is closer to 1 than any number but 1.
    for parameters in (
        (2.0, 0.06, 0.7, 1.5),
        (0.5, 0.3, 3.0, 0.1),
        (0.1, 2.0, 4.0, 0.5),
        (3.0, 0.5, 0.4, 0.9),
    ):
        truth = kl_of_betas(*parameters)
        p, q = Beta(*doubles(*parameters[:2])), Beta(*doubles(*parameters[2:]))
        for x, y in ((Own(p), q), (p, Own(q)), (Own(p), Own(q))):
            result = kl_estimate(x, y)
            assert abs(result.value.item() - truth) <= result.error.item() + 1e-15 * truth, parameters
            assert result.error.item() < 1e-6 * truth, parameters


def test_they_are_integrated_in_batches_and_with_gradients() -> None:
    loc = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    found = kl_estimate(Own(Normal(loc, 1.0)), Laplace(*doubles(0, 1)))
    known = kl_divergence(Normal(loc, 1.0), Laplace(*doubles(0, 1)))
    assert found.method == "quadrature"
    assert torch.allclose(found.value, known, rtol=1e-9)
    ours, theirs = (torch.autograd.grad(value.sum(), loc)[0] for value in (found.value, known))
    assert torch.allclose(ours, theirs, rtol=1e-7, atol=1e-12)


def test_other_kinds_serve_them_too() -> None:
    found = divergence(Own(Normal(*doubles(0, 1))), Own(Normal(*doubles(1, 1))), TotalVariation())
    assert float(found) == pytest.approx(math.erf(1 / math.sqrt(8)), rel=1e-9)


class Half(Own):
    """Has half of its mass where it says that it has all."""

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        return self.base.log_prob(value) - math.log(2)


def test_a_density_that_is_none_is_found_out_by_its_mass() -> None:
    with refused(ArgumentValueError, got=r"a mass of 0\.5"):
        kl_divergence(Half(Normal(*doubles(0, 1))), Normal(*doubles(0, 2)))


def test_what_cannot_be_asked_is_an_error() -> None:
    class Silent(Distribution):
        arg_constraints: Any = {}  # noqa: RUF012
        support = torch.distributions.constraints.real

    with refused(NoRuleError, got="Silent"):
        kl_divergence(Silent(validate_args=False), Normal(*doubles(0, 1)))


class OfMass(Normal):
    """A density that a user forgot to normalize."""

    mass = 1.0

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        return super().log_prob(value) + math.log(self.mass)


class Flat(Own):
    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(value)


@pytest.mark.parametrize("mass", [2.0, 0.5, 1.0002])
@pytest.mark.parametrize("kind", [KL(), JensenShannon(), TotalVariation()])
def test_a_density_that_is_not_of_mass_1_is_refused_with_its_mass(mass: float, kind: Divergence) -> None:
    own, other = OfMass(*doubles(0.3, 1.0)), Normal(*doubles(0.0, 1.2))
    expected = divergence(Normal(*doubles(0.3, 1.0)), other, kind)
    torch.testing.assert_close(divergence(own, other, kind), expected, rtol=1e-6, atol=0)
    own.mass = mass
    for pair, argument in (((own, other), "p"), ((other, own), "q")):
        with pytest.raises(ArgumentValueError, match=rf"{argument}=.*OfMass.log_prob.*a mass of {mass:g}"):
            divergence(*pair, kind)


class Doubled(OfMass):
    mass = 2.0


@pytest.mark.parametrize(
    "where", ["Independent", "MixtureSameFamily", "TransformedDistribution", "two of them"]
)
def test_the_mass_of_a_density_inside_another_is_checked(where: str) -> None:
    def inside(own: Distribution) -> tuple[Distribution, Distribution]:
        wide, affine = Normal(*doubles(0.0, 1.2)), AffineTransform(1.0, 2.0)
        mixture = MixtureSameFamily(Categorical(probs=torch.ones(2).double()), own.expand((2,)))
        return {
            "Independent": (Independent(own.expand((2,)), 1), Independent(wide.expand((2,)), 1)),
            "MixtureSameFamily": (mixture, wide),
            "TransformedDistribution": (TransformedDistribution(own, [affine]), wide),
            "two of them": (TransformedDistribution(mixture, [affine]), wide),
        }[where]

    expected = kl_divergence(*inside(Normal(*doubles(0.3, 1.0))))
    found = kl_divergence(*inside(OfMass(*doubles(0.3, 1.0))))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    p, q = inside(Doubled(*doubles(0.3, 1.0)))
    for pair, argument in (((p, q), "p"), ((q, p), "q")):
        with pytest.raises(ArgumentValueError, match=rf"{argument}=.*Doubled.log_prob.*a mass of 2"):
            kl_divergence(*pair)


class Normalized(Doubled):
    """The first remedy that the refusal names."""

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        return super().log_prob(value) - math.log(2.0)


class Folded(Doubled):
    """Half a Normal's density, on a support that is twice its own."""


class WithItsEnd(Folded):
    """The second remedy."""

    support = torch.distributions.constraints.positive  # pyright: ignore[reportAssignmentType]

    def sample(self, sample_shape: Any = ()) -> torch.Tensor:
        return super().sample(sample_shape).abs()


def test_the_remedies_for_a_mass_that_is_not_1_work() -> None:
    wide = Normal(*doubles(0.0, 1.2))
    expected = kl_divergence(Normal(*doubles(0.3, 1.0)), wide)
    torch.testing.assert_close(
        kl_divergence(Normalized(*doubles(0.3, 1.0)), wide), expected, rtol=1e-6, atol=0
    )
    half = HalfNormal(doubles(1.2)[0])
    with refused(ArgumentValueError, wanted="Folded.log_prob", instead="support with the ends"):
        kl_divergence(Folded(*doubles(0.0, 1.0)), half)
    expected = kl_divergence(HalfNormal(doubles(1.0)[0]), half)
    torch.testing.assert_close(
        kl_divergence(WithItsEnd(*doubles(0.0, 1.0)), half), expected, rtol=1e-6, atol=0
    )


def test_an_improper_density_is_refused() -> None:
    normal = Normal(*doubles(0.0, 1.0))
    for pair in ((Flat(normal), normal), (normal, Flat(normal))):
        with refused(ArgumentValueError, got="an infinite mass"):
            kl_divergence(*pair)


def test_an_own_density_next_to_a_known_one_is_not_infinite_by_a_guess() -> None:
    for kind in (ChiSquared(), Alpha(3.0)):  # both are finite
        with pytest.raises(ConvergenceError):
            divergence(OfMass(*doubles(0.3, 1.0)), Normal(*doubles(0.0, 1.3)), kind)


class Rayleigh(Distribution):
    """A class that computes the logarithm of its parameter in the parameter's dtype."""

    support = constraints.nonnegative
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {"scale": constraints.positive}

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale
        super().__init__(scale.shape, validate_args=False)

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        ratio = value / self.scale
        return ratio.log() - self.scale.log() - ratio**2 / 2

    def sample(self, sample_shape: Any = torch.Size()) -> torch.Tensor:  # noqa: B008
        u = torch.rand(torch.Size(sample_shape) + self.batch_shape, dtype=torch.float64)
        return self.scale * (-2 * u.log()).sqrt()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_parameters_of_every_dtype_are_read_as_doubles(dtype: torch.dtype) -> None:
    scales = torch.tensor([2.0, 2.01, 3.0], dtype=dtype, requires_grad=True)
    q = Rayleigh(torch.tensor(2.0, dtype=dtype))
    value = kl_divergence(Rayleigh(scales), q)
    assert value.dtype == dtype
    log_r = [mpmath.log(mpmath.mpf(x) / 2) for x in scales.tolist()]
    expected = [float(mpmath.expm1(2 * x) - 2 * x) for x in log_r]
    slopes = [float(2 * mpmath.expm1(2 * x) * 2 * mpmath.exp(-x) / 4) for x in log_r]
    value.sum().backward()
    eps = torch.finfo(dtype).eps
    assert value.tolist() == pytest.approx(expected, rel=2e-6 + eps, abs=1e-9)
    assert scales.grad is not None
    assert scales.grad.tolist() == pytest.approx(slopes, rel=2e-6 + eps, abs=1e-6)


class Rounded(Rayleigh):
    """A class whose constant has the digits of float32, whatever its parameters are."""

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        return super().log_prob(value) + (self.scale.log() - self.scale.float().log().double())


def test_a_density_of_few_digits_needs_a_larger_atol_as_the_error_says() -> None:
    p, q = Rounded(*doubles(2.0)), Rounded(*doubles(2.001))
    with refused(ConvergenceError, instead="a larger rtol or atol, or method='monte_carlo'"):
        kl_divergence(p, q)
    assert 0 <= float(kl_divergence(p, q, atol=1e-6)) <= 2e-6
    assert float(kl_divergence(p, p)) == 0  # a distribution and itself need no integral
    assert float(kl_divergence(p, p, method="monte_carlo")) == 0


class InAWiderSupport(Own):
    """Declares the whole line as its support, although its density is 0 outside of the support of its base."""

    support: ClassVar[Any] = constraints.real

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        inside = self.base.support.check(value)
        log_prob = self.base.log_prob(torch.where(inside, value, self.base.mean))
        return torch.where(inside, log_prob, -torch.inf)


def test_a_declared_support_that_is_too_large_is_not_taken_at_its_word() -> None:
    uniform, exponential = InAWiderSupport(Uniform(*doubles(0, 1))), InAWiderSupport(Exponential(*doubles(1)))
    for p, q, truth in (
        (uniform, Beta(*doubles(2, 2)), 2 - math.log(6)),
        (exponential, Exponential(*doubles(2)), 1 - math.log(2)),
        (Exponential(*doubles(2)), exponential, math.log(2) - 0.5),
        (uniform, exponential, 0.5),
    ):
        result = kl_estimate(p, q)
        assert abs(result.value.item() - truth) <= result.error.item() < 1e-9
    beyond = InAWiderSupport(Uniform(*doubles(-0.1, 1)))
    for p, q in (
        (beyond, Beta(*doubles(2, 2))),
        (exponential, uniform),
        (Normal(*doubles(3, 1)), exponential),
    ):
        assert kl_divergence(p, q).item() == math.inf
    low = torch.tensor([0.0, -0.1, 0.2], dtype=torch.float64)
    values = kl_divergence(InAWiderSupport(Uniform(low, 1.0)), Beta(*doubles(1, 1)))
    assert values.tolist() == pytest.approx([0, math.inf, -math.log(0.8)], abs=1e-9)


def test_a_density_that_is_0_at_a_rounded_x_makes_no_divergence_infinite() -> None:
    map_onto = AffineTransform(*doubles(3, 0.35))  # torch declares the whole line as the support
    p, q = (TransformedDistribution(Beta(*doubles(*x)), map_onto) for x in ((0.7, 1.3), (2.44, 1.64)))
    with refused(ConvergenceError, got="the largest error is inf"):
        kl_divergence(p, Own(q))


def test_a_log_prob_that_is_rounded_to_minus_infinity_near_an_end_is_extrapolated() -> None:
    # Below 1e-9, torch computes a density of 0, because x^1.72 is lost beside 1.
    p, q = Beta(*doubles(0.3, 2.0)), Kumaraswamy(*doubles(1.721244518108916, 3.6213988503800727))
    assert q.log_prob(torch.tensor(1e-10, dtype=torch.float64)) == -torch.inf
    a, b, c, d = map(mpmath.mpf, (0.3, 2.0, 1.721244518108916, 3.6213988503800727))

    def term(x: mpmath.mpf) -> mpmath.mpf:
        log_p = (a - 1) * mpmath.log(x) + (b - 1) * mpmath.log1p(-x) - mpmath.log(mpmath.beta(a, b))
        log_q = mpmath.log(c * d) + (c - 1) * mpmath.log(x) + (d - 1) * mpmath.log1p(-(x**c))
        return mpmath.exp(log_p) * (log_p - log_q)

    with mpmath.workdps(30):
        truth = mpmath.quad(term, [0, 1e-40, 1e-20, 1e-8, 1e-3, 0.1, 0.5, 0.9, 1])
    result = kl_estimate(p, Own(q))
    assert abs(result.value.item() - truth) <= result.error.item() < 1e-6


def test_a_density_whose_logarithm_is_quadratic_next_to_an_end_is_extrapolated_so() -> None:
    # SciPy's Johnson SB distribution is a normal distribution of log(x / (1 - x)).
    p, (a, b) = scipy.stats.johnsonsb(0.986, 0.454), (0.65, 0.21)
    c, d = map(mpmath.mpf, p.args)

    def term(t: mpmath.mpf) -> mpmath.mpf:
        log_x, log_y = -mpmath.log1p(mpmath.exp(-t)), -mpmath.log1p(mpmath.exp(t))
        log_p = mpmath.log(d) - (c + d * t) ** 2 / 2 - mpmath.log(2 * mpmath.pi) / 2
        log_q = a * log_x + b * log_y - mpmath.log(mpmath.beta(a, b))
        return mpmath.exp(log_p) * (log_p - log_q)

    with mpmath.workdps(30):
        truth = mpmath.quad(term, [-80, -40, -20, -10, -5, -2, 0, 2, 5, 10, 20, 40, 80])
    result = kl_estimate(p, Beta(*doubles(a, b)))
    assert abs(result.value.item() - truth) <= result.error.item() < 1e-8
