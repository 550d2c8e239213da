r"""Closed forms of multivariate normal distributions: full, low-rank and diagonal covariances, in any combination.

Covariances W W^T + D of many dimensions and few factors are never formed: Woodbury's identity reduces them to small
matrices. With U = D^(-1/2) W and M = 1 + U^T U, the precision is D^(-1/2) (1 - B B^T) D^(-1/2) for
B = U M^(-1/2). The minimum of |v - U z|^2 + |z|^2 over z is v^T (1 - B B^T) v, without cancellation.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

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
from kullback.common.inputs import can_inspect, recordable
from kullback.common.special import bregman_by_quadrature, itakura_saito
from kullback.kernels.native.native_closed_forms import (
    Form,
    GradientFunction,
    Parameters,
    divergence,
    required_gradients,
)
from kullback.pairs.native_forms import Shortcut, divergence_of, is_ordinary_call, reader_of
from kullback.pairs.numerics.cholesky import (
    Covariance,
    covariance_of,
    factors_of,
    identity_like,
    of_low_rank,
    of_root,
    relative,
    solve_lower,
    whitened,
)
from kullback.pairs.numerics.parameters import MATRICES, matrix_of
from kullback.pairs.overrides import overrides_density
from kullback.pairs.registry import closed_form

# The smallest number of dimensions at which low-rank covariances are not formed.
_MANY = 64
# Products with the precision lose five digits if the columns of W are this many deviations of the noise.
_LARGE = 300
# Below this, KL of the covariances is an integral of differences, which four nodes give to thirteen digits.
_NEAR = 0.00125
# Rounded Cholesky factors suffice up to this growth of rounding per dimension, and from this KL on.
_LARGEST_GROWTH, _FAR_APART = 200.0, 0.01
# The norm may exceed its estimate from three images by this factor.
_SPREAD_OF_ESTIMATE = 8.0
# From this many dimensions on, torch is faster than the kernel: for Cholesky factors, and for other matrices.
_LARGE_ROOT, LARGE_MATRIX = 512, 128

Gaussian = MultivariateNormal | LowRankMultivariateNormal | Independent[Normal]


def rounding_error(p: Distribution, q: Distribution, value: Tensor) -> Tensor:
    """Bound the rounding error of KL between multivariate normals, from the condition numbers of their covariances."""
    spreads = [moments(d) for d in (p, q)]
    if spreads[0] is None or spreads[1] is None:
        return torch.full_like(value, torch.inf)
    relative_error = sum((x[1].rounding_error() for x in spreads if x is not None), torch.zeros_like(value))
    # Nearly equal covariances are compared by their difference, whose error is relative to the difference.
    dimensions = torch.where(value < 0.002, 0, p.event_shape.numel() or 1)
    return 4 * (relative_error + 1e-13) * (value + dimensions) + 1e-15


@functools.cache
def form_of_normals(name_p: str, name_q: str) -> Form:
    """Return the kernel for the matrices of these names."""

    def reference(parameters: Parameters) -> Tensor:
        p, q = (
            MultivariateNormal(loc, **{name: matrix}, validate_args=False)  # pyright: ignore[reportArgumentType]
            for name, loc, matrix in zip((name_p, name_q), parameters[::2], parameters[1::2], strict=True)
        )
        return kl_multivariate_normal_multivariate_normal(p, q)

    return Form("closed_form_of_normals", (MATRICES.index(name_p), MATRICES.index(name_q)), reference)


def _by_kernel(p: MultivariateNormal, q: MultivariateNormal) -> Tensor | None:
    """Return KL by the kernel, from the matrices that the user passed."""
    name_p, name_q = matrix_of(p), matrix_of(q)
    if name_p is None or name_q is None or not is_ordinary_call():
        return None
    of_roots = name_p == name_q == "scale_tril"
    if p.event_shape[0] >= (_LARGE_ROOT if of_roots else LARGE_MATRIX):
        return _by_roots(p, q)
    parameters = p.loc, getattr(p, name_p), q.loc, getattr(q, name_q)
    if p.loc.shape != q.loc.shape:
        return None
    return divergence_of(form_of_normals(name_p, name_q), parameters)


def _by_roots(p: MultivariateNormal, q: MultivariateNormal) -> Tensor | None:
    """Return KL in many dimensions from the Cholesky factors that torch computed from covariances or precisions.

    The result is None if the factors are less accurate than the matrices: if these are nearly equal or ill-conditioned.
    """
    if p.loc.shape != q.loc.shape or p.loc.dtype is not q.loc.dtype:
        return None
    of_p, of_q = root_of_matrix(p), root_of_matrix(q)
    if of_p is None or of_q is None:
        return None
    mean_p, mean_q = (upcast(d.loc) for d in (p, q))
    root_p, root_q = (x.root.expand(*p.batch_shape, -1, -1) for x in (of_p, of_q))
    parameters = tuple(map(recordable, (mean_p, root_p, mean_q, root_q)))
    form, required = form_of_normals("scale_tril", "scale_tril"), required_gradients(parameters)
    value = None
    if required is not None:
        is_large = p.event_shape[0] >= _LARGE_ROOT
        value = form.reference(parameters) if is_large else divergence(form, parameters, required)
    if value is None or not roots_suffice(of_p, of_q, (mean_p - mean_q).detach(), value.detach()):
        return None
    return value.to(p.loc.dtype)


@closed_form(MultivariateNormal, MultivariateNormal, error=rounding_error, native=_by_kernel)
def kl_multivariate_normal_multivariate_normal(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    """Return (tr M M^T - d - log det M M^T + |K^-1 (m_p - m_q)|^2) / 2 for M = K^-1 L.

    L and K are the Cholesky factors of the covariances of P and Q.
    """
    first, second, precise = factors_of(p, q)
    shift = (upcast(p.loc) - upcast(q.loc)).unsqueeze(-1)
    steps = first.root.mT @ shift if precise else whitened(shift, second)
    return relative(first, second).divergence() + (steps**2).sum((-2, -1)) / 2


class RoundedRoot(NamedTuple):
    """The Cholesky factor of a covariance, computed from the matrix that the user passed, and the variances."""

    root: Tensor
    variances: Tensor


def root_of_matrix(d: MultivariateNormal) -> RoundedRoot | None:
    """Return the Cholesky factor of the covariance in float64; None if its gradient does not reach the parameter."""
    attributes = vars(d)
    name = matrix_of(d)
    root: Tensor | None = attributes.get("_unbroadcasted_scale_tril")
    if name is None or root is None or not can_inspect(root):
        return None
    matrix: Tensor = attributes[name]
    is_covariance = name == "covariance_matrix"
    if root.dtype is not torch.float64 and name == "scale_tril":
        root = upcast(root)
    elif root.dtype is not torch.float64:
        matrix = upcast(matrix)
        root = torch.linalg.cholesky(matrix, upper=True).mT if is_covariance else _root_of_precision(matrix)
    if matrix.requires_grad and not root.requires_grad:
        return None
    fixed = root.detach()
    variances = matrix.detach().diagonal(dim1=-2, dim2=-1) if is_covariance else (fixed * fixed).sum(-1)
    # The kernel is several times faster on row-major matrices; LAPACK returns column-major ones.
    return RoundedRoot(root.contiguous(), variances)


def roots_suffice(p: RoundedRoot, q: RoundedRoot, shift: Tensor, value: Tensor) -> bool:
    """Return whether rounded Cholesky factors give KL with all but the last few digits, for the whole batch.

    Rounding changes a covariance by a small multiple of its variances D^2. It changes KL by this multiple of the
    squared norms of L^-1 D and K^-1 D, which the images of random vectors estimate. Nearly equal covariances do not
    qualify: they are compared by their difference.
    """
    with torch.no_grad():
        size = shift.shape[-1]
        vectors = _random_vectors(size).to(shift.device)
        marks = torch.maximum(p.variances, q.variances).sqrt().unsqueeze(-1) * vectors
        columns = torch.cat([marks.expand(*shift.shape[:-1], size, -1), shift.unsqueeze(-1)], -1)
        squares = torch.linalg.solve_triangular(q.root, columns, upper=False).square().sum(-2)
        own = torch.linalg.solve_triangular(p.root, p.variances.sqrt().unsqueeze(-1) * vectors, upper=False)
        growth = torch.maximum(squares[..., :-1], own.square().sum(-2)).amax(-1)
        is_likely = growth < _LARGEST_GROWTH / _SPREAD_OF_ESTIMATE * size
        return bool((is_likely & (value - squares[..., -1] / 2 > _FAR_APART)).all())


@functools.cache
def _random_vectors(size: int) -> Tensor:
    """Return three fixed normal vectors; vectors of signs can miss the difference of two equal variables."""
    generator = torch.Generator(device="cpu").manual_seed(size)
    return torch.randn(size, 3, generator=generator, dtype=torch.float64, device="cpu")


def _root_of_precision(matrix: Tensor) -> Tensor:
    """Return the Cholesky factor of the inverse of a matrix."""
    root = torch.linalg.cholesky(matrix.flip((-2, -1)), upper=True).flip((-2, -1))
    return solve_lower(root, identity_like(root))


def divergence_of_factors(parameters: tuple[Tensor, ...]) -> Tensor:
    """Return KL for the mean, factors and variances of P and of Q, or for the mean and Cholesky factor of one of them.

    Covariances W W^T + D are not formed if that saves work.
    """
    # Q's mean comes before Q's matrix.
    start = 2 if len(parameters) == 5 and parameters[2].dim() < parameters[3].dim() else 3
    sides = [tuple(map(upcast, side)) for side in (parameters[:start], parameters[start:])]
    models = [FactorModel(*side) for side in sides if len(side) == 3]
    if len(models) == 2 and not _is_formed(*models):
        return factor_model_divergence(*models)
    p, q = ((mean, of_low_rank(*rest) if len(rest) == 2 else of_root(*rest)) for mean, *rest in sides)
    return _divergence_of_moments(p, q)


def _is_formed(*sides: FactorModel) -> bool:
    size = sides[0].mean.shape[-1]
    return size < _MANY or size < 4 * max(x.factors.shape[-1] for x in sides)


def _divergence_of_moments(left: tuple[Tensor, Covariance], right: tuple[Tensor, Covariance]) -> Tensor:
    steps = whitened((left[0] - right[0]).unsqueeze(-1), right[1])
    return relative(left[1], right[1]).divergence() + (steps**2).sum((-2, -1)) / 2


def moments(d: Distribution) -> tuple[Tensor, Covariance] | None:
    """Return the mean and the covariance of a multivariate normal; a Normal counts as one with a single dimension.

    Any other distribution gives None.
    """
    if overrides_density(d) or (isinstance(d, Independent) and overrides_density(d.base_dist)):
        return None
    if isinstance(d, LowRankMultivariateNormal):
        mean, factors, variances = factor_model_of(d)
        return mean, of_low_rank(factors, variances)
    if isinstance(d, MultivariateNormal):
        return upcast(d.loc), covariance_of(d)
    if isinstance(d, Normal):
        return upcast(d.loc).unsqueeze(-1), of_root(upcast(d.scale)[..., None, None])
    if isinstance(d, Independent) and isinstance(d.base_dist, Normal) and d.reinterpreted_batch_ndims == 1:
        return upcast(d.base_dist.loc), of_root(torch.diag_embed(upcast(d.base_dist.scale)))
    return None


class FactorModel(NamedTuple):
    """A mean m, factors W of shape (..., d, rank) and variances D of shape (..., d)."""

    mean: Tensor
    factors: Tensor
    variances: Tensor


class _Whitened(NamedTuple):
    """U = D^(-1/2) W and the Cholesky factor of M = 1 + U^T U."""

    u: Tensor
    root: Tensor

    def b_transposed(self) -> Tensor:
        """Return B^T."""
        return torch.linalg.solve_triangular(self.root, self.u.mT, upper=False)

    def residual(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return v - U z = (1 - B B^T) v, and z."""
        z = torch.cholesky_solve(self.u.mT @ v, self.root)
        return v - self.u @ z, z

    def log_det(self) -> Tensor:
        """Return log det M."""
        return 2 * torch.log(self.root.diagonal(dim1=-2, dim2=-1)).sum(-1)


def factor_model_of(d: LowRankMultivariateNormal) -> FactorModel:
    """Return the parameters, without the batch dimensions of an expanded covariance."""
    factors: Tensor = d._unbroadcasted_cov_factor  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    variances: Tensor = d._unbroadcasted_cov_diag  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    batch = torch.broadcast_shapes(factors.shape[:-2], variances.shape[:-1])
    factors, variances = factors.expand(*batch, *factors.shape[-2:]), variances.expand(*batch, -1)
    return FactorModel(upcast(d.loc), upcast(factors), upcast(variances))


def factor_model_divergence(p: FactorModel, q: FactorModel) -> Tensor:
    """Return KL(P || Q)."""
    rank = max(x.factors.shape[-1] for x in (p, q))
    w_p, w_q = (torch.nn.functional.pad(x.factors, (0, rank - x.factors.shape[-1])) for x in (p, q))
    p, q = p._replace(factors=w_p), q._replace(factors=w_q)
    root = torch.sqrt(q.variances)
    rest, z = _whitened(w_q, root).residual(((p.mean - q.mean) / root).unsqueeze(-1))
    distance = (rest**2).sum((-2, -1)) + (z**2).sum((-2, -1))
    close = _from_difference(p, q)
    covariances = torch.where(close.detach() < 2 * _NEAR, close, _far(p, q))
    return (covariances + distance) / 2


def _whitened(factors: Tensor, root: Tensor) -> _Whitened:
    u = factors / root.unsqueeze(-1)
    return _Whitened(u, torch.linalg.cholesky(identity_like(u) + u.mT @ u))


def _far(p: FactorModel, q: FactorModel) -> Tensor:
    """Return tr(K^-1 L) - d - log det(K^-1 L) for the covariances L and K."""
    root = torch.sqrt(q.variances)
    of_p, of_q = _whitened(p.factors, torch.sqrt(p.variances)), _whitened(q.factors, root)
    rest, z = of_q.residual(p.factors / root.unsqueeze(-1))
    trace = (rest**2).sum((-2, -1)) + (z**2).sum((-2, -1))
    ratio = p.variances / q.variances
    explained = (ratio * (of_q.b_transposed() ** 2).sum(-2)).sum(-1)
    noise = itakura_saito(p.variances, q.variances).sum(-1)
    return noise + (trace - explained) + (of_q.log_det() - of_p.log_det())


def _from_difference(p: FactorModel, q: FactorModel) -> Tensor:
    """Return the value of `_far` as the integral of (1 - t) |L_t^-1 (L - K)|^2 over L_t = K + t (L - K)."""
    one = torch.ones((), dtype=q.variances.dtype, device=q.variances.device)
    return bregman_by_quadrature(lambda ts: torch.stack([_square(p, q, t) for t in ts]), 0 * one, one)


def _square(p: FactorModel, q: FactorModel, t: Tensor) -> Tensor:
    """Return tr((L_t^-1 (L - K))^2), from the differences of factors and of variances."""
    root = torch.sqrt(q.variances + t * (p.variances - q.variances))
    both = torch.broadcast_tensors(torch.sqrt(1 - t) * q.factors, torch.sqrt(t) * p.factors)
    at = _whitened(torch.cat(both, -1), root)
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


def low_rank_gradients(parameters: tuple[Tensor, ...], grad: Tensor) -> tuple[Tensor, ...] | None:
    r"""Return the gradients of KL by the means, the factors and the variances of P and Q, times `grad`.

    With the covariances L of P and K of Q, their difference C = L - K and s = K^-1 (m_p - m_q), the derivatives are
    s by m_p, K^-1 C L^-1 / 2 by L and -(K^-1 C K^-1 + s s^T) / 2 by K. C is computed from the differences of factors
    and of variances, which is accurate if P and Q are nearly equal. The result is None if the factors are so much
    larger than the deviations that formed covariances are more accurate.
    """
    if not can_inspect(grad):
        return None
    ranks = [parameters[i].shape[-1] for i in (1, 4)]
    mean_p, w_p, d_p, mean_q, w_q, d_q = map(upcast, parameters)
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
    # K^-1 C L^-1 W_p and K^-1 C K^-1 W_q.
    by_w_p, by_w_q = (torch.cat([x_q, y_q], -1) @ (torch.cat([y, x], -1).mT @ both) + noise_both).split(
        rank, -1
    )
    by_d_p = _sum_of_columns(x_q * y_p + y_q * x_p) + q.diagonal_of_product(noise, p)
    by_d_q = 2 * _sum_of_columns(x_q * y_q) + q.diagonal_of_product(noise, q) + step.squeeze(-1) ** 2
    derivatives = (
        step.squeeze(-1),
        by_w_p[..., : ranks[0]],
        by_d_p / 2,
        -step.squeeze(-1),
        -(by_w_q + step @ (step.mT @ w_q))[..., : ranks[1]],
        -by_d_q / 2,
    )
    return _times(derivatives, grad, parameters)


class _Precision(NamedTuple):
    """The inverse of W W^T + D: D^(-1/2) (1 - U Z^T) D^(-1/2) for U = D^(-1/2) W and Z = U M^-1."""

    inverse: Tensor  # of the square roots of D
    root: Tensor
    u: Tensor
    z: Tensor

    @classmethod
    def of(cls, factors: Tensor, variances: Tensor) -> _Precision:
        deviations = torch.sqrt(variances)
        u, root = _whitened(factors, deviations)
        return cls(1 / deviations, root, u, torch.cholesky_solve(u.mT, root).mT)

    def loses_digits(self) -> bool:
        """Return whether products lose more than five digits, because factors are much larger than deviations."""
        return bool((self.root.diagonal(dim1=-2, dim2=-1) > _LARGE).any())

    def times(self, v: Tensor) -> Tensor:
        scaled = v * self.inverse.unsqueeze(-1)
        return (scaled - self.u @ (self.z.mT @ scaled)) * self.inverse.unsqueeze(-1)

    def times_factors(self) -> Tensor:
        """Return the product with W."""
        return self.z * self.inverse.unsqueeze(-1)

    def diagonal(self) -> Tensor:
        return (1 - self.explained()) * self.inverse**2

    def explained(self) -> Tensor:
        """Return the diagonal of U Z^T."""
        return _sum_of_columns(self.u * self.z)

    def diagonal_of_product(self, noise: Tensor, other: _Precision) -> Tensor:
        """Return the diagonal of this precision times diag(`noise`) times the other precision."""
        weights = self.inverse * other.inverse
        scaled = weights * noise
        both = self.u.mT @ (scaled.unsqueeze(-1) * other.u)
        explained = self.explained() + other.explained()
        return weights * (scaled * (1 - explained) + _sum_of_columns((self.z @ both) * other.z))


def low_rank_to_full_gradients(parameters: tuple[Tensor, ...], grad: Tensor) -> tuple[Tensor, ...] | None:
    """Return the gradients by the mean, factors and variances of P, and by the mean and the Cholesky factor of Q."""
    if not can_inspect(grad):
        return None
    mean_p, w, d, mean_q, root = map(upcast, parameters)
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
    derivatives = step, back.mT @ of_factors - p.times_factors(), by_d, -step, -(back.mT @ change).tril()
    return _times(derivatives, grad, parameters)


def full_to_low_rank_gradients(parameters: tuple[Tensor, ...], grad: Tensor) -> tuple[Tensor, ...] | None:
    """Return the gradients by the mean and the Cholesky factor of P, and by the mean, factors and variances of Q."""
    if not can_inspect(grad):
        return None
    mean_p, root, mean_q, w, d = map(upcast, parameters)
    root, q = root.tril(), _Precision.of(w, d)
    if q.loses_digits():
        return None
    step = q.times((mean_p - mean_q).unsqueeze(-1))
    of_root, of_factors = q.times(root), q.times_factors()
    by_root = of_root.tril() - torch.diag_embed(1 / root.diagonal(dim1=-2, dim2=-1))
    by_w = of_factors - of_root @ (root.mT @ of_factors) - step @ (step.mT @ w)
    by_d = (q.diagonal() - (of_root**2).sum(-1) - step.squeeze(-1) ** 2) / 2
    derivatives = step.squeeze(-1), by_root, -step.squeeze(-1), by_w, by_d
    return _times(derivatives, grad, parameters)


def _sum_of_columns(x: Tensor) -> Tensor:
    """Return x.sum(-1) as a product, because torch is slow at sums of a few numbers."""
    return (x @ x.new_ones(x.shape[-1], 1)).squeeze(-1)


def _times(
    derivatives: tuple[Tensor, ...], grad: Tensor, parameters: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Return derivatives times the gradient of the values, in the dtypes of the parameters."""
    return tuple(
        (by * upcast(grad)[(..., *(None,) * (by.dim() - grad.dim()))]).to(x.dtype)
        for by, x in zip(derivatives, parameters, strict=True)
    )


def _by_factors(gradients: GradientFunction) -> Shortcut:
    """Return a shortcut by the kernel of low-rank covariances. A full covariance has to be given by its root."""
    form = Form("closed_form_of_factors", (), divergence_of_factors, gradients)

    def by_kernel(p: Any, q: Any) -> Tensor | None:
        is_full = isinstance(p, MultivariateNormal), isinstance(q, MultivariateNormal)
        if not is_ordinary_call() or any(
            full and matrix_of(d) != "scale_tril" for full, d in zip(is_full, (p, q), strict=True)
        ):
            return None
        of_p, of_q = _READERS[is_full[0]](p), _READERS[is_full[1]](q)
        return divergence_of(form, of_p + of_q) if of_p[0].shape == of_q[0].shape else None

    return by_kernel


_READERS = reader_of("loc", "cov_factor", "cov_diag"), reader_of("loc", "scale_tril")


@closed_form(LowRankMultivariateNormal, LowRankMultivariateNormal, native=_by_factors(low_rank_gradients))
def kl_low_rank_low_rank(p: LowRankMultivariateNormal, q: LowRankMultivariateNormal) -> Tensor | None:
    """Return KL for covariances W W^T + D."""
    return divergence_of_factors((*factor_model_of(p), *factor_model_of(q)))


@closed_form(
    LowRankMultivariateNormal,
    MultivariateNormal,
    error=rounding_error,
    native=_by_factors(low_rank_to_full_gradients),
)
@closed_form(
    MultivariateNormal,
    LowRankMultivariateNormal,
    error=rounding_error,
    native=_by_factors(full_to_low_rank_gradients),
)
@closed_form(Independent, MultivariateNormal, error=rounding_error)
@closed_form(MultivariateNormal, Independent, error=rounding_error)
@closed_form(Independent, LowRankMultivariateNormal, error=rounding_error)
@closed_form(LowRankMultivariateNormal, Independent, error=rounding_error)
def kl_gaussian_gaussian(p: Gaussian, q: Gaussian) -> Tensor | None:
    """Return KL for covariances of any form; None if the dimensions are independent but not normal."""
    left, right = moments(p), moments(q)
    return None if left is None or right is None else _divergence_of_moments(left, right)
