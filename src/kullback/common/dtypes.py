"""The dtypes of kullback's computations, and numbers in strict JSON."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["accurate_dtype", "json_safe", "tensor_of", "upcast"]


def accurate_dtype(device: torch.device) -> torch.dtype:
    """Return the most accurate dtype of a device: float64, or float32 on Apple GPUs, which lack float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def tensor_of(x: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Convert to a tensor and a dtype; a tensor stays on its device, and numbers go to the CPU.

    `torch.as_tensor` would move both to the default device, which can differ from the device of the data.

    Example:
        >>> with torch.device("meta"):
        ...     tensor_of(0.5).device
        device(type='cpu')
    """
    if isinstance(x, Tensor):
        return x if dtype is None else x.to(dtype)
    return torch.as_tensor(x, dtype=dtype, device="cpu")


def upcast(x: Tensor) -> Tensor:
    """Convert a tensor to the most accurate dtype of its device.

    Example:
        >>> upcast(torch.tensor(1, dtype=torch.bfloat16)).dtype
        torch.float64
    """
    if x.dtype == torch.float64:
        return x
    return (
        x.float() if x.device.type == "mps" else x.double()
    )  # as `accurate_dtype`, without the cost of a call


def json_safe(value: Any) -> Any:
    """Replace NaN and infinities by strings and tuples by lists, at any depth.

    Example:
        >>> json_safe({"value": (1.5, float("inf"))})
        {'value': [1.5, 'Infinity']}
    """
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
