"""The family of CONTRIBUTING, one record from outside, has everything that a family of torch's has."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mp, mpf
from scipy import stats
from torch import Tensor
from torch.distributions import Distribution, Gamma, HalfNormal, LogNormal, Normal, Uniform, Weibull

from kullback import Samples, divergence, fit, kl_divergence, kl_estimate
from kullback.errors import RegistrationError
from kullback.pairs import family, registry
from kullback.pairs.densities import density
from kullback.pairs.density_overrides import forget_overrides
from kullback.pairs.families import Family, register_family, registration
from kullback.pairs.torch_registry import forget_plans
from tests.refusals import refused
from tests.test_contributing import example

page = ModuleType("log_logistic")
sys.modules[page.__name__] = page  # where a dataclass looks for its annotations
TABLES = (
    family.FAMILIES,
    registration.ALWAYS_INFINITE,
    density._READERS,
    registry._RULES["closed_form"],
    registry._RULES["shortcut"],
)


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    """Run the code of the page, which registers the family; afterwards, no table has it."""
    before = [table.copy() for table in TABLES]
    exec(compile(example("A family"), page.__name__, "exec"), vars(page))  # noqa: S102
    yield
    for table, old in zip(TABLES, before, strict=True):
        table.clear()
        table.update(old)
    forget_overrides()
    forget_plans()


def doubles(*numbers: float) -> list[Tensor]:
    return [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in numbers]


def log_logistic(x: mpf, scale: mpf, c: mpf) -> mpf:
    y = (x / scale) ** c
    return mp.log(c / x * y / (1 + y) ** 2)


LOG_DENSITIES: dict[str, Callable[..., mpf]] = {
    "LogLogistic": log_logistic,
    "Gamma": lambda x, a, r: a * mp.log(r) + (a - 1) * mp.log(x) - r * x - mp.loggamma(a),
    "Weibull": lambda x, s, k: mp.log(k / s) + (k - 1) * mp.log(x / s) - (x / s) ** k,
    "LogNormal": lambda x, m, s: -(((mp.log(x) - m) / s) ** 2) / 2 - mp.log(x * s * mp.sqrt(2 * mp.pi)),
    "HalfNormal": lambda x, s: mp.log(2 / (s * mp.sqrt(2 * mp.pi))) - (x / s) ** 2 / 2,
    "Normal": lambda x, m, s: -(((x - m) / s) ** 2) / 2 - mp.log(s * mp.sqrt(2 * mp.pi)),
}
Member = tuple[str, tuple[float, ...]]


def truth(p: Member, q: Member, term: Callable[[mpf, mpf], mpf]) -> mpf:
    """Integrate a term of log p and log q over t = log x, at 50 digits."""
    with mp.workdps(50):
        of_p, of_q = ([mpf(x) for x in d[1]] for d in (p, q))

        def integrand(t: mpf) -> mpf:
            x = mp.exp(t)
            return x * term(LOG_DENSITIES[p[0]](x, *of_p), LOG_DENSITIES[q[0]](x, *of_q))

        return mp.quad(integrand, [-80, -20, -6, -3, -1, 0, 1, 2, 3, 6, 20, 80])


def kl_term(a: mpf, b: mpf) -> mpf:
    return mp.exp(a) * (a - b)


def js_term(a: mpf, b: mpf) -> mpf:
    p, q = mp.exp(a), mp.exp(b)
    m = (p + q) / 2
    return sum((x * mp.log(x / m) for x in (p, q) if x), mpf(0)) / 2


OURS: Member = ("LogLogistic", (1.3, 3.5))
OTHERS: list[Member] = [("Gamma", (2.5, 1.5)), ("Weibull", (1.7, 1.2)), ("LogNormal", (0.2, 0.7))]


def made(member: Member) -> Distribution:
    kind = getattr(torch.distributions, member[0], None) or getattr(page, member[0])
    return kind(*doubles(*member[1]))


def test_kl_to_and_from_three_families() -> None:
    for other in OTHERS:
        for p, q in ((OURS, other), (other, OURS)):
            result = kl_estimate(made(p), made(q))
            pair = p[0], q[0]
            error = abs(float(result.value.detach()) - float(truth(p, q, kl_term)))
            assert error <= min(float(result.error), 1e-10), pair
            assert result.method == ("closed_form" if p is OURS else "quadrature"), pair
    assert float(kl_divergence(made(OURS), made(OURS)).detach()) == 0


@pytest.mark.sweep
def test_js() -> None:
    for other in OTHERS:
        for p, q in ((OURS, other), (other, OURS)):
            value = divergence(made(p), made(q), "js:0.5")
            assert float(value.detach()) == pytest.approx(float(truth(p, q, js_term)), rel=1e-10), p[
                0
            ].__name__


def test_it_is_infinite_exactly_where_a_moment_is() -> None:
    below, at, above = 1 - 1e-9, 1.0, 1.02
    for other, order in (
        (Gamma(2.0, 1.0), 1),
        (HalfNormal(1.0), 2),
        (Normal(0.0, 1.0), 2),
        (Weibull(1.0, 0.5), 0.5),
    ):
        for times, is_infinite in ((below, True), (at, True), (above, False)):
            p = page.LogLogistic(*doubles(1.3, times * order))
            value = kl_divergence(p, other)
            assert bool(value.isposinf()) == is_infinite, (other, times)
            if is_infinite:
                assert not any(bool(g) for g in torch.autograd.grad(value, (p.scale, p.shape))), (
                    other,
                    times,
                )
    assert bool(kl_divergence(Normal(*doubles(0.0, 1.0)), made(OURS)).isposinf())
    assert bool(kl_divergence(made(OURS), Uniform(*doubles(0.0, 9.0))).isposinf())
    # The mean of its logarithm is finite, so nothing else is infinite.
    assert bool(kl_divergence(page.LogLogistic(*doubles(1.0, 1e-3)), LogNormal(0.0, 1.0)).isfinite())
    assert bool(divergence(page.LogLogistic(*doubles(1.0, 2.0)), Gamma(2.0, 1.0), "chi2").isposinf())


def test_the_derivatives_are_right_twice() -> None:
    scale, shape = doubles(1.3, 3.5)
    value = kl_divergence(page.LogLogistic(scale, shape), Gamma(*doubles(2.5, 1.5)))
    first = torch.autograd.grad(value, (scale, shape), create_graph=True)
    second = [torch.autograd.grad(g, (scale, shape), retain_graph=True) for g in first]

    with mp.workdps(50):

        def kl(s: mpf, c: mpf) -> mpf:
            entropy = mp.log(s / c) + 2
            log_mean = mp.log(s)
            mean = s * (mp.pi / c) / mp.sin(mp.pi / c)
            a, r = mpf(2.5), mpf(1.5)
            return -entropy - (a * mp.log(r) - mp.loggamma(a) + (a - 1) * log_mean - r * mean)

        at = mpf(1.3), mpf(3.5)
        assert float(value.detach()) == pytest.approx(float(kl(*at)), rel=1e-13)
        for i, by in enumerate(((1, 0), (0, 1))):
            assert float(first[i].detach()) == pytest.approx(float(mpmath.diff(kl, at, by)), rel=1e-12)
            for j, by_too in enumerate(((1, 0), (0, 1))):
                both = tuple(a + b for a, b in zip(by, by_too, strict=True))
                assert float(second[i][j]) == pytest.approx(float(mpmath.diff(kl, at, both)), rel=1e-9)


@pytest.mark.sweep
def test_vmap_and_compile() -> None:
    shapes = torch.tensor([2.5, 3.5, 0.9], dtype=torch.float64)

    def kl(shape: Tensor) -> Tensor:
        p = page.LogLogistic(torch.ones_like(shape), shape, validate_args=False)
        return kl_divergence(
            p, LogNormal(torch.zeros_like(shape), torch.ones_like(shape), validate_args=False)
        )

    wanted = kl(shapes)
    torch.testing.assert_close(torch.func.vmap(kl)(shapes), wanted, rtol=1e-15, atol=0)
    torch.testing.assert_close(
        torch.compile(kl, backend="eager", fullgraph=True)(shapes), wanted, rtol=1e-15, atol=0
    )
    slopes = torch.func.vmap(torch.func.grad(kl))(shapes)
    own = shapes.clone().requires_grad_()
    torch.testing.assert_close(slopes, torch.autograd.grad(kl(own).sum(), own)[0], rtol=1e-12, atol=0)


def test_fit_in_both_directions() -> None:
    target = page.LogLogistic(*doubles(1.3, 3.5))
    nearest = fit(Gamma, to=target)
    assert nearest.method == "moment_matching"
    assert float(nearest.value) == pytest.approx(
        float(kl_divergence(target, nearest.distribution).detach()), rel=1e-9
    )
    with mp.workdps(30):  # E x = a / r and E log x = digamma(a) - log r
        mean, mean_log = mpf(1.3) * (mp.pi / mpf(3.5)) / mp.sin(mp.pi / mpf(3.5)), mp.log(mpf(1.3))
        a = mp.findroot(lambda a: mp.digamma(a) - mp.log(a) + mp.log(mean) - mean_log, 3)
    assert float(nearest.distribution.concentration) == pytest.approx(float(a), rel=1e-9)
    assert float(nearest.distribution.rate) == pytest.approx(float(a / mean), rel=1e-9)
    back = fit(page.LogLogistic(*doubles(1.0, 1.0)), to=page.LogLogistic(*doubles(1.3, 3.5)))
    assert float(back.distribution.scale.detach()) == pytest.approx(1.3, rel=1e-5)
    assert float(back.distribution.shape.detach()) == pytest.approx(3.5, rel=1e-5)
    assert bool(fit(page.LogLogistic, to=Gamma(2.0, 1.0)).converged.all())


def test_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = made(OURS), made(OTHERS[0])
    true = float(truth(OURS, OTHERS[0], kl_term))
    drawn = kl_estimate(p, q, method="monte_carlo", draws=20_000, generator=generator)
    assert abs(float(drawn.value.detach()) - true) < 5 * float(drawn.standard_error)
    torch.manual_seed(0)
    estimate = kl_estimate(Samples(made(OTHERS[0]).sample((3_000,)).unsqueeze(-1)), made(OURS))
    true = float(truth(OTHERS[0], OURS, kl_term))
    low, high = estimate.interval
    assert float(low) < true < float(high)


def test_its_form_in_scipy() -> None:
    frozen = stats.fisk(3.5, scale=1.3)
    value = kl_estimate(frozen, stats.gamma(2.5, scale=1 / 1.5))
    assert value.method == "closed_form"
    assert float(value.value) == pytest.approx(float(truth(OURS, OTHERS[0], kl_term)), rel=1e-12)
    shifted = kl_divergence(stats.fisk(3.5, loc=2.0, scale=1.3), stats.gamma(2.5, loc=2.0, scale=1 / 1.5))
    assert float(shifted) == pytest.approx(float(value.value), rel=1e-12)


def test_extreme_units_and_a_subclass_with_its_own_density() -> None:
    tiny, wide = (page.LogLogistic(*doubles(1.3 * x, 3.5)) for x in (1e-200, 1e200))
    for p, unit in ((tiny, 1e-200), (wide, 1e200)):
        q = Gamma(*doubles(2.5, 1.5 / unit))
        assert float(kl_divergence(p, q).detach()) == pytest.approx(
            float(truth(OURS, OTHERS[0], kl_term)), rel=1e-12
        )

    class Heavier(page.LogLogistic):
        """The law of the same scale with half the shape."""

        def log_prob(self, value: Tensor) -> Tensor:
            return page.LogLogistic(self.scale, self.shape / 2, validate_args=False).log_prob(value)

        def rsample(self, sample_shape: Any = ()) -> Tensor:
            return page.LogLogistic(self.scale, self.shape / 2, validate_args=False).rsample(sample_shape)

    value = kl_divergence(Heavier(*doubles(1.3, 7.0)), LogNormal(*doubles(0.2, 0.7)))
    assert float(value.detach()) == pytest.approx(float(truth(OURS, OTHERS[2], kl_term)), rel=1e-8)
    assert bool(kl_divergence(Heavier(*doubles(1.3, 1.9)), Gamma(2.0, 1.0)).isposinf())


def test_a_type_has_one_record() -> None:
    for kind in (page.LogLogistic, Gamma):
        with refused(
            RegistrationError, call="register_family", argument="family", got=f"{kind.__name__}, which"
        ):
            register_family(Family(kind))

    class Own(Gamma):
        """A subclass, as the message says."""

    register_family(Family(Own))
    p, q = Own(*doubles(2.5, 1.5)), Gamma(*doubles(1.5, 1.5))
    assert float(kl_divergence(p, q).detach()) == float(kl_divergence(made(OTHERS[0]), q).detach())
