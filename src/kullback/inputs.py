"""Conversion of what users pass to tensors: arrays, lists, and counts with labels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from kullback.errors import invalid_type

__all__ = ["as_tensor", "check_dense", "savable", "split_labels"]

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# What to write for tensors that are not dense, by the name of their class.
_DENSE = {
    "DTensor": "full_tensor()",
    "MaskedTensor": "to_tensor(0.0), and mask= where the call has it",
    "NestedTensor": "to_padded_tensor(0.0)",
}


def as_tensor(call: str, argument: str, x: object) -> Tensor:
    """Return `x` as a tensor; raise an error in the name of `call` where that is impossible."""
    if isinstance(x, Tensor):
        check_dense(call, argument, x)
        return x
    try:
        if isinstance(x, np.ndarray) and not x.flags.writeable:
            x = x.copy()  # a tensor must not share read-only memory
        return torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise invalid_type(
            call,
            argument,
            wanted="a tensor, a NumPy array or nested lists of numbers",
            got=f"{type(x).__name__} ({error})",
            instead=f"{call}(torch.tensor(...))",
        ) from None


def check_dense(call: str, argument: str, x: Tensor) -> None:
    """Raise for a sparse, nested, masked, quantized or distributed tensor, and for a dtype of 8 bits."""
    name = "NestedTensor" if x.is_nested else type(x).__name__
    if name in _DENSE or x.layout != torch.strided:
        got = f"a {name}" if name in _DENSE else f"layout {x.layout}"
        remedy = _DENSE.get(name, "to_dense()")
    elif x.is_quantized or (x.is_floating_point() and x.dtype not in _DTYPES):
        got = f"dtype {x.dtype}"
        remedy = "dequantize()" if x.is_quantized else "float()"
    else:
        return
    raise invalid_type(
        call,
        argument,
        wanted="a dense tensor of float64, float32, bfloat16 or float16, or of integers where those mean something",
        got=got,
        instead=f"{argument}={argument}.{remedy}",
    )


def savable(x: Tensor) -> Tensor:
    """Return a tensor that autograd can save: a copy of one that was made under `torch.inference_mode`."""
    if torch.compiler.is_compiling() or not x.is_inference() or torch.is_inference_mode_enabled():
        return x
    return x.clone()


def split_labels(x: object) -> tuple[tuple[Hashable, ...] | None, object]:
    """Split labeled counts of any supported type into labels and numbers; labels are None where there are none."""
    if isinstance(x, Mapping):
        counts = cast("Mapping[Hashable, Any]", x)
        return tuple(counts), as_tensor("Counts", "x", list(counts.values()))
    library = type(x).__module__.partition(".")[0]
    split = _LABELLED.get((library, type(x).__name__))
    return split(x) if split else (None, x)


def _split_pandas_series(series: Any) -> tuple[tuple[Hashable, ...] | None, object]:
    return tuple(series.index), series.to_numpy()


def _split_polars_series(series: Any) -> tuple[None, object]:
    if not series.dtype.is_numeric():
        raise invalid_type(
            "Counts",
            "x",
            wanted="a polars Series of counts",
            got=f"one of dtype {series.dtype}",
            instead="Counts(series.value_counts())",
        )
    return None, series.to_numpy()


def _split_polars_frame(frame: Any) -> tuple[tuple[Hashable, ...], object]:
    if frame.width != 2 or not frame.dtypes[1].is_numeric():
        raise invalid_type(
            "Counts",
            "x",
            wanted="a polars frame of two columns, label and count",
            got=f"columns {frame.schema}",
            instead="Counts(series.value_counts())",
        )
    return tuple(frame.to_series(0).to_list()), frame.to_series(1).to_numpy()


_LABELLED: dict[tuple[str, str], Callable[[Any], tuple[tuple[Hashable, ...] | None, object]]] = {
    ("pandas", "Series"): _split_pandas_series,
    ("polars", "Series"): _split_polars_series,
    ("polars", "DataFrame"): _split_polars_frame,
}
