"""Divergences of rows of logits over all classes. The first backend that supports a divergence and its logits computes
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kullback.common.inputs import can_inspect_all, recordable
from kullback.generators import Divergence
from kullback.kernels import reference
from kullback.kernels.backends import backend_for
from kullback.kernels.native import native_rows
from kullback.kernels.overlap import may_overlap_itself
from kullback.kernels.reference import RowDivergence
from kullback.kernels.row_operation import (
    Evaluation,
    Gradients,
    RowTotal,
    RowValueFunction,
    TotalOperation,
    Wanted,
    Weights,
    differentiable_backward,
    is_differentiated_in_graph,
    open_transforms,
    overwritten,
)
from kullback.kernels.triton import triton_rows
from kullback.representations import Representation


@dataclass(slots=True, eq=False)
class FastRows(TotalOperation):
    """The row operation of a divergence whose values and gradients a backend computes.

    The reference computes the derivatives in forward mode and the gradients that are differentiated again.
    """

    rows: RowDivergence
    backend: Any  # an entry of `BACKENDS`
    weights: Weights = None
    scale: float = 1.0
    inplace: bool = False  # whether the gradient of a total overwrites Q

    def compute(self, p: Tensor, q: Tensor) -> tuple[Tensor]:
        return (_values_by(self.backend, self.rows, p, q),)

    def total(self, tensors: Any, wanted: Wanted) -> tuple[Tensor, Gradients]:
        return self.backend.weighted_total(self.rows, *tensors, self.weights, wanted, self.scale)

    def gradients(self, tensors: Any, kept: Any, grad: Tensor, wanted: Wanted, is_plain: bool) -> Gradients:
        if not is_plain:
            return self.rows.gradients(tensors, kept, grad, wanted, is_plain)
        p, q = tensors
        inplace = self.inplace and not may_overlap_itself(q)
        _, by_p, by_q = self.backend.value_and_gradient(self.rows, p, q, grad, wanted, inplace)
        return by_p, overwritten(q) if inplace else by_q

    def changes(self, tensors: Any, tangents: Gradients) -> Tensor:
        return self.rows.changes(tensors, tangents)


def row_divergence(
    kind: Divergence,
    p: Representation,
    q: Representation,
    *,
    dtype: torch.dtype | None = None,
    exact: bool = False,
) -> Tensor:
    """Return the divergence of each pair of rows, which broadcast, in `dtype` (by default the promoted dtype). If
    `exact`, the reference computes even logits, in float64.
    """
    weights_p, weights_q = p.weights(), q.weights()
    if dtype is None:
        dtypes = [x.dtype for x in (weights_p, weights_q) if x.is_floating_point()]
        dtype = torch.promote_types(dtypes[0], dtypes[-1]) if dtypes else torch.get_default_dtype()
    rows = RowDivergence(kind, dtype=dtype, p_in_logs=p.in_logs, q_in_logs=q.in_logs)
    return logit_divergence(rows, weights_p, weights_q, exact=exact or not (p.in_logs and q.in_logs))


def logit_divergence(rows: RowDivergence, p: Tensor, q: Tensor, *, exact: bool = False) -> Tensor:
    """Return the divergence of each row of two tensors of logits that broadcast; if `exact`, by the reference."""
    # In a small batch, each operation takes a noticeable part of the time. Therefore operations that change nothing are
    # skipped.
    shape = p.shape
    if shape != q.shape:
        p, q = torch.broadcast_tensors(p, q)
        shape = p.shape
    is_matrix = len(shape) == 2
    if not is_matrix:
        p, q = (x.reshape(shape[:-1].numel(), shape[-1]) for x in (p, q))
    tensors = (p, q) if rows.labels is None else (p, q, rows.labels.classes)
    # A later backward pass or forward-mode differentiation may need derivatives.
    is_recorded = torch.is_grad_enabled() and (p.requires_grad or q.requires_grad)
    is_recorded = is_recorded or forward_ad._current_level >= 0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if exact:
        backend = reference
    elif can_inspect_all(tensors):
        backend = backend_for(rows.kind, p, q)
    else:
        # In a compiled graph, the reference has derivatives of every order, and the GPU kernel has none.
        is_plain = (
            torch.compiler.is_compiling() and not is_recorded and not open_transforms("Grad", "Jvp", "Vmap")
        )
        backend = triton_rows if is_plain and triton_rows.serves(rows.kind, p, q) else reference
    if backend is reference:
        values = reference.row_divergence(rows, p, q)
    elif is_recorded:
        values = RowValueFunction.apply(FastRows(rows, backend), p, q)
    else:
        values = _values_by(backend, rows, p, q)
    return values if is_matrix else values.reshape(shape[:-1])


def _values_by(backend: Any, rows: RowDivergence, p: Tensor, q: Tensor) -> Tensor:
    if backend is native_rows:
        return native_rows.row_values(rows, p, q)
    return backend.value_and_gradient(rows, p, q, None, (False, False))[0].to(rows.dtype)


def value_and_gradient(
    rows: RowDivergence, p: Tensor, q: Tensor, weights: Weights, wanted: Wanted, inplace: bool = False
) -> Evaluation:
    """Return the values of rows, in float32 or better, and the wanted gradients of their weighted sum, in the dtypes of
    the logits. The logits, shape (n, classes), are read once, and overwritten by the gradients if `inplace`.
    """
    return backend_for(rows.kind, p, q).value_and_gradient(rows, p, q, weights, wanted, inplace)


def weighted_total(
    rows: RowDivergence, p: Tensor, q: Tensor, weights: Weights, *, scale: float = 1.0, inplace: bool = False
) -> Tensor:
    """Return `scale` times the weighted sum of the rows' values in the dtype of `rows`, float32 or float64,
    differentiable by `p` and `q`. A row of weight 0 contributes 0, even if it contains NaN. If `inplace`, the backward
    pass overwrites `q`.
    """
    is_constant = weights is None or not weights.requires_grad
    tensors = [p, q]
    if weights is not None:
        tensors.append(weights)
    if rows.labels is not None:
        tensors.append(rows.labels.classes)
    is_early = not inplace and torch.float16 not in (p.dtype, q.dtype)
    if is_constant and can_inspect_all(tensors):
        operation = FastRows(rows, backend_for(rows.kind, p, q), weights, scale, inplace)
        if not is_early:
            p, q = recordable(p), recordable(q)
        return RowTotal.apply(operation, is_early and torch.is_grad_enabled(), p, q)
    if (
        is_constant
        and torch.compiler.is_compiling()
        and not is_differentiated_in_graph()
        and torch.float16 not in (p.dtype, q.dtype)
    ):
        for backend in (native_rows, triton_rows):
            if backend.serves(rows.kind, p, q):
                operation = FastRows(rows, backend, weights, scale)
                return _CompiledTotal.apply(operation, (p.requires_grad, q.requires_grad), p, q)
    values = logit_divergence(rows, recordable(p), recordable(q))
    if weights is not None:
        values = torch.where(weights == 0, 0, values) * weights.to(rows.dtype)
    return (values * scale).sum()


class _CompiledTotal(torch.autograd.Function):
    """The total for torch.compile. The forward pass computes the first derivatives, the only ones that it has."""

    @staticmethod
    def forward(ctx: Any, operation: FastRows, wanted: tuple[bool, bool], p: Tensor, q: Tensor) -> Tensor:
        total, gradients = operation.total((p, q), wanted)
        ctx.save_for_backward(p, q, *gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        p, q, *gradients = ctx.saved_tensors
        multiply = torch.ops.kullback.first_derivative.default
        with differentiable_backward():
            return None, None, *(None if x is None else multiply(x, grads[0], p, q) for x in gradients)
