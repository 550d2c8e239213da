"""What the generic rules know of a univariate family: where it lives, its density, and how its tails fall.

A density is given at `Points`, which know their distance from the ends of P's support in logarithms: near a singular
end a number alone is not enough, as most of the mass of Beta(0.01, 0.01) lies closer to 1 than a float64 can say.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import logsigmoid

from kullback.numeric import tensor_of
from kullback.pairs.overrides import overrides_density

__all__ = [
    "Coordinate",
    "Density",
    "Points",
    "Tail",
    "register_density",
    "density_of",
    "log_mean_exp",
    "log_sum",
    "breakpoints_around",
]


def _log_add_exp(a: Tensor, b: Tensor) -> Tensor:
    """Return log(e^a + e^b), also with its second derivatives, which `torch.logaddexp` has as NaN far out."""
    is_first = a >= b
    high, low = torch.where(is_first, a, b), torch.where(is_first, b, a)
    return high - logsigmoid(torch.where(high.isinf(), 0, high - low))


def log_sum(a: Tensor, b: Tensor) -> Tensor:
    """Return log(e^a + e^b), which is b, in value and derivative, where a is -inf."""
    alone = a == -torch.inf
    return torch.where(alone, b, _log_add_exp(torch.where(alone, b, a), b))


def log_mean_exp(rest: Tensor, weight: Tensor, u: Tensor) -> Tensor:
    """Return log(rest + weight e^u) for weights that sum to one, to full precision also where that is near 0."""
    near = (u.abs() < 1) | ((weight < 0.5) & (u < 0)) | ((u > 0) & (u < 700))
    close = torch.log1p(weight * torch.expm1(torch.where(near, u, 0)))
    far = torch.where(near, 0, u)
    return torch.where(near, close, _log_add_exp(torch.log(rest), torch.log(weight) + far))


def breakpoints_around(center: Tensor, width: Tensor, bend: Tensor, steps: Tensor) -> list[Tensor]:
    """Return the breakpoints of a density that may be wide in its coordinate, yet bends within a few units."""
    marks = [center + steps * width]
    return [*marks, bend + steps * width.clamp(max=24.0) / 2] if bool((width > 6).any()) else marks


class Points(NamedTuple):
    """Points of P's support: x, and the logarithms of x - low and high - x where it has such ends."""

    x: Tensor
    low: Tensor | None = None
    log_above_low: Tensor | None = None
    high: Tensor | None = None
    log_below_high: Tensor | None = None

    def is_extreme(self) -> Tensor:
        """Tell where x, or the inverse of its distance from an end, has no square in float64."""
        extreme = ~(self.x.abs() < 1e150)
        for log_distance in (self.log_above_low, self.log_below_high):
            if log_distance is not None:
                extreme = extreme | (log_distance < -345)
        return extreme

    def log_above(self, edge: Tensor | float) -> Tensor:
        """Return log(x - edge) for an edge that is not above the lower end of the support."""
        if self.low is None or self.log_above_low is None:
            return torch.log(self.x - edge)
        return _log_further(self.low - edge, self.log_above_low)

    def log_below(self, edge: Tensor | float) -> Tensor:
        """Return log(edge - x) for an edge that is not below the upper end of the support."""
        if self.high is None or self.log_below_high is None:
            return torch.log(edge - self.x)
        return _log_further(edge - self.high, self.log_below_high)


def _log_further(more: Tensor, log_distance: Tensor) -> Tensor:
    """Return log(distance + more), also with its second derivatives where the one is far less than the other."""
    none = ~(more > 0) | more.isinf()
    known = torch.where(none, 1, more)
    log_more = torch.log(known)
    less = none | (log_more < log_distance)
    ratio = torch.where(none, 0, more) * torch.exp(
        -torch.where(less & ~none, log_distance, 0).clamp(min=-700)
    )
    rest = torch.exp(torch.where(less, -1, log_distance - log_more))
    return torch.where(
        less, log_distance + torch.log1p(torch.where(less, ratio, 0)), log_more + torch.log1p(rest)
    )


@dataclass(frozen=True)
class Coordinate:
    """The variable t that runs over all reals: x, log(x - low), -log(high - x), or the logit between both ends."""

    low: Tensor | None
    high: Tensor | None

    def points(self, t: Tensor) -> Points:
        """Return the points at t, differentiable by the ends."""
        low, high = self.low, self.high
        if low is None:
            return Points(t) if high is None else Points(high - torch.exp(-t), high=high, log_below_high=-t)
        if high is None:
            return Points(low + torch.exp(t), low, t)
        width, open_end = self._width(low, high)
        log_width = torch.log(width)
        above, below = log_width + logsigmoid(t), log_width + logsigmoid(-t)
        x = torch.where(t < 0, low + torch.exp(above), low + width - torch.exp(below))
        if open_end is not None:
            above, below = torch.where(open_end, t, above), torch.where(open_end, torch.inf, below)
            x = torch.where(open_end, low + torch.exp(torch.where(open_end, t, 0)), x)
        return Points(x, low, above, high, below)

    def log_jacobian(self, t: Tensor) -> Tensor:
        """Return log dx/dt."""
        if self.low is None and self.high is None:
            return torch.zeros_like(t)
        if self.high is None:
            return t
        if self.low is None:
            return -t
        width, open_end = self._width(self.low, self.high)
        speed = torch.log(width) + logsigmoid(t) + logsigmoid(-t)
        return speed if open_end is None else torch.where(open_end, t, speed)

    def of(self, x: Tensor) -> Tensor:
        """Return t at x; infinite outside the support."""
        low, high = self.low, self.high
        if low is None:
            return x if high is None else -torch.log((high - x).clamp(min=0))
        if high is None:
            return torch.log((x - low).clamp(min=0))
        width, open_end = self._width(low, high)
        above = torch.log((x - low).clamp(min=0))
        between = above - torch.log((low + width - x).clamp(min=0))
        return between if open_end is None else torch.where(open_end, above, between)

    @staticmethod
    def _width(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return high - low, and where high is infinite, as it may be for some elements of a batch only."""
        open_end = high.isinf()
        if not bool(open_end.any()):
            return high - low, None
        return torch.where(open_end, 1, torch.where(open_end, 0, high) - low), open_end


class Tail(NamedTuple):
    """How -log of the mass beyond u grows at an end, where u is |x| at infinity and 1 / distance at a finite end.

    As coefficient y^power, where y is the logarithm of u taken so many times as the level: u itself at level 0, log u
    at 1, e^u at -1. Tails u^-a have level 1, tails e^(-a u) level 0. A map of x changes the level, no more, so that two
    tails compare alike in every variable. NaN is what is not known.
    """

    level: Tensor | float = math.nan
    power: Tensor | float = 1.0
    coefficient: Tensor | float = math.nan

    @classmethod
    def of_power(cls, power: Tensor | float) -> Tail:
        """Return the tail u^-power."""
        return cls(1.0, 1.0, power)

    def in_unit(self, unit: Tensor | float) -> Tail:
        """Return the tail in terms of u / unit."""
        level, power, coefficient, unit = (tensor_of(x, torch.float64) for x in (*self, unit))
        changed = torch.where(level == 0, coefficient * unit**power, coefficient)
        changed = torch.where((level < -1) & (unit != 1), torch.nan, changed)
        return Tail(level, torch.where(level == -1, power * unit, power), changed)

    def shifted(self, by: Tensor) -> Tail:
        """Return the tail in terms of u - by."""
        level, power, coefficient = (tensor_of(x, torch.float64) for x in self)
        moved = torch.where(level == -1, coefficient * torch.exp(power * by), coefficient)
        return Tail(level, power, torch.where((level < -1) & (by != 0), torch.nan, moved))


@dataclass(frozen=True)
class Density(ABC):
    """A univariate family of distributions at its parameters, float64 tensors that broadcast."""

    integer: ClassVar[bool] = False

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Density:
        """Return the density with every parameter changed, such as in shape."""
        parameters = {
            name: change(x) if isinstance(x, Tensor) else _mapped(x, change) for name, x in vars(self).items()
        }
        return replace(self, **parameters)

    def tensors(self) -> list[Tensor]:
        """Return the parameters that `mapped` changes, whole."""
        tensors: list[Tensor] = []
        for x in vars(self).values():
            tensors += [x] if isinstance(x, Tensor) else _tensors_of(x)
        return tensors

    def detached(self) -> Density:
        """Return the density at the same numbers, without a derivative by any parameter, forward or backward."""
        parameters = {
            name: x.detach() if isinstance(x, Tensor) else _detached(x) for name, x in vars(self).items()
        }
        return replace(self, **parameters)

    def is_splittable(self) -> bool:
        """Tell whether `mapped` may cut the batch into parts."""
        parts = [part for part in vars(self).values() if isinstance(part, Density)]
        return not parts or all(part.is_splittable() for part in parts)

    def low(self) -> Tensor | None:
        """Return the lower end of the support, None for -inf."""
        return None

    def high(self) -> Tensor | None:
        """Return the upper end of the support, None for +inf."""
        return None

    @abstractmethod
    def log_density(self, at: Points) -> Tensor:
        """Return the logarithm of the density at points of the support."""

    @abstractmethod
    def center_and_width(self) -> tuple[Tensor, Tensor]:
        """Return about where the middle of the density lies, and its width, in the density's own coordinate."""

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        """Return, for each peak of the density, the points so many widths from its center, in the own coordinate.

        The last dimension of the parameters has size 1, and becomes that of the steps.
        """
        center, width = self.center_and_width()
        return [center + steps * width]

    def nonsmooth_points(self) -> list[Tensor]:
        """Return the points x at which the density has a corner."""
        return []

    def coordinate(self) -> Coordinate:
        """Return the variable in which the support is the whole line."""
        return Coordinate(self.low(), self.high())

    def lower_tail(self) -> Tail:
        """Return how the mass falls towards the lower end."""
        return Tail()

    def upper_tail(self) -> Tail:
        """Return how the mass falls towards the upper end."""
        return Tail()


def _mapped(value: object, change: Callable[[Tensor], Tensor]) -> object:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Density):
        return value.mapped(change)
    if isinstance(value, tuple):
        return tuple(_mapped(part, change) for part in value)  # pyright: ignore[reportUnknownVariableType]
    return value


def _tensors_of(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Density):
        return value.tensors()
    if isinstance(value, tuple):
        return [x for part in value for x in _tensors_of(part)]  # pyright: ignore[reportUnknownVariableType]
    return []


def _detached(value: object) -> object:
    if isinstance(value, Tensor | Density):
        return value.detach() if isinstance(value, Tensor) else value.detached()
    if isinstance(value, tuple):
        return tuple(_detached(part) for part in value)  # pyright: ignore[reportUnknownVariableType]
    return value


# A function that reads the density of a distribution, None where it is not known for this one.
DensityReader = Callable[..., "Density | None"]
_READERS: dict[type, DensityReader] = {}


def register_density(family: type) -> Callable[[DensityReader], DensityReader]:
    """Enter the function that reads the density of a distribution of this type."""

    def enter(read: DensityReader) -> DensityReader:
        _READERS[family] = read
        return read

    return enter


def density_of(distribution: Distribution) -> Density | None:
    """Return the density of a distribution, None if its family is not known.

    One that overrides its family's `log_prob` is known by that alone.
    """
    if overrides_density(distribution):
        return _READERS[Distribution](distribution)
    for family in type(distribution).__mro__:
        found = _READERS[family](distribution) if family in _READERS else None
        if found is not None:
            return found
    return None
