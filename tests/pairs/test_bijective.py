"""A map that is not one-to-one is refused by every entry, for every kind, and the remedy works."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor
from torch.distributions import (
    AbsTransform,
    AffineTransform,
    Categorical,
    ComposeTransform,
    Distribution,
    Exponential,
    HalfNormal,
    Independent,
    MixtureSameFamily,
    Normal,
    Transform,
    TransformedDistribution,
    constraints,
)

from kullback import (
    Samples,
    cross_entropy,
    divergence,
    entropy,
    estimate,
    fit,
    kl_bounds,
    kl_divergence,
    kl_estimate,
)
from kullback.errors import NoRuleError
from kullback.estimators import from_density
from kullback.nn import KLRegularizer
from tests.refusals import refused


class Square(Transform):
    domain, codomain, bijective = constraints.real, constraints.nonnegative, False

    def _call(self, x: Tensor) -> Tensor:
        return x**2

    def _inverse(self, y: Tensor) -> Tensor:
        return y.sqrt()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return (2 * x.abs()).log()


BASE = Normal(0.3, 0.8)
FOLDED = {
    "own": TransformedDistribution(BASE, [Square()]),
    "torch's": TransformedDistribution(BASE, [AbsTransform()]),
    "composed": TransformedDistribution(BASE, [ComposeTransform([AffineTransform(0.0, 2.0), Square()])]),
    "mixed": MixtureSameFamily(
        Categorical(torch.ones(2)), TransformedDistribution(Normal(torch.zeros(2), 0.8), [Square()])
    ),
}
Q = Exponential(1.0)
KINDS = ("kl", "reverse_kl", "jeffreys", "js", "chi2", "tv", "hellinger", "renyi:0.5", "renyi:2", "alpha:0.5")
ENTRIES: dict[str, Callable[[Distribution], object]] = {
    "P": lambda d: kl_divergence(d, Q),
    "Q": lambda d: kl_divergence(Q, d),
    "both": lambda d: kl_divergence(d, d),
    "estimate": lambda d: kl_estimate(d, Q),
    "random draws": lambda d: kl_divergence(d, Q, method="monte_carlo"),
    "random draws against it": lambda d: kl_divergence(Q, d, method="monte_carlo"),
    "entropy": entropy,
    "cross-entropy": lambda d: cross_entropy(d, Q),
    "cross-entropy against it": lambda d: cross_entropy(Q, d),
    "draws against it": lambda d: kl_estimate(Samples(torch.rand(100)), d),
    "from_density": lambda d: from_density(Samples(torch.rand(100)), d),
    "bounds": lambda d: kl_bounds(d, Q),
    "fit to it": lambda d: fit(Exponential(1.0), to=d),
    "fit of it": lambda d: fit(d, to=Q),
    "fit of it to draws": lambda d: fit(d, to=Samples(torch.rand(100))),
    "a regularizer": lambda d: KLRegularizer(batch_dims=0)(d, Q),
    "Independent": lambda d: kl_divergence(Independent(d.expand((2,)), 1), Independent(Q.expand((2,)), 1)),
}


@pytest.mark.parametrize("name", FOLDED)
def test_every_entry_and_every_kind_refuses_it(name: str) -> None:
    d = FOLDED[name]
    calls = {**ENTRIES, **{kind: lambda d, kind=kind: divergence(d, Q, kind) for kind in KINDS}}
    calls.update(
        {f"{kind}, drawn": lambda d, k=kind: divergence(d, Q, k, method="monte_carlo") for kind in KINDS}
    )
    for entry, call in calls.items():
        with refused(NoRuleError, got=r"is not bijective, so torch's log_prob misses mass") as caught:
            call(d)
        assert "Samples(" in str(caught.value) or entry.startswith("fit of it"), (entry, str(caught.value))
        assert ("bijective = True" in str(caught.value)) == (name != "torch's")


def test_the_error_names_the_argument_of_the_caller() -> None:
    for kind in KINDS:
        with refused(NoRuleError, call="divergence", argument="p"):
            divergence(FOLDED["own"], Q, kind)
        with refused(NoRuleError, call="divergence", argument="q"):
            divergence(Q, FOLDED["own"], kind)


def test_the_remedies_work() -> None:
    """Draws give KL of the squared Normal, here by mpmath over both branches; a true flag admits a one-to-one map."""
    generator = torch.Generator().manual_seed(0)
    x = (0.3 + 0.8 * torch.randn(4000, generator=generator)) ** 2

    def density(y: mpmath.mpf) -> mpmath.mpf:
        root = mpmath.sqrt(y)
        both = sum(mpmath.exp(-(((sign * root - 0.3) / 0.8) ** 2) / 2) for sign in (1, -1))
        return both / (0.8 * mpmath.sqrt(2 * mpmath.pi)) / (2 * root)

    true = mpmath.quad(lambda y: density(y) * (mpmath.log(density(y)) + y), [0, 0.01, 0.1, 1, 4, 12])
    found = kl_estimate(Samples(x), Q, generator=generator)
    assert found.interval is not None
    assert found.interval[0] < float(true) < found.interval[1]
    drawn = Samples(torch.rand(4000, generator=generator).log().neg())
    assert float(estimate(Samples(x), drawn, "js", generator=generator).value) > 0
    nearest = fit(Exponential(1.0), to=Samples(x)).distribution
    assert float(nearest.rate) == pytest.approx(1 / (0.09 + 0.64), rel=0.1)

    class Doubled(Square):
        domain, codomain, bijective, sign = constraints.positive, constraints.positive, True, 1

    p = TransformedDistribution(Exponential(1.0), [Doubled()])
    assert float(kl_divergence(p, p)) == 0


def test_folded_families_of_torch_have_densities_of_their_own() -> None:
    value = kl_divergence(
        HalfNormal(1.0), Q, method="monte_carlo", generator=torch.Generator().manual_seed(0)
    )
    true = math.log(2 / math.sqrt(2 * math.pi)) - 0.5 + math.sqrt(2 / math.pi)
    assert float(value) == pytest.approx(true, abs=0.02)
