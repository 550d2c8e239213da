"""Divergences of rows by a compiled backend, and their weighted sum; both have derivatives of all orders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kullback.errors import invalid_value
from kullback.generators import Divergence
from kullback.kernels import reference
from kullback.kernels.labels import HardLabels
from kullback.kernels.overlap import may_overlap_itself
from kullback.kernels.reference import Rows
from kullback.numeric import accurate_dtype
from kullback.representations import can_inspect

__all__ = ["CompiledTotal", "FusedRowDivergence", "TotalTask", "WeightedTotal", "scaled_by"]


class FusedRowDivergence(torch.autograd.Function):
    """Value and first derivative from the backend's `value_and_gradient`; other derivatives from the reference.

    `forward` sets up the context itself, because a separate `setup_context` costs a fifth of a small call. torch.func
    needs `setup_context`, so tensors that torch.func wraps go to the reference.
    """

    @staticmethod
    def forward(
        ctx: Any,
        p: Tensor,
        q: Tensor,
        backend: ModuleType,
        kind: Divergence,
        temperature: float,
        dtype: torch.dtype,
        labels: HardLabels | None = None,
    ) -> Tensor:
        ctx.backend, ctx.kind, ctx.temperature, ctx.dtype = backend, kind, temperature, dtype
        ctx.labels = labels
        ctx.save_for_backward(p, q)
        ctx.save_for_forward(p, q)
        no_gradients = (False, False)
        values = backend.value_and_gradient(
            kind, p, q, None, wanted=no_gradients, temperature=temperature, inplace=False, labels=labels
        )
        return values[0].to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[:2]
        p, q = ctx.saved_tensors
        (grad,) = grads
        if torch.is_grad_enabled() or not can_inspect(grad):  # double backward, or batched gradients
            rows = Rows(temperature=ctx.temperature)
            by_p, by_q = reference.row_gradients(ctx.kind, p, q, rows, grad, wanted, ctx.labels)
        else:
            _, by_p, by_q = ctx.backend.value_and_gradient(
                ctx.kind,
                p,
                q,
                grad,
                wanted=wanted,
                temperature=ctx.temperature,
                inplace=False,
                labels=ctx.labels,
            )
        return by_p, by_q, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        p, q = ctx.saved_tensors
        rows = Rows(temperature=ctx.temperature)
        return reference.row_changes(ctx.kind, p, q, rows, tangents[:2], ctx.labels).to(ctx.dtype)


class TotalTask(NamedTuple):
    """Settings of a weighted total. Weights are constants, and a row of weight 0 contributes 0."""

    weights: Tensor | None
    backend: ModuleType
    kind: Divergence
    temperature: float
    scale: float
    dtype: torch.dtype
    inplace: bool
    # Whether the forward pass computes the gradient. The gradient is then rounded before loss scaling multiplies it, so
    # this is False in float16, where loss scaling prevents underflow.
    is_early: bool
    labels: HardLabels | None = None

    def compute(
        self, p: Tensor, q: Tensor, wanted: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the total and its requested gradients."""
        return self.backend.weighted_total(
            self.kind,
            p,
            q,
            self.weights,
            wanted=wanted,
            temperature=self.temperature,
            scale=self.scale,
            dtype=self.dtype,
            labels=self.labels,
        )

    def row_weights(self, rows: Tensor, factor: Tensor | float) -> Tensor:
        """Return the weight of each row's divergence in `factor` times the total."""
        # The gradient may belong to a side with a more accurate dtype than `rows`.
        dtype = accurate_dtype(rows.device)
        weights = (
            rows.new_ones(rows.shape[0], dtype=dtype) if self.weights is None else self.weights.to(dtype)
        )
        return weights * (factor * self.scale)


class WeightedTotal(torch.autograd.Function):
    """The total. If a gradient will be needed, the forward pass computes it in the same sweep over the rows.

    The context stores the gradient until the first backward pass. A second, a differentiated or a batched backward pass
    computes the gradient from the logits.
    """

    @staticmethod
    def forward(ctx: Any, p: Tensor, q: Tensor, task: TotalTask, recorded: bool) -> Tensor:
        ctx.task = task
        # Autograd cannot save tensors of torch.inference_mode. The gradient computed below does not need them.
        ctx.save_for_backward(None if p.is_inference() else p, None if q.is_inference() else q)
        ctx.save_for_forward(p, q)
        wanted = ctx.needs_input_grad[:2] if recorded and task.is_early else (False, False)
        total, *gradients = task.compute(p, q, wanted)
        ctx.gradients = gradients if any(wanted) else None
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), ready = grads, ctx.gradients
        if ready is not None and not torch.is_grad_enabled() and can_inspect(grad):
            ctx.gradients = None
            return *scaled_by(grad, ready), None, None
        task: TotalTask = ctx.task
        p, q = ctx.saved_tensors
        if p is None or q is None:
            raise invalid_value(
                "backward",
                "teacher",
                wanted="logits that can be saved, for a gradient of the gradient or a second backward pass",
                got="a tensor of torch.inference_mode",
                instead="torch.no_grad() in place of torch.inference_mode(), or teacher.clone()",
            )
        scaled = task.row_weights(q, grad)
        wanted = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled() or not can_inspect(grad):
            rows = Rows(temperature=task.temperature)
            return *reference.row_gradients(task.kind, p, q, rows, scaled, wanted, task.labels), None, None
        inplace = task.inplace and not may_overlap_itself(q)
        _, by_p, by_q = task.backend.value_and_gradient(
            task.kind,
            p,
            q,
            scaled,
            wanted=wanted,
            temperature=task.temperature,
            inplace=inplace,
            labels=task.labels,
        )
        if inplace:  # raise autograd's version counter, so that other users of the logits get an error
            torch.autograd.graph.increment_version(q)
            by_q = q.detach()
        return by_p, by_q, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        task: TotalTask = ctx.task
        p, q = ctx.saved_tensors
        rows = Rows(temperature=task.temperature)
        changes = reference.row_changes(task.kind, p, q, rows, tangents[:2], task.labels)
        scaled = task.row_weights(q, 1.0)
        return torch.where(scaled == 0, 0, scaled * changes).sum().to(task.dtype)


class CompiledTotal(torch.autograd.Function):
    """The total for torch.compile: first derivatives only, always computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, q: Tensor, task: TotalTask, wanted: tuple[bool, bool]) -> Tensor:
        total, by_p, by_q = task.compute(p, q, wanted)
        ctx.save_for_backward(by_p, by_q)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        by_p, by_q = ctx.saved_tensors
        (grad,) = grads
        return None if by_p is None else by_p * grad, None if by_q is None else by_q * grad, None, None


def scaled_by(factor: Tensor, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Multiply gradients in place by a number; a factor of 0 gives 0, also where a gradient is infinite."""
    number = factor.item() if factor.is_cpu else math.nan
    if number == 1:
        return list(gradients)
    if number == 0:
        return [x if x is None else x.zero_() for x in gradients]
    return [x if x is None else x.mul_(factor) for x in gradients]
