"""Distributions over several dimensions of a tensor, such as heat maps over height and width."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from kullback.diagnosis.scan import normalized_along


@dataclass(frozen=True)
class Maps:
    """The negative dimensions over which one distribution extends."""

    dims: tuple[int, ...]

    @property
    def are_neighbors(self) -> bool:
        """Whether the dimensions are adjacent, so that `flatten` joins them without a change of order."""
        return all(b - a == 1 for a, b in pairwise(self.dims))

    @property
    def joined_dim(self) -> int:
        """The dimension of the classes after `join`, negative."""
        return self.dims[-1] if self.are_neighbors else -1

    @property
    def code(self) -> str:
        """The code of `join`, to append to the name of a tensor."""
        if self.are_neighbors:
            last = "" if self.dims[-1] == -1 else f", {self.dims[-1]}"
            return f".flatten({self.dims[0]}{last})"
        count = len(self.dims)
        return f".movedim({self.dims}, {tuple(range(-count, 0))}).flatten({-count})"

    def join(self, x: Tensor) -> Tensor:
        """Return the tensor x with the dimensions joined to one."""
        if self.are_neighbors:
            return x.flatten(self.dims[0], self.dims[-1])
        count = len(self.dims)
        return x.movedim(self.dims, tuple(range(-count, 0))).flatten(-count)


def maps_of(input: Tensor, target: Tensor) -> Maps | None:
    """Return the adjacent dimensions over which at least one tensor is normalized, or None.

    The result is None if a tensor is normalized along a single dimension. The other tensor may contain scores, which
    are not normalized.
    """
    sides = input, target
    if input.shape != target.shape or input.ndim < 2 or not input.numel():
        return None
    if not all(x.is_floating_point() for x in sides):
        return None
    axes = range(-1, -input.ndim - 1, -1)
    if any(_is_normalized(x, axis) for x in sides for axis in axes if x.shape[axis] > 1):
        return None
    groups = (Maps(tuple(range(first, last + 1))) for last in axes for first in axes if first < last)
    for maps in groups:
        has_several = sum(input.shape[axis] > 1 for axis in maps.dims) > 1
        if has_several and any(_is_normalized(maps.join(x), maps.joined_dim) for x in sides):
            return maps
    return None


def _is_normalized(x: Tensor, dim: int) -> bool:
    """Return whether all rows along `dim` are probabilities, or all are log-probabilities."""
    in_logs = bool((x <= 0).all())
    return (in_logs or bool((x >= 0).all())) and normalized_along(x, dim, in_logs=in_logs)
