"""Multivariate normals in C++: the values and gradients of plain torch and of mpmath."""

from __future__ import annotations

from unittest.mock import patch

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import MultivariateNormal

from kullback import kl_divergence
from kullback.kernels.native import library
from kullback.pairs.closed_forms import native as closed_forms

if library.missing() is not None:
    pytest.skip(f"no native kernels here: {library.missing()}", allow_module_level=True)

Side = tuple[Tensor, Tensor]


def drawn(batch: tuple[int, ...], size: int, seed: int = 0) -> tuple[Side, Side]:
    generator = torch.Generator().manual_seed(seed)

    def side() -> Side:
        loc, rows, logs = (
            torch.randn(*batch, *shape, dtype=torch.float64, generator=generator)
            for shape in ((size,), (size, size), (size,))
        )
        return loc, rows.tril(-1) / max(size, 1) ** 0.5 + torch.diag_embed(logs.exp())

    return side(), side()


def normal(side: Side) -> MultivariateNormal:
    return MultivariateNormal(side[0], scale_tril=side[1], validate_args=False)


def answered(p: Side, q: Side) -> tuple[Tensor, ...]:
    leaves = [x.detach().clone().requires_grad_() for x in (*p, *q)]
    value = kl_divergence(normal((leaves[0], leaves[1])), normal((leaves[2], leaves[3])))
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view_as(value)
    return value.detach(), *torch.autograd.grad(value, leaves, weights)


def plainly(p: Side, q: Side) -> tuple[Tensor, ...]:
    with patch.object(closed_forms, "_is_available", lambda: False):
        return answered(p, q)


def is_fused(p: Side, q: Side) -> bool:
    return closed_forms.fused_divergence(normal(p), normal(q)) is not None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 50])
@pytest.mark.parametrize("relative", [None, 1e-10, 1e-6, 1e-2])
def test_values_and_gradients_are_those_of_plain_torch(size: int, relative: float | None) -> None:
    p, q = drawn((3, 4), size)
    if relative is not None:
        q = (p[0] * (1 + relative), p[1] * (1 - relative))
    assert is_fused(p, q)
    for ours, theirs in zip(answered(p, q), plainly(p, q), strict=True):
        scale = theirs.abs().amax() if theirs.numel() else 1
        assert bool(((ours - theirs).abs() <= 1e-11 * theirs.abs() + 1e-12 * scale).all())


def test_a_value_is_that_of_mpmath() -> None:
    p, q = drawn((), 4)
    with mpmath.workdps(50):
        m_p, l_p, m_q, l_q = (mpmath.matrix(x.tolist()) for x in (*p, *q))
        inverse = mpmath.inverse(l_q * l_q.T)
        shift = m_p - m_q
        product = inverse * l_p * l_p.T
        trace = sum(product[i, i] for i in range(4))
        true = (trace + (shift.T * inverse * shift)[0] - 4 - mpmath.log(mpmath.det(product))) / 2
    assert kl_divergence(normal(p), normal(q)).item() == pytest.approx(float(true), rel=1e-14)


def test_the_same_distribution_is_at_0_with_gradient_0() -> None:
    p, _ = drawn((5,), 6)
    for found in answered(p, p):
        assert not bool(found.any())


def test_derivatives_of_both_orders_are_consistent() -> None:
    (loc_p, root_p), (loc_q, root_q) = drawn((2,), 3)

    def value(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return kl_divergence(normal((a, b)), normal((c, d)))

    leaves = tuple(x.requires_grad_() for x in (loc_p, root_p, loc_q, root_q))
    assert gradcheck(value, leaves)
    assert gradgradcheck(value, leaves)


def test_float32_is_float64_rounded() -> None:
    p, q = (tuple(x.float() for x in side) for side in drawn((9,), 5))
    exact = answered((p[0].double(), p[1].double()), (q[0].double(), q[1].double()))
    for ours, wide in zip(answered((p[0], p[1]), (q[0], q[1])), exact, strict=True):
        assert ours.dtype == torch.float32
        if ours.ndim == 1:  # the weights of the gradients are rounded too
            torch.testing.assert_close(ours, wide.float(), rtol=3e-7, atol=0)
        else:
            torch.testing.assert_close(ours, wide.float(), rtol=1e-5, atol=1e-6)


def test_layouts_shared_roots_and_upper_halves_change_nothing() -> None:
    p, q = drawn((4,), 3)
    expected = kl_divergence(normal(p), normal(q))
    transposed = p[0].mT.contiguous().mT, p[1].mT.contiguous().mT
    torch.testing.assert_close(kl_divergence(normal(transposed), normal(q)), expected)
    junk = q[0], q[1] + torch.ones(3, 3, dtype=torch.float64).triu(1)
    torch.testing.assert_close(kl_divergence(normal(p), normal(junk)), expected)
    shared = normal((p[0], q[1][0])), normal((q[0], q[1][0]))
    torch.testing.assert_close(
        kl_divergence(*shared), ((p[0] - q[0]) @ torch.linalg.inv(q[1][0]).mT).square().sum(-1) / 2
    )
    assert kl_divergence(normal((p[0][:0], p[1][:0])), normal((q[0][:0], q[1][:0]))).shape == (0,)


def test_many_are_computed_as_few_are() -> None:
    p, q = drawn((900,), 8)
    whole = answered(p, q)[0]
    for start in (0, 411, 899):
        alone = kl_divergence(normal((p[0][start], p[1][start])), normal((q[0][start], q[1][start])))
        torch.testing.assert_close(alone, whole[start], rtol=1e-13, atol=0)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, 0.0, -1.0, 1e-90, 1e90])
def test_roots_beyond_the_range_are_left_to_plain_torch(number: float) -> None:
    p, q = drawn((2,), 3)
    q[1][1, 2, 2] = number
    assert not is_fused(p, q)
    assert not is_fused(q, p)


@pytest.mark.parametrize("relative", [None, 1e-6])
@pytest.mark.parametrize("name", ["covariance_matrix", "precision_matrix"])
def test_those_made_from_other_matrices_have_the_digits_of_plain_torch(
    name: str, relative: float | None
) -> None:
    (loc_p, root_p), (loc_q, root_q) = drawn((4,), 3)
    if relative is not None:
        loc_q, root_q = loc_p * (1 + relative), root_p * (1 - relative)

    def answers(is_swapped: bool) -> tuple[Tensor, ...]:
        matrix = (root_p @ root_p.mT).requires_grad_()
        pair = MultivariateNormal(loc_p, **{name: matrix}), normal((loc_q, root_q))
        value = kl_divergence(*(pair[::-1] if is_swapped else pair))
        return value.detach(), *torch.autograd.grad(value.sum(), matrix)

    for is_swapped in (False, True):
        ours = answers(is_swapped)
        with patch.object(closed_forms, "_is_available", lambda: False):
            theirs = answers(is_swapped)
        torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=0)
        scale = float(theirs[1].abs().amax())
        torch.testing.assert_close(ours[1], theirs[1], rtol=1e-11, atol=1e-12 * scale)


def test_those_of_different_sizes_are_not_fused() -> None:
    side, _ = drawn((), 3)
    different, _ = drawn((), 4)
    assert not is_fused(side, different)
    covariance = MultivariateNormal(side[0], covariance_matrix=side[1] @ side[1].mT)
    assert closed_forms.fused_divergence(covariance, normal(side)) is not None
    assert closed_forms.fused_divergence(covariance, normal(different)) is None
