"""Objects of other libraries are computed where they map to a density; for the others the message has the line."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.neighbors import KernelDensity
from torch import distributions as td
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Uniform,
    constraints,
)

from kullback import (
    JensenShannon,
    Probs,
    Samples,
    cross_entropy,
    divergence,
    entropy,
    fit,
    kl_divergence,
    kl_estimate,
)
from kullback.errors import ArgumentTypeError, NoRuleError
from tests.refusals import refused

LINE = np.random.default_rng(0).normal(size=(120, 1))
PLANE = np.random.default_rng(1).normal(size=(120, 2)) @ np.array([[1.0, 0.3], [0.0, 0.8]])
SPACE = {
    "Categorical": Categorical,
    "Independent": Independent,
    "MixtureSameFamily": MixtureSameFamily,
    "MultivariateNormal": MultivariateNormal,
    "Normal": Normal,
    "Samples": Samples,
    "Uniform": Uniform,
    "numpy": np,
    "scipy": __import__("scipy.stats"),
    "torch": torch,
}

# ---- Finite supports of SciPy: numbers are values.


def summed(p: Any, q: Any, last: int) -> float:
    k = np.arange(-10, last)
    a, b = p.pmf(k), q.pmf(k)
    terms = [x * math.log(x / y) if y > 0 else math.inf for x, y in zip(a, b, strict=True) if x > 0]
    return sum(terms)


FINITE = {
    "randint": (stats.randint(0, 10), stats.randint(0, 20)),
    "randint moved": (stats.randint(3, 10), stats.randint(3, 20)),
    "randint apart": (stats.randint(0, 10), stats.randint(-5, 15)),
    "betabinom": (stats.betabinom(10, 2, 3), stats.betabinom(12, 2, 3)),
    "hypergeom": (stats.hypergeom(20, 7, 12), stats.hypergeom(30, 10, 12)),
    "zipfian": (stats.zipfian(1.2, 50), stats.zipfian(1.2, 100)),
    "boltzmann": (stats.boltzmann(0.4, 9), stats.boltzmann(0.3, 30)),
    "nhypergeom": (stats.nhypergeom(20, 7, 12), stats.nhypergeom(25, 8, 12)),
    "poisson_binom": (stats.poisson_binom([0.1, 0.2, 0.3]), stats.poisson_binom([0.1, 0.2, 0.3, 0.4])),
    "values": (
        stats.rv_discrete(values=([1, 2], [0.5, 0.5]))(),
        stats.rv_discrete(values=([1, 2, 5], [0.3, 0.3, 0.4]))(),
    ),
    "values without a call": (
        stats.rv_discrete(values=([0, 2], [0.5, 0.5])),
        stats.rv_discrete(values=([0, 2, 5], [0.3, 0.3, 0.4])),
    ),
    "two families": (stats.binom(5, 0.3), stats.betabinom(7, 2, 3)),
}


def test_finite_supports_of_other_sizes_are_comparable() -> None:
    for name, (p, q) in FINITE.items():
        truth = summed(p, q, 120)
        assert float(kl_divergence(p, q)) == pytest.approx(truth, rel=1e-9), name
        assert float(kl_divergence(q, p)) == math.inf, f"{name} reversed"
        own = float(cross_entropy(p, p))
        assert float(cross_entropy(p, q)) == pytest.approx(truth + own, rel=1e-9), name
        middle = divergence(p, q, "js")
        assert 0 < float(middle) < math.log(2), name
    p, q = stats.randint(0, 10), Categorical(torch.ones(20, dtype=torch.float64))
    assert float(kl_divergence(p, q)) == pytest.approx(math.log(2))
    assert float(kl_divergence(p, Probs([0.1] * 10))) == pytest.approx(0, abs=1e-7)
    logits = torch.zeros(20, dtype=torch.float64, requires_grad=True)
    kl_divergence(p, Categorical(logits=logits)).backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == pytest.approx([1 / 20 - 1 / 10] * 10 + [1 / 20] * 10)
    batch = kl_divergence(stats.randint(0, np.array([10, 15])), stats.randint(0, 20))
    assert batch.tolist() == pytest.approx([math.log(2), math.log(20 / 15)])


def test_values_that_are_not_integers_are_refused() -> None:
    half = stats.rv_discrete(values=([0, 0.5], [0.5, 0.5]))
    with refused(ArgumentTypeError, wanted="over finitely many integers"):
        kl_divergence(half, half)


# ---- Histograms.


def exact(p: Any, q: Any) -> float:
    """The sum over the bins of both."""
    edges = np.union1d(p._hbins, q._hbins)
    middle, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    a, b = p.pdf(middle), q.pdf(middle)
    terms = zip(a, b, width, strict=True)
    return float(sum(w * x * (math.log(x / y) if y > 0 else math.inf) for x, y, w in terms if x > 0))


def test_histograms_are_densities() -> None:
    x, y = LINE[:, 0], LINE[:, 0] * 1.2 + 0.3
    p = stats.rv_histogram(np.histogram(x, bins=10, range=(-4, 4)))
    q = stats.rv_histogram(np.histogram(y, bins=[-4, -1.5, -0.5, 0.3, 1, 2, 5]), density=False)
    assert float(kl_divergence(p, p)) == 0
    assert float(kl_divergence(p, q)) == pytest.approx(exact(p, q), rel=1e-10)
    assert float(kl_divergence(p(), q())) == pytest.approx(exact(p, q), rel=1e-10)
    assert float(kl_divergence(p(loc=1, scale=2), q(loc=1, scale=2))) == pytest.approx(exact(p, q), rel=1e-9)
    pieces = [
        integrate.quad(lambda t: p.pdf(t) * (p.logpdf(t) - stats.norm.logpdf(t)), low, high)[0]
        for low, high in zip(p._hbins, p._hbins[1:], strict=False)
        if p.pdf((low + high) / 2) > 0
    ]
    assert float(kl_divergence(p, stats.norm())) == pytest.approx(sum(pieces), rel=1e-8)
    assert float(kl_divergence(stats.norm(), p)) == math.inf


# ---- SciPy's new interface.


@pytest.mark.sweep
def test_distributions_of_the_new_interface_are_computed() -> None:
    normal, uniform = stats.Normal(mu=0.0, sigma=1.0), stats.Uniform(a=0.2, b=0.9)
    gamma, poisson = stats.make_distribution(stats.gamma), stats.make_distribution(stats.randint)
    pairs: dict[str, tuple[Any, Any, Any, Any]] = {
        "Normal": (normal, stats.Normal(mu=1.0, sigma=2.0), stats.norm(), stats.norm(1, 2)),
        "standard": (stats.Normal(), stats.norm(1, 2), stats.norm(), stats.norm(1, 2)),
        "Uniform": (uniform, stats.Uniform(a=0.0, b=1.0), stats.uniform(0.2, 0.7), stats.uniform()),
        "Logistic": (stats.Logistic(), normal, stats.logistic(), stats.norm()),
        "a family": (gamma(a=2.0), gamma(a=3.0), stats.gamma(2.0), stats.gamma(3.0)),
        "truncated": (stats.truncate(normal, -1, 1), normal, stats.truncnorm(-1, 1), stats.norm()),
        "scaled": (normal * 2 + 1, normal, stats.norm(1, 2), stats.norm()),
        "exp": (
            stats.exp(normal),
            stats.lognorm(1.0, scale=2),
            stats.lognorm(1.0),
            stats.lognorm(1.0, scale=2),
        ),
        "folded": (abs(normal), stats.halfnorm(scale=2), stats.halfnorm(), stats.halfnorm(scale=2)),
        "Binomial": (
            stats.Binomial(n=5, p=0.3),
            stats.binom(5, 0.4),
            stats.binom(5, 0.3),
            stats.binom(5, 0.4),
        ),
        "integers": (
            poisson(low=0, high=10),
            stats.randint(0, 20),
            stats.randint(0, 10),
            stats.randint(0, 20),
        ),
    }
    for name, (p, q, own_p, own_q) in pairs.items():
        truth = kl_divergence(own_p, own_q)
        assert float(kl_divergence(p, q)) == pytest.approx(float(truth), rel=1e-7), name
    mixture = stats.Mixture([normal, stats.Normal(mu=3.0, sigma=1.0)], weights=[0.5, 0.5])
    both = MixtureSameFamily(
        Categorical(torch.ones(2, dtype=torch.float64)),
        Normal(torch.tensor([0.0, 3.0], dtype=torch.float64), 1.0),
    )
    truth = float(kl_divergence(both, Normal(torch.tensor(0.0, dtype=torch.float64), 1.0)))
    assert float(kl_divergence(mixture, normal)) == pytest.approx(truth, rel=1e-7)
    many = kl_divergence(stats.Normal(mu=[0.0, 1.0], sigma=1.0), stats.norm(1, 2))
    assert many.tolist() == pytest.approx([math.log(2) - 0.25, math.log(2) - 0.375])
    draws = Samples(LINE, independent=True)
    assert kl_estimate(draws, normal).n == (120, 0)
    assert float(entropy(normal)) == pytest.approx(float(stats.norm().entropy()))
    assert float(fit(Normal(0.0, 1.0), to=stats.Logistic()).distribution.scale) == pytest.approx(
        math.pi / math.sqrt(3), rel=1e-4
    )
    with refused(NoRuleError, instead=r"p\.entropy\(\) of SciPy"):
        entropy(stats.logistic())
    endless = stats.make_distribution(stats.poisson)(mu=3.0)
    with refused(ArgumentTypeError, wanted="over finitely many integers"):
        kl_divergence(endless, endless)


# ---- The line to write.


def written(p: Any, q: Any) -> Any:
    """The divergence after the lines that the messages name, one after the other."""
    space = {**SPACE, "p": p, "q": q}
    for _ in range(2):
        try:
            return kl_estimate(space["p"], space["q"])
        except ArgumentTypeError as error:
            space[str(error.argument)] = eval(str(error.instead), space)  # noqa: S307
    return kl_estimate(space["p"], space["q"])


def test_the_lines_for_densities_on_the_line_are_their_densities() -> None:
    weights = np.linspace(1, 2, len(LINE))
    x = np.linspace(-2, 2, 9)
    objects: dict[str, tuple[Any, Any]] = {
        "kde": (stats.gaussian_kde(LINE[:, 0]), lambda d: d.logpdf(x)),
        "kde with weights": (stats.gaussian_kde(LINE[:, 0], weights=weights), lambda d: d.logpdf(x)),
        "KernelDensity": (KernelDensity(bandwidth=0.4).fit(LINE), lambda d: d.score_samples(x[:, None])),
        "KernelDensity with weights": (
            KernelDensity(bandwidth=0.4).fit(LINE, sample_weight=weights),
            lambda d: d.score_samples(x[:, None]),
        ),
        "tophat": (
            KernelDensity(bandwidth=0.4, kernel="tophat").fit(LINE),
            lambda d: d.score_samples(x[:, None]),
        ),
        **{
            kind: (
                GaussianMixture(2, covariance_type=kind, random_state=0).fit(LINE),
                lambda d: d.score_samples(x[:, None]),
            )
            for kind in ("full", "tied", "diag", "spherical")
        },
    }
    for name, (d, log_density) in objects.items():
        with pytest.raises(ArgumentTypeError) as caught:
            kl_divergence(d, Normal(0.0, 1.0))
        made = eval(caught.value.instead or "", {**SPACE, "p": d})  # noqa: S307
        for part in (made, made.component_distribution):  # torch refuses points outside of one uniform part
            part._validate_args = False
        assert made.log_prob(torch.tensor(x)).numpy() == pytest.approx(log_density(d), rel=1e-6), name
    assert float(written(objects["full"][0], objects["full"][0]).value) == 0
    variational = BayesianGaussianMixture(n_components=2, max_iter=2000, random_state=0).fit(LINE)
    assert float(written(objects["kde"][0], variational).value) < 0.2
    assert float(written(Normal(0.0, 1.0), objects["KernelDensity"][0]).value) < 0.2
    assert float(written(Samples(LINE, independent=True), objects["kde"][0]).value) < 0.2


def test_the_lines_for_vectors_are_draws_of_p_and_the_density_of_q() -> None:
    x = np.random.default_rng(3).normal(size=(7, 2))
    objects: dict[str, tuple[Any, Any]] = {
        "kde": (stats.gaussian_kde(PLANE.T), lambda d: d.logpdf(x.T)),
        "KernelDensity": (KernelDensity(bandwidth=0.4).fit(PLANE), lambda d: d.score_samples(x)),
        **{
            kind: (
                GaussianMixture(2, covariance_type=kind, random_state=0).fit(PLANE),
                lambda d: d.score_samples(x),
            )
            for kind in ("full", "tied", "diag", "spherical")
        },
    }
    draws = Samples(PLANE, independent=True)
    for name, (d, log_density) in objects.items():
        with pytest.raises(ArgumentTypeError) as caught:
            kl_estimate(draws, d)
        made = eval(caught.value.instead or "", {**SPACE, "q": d})  # noqa: S307
        assert made.log_prob(torch.tensor(x)).numpy() == pytest.approx(log_density(d), rel=1e-6), name
        with pytest.raises(ArgumentTypeError) as caught:
            kl_estimate(d, draws)
        made = eval(caught.value.instead or "", {**SPACE, "p": d})  # noqa: S307
        assert made.tensor.shape == (10_000, 2), name
    for kernel, number in (("tophat", 10_000), ("epanechnikov", len(PLANE))):
        with pytest.raises(ArgumentTypeError) as caught:
            kl_estimate(KernelDensity(kernel=kernel).fit(PLANE), draws)
        made = eval(caught.value.instead or "", {**SPACE, "p": KernelDensity(kernel=kernel).fit(PLANE)})  # noqa: S307
        assert len(made) == number
    assert float(written(draws, objects["full"][0]).value) < 0.3


def test_families_without_parameters_and_classes_are_named() -> None:
    for family, truth in ((stats.norm, stats.norm()), (stats.randint, None), (stats.gamma, None)):
        with refused(ArgumentTypeError, instead=rf"scipy\.stats\.{family.name}\(") as caught:
            kl_divergence(family, family)
        line = (caught.value.instead or "").partition(", with")[0]
        made = eval(line.replace("low=...", "low=0").replace("=...", "=3"), SPACE)  # noqa: S307
        assert float(kl_divergence(made, made)) == 0
        if truth is not None:
            assert float(kl_divergence(made, truth)) == 0
    for family in (td.Normal, stats.Normal):
        with refused(ArgumentTypeError, got="the class Normal itself"):
            kl_divergence(family, family)
    with refused(ArgumentTypeError, instead=r"multivariate_normal\(\.\.\.\)"):
        kl_divergence(stats.multivariate_normal, stats.multivariate_normal)
    for unfitted in (GaussianMixture(2), KernelDensity()):
        with refused(ArgumentTypeError, instead=r"p\.fit\(x\) first"):
            kl_divergence(unfitted, unfitted)


class WithoutSample(Distribution):
    """Rayleigh of scale 1, without draws."""

    arg_constraints: ClassVar = {}
    support = constraints.positive

    def log_prob(self, value):
        return value.log() - value**2 / 2


class WithoutSupport(WithoutSample):
    support = Distribution.support

    def sample(self, sample_shape=()):
        return (-2 * torch.rand(torch.Size(sample_shape)).log()).sqrt()


class Complete(WithoutSupport):
    support = constraints.positive


@pytest.mark.parametrize(("kind", "missing"), [(WithoutSample, "sample"), (WithoutSupport, "support")])
def test_a_class_of_the_line_without_a_method_is_told_which(kind: Any, missing: str) -> None:
    own, normal = kind(validate_args=False), Normal(0.0, 1.0)
    says = {
        "got": f"{kind.__name__} has no {missing}$",
        "instead": f"a (method )?{missing}.* in the class {kind.__name__}",
    }
    for p, q in ((own, normal), (normal, own)):
        with refused(NoRuleError, call="kl_divergence", **says):
            kl_divergence(p, q)
        with refused(NoRuleError, call="divergence", **says):
            divergence(p, q, JensenShannon())
    # KL of Rayleigh(1) from Normal(0, 1) is the mean of log x + log(2 pi) / 2.
    want = 0.5 * (math.log(2) - 0.5772156649) + 0.5 * math.log(2 * math.pi)
    complete = Complete(validate_args=False)
    assert float(kl_divergence(complete, normal)) == pytest.approx(want, abs=1e-5)
    assert 0 < float(divergence(complete, normal, JensenShannon())) < math.log(2)


def test_draws_name_the_class_without_a_method_and_need_no_support() -> None:
    normal = Normal(0.0, 1.0)
    for p, q in ((WithoutSample(validate_args=False), normal), (normal, WithoutSample(validate_args=False))):
        with refused(NoRuleError, argument="method", got="^WithoutSample without sample$"):
            kl_divergence(p, q, method="monte_carlo")
    draw = torch.Generator().manual_seed(0)
    own = WithoutSupport(validate_args=False)
    with refused(NoRuleError, instead="or method='monte_carlo' for an estimate from draws"):
        kl_divergence(own, normal)
    drawn = kl_divergence(own, normal, method="monte_carlo", generator=draw)
    assert float(drawn) == pytest.approx(0.9769, abs=0.05)
