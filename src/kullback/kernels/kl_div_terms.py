"""The terms p (log p - log q) of torch's `kl_div` and their sum, differentiable, in plain torch or C++.

The functions work element by element: they normalize no rows.
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
    """Return the terms, with their limits at p = 0 and q = 0, for arguments of one dtype of at least 32 bits."""
    _, p, log_ratio = _parts(log_q, target, log_target)
    return _mass(p, log_ratio) * log_ratio


def kl_terms(log_q: Tensor, target: Tensor, log_target: bool, divisor: float | None) -> Tensor:
    """Return the terms, or their sum divided by `divisor`, with derivatives of all orders.

    Arguments:
        log_q: log-probabilities of Q. `native.terms.serves` must accept `log_q` and `target`.
        target: probabilities of P, or their logarithms.
        log_target: whether `target` contains logarithms.
        divisor: the divisor of the sum; None returns the terms.
    """
    recorded = torch.is_grad_enabled() and (log_q.requires_grad or target.requires_grad)
    if recorded or unpack_dual(log_q).tangent is not None or unpack_dual(target).tangent is not None:
        return _KLDivTerms.apply(log_q, target, log_target, divisor)
    return terms.compute(log_q, target, log_target, divisor, (False, False))[0]


class _KLDivTerms(torch.autograd.Function):
    """The terms or their sum. The gradient of a sum is computed in the forward pass.

    The context stores that gradient until the first backward pass. A second backward pass computes the gradient again.
    A differentiated or batched backward pass computes the gradient by differentiable operations.
    """

    @staticmethod
    def forward(ctx: Any, log_q: Tensor, target: Tensor, log_target: bool, divisor: float | None) -> Tensor:
        ctx.log_target, ctx.divisor = log_target, divisor
        ctx.save_for_backward(log_q, target)
        ctx.save_for_forward(log_q, target)
        # The gradient is computed here, in the forward pass, except in float16. There it could underflow, because the
        # factor of loss scaling is known only in the backward pass.
        now = divisor is not None and log_q.dtype != torch.float16
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
            return (
                *(
                    (grad * derivative).to(log_q.dtype) if want else None
                    for derivative, want in zip(derivatives, wanted, strict=True)
                ),
                None,
                None,
            )
        return *terms.gradients(log_q, target, ctx.log_target, ctx.divisor, grad, wanted), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        log_q, target = ctx.saved_tensors
        derivatives = _derivatives(log_q, target, ctx.log_target)
        changes = [
            derivative * t for derivative, t in zip(derivatives, tangents, strict=False) if t is not None
        ]
        change = torch.stack(changes).sum(0)
        return (change if ctx.divisor is None else change.sum() / ctx.divisor).to(log_q.dtype)


def _parts(log_q: Tensor, target: Tensor, log_target: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return a mask of the terms with p = 0, the probabilities p, and log p - log q.

    Where the mask is true, the log-ratio is 0, and p is 1 unless the target contains logarithms.
    """
    # NaN and +inf in log_q are not log-probabilities. The condition on log_q leaves such terms to the formula, which
    # makes them NaN or infinite.
    massless = (target == (-math.inf if log_target else 0.0)) & (log_q < math.inf)
    if log_target:
        p, log_p = target.exp(), target
    else:
        p = torch.where(massless, 1.0, target)  # log has an infinite derivative at 0, and 0 * inf is NaN
        log_p = p.log()
    return massless, p, torch.where(massless, 0.0, log_p - log_q)


def _mass(p: Tensor, log_ratio: Tensor) -> Tensor:
    # Where q = 0, any mass gives the term +inf, even a mass that underflowed to 0. The term's infinite derivative is
    # dropped, because a zero weight, or the backward pass of a softmax, would turn this derivative into NaN.
    return torch.where(log_ratio == math.inf, p.detach().clamp(min=torch.finfo(p.dtype).tiny), p)


def _derivatives(log_q: Tensor, target: Tensor, log_target: bool) -> tuple[Tensor, Tensor]:
    """Return the derivatives of the terms with respect to `log_q` and `target`, by differentiable operations."""
    dtype = torch.promote_types(log_q.dtype, torch.float32)
    massless, p, log_ratio = _parts(log_q.to(dtype), target.to(dtype), log_target)
    mass = _mass(p, log_ratio)
    finite = torch.where(log_ratio == math.inf, 0.0, log_ratio)
    by_target = p * finite + mass if log_target else finite + 1
    return torch.where(massless, 0.0, -mass), torch.where(massless, 0.0, by_target)
