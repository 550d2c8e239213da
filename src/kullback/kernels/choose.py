"""Choose the implementation that computes the divergences of rows: native, Triton or the reference."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kullback.generators import Divergence
from kullback.inputs import recordable
from kullback.kernels import reference
from kullback.kernels.labels import HardLabels
from kullback.kernels.native import rows as native_rows
from kullback.kernels.reference import Rows
from kullback.kernels.row_autograd import CompiledTotal, FusedRowDivergence, TotalTask, WeightedTotal
from kullback.kernels.triton import rows as triton_rows
from kullback.representations import Representation, can_inspect_all

__all__ = ["logit_divergence", "row_divergence", "value_and_gradient", "weighted_total"]


def row_divergence(
    kind: Divergence,
    p: Representation,
    q: Representation,
    *,
    dtype: torch.dtype | None = None,
    temperature: float = 1.0,
    exact: bool = False,
    labels: HardLabels | None = None,
) -> Tensor:
    """Return the divergence of `kind` for each pair of rows of `p` and `q`, differentiable by both.

    Arguments:
        kind: the divergence.
        p: P. The batch shapes of `p` and `q` broadcast; the numbers of classes are equal.
        q: Q.
        dtype: the dtype of the result; if omitted, the promoted dtype of the arguments.
        temperature: the divisor of logits and log-probabilities before normalization.
        exact: compute in float64 for logits of any dtype, which the fast kernels do not.
        labels: the labels of the rows, in their order; their cross-entropy is mixed with the divergences.
    """
    weights_p, weights_q = p.weights(), q.weights()
    if dtype is None:
        dtypes = [x.dtype for x in (weights_p, weights_q) if x.is_floating_point()]
        dtype = torch.promote_types(dtypes[0], dtypes[-1]) if dtypes else torch.get_default_dtype()
    rows = Rows(p.in_logs, q.in_logs, temperature)
    return _divergence_of_rows(kind, weights_p, weights_q, rows, dtype, labels, exact)


def logit_divergence(
    kind: Divergence,
    p: Tensor,
    q: Tensor,
    *,
    dtype: torch.dtype,
    temperature: float = 1.0,
    labels: HardLabels | None = None,
) -> Tensor:
    """Return `row_divergence` of logits that have already been checked."""
    return _divergence_of_rows(kind, p, q, Rows(temperature=temperature), dtype, labels)


def _divergence_of_rows(
    kind: Divergence,
    weights_p: Tensor,
    weights_q: Tensor,
    rows: Rows,
    dtype: torch.dtype,
    labels: HardLabels | None,
    exact: bool = False,
) -> Tensor:
    # In a small batch every operation costs time, so operations that change nothing are skipped.
    if weights_p.shape != weights_q.shape:
        weights_p, weights_q = torch.broadcast_tensors(weights_p, weights_q)
    batch_shape = weights_p.shape[:-1]
    if weights_p.ndim != 2:
        shape = batch_shape.numel(), weights_p.shape[-1]
        weights_p, weights_q = weights_p.reshape(shape), weights_q.reshape(shape)
    tensors = (weights_p, weights_q) if labels is None else (weights_p, weights_q, labels.classes)
    fast = rows.p_in_logs and rows.q_in_logs and not exact and can_inspect_all(tensors)
    backend = _backend(kind, weights_p, weights_q) if fast else reference
    if backend is reference:
        values = reference.row_divergence(kind, weights_p, weights_q, rows, dtype)
        if labels is not None:
            values = labels.mixed(values, weights_q)
    elif _is_recorded(weights_p, weights_q):
        values = FusedRowDivergence.apply(
            weights_p, weights_q, backend, kind, rows.temperature, dtype, labels
        )
    else:
        no_gradients = (False, False)
        values = backend.value_and_gradient(
            kind,
            weights_p,
            weights_q,
            None,
            wanted=no_gradients,
            temperature=rows.temperature,
            inplace=False,
            labels=labels,
        )[0].to(dtype)
    return values if len(batch_shape) == 1 else values.reshape(batch_shape)


def value_and_gradient(
    kind: Divergence,
    p: Tensor,
    q: Tensor,
    weights: Tensor | None,
    *,
    wanted: tuple[bool, bool],
    temperature: float = 1.0,
    inplace: bool = False,
    labels: HardLabels | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the divergence of each row of logits together with the gradient of their weighted sum.

    Use it when the row weights are known in advance: it reads the logits once. The result is not differentiable.

    Arguments:
        kind: the divergence.
        p: the logits of P, shape (n, classes).
        q: the logits of Q, shape (n, classes).
        weights: the weight of each row in the sum, shape (n,); None means 1.
        wanted: whether to return the gradient with respect to P's logits, and with respect to Q's logits.
        temperature: the divisor of the logits.
        inplace: let the gradients overwrite `p` and `q`.
        labels: the labels of the rows; their cross-entropy is mixed with the divergences.

    Returns:
        the values, shape (n,), in float32 or better, and the two gradients in the dtypes of the logits.
    """
    return _backend(kind, p, q).value_and_gradient(
        kind, p, q, weights, wanted=wanted, temperature=temperature, inplace=inplace, labels=labels
    )


def weighted_total(
    kind: Divergence,
    p: Tensor,
    q: Tensor,
    weights: Tensor | None,
    *,
    dtype: torch.dtype,
    temperature: float = 1.0,
    scale: float = 1.0,
    inplace: bool = False,
    labels: HardLabels | None = None,
) -> Tensor:
    """Return `scale` times the weighted sum of the divergences of rows of logits, differentiable by both sides.

    Arguments:
        kind: the divergence.
        p: the logits of P, shape (n, classes).
        q: the logits of Q, shape (n, classes).
        weights: the weight of each row, shape (n,); None means 1. A row of weight 0 contributes 0, even if it
            contains inf or NaN.
        dtype: the dtype of the result, float32 or float64.
        temperature: the divisor of the logits.
        scale: the factor of the sum.
        inplace: let the backward pass overwrite `q` with its gradient.
        labels: the labels of the rows; their cross-entropy is mixed with the divergences.
    """
    is_constant = weights is None or not weights.requires_grad
    tensors = [p, q]
    if weights is not None:
        tensors.append(weights)
    if labels is not None:
        tensors.append(labels.classes)
    is_early = not inplace and torch.float16 not in (p.dtype, q.dtype)
    if is_constant and can_inspect_all(tensors):
        backend = _backend(kind, p, q)
        task = TotalTask(weights, backend, kind, temperature, scale, dtype, inplace, is_early, labels)
        if not is_early:
            p, q = recordable(p), recordable(q)
        return WeightedTotal.apply(p, q, task, torch.is_grad_enabled())
    if (
        is_constant
        and torch.compiler.is_compiling()
        and torch.float16 not in (p.dtype, q.dtype)
        and native_rows.serves(kind, p, q)
    ):
        task = TotalTask(weights, native_rows, kind, temperature, scale, dtype, inplace, is_early, labels)
        return CompiledTotal.apply(p, q, task, (p.requires_grad, q.requires_grad))
    p, q = recordable(p), recordable(q)
    values = logit_divergence(kind, p, q, dtype=dtype, temperature=temperature, labels=labels)
    if weights is not None:
        values = torch.where(weights == 0, 0, values) * weights.to(dtype)
    return (values * scale).sum()


def _is_recorded(p: Tensor, q: Tensor) -> bool:
    """Return whether a derivative may be needed, by a later backward pass or by forward-mode differentiation."""
    by_backward = torch.is_grad_enabled() and (p.requires_grad or q.requires_grad)
    return by_backward or forward_ad._current_level >= 0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _backend(kind: Divergence, p: Tensor, q: Tensor) -> ModuleType:
    if native_rows.serves(kind, p, q):
        return native_rows
    return triton_rows if triton_rows.serves(kind, p, q) else reference
