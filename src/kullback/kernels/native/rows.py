"""The kernels in C++ for the CPU: one sweep for the statistics of a row, one for its value and gradient.

They take logits of float64, float32, bfloat16 or float16, also mixed, with any strides; they compute in float64 where
a side is float64, else in float32, summing in float64. The library is built from csrc/ when kullback is installed with
``KULLBACK_NATIVE=1``; without it the reference serves.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from kullback.generators import Divergence
from kullback.kernels.divergence_codes import has_numbers, numbers
from kullback.kernels.reference import Rows
from kullback.kernels.row_autograd import FusedRowDivergence

__all__ = ["DTYPES", "missing", "row_divergence", "serves", "value_and_gradient", "weighted_total"]

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_LIBRARY = Path(__file__).with_name("_native.so")


@cache
def missing() -> str | None:
    """Load the library; say why that cannot be, or return None."""
    if not _LIBRARY.exists():
        return "not built: this is a pure Python install (KULLBACK_NATIVE=1 pip install builds it)"
    try:
        torch.ops.load_library(_LIBRARY)
    except OSError as error:
        return f"the library does not load: {error}"
    # All it returns it writes to its arguments: there is nothing to say about shapes.
    torch.library.register_fake("kullback::value_and_gradient")(lambda *_: None)
    return None


def _is_there() -> bool:
    return missing() is None


# torch.compile runs a function with this mark once, while it traces (see kullback.reduction).
_is_there._dynamo_marked_constant = True  # noqa: SLF001  # pyright: ignore[reportFunctionMemberAccess]


def serves(kind: Divergence, p: Tensor, q: Tensor) -> bool:
    """Tell whether these kernels take rows of logits like these."""
    return (
        p.is_cpu
        and q.is_cpu
        and p.dtype in DTYPES
        and q.dtype in DTYPES
        and has_numbers(kind)
        and _is_there()
    )


def row_divergence(kind: Divergence, p: Tensor, q: Tensor, rows: Rows, dtype: torch.dtype) -> Tensor:
    """Return the divergence of `kind` for each pair of rows of two (n, classes) tensors of logits."""
    return FusedRowDivergence.apply(p, q, sys.modules[__name__], kind, rows, dtype)


def value_and_gradient(
    kind: Divergence,
    p: Tensor,
    q: Tensor,
    weights: Tensor | None,
    *,
    wanted: tuple[bool, bool],
    temperature: float,
    inplace: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the divergence of each row of logits, and the gradient of their weighted sum by the sides wanted."""
    values = torch.empty(p.shape[0], dtype=torch.float64)
    gradients = [
        (x if inplace and x.stride(1) == 1 else torch.empty(x.shape, dtype=x.dtype)) if want else None
        for x, want in zip((p, q), wanted, strict=True)
    ]
    _run(p, q, _in_float64(weights), kind, temperature, 1.0, values, None, *gradients)
    for x, gradient in zip((p, q), gradients, strict=True):
        if inplace and gradient is not None and gradient is not x:
            x.copy_(gradient)
    return values, gradients[0], gradients[1]


def weighted_total(
    kind: Divergence,
    p: Tensor,
    q: Tensor,
    weights: Tensor | None,
    *,
    wanted: tuple[bool, bool],
    temperature: float,
    scale: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return `scale` times the weighted sum of the rows' divergences, and its gradient by the sides wanted."""
    by_p = torch.empty(p.shape, dtype=p.dtype) if wanted[0] else None
    by_q = torch.empty(q.shape, dtype=q.dtype) if wanted[1] else None
    total = torch.empty((), dtype=dtype)
    _run(p, q, _in_float64(weights), kind, temperature, scale, None, total, by_p, by_q)
    return total, by_p, by_q


def _run(
    p: Tensor,
    q: Tensor,
    weights: Tensor | None,
    kind: Divergence,
    temperature: float,
    scale: float,
    *results: Tensor | None,
) -> None:
    torch.ops.kullback.value_and_gradient(p, q, weights, *numbers(kind), temperature, scale, *results)


def _in_float64(weights: Tensor | None) -> Tensor | None:
    return None if weights is None else weights.to(torch.float64).contiguous()
