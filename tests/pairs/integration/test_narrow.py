"""Densities that are narrow and away from 0: the derivatives by location and scale keep their digits.

The truths are integrals by mpmath in the unit of P, by the derivative of Q's density alone: with x = loc + scale z,
t = p / q and D = int q f(p / q), the derivative by loc is int q'(x) (f(t) - t f'(t)) dx.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mpmath import mp, mpf
from torch.distributions import (
    AffineTransform,
    Categorical,
    Cauchy,
    Distribution,
    Gumbel,
    Laplace,
    MixtureSameFamily,
    Normal,
    StudentT,
    TransformedDistribution,
)

from kullback import KL, Alpha, ChiSquared, JensenShannon, Renyi, SquaredHellinger, TotalVariation, divergence
from kullback.generators import Divergence


def normal(z: Any) -> Any:
    return mp.exp(-z * z / 2) / mp.sqrt(2 * mp.pi)


def gumbel(z: Any) -> Any:
    return mp.exp(-z - mp.exp(-z))


def laplace(z: Any) -> Any:
    return mp.exp(-abs(z)) / 2


def student(z: Any) -> Any:
    return mpf(3) / 8 / (1 + z * z / 4) ** mpf("2.5")


def affine(loc: torch.Tensor, scale: torch.Tensor) -> Distribution:
    return TransformedDistribution(Normal(torch.zeros_like(loc), 1.0), [AffineTransform(loc, scale)])


FAMILIES: dict[str, tuple[Callable[..., Distribution], Callable[..., Any]]] = {
    "Normal": (Normal, normal),
    "Gumbel": (Gumbel, gumbel),
    "Laplace": (Laplace, laplace),
    "StudentT": (lambda loc, scale: StudentT(4.0, loc, scale), student),
    "TransformedDistribution": (affine, normal),
}
# f(t) - t f'(t) from log t, up to a constant, as q' integrates to 0.
KINDS: dict[str, tuple[Divergence, Callable[[Any], Any]]] = {
    "KL": (KL(), lambda log_t: -mp.exp(log_t)),
    "JS": (JensenShannon(), lambda log_t: -mp.log1p(mp.exp(log_t)) / 2),
    "Hellinger": (SquaredHellinger(), lambda log_t: -mp.exp(log_t / 2) / 2),
    "Renyi(0.5)": (Renyi(0.5), lambda log_t: mp.exp(log_t / 2) / 2),
}


def truth(density: Callable[..., Any], by: Callable[[Any], Any], loc: float, scale: float) -> float:
    """The derivative by loc against a Cauchy(0, 2); for Renyi's of the integral of the power."""
    with mp.workdps(30):
        m, s = mpf(loc), mpf(scale)

        def integrand(z: Any) -> Any:
            x = m + s * z
            q = 2 / (mp.pi * (4 + x * x))
            slope = -2 * x / (4 + x * x) * q
            p = density(z)
            return s * slope * by(mp.log(p / (s * q))) if p > mpf(10) ** -300 else mpf(0)

        reach = [mpf(0), *(mpf(2) ** k for k in range(-2, 12))]
        edges = [-x for x in reversed(reach)] + reach[1:]
        return float(mp.quad(integrand, edges))


@pytest.mark.parametrize("scale", [1e-6, 1e-20])
@pytest.mark.parametrize("loc", [0.5, 30.0, -7e5])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_by_the_location(family: str, loc: float, scale: float) -> None:
    make, density = FAMILIES[family]
    q = Cauchy(torch.tensor(0.0).double(), 2.0)
    # The tails of StudentT are those of Q far out, where q' matters as much as next to P.
    kinds = KINDS if (loc, scale) == (0.5, 1e-6) and family != "StudentT" else {"KL": KINDS["KL"]}
    for name, (kind, by) in kinds.items():
        at = torch.tensor(loc, dtype=torch.float64, requires_grad=True)
        value = divergence(make(at, torch.tensor(scale).double()), q, kind)
        (found,) = torch.autograd.grad(value, at)
        expected = truth(density, by, loc, scale)
        if name == "Renyi(0.5)":  # -2 log of the integral, and the other sign of Alpha's
            expected *= -2 * math.exp(float(value.detach()) / 2)
        assert float(found) == pytest.approx(expected, rel=1e-6), name


@pytest.mark.parametrize(
    "kind", [JensenShannon(), TotalVariation(), SquaredHellinger(), Alpha(2.0)], ids=repr
)
@pytest.mark.parametrize("scale", [1e-4, 1e-9])
def test_a_narrow_q_is_as_good_as_a_narrow_p(kind: Divergence, scale: float) -> None:
    mirrored = Alpha(-1.0) if isinstance(kind, Alpha) else kind
    narrow, wide = [], []
    for order in (1, -1):
        loc = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
        pair = (Normal(loc, scale), Cauchy(torch.tensor(0.0).double(), 1.0))[::order]
        value = divergence(*pair, kind if order == 1 else mirrored)
        narrow.append(float(value.detach()))
        wide.append(float(torch.autograd.grad(value, loc)[0]))
    assert narrow[0] == pytest.approx(narrow[1], rel=1e-9)
    assert wide[0] == pytest.approx(wide[1], rel=1e-6)


def test_against_mixtures_and_in_batches() -> None:
    loc = torch.tensor([0.3, 30.0, 2.0], dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([1e-9, 1e-7, 1.0], dtype=torch.float64)
    parts = Cauchy(torch.tensor([-1.0, 4.0]).double(), torch.tensor([1.0, 2.0]).double())
    q = MixtureSameFamily(Categorical(torch.tensor([0.25, 0.75]).double()), parts)
    (found,) = torch.autograd.grad(divergence(Normal(loc, scale), q, KL()).sum(), loc)
    x = loc.detach().clone().requires_grad_()
    (limit,) = torch.autograd.grad(-q.log_prob(x).sum(), x)
    assert found[:2] == pytest.approx(limit[:2], rel=1e-9)  # a point mass has the slope of -log q there
    alone = loc.detach()[2].requires_grad_()
    (of_one,) = torch.autograd.grad(divergence(Normal(alone, scale[2]), q, KL()), alone)
    assert float(found[2]) == pytest.approx(float(of_one), rel=1e-12)


# log q' by x of each Q, and log q itself.
WIDE: dict[str, tuple[Distribution, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "Normal": (
        Normal(torch.tensor(0.0).double(), 1.0),
        lambda x: -x * x / 2 - mp.log(2 * mp.pi) / 2,
        lambda x: -x,
    ),
    "Cauchy": (
        Cauchy(torch.tensor(0.0).double(), 1.0),
        lambda x: -mp.log(mp.pi * (1 + x * x)),
        lambda x: -2 * x / (1 + x * x),
    ),
    "StudentT": (
        StudentT(torch.tensor(4.0).double()),
        lambda x: mp.log(student(x)),
        lambda x: -5 * x / (4 + x * x),
    ),
}


def mixture(
    make: Callable[..., Distribution], locs: list[float], scales: list[float]
) -> tuple[Distribution, list[torch.Tensor]]:
    numbers = ([0.3, 0.7], locs, scales)
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in numbers]
    return MixtureSameFamily(Categorical(probs=leaves[0]), make(*leaves[1:])), leaves


@pytest.mark.parametrize("scales", [[1e-3, 3e-4], [1e-5, 1e-6], [1e-8, 1e-9], [1e-20, 1e-7]], ids=str)
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("family", ["Normal", "Laplace", "StudentT"])
def test_kl_of_a_mixture_of_narrow_components(family: str, wide: str, scales: list[float]) -> None:
    """Components apart: KL is sum_k w_k (log w_k + E_k log p_k - E_k log q), each term an integral by mpmath."""
    make, density = FAMILIES[family]
    q, log_q, slope = WIDE[wide]
    weights, locs = (mpf(0.3), mpf(0.7)), [5.0, -3.0]
    p, leaves = mixture(make, locs, scales)
    value = divergence(p, q, KL())
    found = torch.autograd.grad(value, leaves)
    edges = [-60, -20, -6, -2, 0, 2, 6, 20, 60] if family != "StudentT" else [-mp.inf, -9, 0, 9, mp.inf]
    terms, by_loc, by_scale = [], [], []
    with mp.workdps(20):
        for w, loc, scale in zip(weights, map(mpf, locs), map(mpf, scales), strict=True):

            def mean(g: Callable[[Any, Any], Any], loc: Any = loc, scale: Any = scale) -> Any:
                return mp.quad(lambda z: density(z) * g(z, loc + scale * z), edges)

            terms.append(mp.log(w / scale) + mean(lambda z, x: mp.log(density(z)) - log_q(x)))
            by_loc.append(-w * mean(lambda _, x: slope(x)))
            by_scale.append(-w / scale - w * mean(lambda z, x: z * slope(x)))
        expected = sum(w * term for w, term in zip(weights, terms, strict=True))
        by_weight = [term - expected for term in terms]
    assert float(value.detach()) == pytest.approx(float(expected), rel=1e-11)
    for got, wanted in zip(found, (by_weight, by_loc, by_scale), strict=True):
        assert got.tolist() == pytest.approx([float(x) for x in wanted], rel=1e-7)


# f(t) - t f'(t), less its value at 0, and f'(t).
OF_MIXTURES: dict[str, tuple[Divergence, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "JS": (JensenShannon(), lambda t: -mp.log1p(t) / 2, lambda t: mp.log(2 * t / (1 + t)) / 2),
    "Hellinger": (SquaredHellinger(), lambda t: -mp.sqrt(t) / 2, lambda t: -1 / mp.sqrt(t) / 2),
    "ChiSquared": (ChiSquared(), lambda t: -(t**2), lambda t: 2 * t),
}


@pytest.mark.sweep
@pytest.mark.parametrize("scales", [[1e-7, 1e-8]], ids=str)
@pytest.mark.parametrize("kind", OF_MIXTURES)
@pytest.mark.parametrize("family", ["Normal", "Laplace"])
def test_other_kinds_of_a_mixture_of_narrow_components(family: str, kind: str, scales: list[float]) -> None:
    """Apart, h = f - t f' gives int q' h by loc, int (q / scale + z q') h by scale, and int p_k f' by weight."""
    make, density = FAMILIES[family]
    divergence_kind, h, slope = OF_MIXTURES[kind]
    q, log_q, log_slope = WIDE["Cauchy"]
    weights, locs = (mpf(0.3), mpf(0.7)), [5.0, -3.0]
    p, leaves = mixture(make, locs, scales)
    found = torch.autograd.grad(divergence(p, q, divergence_kind), leaves, retain_graph=True)
    edges = [-100, -40, -20, -6, -2, 0, 2, 6, 20, 40, 100]
    expected: list[list[Any]] = [[], [], []]
    with mp.workdps(20):
        for w, loc, scale in zip(weights, map(mpf, locs), map(mpf, scales), strict=True):

            def integral(g: Callable[..., Any], w: Any = w, loc: Any = loc, scale: Any = scale) -> Any:
                def integrand(z: Any) -> Any:
                    x = loc + scale * z
                    mass = mp.exp(log_q(x)) * scale
                    return g(z, x, mass, w * density(z) / mass)

                return mp.quad(integrand, edges)

            expected[0].append(integral(lambda z, x, mass, t: density(z) * slope(t)))
            expected[1].append(integral(lambda z, x, mass, t: mass * log_slope(x) * h(t)))
            expected[2].append(
                integral(lambda z, x, mass, t, s=scale: mass * (1 / s + z * log_slope(x)) * h(t))
            )
        mean = sum(w * g for w, g in zip(weights, expected[0], strict=True))
        expected[0] = [g - mean for g in expected[0]]
    for got, wanted in zip(found, expected, strict=True):
        assert got.tolist() == pytest.approx([float(x) for x in wanted], rel=1e-5)
    if family != "Normal":
        return
    mirrored = Alpha(-1.0) if kind == "ChiSquared" else divergence_kind
    value = divergence(p, q, Alpha(2.0) if kind == "ChiSquared" else divergence_kind)
    back = divergence(q, p, mirrored)
    assert back.item() == pytest.approx(value.item(), rel=1e-9)
    gradients = (torch.autograd.grad(x, leaves, retain_graph=True) for x in (back, value))
    for got, wanted in zip(*gradients, strict=True):
        assert got.tolist() == pytest.approx(wanted.tolist(), rel=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [KL(), JensenShannon()], ids=repr)
def test_a_batch_of_mixtures_is_as_good_as_each_alone(kind: Divergence) -> None:
    """Near and far ones, one with a component without weight, and one that Q nearly equals."""
    locs = torch.tensor([[5.0, -3.0], [0.5, -0.5], [5.0, 7.0], [2.0, 2.0 + 1e-6]], dtype=torch.float64)
    scales = torch.tensor([[1e-7, 1e-5], [1.0, 2.0], [1e-6, 1e-6], [1e-6, 2e-6]], dtype=torch.float64)
    weights = torch.tensor([[0.5, 0.5], [0.2, 0.8], [0.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (weights, locs, scales)]

    def pair(row: slice) -> tuple[Distribution, Distribution]:
        w, m, s = (x[row] for x in leaves)
        p = MixtureSameFamily(Categorical(probs=w), Normal(m, s))
        q = MixtureSameFamily(Categorical(probs=w.detach()), Normal(m.detach(), 1.25 * s.detach()))
        return p, q

    together = divergence(*pair(slice(None)), kind)
    gradients = torch.autograd.grad(together.sum(), leaves)
    for row in range(4):
        alone = divergence(*pair(slice(row, row + 1)), kind)
        assert together[row].item() == pytest.approx(alone.item(), rel=1e-9)
        for all_rows, one in zip(gradients, torch.autograd.grad(alone.sum(), leaves), strict=True):
            assert all_rows[row].tolist() == pytest.approx(one[row].tolist(), rel=1e-8, abs=1e-9)
    single = divergence(Normal(7.0, 1.0), Normal(7.0, 1.25), kind).item()
    assert together[[0, 2]].tolist() == pytest.approx([single] * 2, rel=1e-6)
    # The overlapping pair in units of its scale, around 0.
    p, q = (
        MixtureSameFamily(Categorical(probs=torch.ones(2)), Normal(torch.tensor([0.0, 1.0]).double(), scale))
        for scale in (torch.tensor([1.0, 2.0]).double(), torch.tensor([1.25, 2.5]).double())
    )
    assert together[3].item() == pytest.approx(divergence(p, q, kind).item(), rel=1e-9)
