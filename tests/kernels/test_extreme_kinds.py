"""Rows of logits by divergences at their ends: total variation of confident rows, orders next to 0 and huge ones."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor

from kullback import Alpha, Divergence, Logits, Renyi, TotalVariation, divergence
from tests.oracles import truth

DIGITS = 60


def confident(classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows with nearly all mass in one class, by which sums over all classes are rounded."""
    draws = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 3, classes, generator=draws, dtype=torch.float64)
    q = 0.7 * p + 0.3 * q
    above = torch.tensor([14.0, 25.0, 50.0], dtype=torch.float64)
    p[:, 1], q[:, 1] = p[:, 1] + above, q[:, 1] + above - 1
    return p.to(dtype), q.to(dtype)


def nearly_equal(classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    p, change = torch.randn(2, 3, classes, generator=draws, dtype=torch.float64)
    unit = torch.finfo(dtype).eps
    return p.to(dtype), (p.to(dtype).double() + 32 * unit * change).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("classes", [2, 3, 40, 1000])
@pytest.mark.parametrize("make", [confident, nearly_equal])
def test_total_variation_keeps_its_digits(make, classes: int, dtype: torch.dtype) -> None:
    p, q = (side.requires_grad_() for side in make(classes, dtype))
    values = divergence(Logits(p), Logits(q), TotalVariation())
    gradients = torch.autograd.grad(values.sum(), (p, q))
    tolerance = 2e-6 if dtype is torch.float32 else 1e-10
    for row, (a, b) in enumerate(zip(p.tolist(), q.tolist(), strict=True)):
        x, y = truth.softmax(a), truth.softmax(b)
        expected = float(truth.divergence(TotalVariation(), x, y))
        assert values[row].item() == pytest.approx(expected, rel=tolerance, abs=0)
        with mpmath.workdps(DIGITS):
            signs = [mpmath.sign(j - i) / 2 for i, j in zip(x, y, strict=True)]
            for side, found, sign in ((x, gradients[0][row], -1), (y, gradients[1][row], 1)):
                mean = mpmath.fsum(s * m for s, m in zip(signs, side, strict=True))
                exact = torch.tensor(
                    [float(sign * m * (s - mean)) for s, m in zip(signs, side, strict=True)],
                    dtype=torch.float64,
                )
                assert (found.double() - exact).norm() <= 5 * tolerance * exact.norm()


def test_classes_of_equal_mass_have_no_part_in_the_derivative_of_total_variation() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2], [0.25, 0.5, 0.25]]).log().requires_grad_()
    q = torch.tensor([[0.5, 0.2, 0.3], [0.25, 0.25, 0.5]]).log()
    values = divergence(Logits(p), Logits(q), TotalVariation())
    (gradient,) = torch.autograd.grad(values.sum(), p)
    torch.testing.assert_close(values, torch.tensor([0.1, 0.25]))
    expected = [[-0.025, 0.135, -0.11], [-0.03125, 0.1875, -0.15625]]
    torch.testing.assert_close(gradient, torch.tensor(expected), rtol=1e-5, atol=1e-7)


def true_power(kind: Alpha | Renyi, p: list[mpf], q: list[mpf]) -> mpf:
    order = mpf(kind.alpha)
    total = mpmath.fsum(x**order * y ** (1 - order) for x, y in zip(p, q, strict=True))
    return mpmath.log(total) / (order - 1) if isinstance(kind, Renyi) else (total - 1) / (order * (order - 1))


ORDERS = [1e-60, 1e-31, 1e-25, 5e-17, 1e-13, 1e-9, 1e-5, 1 - 1e-9, 1 - 1.2e-16, 1 + 3e-16, 1 + 1e-12]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("classes", [3, 50])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("family", [Alpha, Renyi])
def test_orders_next_to_0_and_1(
    family: type[Divergence], order: float, classes: int, dtype: torch.dtype
) -> None:
    draws = torch.Generator().manual_seed(0)
    p, q = (
        x.to(dtype).requires_grad_() for x in torch.randn(2, 2, classes, generator=draws, dtype=torch.float64)
    )
    rtol = 3e-6 if dtype is torch.float32 else 1e-13
    for kind in [family(order)] + [Alpha(-order)] * (family is Alpha):
        values = divergence(Logits(p), Logits(q), kind)
        gradients = torch.autograd.grad(values.sum(), (p, q))
        with mpmath.workdps(300):
            for value, a, b in zip(values.tolist(), p.tolist(), q.tolist(), strict=True):
                masses = [[mpmath.exp(mpf(x)) for x in side] for side in (a, b)]
                x, y = ([m / mpmath.fsum(side) for m in side] for side in masses)
                expected = float(true_power(kind, x, y))
                assert value == pytest.approx(expected, rel=rtol, abs=torch.finfo(dtype).tiny)
        assert all(bool(side.isfinite().all()) for side in gradients)


@pytest.mark.parametrize("order", [1e20, 1e50, 1e200, 1e307])
def test_huge_orders_tend_to_their_limits(order: float) -> None:
    draws = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 2, 9, generator=draws, dtype=torch.float64)
    limit = divergence(Logits(p), Logits(q), Renyi(math.inf))
    torch.testing.assert_close(divergence(Logits(p), Logits(q), Renyi(order)), limit, rtol=1e-12, atol=0)
    for kind in (Alpha(order), Alpha(-order)):
        assert divergence(Logits(p), Logits(q), kind).tolist() == [math.inf, math.inf]
        assert divergence(Logits(p), Logits(p), kind).tolist() == [0.0, 0.0]
    assert divergence(Logits(p), Logits(p), Renyi(order)).tolist() == [0.0, 0.0]
