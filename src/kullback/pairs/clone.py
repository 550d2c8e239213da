"""Copies of distributions with changed parameters, and lists of the distributions and tensors inside a distribution."""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Transform, constraints

from kullback.common.dtypes import upcast
from kullback.common.inputs import are_ordinary, dense, is_fake
from kullback.errors import invalid_value, no_rule
from kullback.pairs.family import overrides_density

# `Change` is a function that returns a new tensor from a distribution or transform, the name of an attribute, and the
# tensor in this attribute.
Change = Callable[[Any, str, Tensor], Tensor]


_CONTAINERS = (Distribution, Transform, list, tuple)


def with_tensors(thing: Any, change: Change, copies: dict[int, Any] | None = None) -> Any:
    """Return a copy of `thing` with `change` applied once to every tensor in it; `copies` has the earlier copies."""
    copies = {} if copies is None else copies
    if id(thing) in copies:
        return copies[id(thing)]
    if isinstance(thing, list | tuple):
        return type(thing)(with_tensors(part, change, copies) for part in thing)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if not isinstance(thing, Distribution | Transform):
        return thing
    # The copy is stored before its contents are copied, because a transform and its inverse refer to each other.
    new = copies[id(thing)] = copy.copy(thing)
    for name, value in vars(thing).items():
        if isinstance(value, Tensor):
            if id(value) not in copies:
                copies[id(value)] = change(thing, name, value)
            new.__dict__[name] = copies[id(value)]
        elif isinstance(value, weakref.ref):
            # A weak reference in a transform refers to the inverse of the original. Torch makes a new inverse on
            # demand.
            new.__dict__[name] = None
        elif isinstance(value, _CONTAINERS) and type(value) is not torch.Size:
            new.__dict__[name] = with_tensors(value, change, copies)
    return new


def with_ordinary_tensors(call: str, argument: str, d: Distribution) -> Distribution:
    """Return `d`, or a copy with shapes of type `torch.Size` and dense parameters; raise unless they are real."""
    if have_ordinary_tensors(d):
        return d
    d = with_torch_sizes(d)

    def checked(_owner: Any, name: str, x: Tensor) -> Tensor:
        if x.is_complex():
            raise invalid_value(
                call,
                argument,
                wanted="real parameters",
                got=f"{type(d).__name__} with a {name} of dtype {x.dtype}",
                instead="x.real, if the imaginary part is 0",
            )
        if x.is_meta or is_fake(x):
            raise invalid_value(
                call,
                argument,
                wanted="parameters with values",
                got=f"{type(d).__name__} with a {name} that has a shape but no values",
                instead="real tensors, outside of FakeTensorMode and of the meta device",
            )
        return dense(call, f"{argument}.{name}", x)

    return with_tensors(d, checked)


def have_ordinary_tensors(*distributions: Distribution) -> bool:
    """Return whether `with_ordinary_tensors` returns all of these distributions unchanged."""
    if torch.compiler.is_compiling():
        return True
    for part in parts_of(*distributions):
        if type(part.batch_shape) is not torch.Size or type(part.event_shape) is not torch.Size:
            return False
    return are_ordinary(_tensors_in(*distributions))


def without_empty_wrapper(d: Distribution) -> Distribution:
    """Return `d` without outer `Independent` wrappers that reinterpret no dimension."""
    while isinstance(d, Independent) and not d.reinterpreted_batch_ndims and not overrides_density(d):
        d = d.base_dist
    return d


def with_torch_sizes(d: Distribution) -> Distribution:
    """Return `d`, or a copy whose shapes are of type `torch.Size`, because torch also allows tuples and lists."""
    if all(type(x) is torch.Size for part in parts_of(d) for x in (part.batch_shape, part.event_shape)):
        return d
    new = with_tensors(d, lambda _owner, _name, x: x)
    for part in parts_of(new):
        part._batch_shape, part._event_shape = torch.Size(part.batch_shape), torch.Size(part.event_shape)  # noqa: SLF001
    return new


def _tensors_in(*things: Any, of_parameters: bool = False) -> list[Tensor]:
    """Return the tensors in distributions or transforms; with `of_parameters`, only the floating-point parameters."""
    tensors: list[Tensor] = []
    waiting: deque[Any] = deque(things)
    visited: set[int] = set()  # a transform and its inverse may refer to each other
    while waiting:
        thing = waiting.popleft()
        if isinstance(thing, Tensor):
            if not of_parameters or thing.is_floating_point():
                tensors.append(thing)
        elif isinstance(thing, list | tuple):
            waiting += thing  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(thing, Distribution | Transform) and id(thing) not in visited:
            visited.add(id(thing))
            attributes = vars(thing)
            waiting += (_parameters_among(thing, attributes) if of_parameters else attributes).values()
    return tensors


def are_valid(d: Distribution) -> bool:
    """Return whether all parameters of a distribution, and of the distributions in it, are finite and in range."""
    ranges = d.arg_constraints
    for name, x in vars(d).items():
        if isinstance(x, Distribution):
            if not are_valid(x):
                return False
        elif isinstance(x, Tensor) and name in ranges:
            is_free = ranges[name].is_discrete or constraints.is_dependent(ranges[name])
            inside = x.isfinite() if is_free else x.isfinite() & _within(ranges[name], x)
            if not bool(inside.all()):
                return False
    return True


def _within(constraint: constraints.Constraint, x: Tensor) -> Tensor:
    """Return a mask of the numbers in x that satisfy a constraint, with size 1 along the dimensions of its events."""
    inside = constraint.check(x)
    return inside.reshape(*inside.shape, *[1] * (x.ndim - inside.ndim)) if inside.ndim else inside


def zero_of(tensors: Iterable[Tensor]) -> Tensor:
    """Return a scalar 0 whose derivative with respect to every tensor is 0 and can be differentiated again."""
    zeros = [torch.expm1(torch.where(torch.zeros_like(x, dtype=torch.bool), x, 0)).sum() for x in tensors]
    return sum(zeros, torch.zeros((), dtype=torch.float64, device="cpu"))


def parameters_of(*things: Any) -> list[Tensor]:
    """Return the floating-point parameters. Derivatives with respect to derived tensors of torch may be infinite."""
    return _tensors_in(*things, of_parameters=True)


def _parameters_among(
    thing: Distribution | Transform, attributes: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the attributes that are parameters, or all attributes if no parameter is a tensor."""
    try:
        names = thing.arg_constraints if isinstance(thing, Distribution) else ()
    except NotImplementedError:  # a user's distribution that does not list its parameters
        return attributes
    parameters: dict[str, object] = {}
    has_tensor = False
    for name in names:
        if name in attributes:
            parameters[name] = attributes[name]
            has_tensor = has_tensor or isinstance(parameters[name], Tensor)
    return parameters if has_tensor else attributes


def detached(d: Distribution) -> Any:
    """Return a copy of a distribution with detached parameters."""
    return with_tensors(d, lambda _owner, _name, x: x.detach())


def upcast_copy(d: Distribution) -> Any:
    """Return a copy of a distribution with float64 parameters."""
    return with_tensors(d, lambda _owner, _name, x: upcast(x) if x.is_floating_point() else x)


def unvalidated(d: Distribution) -> Any:
    """Return a copy of a distribution; neither the copy nor the distributions inside the copy validate values."""
    new = with_tensors(d, lambda _owner, _name, x: x)
    for part in parts_of(new):
        part._validate_args = False  # noqa: SLF001
    return new


def expanded(d: Distribution, shape: torch.Size) -> Any:
    """Return `d` expanded to a batch shape, with its `log_prob` attribute, which torch's `expand` drops."""
    if d.batch_shape == shape:
        return d
    new = d.expand(shape)
    if "log_prob" in vars(d):
        vars(new)["log_prob"] = d.log_prob
    return new


def with_dimension(d: Distribution, axis: int) -> Any:
    """Return a copy of a distribution with an additional batch dimension of size 1, at axis -1 or -2."""
    if any("log_prob" in vars(part) for part in parts_of(d)):
        raise no_rule(
            "kl_bounds",
            "p, q",
            wanted="components with the log_prob of their class",
            got=f"{type(d).__name__} with a log_prob that is an attribute of the object",
            instead="a subclass that overrides log_prob",
        )
    batch = d.batch_shape
    place = len(batch) + axis + 1
    new = with_tensors(d, lambda owner, name, x: _unsqueezed(owner, name, x, batch, place))
    for part in parts_of(new):
        shape: torch.Size = part.batch_shape
        part._batch_shape = torch.Size((*shape[:place], 1, *shape[place:]))  # noqa: SLF001
    return new


def parts_of(*distributions: Distribution) -> list[Any]:
    """Return distributions and, after them, the distributions inside them."""
    parts = list(distributions)
    for part in parts:  # the loop also visits the parts that it appends
        for value in vars(part).values():
            if isinstance(value, Distribution):
                parts.append(value)  # noqa: PERF401 - a comprehension costs a call
    return parts


def _unsqueezed(owner: Any, name: str, x: Tensor, batch: torch.Size, place: int) -> Tensor:
    if isinstance(owner, Transform):
        if x.ndim:
            raise no_rule(
                "kl_bounds",
                "p, q",
                wanted="components whose transforms have scalar parameters",
                got=f"{type(owner).__name__} with a tensor of shape {tuple(x.shape)}",
                instead="the parameters in the base distribution, such as Normal(loc, scale)",
            )
        return x
    if name.startswith("_unbroadcasted"):
        own = 1 if name.endswith("diag") else 2
        x = x.expand(*owner.batch_shape, *x.shape[x.ndim - own :])
    return x.unsqueeze(place) if x.shape[: len(batch)] == batch else x
