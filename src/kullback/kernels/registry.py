"""Which implementations of the kernels there are here, and where one cannot run, why."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Backend", "backends"]


@dataclass(frozen=True)
class Backend:
    """One implementation of the kernels.

    Attributes:
        name: what it is called.
        available: whether it runs in this process.
        reason: why it does or does not, in words.
        devices: the kinds of device it runs on here.
        dtypes: the dtypes it takes; what it computes in stands in `reason`.
        operations: what it computes.
    """

    name: str
    available: bool
    reason: str
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    operations: tuple[str, ...]


def backends() -> list[Backend]:
    """List the implementations of the kernels, the one that is tried first at the head.

    Returns:
        one `Backend` for each; those that cannot run here say why.

    Example:
        >>> import kullback
        >>> [(backend.name, "cpu" in backend.devices) for backend in kullback.backends() if backend.available]
        [('reference', True)]
    """
    return [_missing("triton"), _missing("native"), _reference()]


def _reference() -> Backend:
    return Backend(
        name="reference",
        available=True,
        reason="plain torch: any device; computes in float64 (float32 on mps, which has no float64)",
        devices=_devices(),
        dtypes=("float64", "float32", "float16", "bfloat16", "integers (counts)"),
        operations=("every divergence", "first and further derivatives"),
    )


def _missing(name: str) -> Backend:
    return Backend(
        name, available=False, reason="not part of this version", devices=(), dtypes=(), operations=()
    )


def _devices() -> tuple[str, ...]:
    """The kinds of device that this torch finds."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)
