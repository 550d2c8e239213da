"""What torch's own test suite asks of kl_divergence, asked of kullback's and of torch's after `install()`.

The cases are those of TestKL in torch's test/distributions/test_distributions.py, with the same families, parameters'
ranges and tolerances, written anew: Monte Carlo within 0.1, multivariate normals against independent formulas, pairs
whose divergence is infinite, degenerate parameters, shapes, and entropies as KL from a uniform distribution.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributions as d
from torch.distributions import Distribution
from torch.distributions.kl import _kl_expfamily_expfamily  # pyright: ignore[reportPrivateUsage]

import kullback

Kl = Callable[[Distribution, Distribution], Tensor]


@pytest.fixture(params=["kullback", "install"])
def kl(request: pytest.FixtureRequest) -> Iterator[Kl]:
    """The function under test: kullback's, or torch's with kullback installed."""
    if request.param == "kullback":
        yield kullback.kl_divergence
        return
    kullback.install()
    try:
        yield d.kl_divergence
    finally:
        kullback.uninstall()


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def positive(*shape: int) -> Tensor:
    return torch.randn(shape).exp()


def simplex(*shape: int) -> Tensor:
    return torch.randn(shape).exp().softmax(-1)


def covariance(size: int, *batch: int) -> Tensor:
    root = torch.randn(*batch, size, size)
    return root @ root.mT + 0.1 * torch.eye(size)


def grid(make: Callable[..., Distribution], *values: Tensor) -> tuple[Distribution, Distribution]:
    """Two batches of one family, of shape (n, 1) and (n,), whose pairs are all the pairs of n members."""
    return make(*(x.unsqueeze(1) for x in values)), make(*values)


def log_normal_by_transform(loc: Tensor, scale: Tensor) -> Distribution:
    return d.TransformedDistribution(d.Normal(loc, scale), [d.ExpTransform()])


N = 4
FAMILIES: dict[str, Callable[[], tuple[Callable[..., Distribution], tuple[Tensor, ...]]]] = {
    "Bernoulli": lambda: (d.Bernoulli, (torch.tensor([0.1, 0.4, 0.6, 0.9]),)),
    "Binomial": lambda: (lambda p: d.Binomial(30, p), (torch.tensor([0.1, 0.4, 0.6, 0.9]),)),
    "Beta": lambda: (d.Beta, (positive(N), positive(N))),
    "Categorical": lambda: (d.Categorical, (simplex(N, 3),)),
    "Cauchy": lambda: (d.Cauchy, (torch.randn(N), positive(N))),
    "Chi2": lambda: (d.Chi2, (1 + positive(N),)),
    "ContinuousBernoulli": lambda: (d.ContinuousBernoulli, (torch.tensor([0.1, 0.4, 0.5, 0.9]),)),
    "Dirichlet": lambda: (d.Dirichlet, (positive(N, 4),)),
    "Exponential": lambda: (d.Exponential, (positive(N),)),
    "Gamma": lambda: (d.Gamma, (positive(N), positive(N))),
    "Geometric": lambda: (d.Geometric, (torch.tensor([0.3, 0.5, 0.6, 0.9]),)),
    "Gumbel": lambda: (d.Gumbel, (torch.randn(N), 0.5 + torch.rand(N))),
    "HalfNormal": lambda: (d.HalfNormal, (positive(N),)),
    "InverseGamma": lambda: (d.InverseGamma, (1 + positive(N), positive(N))),
    "Laplace": lambda: (d.Laplace, (torch.randn(N), positive(N))),
    "LogNormal": lambda: (d.LogNormal, (torch.randn(N), 0.5 + torch.rand(N))),
    "Exp(Normal)": lambda: (log_normal_by_transform, (torch.randn(N), 0.5 + torch.rand(N))),
    "Normal": lambda: (d.Normal, (torch.randn(N), positive(N))),
    "OneHotCategorical": lambda: (d.OneHotCategorical, (simplex(N, 3),)),
    "Pareto": lambda: (lambda a: d.Pareto(torch.ones(()), a), (1 + positive(N),)),
    "Poisson": lambda: (d.Poisson, (positive(N),)),
    "Uniform": lambda: (
        d.Uniform,
        (torch.zeros(N), torch.full((N,), 2.0)),
    ),
    "Independent": lambda: (
        lambda loc, scale: d.Independent(d.Normal(loc, scale), 1),
        (torch.randn(N, 3), positive(N, 3)),
    ),
    "MultivariateNormal": lambda: (
        lambda loc, root: d.MultivariateNormal(loc, scale_tril=root),
        (torch.randn(N, 3), torch.linalg.cholesky(covariance(3, N))),
    ),
}
# Families against others: the pairs of torch's list.
MIXED: dict[str, Callable[[], tuple[Distribution, Distribution]]] = {
    "Beta|ContinuousBernoulli": lambda: (d.Beta(*(1 + positive(2, N))), d.ContinuousBernoulli(torch.rand(N))),
    "Beta|Exponential": lambda: (d.Beta(*positive(2, N)), d.Exponential(positive(N))),
    "Beta|Gamma": lambda: (d.Beta(*(1 + positive(2, N))), d.Gamma(*positive(2, N))),
    "Beta|Normal": lambda: (d.Beta(*positive(2, N)), d.Normal(torch.randn(N), 0.5 + positive(N))),
    "Bernoulli|Poisson": lambda: (d.Bernoulli(torch.rand(N)), d.Poisson(positive(N))),
    "ContinuousBernoulli|Exponential": lambda: (
        d.ContinuousBernoulli(torch.rand(N)),
        d.Exponential(positive(N)),
    ),
    "ContinuousBernoulli|Normal": lambda: (
        d.ContinuousBernoulli(torch.rand(N)),
        d.Normal(torch.randn(N), 0.5 + positive(N)),
    ),
    "Exponential|Gamma": lambda: (d.Exponential(positive(N)), d.Gamma(*positive(2, N))),
    "Exponential|Normal": lambda: (
        d.Exponential(0.5 + positive(N)),
        d.Normal(torch.randn(N), 0.5 + positive(N)),
    ),
    "Gamma|Exponential": lambda: (d.Gamma(*positive(2, N)), d.Exponential(positive(N))),
    "Gumbel|Normal": lambda: (
        d.Gumbel(torch.randn(N), positive(N)),
        d.Normal(torch.randn(N), 1 + positive(N)),
    ),
    "Laplace|Normal": lambda: (
        d.Laplace(torch.randn(N), positive(N)),
        d.Normal(torch.randn(N), 1 + positive(N)),
    ),
    "Normal|Gumbel": lambda: (
        d.Normal(torch.randn(N), 0.3 * torch.rand(N) + 0.1),
        d.Gumbel(torch.randn(N), 1 + positive(N)),
    ),
    "Normal|Laplace": lambda: (d.Normal(torch.randn(N), positive(N)), d.Laplace(torch.randn(N), positive(N))),
    "Pareto|Exponential": lambda: (d.Pareto(torch.ones(N), 3 + positive(N)), d.Exponential(positive(N))),
    "Pareto|Gamma": lambda: (d.Pareto(torch.ones(N), 3 + positive(N)), d.Gamma(*positive(2, N))),
    "Uniform|Beta": lambda: (d.Uniform(0.1 * torch.ones(N), 0.9), d.Beta(*positive(2, N))),
    "Uniform|ContinuousBernoulli": lambda: (
        d.Uniform(0.1 * torch.ones(N), 0.9),
        d.ContinuousBernoulli(torch.rand(N)),
    ),
    "Uniform|Exponential": lambda: (d.Uniform(torch.ones(N), 2.0), d.Exponential(positive(N))),
    "Uniform|Gamma": lambda: (d.Uniform(torch.ones(N), 2.0), d.Gamma(*positive(2, N))),
    "Uniform|Gumbel": lambda: (d.Uniform(torch.zeros(N), 2.0), d.Gumbel(torch.randn(N), 1 + positive(N))),
    "Uniform|Normal": lambda: (d.Uniform(torch.zeros(N), 2.0), d.Normal(torch.randn(N), positive(N))),
    "Uniform|Pareto": lambda: (d.Uniform(1.5 * torch.ones(N), 2.0), d.Pareto(torch.ones(N), positive(N))),
}


def assert_near_monte_carlo(kl: Kl, p: Distribution, q: Distribution) -> None:
    """Compare with the mean of log p - log q, as far as its standard error and torch's tolerance of 0.1 allow."""
    value = kl(p, q)
    draws = p.sample(torch.Size([20_000]))
    logs = p.log_prob(draws) - q.log_prob(draws)
    error = logs.std(0) / math.sqrt(len(draws))
    off = (value - logs.mean(0)).abs()
    assert bool((off <= 0.1 * value.abs().clamp(min=0.1) + 5 * error).all()), (value, logs.mean(0), error)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_against_monte_carlo(kl: Kl, family: str) -> None:
    make, values = FAMILIES[family]()
    p, q = grid(make, *values)
    assert_near_monte_carlo(kl, p, q)


@pytest.mark.parametrize("pair", MIXED)
def test_different_families_against_monte_carlo(kl: Kl, pair: str) -> None:
    assert_near_monte_carlo(kl, *MIXED[pair]())


def exact_normal(p: d.MultivariateNormal, q: d.MultivariateNormal) -> Tensor:
    """1/2 (tr(S_q^-1 S_p) + (m_q - m_p)' S_q^-1 (m_q - m_p) - k + log det S_q / det S_p), in float64."""
    a, b = p.covariance_matrix.double(), q.covariance_matrix.double()
    shift = (q.mean - p.mean).double().unsqueeze(-1)
    inverse = torch.linalg.inv(b)
    trace = torch.diagonal(inverse @ a, dim1=-2, dim2=-1).sum(-1)
    distance = (shift.mT @ inverse @ shift).squeeze(-1).squeeze(-1)
    return (trace + distance - a.shape[-1] + torch.logdet(b) - torch.logdet(a)) / 2


@pytest.mark.parametrize("batch", [(), (4,), (3, 2)])
def test_multivariate_normals(kl: Kl, batch: tuple[int, ...]) -> None:
    for _ in range(10):
        p, q = (d.MultivariateNormal(torch.randn(*batch, 5), covariance(5, *batch)) for _ in range(2))
        assert torch.allclose(kl(p, q).double(), exact_normal(p, q), rtol=1e-3, atol=1e-3)


def low_rank(batch: tuple[int, ...]) -> d.LowRankMultivariateNormal:
    return d.LowRankMultivariateNormal(
        torch.randn(*batch, 5), torch.randn(*batch, 5, 2), 0.5 + torch.rand(*batch, 5)
    )


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_low_rank_normals(kl: Kl, batch: tuple[int, ...]) -> None:
    p, q = low_rank(batch), low_rank(batch)
    full_p, full_q = (d.MultivariateNormal(x.mean, x.covariance_matrix) for x in (p, q))
    exact = exact_normal(full_p, full_q)
    for a, b in ((p, q), (p, full_q), (full_p, q), (full_p, full_q)):
        assert torch.allclose(kl(a, b).double(), exact, rtol=1e-3, atol=1e-3)


def test_a_batch_of_low_rank_normals_against_each_of_its_members(kl: Kl) -> None:
    p, q = low_rank((3,)), low_rank((3,))
    for i in range(3):
        one_p, one_q = (d.LowRankMultivariateNormal(x.loc[i], x.cov_factor[i], x.cov_diag[i]) for x in (p, q))
        assert torch.allclose(kl(p, q)[i], kl(one_p, one_q), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "family", ["Bernoulli", "Beta", "Dirichlet", "Exponential", "Gamma", "Normal", "Poisson"]
)
def test_exponential_families_by_their_log_normalizer(kl: Kl, family: str) -> None:
    """KL is the Bregman divergence of the log-normalizer, which torch's base class derives for itself."""
    make, values = FAMILIES[family]()
    p, q = grid(make, *values)
    broad_p, broad_q = (x.expand((N, N)) for x in (p, q))
    exact = _kl_expfamily_expfamily(broad_p, broad_q)
    exact = exact.sum(-1) if exact.ndim > 2 else exact
    assert torch.allclose(kl(p, q), exact, rtol=1e-3, atol=1e-3)


INFINITE: dict[str, Callable[[], tuple[Distribution, Distribution]]] = {
    "Bernoulli 0|1": lambda: (d.Bernoulli(0.0), d.Bernoulli(1.0)),
    "Bernoulli 1|0": lambda: (d.Bernoulli(1.0), d.Bernoulli(0.0)),
    "Categorical": lambda: (d.Categorical(torch.tensor([0.9, 0.1])), d.Categorical(torch.tensor([1.0, 0.0]))),
    "Categorical of three": lambda: (
        d.Categorical(torch.tensor([[0.9, 0.1, 0.0]])),
        d.Categorical(torch.tensor([[0.0, 0.2, 0.8]])),
    ),
    "Beta|Uniform": lambda: (d.Beta(1.0, 2.0), d.Uniform(0.5, 1.0)),
    "Beta|Pareto": lambda: (d.Beta(1.0, 2.0), d.Pareto(0.5, 1.0)),
    "Binomial": lambda: (d.Binomial(31, 0.7), d.Binomial(30, 0.3)),
    "ContinuousBernoulli|Uniform": lambda: (d.ContinuousBernoulli(0.25), d.Uniform(0.25, 1.0)),
    "ContinuousBernoulli|Pareto": lambda: (d.ContinuousBernoulli(0.25), d.Pareto(0.25, 1.0)),
    "Exponential|Beta": lambda: (d.Exponential(1.0), d.Beta(2.0, 2.0)),
    "Exponential|ContinuousBernoulli": lambda: (d.Exponential(1.0), d.ContinuousBernoulli(0.75)),
    "Exponential|Pareto": lambda: (d.Exponential(2.0), d.Pareto(2.0, 2.0)),
    "Exponential|Uniform": lambda: (d.Exponential(2.0), d.Uniform(0.0, 2.0)),
    "Gamma|Beta": lambda: (d.Gamma(1.0, 2.0), d.Beta(3.0, 4.0)),
    "Gamma|ContinuousBernoulli": lambda: (d.Gamma(1.0, 2.0), d.ContinuousBernoulli(0.75)),
    "Gamma|Pareto": lambda: (d.Gamma(1.0, 2.0), d.Pareto(2.0, 2.0)),
    "Gamma|Uniform": lambda: (d.Gamma(1.0, 2.0), d.Uniform(0.0, 2.0)),
    "Gumbel|Beta": lambda: (d.Gumbel(-1.0, 2.0), d.Beta(3.0, 4.0)),
    "Gumbel|Exponential": lambda: (d.Gumbel(-1.0, 2.0), d.Exponential(3.0)),
    "Gumbel|Gamma": lambda: (d.Gumbel(-1.0, 2.0), d.Gamma(3.0, 4.0)),
    "Gumbel|Pareto": lambda: (d.Gumbel(-1.0, 2.0), d.Pareto(3.0, 4.0)),
    "Gumbel|Uniform": lambda: (d.Gumbel(-1.0, 2.0), d.Uniform(-3.0, 4.0)),
    "Laplace|Beta": lambda: (d.Laplace(-1.0, 2.0), d.Beta(3.0, 4.0)),
    "Laplace|Exponential": lambda: (d.Laplace(-1.0, 2.0), d.Exponential(3.0)),
    "Laplace|Gamma": lambda: (d.Laplace(-1.0, 2.0), d.Gamma(3.0, 4.0)),
    "Laplace|Pareto": lambda: (d.Laplace(-1.0, 2.0), d.Pareto(3.0, 4.0)),
    "Laplace|Uniform": lambda: (d.Laplace(-1.0, 2.0), d.Uniform(-3.0, 4.0)),
    "Normal|Beta": lambda: (d.Normal(-1.0, 2.0), d.Beta(3.0, 4.0)),
    "Normal|Exponential": lambda: (d.Normal(-1.0, 2.0), d.Exponential(3.0)),
    "Normal|Gamma": lambda: (d.Normal(-1.0, 2.0), d.Gamma(3.0, 4.0)),
    "Normal|Pareto": lambda: (d.Normal(-1.0, 2.0), d.Pareto(3.0, 4.0)),
    "Normal|Uniform": lambda: (d.Normal(-1.0, 2.0), d.Uniform(-3.0, 4.0)),
    "Pareto|Beta": lambda: (d.Pareto(2.0, 1.0), d.Beta(3.0, 4.0)),
    "Pareto|Uniform": lambda: (d.Pareto(2.0, 1.0), d.Uniform(2.0, 4.0)),
    "Pareto of slow tail|Exponential": lambda: (d.Pareto(2.0, 1.0), d.Exponential(3.0)),
    "Pareto of slow tail|Gamma": lambda: (d.Pareto(2.0, 1.0), d.Gamma(3.0, 4.0)),
    "Pareto of slow tail|Normal": lambda: (d.Pareto(2.0, 2.0), d.Normal(3.0, 4.0)),
    "Poisson|Bernoulli": lambda: (d.Poisson(2.0), d.Bernoulli(0.5)),
    "Poisson|Binomial": lambda: (d.Poisson(2.0), d.Binomial(30, 0.3)),
    "Uniform|Beta": lambda: (d.Uniform(-1.0, 2.0), d.Beta(3.0, 4.0)),
    "Uniform|ContinuousBernoulli": lambda: (d.Uniform(-1.0, 2.0), d.ContinuousBernoulli(0.25)),
    "Uniform|Exponential": lambda: (d.Uniform(-1.0, 2.0), d.Exponential(3.0)),
    "Uniform|Gamma": lambda: (d.Uniform(-1.0, 2.0), d.Gamma(3.0, 4.0)),
    "Uniform|Pareto": lambda: (d.Uniform(-1.0, 2.0), d.Pareto(3.0, 4.0)),
}


@pytest.mark.parametrize("pair", INFINITE)
def test_infinite_divergences(kl: Kl, pair: str) -> None:
    value = kl(*INFINITE[pair]())
    assert bool((value == math.inf).all()), value


def test_degenerate_parameters(kl: Kl) -> None:
    assert kl(d.Bernoulli(torch.tensor(0.0)), d.Bernoulli(torch.tensor(0.0))) == 0
    assert kl(d.Bernoulli(torch.tensor(1.0)), d.Bernoulli(torch.tensor(1.0))) == 0
    for probs in ([0.0, 1.0], [1.0, 0.0]):
        one = torch.tensor(probs)
        assert kl(d.Categorical(one), d.Categorical(one.clone())) == 0
    # 0 log 0 = 0 where P leaves a class out that Q has.
    value = kl(d.Categorical(torch.tensor([0.0, 1.0])), d.Categorical(torch.tensor([0.25, 0.75])))
    assert value.item() == pytest.approx(-math.log(0.75), rel=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_shape_is_the_batch_shape(kl: Kl, family: str) -> None:
    make, values = FAMILIES[family]()
    p, q = grid(make, *values)
    assert kl(p, q).shape == torch.broadcast_shapes(p.batch_shape, q.batch_shape) == (N, N)
    same = make(*values)
    assert kl(same, same).shape == same.batch_shape


ENTROPIES: dict[str, Any] = {
    "Bernoulli": (
        lambda: d.Bernoulli(torch.rand(N)),
        lambda: d.Bernoulli(torch.full((N,), 0.5)),
        math.log(2),
    ),
    "Categorical": (
        lambda: d.Categorical(simplex(N, 5)),
        lambda: d.Categorical(torch.full((N, 5), 0.2)),
        math.log(5),
    ),
    "OneHotCategorical": (
        lambda: d.OneHotCategorical(simplex(N, 5)),
        lambda: d.OneHotCategorical(torch.full((N, 5), 0.2)),
        math.log(5),
    ),
    "Beta": (lambda: d.Beta(*positive(2, N)), lambda: d.Uniform(torch.zeros(N), 1.0), 0.0),
    "Dirichlet": (
        lambda: d.Dirichlet(positive(N, 3)),
        lambda: d.Dirichlet(torch.ones(N, 3)),
        -math.log(2),
    ),
    "Uniform": (lambda: d.Uniform(0.2 * torch.ones(N), 0.7), lambda: d.Uniform(torch.zeros(N), 1.0), 0.0),
}


@pytest.mark.parametrize("family", ENTROPIES)
def test_entropy_is_what_is_left_from_a_uniform_distribution(kl: Kl, family: str) -> None:
    make, uniform, most = ENTROPIES[family]
    p = make()
    assert torch.allclose(most - kl(p, uniform()), p.entropy(), rtol=1e-4, atol=1e-4)
