r"""Cholesky factors L of P's covariance L L^T and K of Q's covariance K K^T, and the relative factor M = K^-1 L.

M is lower triangular. This sum of non-negative terms determines the divergence of the covariances:
tr(M M^T) - d - log det(M M^T) = sum_i (m_ii^2 - 1 - log m_ii^2) + sum_{i > j} m_ij^2.
If P and Q are close, M is computed from the difference of the matrices that the user passed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from kullback.common.dtypes import upcast
from kullback.common.special import itakura_saito
from kullback.pairs.numerics.parameters import matrix_of

# If the squared norm of the whitened difference of the covariances is below _NEAR, M is computed from the difference.
# The identity plus a difference of norm below 1 is positive definite, so the exact value of _NEAR does not matter.
_NEAR = 0.02
# _LEAST_WIDTH is the smallest number of columns in a block of `solve_lower`. The value was chosen by
# benchmarks/bench_normals.py, like the width of the blocks in `triangular`.
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
    """Return the `Covariance` of W W^T + D for W = `factor` and the `diagonal` of D.

    The matrix W W^T + D is not computed, because its rounding would destroy a small D.
    """
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
    """Return K^-1 (L L^T - K K^T) K^-T from the difference of the matrices that the user passed.

    If the user passed L and K, the result is None.
    """
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
