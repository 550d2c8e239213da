"""`Density`, the base class of all univariate densities, and `density_of`, which returns the density of a distribution.

A density is evaluated at `Points`. A `Points` object contains x and log |x - end| for the ends of P's support. Near an
end where a density is infinite, x alone is too coarse. For example, most of the mass of Beta(0.01, 0.01) is closer to 0
or 1 than the spacing of float64 numbers near 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import logsigmoid

from kullback.common.dtypes import tensor_of
from kullback.pairs.family import POSITIVE, REAL, UNIT, End, overrides_density


def _log_add_exp(a: Tensor, b: Tensor) -> Tensor:
    """Return log(e^a + e^b), with finite second derivatives for a large |a - b|, unlike `torch.logaddexp`."""
    is_first = a >= b
    high, low = torch.where(is_first, a, b), torch.where(is_first, b, a)
    return high - logsigmoid(torch.where(high.isinf(), 0, high - low))


def log_sum(a: Tensor, b: Tensor) -> Tensor:
    """Return log(e^a + e^b). Where a is -inf, the result is b, with the derivative of b."""
    alone = a == -torch.inf
    return torch.where(alone, b, _log_add_exp(torch.where(alone, b, a), b))


def log_mean_exp(rest: Tensor, weight: Tensor, u: Tensor) -> Tensor:
    """Return log(rest + weight e^u) for rest + weight = 1, to full precision even where the result is near 0."""
    near = (u.abs() < 1) | ((weight < 0.5) & (u < 0)) | ((u > 0) & (u < 700))
    close = torch.log1p(weight * torch.expm1(torch.where(near, u, 0)))
    far = torch.where(near, 0, u)
    return torch.where(near, close, _log_add_exp(torch.log(rest), torch.log(weight) + far))


def breakpoints_around(center: Tensor, width: Tensor, bend: Tensor, steps: Tensor) -> list[Tensor]:
    """Return `center + steps * width` and, for a width above 6, points around `bend`, where the slope changes fast."""
    marks = [center + steps * width]
    return [*marks, bend + steps * width.clamp(max=24.0) / 2] if bool((width > 6).any()) else marks


class Points(NamedTuple):
    """Points x of P's support, with log(x - low) and log(high - x) for its finite ends."""

    x: Tensor
    low: Tensor | None = None
    log_above_low: Tensor | None = None
    high: Tensor | None = None
    log_below_high: Tensor | None = None

    def is_extreme(self) -> Tensor:
        """Return a mask of the points where x^2, or 1 / distance^2 from an end, overflows float64."""
        extreme = ~(self.x.abs() < 1e150)
        for log_distance in (self.log_above_low, self.log_below_high):
            if log_distance is not None:
                extreme = extreme | (log_distance < -345)
        return extreme

    def log_above(self, edge: Tensor | float) -> Tensor:
        """Return log(x - edge) for an edge at or below the lower end of the support."""
        if self.low is None or self.log_above_low is None:
            return torch.log(self.x - edge)
        return _log_further(self.low - edge, self.log_above_low)

    def log_below(self, edge: Tensor | float) -> Tensor:
        """Return log(edge - x) for an edge at or above the upper end of the support."""
        if self.high is None or self.log_below_high is None:
            return torch.log(edge - self.x)
        return _log_further(edge - self.high, self.log_below_high)


def _log_further(more: Tensor, log_distance: Tensor) -> Tensor:
    """Return log(e^log_distance + more), with correct second derivatives even if one of the terms is tiny."""
    none = ~(more > 0) | more.isinf()
    log_more = torch.log(torch.where(none, 1, more))
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
    """A map from the support to all reals: t = x, log(x - low), -log(high - x) or log((x - low) / (high - x)).

    The formula depends on which ends are finite.
    """

    low: Tensor | None
    high: Tensor | None

    def points(self, t: Tensor) -> Points:
        """Return the points x at t; they are differentiable functions of the ends."""
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
        """Return t at x; an x outside of the support gives an infinite t."""
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
        """Return high - low, or 1 where `high` is infinite, and the mask of these elements, or None without them."""
        open_end = high.isinf()
        if not bool(open_end.any()):
            return high - low, None
        return torch.where(open_end, 1, torch.where(open_end, 0, high) - low), open_end


class Tail(NamedTuple):
    """The decay of a density's tail: -log(mass beyond u) grows as coefficient y^power.

    Here u is |x| at an infinite end, and 1 / distance at a finite end. The variable y is the logarithm of u taken
    `level` times: u, log u and log log u at the levels 0, 1 and 2, and e^u at level -1. Tails u^-a have level 1,
    and tails e^(-a u) have level 0. A map of x such as exp adds the same number to all levels. So the comparison of two
    tails does not depend on the map. Unknown fields are NaN.
    """

    level: Tensor | float = math.nan
    power: Tensor | float = 1.0
    coefficient: Tensor | float = math.nan

    @classmethod
    def of_power(cls, power: Tensor | float) -> Tail:
        """Return the tail u^-power."""
        return cls(1.0, 1.0, power)

    def in_unit(self, unit: Tensor | float) -> Tail:
        """Return the tail as a function of u / unit."""
        level, power, coefficient, unit = (tensor_of(x, torch.float64) for x in (*self, unit))
        changed = torch.where(level == 0, coefficient * unit**power, coefficient)
        changed = torch.where((level < -1) & (unit != 1), torch.nan, changed)
        return Tail(level, torch.where(level == -1, power * unit, power), changed)

    def shifted(self, by: Tensor) -> Tail:
        """Return the tail as a function of u - by."""
        level, power, coefficient = (tensor_of(x, torch.float64) for x in self)
        moved = torch.where(level == -1, coefficient * torch.exp(power * by), coefficient)
        return Tail(level, power, torch.where((level < -1) & (by != 0), torch.nan, moved))


@dataclass(frozen=True)
class Density(ABC):
    """A univariate density; its fields are the parameters, which are float64 tensors that broadcast."""

    integer: ClassVar[bool] = False
    smooth: ClassVar[bool] = True
    """Whether the probabilities of integers are a smooth function of x; otherwise a sum needs every term."""
    support: ClassVar[tuple[End, End]] = REAL
    """The ends of the support: numbers, names of parameters, or None for ends that `low` and `high` compute."""
    has_equal_tails: ClassVar[bool]
    """Whether the support is the whole line and one formula gives both tails."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = vars(cls)
        if "support" not in own:
            low, high = cls.support
            cls.support = None if "low" in own else low, None if "high" in own else high
        for name, end in zip(("low", "high"), cls.support, strict=True):
            if name not in own and isinstance(end, float) and math.isinf(end):
                setattr(cls, name, None)  # reading None is faster than calling a property
            elif name not in own and end is not None:
                setattr(cls, name, vars(Density)[name])
        is_line = cls.support == REAL and cls.pieces is Density.pieces
        cls.has_equal_tails = is_line and cls.lower_tail is cls.upper_tail

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Density:
        """Return the density with `change`, for example a new shape, applied to every parameter."""
        parameters = dict(vars(self))
        for name, x in parameters.items():
            if isinstance(x, Tensor):
                parameters[name] = change(x)
            elif isinstance(x, Density):
                parameters[name] = x.mapped(change)
        return replace(self, **parameters)

    def tensors(self) -> list[Tensor]:
        """Return the parameters that `mapped` changes."""
        tensors: list[Tensor] = []
        for x in vars(self).values():
            tensors += [x] if isinstance(x, Tensor) else x.tensors() if isinstance(x, Density) else []
        return tensors

    def detached(self) -> Density:
        """Return the density with detached parameters, which have no derivatives in forward and backward mode."""
        parameters = dict(vars(self))
        for name, x in parameters.items():
            if isinstance(x, Tensor):
                parameters[name] = x.detach()
            elif isinstance(x, Density):
                parameters[name] = x.detached()
        return replace(self, **parameters)

    def extrapolated_sooner(self) -> Density:
        """Return the density with extrapolations that start closer to the center, or itself without extrapolations."""
        parts = {name: x.extrapolated_sooner() for name, x in vars(self).items() if isinstance(x, Density)}
        is_changed = any(part is not getattr(self, name) for name, part in parts.items())
        return replace(self, **parts) if is_changed else self

    def is_splittable(self) -> bool:
        """Return whether `mapped` may select some elements of the batch."""
        for part in vars(self).values():  # noqa: SIM110 - a generator costs one call per part
            if isinstance(part, Density) and not part.is_splittable():
                return False
        return True

    def reaches_infinity(self) -> Tensor | None:
        """Return a mask of the elements with an infinite end, if other elements have a finite end; otherwise None."""
        return None

    @property
    def low(self) -> Tensor | None:
        """The lower end of the support, or None if it is -inf."""
        end = self.support[0]
        if isinstance(end, str):
            return getattr(self, end)
        return None if end in (None, -math.inf) else torch.full((), end, dtype=torch.float64, device="cpu")

    @property
    def high(self) -> Tensor | None:
        """The upper end of the support, or None if it is +inf."""
        end = self.support[1]
        if isinstance(end, str):
            return getattr(self, end)
        return None if end in (None, math.inf) else torch.full((), end, dtype=torch.float64, device="cpu")

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return the lower and the upper end of the support as tensors, which may be infinite."""
        low, high = self.low, self.high
        endless = torch.full((), torch.inf, dtype=torch.float64, device="cpu")
        return -endless if low is None else low, endless if high is None else high

    def pieces(self) -> tuple[Tensor, Tensor] | None:
        """Return the lower and the upper ends of the support's intervals, a new last dimension; None for only one."""
        return None

    @abstractmethod
    def log_density(self, at: Points) -> Tensor:
        """Return the log-density at points of the support."""

    @abstractmethod
    def center_and_width(self) -> tuple[Tensor, Tensor]:
        """Return the approximate center and width of the density in t, the variable of its `coordinate`."""

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        """Return the points `center + steps * width` of each peak of the density, in the variable of its `coordinate`.

        The parameters need a last dimension of size 1, which becomes the dimension of the steps.
        """
        center, width = self.center_and_width()
        return [center + steps * width]

    def nonsmooth_points(self) -> list[Tensor]:
        """Return the points x at which the density has a corner or a jump."""
        return []

    def coordinate(self) -> Coordinate:
        """Return the coordinate that maps the support to the whole real line."""
        return Coordinate(self.low, self.high)

    def tail_factor(self) -> Tensor | float:
        """Return k if the density falls as u^k e^(-a u) for u = |x| in a tail of level 0, or NaN if k is unknown."""
        return math.nan

    def lower_tail(self) -> Tail:
        """Return the decay of the tail at the lower end of the support."""
        return Tail()

    def upper_tail(self) -> Tail:
        """Return the decay of the tail at the upper end of the support."""
        return Tail()


class PositiveAtEnds(Density):
    """A density that is positive and finite at the finite ends of its support."""

    def lower_tail(self) -> Tail:
        return Tail.of_power(1.0)

    upper_tail = lower_tail


class HalfLineDensity(PositiveAtEnds):
    """A density on the positive numbers."""

    support: ClassVar[tuple[End, End]] = POSITIVE


class UnitDensity(PositiveAtEnds):
    """A density on [0, 1]."""

    support: ClassVar[tuple[End, End]] = UNIT


class DelegatingDensity(Density):
    """A density whose methods return the results of another density, `part`, unless a subclass overrides them."""

    part: Density

    @property
    def low(self) -> Tensor | None:
        return self.part.low

    @property
    def high(self) -> Tensor | None:
        return self.part.high

    def log_density(self, at: Points) -> Tensor:
        return self.part.log_density(at)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return self.part.center_and_width()

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        return self.part.breakpoints(steps)

    def nonsmooth_points(self) -> list[Tensor]:
        return self.part.nonsmooth_points()

    def tail_factor(self) -> Tensor | float:
        return self.part.tail_factor()

    def lower_tail(self) -> Tail:
        return self.part.lower_tail()

    def upper_tail(self) -> Tail:
        return self.part.upper_tail()


# `DensityReader` is a function that returns the density of a distribution, or None if the density is unknown.
DensityReader = Callable[..., "Density | None"]
# _READERS maps a class of distributions to its reader. The key is "module.name" for a class of a package that kullback
# does not import.
_READERS: dict[type | str, DensityReader] = {}
DensityReaderT = TypeVar("DensityReaderT", bound=DensityReader)


def register_density(family: type | str) -> Callable[[DensityReaderT], DensityReaderT]:
    """Register a function that returns the densities of distributions of this class."""

    def enter(read: DensityReaderT) -> DensityReaderT:
        _READERS[family] = read
        return read

    return enter


def density_of(distribution: Distribution) -> Density | None:
    """Return the density of a distribution, or None; an overridden `log_prob` is read without the family's formulas."""
    if overrides_density(distribution):
        return _READERS[Distribution](distribution)
    for family in type(distribution).__mro__:
        read = _READERS.get(family) or _READERS.get(f"{family.__module__}.{family.__qualname__}")
        density = None if read is None else read(distribution)
        if density is not None:
            return density
    return None


def densities_of(p: Distribution, q: Distribution) -> tuple[Density, Density] | None:
    """Return the densities of P and Q, or None if one of them is unknown."""
    first, second = density_of(p), density_of(q)
    return None if first is None or second is None else (first, second)


def log_one_plus_square(z: Tensor) -> Tensor:
    """Return log(1 + z^2), which is finite even where z^2 overflows."""
    size = z.abs()
    large = size > 1e100
    return torch.where(
        large, 2 * torch.log(torch.where(large, size, 1)), torch.log1p(torch.where(large, 0, z) ** 2)
    )


@dataclass(frozen=True)
class LocationScaleDensity(Density):
    """A density of the form f(z) / scale for z = (x - loc) / scale, where f may have further parameters."""

    loc: Tensor
    scale: Tensor

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return self.loc, self.scale

    def standard(self, at: Points) -> Tensor:
        """Return (x - loc) / scale."""
        return (at.x - self.loc) / self.scale
