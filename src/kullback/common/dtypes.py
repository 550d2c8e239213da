"""The floating-point dtypes of computations, and conversions of tensors to these dtypes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def accurate_dtype(device: torch.device) -> torch.dtype:
    """Return the most accurate dtype of a device: float64, or float32 on Apple GPUs, which lack float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def float64_copy(x: Tensor) -> Tensor:
    """Return a copy in float64, without a gradient: on the device, or on the CPU if the device lacks float64."""
    device = x.device if accurate_dtype(x.device) == torch.float64 else "cpu"
    return x.detach().to(device, torch.float64, copy=True)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without the name of its module, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def tensor_of(x: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Return `x` as a tensor of `dtype`; a tensor stays on its device, and numbers go to the CPU.

    `torch.as_tensor` would move numbers and tensors to the default device, which can differ from the device of the
    data.

    Example:
        >>> with torch.device("meta"):
        ...     tensor_of(0.5).device
        device(type='cpu')
    """
    if isinstance(x, Tensor):
        return x if dtype is None else x.to(dtype)
    return torch.as_tensor(x, dtype=dtype, device="cpu")


def stored_step(numbers: Tensor) -> Tensor:
    """Return the distance between neighboring numbers of a dtype around each number, in float32.

    Example:
        >>> import torch
        >>> stored_step(torch.tensor([1.0, 3.0, 0.0], dtype=torch.float8_e4m3fn))
        tensor([0.1250, 0.2500, 0.0020])
    """
    limits = torch.finfo(numbers.dtype)
    exponents = torch.frexp(numbers.float().abs().clamp(min=limits.smallest_normal)).exponent - 1
    return torch.ldexp(torch.full_like(numbers, limits.eps, dtype=torch.float32), exponents)


def upcast(x: Tensor) -> Tensor:
    """Return the tensor in the most accurate dtype of its device.

    Example:
        >>> upcast(torch.tensor(1, dtype=torch.bfloat16)).dtype
        torch.float64
    """
    if x.dtype == torch.float64:
        return x
    # The result has the dtype `accurate_dtype(x.device)`; a call of that function would cost time.
    return x.float() if x.device.type == "mps" else x.double()
