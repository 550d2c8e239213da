"""The terms p (log p - log q) of torch's `kl_div` and their sum, with derivatives, computed by plain torch or C++.

The functions compute each element separately, and do not normalize rows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from kullback.common.inputs import can_inspect
from kullback.kernels.native import terms


def reference_terms(log_q: Tensor, target: Tensor, log_target: bool) -> Tensor:
    """Return p (log p - log q), with its limits at 0. The arguments have one dtype of at least 32 bits."""
    _, p, log_ratio = _parts(log_q, target, log_target)
    return _mass(p, log_ratio) * log_ratio


def kl_terms(log_q: Tensor, target: Tensor, log_target: bool, divisor: float | None) -> Tensor:
    """Return the terms, or their sum divided by `divisor`, of tensors that `native.terms` serves; differentiable."""
    recorded = torch.is_grad_enabled() and (log_q.requires_grad or target.requires_grad)
    if recorded or unpack_dual(log_q).tangent is not None or unpack_dual(target).tangent is not None:
        return _KLDivTerms.apply(log_q, target, log_target, divisor)
    return terms.compute(log_q, target, log_target, divisor, (False, False))[0]


class _KLDivTerms(torch.autograd.Function):
    """The autograd function of the terms, or of their sum divided by a divisor. Except in float16, the forward pass
    computes the sum's gradient, which the context keeps until the first backward pass. Later, differentiated and
    batched backward passes compute it again.
    """

    @staticmethod
    def forward(ctx: Any, log_q: Tensor, target: Tensor, log_target: bool, divisor: float | None) -> Tensor:
        ctx.log_target, ctx.divisor = log_target, divisor
        ctx.save_for_backward(log_q, target)
        ctx.save_for_forward(log_q, target)
        now = divisor is not None and log_q.dtype != torch.float16  # see `RowTotal`
        wanted = ctx.needs_input_grad[:2] if now else (False, False)
        result, *gradients = terms.compute(log_q, target, log_target, divisor, wanted)
        ctx.gradients = gradients if any(wanted) else None
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), ready = grads, ctx.gradients
        differentiated = torch.is_grad_enabled() or not can_inspect(grad)
        if ready is not None and not differentiated:
            ctx.gradients = None
            if grad.item() != 1:
                ready = [x if x is None else x.mul_(grad) for x in ready]
            return *ready, None, None
        log_q, target = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:2]
        if differentiated:
            derivatives = _derivatives(log_q, target, ctx.log_target)
            grad = grad if ctx.divisor is None else grad / ctx.divisor
            pairs = zip(derivatives, wanted, strict=True)
            return *((grad * by).to(log_q.dtype) if want else None for by, want in pairs), None, None
        return *terms.gradients(log_q, target, ctx.log_target, ctx.divisor, grad, wanted), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        log_q, target = ctx.saved_tensors
        derivatives = _derivatives(log_q, target, ctx.log_target)
        changes = [by * t for by, t in zip(derivatives, tangents, strict=False) if t is not None]
        change = torch.stack(changes).sum(0)
        return (change if ctx.divisor is None else change.sum() / ctx.divisor).to(log_q.dtype)


def _parts(log_q: Tensor, target: Tensor, log_target: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mask of p = 0, p (1 in the mask unless `target` has logarithms), and log p - log q (0 in the mask)."""
    # NaN and +inf in log_q are not log-probabilities. The mask is False there, so that the formula makes such terms NaN
    # or infinite.
    massless = (target == (-math.inf if log_target else 0.0)) & (log_q < math.inf)
    if log_target:
        p, log_p = target.exp(), target
    else:
        p = torch.where(massless, 1.0, target)  # log has an infinite derivative at 0, and 0 * inf is NaN
        log_p = p.log()
    return massless, p, torch.where(massless, 0.0, log_p - log_q)


def _mass(p: Tensor, log_ratio: Tensor) -> Tensor:
    # Where q = 0, the term is +inf for any mass p. A mass that underflowed to 0 is therefore replaced by the smallest
    # normal number. The mass gets no derivative there. The infinite derivative of the term would become NaN when a
    # weight of 0, or the backward pass of a softmax, multiplies it by 0.
    return torch.where(log_ratio == math.inf, p.detach().clamp(min=torch.finfo(p.dtype).tiny), p)


def _derivatives(log_q: Tensor, target: Tensor, log_target: bool) -> tuple[Tensor, Tensor]:
    """Return the derivatives of the terms by `log_q` and by `target`, from differentiable operations."""
    dtype = torch.promote_types(log_q.dtype, torch.float32)
    massless, p, log_ratio = _parts(log_q.to(dtype), target.to(dtype), log_target)
    mass = _mass(p, log_ratio)
    finite = torch.where(log_ratio == math.inf, 0.0, log_ratio)
    by_target = p * finite + mass if log_target else finite + 1
    return torch.where(massless, 0.0, -mass), torch.where(massless, 0.0, by_target)
