"""An element of a batch has the value that it has alone, and is refused only where it is refused alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributions import Cauchy, Gamma, Gumbel, HalfCauchy, Laplace, Normal, StudentT

from kullback import ChiSquared, JensenShannon, Renyi, SquaredHellinger, TotalVariation, divergence
from kullback.errors import ConvergenceError
from kullback.pairs.families.cauchy import CauchyDensity
from kullback.pairs.integration.line import _STEPS, first_edges

KINDS = ["kl", JensenShannon(), Renyi(0.5), Renyi(2.0), TotalVariation(), ChiSquared()]
FAMILIES: list[tuple[Any, Any]] = [
    (Normal, Cauchy),
    (Gumbel, Cauchy),
    (Laplace, lambda loc, scale: StudentT(3.0, loc, scale)),
    (lambda loc, scale: Gamma(1 + loc.abs(), 1 / scale), lambda _loc, scale: HalfCauchy(scale)),
]


def outcome(p: Any, q: Any, kind: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The values, and which elements are accepted."""
    try:
        value = divergence(p, q, kind)
    except ConvergenceError as error:
        value, given = error.estimate.value, error.estimate.error
        assert given is not None
        return value, (given <= 1e-6 * value.abs()) & value.isfinite()
    return value, torch.ones_like(value, dtype=torch.bool)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
@pytest.mark.parametrize("families", FAMILIES, ids=["Normal", "Gumbel", "Laplace", "Gamma"])
def test_alone_and_in_a_batch_are_the_same(families: tuple[Any, Any], kind: Any) -> None:
    generator = torch.Generator().manual_seed(11)

    def drawn(spread: float) -> torch.Tensor:
        return spread * torch.randn(8, generator=generator, dtype=torch.float64)

    loc, scale, loc_q, scale_q = drawn(3), 10 ** drawn(2.5), drawn(3), 10 ** drawn(1)
    values, accepted = outcome(families[0](loc, scale), families[1](loc_q, scale_q), kind)
    for i in range(len(loc)):
        value, is_accepted = outcome(families[0](loc[i], scale[i]), families[1](loc_q[i], scale_q[i]), kind)
        if value.isfinite() or values[i].isfinite():
            assert bool(is_accepted) == bool(accepted[i]), i
            assert not is_accepted or torch.allclose(value, values[i], rtol=2e-6, atol=1e-12), i
        else:
            assert value == values[i], i


def test_a_narrow_peak_of_one_element_leaves_the_panels_of_the_others() -> None:
    wide, narrow = 0.3 + 1.0 * _STEPS, -0.2 + 1e-4 * _STEPS
    start, stop = torch.full((2, 1), -9.0).double(), torch.full((2, 1), 9.0).double()
    both = first_edges(start, stop, [torch.stack([wide, narrow])], 12)
    alone = first_edges(start[:1], stop[:1], [wide.unsqueeze(0)], 12)
    for together, one in zip(both, alone, strict=True):
        assert torch.equal(together[0].unique(), one[0].unique())


def near_pair(n: int) -> tuple[StudentT, Cauchy]:
    generator = torch.Generator().manual_seed(0)
    a, b, c, d, e = torch.rand(5, n, generator=generator, dtype=torch.float64)
    return StudentT(2 + 5 * a, b, 0.5 + c), Cauchy(d, 0.5 + e)


@pytest.mark.heavy
def test_other_divergences_evaluate_few_nodes_more_than_kl(monkeypatch: pytest.MonkeyPatch) -> None:
    """TotalVariation looks for the places where the densities cross besides."""
    nodes: list[int] = []
    original = CauchyDensity.log_density

    def counted(self: CauchyDensity, at: Any) -> torch.Tensor:
        nodes.append(at.x.numel())
        return original(self, at)

    monkeypatch.setattr(CauchyDensity, "log_density", counted)

    def evaluated(kind: Any, n: int) -> int:
        nodes.clear()
        divergence(*near_pair(n), kind)
        return sum(nodes)

    kl = evaluated("kl", 300)
    for kind, most in ((JensenShannon(), 3), (SquaredHellinger(), 3), (TotalVariation(), 7)):
        assert evaluated(kind, 300) < most * kl, kind
        assert evaluated(kind, 1200) < 5 * most * kl, kind
        assert max(nodes) < 1_000_000, kind  # not temporaries as large as the batch


@pytest.mark.parametrize("kind", ["kl", *KINDS[1:3], TotalVariation(), SquaredHellinger()], ids=repr)
@pytest.mark.parametrize("rtol", [1e-2, 1e-3])
def test_a_tolerance_of_the_caller_is_reached_with_the_margin_of_the_error(kind: Any, rtol: float) -> None:
    p, q = near_pair(200)
    exact = divergence(p, q, kind)
    assert torch.allclose(divergence(p, q, kind, rtol=rtol), exact, rtol=rtol, atol=0)
