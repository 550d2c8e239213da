"""Supports with gaps, supports that a subclass narrows, extra zeros, and shapes that are plain tuples."""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar

import pytest
import torch
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Beta,
    Categorical,
    Distribution,
    ExpTransform,
    Gamma,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Poisson,
    SigmoidTransform,
    TransformedDistribution,
    Uniform,
    constraints,
)

from kullback import Samples, cross_entropy, divergence, fit, kl_bounds, kl_divergence, kl_estimate
from kullback.errors import NoRuleError
from kullback.nn import KLRegularizer

with warnings.catch_warnings():  # its own imports use what torch and Python call out of date
    warnings.simplefilter("ignore")
    import pyro.distributions as pyro_distributions


def double(x: object) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def uniform(low: float, high: float) -> Uniform:
    return Uniform(double(low), double(high))


def uniforms(weights: list[float], low: list[float], high: list[float]) -> MixtureSameFamily:
    return MixtureSameFamily(Categorical(double(weights)), Uniform(double(low), double(high)))


GAP = uniforms([0.3, 0.7], [0.0, 2.0], [1.0, 3.0])
FAR_KINDS = ("kl", "chi2", "renyi:2", "jeffreys", "alpha:1.5")
NEAR_KINDS = ("js", "hellinger", "tv", "renyi:0.5", "skew:0.3")


def mapped(d: Distribution, *maps: Any) -> TransformedDistribution:
    return TransformedDistribution(d, list(maps))


@pytest.mark.sweep
def test_mass_in_a_gap_of_the_other_support_is_infinitely_far() -> None:
    shift, turned = AffineTransform(1.0, 2.0), AffineTransform(0.5, -1.0)
    cases: dict[str, tuple[Distribution, Distribution]] = {
        "uniform": (uniform(0.0, 3.0), GAP),
        "beta": (mapped(Beta(double(2.0), double(2.0)), AffineTransform(0.0, 3.0)), GAP),
        "a part": (uniform(0.9, 1.1), GAP),
        "mixture": (uniforms([0.5, 0.5], [0.2, 1.4], [0.4, 1.6]), GAP),
        "without weight": (uniform(0.0, 3.0), uniforms([0.3, 0.0, 0.7], [0.0, 0.9, 2.0], [1.0, 2.1, 3.0])),
        "unsorted": (uniform(0.0, 3.0), uniforms([0.7, 0.3], [2.0, 0.0], [3.0, 1.0])),
        "affine": (mapped(uniform(0.0, 3.0), shift), mapped(GAP, shift)),
        "falling": (mapped(uniform(0.0, 3.0), turned), mapped(GAP, turned)),
        "exp": (mapped(uniform(0.0, 3.0), ExpTransform()), mapped(GAP, AffineTransform(0.0, 1.0), ExpTransform())),
        "sigmoid": (uniform(0.5, 0.95), mapped(GAP, SigmoidTransform())),
        "log": (Normal(double(0.0), double(1.0)), mapped(GAP, ExpTransform().inv)),
    }  # fmt: skip
    for name, (p, q) in cases.items():
        for kind in FAR_KINDS:
            assert float(divergence(p, q, kind)) == math.inf, (name, kind)
        assert float(divergence(q, p, "reverse_kl")) == math.inf, name
        for kind in NEAR_KINDS:
            if name not in ("exp", "sigmoid", "beta", "log"):  # which are not made of steps
                assert math.isfinite(float(divergence(p, q, kind))), (name, kind)
    batch = kl_divergence(Uniform(double([0.1, 0.1]), double([0.9, 2.0])), GAP)
    torch.testing.assert_close(batch, double([-math.log(0.3 * 0.8), math.inf]))
    loc = double(0.0).requires_grad_()
    value = kl_divergence(Uniform(loc, loc + 3), GAP)
    assert torch.autograd.grad(value, loc)[0] == 0


def test_without_mass_in_the_gap_the_divergence_is_finite() -> None:
    whole = uniform(0.0, 3.0)
    cases: dict[str, tuple[Distribution, Distribution, float]] = {
        "inside": (uniform(0.1, 0.9), GAP, -math.log(0.8 * 0.3)),
        "from the gap": (GAP, whole, 0.3 * math.log(0.9) + 0.7 * math.log(2.1)),
        "both": (GAP, uniforms([0.5, 0.5], [0.0, 2.0], [1.0, 3.0]), 0.3 * math.log(0.6) + 0.7 * math.log(1.4)),
        "touching": (
            whole,
            uniforms([0.3, 0.7], [0.0, 1.0], [1.0, 3.0]),
            math.log(1 / 0.9) / 3 + 2 * math.log(1 / 1.05) / 3,
        ),
        "a mixture beside the gap": (
            uniforms([0.5, 0.5], [0.2, 2.4], [0.4, 2.6]),
            GAP,
            (math.log(2.5 / 0.3) + math.log(2.5 / 0.7)) / 2,
        ),
    }  # fmt: skip
    for name, (p, q, right) in cases.items():
        assert abs(float(kl_divergence(p, q)) - right) < 1e-9, name


# Subclasses that narrow the support of their family.

INSIDE = math.erf(1 / math.sqrt(2))  # the mass of a standard normal between -1 and 1


class Truncated(Normal):
    """A normal between -1 and 1, with torch's own check of values in `log_prob`, and with the draws of a Normal."""

    @property
    def support(self) -> Any:
        return constraints.interval(-1.0, 1.0)

    def log_prob(self, value: Tensor) -> Tensor:
        return Normal.log_prob(self, value) - math.log(INSIDE)


class Tail(Normal):
    """The standard normal above 3, where its family makes hardly a draw."""

    support = constraints.greater_than(3.0)

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value) - stats.norm.logsf(3.0)


def test_a_subclass_with_its_own_support_is_integrated_there() -> None:
    own, normal = Truncated(double(0.0), double(1.0)), Normal(double(0.0), double(1.0))
    right = 0.3817151463
    assert abs(float(kl_divergence(own, normal)) - right) < 1e-9
    assert float(kl_divergence(normal, own)) == math.inf
    assert abs(float(divergence(normal, own, "reverse_kl")) - right) < 1e-9
    back = math.log(INSIDE) + math.log(2 * math.pi) / 2 + 1 / 6 - math.log(2)
    assert abs(float(kl_divergence(uniform(-1.0, 1.0), own)) - back) < 1e-9
    assert abs(float(cross_entropy(uniform(-1.0, 1.0), own)) - back - math.log(2)) < 1e-9
    two = Truncated(double([0.0, 0.0]), double([1.0, 1.0]))
    plain = Normal(double([0.0, 0.0]), double(1.0))
    torch.testing.assert_close(kl_divergence(Independent(two, 1), Independent(plain, 1)), double(2 * right))
    same = MixtureSameFamily(Categorical(double([1.0, 1.0])), two)
    assert abs(float(kl_divergence(same, normal)) - right) < 1e-9
    assert abs(float(kl_bounds(same, normal).upper) - right) < 1e-6
    assert abs(float(KLRegularizer()(two, plain)) - right) < 1e-6
    tail = Tail(double([0.0, 0.0]), double([1.0, 1.0]))
    torch.testing.assert_close(kl_divergence(tail, normal), double(-stats.norm.logsf(3.0)).expand(2))


@pytest.mark.heavy
def test_a_fit_to_an_overriding_vector_does_not_read_its_base() -> None:
    class Elsewhere(MultivariateNormal):
        def log_prob(self, value: Tensor) -> Tensor:
            return MultivariateNormal(self.loc + 3, self.covariance_matrix).log_prob(value)

        def sample(self, sample_shape: Any = ()) -> Tensor:
            return super().sample(torch.Size(sample_shape)) + 3

    target = Elsewhere(torch.zeros(2), torch.eye(2))
    start = Independent(Normal(torch.zeros(2), 1.0), 1)
    fitted: Any = fit(start, to=target, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(fitted.distribution.base_dist.loc, torch.full((2,), 3.0), atol=0.1, rtol=0)


# Extra zeros.


def test_extra_zeros_are_summed() -> None:
    def zero_inflated(rate: float, gate: float) -> Any:
        return pyro_distributions.ZeroInflatedPoisson(double(rate), gate=double(gate))

    def log_mass(k: int, rate: float, gate: float) -> float:
        rest = (1 - gate) * stats.poisson.pmf(k, rate)
        return math.log(rest + gate * (k == 0))

    def right(p: tuple[float, float], q: tuple[float, float]) -> float:
        return math.fsum(math.exp(log_mass(k, *p)) * (log_mass(k, *p) - log_mass(k, *q)) for k in range(80))

    cases = (((2.0, 0.3), (2.5, 0.2)), ((2.0, 0.01), (9.0, 0.9)), ((0.5, 0.0), (0.7, 0.4)))
    for p, q in cases:
        value = float(kl_divergence(zero_inflated(*p), zero_inflated(*q)))
        assert abs(value - right(p, q)) < 1e-9, (p, q)
    assert abs(right(*cases[0]) - 0.065712) < 1e-6
    assert (
        abs(
            float(kl_divergence(Poisson(double(2.0)), zero_inflated(2.5, 0.2)))
            - right((2.0, 0.0), (2.5, 0.2))
        )
        < 1e-9
    )
    logits = pyro_distributions.ZeroInflatedPoisson(double(2.0), gate_logits=torch.logit(double(0.3)))
    assert abs(float(kl_divergence(logits, zero_inflated(2.5, 0.2))) - right(*cases[0])) < 1e-9
    wide = pyro_distributions.ZeroInflatedNegativeBinomial(double(5.0), probs=double(0.3), gate=double(0.25))
    own = stats.nbinom(5, 0.7)
    total = math.fsum(
        (0.75 * own.pmf(k) + 0.25 * (k == 0)) * math.log((0.75 * own.pmf(k) + 0.25 * (k == 0)) / own.pmf(k))
        for k in range(200)
    )
    plain = torch.distributions.NegativeBinomial(double(5.0), probs=double(0.3))
    assert abs(float(kl_divergence(wide, plain)) - total) < 1e-9
    gate = double(0.3).requires_grad_()
    value = kl_divergence(
        pyro_distributions.ZeroInflatedPoisson(double(2.0), gate=gate), Poisson(double(2.0))
    )
    slope = (right((2.0, 0.3001), (2.0, 0.0)) - right((2.0, 0.2999), (2.0, 0.0))) / 2e-4
    assert abs(float(torch.autograd.grad(value, gate)[0]) - slope) < 1e-6


# A distribution and itself.


def test_a_distribution_and_itself() -> None:
    def mixture(last: float, weight: float = 1.0, *, tracked: bool = False) -> Any:
        loc = double([[0.0, 0.0, 0.0], [1.0, 1.0, last]]).requires_grad_(tracked)
        return MixtureSameFamily(Categorical(double([1.0, weight])), Independent(Normal(loc, double(1.0)), 1))

    p = mixture(1.0)
    for kind in ("kl", "reverse_kl", "jeffreys", "js", "tv", "renyi:2", "chi2"):
        assert float(divergence(p, p, kind)) == 0, kind
        assert float(divergence(p, mixture(1.0), kind)) == 0, kind
    for other in (mixture(2.0), mixture(1.0, 2.0)):
        with pytest.raises(NoRuleError):
            kl_divergence(p, other)
    tracked = mixture(1.0, tracked=True)
    loc = tracked.component_distribution.base_dist.loc
    assert bool((torch.autograd.grad(kl_divergence(tracked, tracked), loc)[0] == 0).all())
    with pytest.raises(NoRuleError):  # the second derivative by one side alone is not 0
        kl_divergence(tracked, mixture(1.0, tracked=True))


# Shapes that are tuples or lists, as torch allows.


class Rayleigh(Distribution):
    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.positive

    def __init__(self, scale: Tensor, batch_shape: Any) -> None:
        self.scale = scale
        super().__init__(batch_shape=batch_shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.log(value / self.scale**2) - (value / self.scale) ** 2 / 2

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.scale * torch.sqrt(
            -2 * torch.log(torch.rand(torch.Size(sample_shape) + self.scale.shape))
        )


class Plane(Distribution):
    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector

    def __init__(self, mean: Tensor) -> None:
        self.mean_vector = mean
        super().__init__(batch_shape=(), event_shape=[2], validate_args=False)  # pyright: ignore[reportArgumentType]

    def log_prob(self, value: Tensor) -> Tensor:
        return -((value - self.mean_vector) ** 2).sum(-1) / 2 - math.log(2 * math.pi)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.mean_vector + torch.randn((*sample_shape, 2))


class OwnShape(Rayleigh):
    @property
    def batch_shape(self) -> Any:
        return tuple(self.scale.shape)


@pytest.mark.sweep
def test_shapes_may_be_tuples_and_lists() -> None:
    one, right = double(1.0), 2 * math.log(2) - 0.75
    three, twos = torch.ones(3, dtype=torch.float64), torch.full((3,), 2.0, dtype=torch.float64)
    for shape, p, q in (((), one, 2 * one), ([], one, 2 * one), ((3,), three, twos), ([3], three, twos)):
        pair = Rayleigh(p, shape), Rayleigh(q, shape)
        expected = torch.full_like(p, right)
        torch.testing.assert_close(kl_divergence(*pair), expected)
        torch.testing.assert_close(divergence(pair[1], pair[0], "reverse_kl"), expected)
        assert bool((divergence(*pair, "js") > 0).all())
        assert bool((cross_entropy(Gamma(torch.ones_like(p), one), pair[1])).isfinite().all())
        estimated = kl_estimate(*pair, method="monte_carlo", generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(estimated.value.double(), expected, rtol=0.1, atol=0)
        assert abs(float(KLRegularizer(batch_dims=len(shape))(*pair)) - right) < 1e-6
    torch.testing.assert_close(kl_divergence(OwnShape(one, ()), OwnShape(2 * one, ())), double(right))
    fitted: Any = fit(Gamma(one, one), to=Rayleigh(one, ()))
    mean_log = integrate.quad(lambda x: math.log(x) * x * math.exp(-x * x / 2), 0, 40)[0]
    assert (
        abs(
            float(torch.digamma(fitted.distribution.concentration) - torch.log(fitted.distribution.rate))
            - mean_log
        )
        < 1e-6
    )
    draws = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    from_draws = kl_estimate(Samples(draws), Plane(torch.ones(2)), generator=torch.Generator().manual_seed(0))
    assert abs(float(from_draws.value) - 1) < 0.3
    seeded = torch.Generator().manual_seed(0)
    drawn = kl_estimate(Plane(torch.zeros(2)), Plane(torch.ones(2)), method="monte_carlo", generator=seeded)
    assert abs(float(drawn.value) - 1) < 0.2
    twice = [pyro_distributions.TruncatedPolyaGamma(torch.tensor(1.0)) for _ in range(2)]
    assert float(kl_divergence(*twice)) == 0  # its density is exact to six digits only
    assert float(kl_divergence(twice[0], Gamma(1.0, 2.0), rtol=1e-4)) > 0
