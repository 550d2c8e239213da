"""SciPy's frozen distributions stand for torch's, or for themselves by their densities."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Gamma, Normal, TransformedDistribution, Uniform

from kullback import ReverseKL, divergence, kl_divergence, kl_estimate
from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.pairs.densities.density import Points, density_of
from kullback.pairs.scipy_adapter import ScipyDensity, is_frozen, to_torch
from tests.refusals import refused

CONTINUOUS = {
    "norm": stats.norm(0.3, 1.7),
    "laplace": stats.laplace(-0.2, 0.7),
    "cauchy": stats.cauchy(loc=1.0, scale=2.0),
    "t": stats.t(4.5, loc=0.5, scale=1.2),
    "gumbel_r": stats.gumbel_r(0.2, 1.3),
    "gumbel_l": stats.gumbel_l(0.2, 1.3),
    "expon": stats.expon(scale=2.5),
    "expon moved": stats.expon(1.0, 2.5),
    "gamma": stats.gamma(2.3, scale=0.7),
    "gamma moved": stats.gamma(2.3, 0.4, 0.7),
    "chi2": stats.chi2(3.5, scale=2.0),
    "erlang": stats.erlang(3, scale=2.0),
    "invgamma": stats.invgamma(2.2, scale=1.4),
    "weibull_min": stats.weibull_min(1.7, scale=2.0),
    "rayleigh": stats.rayleigh(scale=2.0),
    "levy": stats.levy(scale=2.0),
    "lognorm": stats.lognorm(0.8, scale=1.9),
    "lognorm moved": stats.lognorm(0.8, loc=0.3, scale=1.9),
    "halfnorm": stats.halfnorm(scale=1.5),
    "halfcauchy": stats.halfcauchy(scale=1.5),
    "f": stats.f(4.0, 7.0),
    "f stretched": stats.f(4.0, 7.0, loc=0.1, scale=2.0),
    "pareto": stats.pareto(2.5, scale=1.2),
    "genpareto": stats.genpareto(0.3, loc=0.1, scale=1.2),
    "beta": stats.beta(2.0, 3.5),
    "beta moved": stats.beta(2.0, 3.5, loc=-1.0, scale=4.0),
    "uniform": stats.uniform(1.0, 3.0),
}
OTHERS = {
    "logistic": stats.logistic(0.5, 1.2),
    "skewnorm": stats.skewnorm(3.0),
    "truncnorm": stats.truncnorm(-1.0, 2.0),
    "invgauss": stats.invgauss(0.7, scale=1.5),
    "rice": stats.rice(1.2),
    "exponnorm": stats.exponnorm(1.5),
}
DISCRETE = {
    "poisson": stats.poisson(3.3),
    "poisson moved": stats.poisson(3.3, loc=2),
    "bernoulli": stats.bernoulli(0.3),
    "binom": stats.binom(7, 0.4),
    "nbinom": stats.nbinom(3.5, 0.4),
    "geom": stats.geom(0.3),
    "randint": stats.randint(2, 9),
    "hypergeom": stats.hypergeom(20, 7, 12),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_torchs_family_has_scipys_density(name: str) -> None:
    frozen = CONTINUOUS[name]
    found = to_torch("kl_divergence", "p", frozen)
    assert not isinstance(found, ScipyDensity)
    x = frozen.ppf(np.linspace(0.02, 0.98, 25))
    densities = density_of(found).mapped(lambda a: a.unsqueeze(-1)).log_density(Points(torch.tensor(x)))
    assert densities.numpy() == pytest.approx(frozen.logpdf(x), rel=1e-10, abs=1e-10)
    assert densities.dtype == torch.float64


@pytest.mark.parametrize("name", DISCRETE)
def test_counts_have_scipys_probabilities(name: str) -> None:
    frozen = DISCRETE[name]
    found = to_torch("kl_divergence", "p", frozen)
    low, high = frozen.ppf(0.0) + 1, frozen.ppf(0.999)
    x = np.arange(low, high + 1)
    assert found.log_prob(torch.tensor(x)).numpy() == pytest.approx(frozen.logpmf(x), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "name", [name for name in [*CONTINUOUS, *OTHERS] if name != "levy"]
)  # SciPy's levy is 0 near its end
def test_the_divergence_is_that_of_the_densities(name: str) -> None:
    p: Any = (CONTINUOUS | OTHERS)[name]
    shapes, loc, scale = p.dist._parse_args(*p.args, **p.kwds)
    q = p.dist(*shapes, loc=loc, scale=1.5 * scale)
    if name in {"uniform", "beta", "beta moved", "pareto", "truncnorm"}:  # a wider support, or the same
        q = (
            p.dist(*shapes, loc=loc - 0.5 * scale, scale=2 * scale)
            if name != "pareto"
            else p.dist(2.0, loc=loc, scale=scale)
        )
    found = kl_divergence(p, q)
    low, high = p.support()
    cuts = [low, *p.ppf([0.001, 0.1, 0.5, 0.9, 0.999]), high]
    with np.errstate(all="ignore"):
        truth = mpmath.quad(
            lambda x: (
                p.pdf(float(x)) * (p.logpdf(float(x)) - q.logpdf(float(x))) if p.pdf(float(x)) > 0 else 0
            ),
            [mpmath.mpf(x) if math.isfinite(x) else mpmath.inf * np.sign(x) for x in cuts],
        )
    assert float(found) == pytest.approx(float(truth), rel=2e-5, abs=1e-8)


def test_both_may_be_scipys_and_the_answer_is_float64() -> None:
    found = kl_divergence(stats.norm(0, 1), stats.norm(1, 2))
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(math.log(2) + 2 / 8 - 0.5, rel=1e-14)
    assert not found.requires_grad


def test_one_may_be_scipys_and_the_other_torchs_which_gets_its_gradient() -> None:
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    kl_divergence(stats.norm(0, 1), Normal(1.0, scale)).backward()
    assert float(scale.grad) == pytest.approx(1 / 2 - 2 / 8, rel=1e-12)
    concentration = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    kl_divergence(Gamma(concentration, 1.0), stats.invgauss(0.7)).backward()
    step = 1e-5
    above, below = (kl_divergence(stats.gamma(2 + s), stats.invgauss(0.7)) for s in (step, -step))
    assert float(concentration.grad) == pytest.approx(float(above - below) / (2 * step), rel=1e-6)


def test_a_gradient_that_scipy_cannot_give_is_an_error_not_a_wrong_one() -> None:
    high = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    with refused(ArgumentTypeError, got="logistic"):
        kl_divergence(Uniform(0.0, high), stats.logistic())


def test_arrays_of_parameters_broadcast() -> None:
    found = kl_divergence(stats.norm([0, 1, 2], 1), stats.norm([[0], [1]], 1))
    assert found.tolist() == [[0, 0.5, 2], [0.5, 0, 0.5]]
    each = [float(kl_divergence(stats.logistic(a, 1), stats.logistic(1, 2))) for a in (0, 1)]
    assert kl_divergence(stats.logistic([0, 1], 1), stats.logistic(1, 2)).tolist() == pytest.approx(
        each, rel=1e-9
    )


def test_other_divergences_take_them_too() -> None:
    p, q = stats.norm(0, 1), stats.norm(1, 2)
    assert float(divergence(p, q, ReverseKL())) == float(kl_divergence(q, p))


def test_methods_say_how_it_was_obtained() -> None:
    assert kl_estimate(stats.norm(), stats.norm(1)).method == "closed_form"
    assert kl_estimate(stats.norm(), stats.logistic()).method == "quadrature"
    assert kl_estimate(stats.randint(1, 7), stats.poisson(3)).method == "summation"


def test_geometric_counts_from_one_in_scipy() -> None:
    p, q = stats.geom(0.3), stats.poisson(3)
    x = np.arange(1, 200)
    truth = float((p.pmf(x) * (p.logpmf(x) - q.logpmf(x))).sum())
    assert float(kl_divergence(p, q)) == pytest.approx(truth, rel=1e-9)
    assert float(kl_divergence(q, p)) == math.inf  # the Poisson has a 0, the geometric has not


def test_supports_and_tails_decide_infinity_for_scipys_own_families_too() -> None:
    assert float(kl_divergence(stats.logistic(), stats.truncnorm(-1, 2))) == math.inf
    assert float(kl_divergence(stats.levy(), stats.skewnorm(2))) == math.inf
    assert math.isfinite(float(kl_divergence(stats.logistic(), stats.norm())))


def test_vectors_and_matrices() -> None:
    shifted = kl_divergence(
        stats.multivariate_normal([0, 0], [[2, 0], [0, 1]]), stats.multivariate_normal([1, 0])
    )
    assert float(shifted) == pytest.approx((2 + 1 + 1 - 2 - math.log(2)) / 2, rel=1e-13)
    for p in (
        stats.dirichlet([1, 2, 3]),
        stats.wishart(5, [[1, 0.2], [0.2, 1]]),
        stats.multinomial(4, [0.2, 0.8]),
    ):
        assert float(kl_divergence(p, p)) == 0


def test_what_scipy_cannot_say_is_an_error_that_names_it() -> None:
    with refused(ArgumentTypeError, argument="q", got="skellam"):
        kl_divergence(stats.poisson(1), stats.skellam(1, 2))
    with refused(ArgumentTypeError, got="multivariate_t"):
        kl_divergence(stats.multivariate_t(), stats.norm())
    with refused(ArgumentTypeError, got="vonmises"):
        kl_divergence(stats.vonmises(1, scale=2), stats.vonmises(1))
    with refused(ArgumentValueError, got="discrete"):
        kl_divergence(stats.poisson(1), stats.norm())


def test_only_frozen_ones_are_scipys() -> None:
    assert is_frozen(stats.norm())
    assert is_frozen(stats.dirichlet([1, 1]))
    assert not is_frozen(stats.norm)
    assert not is_frozen(Normal(0.0, 1.0))
    assert isinstance(to_torch("kl_divergence", "p", stats.gamma(2, loc=1)), TransformedDistribution)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.8])
@pytest.mark.parametrize("beta", [0.0, 0.4])
def test_a_stable_distribution_has_no_variance(alpha: float, beta: float) -> None:
    """SciPy's density is 0 from about 10^12 on. The mean of x^2, and so KL from a normal, is infinite."""
    stable = stats.levy_stable(alpha, beta)
    assert float(kl_estimate(stable, stats.norm(0, 1))) == math.inf


@pytest.mark.heavy  # SciPy integrates for each value of the density.
@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.8])
@pytest.mark.parametrize("beta", [0.0, 0.4])
def test_a_stable_distribution_is_finitely_far_from_a_normal(alpha: float, beta: float) -> None:
    assert math.isfinite(float(kl_estimate(stats.norm(0, 1), stats.levy_stable(alpha, beta))))


def test_a_stable_distribution_with_alpha_1_is_cauchys() -> None:
    stable, cauchy = stats.levy_stable(1.0, 0.0), stats.cauchy(0, 1)
    for other in (stats.norm(0, 1), stats.t(3)):
        assert float(kl_estimate(other, stable)) == pytest.approx(float(kl_estimate(other, cauchy)), rel=1e-6)
        assert float(kl_estimate(stable, other)) == pytest.approx(float(kl_estimate(cauchy, other)), rel=1e-6)
