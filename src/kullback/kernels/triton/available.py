"""Whether Triton's kernels can run in this process, and on which tensors."""

from __future__ import annotations

import os
from functools import cache

import torch
from torch import Tensor

from kullback.common.optional import is_installed

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def is_interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in {"1", "true", "yes", "on", "y"}


@cache
def missing() -> str | None:
    """Import Triton. Return the reason why the kernels cannot run, or None if they can run."""
    if not is_installed("triton"):
        return "not installed (pip install triton)"
    if not torch.cuda.is_available() and not is_interpreted():
        return "torch finds no GPU"
    try:
        import triton  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        return f"the kernel cannot be imported: {error}"
    return None


def can_read(x: Tensor) -> bool:
    """Return whether the kernels, if they can run, can read rows of the matrix `x`."""
    is_here = x.is_cuda or (x.is_cpu and is_interpreted())
    # The memory of a view such as `z.conj().imag` has the other sign. In a compiled graph, torch copies such views.
    if not torch.compiler.is_compiling() and x.is_neg():
        return False
    # The kernels count the classes of a row, and columns of tiles beyond it, in 32 bits.
    return is_here and x.dtype in DTYPES and 0 < x.shape[-1] < 2**31 - 2**16
