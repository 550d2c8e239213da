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

from kullback import KL, Alpha, JensenShannon, Renyi, SquaredHellinger, TotalVariation, divergence
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
