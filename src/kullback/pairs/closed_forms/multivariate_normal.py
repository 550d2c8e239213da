"""Closed forms of the normal distributions of vectors: full, low-rank and diagonal covariances, in any mixture."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
)

from kullback.pairs.closed_forms import low_rank
from kullback.pairs.numerics.cholesky import (
    Covariance,
    covariance_of,
    factors_of,
    of_low_rank,
    of_root,
    relative,
    whitened,
)
from kullback.pairs.numerics.parameters import wide
from kullback.pairs.registry import closed_form

__all__ = ["moments"]

# From so many dimensions on, covariances of low rank are not formed.
_MANY = 64

Gaussian = MultivariateNormal | LowRankMultivariateNormal | Independent[Normal]


@closed_form(MultivariateNormal, MultivariateNormal)
def kl_multivariate_normal_multivariate_normal(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    """Return (tr M M^T - d - log det M M^T + |K^-1 (m_p - m_q)|^2) / 2 for M = K^-1 L.

    L and K are the Cholesky factors of the covariances of P and Q.
    """
    first, second, precise = factors_of(p, q)
    shift = (wide(p.loc) - wide(q.loc)).unsqueeze(-1)
    steps = first.root.mT @ shift if precise else whitened(shift, second)
    return relative(first, second).divergence() + (steps**2).sum((-2, -1)) / 2


@closed_form(LowRankMultivariateNormal, LowRankMultivariateNormal)
def kl_low_rank_low_rank(p: LowRankMultivariateNormal, q: LowRankMultivariateNormal) -> Tensor | None:
    """Return the same for covariances W W^T + D, without forming them where that saves work."""
    size = p.event_shape[-1]
    if size < _MANY or size < 4 * max(d.cov_factor.shape[-1] for d in (p, q)):
        return kl_gaussian_gaussian(p, q)
    return low_rank.divergence(low_rank.model_of(p), low_rank.model_of(q))


@closed_form(LowRankMultivariateNormal, MultivariateNormal)
@closed_form(MultivariateNormal, LowRankMultivariateNormal)
@closed_form(Independent, MultivariateNormal)
@closed_form(MultivariateNormal, Independent)
@closed_form(Independent, LowRankMultivariateNormal)
@closed_form(LowRankMultivariateNormal, Independent)
def kl_gaussian_gaussian(p: Gaussian, q: Gaussian) -> Tensor | None:
    """Return the same for covariances of any form; None where the dimensions are independent but not normal."""
    left, right = moments(p), moments(q)
    if left is None or right is None:
        return None
    steps = whitened((left[0] - right[0]).unsqueeze(-1), right[1])
    return relative(left[1], right[1]).divergence() + (steps**2).sum((-2, -1)) / 2


def moments(d: Distribution) -> tuple[Tensor, Covariance] | None:
    """Return the mean and the covariance of a normal distribution of vectors or, as vectors of one, numbers."""
    if isinstance(d, LowRankMultivariateNormal):
        mean, factors, variances = low_rank.model_of(d)
        return mean, of_low_rank(factors, variances)
    if isinstance(d, MultivariateNormal):
        return wide(d.loc), covariance_of(d)
    if isinstance(d, Normal):
        return wide(d.loc).unsqueeze(-1), of_root(wide(d.scale)[..., None, None])
    if isinstance(d, Independent) and isinstance(d.base_dist, Normal) and d.reinterpreted_batch_ndims == 1:
        return wide(d.base_dist.loc), of_root(torch.diag_embed(wide(d.base_dist.scale)))
    return None
