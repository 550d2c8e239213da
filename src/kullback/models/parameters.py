"""The number of a model's parameters, even if quantized weights are packed into fewer numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# Pairs of a layer's attributes that hold the sizes of the layer's matrix.
_SIZES = (("in_features", "out_features"), ("infeatures", "outfeatures"), ("num_embeddings", "embedding_dim"))
# The largest number of weights in one stored number. An int32 holds 16 weights of 2 bits; the rest is room for padding.
_MOST_PACKED = 32


def parameter_count(model: torch.nn.Module) -> int | None:
    """Return the number of a model's parameters; None if weights are packed in an unknown way.

    For a packed matrix (4-bit weights of bitsandbytes, GPTQ, AWQ or HQQ, or torch's own quantized layers), the sizes of
    the layer give the number.

    Example:
        >>> import torch
        >>> parameter_count(torch.nn.Linear(3, 2))
        8
    """
    counted: set[int] = set()
    total = 0
    for module in model.modules():
        matrix = _packed_matrix(module)
        if matrix is not None:
            tensors = [x for x in _own_tensors(module) if id(x) not in counted]
            counted |= {id(x) for x in tensors}
            total += matrix + _bias_size(module) if tensors or hasattr(module, "_packed_params") else 0
            continue
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in counted:
                counted.add(id(parameter))
                size = _size(parameter)
                if size is None:
                    return None
                total += size
    return total


def _packed_matrix(module: torch.nn.Module) -> int | None:
    """Return the number of entries of a layer's matrix if the matrix is packed; None for other modules."""
    named: Iterator[list[Any]] = ([getattr(module, name, None) for name in names] for names in _SIZES)
    sizes = next((pair for pair in named if all(isinstance(size, int) for size in pair)), None)
    if sizes is None:
        return None
    entries = math.prod(sizes)
    if hasattr(module, "_packed_params"):  # torch's own quantized layers
        return entries
    tensors = list(_own_tensors(module))
    if any(x.numel() == entries and x.is_floating_point() and _shape(x) is None for x in tensors):
        return None
    stored = (
        _shape(x) is not None or (not x.is_floating_point() and _MOST_PACKED * x.numel() >= entries)
        for x in tensors
    )
    return entries if any(stored) else None


def _own_tensors(module: torch.nn.Module) -> Iterator[Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def _bias_size(module: Any) -> int:
    bias = getattr(module, "bias", None)
    if isinstance(bias, Tensor):
        return bias.numel()
    # In torch's quantized layers, `bias` is a method, and the bias is zeros if the original layer had no bias.
    bias = bias() if callable(bias) else None
    return bias.numel() if isinstance(bias, Tensor) and bool(bias.any()) else 0


def _shape(x: Any) -> Any:
    """Return the original shape that bitsandbytes stores with a packed weight; None for other tensors."""
    return getattr(getattr(x, "quant_state", None), "shape", None)


def _size(parameter: Tensor) -> int | None:
    """Return the number of weights in a parameter; None if the parameter is packed in an unknown way."""
    shape = _shape(parameter)
    if shape is not None:
        return math.prod(shape)
    if parameter.dtype is getattr(torch, "float4_e2m1fn_x2", None):  # two weights in each byte
        return 2 * parameter.numel()
    if parameter.is_floating_point() or parameter.is_complex() or parameter.dtype in (torch.int8, torch.bool):
        return parameter.numel()
    return None
