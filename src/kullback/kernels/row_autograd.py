"""The divergence of rows by a compiled backend, differentiable in all orders."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kullback.generators import Divergence
from kullback.kernels import reference
from kullback.kernels.reference import Rows
from kullback.representations import can_inspect

__all__ = ["FusedRowDivergence"]


class FusedRowDivergence(torch.autograd.Function):
    """Value and first derivative from the backend's `value_and_gradient`; all else as the reference's function does it.

    Context and forward are not separate, as torch.func would need, since that costs a fifth of a small call: tensors
    that torch.func wraps go to the reference.
    """

    @staticmethod
    def forward(
        ctx: Any, p: Tensor, q: Tensor, backend: ModuleType, kind: Divergence, rows: Rows, dtype: torch.dtype
    ) -> Tensor:
        ctx.backend, ctx.kind, ctx.rows, ctx.dtype = backend, kind, rows, dtype
        ctx.save_for_backward(p, q)
        ctx.save_for_forward(p, q)
        nothing = (False, False)
        values = backend.value_and_gradient(
            kind, p, q, None, wanted=nothing, temperature=rows.temperature, inplace=False
        )
        return values[0].to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[:2]
        p, q = ctx.saved_tensors
        (grad,), rows = grads, ctx.rows
        if torch.is_grad_enabled() or not can_inspect(grad):  # somebody differentiates again, or in batches
            by_p, by_q = reference.row_gradients(ctx.kind, p, q, rows, grad, wanted)
        else:
            _, by_p, by_q = ctx.backend.value_and_gradient(
                ctx.kind, p, q, grad, wanted=wanted, temperature=rows.temperature, inplace=False
            )
        return by_p, by_q, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        p, q = ctx.saved_tensors
        return reference.row_changes(ctx.kind, p, q, ctx.rows, tangents[:2]).to(ctx.dtype)
