"""The terms of `kl_div`, their sum and gradients, and KL of rows of probabilities, in C++."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from kullback.common.inputs import can_inspect
from kullback.kernels.native import library
from kullback.kernels.native.native_rows import DTYPES

_TENSORS = (Tensor, torch.nn.Parameter)


def serves(log_q: Tensor, target: Tensor) -> bool:
    """Return whether the operator supports these tensors."""
    return (
        library.is_available()
        and type(log_q) in _TENSORS
        and type(target) in _TENSORS
        and log_q.dtype == target.dtype
        and log_q.dtype in DTYPES
        and not (log_q.is_nested or target.is_nested)
        and log_q.shape == target.shape
        and log_q.is_cpu
        and target.is_cpu
        and log_q.layout == target.layout == torch.strided
        and log_q.numel() > 0
        and can_inspect(log_q)
        and can_inspect(target)
    )


def compute(
    log_q: Tensor, target: Tensor, log_target: bool, divisor: float | None, required: tuple[bool, bool]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the terms, or their sum divided by `divisor` and the wanted gradients of that quotient."""
    log_q, target = log_q.contiguous(), target.contiguous()
    logs, room = _logarithms(target, log_target)
    if divisor is None:
        terms = torch.empty_like(log_q) if room is None else room
        torch.ops.kullback.kl_terms.default(log_q, target, logs, None, 1.0, 1.0, terms, None, None, None)
        return terms, None, None
    results = _places(log_q, required, room)
    half = log_q.dtype in (torch.bfloat16, torch.float16)
    total = torch.empty((), dtype=torch.float64 if half else log_q.dtype, device="cpu")
    torch.ops.kullback.kl_terms.default(
        log_q, target, logs, None, divisor, 1 / divisor, None, total, *results
    )
    return total.to(log_q.dtype) if half else total, results[0], results[1]


def gradients(
    log_q: Tensor,
    target: Tensor,
    log_target: bool,
    divisor: float | None,
    grad: Tensor,
    required: tuple[bool, bool],
) -> list[Tensor | None]:
    """Return the wanted gradients. `grad` is the gradient of the loss by the result of `compute`."""
    log_q, target = log_q.contiguous(), target.contiguous()
    logs, room = _logarithms(target, log_target)
    results = _places(log_q, required, room)
    scale, factors = (1.0, grad.contiguous()) if divisor is None else (grad.item() / divisor, None)
    torch.ops.kullback.kl_terms.default(log_q, target, logs, factors, 1.0, scale, None, None, *results)
    return results


def _logarithms(target: Tensor, log_target: bool) -> tuple[Tensor | None, Tensor | None]:
    """Return the logarithms of `target` (None if it has logarithms), and the same tensor if results may overwrite it.
    torch computes them, so that the terms are exactly 0 for `log_q = target.log()`.
    """
    if log_target:
        return None, None
    if target.dtype in (torch.float32, torch.float64):
        logs = target.detach().log()
        return logs, logs
    return target.detach().float().log_(), None


def _places(log_q: Tensor, required: tuple[bool, bool], room: Tensor | None) -> list[Tensor | None]:
    """Return an empty tensor for each required gradient; the first one is `room`, if that is a tensor."""
    places: list[Tensor | None] = [None, None]
    for i, need in enumerate(required):
        if need:
            places[i], room = torch.empty_like(log_q) if room is None else room, None
    return places


def kl_of_weights(p: Tensor, q: Tensor, tolerance: float) -> Tensor | None:
    """Return KL between the normalized rows of `p` and `q`, in float64. Return None if the kernel does not support them
    (derivatives, other dtypes), if a row is not a distribution, or if its sum differs from 1 by more than `tolerance`.
    """
    if not (
        serves(p, q)
        and p.dtype in (torch.float32, torch.float64)
        and p.dim() > 0
        and not (torch.is_grad_enabled() and (p.requires_grad or q.requires_grad))
        and unpack_dual(p).tangent is unpack_dual(q).tangent is None
    ):
        return None
    rows = p.shape[:-1]
    shape = rows.numel(), p.shape[-1]
    values = torch.empty(shape[0], dtype=torch.float64, device="cpu")
    torch.ops.kullback.kl_of_weights.default(
        p.reshape(shape).contiguous(), q.reshape(shape).contiguous(), tolerance, values
    )
    return values.view(rows) if bool((values >= 0).all()) else None
