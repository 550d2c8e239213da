"""How the parameters of distributions are read: in float64, from what the user gave."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributions import Categorical, Distribution, OneHotCategorical
from torch.distributions.utils import probs_to_logits

from kullback.numeric import upcast
from kullback.pairs.overrides import overrides_density
from kullback.representations import can_inspect
from kullback.special import safe_log

__all__ = [
    "all_equal",
    "batch_shape_of",
    "categorical_of",
    "dtype_of",
    "first_given",
    "given_logits",
    "is_batched",
    "is_differentiated",
    "is_tracked",
    "is_transformed",
    "log_probs_of",
]

# Where torch's distributions keep others that they are made from.
_PARTS = (
    "base_dist",
    "_categorical",
    "_component_distribution",
    "_mixture_distribution",
    "_gamma",
    "_normal",
)

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


def is_tracked(x: Tensor) -> bool:
    """Tell whether a derivative by this tensor may be wanted: by a backward pass, a forward one or torch.func."""
    return x.requires_grad or is_transformed() or forward_ad._current_level >= 0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def is_batched(x: Tensor) -> bool:
    """Tell whether a tensor stands for a batch of `torch.func.vmap`, on whatever level of transforms."""
    while _functorch.is_functorch_wrapped_tensor(x):
        if _functorch.is_batchedtensor(x):
            return True
        x = _functorch.get_unwrapped(x)
    return False


def is_differentiated(x: Tensor) -> bool:
    """Tell whether a derivative is taken by this very tensor, inside a transform of torch.func too."""
    if torch.compiler.is_compiling():
        return x.requires_grad
    while True:
        if x.requires_grad or (not _functorch.is_batchedtensor(x) and _has_tangent(x)):
            return True
        if not _functorch.is_functorch_wrapped_tensor(x):
            return False
        x = _functorch.get_unwrapped(x)


def _has_tangent(x: Tensor) -> bool:
    is_forward = forward_ad._current_level >= 0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return is_forward and forward_ad.unpack_dual(x).tangent is not None


def dtype_of(*distributions: Distribution) -> torch.dtype:
    """Return the dtype that the parameters of distributions promote to."""
    dtype: torch.dtype | None = None
    is_compiling = torch.compiler.is_compiling()
    waiting = list(distributions)
    while waiting:
        distribution = waiting.pop()
        for value in _known(distribution) if is_compiling else vars(distribution).values():
            if isinstance(value, Distribution):
                waiting.append(value)
            elif isinstance(value, Tensor) and value.is_floating_point():
                dtype = value.dtype if dtype is None else torch.promote_types(dtype, value.dtype)
    return dtype or torch.get_default_dtype()


def _known(distribution: Distribution) -> list[object]:
    """Return the attributes whose names are known beforehand: torch 2.10 does not compile a loop over all."""
    attributes = vars(distribution)
    names = (*distribution.arg_constraints, *_PARTS)
    return [attributes[name] for name in names if name in attributes] or list(attributes.values())


def first_given(distribution: Distribution, names: tuple[str, ...]) -> str | None:
    """Return which of these attributes a distribution got first, at its construction; others follow when asked for."""
    attributes = vars(distribution)
    if torch.compiler.is_compiling():  # torch 2.10 compiles a loop over names, not over attributes
        found = [name for name in names if name in attributes]
        if len(found) <= 1:
            return found[0] if found else None
    return next((name for name in attributes if name in names), None)


def batch_shape_of(p: Distribution, q: Distribution) -> torch.Size:
    """Return the shape that the batch shapes of two distributions broadcast to."""
    if p.batch_shape == q.batch_shape:
        return p.batch_shape
    return torch.broadcast_shapes(p.batch_shape, q.batch_shape)


def given_logits(distribution: Distribution) -> bool:
    """Tell whether a distribution was made from logits: the probabilities are then derived, and less exact."""
    attributes = vars(distribution)
    probs, logits = attributes.get("probs"), attributes.get("logits")
    if probs is None or logits is None:
        return first_given(distribution, ("probs", "logits")) == "logits"
    if "_param" in attributes and attributes["_param"] is not logits:
        return False
    if "_param" in attributes and not can_inspect(probs):  # torch 2.10 compiles no loop over attributes
        return True
    # torch's `expand` puts the logits last and takes them, also those that it clamped from probabilities.
    first = first_given(distribution, ("probs", "logits"))
    if first == "logits" or not can_inspect(probs):
        return first == "logits"
    names = list(
        attributes
    )  # what is computed on demand comes after all that the constructor or `expand` set
    if names.index("logits") > names.index("_batch_shape"):
        return False
    is_binary = "_num_events" not in attributes
    return not torch.equal(logits, probs_to_logits(probs, is_binary=is_binary))


def categorical_of(d: object) -> Categorical | None:
    """Return a Categorical, or the one that a OneHotCategorical is made of; None for anything else.

    None too for one with a `log_prob` of its own.
    """
    if isinstance(d, Distribution) and overrides_density(d):
        return None
    part = vars(d).get("_categorical") if isinstance(d, OneHotCategorical) else d
    return part if isinstance(part, Categorical) else None


def log_probs_of(d: Categorical) -> Tensor:
    """Return the log-probabilities of the classes."""
    if given_logits(d):
        return upcast(d.logits).log_softmax(-1)
    probs = upcast(d.probs)  # which sum to one but for the rounding of their dtype
    return safe_log(probs) - torch.log(probs.sum(-1, keepdim=True))
