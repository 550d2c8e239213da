r"""KL between multivariate normals of many dimensions, by one triangular system.

The Cholesky factors of the covariances come from torch and have rounding errors. The result is None if these errors
cost digits, because P and Q are nearly equal or a covariance is ill-conditioned. In this case the caller uses the exact
forms in `multivariate_normal`.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal
from torch.utils.weak import WeakIdKeyDictionary

from kullback.common.dtypes import upcast
from kullback.common.inputs import can_inspect, can_inspect_all
from kullback.common.special import itakura_saito
from kullback.pairs.clone import parameters_of
from kullback.pairs.family import overrides_density
from kullback.pairs.native_forms import is_ordinary_call
from kullback.pairs.numerics.cholesky import (
    Whitened,
    as_factor_model,
    as_function_of,
    identity_like,
    plain_squares_below,
    solve_lower,
    squares_below,
    whitened_factors,
    without_expansion,
)
from kullback.pairs.numerics.parameters import dtype_of, matrix_of

LARGE_MATRIX = 128
"""The smallest number of dimensions at which torch's factorization is faster than the kernel's."""

# _ACCEPTED has, for each dtype, the largest accepted estimate of KL's relative error. For covariances with condition
# numbers up to 100,000, true errors were less than a thirtieth of the estimates.
_ACCEPTED = {torch.float64: 1e-10, torch.float32: 1e-7}
# `_error` estimates the norm of a matrix from products of the matrix with _VECTORS random vectors. The norm is assumed
# to be at most _SPREAD_OF_ESTIMATE times the estimate.
_SPREAD_OF_ESTIMATE, _VECTORS = 8.0, 4
LARGEST_ROOT = 300
"""The largest accepted diagonal entry of the Cholesky factor of M = I + U^T U (see `cholesky`).

Products with the precision matrix then lose at most five digits.
"""

_ROUNDING = torch.finfo(torch.float64).eps


class _StoredRoot(NamedTuple):
    """The Cholesky factor of a matrix, or of its inverse if `of_inverse`, and a copy of the matrix."""

    root: Tensor
    of_inverse: bool
    matrix: Tensor


# _ROOTS stores the float64 Cholesky factors of the matrices that users passed in float32.
_ROOTS: WeakIdKeyDictionary = WeakIdKeyDictionary()


class _Full(NamedTuple):
    """A mean, and the Cholesky factor L of a covariance, or of a precision matrix if `is_precision`.

    `diagonal` is that matrix's diagonal, or None if it is unknown. If `is_exact`, the user passed L.
    """

    mean: Tensor
    root: Tensor
    diagonal: Tensor | None
    is_precision: bool
    is_exact: bool


class _LowRank(NamedTuple):
    """A mean and a covariance W W^T + D, as W, the diagonals of D and D^(1/2), and U and the root of M (`Whitened`)."""

    mean: Tensor
    factors: Tensor
    noise: Tensor
    deviations: Tensor
    whitened: Whitened


_Side = _Full | _LowRank
_Sides = tuple[_Side, _Side]


def large_divergence(p: Distribution, q: Distribution) -> Tensor | None:
    """Return KL in the dtype of the parameters, or None if rounding costs digits, so that an exact form is needed."""
    sides = _sides(p, q)
    if sides is None:
        return None
    value, dtype = (_of_covariances(*sides) + _of_means(*sides)) / 2, dtype_of(p, q)
    if not _is_accepted(sides, value.detach(), dtype):
        return None
    value = (value.clamp(min=0) + 0.0).to(dtype)
    return value.expand(torch.broadcast_shapes(p.batch_shape, q.batch_shape))


def large_error(p: Distribution, q: Distribution, value: Tensor) -> Tensor | None:
    """Return a bound on the rounding error of `large_divergence`, or None if that function returns None."""
    sides = _sides(p, q)
    if sides is None or not _is_accepted(sides, upcast(value), dtype_of(p, q)):
        return None
    return (4 * _error(sides, upcast(value))).expand(value.shape)


def _is_accepted(sides: _Sides, value: Tensor, dtype: torch.dtype) -> bool:
    """Return whether `value` is finite and its estimated rounding error is small for the dtype.

    If the user passed the Cholesky factors of both full covariances, they are exact, and no error is estimated.
    """
    if not bool(value.isfinite().all()):
        return False
    if all(isinstance(side, _Full) and side.is_exact for side in sides):
        return True
    limit = _ACCEPTED.get(dtype, _ACCEPTED[torch.float32])
    if any(isinstance(side, _Full) and not side.is_exact for side in sides):
        return bool((_error(sides, value) <= limit * value).all())
    with torch.no_grad():
        rounding = _SPREAD_OF_ESTIMATE * _ROUNDING * _canceling(*sides, value)
        return bool((rounding <= limit * value).all())


def _error(sides: _Sides, value: Tensor) -> Tensor:
    """Return an estimate of the rounding error of KL.

    Rounding changes a covariance by D R D. D is the diagonal matrix of the standard deviations, and the entries of R
    are small multiples of the machine epsilon. With the derivative G of KL with respect to the covariance, KL
    changes by the sum over i and j of R_ij (D G D)_ij. Products with random vectors estimate the norm of D G D.
    """
    with torch.no_grad():
        p, q = sides
        shift = (p.mean - q.mean).unsqueeze(-1)
        spread_p, spread_q = (torch.sqrt(_variances(side)).unsqueeze(-1) for side in sides)
        vectors = _random_vectors(p.mean.shape[-1]).to(shift.device)
        by_q, by_q_of_p, step = _precision_times_each(q, spread_q * vectors, spread_p * vectors, shift)
        by_covariance_q = by_q - _precision_times(q, _covariance_times(p, by_q))
        by_covariance_p = by_q_of_p - _precision_times(p, spread_p * vectors)
        is_exchanged = isinstance(p, _Full) and p.is_precision
        of_step = (spread_p * shift) if is_exchanged else spread_q * step
        norms = sum(
            (spread * by).square().sum((-2, -1)).div(2 * _VECTORS).sqrt()
            for spread, by in ((spread_p, by_covariance_p), (spread_q, by_covariance_q))
        )
        factor = _SPREAD_OF_ESTIMATE * math.sqrt(p.mean.shape[-1])
        return _ROUNDING * (factor * norms + 8 * of_step.square().sum((-2, -1)) + _canceling(p, q, value))


def _precision_times(side: _Side, columns: Tensor) -> Tensor:
    if isinstance(side, _LowRank):
        deviations = side.deviations.unsqueeze(-1)
        return side.whitened.residual(columns / deviations)[0] / deviations
    return _solved(side.root.mT, _solved(side.root, columns), upper=True)


def _precision_times_each(side: _Side, *columns: Tensor) -> tuple[Tensor, ...]:
    """Return the products of the precision matrix with each of the matrices `columns`, computed as one product."""
    batch = torch.broadcast_shapes(*(x.shape[:-2] for x in columns))
    together = torch.cat([x.expand(*batch, *x.shape[-2:]) for x in columns], -1)
    return _precision_times(side, together).split([x.shape[-1] for x in columns], -1)


def _covariance_times(side: _Side, columns: Tensor) -> Tensor:
    if isinstance(side, _LowRank):
        return side.factors @ (side.factors.mT @ columns) + side.noise.unsqueeze(-1) * columns
    root = _lower(side)
    return root @ (root.mT @ columns)


def _variances(side: _Side) -> Tensor:
    if isinstance(side, _LowRank):
        return side.noise + (side.factors**2).sum(-1)
    return _lower(side).square().sum(-1) if side.diagonal is None else side.diagonal


def _canceling(p: _Side, q: _Side, value: Tensor) -> Tensor:
    """Return about the sum of the absolute terms of KL, which is proportional to the rounding error of KL.

    For a low-rank covariance, the sum includes the squared diagonal of the Cholesky factor of M = I + U^T U.
    """
    size = value.new_full((), p.mean.shape[-1])
    for side in (p, q):
        if isinstance(side, _LowRank):
            size = size + side.whitened.root.diagonal(dim1=-2, dim2=-1).square().sum(-1)
    if isinstance(p, _LowRank):
        return size + 2 * (value + p.whitened.log_det())
    return size + 2 * (value + _explained(p, q)) if isinstance(q, _LowRank) else size


@functools.cache
def _random_vectors(size: int) -> Tensor:
    """Return fixed normal draws of shape (size, _VECTORS).

    Vectors with only the entries -1 and 1 could be orthogonal to a row such as (1, -1, 0, ..., 0) of a matrix.
    """
    generator = torch.Generator(device="cpu").manual_seed(size)
    return torch.randn(size, _VECTORS, generator=generator, dtype=torch.float64, device="cpu")


def _of_means(p: _Side, q: _Side) -> Tensor:
    """Return the squared Mahalanobis distance of the means, with Q's covariance."""
    shift = (p.mean - q.mean).unsqueeze(-1)
    if isinstance(q, _LowRank):
        rest, z = q.whitened.residual(shift / q.deviations.unsqueeze(-1))
        return (rest**2).sum((-2, -1)) + (z**2).sum((-2, -1))
    if isinstance(p, _Full) and p.is_precision:  # in this case, `p` has Q's precision (see `_sides`)
        return ((p.root.mT @ shift) ** 2).sum((-2, -1))
    return (_solved(q.root, shift) ** 2).sum((-2, -1))


def _of_covariances(p: _Side, q: _Side) -> Tensor:
    """Return tr K^-1 L L^T K^-T - d - log det L L^T + log det K K^T for d dimensions.

    Here L and K are the Cholesky factors of the covariances of P and Q.
    """
    if isinstance(q, _Full):
        return _low_rank_to_full(p, q.root) if isinstance(p, _LowRank) else _full_to_full(p.root, q.root)
    assert isinstance(p, _Full)  # noqa: S101 - for the type checker: one side is full
    return _full_to_low_rank(p, q)


def _full_to_full(root_p: Tensor, root_q: Tensor) -> Tensor:
    """Return `_of_covariances` as a sum over the entries of M = K^-1 L, for L = `root_p` and K = `root_q`."""
    of_p, of_q = (root.diagonal(dim1=-2, dim2=-1) for root in (root_p, root_q))
    ratio = of_p / of_q
    squares = ratio**2
    total = itakura_saito(squares, torch.ones_like(squares), (of_p - of_q) / of_q * (1 + ratio)).sum(-1)
    return total + _squares_below(root_p, root_q, is_difference=True)


def _low_rank_to_full(p: _LowRank, root_q: Tensor) -> Tensor:
    """Return `_of_covariances` for P's W W^T + D, from the entries of K^-1 W and K^-1 D^(1/2) for K = `root_q`."""
    total = itakura_saito(p.noise, root_q.diagonal(dim1=-2, dim2=-1) ** 2).sum(-1)
    deviations = torch.diag_embed(p.deviations)
    total = total + _squares_below(deviations, root_q, is_difference=False)
    return total + (_solved(root_q, p.factors) ** 2).sum((-2, -1)) - p.whitened.log_det()


def _squares_below(left: Tensor, root: Tensor, *, is_difference: bool) -> Tensor:
    sum_of_squares = squares_below if is_ordinary_call() else plain_squares_below
    return sum_of_squares(left, root, is_difference=is_difference)


def _full_to_low_rank(p: _Full, q: _LowRank) -> Tensor:
    """Return `_of_covariances` for Q's covariance W W^T + D and the Cholesky factor L of P's covariance.

    With X = D^(-1/2) L, the trace is tr X^T (I - B B^T) X for B as in `cholesky`.
    """
    root = _lower(p)
    own = root.diagonal(dim1=-2, dim2=-1) ** 2
    below = root.square().sum(-1) - own
    total = (below / q.noise).sum(-1) + itakura_saito(own, q.noise).sum(-1)
    return total - _explained(p, q) + q.whitened.log_det()


def _explained(p: _Full, q: _LowRank) -> Tensor:
    """Return |B^T D^(-1/2) L|^2 for L of P, and D and B of Q (see `cholesky`)."""
    directions = q.whitened.b_transposed() / q.deviations.unsqueeze(-2)
    return ((directions @ _lower(p)) ** 2).sum((-2, -1))


def _lower(p: _Full) -> Tensor:
    """Return P's Cholesky factor with zeros above the diagonal, where a user's `scale_tril` may have other entries."""
    return p.root.tril() if p.is_exact else p.root


def _solved(root: Tensor, columns: Tensor, *, upper: bool = False) -> Tensor:
    """Return root^-1 columns for a triangular `root`. For one root and a batch of columns, the root is not copied."""
    if root.ndim > 2 or columns.ndim == 2:
        return torch.linalg.solve_triangular(root, columns, upper=upper)
    together = columns.movedim(-2, 0)
    solved = torch.linalg.solve_triangular(root, together.flatten(1), upper=upper)
    return solved.reshape(together.shape).movedim(0, -2)


def _sides(p: Distribution, q: Distribution) -> _Sides | None:
    """Return the parameters of two normals of many dimensions, at least one with a full covariance, or None.

    Two float32 precision matrices are returned in exchanged order, in which KL has the formula of covariances.
    """
    if p.event_shape != q.event_shape or len(p.event_shape) != 1 or p.event_shape[0] < LARGE_MATRIX:
        return None
    try:
        torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    except RuntimeError:
        return None
    if not can_inspect_all(parameters_of(p, q)):
        return None
    keeps_precisions = all(isinstance(d, MultivariateNormal) and _has_rounded_precision(d) for d in (p, q))
    of_p, of_q = (_side(d, keeps_precision=keeps_precisions) for d in (p, q))
    if of_p is None or of_q is None or (isinstance(of_p, _LowRank) and isinstance(of_q, _LowRank)):
        return None
    return (of_q, of_p) if keeps_precisions else (of_p, of_q)


def _side(d: Distribution, *, keeps_precision: bool) -> _Side | None:
    if isinstance(d, MultivariateNormal):
        return None if overrides_density(d) else _full_side(d, keeps_precision=keeps_precision)
    model = as_factor_model(d)
    if model is None:
        return None
    fixed = model.variances.detach()
    if not bool(((fixed > 0) & fixed.isfinite()).all()):
        return None
    deviations = torch.sqrt(model.variances)
    whitened = whitened_factors(model.factors, deviations)
    if bool((whitened.root.diagonal(dim1=-2, dim2=-1) > LARGEST_ROOT).any()):
        return None
    return _LowRank(*model, deviations, whitened)


def _has_rounded_precision(d: MultivariateNormal) -> bool:
    """Return whether `d` was made from a precision matrix and torch's Cholesky factor is not in float64."""
    root = vars(d).get("_unbroadcasted_scale_tril")
    return matrix_of(d) == "precision_matrix" and root is not None and root.dtype is not torch.float64


def _full_side(d: MultivariateNormal, *, keeps_precision: bool) -> _Full | None:
    """Return the mean and the Cholesky factor, or None if the factor cannot be read or lacks a needed gradient."""
    attributes = vars(d)
    name = matrix_of(d)
    root: Tensor | None = attributes.get("_unbroadcasted_scale_tril")
    if name is None or root is None or not can_inspect(root):
        return None
    matrix: Tensor = attributes[name]
    is_exact, is_precision = name == "scale_tril", keeps_precision
    if is_exact:
        root = upcast(root)
    elif root.dtype is not torch.float64:
        root = _root_of(matrix, root, of_inverse=name == "precision_matrix" and not keeps_precision)
    if matrix.requires_grad and not root.requires_grad and torch.is_grad_enabled():
        return None
    has_diagonal = name == "covariance_matrix" or is_precision
    diagonal = upcast(matrix.detach().diagonal(dim1=-2, dim2=-1)) if has_diagonal else None
    return _Full(upcast(d.loc), root, diagonal, is_precision, is_exact)


def _root_of(matrix: Tensor, own: Tensor, *, of_inverse: bool) -> Tensor:
    """Return the float64 Cholesky factor of a matrix or of its inverse, with the unexpanded batch shape of `own`.

    The factor costs more than the rest, so it is stored for the next call, unless torch must record its computation.
    """
    needs_gradient = matrix.requires_grad and torch.is_grad_enabled()
    if matrix.is_inference() or not is_ordinary_call() or (needs_gradient and of_inverse):
        return _computed_root(without_expansion(matrix, own), of_inverse=of_inverse)
    fixed = matrix.detach()
    stored: _StoredRoot | None = _ROOTS.get(matrix)
    # The numbers are compared, because torch does not record a change through `.data` or NumPy.
    if stored is None or stored.of_inverse is not of_inverse or not torch.equal(stored.matrix, fixed):
        root = _computed_root(without_expansion(fixed, own), of_inverse=of_inverse)
        _ROOTS[matrix] = stored = _StoredRoot(root, of_inverse, fixed.clone())
    if needs_gradient:
        return as_function_of(without_expansion(matrix, own), stored.root)
    return stored.root


def _computed_root(matrix: Tensor, *, of_inverse: bool) -> Tensor:
    if not of_inverse:
        return torch.linalg.cholesky(upcast(matrix), upper=True).mT
    root = torch.linalg.cholesky(upcast(matrix).flip((-2, -1)), upper=True).flip((-2, -1))
    return solve_lower(root, identity_like(root))
