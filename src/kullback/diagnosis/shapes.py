"""Dimensions of the classes (`ClassAxes`), and changes of shape that make the rows of two tensors match (`fit`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kullback.common.words import NO_LABEL
from kullback.diagnosis.reading import Index, normalized_along

How: TypeAlias = Literal[
    "none", "same", "expand", "reshape", "move", "cut-classes", "cut-rows", "unsqueeze", "binary"
]
_Change: TypeAlias = tuple[How, str, Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class ClassAxes:
    """The dimensions of the classes, as negative numbers in order. Most calls have one such dimension."""

    dims: tuple[int, ...]

    @property
    def are_several(self) -> bool:
        return len(self.dims) > 1

    @property
    def shown(self) -> int | tuple[int, ...]:
        """The dimension, or a tuple of several dimensions, in the form of the argument `dim`."""
        return self.dims if self.are_several else self.dims[0]

    @property
    def joined_dim(self) -> int:
        """The dimension of the classes after `join`, negative."""
        return self.dims[-1] if self._are_neighbors else -1

    @property
    def code(self) -> str:
        """The code of `join`, to append to the name of a tensor."""
        if not self.are_several:
            return ""
        if self._are_neighbors:
            last = "" if self.dims[-1] == -1 else f", {self.dims[-1]}"
            return f".flatten({self.dims[0]}{last})"
        return f".movedim({self.dims}, {self._last}).flatten({self._last[0]})"

    def join(self, x: Tensor) -> Tensor:
        """Return the tensor x with the dimensions joined to one."""
        if self._are_neighbors:
            return x.flatten(self.dims[0], self.dims[-1]) if self.are_several else x
        return x.movedim(self.dims, self._last).flatten(self._last[0])

    @property
    def _are_neighbors(self) -> bool:
        return all(after - before == 1 for before, after in pairwise(self.dims))

    @property
    def _last(self) -> tuple[int, ...]:
        return tuple(range(-len(self.dims), 0))


def axes_of_maps(input: Tensor, target: Tensor) -> ClassAxes | None:
    """Return adjacent dimensions over which a tensor is normalized; None if one has a single such dimension."""
    sides = input, target
    if input.shape != target.shape or input.ndim < 2 or not input.numel():
        return None
    if not all(x.is_floating_point() for x in sides):
        return None
    dims = range(-1, -input.ndim - 1, -1)
    wide = {dim for dim in dims if input.shape[dim] > 1}
    if any(_is_normalized(x, dim) for x in sides for dim in dims if dim in wide):
        return None
    for axes in (ClassAxes(tuple(range(first, last + 1))) for last in dims for first in dims if first < last):
        if len(wide.intersection(axes.dims)) > 1 and any(
            _is_normalized(axes.join(x), axes.joined_dim) for x in sides
        ):
            return axes
    return None


def _is_normalized(x: Tensor, dim: int) -> bool:
    """Return whether all rows along `dim` are probabilities, or all are log-probabilities."""
    in_logs = bool((x <= 0).all())
    return (in_logs or bool((x >= 0).all())) and normalized_along(x, dim, in_logs=in_logs)


@dataclass(frozen=True)
class Repair:
    """A change of one or both tensors, as code and as a function of the tensor."""

    how: How
    input: str = "input"
    target: str = "target"
    on_input: Callable[[Tensor], Tensor] = lambda x: x
    on_target: Callable[[Tensor], Tensor] = lambda x: x

    @property
    def keeps_entries(self) -> bool:
        """Whether torch pairs the entries that belong together."""
        return self.how in ("same", "expand")


def fit(input: Tensor, target: Tensor, dim: int) -> tuple[Index | None, Repair]:
    """Return torch's broadcast shape or None, and the repair that pairs the rows; `dim` is negative."""
    a, b = tuple(input.shape), tuple(target.shape)
    try:
        broadcasts = np.broadcast_shapes(a, b)  # torch.broadcast_shapes would import sympy
    except ValueError:
        broadcasts = None
    if a == b:
        return broadcasts, Repair("same")
    same_classes = len(a) >= -dim <= len(b) and a[dim] == b[dim]
    if same_classes and broadcasts in (a, b):
        return broadcasts, Repair("expand")
    if change := _change(a, b, dim, "input"):
        how, code, function = change
        return broadcasts, Repair(how, target=f"target{code}", on_target=function)
    if change := _change(b, a, dim, "target"):
        how, code, function = change
        return broadcasts, Repair(how, input=f"input{code}", on_input=function)
    repair = _cut(a, b, dim) or _binary(input, target, dim)
    if repair is None and broadcasts is not None and same_classes:
        repair = Repair("expand")
    return broadcasts, repair or Repair("none")


def labels_of(input: Tensor, target: Tensor, dim: int) -> str | None:
    """Return code for class indices if `target` contains one class index for each row of `input`, otherwise None."""
    if not target.numel() or input.ndim < -dim or input.shape[dim] == 1:
        return None
    batch, single = _batch_shapes(input, dim)
    if target.shape not in (batch, single):
        return None
    if target.is_floating_point():
        classes = input.shape[dim]
        valid = (target == target.round()) & (target < classes) & ((target >= 0) | (target == NO_LABEL))
        if not bool(valid.all()) or float(target.max()) < min(2, classes - 1):
            return None
    code = "target" if target.shape == batch else f"target.squeeze({dim})"
    return code if target.dtype == torch.int64 else f"{code}.long()"


def _change(wanted: Index, shape: Index, dim: int, other: str) -> _Change | None:
    """Return a change from `shape` to `wanted`, the shape of `other`, that keeps all entries, or None."""
    n = len(wanted)
    for axis in range(n):
        if wanted[:axis] + wanted[axis + 1 :] == shape and axis - n != dim:
            return "unsqueeze", f".unsqueeze({axis})", lambda x, a=axis: x.unsqueeze(a)
    if n != len(shape):
        if dim == -1 and wanted[-1:] == shape[-1:] and math.prod(wanted) == math.prod(shape):
            return "reshape", f".reshape({other}.shape)", lambda x: x.reshape(wanted)
        return None
    for source, place in product(range(n), repeat=2):
        if np.moveaxis(np.broadcast_to(0, shape), source, place).shape == wanted:
            code = ".T" if n == 2 else f".movedim({source}, {place})"
            return "move", code, lambda x, s=source, p=place: x.movedim(s, p)
    return None


def _cut(a: Index, b: Index, dim: int) -> Repair | None:
    """Return the repair that cuts both tensors to the smaller size along the only dimension that differs, or None."""
    differing = [axis for axis in range(len(a)) if a[axis] != b[axis]] if len(a) == len(b) else []
    if len(differing) != 1:
        return None
    axis = differing[0]
    shared, classes = min(a[axis], b[axis]), axis == len(a) + dim
    if shared == 1 and classes:
        return None
    cut = ("[..., :" if axis == len(a) - 1 else "[" + ":, " * axis + ":") + f"{shared}]"
    input, target = (name + cut * (shape[axis] > shared) for name, shape in (("input", a), ("target", b)))

    def narrow(x: Tensor) -> Tensor:
        return x.narrow(axis, 0, shared)

    return Repair("cut-classes" if classes else "cut-rows", input, target, narrow, narrow)


def _binary(input: Tensor, target: Tensor, dim: int) -> Repair | None:
    """Return the repair that turns one probability per row into probabilities of two classes, or None."""
    if input.ndim < -dim or input.shape[dim] != 2 or not target.is_floating_point() or not target.numel():
        return None
    if not bool(((target >= 0) & (target <= 1)).all()):
        return None
    for name, join, shape in zip(
        ("stack", "cat"), (torch.stack, torch.cat), _batch_shapes(input, dim), strict=True
    ):
        if target.shape == shape:
            code = f"torch.{name}([1 - target, target], {dim})"
            return Repair("binary", target=code, on_target=lambda x, j=join: j([1 - x, x], dim))
    return None


def _batch_shapes(x: Tensor, dim: int) -> tuple[Index, Index]:
    """Return the shape of `x` without the dimension of the classes, and with size 1 in this dimension."""
    axis = x.ndim + dim
    before, after = tuple(x.shape[:axis]), tuple(x.shape[axis + 1 :])
    return before + after, (*before, 1, *after)
