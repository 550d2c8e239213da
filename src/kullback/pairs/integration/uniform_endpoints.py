"""The derivative of KL by the ends of a Uniform, without an integral."""

from __future__ import annotations

import torch
from torch import Tensor

from kullback.pairs.densities.base import Density, Points
from kullback.pairs.densities.bounded import UniformDensity
from kullback.pairs.integration.quadrature import Integral, Terms, integrate
from kullback.pairs.numerics.parameters import is_tracked
from kullback.pairs.options import Target

__all__ = ["integrate_kl"]

# The smallest step inwards from an end at 0.
_LEAST_DISTANCE = 1e-100


def integrate_kl(p: Density, q: Density, terms: Terms, batch_shape: torch.Size, target: Target) -> Integral:
    """Integrate KL's terms like `integrate`, with exact derivatives by the ends of a Uniform P.

    The nodes are fixed in the derivatives of the integrand. The strip between an end and its current value is added as
    its width times the integrand at its middle, which is exact to the second derivatives. This resolves q next to an
    end on any scale; the nodes of the integral may be too far apart for that.
    """
    if not (isinstance(p, UniformDensity) and torch.is_grad_enabled()):
        return integrate(p, q, terms, batch_shape, target)
    p = UniformDensity(*(_constant_at_infinity(end, q) for end in (p.lower, p.upper)))
    integral = integrate(p, q, terms, batch_shape, target, moves_nodes=False)
    value = integral.value
    mean = torch.where(value.isfinite(), value, 0).detach().unsqueeze(-1)
    for end, inwards in ((p.lower, 1), (p.upper, -1)):
        if is_tracked(end):
            value = value + (inwards * _between(end, p, q, mean)).squeeze(-1)
    return integral._replace(value=value)


def _constant_at_infinity(end: Tensor, q: Density) -> Tensor:
    """Return an end, as a constant where q is 0 or infinite: the derivative by the end is infinite there."""
    fixed = end.detach()
    return torch.where(q.detached().log_density(Points(fixed)).isfinite(), end, fixed)


def _between(end: Tensor, p: UniformDensity, q: Density, mean: Tensor) -> Tensor:
    """Return the integral of p (log(p / q) - mean) from an end to its current value: 0, with derivatives."""
    fixed = end.detach()
    level = q.detached().log_density(Points(fixed))
    is_known = level.isfinite()
    middle = (p.lower + p.upper).detach() / 2
    # The logarithm of a distance from an end of Q has no derivative at that end, so log q is evaluated just inside.
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
