"""The dtypes in which kullback computes."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["accurate_dtype", "upcast"]


def accurate_dtype(device: torch.device) -> torch.dtype:
    """Return the most accurate dtype of a device: float64, or float32 on Apple's GPUs, which have no other."""
    return torch.float32 if device.type == "mps" else torch.float64


def upcast(x: Tensor) -> Tensor:
    """Convert a tensor to the most accurate dtype of its device.

    Example:
        >>> upcast(torch.tensor(1, dtype=torch.bfloat16)).dtype
        torch.float64
    """
    return x if x.dtype == torch.float64 else x.to(accurate_dtype(x.device))
