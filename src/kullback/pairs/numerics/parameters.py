"""Read the parameters of distributions that the user passed, in float64, and find which tensors need derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributions import Categorical, Distribution, OneHotCategorical
from torch.distributions.utils import probs_to_logits

from kullback.common.dtypes import upcast
from kullback.common.inputs import can_inspect
from kullback.common.special import safe_log
from kullback.pairs.density_overrides import overrides_density

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
MATRICES = ("scale_tril", "covariance_matrix", "precision_matrix")
"""The matrix parameters of a MultivariateNormal or Wishart, in the order of `MatrixKind`."""

# _PARTS are the names of the attributes that store the inner distributions of torch's distributions.
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
    """Return whether two tensors of the parameter `name` have equal elements.

    Under `torch.compile(..., fullgraph=True)` the result is True, and the compiled graph checks the equality when it
    runs. Without fullgraph, `torch.compile` breaks the graph to compare the values.
    """
    if a is b:
        return True
    if torch.compiler.is_compiling():
        if not is_whole_graph():
            return outside_of_graphs(are_equal)(a, b)
        torch._assert_async(  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
            (a == b).all(),
            f"kl_divergence: different {name} have no closed form, and a graph cannot choose another rule. Write: "
            "torch.compile(...) without fullgraph=True, or make the call outside of the graph",
        )
        return True
    if is_batched(a) or is_batched(b):  # values inside a vmap cannot be read
        return False
    return are_equal(a, b)


def are_equal(a: Tensor, b: Tensor) -> bool:
    """Return whether all elements of two tensors are equal; this reads the values."""
    return bool((a == b).all())


def outside_of_graphs(function: FunctionT) -> FunctionT:
    """Return `function`; while `torch.compile` traces, return a wrapper that runs `function` between two graphs."""
    if not torch.compiler.is_compiling():
        return function
    return cast(FunctionT, torch.compiler.disable(function))  # pyright: ignore[reportUnknownMemberType]


def is_whole_graph() -> bool:
    """Return whether `torch.compile` must not break its graph (fullgraph=True); torch has no public query for this."""
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        translator = InstructionTranslator.current_tx()
        return bool(translator.one_graph or translator.error_on_graph_break)
    except (ImportError, AttributeError):
        return True


# With this attribute, torch.compile evaluates the function only once, during tracing (see kullback.losses.reduction).
is_whole_graph._dynamo_marked_constant = True  # noqa: SLF001  # pyright: ignore[reportFunctionMemberAccess]


def is_transformed() -> bool:
    """Return whether the call is inside a transform of torch.func, such as vmap."""
    return _functorch.peek_interpreter_stack() is not None


def is_tracked(x: Tensor) -> bool:
    """Return whether this tensor may need a derivative in backward mode, in forward mode or in torch.func."""
    if x.requires_grad or _functorch.peek_interpreter_stack() is not None:
        return True
    return forward_ad._current_level >= 0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def is_batched(x: Tensor) -> bool:
    """Return whether a tensor represents a batch of `torch.func.vmap`, at any level of nested transforms."""
    while _functorch.is_functorch_wrapped_tensor(x):
        if _functorch.is_batchedtensor(x):
            return True
        x = _functorch.get_unwrapped(x)
    return False


def is_differentiated(x: Tensor) -> bool:
    """Return whether a derivative with respect to this tensor is computed, also inside transforms of torch.func."""
    if torch.compiler.is_compiling():
        return x.requires_grad
    while True:
        if x.requires_grad:
            return True
        is_forward = forward_ad._current_level >= 0 and not _functorch.is_batchedtensor(x)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if is_forward and forward_ad.unpack_dual(x).tangent is not None:
            return True
        if not _functorch.is_functorch_wrapped_tensor(x):
            return False
        x = _functorch.get_unwrapped(x)


def dtype_of(*distributions: Distribution) -> torch.dtype:
    """Return the common dtype of the parameters of distributions, after type promotion."""
    dtype: torch.dtype | None = None
    is_compiling = torch.compiler.is_compiling()
    waiting = list(distributions)
    while waiting:
        distribution = waiting.pop()
        for value in _attributes_by_name(distribution) if is_compiling else vars(distribution).values():
            if isinstance(value, Distribution):
                waiting.append(value)
            elif isinstance(value, Tensor) and value.is_floating_point():
                dtype = value.dtype if dtype is None else torch.promote_types(dtype, value.dtype)
    return dtype or torch.get_default_dtype()


def _attributes_by_name(distribution: Distribution) -> list[object]:
    """Return the values of the attributes with known names: torch 2.10 does not compile a loop over all attributes."""
    attributes = vars(distribution)
    names = (*distribution.arg_constraints, *_PARTS)
    return [attributes[name] for name in names if name in attributes] or list(attributes.values())


def first_given(distribution: Distribution, names: tuple[str, ...]) -> str | None:
    """Return the name in `names` whose attribute was set first, at construction; None if no attribute was set.

    Attributes that torch computes on demand are set later.
    """
    attributes = vars(distribution)
    if torch.compiler.is_compiling():  # torch 2.10 compiles a loop over names, not over attributes
        present = [name for name in names if name in attributes]
        if len(present) <= 1:
            return present[0] if present else None
    return next((name for name in attributes if name in names), None)


def matrix_of(d: Distribution) -> str | None:
    """Return the name of the matrix parameter that the user passed; None without a matrix parameter."""
    return first_given(d, MATRICES)


def batch_shape_of(p: Distribution, q: Distribution) -> torch.Size:
    """Return the broadcast batch shape of two distributions."""
    if p.batch_shape == q.batch_shape:
        return torch.Size(p.batch_shape)
    return torch.broadcast_shapes(p.batch_shape, q.batch_shape)


def given_logits(distribution: Distribution) -> bool:
    """Return whether a distribution was made from logits. Torch then derives probabilities, which lose digits."""
    attributes = vars(distribution)
    probs, logits = attributes.get("probs"), attributes.get("logits")
    if probs is None or logits is None:
        return first_given(distribution, ("probs", "logits")) == "logits"
    if "_param" in attributes and attributes["_param"] is not logits:
        return False
    if "_param" in attributes and not can_inspect(probs):  # torch 2.10 compiles no loop over attributes
        return True
    # torch's `expand` sets the logits after the probs, even if the logits were derived from clamped probabilities.
    first = first_given(distribution, ("probs", "logits"))
    if first == "logits" or not can_inspect(probs):
        return first == "logits"
    # Attributes that torch computes on demand come after the attributes that the constructor or `expand` set.
    names = list(attributes)
    if names.index("logits") > names.index("_batch_shape"):
        return False
    is_binary = "_num_events" not in attributes
    return not torch.equal(logits, probs_to_logits(probs, is_binary=is_binary))


def categorical_of(d: object) -> Categorical | None:
    """Return a Categorical itself, or the Categorical inside a OneHotCategorical; None for anything else.

    The result is also None for a distribution of a class that overrides `log_prob`.
    """
    if isinstance(d, Distribution) and overrides_density(d):
        return None
    part = vars(d).get("_categorical") if isinstance(d, OneHotCategorical) else d
    return part if isinstance(part, Categorical) else None


def log_probs_of(d: Categorical) -> Tensor:
    """Return the log-probabilities of the classes, shape (..., classes)."""
    if given_logits(d):
        return upcast(d.logits).log_softmax(-1)
    probs = upcast(d.probs)  # in float32, the sum of probs differs from 1 by rounding
    return safe_log(probs) - torch.log(probs.sum(-1, keepdim=True))
