"""The backend of the Triton kernel for GPUs. One program for each row sweeps over the classes twice, or three times for
a gradient.

The kernel supports logits of float32, bfloat16 or float16 with any strides. The kernel computes in float32, sums in
float64, and does not synchronize with the GPU. Triton is imported on first use. With ``TRITON_INTERPRET=1`` in the
environment, Triton's interpreter runs the same kernel on the CPU, slowly, for tests.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import cast

import torch
from torch import Tensor

from kullback.generators import Divergence
from kullback.kernels.codes import DivergenceCode
from kullback.kernels.kernel_arguments import Arguments, arguments_of
from kullback.kernels.reference import RowDivergence
from kullback.kernels.row_operation import Evaluation, Wanted, Weights
from kullback.kernels.triton.available import DTYPES, can_read, is_interpreted, missing
from kullback.kernels.triton.triton_sums import add_cross_entropies

__all__ = [
    "DTYPES",
    "NAME",
    "OPERATIONS",
    "SUMMARY",
    "devices",
    "missing",
    "serves",
    "value_and_gradient",
    "weighted_total",
]

NAME = "triton"
SUMMARY = "for GPUs; computes in float32 and sums in float64"
OPERATIONS = ("KL, ReverseKL, Jeffreys, JensenShannon, SkewKL, TotalVariation of logits", "first derivatives")
# The number of classes of a block that each thread processes. If a block has fewer classes than a warp can process,
# Triton gives the same class to several threads. A thread might then read a logit after another thread has overwritten
# the logit with a gradient. Therefore the smallest block fills one warp.
_CLASSES_IN_A_THREAD = 8
_THREADS_IN_A_WARP = 32
_SMALLEST_BLOCK = _CLASSES_IN_A_THREAD * _THREADS_IN_A_WARP
_LARGEST_BLOCK = 16 * _SMALLEST_BLOCK
# In the pair of a divergence, the first entry says whether the gradient with respect to P needs no sum over the row.
# The second entry says the same for Q. If only such a gradient is wanted, the sweep that computes the value also writes
# the gradient.
_EARLY = {DivergenceCode.KL: (False, True), DivergenceCode.REVERSE_KL: (True, False)}


def devices() -> tuple[str, ...]:
    """Return the types of device on which the kernel runs in this process."""
    gpu = ("cuda",) if torch.cuda.is_available() else ()
    return (*gpu, "cpu") if is_interpreted() else gpu


def serves(kind: Divergence, p: Tensor, q: Tensor) -> bool:
    """Return whether this kernel supports the divergence `kind` and the logits `p` and `q`."""
    return (
        p.device == q.device
        and can_read(p)
        and can_read(q)
        and (arguments := arguments_of(kind)) is not None
        and arguments.code <= DivergenceCode.MIXTURE
    )


def value_and_gradient(
    rows: RowDivergence, p: Tensor, q: Tensor, weights: Weights, wanted: Wanted, inplace: bool = False
) -> Evaluation:
    """Return the value of each row of logits, and the wanted gradients of the weighted sum of the values."""
    gradients = [
        (x if inplace else torch.empty(x.shape, dtype=x.dtype, device=x.device)) if want else None
        for x, want in zip((p, q), wanted, strict=True)
    ]
    values = _run(rows, p, q, _in_float64(weights), 1.0, gradients)
    return values, gradients[0], gradients[1]


def weighted_total(
    rows: RowDivergence, p: Tensor, q: Tensor, weights: Weights, wanted: Wanted, scale: float
) -> tuple[Tensor, list[Tensor | None]]:
    """Return `scale` times the weighted sum of the rows' values, and the wanted gradients of this total."""
    weights = _in_float64(weights)
    gradients = [
        torch.empty(x.shape, dtype=x.dtype, device=x.device) if want else None
        for x, want in zip((p, q), wanted, strict=True)
    ]
    values = _run(rows, p, q, weights, scale, gradients)
    if weights is not None:
        values = torch.where(weights == 0, 0, weights * values)
    return (values.sum() * scale).to(rows.dtype), gradients


def _run(
    divergence: RowDivergence,
    p: Tensor,
    q: Tensor,
    weights: Weights,
    scale: float,
    gradients: list[Tensor | None],
) -> Tensor:
    """Launch the kernel, which writes the gradients to the tensors in `gradients`. Return the values of the rows in
    float64.

    Labels need another pass over the logits and, if the gradient overwrites Q's logits, a copy of these logits.
    """
    (rows, classes), labels = p.shape, divergence.labels
    if labels is not None:
        before = q.clone() if gradients[1] is q else q
        values = _run(replace(divergence, labels=None), p, q, weights, scale * labels.soft, gradients)
        return add_cross_entropies(labels, values, before, weights, scale, gradients[1])
    values = torch.empty(rows, dtype=torch.float64, device=p.device)
    if rows == 0:
        return values
    code, (weight_p, share_p, weight_q, share_q), _ = cast(Arguments, arguments_of(divergence.kind))
    wanted = (gradients[0] is not None, gradients[1] is not None)
    # The kernel does not write a gradient that is not wanted, so any valid pointer can take its place.
    by_p, by_q = (x if gradient is None else gradient for x, gradient in zip((p, q), gradients, strict=True))
    block = min(_LARGEST_BLOCK, max(_SMALLEST_BLOCK, 1 << (classes - 1).bit_length()))  # a power of 2
    with torch.cuda.device_of(p):
        _kernel().row_kernel[(rows,)](
            p,
            q,
            values if weights is None else weights,
            values,
            by_p,
            by_q,
            *(stride for x in (p, q, by_p, by_q) for stride in x.stride()),
            classes,
            1 / divergence.temperature,
            scale / divergence.temperature,
            *(weight_p, share_p, 1 - share_p, weight_q, share_q, 1 - share_q),
            KIND=code,
            WEIGHTED=weights is not None,
            WANT_P=wanted[0],
            WANT_Q=wanted[1],
            EARLY=wanted == _EARLY.get(DivergenceCode(code)),
            BLOCK=block,
            num_warps=block // _SMALLEST_BLOCK,
            # The kernel itself fuses products and sums (`tl.fma`), in the same way for P and Q, so the compiler must
            # not fuse them.
            enable_fp_fusion=False,
        )
    return values


def _in_float64(weights: Weights) -> Tensor | None:
    return None if weights is None else weights.to(torch.float64).contiguous()


def _kernel() -> ModuleType:
    from kullback.kernels.triton import kernel

    return kernel
