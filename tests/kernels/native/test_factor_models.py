"""Multivariate normals with low-rank covariances in C++: the values of mpmath and of plain torch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any
from unittest.mock import patch

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor
from torch.distributions import Distribution, LowRankMultivariateNormal, MultivariateNormal

from kullback import kl_divergence
from kullback.kernels.native import library
from kullback.pairs import native_forms, registry as closed_forms

if library.missing() is not None:
    pytest.skip(f"no native kernels here: {library.missing()}", allow_module_level=True)

Side = tuple[Tensor, ...]
PAIRS = ("low rank || low rank", "low rank || full", "full || low rank")


def low_rank(generator: torch.Generator, batch: tuple[int, ...], size: int, rank: int) -> Side:
    loc, factor, logs = (
        torch.randn(*batch, *shape, dtype=torch.float64, generator=generator)
        for shape in ((size,), (size, rank), (size,))
    )
    return loc, factor, logs.exp()


def full(generator: torch.Generator, batch: tuple[int, ...], size: int, _: int) -> Side:
    loc, rows, logs = (
        torch.randn(*batch, *shape, dtype=torch.float64, generator=generator)
        for shape in ((size,), (size, size), (size,))
    )
    return loc, rows.tril(-1) / max(size, 1) ** 0.5 + torch.diag_embed(logs.exp())


def drawn(pair: str, batch: tuple[int, ...], size: int, ranks: tuple[int, int] = (2, 3)) -> tuple[Side, Side]:
    generator = torch.Generator().manual_seed(0)
    p, q = (
        (low_rank if side == "low rank" else full)(generator, batch, size, rank)
        for side, rank in zip(pair.split(" || "), ranks, strict=True)
    )
    return p, q


def normal(side: Side) -> Distribution:
    if len(side) == 3:
        return LowRankMultivariateNormal(*side, validate_args=False)
    return MultivariateNormal(side[0], scale_tril=side[1], validate_args=False)


def fused(p: Side, q: Side) -> Tensor:
    value = closed_forms.fused_divergence(normal(p), normal(q))
    assert value is not None
    return value


def plainly(p: Side, q: Side) -> Tensor:
    with patch.object(native_forms, "_is_available", lambda: False):
        return kl_divergence(normal(p), normal(q))


def truth(p: Side, q: Side, digits: int = 120) -> Any:
    """KL from the matrices, for sides of no batch."""
    with mpmath.workdps(digits):
        means, matrices = [], []
        for side in (p, q):
            mean, matrix = (mpmath.matrix(x.tolist()) for x in side[:2])
            variances = side[2].tolist() if len(side) == 3 else [0] * len(mean)
            means.append(mean)
            matrices.append(matrix * matrix.T + mpmath.diag([mpf(x) for x in variances]))
        inverse, size, shift = mpmath.inverse(matrices[1]), len(means[0]), means[0] - means[1]
        product_ = inverse * matrices[0]
        trace = sum(product_[i, i] for i in range(size))
        return (trace + (shift.T * inverse * shift)[0] - size - mpmath.log(mpmath.det(product_))) / 2


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 50])
def test_values_are_those_of_plain_torch(pair: str, size: int) -> None:
    for ranks in ((1, 1), (2, 3), (9, 2)):
        p, q = drawn(pair, (3, 4), size, ranks)
        torch.testing.assert_close(fused(p, q), plainly(p, q), rtol=1e-12, atol=1e-13)


Change = Callable[[Side], Side]


def scaled(factor: float, variance: float) -> Change:
    """Scale a low-rank covariance."""
    return lambda x: x if len(x) == 2 else (x[0], x[1] * factor, x[2] * variance)


def moved(relative: float) -> Change:
    def change(x: Tensor) -> Tensor:
        return x * (1 + relative * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x))

    return lambda side: tuple(map(change, side))


def parallel(x: Side) -> Side:
    """The columns of W nearly the same."""
    return x if len(x) == 2 else (x[0], x[1][..., :1] + 1e-7 * x[1], x[2])


# What is done to P and to Q, the latter being P's if both are moved.
AT: dict[str, tuple[Change, Change]] = {
    "as drawn": (scaled(1, 1), scaled(1, 1)),
    "strong factors of P": (scaled(1e3, 1), scaled(1, 1)),
    "strong factors of Q": (scaled(1, 1), scaled(1e3, 1)),
    "stronger factors": (scaled(1e6, 1), scaled(2e6, 1)),
    "weak factors": (scaled(1e-9, 1), scaled(1e-5, 1)),
    "no factors": (scaled(0, 1), scaled(0, 2)),
    "small variances of P": (scaled(1, 1e-8), scaled(1, 1)),
    "small variances of Q": (scaled(1, 1), scaled(1, 1e-8)),
    "small variances": (scaled(1, 1e-9), scaled(1, 1e-11)),
    "parallel columns": (parallel, parallel),
}
NEAR = [1e-10, 1e-6, 1e-3, 0.03]


@pytest.mark.parametrize("name", AT)
@pytest.mark.parametrize("pair", PAIRS)
def test_values_are_those_of_mpmath(pair: str, name: str) -> None:
    for size, ranks in product((1, 2, 5), ((1, 1), (2, 3), (6, 6))):
        drawn_p, drawn_q = drawn(pair, (), size, ranks)
        p, q = AT[name][0](drawn_p), AT[name][1](drawn_q)
        true = truth(p, q)
        # What a relative change of the inputs by their rounding does, is no error.
        moves = [abs(truth(moved(2.0**-50)(p), q) - true), abs(truth(p, moved(2.0**-50)(q)) - true)]
        assert abs(fused(p, q).item() - true) <= 1e-12 * true + 4 * sum(moves), (size, ranks)


@pytest.mark.parametrize("relative", NEAR)
@pytest.mark.parametrize("name", ["as drawn", "strong factors of P", "weak factors", "small variances of P"])
def test_values_of_nearly_equal_covariances_are_those_of_mpmath(relative: float, name: str) -> None:
    for size, ranks in product((1, 2, 5, 9), ((1, 1), (3, 3))):
        p = AT[name][0](drawn(PAIRS[0], (), size, ranks)[0])
        q = moved(relative)(p)
        true = truth(p, q)
        assert abs(fused(p, q).item() - true) <= 1e-10 * true, (size, ranks)


def test_the_same_distribution_is_at_0() -> None:
    for size, rank in product((1, 4, 30), (1, 3)):
        p, _ = drawn(PAIRS[0], (5,), size, (rank, rank))
        assert not bool(fused(p, p).any())


@pytest.mark.parametrize("pair", PAIRS)
def test_float32_is_float64_rounded(pair: str) -> None:
    p, q = (tuple(x.float() for x in side) for side in drawn(pair, (9,), 5))
    exact = fused(tuple(x.double() for x in p), tuple(x.double() for x in q))
    found = fused(p, q)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact.float(), rtol=3e-7, atol=0)


@pytest.mark.parametrize("pair", PAIRS)
def test_layouts_and_numbers_of_pairs_change_nothing(pair: str) -> None:
    p, q = drawn(pair, (700,), 4)
    whole = fused(p, q)
    for i in (0, 411, 699):
        alone = fused(tuple(x[i] for x in p), tuple(x[i] for x in q))
        torch.testing.assert_close(alone, whole[i], rtol=1e-13, atol=0)
    turned = tuple(x.mT.contiguous().mT if x.ndim == 3 else x for x in p)
    assert torch.equal(fused(turned, q), whole)
    assert fused(tuple(x[:0] for x in p), tuple(x[:0] for x in q)).shape == (0,)
    repeated = tuple(x[:1].expand(3, *x.shape[1:]) for x in p)
    torch.testing.assert_close(fused(repeated, tuple(x[:3] for x in q))[0], whole[0])


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("number", [torch.nan, torch.inf, 1e90])
def test_parameters_beyond_the_range_are_left_to_plain_torch(pair: str, number: float) -> None:
    for side in (0, 1):
        for i in range(len(drawn(pair, (2,), 3)[side])):
            sides = drawn(pair, (2,), 3)
            p, q = map(normal, sides)
            assert closed_forms.fused_divergence(p, q) is not None
            sides[side][i][1, 2] = number  # which torch refuses when a distribution is made
            assert closed_forms.fused_divergence(p, q) is None


def test_other_shapes_are_left_to_plain_torch() -> None:
    p, q = drawn(PAIRS[0], (2,), 3)
    fused(p, q)
    small = drawn(PAIRS[0], (2,), 2)[0]
    assert closed_forms.fused_divergence(normal(small), normal(q)) is None


@pytest.mark.heavy
@pytest.mark.parametrize(("relative", "factor"), [(1e-9, 1), (1e-3, 1), (0.03, 1), (1e-4, 1e3)])
def test_values_of_many_dimensions_nearly_equal_are_those_of_mpmath(relative: float, factor: float) -> None:
    p, other = drawn(PAIRS[0], (), 64, (2, 2))
    p = scaled(factor, 1)(p)
    q = tuple(a + relative * abs(a) * b.tanh() for a, b in zip(p, other, strict=True))
    true = truth(p, q, digits=50)
    assert abs(fused(p, q).item() - true) <= 1e-11 * true


def covariance(side: Side) -> Any:
    matrix = mpmath.matrix(side[1].tolist())
    variances = [mpf(x) for x in side[2].tolist()] if len(side) == 3 else [0] * len(side[0])
    return matrix * matrix.T + mpmath.diag(variances)


def true_gradients(p: Side, q: Side) -> list[Tensor]:
    """The gradients of KL by the parameters of P and of Q, by matrix calculus, for sides of no batch."""
    with mpmath.workdps(60):
        of_p, of_q = covariance(p), covariance(q)
        back_p, back_q = mpmath.inverse(of_p), mpmath.inverse(of_q)
        step = back_q * (mpmath.matrix(p[0].tolist()) - mpmath.matrix(q[0].tolist()))
        by_p = (back_q - back_p) / 2
        by_q = (back_q - back_q * of_p * back_q - step * step.T) / 2
        found: list[Tensor] = []
        for side, by, sign in ((p, by_p, 1), (q, by_q, -1)):
            of_matrix = 2 * by * mpmath.matrix(side[1].tolist())
            parts = [sign * step, of_matrix, mpmath.matrix([by[i, i] for i in range(by.rows)])]
            found += [
                torch.tensor([float(x) for x in y], dtype=torch.float64).view_as(like)
                for y, like in zip(parts, side, strict=False)
            ]
            if len(side) == 2:
                found[-1] = found[-1].tril()
        return found


@pytest.mark.parametrize("pair", PAIRS[1:])
@pytest.mark.parametrize("factor", [1e-6, 1, 1e3])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_gradients_of_a_low_rank_and_a_full_one_are_those_of_mpmath(
    pair: str, size: int, factor: float
) -> None:
    allowed = 1e-12 if factor <= 1 else 1e-8  # the condition of strong factors
    for ranks in ((1, 1), (3, 3)):
        p, q = (scaled(factor, 1)(x) for x in drawn(pair, (), size, ranks))
        leaves = [x.clone().requires_grad_() for x in (*p, *q)]
        value = fused(tuple(leaves[: len(p)]), tuple(leaves[len(p) :]))
        for mine, true in zip(torch.autograd.grad(value, leaves), true_gradients(p, q), strict=True):
            assert (mine - true).abs().max() <= allowed * true.abs().max()


@pytest.mark.parametrize("relative", [None, 0.03, 1e-4, 1e-9])
@pytest.mark.parametrize("factor", [1e-6, 1, 1e3])
@pytest.mark.parametrize("ranks", [(1, 1), (2, 3), (4, 1)])
def test_gradients_are_those_of_mpmath(ranks: tuple[int, int], factor: float, relative: float | None) -> None:
    allowed = 1e-11 if factor <= 1 else 1e-8  # the condition of strong factors
    for size in (1, 2, 7):
        p, q = (scaled(factor, 1)(x) for x in drawn(PAIRS[0], (), size, ranks))
        if relative is not None:
            q = tuple(
                x + relative * abs(x) * torch.sin(1 + 3 * torch.arange(x.numel())).view_as(x) for x in p
            )
        leaves = [x.clone().requires_grad_() for x in (*p, *q)]
        value = fused(tuple(leaves[:3]), tuple(leaves[3:]))
        for mine, true in zip(torch.autograd.grad(value, leaves), true_gradients(p, q), strict=True):
            assert (mine - true).abs().max() <= allowed * true.abs().max()


@pytest.mark.parametrize("pair", PAIRS)
def test_gradients_of_batches_are_those_of_each_pair(pair: str) -> None:
    p, q = drawn(pair, (3, 2), 6)
    count = len(p)

    def value(leaves: list[Tensor]) -> Tensor:
        return fused(tuple(leaves[:count]), tuple(leaves[count:]))

    leaves = [x.clone().requires_grad_() for x in (*p, *q)]
    weights = torch.tensor([[1.0, 0.0], [-2.0, 0.5], [3.0, 1.0]], dtype=torch.float64)
    found = torch.autograd.grad((weights * value(leaves)).sum(), leaves)
    for i, j in product(range(3), range(2)):
        want = true_gradients(tuple(x[i, j] for x in p), tuple(x[i, j] for x in q))
        for mine, true in zip(found, want, strict=True):
            torch.testing.assert_close(mine[i, j], weights[i, j] * true, rtol=1e-11, atol=1e-11)
    single = [x.float().requires_grad_() for x in (*p, *q)]
    rounded = torch.autograd.grad(value(single).sum(), single)
    whole = torch.autograd.grad(value(leaves).sum(), leaves)
    for mine, true in zip(rounded, whole, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), true, rtol=1e-4, atol=1e-4)


@pytest.mark.sweep
@pytest.mark.parametrize("pair", PAIRS)
def test_gradients_are_differentiable(pair: str) -> None:
    p, q = drawn(pair, (2,), 4)
    count, leaves = len(p), [x.requires_grad_() for x in (*p, *q)]

    def value(*x: Tensor) -> Tensor:
        return fused(x[:count], x[count:])

    assert torch.autograd.gradcheck(value, leaves)
    assert torch.autograd.gradgradcheck(value, leaves)
    jacobian = torch.autograd.functional.jacobian(lambda x: value(x, *leaves[1:]), leaves[0], vectorize=True)
    torch.testing.assert_close(jacobian.sum(0), torch.autograd.grad(value(*leaves).sum(), leaves[0])[0])
