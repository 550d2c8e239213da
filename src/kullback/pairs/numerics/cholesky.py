r"""Cholesky factors L of P's covariance L L^T and K of Q's covariance K K^T, and the relative factor M = K^-1 L.

M is lower triangular. This sum of non-negative terms determines the divergence of the covariances:
tr(M M^T) - d - log det(M M^T) = sum_i (m_ii^2 - 1 - log m_ii^2) + sum_{i > j} m_ij^2.
If P and Q are close, M is computed from the difference of the matrices that the user passed.

Covariances W W^T + D with many dimensions and few factors are never formed. With U = D^(-1/2) W and M = I + U^T U, the
precision is D^(-1/2) (I - B B^T) D^(-1/2) for B = U M^(-1/2). The quadratic form v^T (I - B B^T) v is computed as the
minimum of |v - U z|^2 + |z|^2 over z, without cancellation.

Triangular systems of many dimensions are solved by blocks that skip zeros. Most of the work is matrix products of
blocks, which torch reads from the larger matrix without a copy, as LAPACK does. `torch.linalg.solve_triangular` copies
each block first, and its derivatives do not skip zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, LowRankMultivariateNormal, Normal

from kullback.common.dtypes import upcast
from kullback.common.gradients import gradients_of
from kullback.common.inputs import can_inspect
from kullback.common.special import itakura_saito
from kullback.pairs.family import overrides_density
from kullback.pairs.numerics.parameters import matrix_of

# _WIDTH is the number of rows and columns of a block. In benchmarks/bench_normals.py, for 2,000 dimensions, the widths
# 64, 96, 128, 192 and 256 took 73, 66, 62, 66 and 70 ms.
_WIDTH = 128


def squares_below(left: Tensor, root: Tensor, *, is_difference: bool) -> Tensor:
    """Return the sum of the squares below the diagonal of root^-1 left, for lower triangles of matrices.

    If `is_difference`, it is computed from root^-1 (left - root), which is accurate for nearly equal matrices. No
    transform of torch.func may be active.
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
    """Return `squares_below`, and write the lower triangle of root^-1 left, minus I if `is_difference`, to `solved`."""
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


# If the squared norm of the whitened difference of the covariances is below _NEAR, M is computed from the difference.
# The identity plus a difference of norm below 1 is positive definite, so the exact value of _NEAR does not matter.
_NEAR = 0.02
# _LEAST_WIDTH is the smallest number of columns in a block of `solve_lower`. The value was chosen by
# benchmarks/bench_normals.py.
_LEAST_WIDTH = 128
# The squares of numbers from _LEAST_RATIO to _MOST_RATIO neither underflow nor overflow float64.
_LEAST_RATIO, _MOST_RATIO = 1e-150, 1e150


class Covariance(NamedTuple):
    """The Cholesky factor L of a covariance, and the user's parameters if L was computed from other parameters."""

    root: Tensor
    matrix: Tensor | None = None
    low_rank: tuple[Tensor, Tensor] | None = None
    from_matrix: bool = False

    def rounding_error(self) -> Tensor:
        """Bound the relative error of L: rounding times the condition number of L, plus the error of the correction.

        The error after the correction in `of_matrix` is the third power of the initial error.
        """
        root = self.root.detach()
        inverse = torch.linalg.solve_triangular(root, identity_like(root).expand_as(root), upper=False)
        condition = torch.linalg.matrix_norm(root) * torch.linalg.matrix_norm(inverse)
        rounding = torch.finfo(root.dtype).eps
        first = (rounding * condition**2) ** 3 if self.from_matrix else 0
        return rounding * condition + first


class Relative(NamedTuple):
    """The matrix M = K^-1 L for the Cholesky factors L of P's covariance and K of Q's covariance.

    The fields are the diagonal m_ii, m_ii^2 - 1 to full precision, and the entries below the diagonal.
    """

    diagonal: Tensor
    squares_minus_one: Tensor
    below: Tensor

    def itakura_saito_terms(self) -> Tensor:
        """Return m_ii^2 - 1 - log m_ii^2, also where m_ii^2 underflows; infinite where m_ii^2 overflows."""
        small = self.diagonal < _LEAST_RATIO
        usual = (self.diagonal >= _LEAST_RATIO) & (self.diagonal <= _MOST_RATIO)
        squares = torch.where(usual, self.diagonal, 1) ** 2
        terms = itakura_saito(
            squares, torch.ones_like(squares), torch.where(usual, self.squares_minus_one, 0)
        )
        far = torch.where(small, -1 - 2 * torch.log(torch.where(small, self.diagonal, 1)), torch.inf)
        return torch.where(usual, terms, far)

    def divergence(self) -> Tensor:
        """Return KL(P || Q) of two normal distributions with equal means, from the matrix M = K^-1 L."""
        huge = (self.diagonal > _MOST_RATIO).any(-1)
        below = torch.where(huge[..., None, None], 0, self.below)
        return torch.where(
            huge, torch.inf, (self.itakura_saito_terms().sum(-1) + (below**2).sum((-2, -1))) / 2
        )


class Mixed(NamedTuple):
    """The Cholesky factor T of a symmetric matrix, also in the form of `Relative`, and log det T T^T.

    `exists` is a mask of the batch elements whose matrix is positive definite, so that T exists.
    """

    root: Tensor
    relative: Relative
    log_det: Tensor
    exists: Tensor


def of_root(root: Tensor) -> Covariance:
    """Return the `Covariance` with the Cholesky factor `root`."""
    return Covariance(root.tril())


def of_matrix(matrix: Tensor) -> Covariance:
    """Return the `Covariance` of a covariance matrix.

    The Cholesky factor is corrected by its residual, which is computed in twice the precision. The relative error of
    the factor is then the machine epsilon times the square root of the condition number of the matrix. Without the
    correction, it would be the machine epsilon times the condition number. Only the correction is differentiable, and
    this gradient is more accurate than the derivative of `torch.linalg.cholesky`.
    """
    matrix = (matrix + matrix.mT) / 2
    fixed = matrix.detach()
    root = torch.linalg.cholesky(fixed)
    change = _both_sides(root, _residual(fixed, root) + (matrix - fixed))
    return Covariance(_corrected(root, change), matrix, from_matrix=True)


def of_low_rank(factor: Tensor, diagonal: Tensor) -> Covariance:
    """Return the `Covariance` of W W^T + D, which is not computed, because its rounding would destroy a small D."""
    wide_root = torch.cat([factor, torch.diag_embed(torch.sqrt(diagonal))], -1)
    upper = torch.linalg.qr(wide_root.detach().mT)[1]
    root = upper.mT * torch.sign(upper.diagonal(dim1=-2, dim2=-1)).unsqueeze(-2)
    rows = torch.linalg.solve_triangular(root, wide_root, upper=False)
    gram = rows @ rows.mT
    return Covariance(_corrected(root, gram - gram.detach()), low_rank=(factor, diagonal))


def _corrected(root: Tensor, change: Tensor) -> Tensor:
    """Return the Cholesky factor of root (I + change) root^T for a small `change`; exact to second order."""
    first = _lower_half(change)
    return root + root @ _lower_half(change - first @ first.mT)


def _lower_half(x: Tensor) -> Tensor:
    return x.tril() - torch.diag_embed(x.diagonal(dim1=-2, dim2=-1)) / 2


def _residual(matrix: Tensor, root: Tensor) -> Tensor:
    """Return matrix - root root^T in twice the precision, by splitting off leading digits whose products are exact.

    Error-free transformations of matrix multiplication (Ozaki, Ogita, Oishi and Rump, 2012)
    """
    size = root.shape[-1]
    digits = torch.finfo(root.dtype).bits - (12 if root.dtype == torch.float64 else 9) + 1
    leading = (digits - size.bit_length()) // 2 - 1
    grid = root.abs().amax(-1, keepdim=True) * (1.5 * 2.0 ** (digits - leading))
    high = (root + grid) - grid
    low = root - high
    cross = low @ (high + low / 2).mT
    return (matrix - high @ high.mT) - (cross + cross.mT)


def _both_sides(root: Tensor, matrix: Tensor) -> Tensor:
    """Return root^-1 matrix root^-T."""
    half = torch.linalg.solve_triangular(root, matrix, upper=False)
    return torch.linalg.solve_triangular(root, half.mT, upper=False)


def whitened(x: Tensor, by: Covariance) -> Tensor:
    """Return L^-1 x, where L is the Cholesky factor in `by`, and the columns of x are vectors."""
    return torch.linalg.solve_triangular(by.root, x, upper=False)


def solve_lower(root: Tensor, x: Tensor) -> Tensor:
    """Return root^-1 x for lower triangular root and x, by blocks of columns that skip the zeros of x."""
    size = x.shape[-1]
    width = max(_LEAST_WIDTH, -(-size // 8))
    columns = [
        torch.nn.functional.pad(
            torch.linalg.solve_triangular(root[..., i:, i:], x[..., i:, i : i + width], upper=False),
            (0, 0, i, 0),
        )
        for i in range(0, size, width)
    ]
    return torch.cat(columns, -1) if len(columns) > 1 else columns[0]


def identity_like(x: Tensor) -> Tensor:
    """Return the identity matrix with as many columns as x, in the dtype and on the device of x."""
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def _plus_one(x: Tensor) -> Tensor:
    return x + identity_like(x)


def relative(p: Covariance, q: Covariance) -> Relative:
    """Return M = K^-1 L for the factors L of P and K of Q."""
    step = p.root - q.root
    diagonal_p, diagonal_q, shift = (x.diagonal(dim1=-2, dim2=-1) for x in (p.root, q.root, step))
    ratio = diagonal_p / diagonal_q
    far = Relative(ratio, shift / diagonal_q * (1 + ratio), solve_lower(q.root, step).tril(-1))
    change = _whitened_difference(p, q)
    return far if change is None else _nearer(far, change)


def _whitened_difference(p: Covariance, q: Covariance) -> Tensor | None:
    """Return K^-1 (L L^T - K K^T) K^-T from the difference of the user's matrices, or None if these are L and K."""
    if p.matrix is not None and q.matrix is not None:
        return _both_sides(q.root, p.matrix - q.matrix)
    if p.low_rank is None or q.low_rank is None:
        return None
    factors, diagonals = zip(p.low_rank, q.low_rank, strict=True)
    rank = max(x.shape[-1] for x in factors)
    left, right = (torch.nn.functional.pad(x, (0, rank - x.shape[-1])) for x in factors)
    change, middle = whitened(left - right, q), whitened((left + right) / 2, q)
    product = change @ middle.mT
    return _both_sides(q.root, torch.diag_embed(diagonals[0] - diagonals[1])) + product + product.mT


def _nearer(far: Relative, change: Tensor) -> Relative:
    """Return `far`, except for batch elements with a small `change`: for them, the Cholesky factor of I + change."""
    near = (change.detach() ** 2).sum((-2, -1)) < _NEAR
    change = torch.where(near[..., None, None], change, 0)
    first = torch.linalg.cholesky(_plus_one(change)) - identity_like(change)
    # One step of Newton's method restores the digits that the rounding of I + change lost.
    small = _lower_half(change - first @ first.mT)
    shift = small.diagonal(dim1=-2, dim2=-1)
    close = Relative(1 + shift, shift * (2 + shift), small.tril(-1))
    marks = (near[..., None], near[..., None], near[..., None, None])
    return Relative(*(torch.where(m, a, b) for m, a, b in zip(marks, close, far, strict=True)))


def mixed_with_one(m: Relative, share: float) -> Mixed:
    """Return the Cholesky factor of (1 - share) I + share M M^T, or I where this matrix is not positive definite."""
    step = torch.diag_embed(m.squares_minus_one / (1 + m.diagonal)) + m.below
    change = share * (step + step.mT + step @ step.mT)
    exists = torch.linalg.cholesky_ex(_plus_one(change.detach())).info == 0
    change = torch.where(exists[..., None, None], change, 0)
    root = torch.linalg.cholesky(_plus_one(change))
    diagonal = root.diagonal(dim1=-2, dim2=-1)
    factor = _nearer(Relative(diagonal, diagonal**2 - 1, root.tril(-1)), change)
    return Mixed(root, factor, torch.log1p(factor.squares_minus_one).sum(-1), exists)


def factors_of(p: Distribution, q: Distribution) -> tuple[Covariance, Covariance, bool]:
    """Return P's covariance, Q's covariance and False.

    If both distributions were made from precisions, return Q's precision, P's precision and True. Q's precision
    relative to P's precision has the same eigenvalues as P's covariance relative to Q's covariance.
    """
    (name_p, matrix_p), (name_q, matrix_q) = map(_passed_matrix, (p, q))
    if name_p == name_q == "precision_matrix":
        return of_matrix(matrix_q), of_matrix(matrix_p), True
    return _covariance(name_p, matrix_p), _covariance(name_q, matrix_q), False


def _passed_matrix(d: Distribution) -> tuple[str, Tensor]:
    """Return the name and the matrix that the user passed, without batch dimensions that `expand` added."""
    name = matrix_of(d) or "covariance_matrix"
    matrix: Tensor = getattr(d, name)
    own: Tensor | None = vars(d).get("_unbroadcasted_scale_tril")  # GPyTorch lacks this attribute
    if own is not None and matrix.numel():
        matrix = without_expansion(matrix, own)
    return name, upcast(matrix)


def without_expansion(matrix: Tensor, own: Tensor) -> Tensor:
    """Return matrices without the copies that `expand` added, that is, with the batch shape of `own`."""
    matrix = matrix[(0,) * (matrix.ndim - own.ndim)]
    for axis, size in enumerate(own.shape[:-2]):
        matrix = matrix.narrow(axis, 0, size)
    return matrix


def covariance_of(d: Distribution) -> Covariance:
    """Return the covariance of a distribution that was made from a covariance, a precision or a Cholesky factor."""
    return _covariance(*_passed_matrix(d))


def _covariance(name: str, matrix: Tensor) -> Covariance:
    if name == "scale_tril":
        return of_root(matrix)
    if name == "covariance_matrix":
        return of_matrix(matrix)
    flipped = of_matrix(matrix.flip((-2, -1)))
    inverse = flipped.root.flip((-2, -1)).mT
    root = torch.linalg.solve_triangular(inverse, identity_like(inverse).expand_as(inverse), upper=False)
    return of_root(root)._replace(from_matrix=True)


class FactorModel(NamedTuple):
    """A mean of shape (..., d), factors W of shape (..., d, rank) and the diagonal of D, shape (..., d)."""

    mean: Tensor
    factors: Tensor
    variances: Tensor


class Whitened(NamedTuple):
    """U = D^(-1/2) W and the Cholesky factor of M = I + U^T U."""

    u: Tensor
    root: Tensor

    def b_transposed(self) -> Tensor:
        """Return B^T for B = U M^(-1/2)."""
        return torch.linalg.solve_triangular(self.root, self.u.mT, upper=False)

    def residual(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return v - U z = (I - B B^T) v, and z = M^-1 U^T v."""
        z = torch.cholesky_solve(self.u.mT @ v, self.root)
        return v - self.u @ z, z

    def log_det(self) -> Tensor:
        """Return log det M for M = I + U^T U."""
        return 2 * torch.log(self.root.diagonal(dim1=-2, dim2=-1)).sum(-1)


def whitened_factors(factors: Tensor, root: Tensor) -> Whitened:
    """Return U and the Cholesky factor of M, from W and the square roots of the diagonal of D."""
    u = factors / root.unsqueeze(-1)
    return Whitened(u, torch.linalg.cholesky(identity_like(u) + u.mT @ u))


def factor_model_of(d: LowRankMultivariateNormal) -> FactorModel:
    """Return the parameters of a distribution, where W and D lack the batch dimensions that `expand` added."""
    factors: Tensor = d._unbroadcasted_cov_factor  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    variances: Tensor = d._unbroadcasted_cov_diag  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    batch = torch.broadcast_shapes(factors.shape[:-2], variances.shape[:-1])
    factors, variances = factors.expand(*batch, *factors.shape[-2:]), variances.expand(*batch, -1)
    return FactorModel(upcast(d.loc), upcast(factors), upcast(variances))


def as_factor_model(d: Any) -> FactorModel | None:
    """Return a normal with covariance W W^T + D as a factor model, with W = 0 for a diagonal covariance, or None."""
    if isinstance(d, LowRankMultivariateNormal):
        return None if overrides_density(d) else factor_model_of(d)
    if not is_diagonal_normal(d):
        return None
    mean, deviations = upcast(d.base_dist.loc), upcast(d.base_dist.scale)
    return FactorModel(mean, mean.new_zeros(()).expand(*mean.shape, 1), deviations**2)


def is_diagonal_normal(d: Any) -> bool:
    """Return whether a distribution is a Normal whose last batch dimension is the event."""
    return (
        isinstance(d, Independent)
        and isinstance(d.base_dist, Normal)
        and d.reinterpreted_batch_ndims == 1
        and not overrides_density(d)
        and not overrides_density(d.base_dist)
    )
