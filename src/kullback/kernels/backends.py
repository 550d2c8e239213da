"""The implementations of the kernels, and the reason why one cannot run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kullback.kernels.native import library, rows as native_rows
from kullback.kernels.triton import rows as triton_rows

__all__ = ["Backend", "backends"]

_KINDS = "KL, ReverseKL, Jeffreys, JensenShannon, SkewKL, TotalVariation"
_POWERS = "Alpha, ChiSquared, Renyi, SquaredHellinger"


@dataclass(frozen=True)
class Backend:
    """One implementation of the kernels.

    Attributes:
        name: its name.
        available: whether it runs in this process.
        reason: why it cannot run; if it can, a description with the dtypes it computes in.
        devices: the kinds of device that it runs on in this process.
        dtypes: the dtypes of inputs that it supports.
        operations: the operations that it computes.
    """

    name: str
    available: bool
    reason: str
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    operations: tuple[str, ...]


def backends() -> list[Backend]:
    """List the implementations of the kernels, the reference last.

    Returns:
        one `Backend` for each implementation; `reason` explains why one cannot run.

    Example:
        >>> import kullback
        >>> [(backend.name, "cpu" in backend.devices) for backend in kullback.backends() if backend.available]
        [...('reference', True)]
    """
    return [_triton(), _native(), _reference()]


def _reference() -> Backend:
    return Backend(
        name="reference",
        available=True,
        reason="plain torch: any device; computes in float64 (float32 on mps, which has no float64)",
        devices=_devices(),
        dtypes=("float64", "float32", "float16", "bfloat16", "integers (counts)"),
        operations=("every divergence", "first and further derivatives"),
    )


def _native() -> Backend:
    reason = library.missing()
    return Backend(
        name="native",
        available=reason is None,
        reason=reason
        or "C++ of this install; computes in float32 (float64 for float64 logits) and sums in float64",
        devices=("cpu",) if reason is None else (),
        dtypes=tuple(str(dtype).removeprefix("torch.") for dtype in native_rows.DTYPES)
        if reason is None
        else (),
        operations=(
            f"{_KINDS}, {_POWERS} of logits",
            "first derivatives",
            "terms of kl_div",
            "KL of probabilities",
            "closed forms",
        )
        if reason is None
        else (),
    )


def _triton() -> Backend:
    reason = triton_rows.missing()
    return Backend(
        name="triton",
        available=reason is None,
        reason=reason or "for GPUs; computes in float32 and sums in float64",
        devices=triton_rows.devices() if reason is None else (),
        dtypes=tuple(str(dtype).removeprefix("torch.") for dtype in triton_rows.DTYPES)
        if reason is None
        else (),
        operations=(f"{_KINDS} of logits", "first derivatives") if reason is None else (),
    )


def _devices() -> tuple[str, ...]:
    """Return the kinds of device that torch finds."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)
