"""The terms p (log p - log q) of torch's `kl_div`, their sum and their derivatives: in plain torch, and in C++.

Unlike the other kernels these know of no rows: nothing is normalized, and a class is a number among others.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from kullback.kernels.native import rows as native
from kullback.representations import can_inspect

__all__ = ["kl_of_weights", "kl_terms", "reference_terms", "serves"]

_NUMBERS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_PLAIN = (Tensor, torch.nn.Parameter)


def reference_terms(log_q: Tensor, target: Tensor, log_target: bool) -> Tensor:
    """Return the summands with their limits, for arguments of one dtype of 32 bits or more."""
    _, p, log_ratio = _parts(log_q, target, log_target)
    return _mass(p, log_ratio) * log_ratio


def serves(log_q: Tensor, target: Tensor) -> bool:
    """Tell whether `kl_terms` takes tensors like these."""
    return (
        type(log_q) in _PLAIN
        and type(target) in _PLAIN
        and log_q.dtype == target.dtype
        and log_q.dtype in _NUMBERS
        and log_q.shape == target.shape
        and log_q.is_cpu
        and target.is_cpu
        and log_q.layout == target.layout == torch.strided
        and log_q.numel() > 0
        and can_inspect(log_q)
        and can_inspect(target)
        and _operator() is not None
    )


def kl_terms(log_q: Tensor, target: Tensor, log_target: bool, divisor: float | None) -> Tensor:
    """Return the terms, or with a divisor their sum divided by it, differentiable in all orders.

    Arguments:
        log_q: log-probabilities of Q; like `target` one that `serves` takes.
        target: probabilities of P, or their logarithms.
        log_target: whether `target` holds logarithms.
        divisor: what the sum is divided by; None for the terms themselves.
    """
    recorded = torch.is_grad_enabled() and (log_q.requires_grad or target.requires_grad)
    if recorded or unpack_dual(log_q).tangent is not None or unpack_dual(target).tangent is not None:
        return _Terms.apply(log_q, target, log_target, divisor)
    return _compute(log_q, target, log_target, divisor, (False, False))[0]


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
        result, *gradients = _compute(log_q, target, log_target, divisor, wanted)
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
        return *_gradients(log_q, target, ctx.log_target, ctx.divisor, grad, wanted), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        log_q, target = ctx.saved_tensors
        derivatives = _derivatives(log_q, target, ctx.log_target)
        changes = [
            derivative * t for derivative, t in zip(derivatives, tangents, strict=False) if t is not None
        ]
        change = torch.stack(changes).sum(0)
        return (change if ctx.divisor is None else change.sum() / ctx.divisor).to(log_q.dtype)


def _compute(
    log_q: Tensor, target: Tensor, log_target: bool, divisor: float | None, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the terms or their mean, and the gradients of a mean that are wanted."""
    log_q, target = log_q.contiguous(), target.contiguous()
    logs, room = _logarithms(target, log_target)
    if divisor is None:
        terms = torch.empty_like(log_q) if room is None else room
        _operator()(log_q, target, logs, None, 1.0, 1.0, terms, None, None, None)
        return terms, None, None
    gradients = _places(log_q, wanted, room)
    half = log_q.dtype in (torch.bfloat16, torch.float16)
    total = torch.empty((), dtype=torch.float64 if half else log_q.dtype)
    _operator()(log_q, target, logs, None, divisor, 1 / divisor, None, total, *gradients)
    return total.to(log_q.dtype) if half else total, gradients[0], gradients[1]


def _gradients(
    log_q: Tensor,
    target: Tensor,
    log_target: bool,
    divisor: float | None,
    grad: Tensor,
    wanted: tuple[bool, bool],
) -> list[Tensor | None]:
    """Return the gradients of a result with the gradient `grad`."""
    log_q, target = log_q.contiguous(), target.contiguous()
    logs, room = _logarithms(target, log_target)
    gradients = _places(log_q, wanted, room)
    scale, each = (1.0, grad.contiguous()) if divisor is None else (grad.item() / divisor, None)
    _operator()(log_q, target, logs, each, 1.0, scale, None, None, *gradients)
    return gradients


def _logarithms(target: Tensor, log_target: bool) -> tuple[Tensor | None, Tensor | None]:
    """Return the logarithms of probabilities, twice if a result may overwrite them.

    They are torch's own to the last bit, so that `input` made by torch from the same probabilities gives exactly 0.
    """
    if log_target:
        return None, None
    if target.dtype in (torch.float32, torch.float64):
        logs = target.detach().log()
        return logs, logs
    return target.detach().float().log_(), None


def _places(log_q: Tensor, wanted: tuple[bool, bool], room: Tensor | None) -> list[Tensor | None]:
    """Return where the gradients go, one of them into `room` if there is some."""
    places: list[Tensor | None] = [None, None]
    for i, want in enumerate(wanted):
        if want:
            places[i], room = torch.empty_like(log_q) if room is None else room, None
    return places


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
    wide = torch.promote_types(log_q.dtype, torch.float32)
    massless, p, log_ratio = _parts(log_q.to(wide), target.to(wide), log_target)
    mass = _mass(p, log_ratio)
    finite = torch.where(log_ratio == math.inf, 0.0, log_ratio)
    by_target = p * finite + mass if log_target else finite + 1
    return torch.where(massless, 0.0, -mass), torch.where(massless, 0.0, by_target)


@cache
def _operator() -> Any:
    """Return the operator of the library, or None if there is none (a library built from older sources lacks it)."""
    if native.missing() is not None or not hasattr(torch.ops.kullback, "kl_terms"):
        return None
    # All it returns it writes to its arguments: there is nothing to say about shapes.
    torch.library.register_fake("kullback::kl_terms")(lambda *_: None)
    return torch.ops.kullback.kl_terms.default


def kl_of_weights(p: Tensor, q: Tensor, tolerance: float) -> Tensor | None:
    """Return KL of each row of weights once normalized, in float64, from tensors of shape (..., classes).

    None is the answer for what the C++ does not take: tensors whose derivatives are asked for, dtypes other than
    float32 and float64, and rows that are no distribution or that do not sum to one within `tolerance`.
    """
    if not (
        serves(p, q)
        and p.dtype in (torch.float32, torch.float64)
        and p.dim() > 0
        and not (torch.is_grad_enabled() and (p.requires_grad or q.requires_grad))
        and unpack_dual(p).tangent is unpack_dual(q).tangent is None
        and hasattr(torch.ops.kullback, "kl_of_weights")
    ):
        return None
    rows = p.shape[:-1]
    shape = rows.numel(), p.shape[-1]
    values = torch.empty(shape[0], dtype=torch.float64)
    torch.ops.kullback.kl_of_weights(
        p.reshape(shape).contiguous(), q.reshape(shape).contiguous(), tolerance, values
    )
    return values.view(rows) if bool((values >= 0).all()) else None
