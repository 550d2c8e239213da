"""Conversion of arrays, lists and labeled counts to tensors, and checks of tensors and numbers."""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from kullback.errors import invalid_type, invalid_value

# The names of torch below are private, because no public function detects the batched tensors of vmap and of batched
# gradients.
_functorch = getattr(torch._C, "_functorch")  # noqa: B009, SLF001  # pyright: ignore[reportPrivateUsage]
_is_wrapped: Callable[[Tensor], bool] = _functorch.is_functorch_wrapped_tensor
_dispatch_mode: Callable[[Any], Any] = torch._C._get_dispatch_mode  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
_PROXY = torch._C._TorchDispatchModeKey.PROXY  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
_is_legacy_batch: Callable[[Tensor], bool] = _functorch.is_legacy_batchedtensor

_PLAIN = (Tensor, torch.nn.Parameter)
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def as_tensor(call: str, argument: str, x: object) -> Tensor:
    """Return `x` as a tensor, or raise an error whose message names `call`."""
    if isinstance(x, Tensor):
        return dense(call, argument, x)
    x = unmasked(call, argument, x)
    try:
        is_series = hasattr(x, "to_numpy") and not hasattr(x, "columns")  # a table has columns
        numbers = array_of(x) if is_series else x
        return torch.as_tensor(_sharable(numbers) if isinstance(numbers, np.ndarray) else numbers)
    except (TypeError, ValueError, RuntimeError, LookupError) as error:  # a table raises LookupError
        made = tensor_remedy(argument, x, floating=False) or "torch.tensor(...)"
        wanted, got = "a tensor, a NumPy array or nested lists of numbers", f"{type(x).__name__} ({error})"
        instead = f"{call}({made if argument == 'x' else f'{argument}={made}'})"
        raise invalid_type(call, argument, wanted=wanted, got=got, instead=instead) from None


def array_of(x: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the values of a Series or an Arrow array as a NumPy array; missing values of Arrow become NaN or None."""
    if not type(x).__module__.startswith("pyarrow."):
        return x.to_numpy()
    if hasattr(x.type, "index_type"):  # an array of categories, which Arrow stores as indexes
        x = x.cast(x.type.value_type)
    return x.to_numpy(zero_copy_only=False)


def unmasked(call: str, argument: str, x: object) -> object:
    """Return a masked array as a plain array, and other objects unchanged; raise if an entry is masked."""
    name = argument
    if isinstance(x, list | tuple) and any(
        isinstance(row, np.ma.MaskedArray) for row in cast("list[Any]", x)
    ):
        x, name = np.ma.stack(x), f"numpy.ma.stack({argument})"
    if not isinstance(x, np.ma.MaskedArray):
        return x
    array = cast("np.ma.MaskedArray[Any, Any]", x)
    mask = np.ma.getmaskarray(array)
    if not mask.any():
        return array.data
    index = tuple(int(i) for i in np.argwhere(mask)[0])
    wanted = "an array without masked entries"
    got = f"{int(mask.sum())} masked of {mask.size}, the first at index {index}"
    raise invalid_value(call, argument, wanted=wanted, got=got, instead=_mask_remedy(call, name, mask))


def _mask_remedy(call: str, name: str, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> str:
    """Return the remedies for a masked array, as text: fill classes that have no mass, or leave masked entries out."""
    in_logs = call in ("Logits", "LogProbs")
    if not in_logs and call not in ("Counts", "Probs"):
        return f"{name}.compressed() without these entries, or {name}.filled(value)"
    to_normalize = "Logits" if in_logs else "Counts"
    readings: list[str] = []
    if not mask.all(-1).any():
        nothing = "-math.inf" if in_logs else "0"
        readings.append(f"{to_normalize}({name}.filled({nothing})) if the masked classes have no mass")
    if mask.ndim == 1:
        readings.append(f"{to_normalize}({name}.compressed()) to leave them out, on both sides")
    elif not mask.any(-1).all():
        readings.append(f"{call}({name}[~{name}.mask.any(-1)]) to leave these rows out, on both sides")
    elif mask.ndim == 2 and not mask.any(0).all():
        readings.append(
            f"{to_normalize}({name}[:, ~{name}.mask.any(0)]) to leave these classes out, on both sides"
        )
    return "; ".join(readings) or f"{call}(...) of the entries that are not masked"


def _sharable(x: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return `x` if a tensor can share its memory, or a writable copy with native byte order and positive strides."""
    if not x.dtype.isnative:
        return x.astype(x.dtype.newbyteorder("="))
    return x if x.flags.writeable and min(x.strides, default=0) >= 0 else x.copy()


def tensor_bytes(x: Tensor) -> Any:
    """Return the memory of a tensor, in the form that a digest takes."""
    return x.detach().cpu().reshape(-1).view(torch.uint8).numpy()


def number_from(x: object) -> float:
    """Return a real number as a float, and NaN for any other object; NaN fails every range check.

    A tensor gives NaN, because a float would lose the gradient of the tensor. True gives NaN and not 1.
    """
    if type(x) is float:
        return x
    try:
        return float(x) if isinstance(x, Real) and not isinstance(x, bool) else math.nan
    except OverflowError:  # an integer out of the range of floats
        return math.nan


def whole_from(x: object) -> int | None:
    """Return an integer of Python or NumPy as an int; None for any other object, including True."""
    if type(x) is int:
        return x
    # None must not reach the `try` statement: every compiled loss passes None, and torch 2.11 cannot compile a `try`
    # statement that raises an error.
    if x is None or isinstance(x, bool) or (isinstance(x, Tensor) and x.dtype == torch.bool):
        return None
    try:
        return operator.index(cast("Any", x))
    except (TypeError, ValueError, RuntimeError):  # torch raises RuntimeError for a tensor without values
        return None


def tensor_remedy(name: str, x: object, *, floating: bool) -> str | None:
    """Return the source text of an expression that converts `x`, called `name`, to a tensor; None if none exists.

    If `floating` is True, the tensor must be floating-point.
    """
    if hasattr(x, "to_numpy") or isinstance(x, np.ndarray):
        return _array_remedy(name, x, floating=floating)
    if not isinstance(x, list | tuple | float):
        return None
    parts = cast("list[object]", list(x)) if isinstance(x, list | tuple) else []
    tensors = [part for part in parts if isinstance(part, Tensor)]
    # `generate` of Hugging Face models returns its scores as a tuple of tensors. The remedy for such a tuple is
    # `torch.stack`.
    if tensors and len(tensors) == len(parts):
        first = tensors[0]
        alike = all(part.shape == first.shape and part.device == first.device for part in tensors)
        cast_too = floating and not all(part.is_floating_point() for part in tensors)
        return f"torch.stack(tuple({name})){'.float()' if cast_too else ''}" if alike else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a list of arrays is slow
            tensor = torch.tensor(x)
    except (TypeError, ValueError, RuntimeError):
        return None
    return _made(name, tensor, floating=floating)


def _array_remedy(name: str, x: object, *, floating: bool) -> str | None:
    """Return the source text of an expression that converts the array or Series `x`, called `name`, to a tensor.

    If `x` is not numeric, return None. If `floating` is True, the tensor must be floating-point.
    """
    try:
        array = x if isinstance(x, np.ndarray) else array_of(x)
    except (TypeError, ValueError):
        return None
    name = name if array is x else f"{name}.to_numpy()"
    steps: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("", lambda: array),
        (".copy()", array.copy),  # This conversion handles negative strides.
        # The next conversion handles objects, long doubles and foreign byte orders.
        (".astype('float64')", lambda: array.astype("float64")),
    )
    for step, change in steps:
        try:
            return _made(f"{name}{step}", torch.tensor(change()), floating=floating)
        except (TypeError, ValueError, RuntimeError):
            continue
    return None


def _made(name: str, tensor: Tensor, *, floating: bool) -> str | None:
    """Return the source text of a call that makes `tensor` from the object called `name`.

    If `floating`, the new tensor is floating-point, and the result is None for complex numbers.
    """
    if floating and tensor.is_complex():
        return None
    dtype = ", dtype=torch.float32" if floating and not tensor.is_floating_point() else ""
    return f"torch.tensor({name}{dtype})"


def dense(call: str, argument: str, x: Tensor) -> Tensor:
    """Return `x`, or a copy if autograd cannot save `x`; raise unless `x` is dense."""
    check_dense(call, argument, x)
    return recordable(x)


def recordable(x: Tensor) -> Tensor:
    """Return `x`, or a copy if `x` was made under ``torch.inference_mode`` and autograd may record operations.

    Autograd refuses to save a tensor of inference mode, because a change of this tensor before the backward pass would
    go undetected.
    """
    if torch.compiler.is_compiling() or not x.is_inference():
        return x
    return x.clone() if torch.is_grad_enabled() and not torch.is_inference_mode_enabled() else x


def all_recordable(tensors: Iterable[Any]) -> list[Any]:
    """Return the list of `recordable(x)` for each tensor `x`; entries that are None stay None."""
    if torch.compiler.is_compiling():
        return list(tensors)
    recorded = list(tensors)
    for place, x in enumerate(recorded):
        if x is not None and x.is_inference():
            recorded[place] = recordable(x)
    return recorded


def check_dense(call: str, argument: str, x: Tensor) -> None:
    """Raise unless `x` is a dense tensor with a dtype that supports arithmetic."""
    if torch.compiler.is_compiling():
        return
    has_dtype = x.dtype in _FLOATS or not (x.dtype.is_floating_point or x.is_quantized)
    if type(x) in _PLAIN and x.layout is torch.strided and not x.is_nested and has_dtype:
        return
    reason = unusual(x)
    if reason is not None:
        got, instead = reason
        wanted = "a dense tensor of numbers"
        raise invalid_type(call, argument, wanted=wanted, got=got, instead=f"{argument}.{instead}")


def check_numbers(
    call: str, name: str, x: object, *, wanted: str, instead: str, whole: bool = False, nonempty: bool = False
) -> None:
    """Raise unless `x` is a dense tensor of floating-point numbers or, if `whole`, of integers. If `nonempty`, the
    last dimension must have an entry.
    """
    if isinstance(x, Tensor):
        check_dense(call, name, x)
        has_dtype = is_integer(x) if whole else x.is_floating_point()
        if has_dtype and not (nonempty and 0 in (x.ndim, *x.shape[-1:])):
            return
    raise invalid_type(call, name, wanted=wanted, got=described(x), instead=instead)


def check_alike(call: str, argument: str, x: Tensor, like: Tensor, *, wanted: str, instead: str) -> None:
    """Raise unless `x` has the shape and the device of `like`. The error names the one that differs."""
    shapes, devices = (tuple(x.shape), tuple(like.shape)), (x.device, like.device)
    for name, (of_x, of_like) in (("shape", shapes), ("device", devices)):
        if of_x != of_like:
            wanted, instead = f"{wanted}, {name} {of_like}", f"{instead}, of the same {name}"
            raise invalid_value(call, argument, wanted=wanted, got=f"{name} {of_x}", instead=instead)


def are_ordinary(tensors: Iterable[Tensor]) -> bool:
    """Return whether all tensors are dense, have real values that Python can read, and can be saved by autograd."""
    for x in tensors:
        if type(x) not in _PLAIN or x.layout is not torch.strided or x.is_nested:
            return False
        if x.dtype not in _FLOATS and (x.dtype.is_floating_point or x.is_complex() or x.is_quantized):
            return False
        if x.is_meta or x.is_inference():
            return False
    return True


def are_logits(*tensors: Any) -> bool:
    """Return whether all arguments are plain dense floating-point tensors with at least one dimension."""
    for x in tensors:
        if type(x) not in _PLAIN or x.dtype not in _FLOATS or x.layout is not torch.strided:
            return False
        if x.ndim == 0 or x.is_nested:
            return False
    return True


def unusual(x: Tensor) -> tuple[str, str] | None:
    """Return a description of `x`, and the call that makes `x` dense, both as text.

    If `x` is dense or of an unknown class, return None.
    """
    module, dtype, ways = type(x).__module__, x.dtype, "indexing or mask="
    is_stored = dtype.is_floating_point and dtype not in _FLOATS
    cases = (
        (module.startswith("torch.distributed.tensor"), "a DTensor", "full_tensor()"),
        (
            module.startswith("torch.masked"),
            "a MaskedTensor",
            f"get_data(), and leave masked rows out by {ways}",
        ),
        (x.is_nested, "a nested tensor", f"to_padded_tensor(padding), and leave the padding out by {ways}"),
        (x.is_quantized, f"a quantized tensor, dtype {dtype}", "dequantize()"),
        (x.layout is not torch.strided, f"a tensor of layout {x.layout}", "to_dense()"),
        (is_stored, f"dtype {dtype}, which does not support arithmetic", "float()"),
    )
    return next(((got, instead) for is_so, got, instead in cases if is_so), None)


def described(x: object) -> str:
    """Return the dtype and shape of a tensor, or the type of another object, as text for an error."""
    return f"dtype {x.dtype}, shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def is_integer(x: Tensor) -> bool:
    """Return whether a tensor has an integer dtype. Bool is not an integer dtype."""
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def is_fake(x: Tensor) -> bool:
    """Return whether `x` is a tensor of ``FakeTensorMode``, which has a shape but no values."""
    if type(x) in _PLAIN:
        return False
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is not None and isinstance(x, fake.FakeTensor)


def is_other_storage(x: Tensor) -> bool:
    """Return whether `x` is of a tensor subclass that implements torch's operations itself.

    Examples are the quantized weights of torchao and DTensor. Such a class may lack some operations.
    """
    if torch.compiler.is_compiling() or type(x) in _PLAIN or is_fake(x):
        return False
    hook = "__torch_dispatch__"
    return getattr(type(x), hook) is not getattr(Tensor, hook)


def can_inspect(x: Tensor) -> bool:
    """Return whether Python can read the values of `x`.

    This is impossible while torch compiles, under ``vmap``, and for a tensor without values.
    """
    return can_inspect_all((x,))


def can_inspect_all(tensors: Iterable[Tensor | None]) -> bool:
    """Return whether Python can read the values of all tensors; entries that are None are ignored."""
    if torch.compiler.is_compiling() or _dispatch_mode(_PROXY) is not None:
        return False
    for x in tensors:
        if x is None:
            continue
        if x.is_meta or (type(x) is not Tensor and is_fake(x)) or _is_wrapped(x) or _is_legacy_batch(x):
            return False
    return True


def is_traced() -> bool:
    """Return whether ``make_fx`` records the operations, as in ``torch.func.linearize``; values are then unknown."""
    return _dispatch_mode(_PROXY) is not None


def first_of(mask: Tensor) -> str:
    """Return a text about the true entries of a mask: their number, and the index of the first true entry."""
    index = tuple(int(i) for i in mask.nonzero()[0])
    return f"{int(mask.sum())} of {mask.numel()}, the first at index {index}"


def first_value(wrong: Tensor, values: Tensor, place: str = "") -> str:
    """Return a text about the entries of `values` where the mask `wrong` is true.

    The text has the first such value, its index, and the number of such values. `place` is appended to the index.
    """
    index = tuple(int(i) for i in wrong.nonzero()[0])
    count = f"the first of {int(wrong.sum())} in {wrong.numel()}"
    return f"{values[index].item():g} at index {index}{place}, {count}"
