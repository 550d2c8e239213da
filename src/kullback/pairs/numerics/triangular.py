"""Triangular systems of many dimensions and their derivatives, solved by blocks that skip zeros.

Most of the work is matrix products of blocks, which torch reads from the larger matrix without a copy, as LAPACK does.
`torch.linalg.solve_triangular` copies each block first, and its derivatives do not skip zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kullback.common.dtypes import upcast
from kullback.common.gradients import gradients_of
from kullback.common.inputs import can_inspect

# _WIDTH is the number of rows and columns of a block. In benchmarks/bench_normals.py, for 2,000 dimensions, the widths
# 64, 96, 128, 192 and 256 took 73, 66, 62, 66 and 70 ms.
_WIDTH = 128


def squares_below(left: Tensor, root: Tensor, *, is_difference: bool) -> Tensor:
    """Return the sum of the squares below the diagonal of root^-1 left, for lower triangular matrices.

    If `is_difference`, the sum is computed from root^-1 (left - root), which has the same entries below the diagonal
    and is accurate for nearly equal matrices. Entries above the diagonals are not read. No transform of torch.func may
    be active.
    """
    if torch.is_grad_enabled() and (left.requires_grad or root.requires_grad):
        return _SquaresBelow.apply(left, root, is_difference)
    return _sum_of_squares(left, root, is_difference=is_difference)


def plain_squares_below(left: Tensor, root: Tensor, *, is_difference: bool) -> Tensor:
    """Return `squares_below`, computed by operations that every transform of torch differentiates."""
    columns = (left - root if is_difference else left).tril()
    return (torch.linalg.solve_triangular(root, columns, upper=False).tril(-1) ** 2).sum((-2, -1))


def as_function_of(matrix: Tensor, factor: Tensor) -> Tensor:
    """Return `factor`, an already computed Cholesky factor of `matrix`, with its gradient with respect to `matrix`."""
    return _Cholesky.apply(matrix, factor)


class _SquaresBelow(torch.autograd.Function):
    """The operation `squares_below`, which saves X = root^-1 left, or root^-1 left - I if `is_difference`.

    Let B be the strictly lower triangle of X. The derivative with respect to `left` is the lower triangle of N = 2
    root^-T B. The derivative with respect to `root` is the lower triangle of -N X^T, which depends only on the lower
    triangle of N.
    """

    @staticmethod
    def forward(ctx: Any, left: Tensor, root: Tensor, is_difference: bool) -> Tensor:
        batch, size = torch.broadcast_shapes(left.shape[:-2], root.shape[:-2]), root.shape[-1]
        solved = root.new_zeros(*batch, size, size)
        total = _sum_of_squares(left, root, is_difference=is_difference, solved=solved)
        ctx.save_for_backward(left, root, solved)
        ctx.is_difference = is_difference
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (left, root, solved) = grads, ctx.saved_tensors
        if torch.is_grad_enabled() or not can_inspect(grad):  # second derivatives, or batched gradients

            def reference(arguments: Sequence[Any]) -> Tensor:
                return plain_squares_below(*arguments, is_difference=ctx.is_difference)

            return *gradients_of(reference, (left, root), grad, ctx.needs_input_grad[:2]), None
        by_left, by_root = torch.empty_like(solved), torch.empty_like(solved)
        for start, stop in _blocks(root.shape[-1]):
            columns = by_left[..., start:, start:stop]
            columns.copy_(solved[..., start:, start:stop])
            columns[..., : stop - start, :].tril_(-1)
            columns *= 2 * grad[..., None, None]
            _solve(root, columns, start, is_transposed=True)
            # X is 0 above the diagonal, so the entries of N above the diagonal do not contribute.
            by_root[..., start:, start:stop] = by_left[..., start:, :stop] @ solved[..., start:stop, :stop].mT
        by_left.tril_()
        by_root.tril_().neg_()
        if ctx.is_difference:
            by_root -= by_left
        return by_left.sum_to_size(left.shape), by_root.sum_to_size(root.shape), None


class _Cholesky(torch.autograd.Function):
    """The operation `as_function_of`, whose derivative is L^-T (F + F^T) L^-1 / 2 for L = `factor`.

    F is the lower triangle of L^T grad with its diagonal halved, where `grad` is the derivative with respect to L
    (Murray, "Differentiation of the Cholesky decomposition", 2016).
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(matrix, factor)
        return factor.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (matrix, factor) = grads, ctx.saved_tensors
        if torch.is_grad_enabled() or not can_inspect(grad):

            def reference(arguments: Sequence[Any]) -> Tensor:
                return torch.linalg.cholesky(upcast(arguments[0]))

            return *gradients_of(reference, (matrix,), grad, (True,)), None
        by_matrix = torch.empty_like(factor)
        for start, stop in _blocks(factor.shape[-1]):  # this loop computes F + F^T
            rows = factor[..., start:, start:stop].mT @ grad[..., start:, :stop]
            corner = rows[..., start:].tril_()
            corner.diagonal(dim1=-2, dim2=-1).div_(2)
            corner += corner.mT.clone()
            by_matrix[..., start:stop, :stop] = rows
            by_matrix[..., :start, start:stop] = rows[..., :start].mT
        by_matrix = torch.linalg.solve_triangular(factor.mT, by_matrix, upper=True)
        for start, stop in _blocks(factor.shape[-1]):  # half of the symmetric derivative
            rows = by_matrix[..., start:stop, start:]
            _solve(factor, rows.mT, start, is_transposed=True)
            corner = rows[..., : stop - start]
            corner.add_(corner.mT.clone()).div_(2)
            by_matrix[..., stop:, start:stop] = rows[..., stop - start :].mT
        return by_matrix.to(matrix.dtype).div_(2), None


def _sum_of_squares(
    left: Tensor, root: Tensor, *, is_difference: bool, solved: Tensor | None = None
) -> Tensor:
    """Return `squares_below`, and write the lower triangle of root^-1 left to `solved`.

    If `is_difference`, the matrix in `solved` is root^-1 left - I.
    """
    batch = torch.broadcast_shapes(left.shape[:-2], root.shape[:-2])
    left, total = left.expand(*batch, *left.shape[-2:]), root.new_zeros(batch)
    for start, stop in _blocks(root.shape[-1]):
        columns = left[..., start:, start:stop]
        columns = columns - root[..., start:, start:stop] if is_difference else columns.clone()
        top, rest = columns[..., : stop - start, :].tril_(), columns[..., stop - start :, :]
        _solve(root, columns, start)
        total += (top.tril(-1) ** 2).sum((-2, -1)) + (rest**2).sum((-2, -1))
        if solved is not None:
            solved[..., start:, start:stop] = columns
    return total


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    """Yield the range of rows or columns of each block, as (start, stop)."""
    for start in range(0, size, _WIDTH):
        yield start, min(start + _WIDTH, size)


def _solve(root: Tensor, columns: Tensor, first: int, *, is_transposed: bool = False) -> None:
    """Overwrite `columns` with R^-1 columns, or R^-T columns if `is_transposed`, for R = root[first:, first:]."""
    blocks = list(_blocks(root.shape[-1] - first))
    for start, stop in reversed(blocks) if is_transposed else blocks:
        solved_rows = slice(stop, None) if is_transposed else slice(None, start)
        own, part = root[..., first:, first:], columns[..., start:stop, :]
        corner = own[..., start:stop, start:stop]
        if is_transposed:
            _subtract_product(part, own[..., solved_rows, start:stop].mT, columns[..., solved_rows, :])
        else:
            _subtract_product(part, own[..., start:stop, solved_rows], columns[..., solved_rows, :])
        corner = corner.mT if is_transposed else corner
        part.copy_(torch.linalg.solve_triangular(corner, part, upper=is_transposed))


def _subtract_product(x: Tensor, left: Tensor, right: Tensor) -> None:
    if x.ndim == 2:
        x.addmm_(left, right, alpha=-1)  # saves the memory of the product
    else:
        x -= left @ right
