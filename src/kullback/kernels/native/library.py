"""The library of the C++ kernels, loaded once for all operators.

``make`` builds the library from csrc/, and so does the installation of kullback on a machine with a C++ compiler.
Without the library, the reference computes everything.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch._C import _is_tracing  # pyright: ignore[reportPrivateUsage]  # torch.jit.is_tracing takes three times as long

from kullback.kernels.codes import INTERFACE
from kullback.kernels.row_operation import define_first_derivative

_LIBRARY = Path(__file__).with_name("_native.dll" if sys.platform == "win32" else "_native.so")


@cache
def missing() -> str | None:
    """Load the compiled library. Return the reason why the library cannot be used, or None if it can be used."""
    if not _LIBRARY.exists():
        return (
            "not built: this is a pure Python install; in the source folder, with a C++ compiler, "
            "KULLBACK_NATIVE=1 pip install . builds it or reports why it cannot"
        )
    try:
        torch.ops.load_library(_LIBRARY)
    except OSError as error:
        return f"the library cannot be loaded: {error}"
    if not hasattr(torch.ops.kullback, "interface") or torch.ops.kullback.interface() != INTERFACE:
        return "the library was built from other sources than this Python code (make native rebuilds it)"
    _register_shapes()
    define_first_derivative()
    return None


@cache
def _register_shapes() -> None:
    """Register the operators' shape functions for torch.compile, once: a second registration would raise."""
    for name in ("value_and_gradient", "kl_terms"):
        # These operators write all results to their arguments and return nothing, so the shape functions return None.
        torch.library.register_fake(f"kullback::{name}")(lambda *_: None)


def is_available() -> bool:
    """Return whether the operators can be called. They cannot under ``torch.jit.trace``, which stores sizes."""
    return not _is_tracing() and missing() is None


# Because of this attribute, torch.compile evaluates the function once, during tracing (see kullback.losses.reduction).
is_available._dynamo_marked_constant = True  # noqa: SLF001  # pyright: ignore[reportFunctionMemberAccess]


def empty_like(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return an empty contiguous tensor of the shape of `x`. On the CPU, it is in large pages, which are faster."""
    memory = torch.empty(x.shape, dtype=x.dtype if dtype is None else dtype, device=x.device)
    if x.is_cpu and is_available():
        torch.ops.kullback.ask_for_large_pages.default(memory)
    return memory
