"""The derivative of KL by the ends of a Uniform, which needs no integral."""

from __future__ import annotations

import torch
from torch import Tensor

from kullback.pairs.densities.base import Density, Points
from kullback.pairs.densities.bounded import UniformDensity
from kullback.pairs.integration.quadrature import Integral, Terms, integrate
from kullback.pairs.numerics.parameters import is_tracked
from kullback.pairs.options import Target

__all__ = ["integrate_kl"]

# From an end at 0.
_LEAST_DISTANCE = 1e-100


def integrate_kl(p: Density, q: Density, terms: Terms, batch_shape: torch.Size, target: Target) -> Integral:
    """Integrate KL's terms as `integrate` does, and let the ends of a Uniform have their exact derivatives.

    The derivatives by the integrand are those at fixed nodes. What is between an end and where it was is added, as the
    width times the integrand half way, which is exact to the second derivatives: what q does next to an end decides,
    on however small a scale, where the nodes of an integral over the whole width are far apart.
    """
    if not (isinstance(p, UniformDensity) and torch.is_grad_enabled()):
        return integrate(p, q, terms, batch_shape, target)
    p = UniformDensity(*(_constant_at_infinity(end, q) for end in (p.lower, p.upper)))
    found = integrate(p, q, terms, batch_shape, target, moves_nodes=False)
    value = found.value
    mean = torch.where(value.isfinite(), value, 0).detach().unsqueeze(-1)
    for end, inwards in ((p.lower, 1), (p.upper, -1)):
        if is_tracked(end):
            value = value + (inwards * _between(end, p, q, mean)).squeeze(-1)
    return found._replace(value=value)


def _constant_at_infinity(end: Tensor, q: Density) -> Tensor:
    """Return an end without derivative where q is 0 or infinite there, as the derivative by that end is."""
    fixed = end.detach()
    return torch.where(q.detached().log_density(Points(fixed)).isfinite(), end, fixed)


def _between(end: Tensor, p: UniformDensity, q: Density, mean: Tensor) -> Tensor:
    """Return the integral of p (log(p / q) - mean) from an end to where it is: 0, with derivatives."""
    fixed = end.detach()
    level = q.detached().log_density(Points(fixed))
    is_known = level.isfinite()
    middle = (p.lower + p.upper).detach() / 2
    # At an end of Q a distance from it has no derivatives as a logarithm: those of log q are taken just inside.
    inside = fixed + (middle - fixed).sign() * (
        4 * torch.finfo(fixed.dtype).eps * fixed.abs() + _LEAST_DISTANCE
    )
    at = torch.where(_is_end(fixed, q), inside, fixed)
    at = torch.where(is_known, at + (end - fixed) / 2, middle)
    log_q = q.log_density(Points(at))
    log_q = torch.where(is_known, level, log_q.detach()) + (log_q - log_q.detach())
    log_p = -torch.log(p.upper - p.lower)
    f = torch.exp(log_p) * (log_p - log_q - mean)
    return torch.where(is_known, (fixed - end) * f, 0)


def _is_end(x: Tensor, q: Density) -> Tensor:
    result = torch.zeros_like(x, dtype=torch.bool)
    for edge in (q.low(), q.high()):
        if edge is not None:
            result = result | (x == edge.detach())
    return result
