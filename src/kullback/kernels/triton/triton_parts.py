"""Divergences of rows on GPUs from some of the classes, whose peaks and sums over all classes are known. The functions
do the same as the functions of `native_rows` with the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import cast

import torch
from torch import Tensor

from kullback.generators import Divergence
from kullback.kernels.codes import DivergenceCode
from kullback.kernels.kernel_arguments import Arguments, arguments_of
from kullback.kernels.overlap import may_overlap
from kullback.kernels.reference import RowDivergence
from kullback.kernels.row_operation import Weights
from kullback.kernels.triton import triton_rows


def serves(kind: Divergence, p: Tensor, q: Tensor) -> bool:
    """Return whether the kernels support these rows. Powers may need a sweep in float64, which is missing."""
    return (
        triton_rows.serves(kind, p, q) and cast(Arguments, arguments_of(kind)).code <= DivergenceCode.MIXTURE
    )


def values_of_part(rows: RowDivergence, p: Tensor, q: Tensor, whole: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of `native_rows.values_of_part`."""
    values = torch.empty(p.shape[0], dtype=torch.float64, device=p.device)
    sums = torch.empty(p.shape[0], 6, dtype=torch.float64, device=p.device)
    if len(values):
        program = _program(rows, p, q)
        with torch.cuda.device_of(p):
            _kernels().part_values_kernel[(len(values),)](
                p,
                q,
                whole.contiguous(),
                values,
                sums,
                *p.stride(),
                *q.stride(),
                *program.numbers,
                **program.constants,
            )
    return values.unsqueeze(-1), sums[:, :3], sums[:, 3:]


def gradients_of_part(
    rows: RowDivergence,
    p: Tensor,
    q: Tensor,
    whole: Tensor,
    weights: Weights,
    results: Sequence[Tensor | None],
) -> None:
    """Write the results of `native_rows.gradients_of_part` to `results`."""
    if not len(p):
        return
    written = [
        torch.empty(x.shape, dtype=x.dtype, device=x.device) if x is not None and may_overlap(x, other) else x
        for x, other in zip(results, (q, p), strict=True)
    ]
    # The kernel does not write a gradient that is not wanted, so any valid pointer can take its place.
    outs = [y if x is None else x for x, y in zip(written, (p, q), strict=True)]
    strides = [stride for x in (p, q, *outs) for stride in x.stride()]
    program = _program(rows, p, q)
    with torch.cuda.device_of(p):
        _kernels().part_gradients_kernel[(len(p),)](
            p,
            q,
            whole.contiguous(),
            whole if weights is None else weights.to(torch.float64).contiguous(),
            *outs,
            *strides,
            *program.numbers,
            WEIGHTED=weights is not None,
            WANT_P=written[0] is not None,
            WANT_Q=written[1] is not None,
            **program.constants,
        )
    for result, x in zip(results, written, strict=True):
        if result is not None and x is not None and x is not result:
            result.copy_(x)


def _program(rows: RowDivergence, p: Tensor, q: Tensor) -> triton_rows.Program:
    code, numbers, _ = cast(Arguments, arguments_of(rows.kind))
    return triton_rows.program_of(p, q, code, numbers, rows.temperature)


def _kernels() -> ModuleType:
    from kullback.kernels.triton import part_kernel

    return part_kernel
