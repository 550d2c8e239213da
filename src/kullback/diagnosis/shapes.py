"""How two shapes match row by row, and the reshaping or truncation that makes them match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kullback.diagnosis.scan import Index

__all__ = ["IGNORED", "Fit", "Repair", "fit", "labels_of"]

# The class index that `F.cross_entropy` leaves out.
IGNORED = -100

How: TypeAlias = Literal[
    "same", "expand", "reshape", "move", "cut-classes", "cut-rows", "unsqueeze", "binary"
]


@dataclass(frozen=True)
class Repair:
    """A change of one or both tensors, as code to show and as a function of the tensor."""

    how: How
    input: str = "input"
    target: str = "target"
    on_input: Callable[[Tensor], Tensor] = lambda x: x
    on_target: Callable[[Tensor], Tensor] = lambda x: x


@dataclass(frozen=True)
class Fit:
    """How two shapes go together: whether torch would broadcast them, and the repair that pairs the rows."""

    broadcasts: Index | None
    repair: Repair | None


def fit(input: Tensor, target: Tensor, dim: int) -> Fit:
    """Find how the rows of `target` belong to those of `input`, both with their classes along `dim` (negative)."""
    a, b = tuple(input.shape), tuple(target.shape)
    try:
        broadcasts = np.broadcast_shapes(a, b)  # torch's own imports all of sympy
    except ValueError:
        broadcasts = None
    if a == b:
        return Fit(broadcasts, Repair("same"))
    one_sided = broadcasts in (a, b)
    same_classes = len(a) >= -dim <= len(b) and a[dim] == b[dim]
    if one_sided and same_classes:
        return Fit(broadcasts, Repair("expand"))
    repair = _change(a, b, dim, "target") or _mirrored(_change(b, a, dim, "input")) or _cut(a, b, dim)
    repair = repair or _binary(input, target, dim)
    if repair is None and broadcasts is not None and same_classes:
        repair = Repair("expand")
    return Fit(broadcasts, repair)


def labels_of(input: Tensor, target: Tensor, dim: int) -> str | None:
    """Return code for the class indices that `target` holds, one for each row of `input`; None if it holds none."""
    if not target.numel() or input.ndim < -dim or input.shape[dim] == 1:
        return None
    batch = _without(tuple(input.shape), dim)
    single = _with(tuple(input.shape), dim, 1)
    if target.shape not in (batch, single):
        return None
    if target.is_floating_point():
        classes = input.shape[dim]
        valid = (target == target.round()) & (target < classes) & ((target >= 0) | (target == IGNORED))
        if not bool(valid.all()) or float(target.max()) < min(2, classes - 1):
            return None
    code = "target" if target.shape == batch else f"target.squeeze({dim})"
    return code if target.dtype == torch.int64 else f"{code}.long()"


def _change(kept: Index, moved: Index, dim: int, name: str) -> Repair | None:
    """Find how the tensor `name` of shape `moved` takes the shape `kept` without losing an entry."""
    for axis in range(len(kept)):
        if (
            len(moved) == len(kept) - 1
            and _without(kept, axis - len(kept)) == moved
            and axis - len(kept) != dim
        ):
            return _on_target("unsqueeze", name, f".unsqueeze({axis})", lambda x, a=axis: x.unsqueeze(a))
    last = dim == -1 and kept[-1:] == moved[-1:]
    if last and len(kept) != len(moved) and torch.Size(kept).numel() == torch.Size(moved).numel():
        other = "input" if name == "target" else "target"
        return _on_target("reshape", name, f".reshape({other}.shape)", lambda x: x.reshape(kept))
    if len(kept) == len(moved):
        for source in range(len(kept)):
            for place in range(len(kept)):
                if _moved(moved, source, place) == kept:
                    code = ".T" if len(kept) == 2 else f".movedim({source}, {place})"
                    return _on_target("move", name, code, lambda x, s=source, p=place: x.movedim(s, p))
    return None


def _on_target(how: How, name: str, code: str, change: Callable[[Tensor], Tensor]) -> Repair:
    return Repair(how, target=name + code, on_target=change)


def _mirrored(repair: Repair | None) -> Repair | None:
    if repair is None:
        return None
    return Repair(repair.how, input=repair.target, on_input=repair.on_target)


def _cut(a: Index, b: Index, dim: int) -> Repair | None:
    """Cut both to what they share along the single dimension in which they differ."""
    if len(a) != len(b):
        return None
    differing = [axis for axis in range(len(a)) if a[axis] != b[axis]]
    if len(differing) != 1:
        return None
    axis = differing[0]
    shared = min(a[axis], b[axis])
    classes = axis == len(a) + dim
    if shared == 1 and classes:
        return None
    cut = "[..., :" if axis == len(a) - 1 else "[" + ":, " * axis + ":"
    code = [
        name + (f"{cut}{shared}]" if shape[axis] > shared else "")
        for name, shape in (("input", a), ("target", b))
    ]

    def narrow(x: Tensor) -> Tensor:
        return x.narrow(axis, 0, shared)

    return Repair("cut-classes" if classes else "cut-rows", code[0], code[1], narrow, narrow)


def _binary(input: Tensor, target: Tensor, dim: int) -> Repair | None:
    """Read one number within [0, 1] for each row, against two classes, as the probability of the second."""
    shape = tuple(input.shape)
    if len(shape) < -dim or shape[dim] != 2 or not target.is_floating_point() or not target.numel():
        return None
    if not bool(((target >= 0) & (target <= 1)).all()):
        return None
    if target.shape == _without(shape, dim):
        code = f"torch.stack([1 - target, target], {dim})"
        return Repair("binary", target=code, on_target=lambda x: torch.stack([1 - x, x], dim))
    if target.shape == _with(shape, dim, 1):
        code = f"torch.cat([1 - target, target], {dim})"
        return Repair("binary", target=code, on_target=lambda x: torch.cat([1 - x, x], dim))
    return None


def _without(shape: Index, dim: int) -> Index:
    axis = len(shape) + dim
    return shape[:axis] + shape[axis + 1 :]


def _with(shape: Index, dim: int, size: int) -> Index:
    axis = len(shape) + dim
    return (*shape[:axis], size, *shape[axis + 1 :])


def _moved(shape: Index, source: int, place: int) -> Index:
    rest = [*shape[:source], *shape[source + 1 :]]
    return (*rest[:place], shape[source], *rest[place:])
