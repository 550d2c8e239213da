"""Fits in KL(to || q) of exponential families are the known projections: by formulas, and by mpmath."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Cauchy,
    Chi2,
    ContinuousBernoulli,
    Dirichlet,
    Distribution,
    Exponential,
    Gamma,
    Geometric,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Independent,
    InverseGamma,
    Laplace,
    LogNormal,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    Multinomial,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    OneHotCategorical,
    Pareto,
    Poisson,
    StudentT,
    Uniform,
    VonMises,
    Weibull,
    Wishart,
)

from kullback import KL, Counts, Logits, Probs, Samples, divergence, fit, register_kl
from kullback.errors import ArgumentValueError
from kullback.fitting import choose_method, starts
from kullback.fitting.exact_fit import nearest
from kullback.pairs.clone import unvalidated, upcast_copy
from tests.test_dispatch import calls_of

mpmath.mp.dps = 30


def t(*values: float) -> Tensor:
    return torch.tensor(values if len(values) > 1 else values[0], dtype=torch.float64)


def eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def named(x: object) -> str:
    return type(x).__name__ if isinstance(x, Distribution) else ""


SPD = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)

# A start, and a member of the family far from it, with its parameters by name.
MEMBERS: list[tuple[Distribution, Distribution, tuple[str, ...]]] = [
    (Normal(t(0), t(1)), Normal(t(1e3), t(1e-3)), ("loc", "scale")),
    (LogNormal(t(0), t(1)), LogNormal(t(-3), t(0.01)), ("loc", "scale")),
    (Exponential(t(1)), Exponential(t(1e-4)), ("rate",)),
    (HalfNormal(t(1)), HalfNormal(t(1e5)), ("scale",)),
    (Gamma(t(1), t(1)), Gamma(t(4.5), t(2.5)), ("concentration", "rate")),
    (Gamma(t(1), t(1)), Gamma(t(1e-3), t(1e3)), ("concentration", "rate")),
    (Gamma(t(1), t(1)), Gamma(t(1e4), t(3)), ("concentration", "rate")),
    (InverseGamma(t(1), t(1)), InverseGamma(t(3), t(40)), ("concentration", "rate")),
    (Chi2(t(1)), Chi2(t(7)), ("df",)),
    (Beta(t(1), t(1)), Beta(t(0.05), t(30)), ("concentration1", "concentration0")),
    (Beta(t(1), t(1)), Beta(t(200), t(300)), ("concentration1", "concentration0")),
    (ContinuousBernoulli(t(0.5)), ContinuousBernoulli(t(0.1)), ("probs",)),
    (ContinuousBernoulli(logits=t(0)), ContinuousBernoulli(logits=t(15)), ("logits",)),
    (ContinuousBernoulli(logits=t(1)), ContinuousBernoulli(logits=t(1e-3)), ("logits",)),
    (VonMises(t(0), t(1)), VonMises(t(-3), t(1e-2)), ("loc", "concentration")),
    (VonMises(t(0), t(1)), VonMises(t(2), t(1e3)), ("loc", "concentration")),
    (Laplace(t(0), t(1)), Laplace(t(30), t(4)), ("loc", "scale")),
    (Pareto(t(1), t(1)), Pareto(t(3), t(0.4)), ("scale", "alpha")),
    (Uniform(t(0), t(9)), Uniform(t(2), t(3)), ("low", "high")),
    (Bernoulli(t(0.5)), Bernoulli(t(0.01)), ("probs",)),
    (Bernoulli(logits=t(0)), Bernoulli(logits=t(-12)), ("logits",)),
    (Binomial(9, t(0.5)), Binomial(9, t(0.3)), ("probs",)),
    (Poisson(t(1)), Poisson(t(2e4)), ("rate",)),
    (Geometric(t(0.5)), Geometric(t(1e-3)), ("probs",)),
    (NegativeBinomial(t(3), t(0.5)), NegativeBinomial(t(3), t(0.9)), ("probs",)),
    (Categorical(t(1, 1, 1)), Categorical(t(0.2, 0.8, 0)), ("probs",)),
    (Categorical(logits=t(0, 0, 0)), Categorical(logits=t(1, -200, 3)), ("logits",)),
    (OneHotCategorical(t(1, 1, 1)), OneHotCategorical(t(0.2, 0.7, 0.1)), ("probs",)),
    (Multinomial(5, t(1, 1, 1)), Multinomial(5, t(0.2, 0.7, 0.1)), ("probs",)),
    (Dirichlet(t(1, 1, 1)), Dirichlet(t(0.3, 4, 50)), ("concentration",)),
    (MultivariateNormal(t(0, 0), eye(2)), MultivariateNormal(t(1, 2), SPD), ("loc", "scale_tril")),
    (Wishart(t(4), eye(2)), Wishart(t(5.5), SPD), ("df", "scale_tril")),
    (
        Independent(Gamma(t(1, 1), t(1, 1)), 1),
        Independent(Gamma(t(2, 9), t(3, 1)), 1),
        ("concentration", "rate"),
    ),
]


@pytest.mark.parametrize(("q", "to", "names"), MEMBERS, ids=named)
def test_a_member_of_the_family_is_found_again(
    q: Distribution, to: Distribution, names: tuple[str, ...]
) -> None:
    found = fit(q, to=to, fixed=("total_count",) if isinstance(q, NegativeBinomial) else ())
    assert found.method == "moment_matching"
    assert found.quantity == "KL(to || q)"
    assert bool(found.converged.all())
    for name in names:
        inner = (x.base_dist if isinstance(x, Independent) else x for x in (found.distribution, to))
        a, b = (getattr(x, name) for x in inner)
        torch.testing.assert_close(
            a, b, rtol=1e-10, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert bool((found.value <= 1e-15).all())


def solved(equation: Callable[[mpmath.mpf], mpmath.mpf], start: float | tuple[float, float]) -> float:
    return float(mpmath.findroot(equation, start))


MODES = MixtureSameFamily(Categorical(t(0.3, 0.7)), Normal(t(-3, 2), t(1, 0.5)))
PSI1_4 = float(mpmath.psi(1, 4))

# A start, a target of another family, and the parameters of the projection.
PROJECTIONS: list[tuple[Distribution, Distribution, dict[str, float]]] = [
    (Normal(t(0), t(1)), Gamma(t(4), t(2)), {"loc": 2.0, "scale": 1.0}),
    (
        Normal(t(0), t(1)),
        MODES,
        {"loc": 0.5, "scale": float(np.sqrt(0.3 * (1 + 3.5**2) + 0.7 * (0.25 + 1.5**2)))},
    ),
    (Normal(t(0), t(1)), StudentT(t(5.0)), {"loc": 0.0, "scale": float(np.sqrt(5 / 3))}),
    (Normal(t(0), t(1)), Laplace(t(1e8), t(1e-2)), {"loc": 1e8, "scale": float(np.sqrt(2e-4))}),
    (
        LogNormal(t(0), t(1)),
        Gamma(t(4), t(2)),
        {"loc": float(mpmath.psi(0, 4)) - np.log(2), "scale": PSI1_4**0.5},
    ),
    (Exponential(t(1)), Gamma(t(4), t(2)), {"rate": 0.5}),
    (HalfNormal(t(1)), Gamma(t(4), t(2)), {"scale": float(np.sqrt(5.0))}),
    (
        Gamma(t(1), t(1)),
        LogNormal(t(0.5), t(0.8)),
        {
            "concentration": (
                a := solved(lambda a: mpmath.log(a) - mpmath.psi(0, a) - mpmath.mpf("0.8") ** 2 / 2, 1.5)
            ),
            "rate": a / np.exp(0.5 + 0.32),
        },
    ),
    (
        InverseGamma(t(1), t(1)),
        LogNormal(t(0.5), t(0.8)),
        {"concentration": a, "rate": a / np.exp(-0.5 + 0.32)},
    ),
    (
        Chi2(t(1)),
        Gamma(t(4), t(2)),
        {"df": solved(lambda d: mpmath.psi(0, d / 2) + mpmath.log(4) - mpmath.psi(0, 4), 4)},
    ),
    (Laplace(t(0), t(1)), Gamma(t(3), t(4)), {"loc": float(scipy.special.gammaincinv(3, 0.5)) / 4}),
    (Beta(t(3), t(1)), Uniform(t(0), t(1)), {"concentration1": 1.0, "concentration0": 1.0}),
    (
        ContinuousBernoulli(t(0.5)),
        Beta(t(2), t(5)),
        {"logits": solved(lambda x: 1 / (1 - mpmath.exp(-x)) - 1 / x - mpmath.mpf(2) / 7, -3)},
    ),
    (
        VonMises(t(1), t(1)),
        Uniform(t(-1), t(1)),
        {
            "loc": 0.0,
            "concentration": solved(lambda k: mpmath.besseli(1, k) / mpmath.besseli(0, k) - mpmath.sin(1), 3),
        },
    ),
    (Pareto(t(1), t(1)), Uniform(t(1), t(2)), {"scale": 1.0, "alpha": float(1 / (2 * np.log(2) - 1))}),
    (Poisson(t(1)), NegativeBinomial(t(3), t(0.4)), {"rate": 2.0}),
    (Geometric(t(0.5)), Poisson(t(3)), {"probs": 0.25}),
    (NegativeBinomial(t(2), t(0.5)), Poisson(t(3)), {"probs": 0.6}),
    (Bernoulli(t(0.5)), Binomial(1, t(0.2)), {"probs": 0.2}),
    (Binomial(9, t(0.5)), Binomial(4, t(0.9)), {"probs": 0.4}),
    (Poisson(t(1)), Categorical(t(0.1, 0.2, 0.7)), {"rate": 1.6}),
]


@pytest.mark.parametrize(("q", "to", "known"), PROJECTIONS, ids=named)
def test_the_projection_of_another_family_is_the_known_one(
    q: Distribution, to: Distribution, known: dict[str, float]
) -> None:
    found = fit(q, to=to, fixed=("total_count",) if isinstance(q, NegativeBinomial) else ())
    assert found.method == "moment_matching"
    for name, value in known.items():
        assert float(getattr(found.distribution, name)) == pytest.approx(value, rel=1e-10, abs=1e-10), name
    assert found.error is not None
    assert float(found.error) < 1e-7  # of locations near 1e8, else 1e-9


@pytest.mark.parametrize(("q", "to", "known"), PROJECTIONS, ids=named)
def test_no_neighbor_of_the_projection_is_nearer(
    q: Distribution, to: Distribution, known: dict[str, float]
) -> None:
    found = fit(q, to=to, fixed=("total_count",) if isinstance(q, NegativeBinomial) else ())
    for name in known:
        if name in ("low", "high") or (isinstance(q, Pareto) and name == "scale"):
            continue
        for factor in (0.99, 1.01):
            parameters = {
                n: getattr(found.distribution, n) for n in known if not (n == "logits" and "probs" in known)
            }
            if isinstance(q, Laplace):
                parameters["scale"] = found.distribution.scale
            if isinstance(q, Binomial | NegativeBinomial):
                parameters["total_count"] = q.total_count
            parameters[name] = parameters[name] * factor + (0.01 * (factor - 1) if name == "loc" else 0)
            assert float(divergence(to, type(q)(**parameters), KL())) >= float(found.value) - 1e-13


@pytest.mark.parametrize(
    ("q", "fixed", "known"),
    [
        (Normal(t(1), t(9)), "loc", {"loc": 1.0, "scale": float(np.sqrt(1 + 1))}),
        (Normal(t(1), t(9)), "scale", {"loc": 2.0, "scale": 9.0}),
        (LogNormal(t(0), t(9)), "scale", {"loc": float(mpmath.psi(0, 4)) - np.log(2), "scale": 9.0}),
        (Gamma(t(3), t(1)), "concentration", {"concentration": 3.0, "rate": 1.5}),
        (Gamma(t(3), t(2)), "rate", {"concentration": 4.0, "rate": 2.0}),
        (Weibull(t(1), t(2)), "concentration", {"scale": float(np.sqrt(5.0)), "concentration": 2.0}),
        (Laplace(t(0), t(1)), "loc", {"loc": 0.0, "scale": 2.0}),
    ],
    ids=named,
)
def test_fixed_parameters_stay(q: Distribution, fixed: str, known: dict[str, float]) -> None:
    """Of Gamma(4, 2), whose mean is 2 and whose variance is 1."""
    found = fit(q, to=Gamma(t(4), t(2)), fixed=(fixed,))
    assert found.method == "moment_matching"
    for name, value in known.items():
        assert float(getattr(found.distribution, name)) == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize(
    ("fixed", "free", "value"),
    [("concentration1", "concentration0", 5.0), ("concentration0", "concentration1", 2.0)],
)
def test_one_concentration_of_a_beta_stays(fixed: str, free: str, value: float) -> None:
    found = fit(Beta(t(2), t(5)), to=Beta(t(2), t(5)), fixed=(fixed,))
    assert float(getattr(found.distribution, free)) == pytest.approx(value, rel=1e-10)


def test_vectors_have_the_means_and_covariances_of_their_targets() -> None:
    parts = MultivariateNormal(torch.stack([t(0, 0), t(4, 2)]), torch.stack([SPD, eye(2)]))
    to = MixtureSameFamily(Categorical(t(0.25, 0.75)), parts)
    mean = t(3, 1.5)
    d = torch.stack([t(0, 0), t(4, 2)]) - mean
    covariance = (
        0.25 * SPD + 0.75 * eye(2) + sum(w * torch.outer(x, x) for w, x in zip((0.25, 0.75), d, strict=True))
    )
    joint = fit(MultivariateNormal(t(0, 0), eye(2)), to=to, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(joint.distribution.loc, mean, rtol=1e-13, atol=0)
    torch.testing.assert_close(joint.distribution.covariance_matrix, covariance, rtol=1e-12, atol=0)
    assert joint.error is None  # the parameters are exact, the value comes from draws
    assert joint.standard_error is not None
    assert 0 < float(joint.standard_error) < 0.02
    assert "mean over draws" in joint.notes[0]
    diagonal = fit(Independent(Normal(t(0, 0), t(1, 1)), 1), to=MultivariateNormal(mean, covariance))
    torch.testing.assert_close(diagonal.distribution.base_dist.loc, mean, rtol=1e-13, atol=0)
    torch.testing.assert_close(
        diagonal.distribution.base_dist.scale, covariance.diagonal().sqrt(), rtol=1e-13, atol=0
    )
    low_rank = LowRankMultivariateNormal(mean, t(1, 2)[:, None], t(3, 4))
    full = fit(MultivariateNormal(t(0, 0), eye(2)), to=low_rank)
    torch.testing.assert_close(
        full.distribution.covariance_matrix, low_rank.covariance_matrix, rtol=1e-12, atol=0
    )
    independent = Independent(Gamma(t(4, 9), t(2, 3)), 1)
    own = fit(Independent(Normal(t(0, 0), t(1, 1)), 1), to=independent)
    torch.testing.assert_close(own.distribution.base_dist.loc, t(2, 3), rtol=1e-12, atol=0)
    torch.testing.assert_close(own.distribution.base_dist.scale, t(1, 1), rtol=1e-12, atol=0)


def test_maximum_likelihood_is_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    x = rng.gamma(3.0, 2.0, 400)
    shape, _, scale = scipy.stats.gamma.fit(x, floc=0)
    found = fit(Gamma, to=Samples(x))
    assert found.method == "maximum_likelihood"
    assert found.quantity == "negative log-likelihood per draw"
    assert float(found.distribution.concentration) == pytest.approx(shape, rel=1e-6)
    assert float(found.distribution.rate) == pytest.approx(1 / scale, rel=1e-6)
    truth = -scipy.stats.gamma(shape, scale=scale).logpdf(x)
    assert float(found.value) == pytest.approx(truth.mean(), rel=1e-12)
    assert float(found.standard_error) == pytest.approx(truth.std(ddof=1) / 20, rel=1e-6)
    laplace = fit(Laplace, to=Samples(x)).distribution
    assert float(laplace.loc) == pytest.approx(np.median(x), rel=1e-12)
    uniform = fit(Uniform, to=Samples(x)).distribution
    assert (float(uniform.low), float(uniform.high)) == (x.min(), x.max())
    rounded = fit(Uniform(0.0, 1.0), to=Samples(x)).distribution
    assert rounded.low.dtype == torch.float32
    assert float(rounded.low) <= x.min()
    assert float(rounded.high) >= x.max()


def test_weights_count_as_repeated_draws() -> None:
    weighted = fit(Gamma, to=Samples([1.0, 2.0, 5.0], weights=[3, 0, 2]))
    repeated = fit(Gamma, to=Samples([1.0, 1.0, 1.0, 5.0, 5.0]))
    assert float(weighted.value) == pytest.approx(float(repeated.value), rel=1e-12)
    assert float(fit(Laplace, to=Samples([9.0, 1.0, 2.0], weights=[1, 1, 5])).distribution.loc) == 2.0


def test_draws_of_vectors_and_classes() -> None:
    x = np.random.default_rng(1).normal(size=(50, 2)) @ np.array([[1.0, 0.4], [0.0, 2.0]])
    full = fit(MultivariateNormal(t(0, 0), eye(2)), to=Samples(x)).distribution
    np.testing.assert_allclose(full.covariance_matrix.numpy(), np.cov(x.T, ddof=0), rtol=1e-11)
    each = fit(Independent(Normal(t(0, 0), t(1, 1)), 1), to=Samples(x)).distribution
    np.testing.assert_allclose(each.base_dist.scale.numpy(), x.std(0), rtol=1e-12)
    classes = fit(Categorical(t(1, 1, 1)), to=Samples([0, 1, 1, 2, 2, 2])).distribution
    torch.testing.assert_close(classes.probs, t(1, 2, 3) / 6)
    assert float(fit(Bernoulli(t(0.5)), to=Samples([1, 0, 0, 1, 1])).distribution.probs) == pytest.approx(0.6)


def test_finite_probabilities_are_met_exactly() -> None:
    found = fit(Logits(torch.zeros(2, 3)), to=Probs([[0.2, 0.3, 0.5], [0.0, 0.5, 0.5]]))
    assert isinstance(found.distribution, Logits)
    torch.testing.assert_close(
        found.distribution.tensor.softmax(-1), torch.tensor([[0.2, 0.3, 0.5], [0.0, 0.5, 0.5]])
    )
    assert found.value.shape == (2,)
    assert float(fit(Poisson(t(1)), to=Counts([10, 20, 70])).distribution.rate) == pytest.approx(1.6)


def test_a_frozen_distribution_of_scipy_is_a_target() -> None:
    found = fit(Normal(t(0), t(1)), to=scipy.stats.gamma(4, scale=0.5))
    assert float(found.distribution.loc) == pytest.approx(2.0, rel=1e-12)


def test_thousands_of_fits_in_one_batch() -> None:
    a = torch.linspace(0.3, 40, 1500, dtype=torch.float64)
    found = fit(Normal(t(0), t(1)), to=Gamma(a, t(2)))
    torch.testing.assert_close(found.distribution.loc, a / 2, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.distribution.scale, a.sqrt() / 2, rtol=1e-12, atol=0)
    assert found.value.shape == found.converged.shape == (1500,)


def test_the_start_keeps_its_dtype_and_its_tensors() -> None:
    loc = torch.tensor(0.0, requires_grad=True)
    found = fit(Normal(loc, 1.0), to=Gamma(t(4), t(2)))
    assert found.distribution.loc.dtype == torch.float32
    assert not found.distribution.loc.requires_grad
    assert float(loc.detach()) == 0.0
    assert found.value.dtype == torch.float64


@pytest.mark.sweep
@pytest.mark.parametrize("df", [2.0005, 2.05, 2.2, 3.0])
def test_a_variance_that_lies_far_out_is_all_of_it(df: float) -> None:
    """Of Student's t with 2.0005 degrees of freedom float64 has no points where most of the variance lies."""
    found = fit(Normal(t(0), t(1)), to=StudentT(t(df)))
    assert float(found.distribution.scale) == pytest.approx(np.sqrt(df / (df - 2)), rel=1e-6)
    assert bool(found.converged)


@pytest.mark.parametrize(
    ("family", "target"),
    [
        (Normal, Gumbel(0.0, 1.0)),
        (Normal, Cauchy(0.0, 1.0)),
        (Gamma, HalfCauchy(1.0)),
        (Laplace, Samples(torch.ones(10, dtype=torch.float64))),
    ],
    ids=lambda x: getattr(x, "__name__", type(x).__name__),
)
def test_the_formula_is_solved_once_for_a_class(
    family: type[Distribution], target: Distribution | Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets: list[object] = []

    def counted(q: Distribution, to: Any, *others: Any) -> Any:
        targets.append(to)
        return nearest(q, to, *others)

    for module in (choose_method, starts):
        monkeypatch.setattr(module, "nearest", counted)
    with suppress(ArgumentValueError):
        fit(family, to=target)
    assert len(targets) == 1


def test_clusters_enter_the_standard_error() -> None:
    """Each draw five times in a cluster of its own tells no more than once."""
    x = np.random.default_rng(5).normal(size=60)
    once = fit(Normal, to=Samples(x))
    repeated = fit(Normal, to=Samples(np.repeat(x, 5), cluster=np.repeat(np.arange(60), 5)))
    assert float(repeated.standard_error) == pytest.approx(float(once.standard_error), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_start_and_the_end_have_their_own_values(dtype: torch.dtype) -> None:
    """Both come from one integral; each is right, also where one is infinite, and after rounding to float32."""
    modes = torch.tensor([-2.0, 2.0], dtype=dtype)
    mixture = MixtureSameFamily(Categorical(torch.tensor([0.25, 0.75])), Normal(modes, 1.0))
    for name, q, to in (
        ("near", Normal(torch.zeros((), dtype=dtype), 1.0), mixture),
        ("far away", Normal(torch.tensor(40.0, dtype=dtype), 0.25), mixture),
        ("a batch", Normal(torch.tensor([[0.0], [3.0]], dtype=dtype), 1.0), mixture.expand((2,))),
        ("infinite", Uniform(torch.tensor(0.4, dtype=dtype), torch.tensor(0.6, dtype=dtype)), Beta(2.0, 3.0)),
        ("one end fixed", Gamma(torch.tensor(2.0, dtype=dtype), 1.0), Weibull(1.0, torch.tensor([4.0, 8.0]))),
    ):
        fitted = fit(q, to=to, fixed=("rate",) if name == "one end fixed" else ())
        for value, error, member in (
            (fitted.before, fitted.before_error, q),
            (fitted.value, fitted.error, fitted.distribution),
        ):
            assert error is not None
            truth = divergence_by_gauss(to, member)
            assert value.shape == torch.broadcast_shapes(q.batch_shape, to.batch_shape), name
            near = (value == truth) | ((value - truth).abs() <= error + 1e-9 * (1 + truth.abs()))
            assert bool(near.all()), (name, value, truth, error)


def divergence_by_gauss(p: Any, q: Any) -> Tensor:
    """Return KL(P || Q) of each element by Gauss's rule on 40 panels."""
    p, q = (unvalidated(upcast_copy(d)) for d in (p, q))
    low, high = (
        (0.0, 1.0) if isinstance(p, Beta) else (0.0, 12.0) if isinstance(p, Weibull) else (-14.0, 14.0)
    )
    nodes, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(60))
    edges = torch.linspace(low, high, 41, dtype=torch.float64)
    half = (edges[1:] - edges[:-1])[:, None] / 2
    x, w = ((edges[:-1, None] + half * (1 + nodes)).flatten(), (half * weights).flatten())
    x = x.reshape(-1, *[1] * len(torch.broadcast_shapes(p.batch_shape, q.batch_shape)))
    log_p = p.log_prob(x)
    terms = torch.exp(log_p) * (log_p - q.log_prob(x))
    return torch.tensordot(w, terms, 1)


def test_a_rule_of_users_that_takes_no_batch_gives_both_values() -> None:
    class Gauge(Normal):
        """A normal distribution with a rule of its own."""

    @register_kl(Gauge, Normal)
    def of_gauges(p: Gauge, q: Normal) -> Tensor:
        ratio, distance = float(p.scale / q.scale), float((p.loc - q.loc) / q.scale)
        return torch.tensor((ratio**2 + distance**2 - 1) / 2 - np.log(ratio), dtype=torch.float64)

    fitted = fit(Normal(t(0), t(1)), to=Gauge(t(1), t(2)))
    assert float(fitted.before) == pytest.approx(2 - np.log(2), rel=1e-12)
    assert float(fitted.value) == pytest.approx(0.0, abs=1e-12)


def test_a_fit_takes_few_calls() -> None:
    mixture = MixtureSameFamily(Categorical(torch.tensor([0.3, 0.7])), Normal(torch.tensor([-2.0, 2.0]), 1.0))
    assert len(calls_of(lambda: fit(Normal(0.0, 1.0), to=mixture))) <= 600
