"""Narrow components away from 0 beside a density with an end, or one that is known only by its log_prob.

The truths are integrals by mpmath in the unit of each component. With t = p / q and h = f - t f', the derivative by loc
is int q' h, by scale int (q / scale + z q') h, and by the weight int p_k f'(t), less its mean.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mpmath import mp, mpf
from mpmath.calculus.quadrature import GaussLegendre
from torch.distributions import (
    Categorical,
    Distribution,
    Gamma,
    MixtureSameFamily,
    Normal,
    Uniform,
    constraints,
)

from kullback import KL, Alpha, ChiSquared, JensenShannon, Renyi, SkewKL, SquaredHellinger, divergence
from kullback.generators import Divergence


class Own(Distribution):
    """A user's Normal, known by its log_prob."""

    arg_constraints: Any = {}  # noqa: RUF012
    support = constraints.real  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __init__(self, loc: Any) -> None:
        self.loc = torch.as_tensor(loc, dtype=torch.float64)
        super().__init__(self.loc.shape)

    def sample(self, sample_shape: Any = ()) -> torch.Tensor:
        return self.loc + 2 * torch.randn(*sample_shape, *self.loc.shape, dtype=torch.float64)

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        return -((value - self.loc) ** 2) / 8 - math.log(8 * math.pi) / 2


class OwnHalf(Own):
    """A user's Exponential."""

    support = constraints.positive

    def sample(self, sample_shape: Any = ()) -> torch.Tensor:
        return -2 * torch.rand(*sample_shape, dtype=torch.float64).log()

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        return -value / 2 - math.log(2)


# The partner, its log-density and the slope of that.
PARTNERS: dict[str, tuple[Distribution, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "Gamma": (
        Gamma(torch.tensor(3.0).double(), 1.0),
        lambda x: 2 * mp.log(x) - x - mp.log(2),
        lambda x: 2 / x - 1,
    ),
    "Uniform": (
        Uniform(torch.tensor(1.0).double(), 9.0),
        lambda _: -mp.log(8),
        lambda _: mpf(0),
    ),
    "Own": (Own(2.0), lambda x: -((x - 2) ** 2) / 8 - mp.log(8 * mp.pi) / 2, lambda x: -(x - 2) / 4),
    "OwnHalf": (OwnHalf(0.0), lambda x: -x / 2 - mp.log(2), lambda _: mpf(-0.5)),
}
Of = Callable[[Any], Any]
# The kind; f less its value at 0, that value, h less its value at 0, and f'. Renyi's is of the sum of powers.
KINDS: dict[str, tuple[Divergence, Of, Callable[[], Any], Of, Of]] = {
    "JS": (
        JensenShannon(),
        lambda t: (t * mp.log(2 * t / (1 + t)) - mp.log1p(t)) / 2,
        lambda: mp.log(2) / 2,
        lambda t: -mp.log1p(t) / 2,
        lambda t: mp.log(2 * t / (1 + t)) / 2,
    ),
    "Hellinger": (
        SquaredHellinger(),
        lambda t: t / 2 - mp.sqrt(t),
        lambda: mpf(0.5),
        lambda t: -mp.sqrt(t) / 2,
        lambda t: -1 / mp.sqrt(t) / 2,
    ),
    "Skew": (
        SkewKL(0.25),
        lambda t: t * mp.log(4 * t / (3 + t)),
        lambda: mpf(0),
        lambda t: -3 * t / (3 + t),
        lambda t: mp.log(4 * t / (3 + t)) + 3 / (3 + t),
    ),
    "Alpha": (
        Alpha(0.25),
        lambda t: -16 / mpf(3) * (t ** mpf(0.25) - t / 4),
        lambda: mpf(4),
        lambda t: -4 * t ** mpf(0.25),
        lambda t: -4 / mpf(3) * t ** mpf(-0.75),
    ),
    "Renyi": (Renyi(0.5), mp.sqrt, lambda: mpf(0), lambda t: mp.sqrt(t) / 2, lambda t: 1 / mp.sqrt(t) / 2),
    "ChiSquared": (ChiSquared(), lambda t: t * t - 2 * t, lambda: mpf(1), lambda t: -t * t, lambda t: 2 * t),
}


def truths(
    partner: str, kinds: list[str], numbers: list[list[float]]
) -> dict[str, tuple[float, list[list[float]]]]:
    """The value and the derivatives by weights, locations and scales of Normal components that are apart."""
    _, log_q, slope = PARTNERS[partner]
    edges = [-39, -26, -18, -12, -8, -6, -4, -2, 0, 2, 4, 6, 8, 12, 18, 26, 39]
    sums: dict[str, list[Any]] = {kind: [KINDS[kind][2](), [], [], []] for kind in kinds}
    rule = GaussLegendre(mp)
    nodes = [node for a, b in itertools.pairwise(edges) for node in rule.get_nodes(a, b, 4, mp.prec)]
    for w, loc, scale in zip(*([mpf(x) for x in column] for column in numbers), strict=True):
        points = []
        for z, step in nodes:
            p, x = mp.exp(-z * z / 2) / mp.sqrt(2 * mp.pi), loc + scale * z
            mass = scale * mp.exp(log_q(x))
            points.append((z, step, p, mass, slope(x), w * p / mass))
        for kind in kinds:
            _, f, _, h, f_slope = KINDS[kind]
            by = [mpf(0)] * 4
            for z, step, p, mass, log_slope, t in points:
                of_q = step * mass * h(t)
                more = (
                    step * mass * f(t),
                    step * p * f_slope(t),
                    of_q * log_slope,
                    of_q * (1 / scale + z * log_slope),
                )
                by = [a + b for a, b in zip(by, more, strict=True)]
            sums[kind] = [
                sums[kind][0] + by[0],
                *([*a, b] for a, b in zip(sums[kind][1:], by[1:], strict=True)),
            ]
    found = {}
    for kind, (value, by_weight, *rest) in sums.items():
        mean = sum(mpf(w) * g for w, g in zip(numbers[0], by_weight, strict=True))
        by = [[g - mean for g in by_weight], *rest]
        factor = -2 / value if kind == "Renyi" else mpf(1)
        total = -2 * mp.log(value) if kind == "Renyi" else value
        found[kind] = float(total), [[float(factor * x) for x in column] for column in by]
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("scale", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("partner", PARTNERS)
def test_every_kind_of_a_narrow_mixture(partner: str, scale: float) -> None:
    kinds = [kind for kind in KINDS if partner == "Own" or kind != "ChiSquared"]  # infinite next to an end
    numbers = [[0.25, 0.75], [5.0, 3.0], [scale, scale / 3]]
    with mp.workdps(50):
        expected = truths(partner, kinds, numbers)
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in numbers]
    narrow = MixtureSameFamily(Categorical(probs=leaves[0]), Normal(leaves[1], leaves[2]))
    for kind in kinds:
        pair = (narrow, PARTNERS[partner][0])
        for p, q in [pair, pair[::-1]] if kind == "Hellinger" else [pair]:  # this kind is symmetric
            value = divergence(p, q, KINDS[kind][0])
            by_weight, by_loc, by_scale = (
                x.tolist() for x in torch.autograd.grad(value, leaves, retain_graph=True)
            )
            assert value.item() == pytest.approx(expected[kind][0], rel=1e-12), kind
            assert by_weight == pytest.approx(expected[kind][1][0], rel=1e-6, abs=1e-13), kind
            assert by_loc == pytest.approx(expected[kind][1][1], rel=2e-6, abs=1e-8), kind
            assert by_scale == pytest.approx(expected[kind][1][2], rel=1e-8), kind


@pytest.mark.parametrize("partner", ["Gamma", "OwnHalf"])
def test_a_narrow_density_that_is_no_mixture(partner: str) -> None:
    with mp.workdps(50):
        expected = truths(partner, ["JS"], [[1.0], [5.0], [1e-8]])["JS"]
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (5.0, 1e-8)]
    value = divergence(Normal(leaves[0], leaves[1]), PARTNERS[partner][0], JensenShannon())
    by_loc, by_scale = (x.item() for x in torch.autograd.grad(value, leaves))
    assert value.item() == pytest.approx(expected[0], rel=1e-12)
    assert by_loc == pytest.approx(expected[1][1][0], rel=2e-6)
    assert by_scale == pytest.approx(expected[1][2][0], rel=1e-8)


@pytest.mark.parametrize("count", [2, 3])
def test_kl_of_a_batch_of_narrow_mixtures_from_a_batch_of_own_densities(count: int) -> None:
    """Apart: KL is the mean of log(w / scale) - log(2 pi e) / 2 - E log q over the components."""
    locs = torch.tensor([5.0, 3.0, -4.0], dtype=torch.float64)[:count].requires_grad_()
    own = torch.tensor([0.0, 2.0, 1.0], dtype=torch.float64)
    weights = torch.full((3, count), 1 / count, dtype=torch.float64)
    p = MixtureSameFamily(Categorical(probs=weights), Normal(locs.expand(3, count), 1e-7))
    value = divergence(p, Own(own), KL())
    (found,) = torch.autograd.grad(value.sum(), locs)
    away = locs.detach() - own.unsqueeze(-1)
    entropy = math.log(1e-7 * count) + math.log(2 * math.pi * math.e) / 2
    expected = ((away**2 + 1e-14) / 8).mean(-1) + math.log(8 * math.pi) / 2 - entropy
    assert value.tolist() == pytest.approx(expected.tolist(), rel=1e-12)
    assert found.tolist() == pytest.approx((away / 4).sum(0).div(count).tolist(), rel=1e-7)
