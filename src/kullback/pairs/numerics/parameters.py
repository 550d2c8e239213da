"""How the parameters of distributions are read: in float64, from what the user gave."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

__all__ = ["all_equal", "batch_shape_of", "dtype_of", "given_logits", "is_transformed"]

_functorch = getattr(torch._C, "_functorch")  # noqa: B009, SLF001  # pyright: ignore[reportPrivateUsage]


def all_equal(a: Tensor, b: Tensor, name: str) -> bool:
    """Tell whether a parameter of both agrees throughout; a graph that is being compiled is checked when it runs."""
    equal = (a == b).all()
    if torch.compiler.is_compiling():
        torch._assert_async(equal, f"different {name} have no closed form")  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        return True
    return bool(equal)


def is_transformed() -> bool:
    """Tell whether this runs inside a transform of torch.func, such as vmap."""
    return _functorch.peek_interpreter_stack() is not None


def dtype_of(*distributions: Distribution) -> torch.dtype:
    """Return the dtype that the parameters of distributions promote to."""
    dtype: torch.dtype | None = None
    for distribution in distributions:
        for value in vars(distribution).values():
            if isinstance(value, Distribution):
                found = dtype_of(value)
            elif isinstance(value, Tensor) and value.is_floating_point():
                found = value.dtype
            else:
                continue
            dtype = found if dtype is None or dtype == found else torch.promote_types(dtype, found)
    return dtype or torch.get_default_dtype()


def batch_shape_of(p: Distribution, q: Distribution) -> torch.Size:
    """Return the shape that the batch shapes of two distributions broadcast to."""
    if p.batch_shape == q.batch_shape:
        return p.batch_shape
    return torch.broadcast_shapes(p.batch_shape, q.batch_shape)


def given_logits(distribution: Distribution) -> bool:
    """Tell whether a distribution was made from logits: the probabilities are then derived, and less exact."""
    attributes = vars(distribution)
    if "_param" in attributes:
        return attributes["_param"] is attributes.get("logits")
    return next((name for name in attributes if name in ("probs", "logits")), "probs") == "logits"
