"""`ClassAxes`: the dimensions over which one distribution extends, such as height and width of heat maps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from kullback.diagnosis.scan import normalized_along


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
    """Return the adjacent dimensions over which at least one tensor is normalized, or None.

    The result is None if a tensor is normalized along a single dimension. The other tensor may contain scores, which
    are not normalized.
    """
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
