"""Fits without a formula reach the optimum: of closed forms, and of SciPy's quadrature and minimizers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
import torch
from torch import Tensor, nn
from torch.distributions import (
    AffineTransform,
    Beta,
    Binomial,
    Categorical,
    Cauchy,
    Distribution,
    Gamma,
    Gumbel,
    Independent,
    Laplace,
    LogNormal,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Poisson,
    RelaxedBernoulli,
    SigmoidTransform,
    StudentT,
    TransformedDistribution,
    Uniform,
    Weibull,
)

import kullback
from kullback import KL, Jeffreys, JensenShannon, Logits, Probs, ReverseKL, Samples, fit
from kullback.fitting.optimize import minimize
from tests.refusals import refused


def t(*values: float) -> Tensor:
    return torch.tensor(values if len(values) > 1 else values[0], dtype=torch.float64)


MODES = MixtureSameFamily(Categorical(t(0.4, 0.6)), Normal(t(-4, 3), t(0.8, 1.2)))


def modes_logpdf(x: float) -> float:
    parts = [math.log(w) + scipy.stats.norm.logpdf(x, m, s) for w, m, s in ((0.4, -4, 0.8), (0.6, 3, 1.2))]
    return float(np.logaddexp(*parts))


def reverse_by_scipy(loc: float, scale: float) -> float:
    """KL(N(loc, scale) || modes) by QUADPACK."""

    def integrand(x: float) -> float:
        log_q = scipy.stats.norm.logpdf(x, loc, scale)
        return math.exp(log_q) * (log_q - modes_logpdf(x))

    ends = loc - 12 * scale, loc + 12 * scale
    return scipy.integrate.quad(integrand, *ends, points=[-4, 3, loc], limit=300, epsabs=1e-12, epsrel=1e-12)[
        0
    ]


@pytest.mark.sweep
@pytest.mark.parametrize("start", [-4.0, 3.0])
def test_a_reverse_fit_reaches_the_optimum_of_the_quadrature_at_each_mode(start: float) -> None:
    found = fit(Normal(t(start), t(1)), to=MODES, kind=ReverseKL(), starts=1)
    best = scipy.optimize.minimize(
        lambda u: reverse_by_scipy(u[0], math.exp(u[1])), [start, 0.0], method="BFGS", options={"gtol": 1e-9}
    )
    assert found.method == "quasi_newton"
    assert float(found.value) == pytest.approx(best.fun, abs=1e-8)
    assert float(found.distribution.loc) == pytest.approx(best.x[0], abs=1e-5)
    assert reverse_by_scipy(float(found.distribution.loc), float(found.distribution.scale)) <= best.fun + 1e-9
    assert float(found.above) < 1e-12
    assert float(found.before) == pytest.approx(reverse_by_scipy(start, 1.0), rel=1e-9)
    assert bool((found.history.diff() <= 1e-13).all())


# KL(N(0, s) || Laplace(0, 1)) is s sqrt(2 / pi) + log 2 - log s - log(2 pi e) / 2: least at s = sqrt(pi / 2). A Uniform
# of width 2 w has w^2 / 6 + log(2 pi) / 2 - log(2 w) to N(0, 1): least at w = sqrt 3.
HALF_LOG_2PI = math.log(2 * math.pi) / 2
KNOWN: list[tuple[Distribution, Distribution, dict[str, float], float]] = [
    (
        Normal(t(1), t(3)),
        Laplace(t(0), t(1)),
        {"loc": 0.0, "scale": math.sqrt(math.pi / 2)},
        1 + math.log(2) - math.log(math.pi / 2) / 2 - HALF_LOG_2PI - 0.5,
    ),
    (
        Uniform(t(-1), t(5)),
        Normal(t(0), t(1)),
        {"low": -math.sqrt(3), "high": math.sqrt(3)},
        0.5 + HALF_LOG_2PI - math.log(2 * math.sqrt(3)),
    ),
    (Gamma(t(1), t(3)), Gamma(t(5), t(0.2)), {"concentration": 5.0, "rate": 0.2}, 0.0),
    (Poisson(t(2)), Poisson(t(7)), {"rate": 7.0}, 0.0),
    (Binomial(6, t(0.2)), Binomial(6, t(0.7)), {"probs": 0.7}, 0.0),
    (Beta(t(1), t(1)), Beta(t(5), t(0.5)), {"concentration1": 5.0, "concentration0": 0.5}, 0.0),
    (StudentT(t(9), t(0), t(1)), Cauchy(t(1), t(2)), {"df": 1.0, "loc": 1.0, "scale": 2.0}, 0.0),
    (Weibull(t(1), t(1)), Weibull(t(3), t(2)), {"scale": 3.0, "concentration": 2.0}, 0.0),
    (Gumbel(t(0), t(1)), Gumbel(t(5), t(0.3)), {"loc": 5.0, "scale": 0.3}, 0.0),
]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("q", "to", "known", "value"),
    KNOWN,
    ids=lambda x: type(x).__name__ if isinstance(x, Distribution) else "",
)
def test_a_reverse_fit_is_the_one_that_calculus_gives(
    q: Distribution, to: Distribution, known: dict[str, float], value: float
) -> None:
    found = fit(q, to=to, kind=ReverseKL())
    assert found.quantity == "KL(q || to)"
    assert float(found.value) == pytest.approx(value, abs=1e-9)
    for name, x in known.items():
        assert float(getattr(found.distribution, name)) == pytest.approx(x, rel=1e-6, abs=1e-6), name


@pytest.mark.sweep
@pytest.mark.parametrize(
    "kind", [KL(), ReverseKL(), Jeffreys(), JensenShannon(), kullback.SquaredHellinger()]
)
def test_every_kind_finds_the_target_in_the_family(kind: kullback.Divergence) -> None:
    found = fit(Weibull(t(1), t(1.5)), to=Weibull(t(2), t(3)), kind=kind)
    assert float(found.distribution.scale) == pytest.approx(2, rel=1e-6)
    assert float(found.distribution.concentration) == pytest.approx(3, rel=1e-6)
    assert abs(float(found.value)) < 1e-9


def test_the_two_directions_cover_or_seek() -> None:
    """KL(to || q) has the mean of all; KL(q || to) leaves a mode out, which costs -log of the other's weight."""
    cover = fit(Normal(t(0), t(1)), to=MODES).distribution
    assert float(cover.loc) == pytest.approx(0.4 * -4 + 0.6 * 3, rel=1e-12)
    seek = fit(Normal(t(3), t(1)), to=MODES, kind=ReverseKL())
    assert float(seek.distribution.scale) == pytest.approx(1.2, abs=0.02)
    assert float(seek.value) == pytest.approx(-math.log(0.6), abs=0.01)


def test_each_element_of_a_batch_converges_by_itself() -> None:
    df = torch.linspace(2, 9, 40, dtype=torch.float64)
    together = fit(Normal(torch.zeros(40, dtype=torch.float64), t(1)), to=StudentT(df), kind=ReverseKL())
    assert together.iterations.unique().numel() > 1
    for index in (0, 17, 39):
        alone = fit(Normal(t(0), t(1)), to=StudentT(df[index]), kind=ReverseKL())
        assert float(alone.value) == pytest.approx(float(together.value[index]), abs=1e-11)
        assert float(alone.distribution.scale) == pytest.approx(
            float(together.distribution.scale[index]), rel=1e-6
        )


@pytest.mark.sweep
def test_thousands_in_one_batch() -> None:
    """KL(Gamma || LogNormal) does not change if both are scaled: 2,000 fits have one value."""
    loc = torch.linspace(-2, 2, 2_000, dtype=torch.float64)
    found = fit(
        Gamma(torch.ones(2_000, dtype=torch.float64), t(1)), to=LogNormal(loc, t(1)), kind=ReverseKL()
    )
    assert bool(found.converged.all())
    assert float(found.value.max() - found.value.min()) < 1e-11
    torch.testing.assert_close(
        found.distribution.rate * loc.exp(),
        found.distribution.rate[0].expand(2_000) * loc[0].exp(),
        rtol=1e-6,
        atol=0,
    )


def test_fixed_parameters_stay_and_the_others_are_optimal() -> None:
    found = fit(Normal(t(0.5), t(3)), to=Laplace(t(0.5), t(1)), kind=ReverseKL(), fixed="loc").distribution
    assert float(found.loc) == 0.5
    assert float(found.scale) == pytest.approx(math.sqrt(math.pi / 2), rel=1e-7)
    one_end = fit(Uniform(t(0), t(5)), to=Normal(t(0), t(1)), kind=ReverseKL(), fixed="high").distribution
    assert float(one_end.high) == 5.0
    assert float(one_end.low) < 5.0
    other = fit(Uniform(t(0), t(5)), to=Normal(t(0), t(1)), kind=ReverseKL(), fixed="low").distribution
    assert float(other.high) == pytest.approx(math.sqrt(3), rel=1e-6)


def test_a_log_density_gives_the_elbo() -> None:
    """exp(5 - (x - 2)^2 / 8) is e^5 sqrt(8 pi) times N(2, 2): the ELBO is the logarithm of that mass."""
    found = fit(Normal(t(0), t(1)), to=lambda x: 5 - (x - 2) ** 2 / 8)
    assert found.quantity == "negative ELBO"
    assert float(found.value) == pytest.approx(-5 - math.log(8 * math.pi) / 2, abs=1e-11)
    assert float(found.distribution.loc) == pytest.approx(2, abs=1e-7)
    assert float(found.distribution.scale) == pytest.approx(2, rel=1e-7)
    half_line = fit(Gamma(t(1), t(1)), to=lambda x: 3 * torch.log(x) - 2 * x)
    assert float(half_line.distribution.concentration) == pytest.approx(4, rel=1e-6)
    assert float(half_line.value) == pytest.approx(-math.log(6 / 16), abs=1e-10)


def test_a_log_density_of_a_batch_has_a_problem_for_each_element() -> None:
    mean = t(-1, 5)
    found = fit(Normal(t(0, 0), t(1, 1)), to=lambda x: -((x - mean) ** 2) / 2)
    torch.testing.assert_close(found.distribution.loc, mean, rtol=0, atol=1e-7)


def test_a_log_density_of_classes_is_summed() -> None:
    scores = t(0.3, 2, -1)
    found = fit(Categorical(logits=t(0, 0, 0)), to=lambda k: scores[k.long()])
    torch.testing.assert_close(found.distribution.probs, scores.softmax(-1), rtol=1e-6, atol=0)
    assert float(found.value) == pytest.approx(-float(scores.logsumexp(-1)), abs=1e-11)
    reverse = fit(Logits(torch.zeros(3)), to=Probs([0.2, 0.3, 0.5]), kind=ReverseKL())
    torch.testing.assert_close(reverse.distribution.tensor.softmax(-1), torch.tensor([0.2, 0.3, 0.5]))


def test_transforms_over_a_base() -> None:
    """A Normal through a sigmoid: in logits it is the Normal of the target's mean and variance of log-odds."""
    found = fit(TransformedDistribution(Normal(t(0), t(1)), [SigmoidTransform()]), to=Beta(t(2), t(3)))
    base = found.distribution.base_dist
    psi, psi1 = scipy.special.digamma, lambda a: scipy.special.polygamma(1, a)
    assert float(base.loc) == pytest.approx(psi(2) - psi(3), abs=1e-7)
    assert float(base.scale) == pytest.approx(math.sqrt(psi1(2) + psi1(3)), rel=1e-6)


def test_tensors_of_a_transform_are_free_where_they_require_a_gradient() -> None:
    loc, scale = torch.tensor(0.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    base = Normal(t(0), t(1))
    q = TransformedDistribution(base, [AffineTransform(loc, scale)])
    found = fit(q, to=Laplace(t(2), t(3)), fixed=("base_dist.loc", "base_dist.scale")).distribution
    assert float(found.transforms[0].loc) == pytest.approx(2, abs=1e-6)
    assert float(found.transforms[0].scale) == pytest.approx(math.sqrt(18), rel=1e-6)
    assert (float(loc.detach()), float(scale.detach())) == (0.0, 2.0)


def test_what_the_constructor_takes_beside_parameters_is_kept() -> None:
    found = fit(
        RelaxedBernoulli(t(0.5), probs=t(0.5)), to=RelaxedBernoulli(t(0.5), probs=t(0.2))
    ).distribution
    assert float(found.probs) == pytest.approx(0.2, rel=1e-6)
    assert float(found.temperature) == 0.5


def test_vectors_by_closed_forms() -> None:
    """The mean-field Normal nearest in KL(q || to) has the inverse diagonal of the precision."""
    covariance = torch.tensor([[2.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    to = MultivariateNormal(t(1, 2), covariance)
    found = fit(Independent(Normal(t(0, 0), t(1, 1)), 1), to=to, kind=ReverseKL())
    torch.testing.assert_close(found.distribution.base_dist.loc, t(1, 2), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        found.distribution.base_dist.scale, covariance.inverse().diagonal() ** -0.5, rtol=1e-6, atol=0
    )
    full = fit(MultivariateNormal(t(0, 0), torch.eye(2, dtype=torch.float64)), to=to, kind=ReverseKL())
    torch.testing.assert_close(full.distribution.covariance_matrix, covariance, rtol=1e-6, atol=0)
    low_rank = LowRankMultivariateNormal(t(0, 0), t(1, 1)[:, None], t(1, 1))
    assert float(fit(low_rank, to=to, kind=ReverseKL()).value) < 1e-10


class Located(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.tensor(0.0))
        self.log_scale = nn.Parameter(torch.tensor(0.0))

    def forward(self) -> Normal:
        return Normal(self.loc, self.log_scale.exp())


def test_a_module_is_fitted_in_place() -> None:
    module = Located()
    found = fit(module, to=Gamma(t(4), t(2)))
    assert float(module.loc.detach()) == pytest.approx(2, abs=1e-6)
    assert float(found.distribution.scale.detach()) == pytest.approx(1, rel=1e-6)
    module.loc.requires_grad_(False)
    with torch.no_grad():
        module.loc.fill_(0)
    fit(module, to=Gamma(t(4), t(2)))
    assert float(module.loc) == 0.0
    assert float(module.log_scale.detach().exp()) == pytest.approx(math.sqrt(5), rel=1e-6)


class Wide(nn.Module):
    """A module with more numbers than a dense Hessian is kept of."""

    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(600))

    def forward(self) -> Normal:
        return Normal(self.loc, 1.0)


def test_a_module_with_many_parameters_is_fitted_by_limited_memory() -> None:
    module = Wide()
    loc = torch.linspace(-1, 1, 600, dtype=torch.float64)
    fit(module, to=Normal(loc, t(1)))
    torch.testing.assert_close(module.loc.detach().double(), loc, rtol=0, atol=1e-4)


def test_maximum_likelihood_without_a_formula_is_that_of_scipy() -> None:
    x = np.random.default_rng(2).standard_t(4, 500)
    df, loc, scale = scipy.stats.t.fit(x)
    found = fit(StudentT(t(9), t(0), t(1)), to=Samples(x))
    truth = -scipy.stats.t(df, loc, scale).logpdf(x).mean()
    assert float(found.value) <= truth + 1e-12
    assert float(found.value) == pytest.approx(truth, abs=1e-7)


def test_what_did_not_converge_is_an_error_with_the_best_point() -> None:
    with refused(kullback.FitError, got="1 of 1 that did not converge in 7 steps") as caught:
        fit(Normal(t(300), t(0.01)), to=MODES, kind=ReverseKL(), max_iterations=1, starts=1)
    assert isinstance(caught.value, kullback.errors.ConvergenceError)
    best = caught.value.fit
    assert float(best.value) < float(best.before)
    assert not bool(best.converged)
    assert torch.equal(caught.value.estimate.value, best.value)


def test_a_saddle_is_left() -> None:
    """Between two modes the gradient is 0 and the value falls to both sides."""
    to = MixtureSameFamily(Categorical(t(1, 1)), Normal(t(-6, 6), t(1, 1)))
    found = fit(Normal(t(0), t(1)), to=to, kind=ReverseKL(), fixed="scale")
    assert abs(float(found.distribution.loc)) == pytest.approx(6, abs=1e-3)


def test_the_minimizer_serves_hard_functions_each_with_its_own_end() -> None:
    """Rosenbrock's valley at three widths; the minimum is 0 at (1, 1)."""
    width = t(1, 10, 100)

    def rosenbrock(u: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            f = (1 - u[:, 0]) ** 2 + width * (u[:, 1] - u[:, 0] ** 2) ** 2
            (g,) = torch.autograd.grad(f.sum(), u)
        return f.detach(), g

    found = minimize(rosenbrock, t(-1.2, 1).expand(3, 2), tol=1e-12, max_iterations=200)
    assert bool(found.converged.all())
    torch.testing.assert_close(found.u, torch.ones(3, 2, dtype=torch.float64), rtol=0, atol=1e-6)
    assert found.iterations.unique().numel() > 1


def lumps(weights: list[float], means: list[float], scale: float = 1.0) -> MixtureSameFamily:
    parts = Normal(
        torch.tensor(means, dtype=torch.float64), torch.full((len(means),), scale, dtype=torch.float64)
    )
    return MixtureSameFamily(Categorical(torch.tensor(weights, dtype=torch.float64)), parts)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("family", "kind", "start"),
    [
        (Normal, "reverse_kl", -12.0),
        (Normal, "js", 9.0),
        (Normal, "hellinger", -12.0),
        (Laplace, "reverse_kl", 9.0),
    ],
)
def test_the_lowest_of_several_minima_is_found_from_any_start(
    family: type[Normal | Laplace], kind: str, start: float
) -> None:
    target = lumps([0.2, 0.7, 0.1], [-12.0, 0.0, 9.0])
    best = fit(family(0.3, 1.0), to=target, kind=kind, starts=1)
    local = fit(family(start, 1.0), to=target, kind=kind, starts=1)
    found = fit(family(start, 1.0), to=target, kind=kind)
    assert local.value > best.value + 0.05
    assert found.value == pytest.approx(float(best.value), rel=1e-8)
    assert found.before == pytest.approx(float(local.before))
    assert torch.equal(found.history[0], found.before)


FAR = t(-30, 30)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("family", "parts", "starts"),
    [
        (Cauchy, Cauchy(FAR, t(0.3, 0.3)), ((-30.0, 1.0), (30.0, 1.0))),
        (LogNormal, LogNormal(t(0, 6), t(0.5, 0.5)), ((0.0, 0.5), (6.0, 0.5))),
        (Beta, Beta(t(2, 90), t(90, 2)), ((2.0, 90.0), (90.0, 2.0))),
        (Normal, StudentT(t(1.5, 1.5), FAR, t(0.3, 0.3)), ((-30.0, 1.0), (30.0, 1.0))),
        (
            Normal,
            TransformedDistribution(Normal(FAR, t(1, 1)), AffineTransform(0, 2)),
            ((-60.0, 1.0), (60.0, 1.0)),
        ),
    ],
)
def test_components_of_every_family_are_starts(
    family: type[Any], parts: Any, starts: tuple[tuple[float, float], ...]
) -> None:
    """Components without moments, or whose moments no formula turns into parameters of the family."""
    target = MixtureSameFamily(Categorical(t(0.3, 0.7)), parts)
    first, second = (family(*map(t, start)) for start in starts)
    local, best = (fit(q, to=target, kind="reverse_kl", starts=1) for q in (first, second))
    assert local.value > best.value + 0.05
    assert fit(first, to=target, kind="reverse_kl").value == pytest.approx(float(best.value), rel=1e-8)


def test_each_element_of_a_batch_keeps_its_lowest_minimum() -> None:
    parts = Normal(torch.tensor([-9.0, 9.0]).expand(2, 2), torch.ones(2, 2))
    target = MixtureSameFamily(Categorical(torch.tensor([[0.3, 0.7], [0.9, 0.1]])), parts)
    found = fit(Normal(torch.tensor([-9.0, 9.0]), torch.ones(2)), to=target, kind="reverse_kl")
    # With lobes this far apart, KL is -log of the weight of the one that is taken.
    assert found.value.tolist() == pytest.approx([-math.log(0.7), -math.log(0.9)], abs=1e-6)
    assert found.distribution.loc.tolist() == pytest.approx([9, -9], abs=1e-3)


@pytest.mark.sweep
def test_vectors_by_draws_take_the_heaviest_component() -> None:
    parts = MultivariateNormal(torch.tensor([[-6.0, 0.0], [6.0, 1.0]]), torch.eye(2))
    target = MixtureSameFamily(Categorical(torch.tensor([0.3, 0.7])), parts)
    q = MultivariateNormal(torch.tensor([-6.0, 0.0]), torch.eye(2))
    generator = torch.Generator().manual_seed(3)
    found = fit(q, to=target, kind="reverse_kl", max_iterations=150, tol=1e-3, generator=generator)
    assert found.value == pytest.approx(-math.log(0.7), abs=0.02)
