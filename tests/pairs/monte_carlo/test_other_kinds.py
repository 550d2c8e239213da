"""Random draws estimate every kind that is a mean of terms; truths are sums, closed forms and quadrature."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Gamma,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Poisson,
    TanhTransform,
    TransformedDistribution,
)

from kullback import (
    Alpha,
    ChiSquared,
    Divergence,
    FDivergence,
    Jeffreys,
    JensenShannon,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
    divergence,
    estimate,
)
from kullback.errors import NoRuleError
from kullback.generators import FinitePair
from tests.refusals import refused

KINDS: list[Divergence] = [
    ReverseKL(),
    Jeffreys(),
    JensenShannon(),
    JensenShannon(0.2),
    SkewKL(0.3),
    TotalVariation(),
    SquaredHellinger(),
    ChiSquared(),
    Alpha(0.5),
    Alpha(1.5),
    Renyi(0.3),
    Renyi(1.5),
    FDivergence(lambda r: (r - 1) ** 2 / (r + 1)),
]


def double(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def terms_of(kind: Divergence, log_p: Tensor, log_q: Tensor, weight: float) -> float:
    """The divergence of two densities on a grid: a sum over its points, as of a finite pair."""
    p, q = (torch.exp(x) * weight for x in (log_p, log_q))
    return float(kind.total(FinitePair(p, q, log_p - log_q)))


def on_grid(kind: Divergence, p: Distribution, q: Distribution) -> float:
    """The divergence of two densities on the line, by the trapezoidal rule, which is exact to 1e-10 for them."""
    x = torch.linspace(-30, 30, 6_001, dtype=torch.float64)
    return terms_of(kind, p.log_prob(x), q.log_prob(x), 1e-2)


def draw(p: Distribution, q: Distribution, kind: Divergence, seed: int = 0, draws: int = 8_000) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = estimate(p, q, kind, method="monte_carlo", draws=draws, generator=generator)
    assert found.method == "monte_carlo"
    assert found.standard_error is not None
    return torch.stack([found.value, found.standard_error])


MIXED = MixtureSameFamily(
    Categorical(torch.tensor([0.3, 0.7]).double()), Normal(torch.tensor([-1.0, 1.0]).double(), 0.8)
)
NORMAL, WIDE = Normal(double(0.0), 1.0), Normal(double(0.5), 1.2)


@pytest.mark.sweep
def test_every_kind_is_within_its_error() -> None:
    for p, q in ((NORMAL, WIDE), (MIXED, WIDE), (WIDE, MIXED)):
        for kind in KINDS:
            if q is MIXED and kind in (ChiSquared(), Alpha(1.5), Renyi(1.5)):
                continue  # few draws decide these
            value, error = draw(p, q, kind)
            true = on_grid(kind, p, q)
            assert abs(float(value) - true) <= 5 * float(error), (kind, p, value, error, true)
            assert float(error) < 0.1 * (0.1 + true), (kind, error)


@pytest.mark.sweep
def test_counts_and_vectors_too() -> None:
    n = torch.arange(200, dtype=torch.float64)
    p, q = Poisson(double(3.0)), Poisson(double(4.0))
    vector = MultivariateNormal(torch.zeros(2).double(), torch.eye(2).double())
    other = MultivariateNormal(torch.ones(2).double(), torch.eye(2).double())
    along, across = Normal(double(0.0), 1.0), Normal(double(2.0**0.5), 1.0)  # the same pair, turned
    for kind in KINDS:
        value, error = draw(p, q, kind)
        true = terms_of(kind, p.log_prob(n), q.log_prob(n), 1.0)
        assert abs(float(value) - true) <= 5 * float(error), (kind, value, error, true)
        if kind not in (ChiSquared(), Alpha(1.5), Renyi(1.5)):
            value, error = draw(vector, other, kind)
            assert abs(float(value) - on_grid(kind, along, across)) <= 5 * float(error), (kind, value, error)


def test_saturating_maps_do_not_change_other_kinds() -> None:
    p, q = (TransformedDistribution(Normal(0.0, scale), [TanhTransform()]) for scale in (6.0, 3.0))
    for kind in (JensenShannon(), TotalVariation(), SquaredHellinger(), Renyi(0.5)):
        value, error = draw(p, q, kind)
        true = on_grid(kind, Normal(double(0.0), 2.0), Normal(double(0.0), 1.0))
        assert abs(float(value) - true) <= 5 * float(error), (kind, value, error, true)


@pytest.mark.sweep
def test_errors_are_those_of_repeated_estimates() -> None:
    for kind in (JensenShannon(), Renyi(0.3), TotalVariation()):
        found = torch.stack([draw(MIXED, WIDE, kind, seed, 400) for seed in range(40)])
        assert 0.6 < float(found[:, 0].std() / found[:, 1].mean()) < 1.6, kind


@pytest.mark.sweep
def test_gradients_are_unbiased() -> None:
    def slopes(kind: Divergence, a: Tensor, b: Tensor, seed: int) -> Tensor:
        p, q = Normal(a, 1.0), Gamma(b, 1.0) if kind is None else Normal(0.5, b)
        generator = torch.Generator().manual_seed(seed)
        value = divergence(p, q, kind, method="monte_carlo", draws=400, generator=generator)
        return torch.stack(torch.autograd.grad(value, (a, b)))

    step = 1e-4
    for kind in (JensenShannon(), SquaredHellinger(), Renyi(0.3), Alpha(0.5)):
        a, b = double(0.0).requires_grad_(), double(1.2).requires_grad_()
        found = torch.stack([slopes(kind, a, b, seed) for seed in range(30)])
        true = [
            (on_grid(kind, Normal(double(step), 1.0), WIDE) - on_grid(kind, Normal(double(-step), 1.0), WIDE))
            / (2 * step),
            (
                on_grid(kind, NORMAL, Normal(double(0.5), 1.2 + step))
                - on_grid(kind, NORMAL, Normal(double(0.5), 1.2 - step))
            )
            / (2 * step),
        ]
        error = found.std(0) / 8**0.5
        assert ((found.mean(0) - torch.tensor(true)).abs() <= 4 * error).all(), (
            kind,
            found.mean(0),
            true,
            error,
        )


def test_what_few_draws_decide_is_refused_and_the_remedies_work() -> None:
    near, far = Normal(double(0.0), 1.0), Normal(double(20.0), 1.0)
    for p, q, kind in (
        (WIDE, NORMAL, ChiSquared()),
        (near, far, Renyi(0.3)),
        (near, far, Renyi(2.0)),
        (near, far, ChiSquared()),
    ):
        with refused(NoRuleError, wanted="does not depend on few draws"):
            draw(p, q, Alpha(3.0) if p is WIDE else kind)
    assert float(divergence(near, far, Renyi(0.3), method="auto")) == pytest.approx(0.3 * 200, rel=1e-9)
    assert float(draw(near, far, JensenShannon())[0]) == pytest.approx(math.log(2), rel=1e-3)
    assert float(draw(near, far, SquaredHellinger())[0]) == pytest.approx(1, rel=1e-6)


def test_refusals_of_other_kinds_name_random_draws_and_they_work() -> None:
    parts = Independent(Normal(torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double(), 1.0), 1)
    p = MixtureSameFamily(Categorical(torch.ones(2).double()), parts)
    q = MultivariateNormal(torch.full((2,), 0.5).double(), torch.eye(2).double())
    for kind in (JensenShannon(), Renyi(0.5), TotalVariation()):
        with refused(NoRuleError, instead="method='monte_carlo'"):
            divergence(p, q, kind)
        value, error = draw(p, q, kind)
        # In the direction of the two centers this is a pair of numbers; across it both are the same.
        along = MixtureSameFamily(
            Categorical(torch.ones(2).double()), Normal(torch.tensor([-0.5, 0.5]).double() * 2**0.5, 1.0)
        )
        true = on_grid(kind, along, Normal(double(0.0), 1.0))
        assert abs(float(value) - true) <= 5 * float(error), (kind, value, true)
    with pytest.raises(NoRuleError) as caught:
        divergence(p, q, Renyi(math.inf))
    assert "monte_carlo" not in str(caught.value)


@dataclass(frozen=True)
class LeCam(Divergence):
    """sum (p - q)^2 / (p + q), a kind of a user's own."""

    def terms(self, pair: FinitePair) -> Tensor:
        return (pair.p - pair.q) ** 2 / (pair.p + pair.q)

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        ratio = (pair.p - pair.q) / (pair.p + pair.q)
        return pair.p * (2 * ratio - ratio**2), pair.q * (-2 * ratio - ratio**2)


def test_a_kind_of_ones_own_is_estimated() -> None:
    value, error = draw(NORMAL, WIDE, LeCam())
    assert abs(
        float(value) - on_grid(FDivergence(lambda r: (r - 1) ** 2 / (r + 1)), NORMAL, WIDE)
    ) <= 5 * float(error)
