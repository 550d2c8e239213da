"""The backends: implementations of the divergences of rows of logits.

A backend is a module, or another object, that has these attributes:

* ``serves(kind, p, q)``: whether the backend computes this divergence of these logits,
* ``value_and_gradient`` and ``weighted_total``, as `kullback.kernels.reference` defines them,
* ``NAME``, ``SUMMARY``, ``DTYPES``, ``OPERATIONS`` and ``devices()``, which describe the backend,
* ``missing()``: the reason why the backend cannot run in this process, or None if the backend can run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kullback.common.extra_arguments import by_name
from kullback.generators import Divergence
from kullback.kernels import reference
from kullback.kernels.native import native_rows
from kullback.kernels.triton import triton_rows

# The backends in the order of preference. The last backend, the reference, computes every divergence of any logits.
BACKENDS: list[Any] = [native_rows, triton_rows, reference]


def backend_for(kind: Divergence, p: Tensor, q: Tensor) -> Any:
    """Return the first backend in `BACKENDS` that supports the divergence `kind` and the logits `p` and `q`."""
    for backend in BACKENDS:
        if backend.serves(kind, p, q):
            return backend
    return reference


@dataclass(frozen=True)
class Backend:
    """One implementation of the kernels.

    Attributes:
        name: the name of the implementation.
        available: whether the implementation runs in this process.
        reason: why the implementation cannot run; if it can run, a description that includes the dtypes of its
            arithmetic.
        devices: the kinds of device that the implementation runs on in this process.
        dtypes: the supported dtypes of inputs.
        operations: the operations that the implementation computes.
    """

    name: str
    available: bool
    reason: str
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    operations: tuple[str, ...]


@by_name()
def backends() -> list[Backend]:
    """List the implementations of the kernels, in the order of preference.

    Returns:
        one `Backend` for each implementation. If an implementation cannot run, its `reason` explains why.

    Example:
        >>> import kullback
        >>> [(backend.name, "cpu" in backend.devices) for backend in kullback.backends() if backend.available]
        [...('reference', True)]
    """
    return [_described(backend) for backend in BACKENDS]


def _described(backend: Any) -> Backend:
    reason = backend.missing()
    if reason is not None:
        return Backend(backend.NAME, False, reason, (), (), ())
    dtypes = tuple(str(dtype).removeprefix("torch.") for dtype in backend.DTYPES)
    return Backend(backend.NAME, True, backend.SUMMARY, backend.devices(), dtypes, backend.OPERATIONS)
