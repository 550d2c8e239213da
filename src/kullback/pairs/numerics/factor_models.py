r"""Covariances W W^T + D with many dimensions and few factors, whose matrices are never formed.

With U = D^(-1/2) W and M = I + U^T U, the precision is D^(-1/2) (I - B B^T) D^(-1/2) for B = U M^(-1/2). The quadratic
form v^T (I - B B^T) v is computed as the minimum of |v - U z|^2 + |z|^2 over z, without cancellation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Independent, LowRankMultivariateNormal, Normal

from kullback.common.dtypes import upcast
from kullback.pairs.density_overrides import overrides_density
from kullback.pairs.numerics.cholesky import identity_like


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
    """Return a normal distribution with covariance W W^T + D as a factor model, or None for other distributions.

    A diagonal covariance gets a single factor, which is 0.
    """
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
