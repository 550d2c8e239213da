"""The terms p (log p - log q) of torch's `kl_div` and their sum, differentiable: in plain torch or by C++.

Nothing is normalized, and a class is a number among others: these know of no rows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from kullback.kernels.native import terms
from kullback.representations import can_inspect

__all__ = ["kl_terms", "reference_terms"]


def reference_terms(log_q: Tensor, target: Tensor, log_target: bool) -> Tensor:
    """Return the summands with their limits, for arguments of one dtype of 32 bits or more."""
    _, p, log_ratio = _parts(log_q, target, log_target)
    return _mass(p, log_ratio) * log_ratio


def kl_terms(log_q: Tensor, target: Tensor, log_target: bool, divisor: float | None) -> Tensor:
    """Return the terms, or with a divisor their sum divided by it, differentiable in all orders.

    Arguments:
        log_q: log-probabilities of Q; like `target` one that `native.terms.serves` takes.
        target: probabilities of P, or their logarithms.
        log_target: whether `target` holds logarithms.
        divisor: what the sum is divided by; None for the terms themselves.
    """
    recorded = torch.is_grad_enabled() and (log_q.requires_grad or target.requires_grad)
    if recorded or unpack_dual(log_q).tangent is not None or unpack_dual(target).tangent is not None:
        return _Terms.apply(log_q, target, log_target, divisor)
    return terms.compute(log_q, target, log_target, divisor, (False, False))[0]


class _Terms(torch.autograd.Function):
    """A sum has its gradient made in the same sweep; it waits in the context for the first backward pass.

    A second backward pass makes its own, and one that is to be differentiated makes it of differentiable operations.
    """

    @staticmethod
    def forward(ctx: Any, log_q: Tensor, target: Tensor, log_target: bool, divisor: float | None) -> Tensor:
        ctx.log_target, ctx.divisor = log_target, divisor
        ctx.save_for_backward(log_q, target)
        ctx.save_for_forward(log_q, target)
        # Not in float16, whose small numbers the factor that scales a loss saves in mixed-precision training.
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
    """Return where P and Q have no mass that counts, p (1 there, if it is a variable), and log p - log q (0 there)."""
    # The bound on log_q lets NaN and +inf, which no log-probability is, come through.
    massless = (target == (-math.inf if log_target else 0.0)) & (log_q < math.inf)
    if log_target:
        p, log_p = target.exp(), target
    else:
        p = torch.where(massless, 1.0, target)  # log' is infinite at 0, and 0 * inf is NaN
        log_p = p.log()
    return massless, p, torch.where(massless, 0.0, log_p - log_q)


def _mass(p: Tensor, log_ratio: Tensor) -> Tensor:
    # Against q = 0 all mass gives +inf, even one that underflows to 0; its derivative, as infinite, is cut off,
    # since it would turn into NaN under a zero weight or in the softmax before.
    return torch.where(log_ratio == math.inf, p.detach().clamp(min=torch.finfo(p.dtype).tiny), p)


def _derivatives(log_q: Tensor, target: Tensor, log_target: bool) -> tuple[Tensor, Tensor]:
    """Return the derivatives of the terms by `log_q` and by `target`, made of differentiable operations."""
    dtype = torch.promote_types(log_q.dtype, torch.float32)
    massless, p, log_ratio = _parts(log_q.to(dtype), target.to(dtype), log_target)
    mass = _mass(p, log_ratio)
    finite = torch.where(log_ratio == math.inf, 0.0, log_ratio)
    by_target = p * finite + mass if log_target else finite + 1
    return torch.where(massless, 0.0, -mass), torch.where(massless, 0.0, by_target)
