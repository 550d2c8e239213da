"""Multivariate normals in C++: the values and gradients of plain torch and of mpmath."""

from __future__ import annotations

import itertools
from typing import Any
from unittest.mock import patch

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import MultivariateNormal

from kullback import kl_divergence
from kullback.kernels.native import library
from kullback.pairs import native_forms, registry as closed_forms
from kullback.pairs.numerics.parameters import MATRICES

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
    with patch.object(native_forms, "_is_available", lambda: False):
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


def true_value_and_derivatives(mean_p: Tensor, p: Any, mean_q: Tensor, q: Any) -> tuple[Any, Any, Any]:
    """Return KL for covariances, and its derivatives by these, by mpmath."""
    inverse, shift = q**-1, mpmath.matrix(mean_p.tolist()) - mpmath.matrix(mean_q.tolist())
    product, far = inverse * p, inverse * shift
    trace = mpmath.fsum(product[i, i] for i in range(p.rows))
    value = (trace - p.rows - mpmath.log(mpmath.det(product)) + (shift.T * far)[0]) / 2
    return value, (inverse - p**-1) / 2, (inverse - product * inverse - far * far.T) / 2


@pytest.mark.parametrize("relative", [None, 1e-6])
@pytest.mark.parametrize("names", list(itertools.product(MATRICES, repeat=2)), ids="-".join)
def test_matrices_of_any_kind_have_all_digits(names: tuple[str, str], relative: float | None) -> None:
    """Values, and derivatives by covariances and precisions, of ordinary, nearly equal and ill-conditioned pairs."""
    (loc_p, root_p), (loc_q, root_q) = drawn((3,), 4)
    root_p[2, 3] = root_p[2, 2] + 1e-6 * root_p[2, 3]  # nearly singular
    if relative is not None:
        loc_q, root_q = loc_p * (1 + relative), root_p * (1 - relative)
    given = [
        (root if name == "scale_tril" else root @ root.mT).requires_grad_()
        for name, root in zip(names, (root_p.tril(), root_q.tril()), strict=True)
    ]
    pair = [
        MultivariateNormal(loc, **{name: x}, validate_args=False)  # pyright: ignore[reportArgumentType]
        for name, loc, x in zip(names, (loc_p, loc_q), given, strict=True)
    ]
    value = closed_forms.fused_divergence(*pair)
    assert value is not None
    found = torch.autograd.grad(value.sum(), given)
    with mpmath.workdps(60):
        for i in range(3):
            exact = [mpmath.matrix(x[i].tolist()) for x in given]
            covariances = [
                x * x.T if name == "scale_tril" else x if name == "covariance_matrix" else x**-1
                for name, x in zip(names, exact, strict=True)
            ]
            truth, *derivatives = true_value_and_derivatives(
                loc_p[i], covariances[0], loc_q[i], covariances[1]
            )
            assert abs(value[i].item() - truth) <= 1e-12 * truth
            for name, s, by, ours in zip(names, covariances, derivatives, found, strict=True):
                if name == "scale_tril":
                    continue
                expected = by if name == "covariance_matrix" else -s * by * s
                error = mpmath.matrix(ours[i].tolist()) - expected
                assert mpmath.mnorm(error) <= 1e-11 * mpmath.mnorm(expected)


@pytest.mark.sweep
def test_derivatives_of_both_orders_by_covariances_and_precisions_are_consistent() -> None:
    (loc_p, root_p), (loc_q, root_q) = drawn((2,), 3)
    for name in ("covariance_matrix", "precision_matrix"):

        def value(a: Tensor, b: Tensor, name: str = name) -> Tensor:
            pair = ((loc_p, a), (loc_q, b))
            return kl_divergence(*(MultivariateNormal(m, **{name: (x + x.mT) / 2}) for m, x in pair))  # pyright: ignore[reportArgumentType]

        leaves = tuple((x @ x.mT).requires_grad_() for x in (root_p, root_q))
        assert gradcheck(value, leaves)
        assert gradgradcheck(value, leaves)


@pytest.mark.parametrize("name", ["covariance_matrix", "precision_matrix"])
def test_a_matrix_without_a_factor_is_left_to_plain_torch(name: str) -> None:
    (loc, root), _ = drawn((2,), 3)
    good = MultivariateNormal(loc, **{name: root @ root.mT})  # pyright: ignore[reportArgumentType]
    bad = MultivariateNormal(loc, **{name: root @ root.mT})  # pyright: ignore[reportArgumentType]
    setattr(bad, name, torch.diag_embed(torch.tensor([1.0, -1.0, 1.0]).double()).expand(2, 3, 3))
    assert closed_forms.fused_divergence(good, bad) is None
    assert closed_forms.fused_divergence(bad, good) is None


def test_those_of_different_sizes_are_not_fused() -> None:
    side, _ = drawn((), 3)
    different, _ = drawn((), 4)
    assert not is_fused(side, different)
    covariance = MultivariateNormal(side[0], covariance_matrix=side[1] @ side[1].mT)
    assert closed_forms.fused_divergence(covariance, normal(side)) is not None
    assert closed_forms.fused_divergence(covariance, normal(different)) is None
