"""Deterministic bounds for mixtures, whose divergence has no closed form."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily

from kullback.common.extra_arguments import by_name
from kullback.common.short_repr import short_repr
from kullback.common.special import safe_logsumexp
from kullback.errors import invalid_type
from kullback.pairs.clone import expanded, upcast_copy, with_dimension, with_ordinary_tensors
from kullback.pairs.closed_forms.multivariate_normal import moments
from kullback.pairs.densities.composite import log_weights_of
from kullback.pairs.densities.maps import plain_form
from kullback.pairs.density_overrides import overrides_density
from kullback.pairs.numerics.cholesky import identity_like, of_root, whitened
from kullback.pairs.numerics.parameters import batch_shape_of, dtype_of
from kullback.pairs.refusals import check_domains
from kullback.pairs.solve import estimate
from kullback.pairs.solve_options import SolveOptions
from kullback.pairs.support import check_comparable

# The optimization of the upper bound has _ITERATIONS steps. The bound is valid after each step, and each step lowers
# the bound.
_ITERATIONS = 100
# _POWERS are the powers t in the integrals of f^t g for components f of P and g of Q. Each power gives a valid bound,
# and `kl_bounds` uses the best bound.
_POWERS = (1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0, 2.0)


class Bounds(NamedTuple):
    """A lower and an upper bound for a divergence, one of each for every element of the batch.

    Arguments:
        lower: the lower bound, which is not negative.
        upper: the upper bound.

    Example:
        >>> from kullback import Bounds
        >>> Bounds(lower=0.25, upper=0.5).upper
        0.5
    """

    lower: Tensor
    upper: Tensor

    def __repr__(self) -> str:
        return short_repr(self, self._asdict())


@by_name()
def kl_bounds(p: Distribution, q: Distribution) -> Bounds:
    r"""Bound the divergence of two mixtures from below and above, without random draws.

    .. math:: KL(P \| Q) \le \sum_{ab} \phi_{ab} \left(\log \frac{\phi_{ab}}{\psi_{ab}} + KL(f_a \| g_b)\right)

    for all :math:`\phi, \psi \ge 0` where :math:`\sum_b \phi_{ab}` are the weights of P, and :math:`\sum_a \psi_{ab}`
    the weights of Q. The variational upper bound is the minimum over :math:`\phi` and :math:`\psi`. For normal
    components, Jensen's inequality and integrals of :math:`f_a^t g_b` also give a lower bound and a second upper bound.
    For other components `lower` is 0.

    Arguments:
        p: P, a `MixtureSameFamily` whose components have a known divergence. A distribution that is not a mixture
            counts as a mixture with a single component.
        q: Q, likewise; its components may be of another type. Batch shapes broadcast.

    Returns:
        a pair (lower, upper) of tensors of the broadcast batch shape, in the dtype of the arguments, in nats.

    Raises:
        ArgumentTypeError: an argument is not a distribution.
        ArgumentValueError: events or batch shapes do not match.
        NoRuleError: no rule serves the components.

    Gradient:
        the gradient of the bound at the best :math:`\phi, \psi` and power flows to the weights and components of P and
        Q. The gradient is 0 where a bound is 0 or infinite.

    Example:
        >>> import torch
        >>> from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
        >>> from kullback import kl_bounds
        >>> def mixture(centers):
        ...     parts = Independent(Normal(torch.tensor(centers), 1.0), 1)
        ...     return MixtureSameFamily(Categorical(torch.ones(2)), parts)
        >>> p, q = mixture([[0.0, 0.0], [9.0, 9.0]]), mixture([[0.0, 3.0], [9.0, 9.0]])
        >>> lower, upper = kl_bounds(p, q)
        >>> lower, upper
        (tensor(1.0449), tensor(2.2500))

    References:
        Approximating the Kullback Leibler Divergence Between Gaussian Mixture Models (Hershey and Olsen, 2007)
        Lower and Upper Bounds for Approximation of the Kullback-Leibler Divergence Between Gaussian Mixture Models
        (Durrieu, Thiran and Kelly, 2012)
    """
    for name, d in (("p", p), ("q", q)):
        if not isinstance(d, Distribution):
            raise invalid_type(
                "kl_bounds",
                name,
                wanted="a torch distribution",
                got=f"a {type(d).__name__}",
                instead="MixtureSameFamily(Categorical(weights), components)",
            )
    p, q = with_ordinary_tensors("kl_bounds", "p", p), with_ordinary_tensors("kl_bounds", "q", q)
    check_comparable("kl_bounds", p, q)
    check_domains("kl_bounds", p, q)
    p, q = plain_form(p), plain_form(q)
    shape, dtype = batch_shape_of(p, q), dtype_of(p, q)
    (weights_p, parts_p), (weights_q, parts_q) = (_components(d, shape) for d in (p, q))
    across = _divergences(parts_p, parts_q)
    upper = _variational(weights_p, weights_q, across)
    products, own = _log_products(parts_p, parts_q), _log_products(parts_p, parts_p)
    if products is None or own is None:
        lower = torch.zeros_like(upper)
    else:
        within = _divergences(parts_p, parts_p)
        lower = _weighted(weights_p, _log_sums(weights_p, -within) - _least(weights_q, products))
        second = _weighted(weights_p, _least(weights_p, own) - _log_sums(weights_q, -across))
        upper = torch.minimum(upper, second)
    upper = upper.clamp(min=0)
    return Bounds(torch.minimum(lower.clamp(min=0), upper).to(dtype), upper.to(dtype))


def _components(d: Distribution, shape: torch.Size) -> tuple[Tensor, Distribution]:
    """Return the log-weights of a mixture, and its components along the last batch dimension, in float64."""
    d = upcast_copy(expanded(d, shape))
    if isinstance(d, MixtureSameFamily) and not overrides_density(d):
        return log_weights_of(d), d.component_distribution
    alone = with_dimension(d, -1)
    return torch.zeros(alone.batch_shape, dtype=torch.float64, device="cpu"), alone


def _divergences(f: Distribution, g: Distribution) -> Tensor:
    """Return KL(f_a || g_b) for all pairs of components, with shape (..., a, b)."""
    return estimate("kl_bounds", with_dimension(f, -1), with_dimension(g, -2), SolveOptions()).value


def _log_sums(log_weights: Tensor, x: Tensor) -> Tensor:
    """Return log sum_b w_b e^x_ab for the weights w_b and x of shape (..., a, b); the result has shape (..., a)."""
    return safe_logsumexp(log_weights.unsqueeze(-2) + x, -1)


def _weighted(log_weights: Tensor, x: Tensor) -> Tensor:
    """Return sum_a w_a x_a for the weights w_a, where a component of weight 0 adds 0 even if x_a is infinite."""
    used = log_weights > -torch.inf
    return torch.where(used, torch.exp(log_weights) * torch.where(used, x, 0), 0).sum(-1)


def _variational(log_weights_p: Tensor, log_weights_q: Tensor, divergences: Tensor) -> Tensor:
    """Return the variational upper bound of `kl_bounds` at the best phi and psi, which are optimized in turn.

    For Q's weights w_b, psi_ab is w_b r_ab with proportions r_ab that sum to 1 over a. The argument `divergences` has
    KL(f_a || g_b).
    """
    with torch.no_grad():
        proportions = torch.full_like(divergences, 1 / divergences.shape[-2])
        for _ in range(_ITERATIONS):
            log_phi = torch.log(proportions) + log_weights_q.unsqueeze(-2) - divergences
            log_phi = log_phi - log_phi.logsumexp(-1, keepdim=True) + log_weights_p.unsqueeze(-1)
            phi = torch.exp(log_phi).nan_to_num(nan=0.0)
            total = phi.sum(-2, keepdim=True)
            proportions = torch.where(total > 0, phi / torch.where(total > 0, total, 1), proportions)
    return _weighted(
        log_weights_p, log_weights_p - _log_sums(log_weights_q, torch.log(proportions) - divergences)
    )


def _log_products(f: Distribution, g: Distribution) -> Tensor | None:
    """Return t H(f_a) + log int f_a^t g_b for the powers t in `_POWERS`, with shape (powers, ..., a, b).

    Here H is the entropy, and f_a and g_b are components. If they are not normal, the result is None. The formula is
    (t d - log det(I + t G) - t |C^-1 z|^2) / 2 for d dimensions. Here G = L^-1 S L^-T, C C^T = I + t G and
    z = L^-1 (m_a - m_b). L is the Cholesky factor of f_a's covariance, S is the covariance of g_b, and m_a and m_b are
    the means.
    """
    first, second = moments(f), moments(g)
    if first is None or second is None:
        return None
    # A covariance that all components share has no dimension of components, so this dimension is added.
    roots = [x[1].root.expand(*d.batch_shape, *x[1].root.shape[-2:]) for x, d in ((first, f), (second, g))]
    root = of_root(roots[0].unsqueeze(-3))
    z = whitened((first[0].unsqueeze(-2) - second[0].unsqueeze(-3)).unsqueeze(-1), root)
    half = whitened(roots[1].unsqueeze(-4), root)
    gram = half @ half.mT
    size = z.shape[-2]
    logs: list[Tensor] = []
    for power in _POWERS:
        c = torch.linalg.cholesky(identity_like(gram) + power * gram)
        distance = power * (torch.linalg.solve_triangular(c, z, upper=False) ** 2).sum((-2, -1))
        log_det = 2 * torch.log(c.diagonal(dim1=-2, dim2=-1)).sum(-1)
        logs.append((power * size - log_det - distance) / 2)
    return torch.stack(logs)


def _least(log_weights: Tensor, products: Tensor) -> Tensor:
    """Return the minimum over the powers of log sum_b w_b e^x_ab for x = `products`, or 0 if the minimum is positive.

    Power 0, which is not in `_POWERS`, gives the value 0.
    """
    return _log_sums(log_weights, products).amin(0).clamp(max=0)
