"""Closed forms of multivariate normal distributions: full, low-rank and diagonal covariances, in any combination.

The formulas for factors of covariances are in `cholesky`, or in `large_normals` for many dimensions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
)

from kullback.common.dtypes import upcast
from kullback.common.inputs import can_inspect, can_inspect_all
from kullback.common.special import bregman_by_quadrature, itakura_saito
from kullback.kernels.native.native_closed_forms import Form, Parameters
from kullback.pairs.closed_forms.large_normals import (
    LARGE_MATRIX,
    LARGEST_ROOT,
    large_divergence,
    large_error,
)
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, ScipyForm, overrides_density
from kullback.pairs.native_forms import Shortcut, divergence_of, is_ordinary_call, reader_of
from kullback.pairs.numerics.cholesky import (
    Covariance,
    FactorModel,
    as_factor_model,
    covariance_of,
    factor_model_of,
    factors_of,
    identity_like,
    is_diagonal_normal,
    mixed_with_one,
    of_low_rank,
    of_root,
    relative,
    whitened,
    whitened_factors,
)
from kullback.pairs.numerics.parameters import MATRICES, dtype_of, matrix_of
from kullback.pairs.registry import WIDE_RATIO, closed_form, renyi_form, where_finite

# If there are at least _MANY dimensions, a covariance W W^T + D is not computed as a matrix.
_MANY = 64
# If variances in D are below _LEAST or above 1 / _LEAST, KL is computed from Cholesky factors. Squaring the standard
# deviations may have lost digits of such variances.
_LEAST = 1e-290
# If KL of the covariances is below _NEAR, KL is computed from the difference of the covariances. With four nodes, the
# integral in `_from_difference` then has thirteen correct digits.
_NEAR = 0.00125
# If the user passed Cholesky factors, torch is faster than the kernel for at least _LARGE_ROOT dimensions.
_LARGE_ROOT = 512

Gaussian = MultivariateNormal | LowRankMultivariateNormal | Independent[Normal]


def rounding_error(p: Distribution, q: Distribution, value: Tensor) -> Tensor:
    """Return a bound on the rounding error of KL, from the condition numbers of the covariances."""
    of_large = large_error(p, q, value)
    if of_large is not None:
        return of_large
    spreads = [moments(d) for d in (p, q)]
    if spreads[0] is None or spreads[1] is None:
        return torch.full_like(value, torch.inf)
    relative_error = sum((x[1].rounding_error() for x in spreads if x is not None), torch.zeros_like(value))
    # For nearly equal covariances KL is computed from their difference, and the error is relative to the difference.
    dimensions = torch.where(value < 0.002, 0, p.event_shape.numel() or 1)
    return 4 * (relative_error + 1e-13) * (value + dimensions) + 1e-15


@functools.cache
def form_of_normals(name_p: str, name_q: str) -> Form:
    """Return the kernel for P and Q made from the matrices of these names, such as ``"scale_tril"``."""

    def reference(parameters: Parameters) -> Tensor:
        p, q = (
            MultivariateNormal(loc, **{name: matrix}, validate_args=False)  # pyright: ignore[reportArgumentType]
            for name, loc, matrix in zip((name_p, name_q), parameters[::2], parameters[1::2], strict=True)
        )
        return kl_multivariate_normal_multivariate_normal(p, q)

    return Form("closed_form_of_normals", (MATRICES.index(name_p), MATRICES.index(name_q)), reference)


def _by_kernel(p: MultivariateNormal, q: MultivariateNormal) -> Tensor | None:
    """Return KL by the kernel from the matrices that the user passed, or None if the kernel cannot be used."""
    name_p, name_q = matrix_of(p), matrix_of(q)
    of_roots = name_p == name_q == "scale_tril"
    if p.event_shape[0] >= (_LARGE_ROOT if of_roots else LARGE_MATRIX):
        return large_divergence(p, q)
    if name_p is None or name_q is None or not is_ordinary_call() or p.loc.shape != q.loc.shape:
        return None
    return divergence_of(
        form_of_normals(name_p, name_q), (p.loc, getattr(p, name_p), q.loc, getattr(q, name_q))
    )


@closed_form(MultivariateNormal, MultivariateNormal, error=rounding_error, native=_by_kernel)
def kl_multivariate_normal_multivariate_normal(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    """Return (tr M M^T - d - log det M M^T + |K^-1 (m_p - m_q)|^2) / 2 for M = K^-1 L and d dimensions.

    L and K are the Cholesky factors of the covariances of P and Q, and m_p and m_q are the means.
    """
    first, second, precise = factors_of(p, q)
    shift = (upcast(p.loc) - upcast(q.loc)).unsqueeze(-1)
    steps = first.root.mT @ shift if precise else whitened(shift, second)
    return relative(first, second).divergence() + (steps**2).sum((-2, -1)) / 2


def divergence_of_factors(parameters: tuple[Tensor, ...]) -> Tensor:
    """Return KL from the parameters of P and then of Q: a mean, W and D, or on at most one side a mean and a factor L.

    W W^T + D is computed as a matrix only if that saves work.
    """
    # If the third of five parameters is Q's mean, only two parameters belong to P. Q's mean has one dimension less than
    # Q's W.
    start = 2 if len(parameters) == 5 and parameters[2].dim() < parameters[3].dim() else 3
    sides = [tuple(map(upcast, side)) for side in (parameters[:start], parameters[start:])]
    models = [FactorModel(*side) for side in sides if len(side) == 3]
    if len(models) == 2 and not _is_formed(*models):
        return factor_model_divergence(*models)
    p, q = ((mean, of_low_rank(*rest) if len(rest) == 2 else of_root(*rest)) for mean, *rest in sides)
    return _divergence_of_moments(p, q)


def _are_sums(p: FactorModel, q: FactorModel, dtype: torch.dtype) -> bool:
    """Return whether KL is computed from W and D: for many dimensions, and variances that lost no digits as squares."""
    if _is_formed(p, q):
        return False
    variances = p.variances, q.variances
    if dtype is not torch.float64:
        return True
    return can_inspect_all(variances) and all(
        bool(((x > _LEAST) & (x < 1 / _LEAST)).all()) for x in variances
    )


def _is_formed(*sides: FactorModel) -> bool:
    size = sides[0].mean.shape[-1]
    return size < _MANY or size < 4 * max(x.factors.shape[-1] for x in sides)


def _divergence_of_moments(left: tuple[Tensor, Covariance], right: tuple[Tensor, Covariance]) -> Tensor:
    steps = whitened((left[0] - right[0]).unsqueeze(-1), right[1])
    return relative(left[1], right[1]).divergence() + (steps**2).sum((-2, -1)) / 2


def moments(d: Distribution) -> tuple[Tensor, Covariance] | None:
    """Return the mean and the covariance of a normal distribution or vector, or None for any other distribution."""
    if overrides_density(d) or (isinstance(d, Independent) and overrides_density(d.base_dist)):
        return None
    if isinstance(d, LowRankMultivariateNormal):
        mean, factors, variances = factor_model_of(d)
        return mean, of_low_rank(factors, variances)
    if isinstance(d, MultivariateNormal):
        return upcast(d.loc), covariance_of(d)
    if isinstance(d, Normal):
        return upcast(d.loc).unsqueeze(-1), of_root(upcast(d.scale)[..., None, None])
    if is_diagonal_normal(d):
        d = cast("Independent[Normal]", d)
        return upcast(d.base_dist.loc), of_root(torch.diag_embed(upcast(d.base_dist.scale)))
    return None


def factor_model_divergence(p: FactorModel, q: FactorModel) -> Tensor:
    """Return KL(P || Q) for covariances W W^T + D that are not computed as matrices."""
    rank = max(x.factors.shape[-1] for x in (p, q))
    w_p, w_q = (torch.nn.functional.pad(x.factors, (0, rank - x.factors.shape[-1])) for x in (p, q))
    p, q = p._replace(factors=w_p), q._replace(factors=w_q)
    root = torch.sqrt(q.variances)
    rest, z = whitened_factors(w_q, root).residual(((p.mean - q.mean) / root).unsqueeze(-1))
    distance = (rest**2).sum((-2, -1)) + (z**2).sum((-2, -1))
    close = _from_difference(p, q)
    covariances = torch.where(close.detach() < 2 * _NEAR, close, _far(p, q))
    return (covariances + distance) / 2


def _far(p: FactorModel, q: FactorModel) -> Tensor:
    """Return tr(K^-1 L) - d - log det(K^-1 L) for the covariances L of P and K of Q, and d dimensions."""
    root = torch.sqrt(q.variances)
    of_p, of_q = whitened_factors(p.factors, torch.sqrt(p.variances)), whitened_factors(q.factors, root)
    rest, z = of_q.residual(p.factors / root.unsqueeze(-1))
    trace = (rest**2).sum((-2, -1)) + (z**2).sum((-2, -1))
    ratio = p.variances / q.variances
    explained = (ratio * (of_q.b_transposed() ** 2).sum(-2)).sum(-1)
    noise = itakura_saito(p.variances, q.variances).sum(-1)
    return noise + (trace - explained) + (of_q.log_det() - of_p.log_det())


def _from_difference(p: FactorModel, q: FactorModel) -> Tensor:
    """Return `_far` as the integral over t in [0, 1] of (1 - t) times `_square` at t."""
    one = torch.ones((), dtype=q.variances.dtype, device=q.variances.device)
    return bregman_by_quadrature(lambda ts: torch.stack([_square(p, q, t) for t in ts]), 0 * one, one)


def _square(p: FactorModel, q: FactorModel, t: Tensor) -> Tensor:
    """Return tr (L_t^-1 (L - K))^2 for the covariances L of P and K of Q, with L_t = K + t (L - K).

    L - K is computed from the differences of W and D, which are accurate for nearly equal P and Q.
    """
    root = torch.sqrt(q.variances + t * (p.variances - q.variances))
    both = torch.broadcast_tensors(torch.sqrt(1 - t) * q.factors, torch.sqrt(t) * p.factors)
    at = whitened_factors(torch.cat(both, -1), root)
    noise = (p.variances - q.variances) / root**2
    x, y = (v / root.unsqueeze(-1) for v in (p.factors - q.factors, (p.factors + q.factors) / 2))
    (rest_x, z_x), (rest_y, z_y) = at.residual(x), at.residual(y)
    b = at.b_transposed()
    explained = (b**2).sum(-2)
    of_noise = (noise**2 * (1 - 2 * explained)).sum(-1)
    of_noise = of_noise + (((b * noise.unsqueeze(-2)) @ b.mT) ** 2).sum((-2, -1))
    across = (noise.unsqueeze(-1) * rest_x * rest_y).sum((-2, -1))
    cross = rest_y.mT @ rest_x + z_y.mT @ z_x
    own = (rest_x.mT @ rest_x + z_x.mT @ z_x) * (rest_y.mT @ rest_y + z_y.mT @ z_y)
    of_factors = (cross * cross.mT + own).sum((-2, -1))
    return of_noise + 4 * across + 2 * of_factors


def _low_rank_derivatives(parameters: Parameters) -> Parameters | None:
    r"""Return the derivatives of KL with respect to the mean, W and D of P, and the mean, W and D of Q.

    Let L and K be the covariances of P and Q, m_p and m_q the means, C = L - K, and s = K^-1 (m_p - m_q). Then
    dKL/dm_p = s, dKL/dL = K^-1 C L^-1 / 2 and dKL/dK = -(K^-1 C K^-1 + s s^T) / 2. C is computed from the differences
    of W and D, which is accurate if P and Q are nearly equal. The result is None if W is so much larger than D^(1/2)
    that covariances computed as matrices are more accurate.
    """
    mean_p, w_p, d_p, mean_q, w_q, d_q = parameters
    ranks = [w.shape[-1] for w in (w_p, w_q)]
    rank = max(ranks)
    w_p, w_q = (torch.nn.functional.pad(w, (0, rank - w.shape[-1])) for w in (w_p, w_q))
    p, q = _Precision.of(w_p, d_p), _Precision.of(w_q, d_q)
    formed = _is_formed(FactorModel(mean_p, w_p, d_p), FactorModel(mean_q, w_q, d_q))
    if formed and (p.loses_digits() or q.loses_digits()):
        return None
    x, y, noise = w_p - w_q, (w_p + w_q) / 2, d_p - d_q
    v_p, v_q = p.times_factors(), q.times_factors()
    both = torch.cat([v_p, v_q], -1)
    columns = torch.cat([(mean_p - mean_q).unsqueeze(-1), x, noise.unsqueeze(-1) * both], -1)
    step, x_q, noise_both = q.times(columns).split([1, rank, 2 * rank], -1)
    x_p = p.times(x)
    y_p, y_q = v_p - x_p / 2, v_q + x_q / 2
    # `by_w_p` is K^-1 C L^-1 W of P, and `by_w_q` is K^-1 C K^-1 W of Q.
    by_w_p, by_w_q = (torch.cat([x_q, y_q], -1) @ (torch.cat([y, x], -1).mT @ both) + noise_both).split(
        rank, -1
    )
    by_d_p = _sum_of_columns(x_q * y_p + y_q * x_p) + q.diagonal_of_product(noise, p)
    by_d_q = 2 * _sum_of_columns(x_q * y_q) + q.diagonal_of_product(noise, q) + step.squeeze(-1) ** 2
    return (
        step.squeeze(-1),
        by_w_p[..., : ranks[0]],
        by_d_p / 2,
        -step.squeeze(-1),
        -(by_w_q + step @ (step.mT @ w_q))[..., : ranks[1]],
        -by_d_q / 2,
    )


class _Precision(NamedTuple):
    """The inverse of W W^T + D, which is D^(-1/2) (I - U Z^T) D^(-1/2) for U = D^(-1/2) W and Z = U (I + U^T U)^-1."""

    inverse: Tensor  # the diagonal of D^(-1/2), as a vector
    root: Tensor
    u: Tensor
    z: Tensor

    @classmethod
    def of(cls, factors: Tensor, variances: Tensor) -> _Precision:
        deviations = torch.sqrt(variances)
        u, root = whitened_factors(factors, deviations)
        return cls(1 / deviations, root, u, torch.cholesky_solve(u.mT, root).mT)

    def loses_digits(self) -> bool:
        """Return whether W is so much larger than D^(1/2) that products with this matrix lose more than five digits."""
        return bool((self.root.diagonal(dim1=-2, dim2=-1) > LARGEST_ROOT).any())

    def times(self, v: Tensor) -> Tensor:
        scaled = v * self.inverse.unsqueeze(-1)
        return (scaled - self.u @ (self.z.mT @ scaled)) * self.inverse.unsqueeze(-1)

    def times_factors(self) -> Tensor:
        """Return this precision times W."""
        return self.z * self.inverse.unsqueeze(-1)

    def diagonal(self) -> Tensor:
        return (1 - self.explained()) * self.inverse**2

    def explained(self) -> Tensor:
        """Return the diagonal of U Z^T, where the precision is D^(-1/2) (I - U Z^T) D^(-1/2)."""
        return _sum_of_columns(self.u * self.z)

    def diagonal_of_product(self, noise: Tensor, other: _Precision) -> Tensor:
        """Return the diagonal of the product of this precision matrix, diag(`noise`) and the other precision matrix."""
        weights = self.inverse * other.inverse
        scaled = weights * noise
        both = self.u.mT @ (scaled.unsqueeze(-1) * other.u)
        explained = self.explained() + other.explained()
        return weights * (scaled * (1 - explained) + _sum_of_columns((self.z @ both) * other.z))


def _low_rank_to_full_derivatives(parameters: Parameters) -> Parameters | None:
    """Return the derivatives by P's mean, W and D, and Q's mean and Cholesky factor; None if products lose digits."""
    mean_p, w, d, mean_q, root = parameters
    root, p = root.tril(), _Precision.of(w, d)
    if p.loses_digits():
        return None
    back = torch.linalg.solve_triangular(root, identity_like(root), upper=False)
    of_factors, of_noise = back @ w, back * torch.sqrt(d).unsqueeze(-2)
    of_means = back @ (mean_p - mean_q).unsqueeze(-1)
    step = (back.mT @ of_means).squeeze(-1)
    change = (
        of_factors @ of_factors.mT + of_noise @ of_noise.mT + of_means @ of_means.mT - identity_like(root)
    )
    by_d = ((back**2).sum(-2) - p.diagonal()) / 2
    return step, back.mT @ of_factors - p.times_factors(), by_d, -step, -(back.mT @ change).tril()


def _full_to_low_rank_derivatives(parameters: Parameters) -> Parameters | None:
    """Return the derivatives by P's mean and Cholesky factor, and Q's mean, W and D; None if products lose digits."""
    mean_p, root, mean_q, w, d = parameters
    root, q = root.tril(), _Precision.of(w, d)
    if q.loses_digits():
        return None
    step = q.times((mean_p - mean_q).unsqueeze(-1))
    of_root, of_factors = q.times(root), q.times_factors()
    by_root = of_root.tril() - torch.diag_embed(1 / root.diagonal(dim1=-2, dim2=-1))
    by_w = of_factors - of_root @ (root.mT @ of_factors) - step @ (step.mT @ w)
    by_d = (q.diagonal() - (of_root**2).sum(-1) - step.squeeze(-1) ** 2) / 2
    return step.squeeze(-1), by_root, -step.squeeze(-1), by_w, by_d


def _sum_of_columns(x: Tensor) -> Tensor:
    """Return x.sum(-1), by a matrix product, which is faster than torch's sum over a short dimension."""
    return (x @ x.new_ones(x.shape[-1], 1)).squeeze(-1)


def _form_of_factors(derive: Callable[[Parameters], Parameters | None]) -> Form:
    """Return the kernel of low-rank covariances, whose derivatives the function `derive` computes in float64."""

    def gradients(parameters: Parameters, grad: Tensor) -> Parameters | None:
        derivatives = derive(tuple(map(upcast, parameters))) if can_inspect(grad) else None
        if derivatives is None:
            return None
        return tuple(
            (by * upcast(grad)[(..., *(None,) * (by.dim() - grad.dim()))]).to(x.dtype)
            for by, x in zip(derivatives, parameters, strict=True)
        )

    return Form("closed_form_of_factors", (), divergence_of_factors, gradients)


def _by_factors(form: Form) -> Shortcut:
    """Return a shortcut for the kernel `form`, which returns None for a full covariance without a `scale_tril`."""

    def by_kernel(p: Any, q: Any) -> Tensor | None:
        is_full = isinstance(p, MultivariateNormal), isinstance(q, MultivariateNormal)
        if any(is_full) and p.event_shape[0] >= LARGE_MATRIX:
            return large_divergence(p, q)
        if not is_ordinary_call() or any(
            full and matrix_of(d) != "scale_tril" for full, d in zip(is_full, (p, q), strict=True)
        ):
            return None
        of_p, of_q = _READERS[is_full[0]](p), _READERS[is_full[1]](q)
        return divergence_of(form, of_p + of_q) if of_p[0].shape == of_q[0].shape else None

    return by_kernel


_READERS = reader_of("loc", "cov_factor", "cov_diag"), reader_of("loc", "scale_tril")
_OF_FACTORS = _form_of_factors(_low_rank_derivatives)


def _error_of_diagonal(p: Distribution, q: Distribution, value: Tensor) -> Tensor:
    """Return a bound on the rounding error of KL between a diagonal and a low-rank covariance."""
    of_p, of_q = as_factor_model(p), as_factor_model(q)
    if of_p is not None and of_q is not None and _are_sums(of_p, of_q, dtype_of(p, q)):
        return 1e-12 * value + 1e-15  # the same bound as for two low-rank covariances
    return rounding_error(p, q, value)


def _of_diagonal(p: Any, q: Any) -> Tensor | None:
    """Return KL between a diagonal and a low-rank covariance, by the kernel of two low-rank covariances."""
    of_p, of_q = as_factor_model(p), as_factor_model(q)
    if of_p is None or of_q is None or not is_ordinary_call():
        return None
    # The factors and variances lack the batch dimensions that `expand` added; the kernel wants them.
    if any(shape != of_p.mean.shape for x in (of_p, of_q) for shape in (x.mean.shape, x.factors.shape[:-1])):
        return None
    value = divergence_of(_OF_FACTORS, (*of_p, *of_q))
    return None if value is None else value.to(dtype_of(p, q))


@closed_form(LowRankMultivariateNormal, LowRankMultivariateNormal, native=_by_factors(_OF_FACTORS))
def kl_low_rank_low_rank(p: LowRankMultivariateNormal, q: LowRankMultivariateNormal) -> Tensor | None:
    """Return KL for covariances W W^T + D."""
    return divergence_of_factors((*factor_model_of(p), *factor_model_of(q)))


@closed_form(
    LowRankMultivariateNormal,
    MultivariateNormal,
    error=rounding_error,
    native=_by_factors(_form_of_factors(_low_rank_to_full_derivatives)),
)
@closed_form(
    MultivariateNormal,
    LowRankMultivariateNormal,
    error=rounding_error,
    native=_by_factors(_form_of_factors(_full_to_low_rank_derivatives)),
)
@closed_form(Independent, MultivariateNormal, error=rounding_error, native=large_divergence)
@closed_form(MultivariateNormal, Independent, error=rounding_error, native=large_divergence)
@closed_form(Independent, LowRankMultivariateNormal, error=_error_of_diagonal, native=_of_diagonal)
@closed_form(LowRankMultivariateNormal, Independent, error=_error_of_diagonal, native=_of_diagonal)
def kl_gaussian_gaussian(p: Gaussian, q: Gaussian) -> Tensor | None:
    """Return KL for covariances of any form, or None if the dimensions are independent but not normal."""
    of_p, of_q = as_factor_model(p), as_factor_model(q)
    if of_p is not None and of_q is not None and _are_sums(of_p, of_q, dtype_of(p, q)):
        return factor_model_divergence(of_p, of_q)
    left, right = moments(p), moments(q)
    return None if left is None or right is None else _divergence_of_moments(left, right)


@renyi_form(MultivariateNormal, LowRankMultivariateNormal, Independent, error=rounding_error)
def _renyi(p: Any, q: Any, alpha: float, rest: float) -> Tensor | None:
    """Return alpha |T^-1 v|^2 / 2 + (log det T T^T / rest - log det M M^T) / 2 for T T^T = alpha I + rest M M^T.

    Here M = K^-1 L and v = K^-1 (m_P - m_Q). L and K are the Cholesky factors of the covariances of P and Q, and m_P
    and m_Q are the means. Let D(X) = (tr X X^T - d - log det X X^T) / 2 for d dimensions. Because
    tr T T^T - d = rest (tr M M^T - d), the terms with logarithms are D(M) - D(T) / rest, the form used if M is near
    the identity. The result is None if M M^T is too large.
    """
    left, right = moments(p), moments(q)
    if left is None or right is None:
        return None
    m = relative(left[1], right[1])
    mixed = mixed_with_one(m, rest)
    size = torch.maximum(m.diagonal.detach().amax(-1), m.below.detach().abs().amax((-2, -1)))
    if can_inspect(size) and not bool((size < WIDE_RATIO).all()):
        return None
    steps = whitened((left[0] - right[0]).unsqueeze(-1), right[1])
    steps = torch.linalg.solve_triangular(mixed.root, steps, upper=False)
    near = (m.squares_minus_one.detach() ** 2).sum(-1) + (m.below.detach() ** 2).sum((-2, -1)) < 0.5
    close = m.divergence() - mixed.relative.divergence() / rest
    far = mixed.log_det / rest - 2 * torch.log(m.diagonal).sum(-1)
    logs = torch.where(near, close, far / 2)
    return where_finite(mixed.exists, alpha / 2 * (steps**2).sum((-2, -1)) + logs)


def _of_normal_vector(base: MultivariateNormal, loc: Any, scale: Any) -> Distribution:
    mean = loc + scale * upcast(base.loc)
    scale = scale.expand(torch.broadcast_shapes(scale.shape, base.event_shape))
    rows, columns = scale.unsqueeze(-1), scale.unsqueeze(-2)
    name = matrix_of(base) or "scale_tril"
    matrix = upcast(getattr(base, name))
    if name == "scale_tril":
        return MultivariateNormal(mean, scale_tril=rows * matrix * torch.sign(columns), validate_args=False)
    factor = rows * columns
    changed = factor * matrix if name == "covariance_matrix" else matrix / factor
    return MultivariateNormal(mean, **{name: changed}, validate_args=False)


def _of_low_rank_vector(base: LowRankMultivariateNormal, loc: Any, scale: Any) -> Distribution:
    scale = scale.expand(torch.broadcast_shapes(scale.shape, base.event_shape))
    factor, diagonal = scale.unsqueeze(-1) * upcast(base.cov_factor), scale**2 * upcast(base.cov_diag)
    return LowRankMultivariateNormal(loc + scale * upcast(base.loc), factor, diagonal, validate_args=False)


register_family(Family(
    MultivariateNormal, units=lambda d: {"loc": 1, "scale_tril": 1} if matrix_of(d) == "scale_tril" else None,
    image=_of_normal_vector,
    scipy=[ScipyForm("multivariate_normal_frozen", MultivariateNormal, reads="mean cov_object.covariance")],
))  # fmt: skip
register_family(Family(LowRankMultivariateNormal, image=_of_low_rank_vector))
