"""Divergences of rows of logits in C++. A first sweep over a row computes its normalization, and a second sweep
computes its value and gradient.

The logits of P and of Q may be float64, float32, bfloat16 or float16, with any strides, and their dtypes may differ.
The kernels compute in float64 if P or Q is in float64, else in float32. Sums are always in float64.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from kullback.generators import KL, Divergence
from kullback.kernels.kernel_arguments import Arguments, arguments_of
from kullback.kernels.native import library
from kullback.kernels.overlap import may_overlap
from kullback.kernels.reference import RowDivergence
from kullback.kernels.row_operation import Evaluation, Gradients, Wanted, Weights

NAME = "native"
SUMMARY = "C++ of this install; computes in float32 (float64 for float64 logits) and sums in float64"
OPERATIONS = (
    "KL, ReverseKL, Jeffreys, JensenShannon, SkewKL, TotalVariation of logits",
    "Alpha, ChiSquared, Renyi, SquaredHellinger of logits",
    *("first derivatives", "terms of kl_div", "KL of probabilities", "closed forms"),
)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def devices() -> tuple[str, ...]:
    """Return the types of device on which the kernels run."""
    return ("cpu",)


missing = library.missing


def serves(kind: Divergence, p: Tensor, q: Tensor) -> bool:
    """Return whether these kernels support the divergence `kind` and the logits `p` and `q`."""
    return (
        p.is_cpu
        and q.is_cpu
        and p.dtype in DTYPES
        and q.dtype in DTYPES
        and arguments_of(kind) is not None
        and library.is_available()
    )


def row_values(rows: RowDivergence, p: Tensor, q: Tensor) -> Tensor:
    """Return the value of each row of logits, shape (rows,), in the dtype of `rows`."""
    if rows.labels is not None:
        return value_and_gradient(rows, p, q, None, (False, False))[0].to(rows.dtype)
    # The operator returns float32 or float64. Values of half precision are rounded from float64.
    dtype = torch.float32 if rows.dtype is torch.float32 else torch.float64
    if type(rows.kind) is KL and rows.temperature == 1:  # not passing the operator's defaults saves time
        values = torch.ops.kullback.row_values.default(p, q, dtype)
    else:
        code, numbers, swapped = cast(Arguments, arguments_of(rows.kind))
        sides = (q, p) if swapped else (p, q)
        values = torch.ops.kullback.row_values.default(*sides, dtype, (code, *numbers, rows.temperature))
    return values if rows.dtype is dtype else values.to(rows.dtype)


def value_and_gradient(
    rows: RowDivergence, p: Tensor, q: Tensor, weights: Weights, wanted: Wanted, inplace: bool = False
) -> Evaluation:
    """Return the value of each row of logits, and the wanted gradients of the weighted sum of the values."""
    values = torch.empty(p.shape[0], dtype=torch.float64, device="cpu")
    gradients: list[Tensor | None] = [None, None]
    for i, x in enumerate((p, q)):
        if wanted[i]:
            overwrites = inplace and x.stride(1) == 1
            gradients[i] = x if overwrites else torch.empty(x.shape, dtype=x.dtype, device="cpu")
    _run(rows, p, q, weights, 1.0, values, None, *gradients)
    for x, gradient in zip((p, q), gradients, strict=True):
        if inplace and gradient is not None and gradient is not x:
            x.copy_(gradient)
    return values, gradients[0], gradients[1]


def weighted_total(
    rows: RowDivergence, p: Tensor, q: Tensor, weights: Weights, wanted: Wanted, scale: float
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:
    """Return `scale` times the weighted sum of the rows' values, and the wanted gradients of this total."""
    by_p = torch.empty(p.shape, dtype=p.dtype, device="cpu") if wanted[0] else None
    by_q = torch.empty(q.shape, dtype=q.dtype, device="cpu") if wanted[1] else None
    total = torch.empty((), dtype=rows.dtype, device="cpu")
    _run(rows, p, q, weights, scale, None, total, by_p, by_q)
    return total, (by_p, by_q)


def values_of_part(rows: RowDivergence, p: Tensor, q: Tensor, whole: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sums of the terms over these classes, shape (rows, 1), and the `PartSums` of P and of Q, shape (rows,
    3). Each row of `whole` is a `WholeRow` of all ranks' classes (csrc/logits/task.h); its own `PartSums` are ignored.
    """
    values = torch.empty(p.shape[0], dtype=torch.float64, device="cpu")
    sums = torch.empty(p.shape[0], 6, dtype=torch.float64, device="cpu")
    _run(rows, p, q, None, 1.0, values, None, None, None, whole=whole, sums=sums)
    sides = sums[:, :3], sums[:, 3:]
    is_swapped = cast(Arguments, arguments_of(rows.kind)).swapped
    return values.unsqueeze(-1), sides[is_swapped], sides[not is_swapped]


def gradients_of_part(
    rows: RowDivergence, p: Tensor, q: Tensor, whole: Tensor, weights: Weights, results: Gradients
) -> None:
    """Write the gradients by the logits of some classes to `results`, in float64 or the logits' dtype. The result for
    one side may be that side's logits, or share memory with the other side's.
    """
    written = [
        x
        if x is None or (x.stride(1) == 1 and not may_overlap(x, other))
        else torch.empty(x.shape, dtype=x.dtype, device="cpu")
        for x, other in zip(results, (q, p), strict=True)
    ]
    _run(rows, p, q, weights, 1.0, None, None, *written, whole=whole)
    for result, x in zip(results, written, strict=True):
        if result is not None and x is not None and x is not result:
            result.copy_(x)


def _run(
    rows: RowDivergence,
    p: Tensor,
    q: Tensor,
    weights: Weights,
    scale: float,
    *results: Tensor | None,
    whole: Tensor | None = None,
    sums: Tensor | None = None,
) -> None:
    """Call the operator, which writes the `results`: the values, the total, P's gradient and Q's gradient."""
    labels = rows.labels
    code, numbers, swapped = cast(Arguments, arguments_of(rows.kind))
    if swapped:
        p, q, results = q, p, (*results[:2], *results[:1:-1])
        whole = None if whole is None else whole.roll(5, -1)
    if weights is not None:
        weights = weights.to(torch.float64).contiguous()
    classes, soft, hard = (None, 1.0, 0.0) if labels is None else (labels.classes.contiguous(), *labels[1:])
    torch.ops.kullback.value_and_gradient.default(
        p,
        q,
        weights,
        code,
        *numbers,
        rows.temperature,
        scale,
        classes,
        swapped,
        soft,
        hard,
        *results,
        whole,
        sums,
    )
