"""How rows become divergences: interchangeable implementations of the same operations."""

from __future__ import annotations

import torch
from torch import Tensor

from kullback.generators import Divergence
from kullback.kernels import native, reference
from kullback.kernels.reference import Rows, finite_pair, rounding_error
from kullback.representations import Representation

__all__ = ["finite_pair", "rounding_error", "row_divergence", "value_and_gradient"]


def row_divergence(
    kind: Divergence,
    p: Representation,
    q: Representation,
    *,
    dtype: torch.dtype | None = None,
    temperature: float = 1.0,
    exact: bool = False,
) -> Tensor:
    """Return the divergence of `kind` for each pair of rows of `p` and `q`, differentiable by both.

    Arguments:
        kind: the divergence.
        p: P; its batch broadcasts with that of `q`, and the classes are as many.
        q: Q.
        dtype: of the result; left out, that of the arguments.
        temperature: what logits and log-probabilities are divided by before they are normalised.
        exact: compute in float64 whatever the dtype of the logits, which the fast kernels do not.
    """
    weights_p, weights_q = p.weights(), q.weights()
    if dtype is None:
        dtypes = [x.dtype for x in (weights_p, weights_q) if x.is_floating_point()]
        dtype = torch.promote_types(dtypes[0], dtypes[-1]) if dtypes else torch.get_default_dtype()
    weights_p, weights_q = torch.broadcast_tensors(weights_p, weights_q)
    batch_shape = weights_p.shape[:-1]
    shape = batch_shape.numel(), weights_p.shape[-1]
    flat_p, flat_q = weights_p.reshape(shape), weights_q.reshape(shape)
    rows = Rows(p.in_logs, q.in_logs, temperature)
    is_native = not exact and p.in_logs and q.in_logs and native.serves(kind, flat_p, flat_q)
    backend = native if is_native else reference
    return backend.row_divergence(kind, flat_p, flat_q, rows, dtype).reshape(batch_shape)


def value_and_gradient(
    kind: Divergence,
    p: Tensor,
    q: Tensor,
    weights: Tensor | None,
    *,
    wanted: tuple[bool, bool],
    temperature: float = 1.0,
    inplace: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the divergence of each row of logits together with the gradient of their weighted sum.

    For callers that know the weights of the rows beforehand: it reads the logits once. Not differentiable itself.

    Arguments:
        kind: the divergence.
        p: the logits of P, shape (n, classes).
        q: the logits of Q, shape (n, classes).
        weights: what each row's value is multiplied by in the sum, shape (n,); None for 1.
        wanted: whether to return the gradient by the logits of P, and by those of Q.
        temperature: what the logits are divided by.
        inplace: let the gradients overwrite `p` and `q`.

    Returns:
        the values, shape (n,), in float32 or better, and the two gradients in the dtypes of the logits.
    """
    backend = native if native.serves(kind, p, q) else reference
    return backend.value_and_gradient(
        kind, p, q, weights, wanted=wanted, temperature=temperature, inplace=inplace
    )
