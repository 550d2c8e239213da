"""The parameters of distributions: in float64, as the user passed them, in another unit, and which need derivatives.

Another unit is needed for parameters so large or small that their squares leave the range of float64. A divergence does
not depend on the unit. Division of parameters by a power of two is exact, and the chain rule divides the derivatives by
the same power. So a derivative overflows only if the exact derivative with respect to the user's parameter does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributions import Categorical, Distribution, MixtureSameFamily, OneHotCategorical
from torch.distributions.utils import probs_to_logits

from kullback.common.dtypes import upcast
from kullback.common.inputs import can_inspect
from kullback.common.special import safe_log
from kullback.pairs.family import FAMILIES, Units, overrides_density

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
    """Return the name in `names` set first, before attributes that torch computes on demand, or None if none is set."""
    attributes = vars(distribution)
    if torch.compiler.is_compiling():  # torch 2.10 compiles a loop over names, not over attributes
        present = [name for name in names if name in attributes]
        if len(present) <= 1:
            return present[0] if present else None
    return next((name for name in attributes if name in names), None)


def matrix_of(d: Distribution) -> str | None:
    """Return the name of the matrix parameter that the user passed, or None if there is no matrix parameter."""
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
    # torch's `expand` copies the probs before the logits, so probs that were set first may be derived from logits.
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
    """Return a Categorical or the one inside a OneHotCategorical; None for others, or if `log_prob` is overridden."""
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


# _MILD and _WIDEST are exponents of 2. A parameter below 2^-_MILD or above 2^_MILD needs another unit. One unit
# suffices for P and Q if the ratio of the largest parameter to the smallest is below 2^_WIDEST.
_MILD, _WIDEST = 250, 1990
_LEAST, _LARGEST = 2.0**-_MILD, 2.0**_MILD


def in_common_unit(p: Distribution, q: Distribution, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return P and Q, in a unit between all float64 parameters if one is extremely large or small."""
    if dtype is not torch.float64 or (_is_mild(p) and _is_mild(q)):
        return p, q
    sizes = _sizes(p), _sizes(q)
    if sizes[0] is None or sizes[1] is None:
        return p, q
    both = [*sizes[0], *sizes[1]]
    if not all(map(can_inspect, both)) or not any(bool((x.abs() > _MILD).any()) for x in both):
        return p, q
    orders = torch.stack(torch.broadcast_tensors(*both))
    lowest, highest = orders.nan_to_num(math.inf).amin(0), orders.nan_to_num(-math.inf).amax(0)
    middle = torch.floor((lowest + highest) / 2)
    power = torch.where(highest - lowest < _WIDEST, middle, 0).nan_to_num(0)
    return _divided(p, power), _divided(q, power)


def _is_mild(d: Distribution) -> bool:
    """Return whether the family has no unit, or no parameter is extreme; a quick test before `_sizes`."""
    if type(d) is MixtureSameFamily and not overrides_density(d):
        return _is_mild(d.component_distribution)
    for name, times in (_powers(d) or {}).items():
        if not times:
            continue
        x: Tensor = getattr(d, name).detach()
        if not can_inspect(x):
            return False
        if x.numel():
            least, most = torch.where(x == 0, 1, x.abs()).aminmax()
            if not (float(least) >= _LEAST and float(most) <= _LARGEST):
                return False
    return True


def _powers(d: Distribution) -> Units | None:
    """Return the power of x's unit in each parameter, 1 for a scale and -1 for a rate; None without a unit."""
    family = None if overrides_density(d) else FAMILIES.get(type(d))
    units = None if family is None else family.units
    return units(d) if callable(units) else units


def _sizes(d: Distribution) -> list[Tensor] | None:
    """Return log2 |x^k| for each parameter x with the power k of the unit, NaN for x = 0; None without a unit."""
    if type(d) is MixtureSameFamily and not overrides_density(d):
        sizes = _sizes(d.component_distribution)
        return None if sizes is None else [part for x in sizes for part in x.unbind(-1)]
    powers = _powers(d)
    if powers is None:
        return None
    read: list[Tensor] = []
    for name, times in powers.items():
        if times:
            x: Tensor = getattr(d, name).detach().abs()
            size = torch.where((x > 0) & x.isfinite(), times * torch.log2(x), math.nan)
            if x.ndim == len(d.batch_shape):
                read.append(size)
            else:
                size = size.flatten(len(d.batch_shape))
                read += [size.nan_to_num(math.inf).amin(-1), size.nan_to_num(-math.inf).amax(-1)]
    return [torch.where(x.isinf(), math.nan, x) for x in read]


def _divided(d: Any, power: Tensor) -> Distribution:
    """Return a distribution whose unit is 2^power; a scale, for example, is divided by 2^power."""
    if isinstance(d, MixtureSameFamily):
        components = _divided(d.component_distribution, power.unsqueeze(-1))
        return MixtureSameFamily(d.mixture_distribution, components, validate_args=False)
    half = torch.floor(power / 2)  # two factors, because 2^-power may overflow although the product does not

    def changed(x: Tensor, times: int) -> Tensor:
        if times == 0:
            return x
        events = (1,) * (x.ndim - len(d.batch_shape))
        first, second = (times * part.reshape((*part.shape, *events)) for part in (half, power - half))
        return x * torch.exp2(-first) * torch.exp2(-second)

    powers = cast("Units", _powers(d))
    parameters = {name: changed(getattr(d, name), times) for name, times in powers.items()}
    return type(d)(**parameters, validate_args=False)
