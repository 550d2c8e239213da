"""The derivative of KL by the ends of a Uniform, which needs no integral."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kullback.pairs.densities.base import Density, Points
from kullback.pairs.densities.bounded import UniformDensity
from kullback.pairs.integration.quadrature import Integral, Terms, integrate
from kullback.pairs.options import Target

__all__ = ["integrate_kl"]


def integrate_kl(p: Density, q: Density, terms: Terms, batch_shape: torch.Size, target: Target) -> Integral:
    """Integrate KL's terms as `integrate` does, and let the ends of a Uniform have their exact derivatives.

    With width w they are (1 + log q(low) + log w + KL) / w and minus the same at the other end: what q does next to an
    end decides, on however small a scale, where the nodes of an integral over the whole width are far apart.
    """
    if isinstance(
        p, UniformDensity
    ):  # every element has ends of its own, and with them a derivative of its own
        p = p.mapped(lambda end: end.expand(*batch_shape, 1))
    found = integrate(p, q, terms, batch_shape, target)
    if not (isinstance(p, UniformDensity) and found.value.requires_grad):
        return found
    ends = p.lower, p.upper
    by_nodes = [_derivative(found.value, end) for end in ends]
    log_q = [q.log_density(Points(end)) for end in ends]
    value: Tensor = _WithEnds.apply(found.value.unsqueeze(-1), *ends, *log_q, *by_nodes)  # pyright: ignore[reportAssignmentType]
    return found._replace(value=value.squeeze(-1))


def _derivative(value: Tensor, end: Tensor) -> Tensor:
    if not end.requires_grad:
        return torch.zeros_like(end)
    (derivative,) = torch.autograd.grad(value.sum(), end, create_graph=True)
    return derivative


class _WithEnds(torch.autograd.Function):
    """The value itself, to whose derivatives by the ends what they lack is added.

    The value is saved as it leaves, with its right derivatives, so that those of higher order are right as well.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, *parts: Tensor) -> Tensor:
        result = value.clone()
        ctx.save_for_backward(result, *parts)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        value, low, high, log_q_low, log_q_high, derivative_low, derivative_high = ctx.saved_tensors
        width = high - low
        level = 1 + torch.log(width) + value
        exact = (level + log_q_low) / width, -(level + log_q_high) / width
        lacking = [
            gradient * (torch.where(derivative.isfinite(), derivative, 0) - known)
            for derivative, known in zip(exact, (derivative_low, derivative_high), strict=True)
        ]
        return gradient, *lacking, None, None, None, None
