"""Triangular systems in blocks: numbers of mpmath, finite differences, and torch's own factorization."""

from __future__ import annotations

from functools import partial
from itertools import product

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from kullback.pairs.numerics import cholesky
from kullback.pairs.numerics.cholesky import as_function_of, plain_squares_below, squares_below

SIZE = 5
BATCHES = (((), ()), ((2,), ()), ((), (2,)), ((2, 1), (3,)))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rows make two whole blocks and a last row."""
    monkeypatch.setattr(cholesky, "_WIDTH", 2)


def triangle(batch: tuple[int, ...], seed: int) -> Tensor:
    """A factor with other numbers above its diagonal, which nobody may read."""
    draw = torch.Generator().manual_seed(seed)
    matrix = torch.randn(*batch, SIZE, SIZE, generator=draw, dtype=torch.float64) / 2
    return matrix + 2 * torch.eye(SIZE)


def truth(left: Tensor, root: Tensor) -> mpmath.mpf:
    with mpmath.workdps(40):
        inverse = mpmath.matrix(root.tril().tolist()) ** -1
        solved = inverse * mpmath.matrix(left.tril().tolist())
        return mpmath.fsum(solved[i, j] ** 2 for i in range(SIZE) for j in range(i))


def test_squares_below_the_diagonal_are_those_of_mpmath() -> None:
    for (of_left, of_root), is_difference in product(BATCHES, (False, True)):
        left, root = triangle(of_left, 0), triangle(of_root, 1)
        pairs = [x.reshape(-1, SIZE, SIZE) for x in torch.broadcast_tensors(left, root)]
        true = [float(truth(a, b)) for a, b in zip(*pairs, strict=True)]
        for leaf in (False, True):
            value = squares_below(left, root.clone().requires_grad_(leaf), is_difference=is_difference)
            plain = plain_squares_below(left, root, is_difference=is_difference)
            case = (of_left, of_root, is_difference, leaf)
            assert value.flatten().tolist() == pytest.approx(true, rel=1e-13), case
            assert plain.flatten().tolist() == pytest.approx(true, rel=1e-13), case


def test_squares_below_the_diagonal_have_the_derivatives_of_finite_differences() -> None:
    for (of_left, of_root), is_difference in product(BATCHES, (False, True)):
        left, root = triangle(of_left, 2).requires_grad_(), triangle(of_root, 3).requires_grad_()

        value = partial(squares_below, is_difference=is_difference)
        assert gradcheck(value, (left, root), fast_mode=True), (of_left, of_root, is_difference)
        for fixed in (0, 1):
            inputs = [x.detach() if i == fixed else x for i, x in enumerate((left, root))]
            assert gradcheck(value, inputs, fast_mode=True), (of_left, of_root, is_difference, fixed)
    left, root = (triangle((), seed).requires_grad_() for seed in (2, 3))
    value = partial(squares_below, is_difference=True)
    assert gradcheck(value, (left, root), check_batched_grad=True)
    assert gradgradcheck(value, (left, root), check_batched_grad=True)


def test_a_factor_as_a_function_of_its_matrix_has_the_derivatives_of_torch() -> None:
    for batch in ((), (2,)):
        root = triangle(batch, 4).tril()
        weights = triangle(batch, 5)
        matrix = (root @ root.mT).requires_grad_()

        def ours(x: Tensor, root: Tensor = root) -> Tensor:
            return as_function_of(x, root)

        wanted, found = (
            torch.autograd.grad(f(matrix), matrix, weights)[0] for f in (torch.linalg.cholesky, ours)
        )
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        assert torch.equal(found, found.mT), "the gradient of a symmetric matrix is symmetric"
        seconds: list[Tensor] = []
        for f in (torch.linalg.cholesky, ours):
            (first,) = torch.autograd.grad(f(matrix), matrix, weights, create_graph=True)
            seconds.append(torch.autograd.grad((first**2).sum(), matrix)[0])
        torch.testing.assert_close(*seconds, rtol=1e-11, atol=1e-11)
        several = torch.stack([weights, 2 * weights, weights.mT])
        (together,) = torch.autograd.grad(ours(matrix), matrix, several, is_grads_batched=True)
        for each, weight in zip(together, several, strict=True):
            (single,) = torch.autograd.grad(torch.linalg.cholesky(matrix), matrix, weight)
            torch.testing.assert_close(each, single, rtol=1e-12, atol=1e-12)
        assert (
            torch.autograd.grad(as_function_of(matrix.float(), root).sum(), matrix)[0].shape == matrix.shape
        )
