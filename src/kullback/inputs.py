"""Conversion of what users pass to tensors: arrays, lists, and counts with labels."""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from numbers import Real
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from kullback.errors import invalid_type, invalid_value, safe_repr

__all__ = [
    "are_logits",
    "are_ordinary",
    "as_tensor",
    "check_callback",
    "check_confidence",
    "check_dense",
    "check_flag",
    "check_generator",
    "check_independent",
    "dense",
    "is_fake",
    "number_from",
    "recordable",
    "split_labels",
    "tensor_remedy",
    "whole_from",
]

_PLAIN = (Tensor, torch.nn.Parameter)
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def as_tensor(call: str, argument: str, x: object) -> Tensor:
    """Return `x` as a tensor; raise an error in the name of `call` where that is impossible."""
    if isinstance(x, Tensor):
        return dense(call, argument, x)
    try:
        numbers = cast("Any", x).to_numpy() if _is_series(x) else x
        return torch.as_tensor(_sharable(numbers) if isinstance(numbers, np.ndarray) else numbers)
    except (
        TypeError,
        ValueError,
        RuntimeError,
        LookupError,
    ) as error:  # the last of a table, by its columns' names
        made = tensor_remedy(argument, x, floating=False) or "torch.tensor(...)"
        raise invalid_type(
            call,
            argument,
            wanted="a tensor, a NumPy array or nested lists of numbers",
            got=f"{type(x).__name__} ({error})",
            instead=f"{call}({made if argument == 'x' else f'{argument}={made}'})",
        ) from None


def _is_series(x: object) -> bool:
    """Tell whether `x` is a column of pandas, polars or Arrow: all but tables, whose columns may be anything."""
    return hasattr(x, "to_numpy") and not hasattr(x, "columns")


def _sharable(x: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return an array or a copy that torch can share: writable, in native byte order, of no negative stride."""
    if not x.dtype.isnative:
        return x.astype(x.dtype.newbyteorder("="))
    return x if x.flags.writeable and min(x.strides, default=0) >= 0 else x.copy()


def number_from(x: object) -> float:
    """Return a real number as a float; NaN, which no check of a range passes, for whatever is none.

    A tensor is none: it may require a gradient, which a number has not. Nor is True, which would count as 1.
    """
    if type(x) is float:
        return x
    try:
        return float(x) if isinstance(x, Real) and not isinstance(x, bool) else math.nan
    except OverflowError:  # an integer beyond floats
        return math.nan


def whole_from(x: object) -> int | None:
    """Return a whole number, NumPy's too, as an int; None for whatever is none, as True is."""
    if type(x) is int:
        return x
    # None is asked for first, as it is in every compiled loss: torch 2.11 compiles no attempt that fails.
    if x is None or isinstance(x, bool) or (isinstance(x, Tensor) and x.dtype == torch.bool):
        return None
    try:
        return operator.index(cast("Any", x))
    except (TypeError, ValueError, RuntimeError):  # torch raises the last for a tensor without values
        return None


def tensor_remedy(name: str, x: object, *, floating: bool) -> str | None:
    """Return the expression that makes a tensor, maybe a floating-point one, of the data `name`; None if none does."""
    if hasattr(x, "to_numpy") or isinstance(x, np.ndarray):
        return _array_remedy(name, x, floating=floating)
    if not isinstance(x, list | tuple | float):
        return None
    parts = cast("list[object]", list(x)) if isinstance(x, list | tuple) else []
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if tensors and len(tensors) == len(parts):  # as the scores that models of Hugging Face generate with
        first = tensors[0]
        alike = all(each.shape == first.shape and each.device == first.device for each in tensors)
        cast_too = floating and not all(each.is_floating_point() for each in tensors)
        return f"torch.stack(tuple({name})){'.float()' if cast_too else ''}" if alike else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a list of arrays takes long
            found = torch.tensor(x)
    except (TypeError, ValueError, RuntimeError):
        return None
    return _made(name, found, floating=floating)


def _array_remedy(name: str, x: object, *, floating: bool) -> str | None:
    """Return the expression for an array, or for a table that makes one; None if none makes numbers of it."""
    try:
        array = x if isinstance(x, np.ndarray) else cast("Any", x).to_numpy()
    except (TypeError, ValueError):
        return None
    name = name if array is x else f"{name}.to_numpy()"
    steps: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("", lambda: array),
        (".copy()", array.copy),  # of negative strides
        (".astype('float64')", lambda: array.astype("float64")),  # objects, long floats, swapped bytes
    )
    for step, change in steps:
        try:
            return _made(f"{name}{step}", torch.tensor(change()), floating=floating)
        except (TypeError, ValueError, RuntimeError):
            continue
    return None


def _made(name: str, found: Tensor, *, floating: bool) -> str | None:
    if floating and found.is_complex():
        return None
    dtype = ", dtype=torch.float32" if floating and not found.is_floating_point() else ""
    return f"torch.tensor({name}{dtype})"


def check_confidence(call: str, confidence: object) -> None:
    """Refuse a confidence that is not strictly between 0 and 1."""
    if not 0 < number_from(confidence) < 1:
        raise invalid_value(
            call,
            "confidence",
            wanted="a number between 0 and 1",
            got=safe_repr(confidence),
            instead="confidence=0.95",
        )


def check_generator(call: str, generator: object) -> None:
    """Refuse what is neither a generator of torch's nor None."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise invalid_type(
            call,
            "generator",
            wanted="a torch.Generator or None",
            got=safe_repr(generator),
            instead="generator=torch.Generator().manual_seed(0)",
        )


def check_independent(call: str, independent: object, cluster: object) -> bool:
    """Return whether rows are said to be independent; refuse other values, and clusters beside them."""
    check_flag(call, "independent", independent)
    if independent and cluster is not None:
        raise invalid_value(
            call,
            "independent",
            wanted="independent=True or cluster=, not both",
            got="both",
            instead="cluster= alone, by which rows of different clusters are independent",
        )
    return bool(independent)


def check_callback(call: str, argument: str, function: object, instead: str) -> None:
    """Refuse what is neither a function, or the like, nor None."""
    if function is not None and not callable(function):
        raise invalid_type(
            call, argument, wanted="a function or None", got=safe_repr(function), instead=instead
        )


def check_flag(call: str, argument: str, value: object) -> None:
    """Refuse what is neither True nor False: an array has no truth value, and any other text than '' would be true."""
    if not isinstance(value, bool):
        raise invalid_type(
            call, argument, wanted="True or False", got=safe_repr(value), instead=f"{argument}=True"
        )


def dense(call: str, argument: str, x: Tensor) -> Tensor:
    """Return `x` or a copy that autograd can save; raise unless it is dense."""
    check_dense(call, argument, x)
    return recordable(x)


def recordable(x: Tensor) -> Tensor:
    """Return `x`; if it was made under ``torch.inference_mode`` and a gradient may be recorded, a copy.

    Autograd refuses to save tensors of inference mode, and nothing would notice if they changed before the backward
    pass.
    """
    if torch.compiler.is_compiling() or not x.is_inference():
        return x
    return x.clone() if torch.is_grad_enabled() and not torch.is_inference_mode_enabled() else x


def check_dense(call: str, argument: str, x: Tensor) -> None:
    """Raise unless `x` is a dense tensor of a dtype that torch computes with."""
    if torch.compiler.is_compiling() or _is_dense(x):
        return
    found = _unusual(x)
    if found is not None:
        got, instead = found
        wanted = "a dense tensor of numbers"
        raise invalid_type(call, argument, wanted=wanted, got=got, instead=f"{argument}.{instead}")


def are_ordinary(tensors: Iterable[Tensor]) -> bool:
    """Tell whether all are dense tensors of real numbers, with values, that autograd can save."""
    for x in tensors:
        if type(x) not in _PLAIN or x.layout is not torch.strided or x.is_nested:
            return False
        if x.dtype not in _FLOATS and (x.dtype.is_floating_point or x.is_complex() or x.is_quantized):
            return False
        if x.is_meta or x.is_inference():
            return False
    return True


def are_logits(*tensors: Any) -> bool:
    """Tell whether all are ordinary tensors of logits, which need no further look."""
    for x in tensors:
        if type(x) not in _PLAIN or x.dtype not in _FLOATS or x.layout is not torch.strided:
            return False
        if x.ndim == 0 or x.is_nested:
            return False
    return True


def _is_dense(x: Tensor) -> bool:
    return (
        type(x) in _PLAIN
        and x.layout is torch.strided
        and not x.is_nested
        and (x.dtype in _FLOATS or not (x.dtype.is_floating_point or x.is_quantized))
    )


def _unusual(x: Tensor) -> tuple[str, str] | None:
    """Return what `x` is and the method that makes it dense; None where it is dense or of an unknown class."""
    module, dtype = type(x).__module__, x.dtype
    found = (
        (module.startswith("torch.distributed.tensor"), "a DTensor", "full_tensor()"),
        (
            module.startswith("torch.masked"),
            "a MaskedTensor",
            "get_data(), and leave masked rows out by indexing or mask=",
        ),
        (
            x.is_nested,
            "a nested tensor",
            "to_padded_tensor(padding), and leave the padding out by indexing or mask=",
        ),
        (x.is_quantized, f"a quantized tensor, dtype {dtype}", "dequantize()"),
        (x.layout is not torch.strided, f"a tensor of layout {x.layout}", "to_dense()"),
        (
            dtype.is_floating_point and dtype not in _FLOATS,
            f"dtype {dtype}, which has no arithmetic",
            "float()",
        ),
    )
    return next(((got, instead) for is_so, got, instead in found if is_so), None)


def is_fake(x: Tensor) -> bool:
    """Tell whether `x` is a tensor of ``FakeTensorMode``, which has a shape and no values."""
    if type(x) in _PLAIN:
        return False
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is not None and isinstance(x, fake.FakeTensor)


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
