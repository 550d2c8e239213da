"""The densities of increasing functions of a variable: exp, sigmoid, softplus, distribution functions, and inverses.

Each function has a density of its own, in logarithms of the distances from both ends. A composition such as
log(e^y - 1) would overflow where the function itself does not.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from kullback.common.dtypes import tensor_of
from kullback.common.special import HALF_LOG_2PI
from kullback.pairs.densities.density import Coordinate, Density, Points, Tail
from kullback.pairs.densities.location_scale import log_one_plus_square

_FARTHEST = 1e14


class Growth(NamedTuple):
    """How log u' grows at an end that a function maps from infinity: as coefficient y^power, with y as in `Tail`.

    u is the distance before the function, and u' is 1 / distance, or the distance, after it.
    """

    level: int
    power: float = 1.0
    coefficient: float = 1.0
    is_exact: bool = True
    """Whether the difference vanishes far out; otherwise it may be a constant."""

    def after(self, tail: Tail) -> Tail:
        """Return the tail after the function."""
        if self[1:] == (1.0, 1.0, True):
            return tail._replace(level=tail.level + 1 - self.level)
        level, power, coefficient = (tensor_of(x, torch.float64) for x in tail)
        same, next_level = level == self.level, level == self.level + 1
        changed = torch.where(same, coefficient * self.coefficient ** (-power / self.power), coefficient)
        changed = torch.where(next_level, coefficient * self.power**-power, changed)
        power = torch.where(same, power / self.power, power)
        known = level >= self.level
        return Tail(torch.where(known, level + 1 - self.level, torch.nan), power, changed)

    def before(self, tail: Tail) -> Tail:
        """Return the tail before the function."""
        if self[1:] == (1.0, 1.0, True):
            return tail._replace(level=tail.level - 1 + self.level)
        level, power, coefficient = (tensor_of(x, torch.float64) for x in tail)
        same, next_level = level == 1, level == 2
        changed = torch.where(same, coefficient * self.coefficient**power, coefficient)
        changed = torch.where(next_level, coefficient * self.power**power, changed)
        power = torch.where(same, power * self.power, power)
        return Tail(torch.where(level >= 1, level - 1 + self.level, torch.nan), power, changed)


_OF_EXP = Growth(0)
_NO_CHANGE = Growth(1)


class _MappedDensity(Density):
    """The density of an increasing function of a variable, whose support may be smaller than the function's domain."""

    part: Density
    # How the function grows towards its infinite ends.
    _growths: ClassVar[tuple[Growth, Growth]] = (_OF_EXP, _OF_EXP)
    # The images of -inf and of +inf; None is infinite.
    _images_of_infinity: ClassVar[tuple[float | None, float | None]] = (0.0, None)

    def low(self) -> Tensor | None:
        end = self._part_end(0)
        return self._image_of_infinity(0) if end is None else self._image(end)

    def high(self) -> Tensor | None:
        end = self._part_end(1)
        return self._image_of_infinity(1) if end is None else self._image(end)

    def pieces(self) -> tuple[Tensor, Tensor] | None:
        pieces = self.part.pieces()
        return None if pieces is None else (self._image(pieces[0]), self._image(pieces[1]))

    def _part_end(self, side: int) -> Tensor | None:
        """Return the end of the part's support; None if its image is the image of infinity."""
        return self.part.high() if side else self.part.low()

    def _tail_end(self, side: int) -> Tensor | None:
        """Return the same; infinite for the elements of a batch that it is None for."""
        return self._part_end(side)

    def _image_of_infinity(self, side: int) -> Tensor | None:
        x = self._images_of_infinity[side]
        return None if x is None else torch.full((), x, dtype=torch.float64, device="cpu")

    def log_density(self, at: Points) -> Tensor:
        inner = self._inverse(at)
        log_derivative = self._log_derivative(inner, at)
        # Farther out, the density of x and dx nearly cancel, and rounding destroys their product. The mass there
        # counts as 0. The logarithm stays finite, so that a density which has mass there is not infinitely far.
        is_kept = log_derivative.detach().abs() < _FARTHEST
        beyond = -log_derivative - log_derivative.abs()
        return torch.where(is_kept, self.part.log_density(inner) - log_derivative, beyond)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        center, width = self.part.center_and_width()
        if self._keeps_coordinate():
            return center, width
        low, middle, high = (self._own_coordinate(center + side * width) for side in (-1, 0, 1))
        return middle, (high - low).abs() / 2

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        peaks = self.part.breakpoints(steps)
        return peaks if self._keeps_coordinate() else [self._own_coordinate(marks) for marks in peaks]

    def nonsmooth_points(self) -> list[Tensor]:
        return [self._image(point) for point in self.part.nonsmooth_points()]

    def image_coordinate(self, t: Tensor) -> Tensor:
        """Convert the part's coordinate to the coordinate of this density."""
        return t if self._keeps_coordinate() else self._own_coordinate(t)

    def _own_coordinate(self, t: Tensor) -> Tensor:
        """Convert the part's coordinate to the coordinate of this density, also where they are the same."""
        at = self.part.coordinate().points(t)
        own = Coordinate(self.low(), self.high())
        log_above, log_below = self._log_distances(at)
        if own.low is None and own.high is None:
            return self._image(at.x)
        if own.low is None or own.high is None:
            return -log_below if own.low is None else log_above
        return torch.where(own.high.isinf(), log_above, log_above - log_below)

    def _keeps_coordinate(self) -> bool:
        """Return whether the image has the coordinate of the part, whose support is the whole line."""
        return self.part.low() is None and self.part.high() is None

    def lower_tail(self) -> Tail:
        return self._tail(self.part.lower_tail(), 0)

    def upper_tail(self) -> Tail:
        return self._tail(self.part.upper_tail(), 1)

    def _beyond(self, tail: Tail, side: int) -> Tail:
        """Return the tail at the image of infinity from the part's tail."""
        return self._growths[side].after(tail)

    def _tail(self, tail: Tail, side: int) -> Tail:
        """Return the tail at the image of an end from the part's tail."""
        beyond, end = self._beyond(tail, side), self._tail_end(side)
        if end is None:
            return beyond
        endless = end.isinf()
        at_end = tail.in_unit(self._derivative_at(torch.where(endless, 1.0, end)))
        both = zip(at_end, beyond, strict=True)
        return Tail(*(torch.where(endless, tensor_of(y, torch.float64), x) for x, y in both))

    # A subclass defines its function by the methods below.

    @abstractmethod
    def _image(self, y: Tensor) -> Tensor:
        """Return the function of y."""

    @abstractmethod
    def _derivative_at(self, end: Tensor) -> Tensor:
        """Return the derivative of the function at an end of the part's support."""

    @abstractmethod
    def _log_derivative(self, inner: Points, at: Points) -> Tensor:
        """Return the logarithm of the derivative, from the points and their images."""

    @abstractmethod
    def _inverse(self, at: Points) -> Points:
        """Return the preimages of points, in the part's support."""

    @abstractmethod
    def _log_distances(self, inner: Points) -> tuple[Tensor, Tensor]:
        """Return the logarithms of the distances of the images from the lower and the upper end."""


@dataclass(frozen=True)
class ExpDensity(_MappedDensity):
    """The density of e^y."""

    part: Density

    def _image(self, y: Tensor) -> Tensor:
        return torch.exp(y)

    def _derivative_at(self, end: Tensor) -> Tensor:
        return torch.exp(end)

    def _log_derivative(self, inner: Points, at: Points) -> Tensor:
        return inner.x

    def _inverse(self, at: Points) -> Points:
        low, high = self.part.low(), self.part.high()
        y = at.log_above(0.0)
        above = None if low is None else _log_log1p(at.log_above(torch.exp(low)) - low)
        below = None if high is None else _log_minus_log1p(at.log_below(torch.exp(high)) - high, high - y)
        return Points(y, low, above, high, below)

    def _log_distances(self, inner: Points) -> tuple[Tensor, Tensor]:
        above, below = inner.x, inner.x
        if inner.low is not None and inner.log_above_low is not None:
            above = inner.low + _log_expm1(inner.log_above_low)
        if inner.high is not None and inner.log_below_high is not None:
            below = inner.high + _log_minus_expm1(inner.log_below_high)
        return above, below


class _InverseMappedDensity(_MappedDensity):
    """The density of the inverse of such a function, whose infinite ends are the ends of the function's image."""

    _images_of_infinity: ClassVar[tuple[float | None, float | None]] = (None, None)
    # The ends of the image of the line; None is infinite.
    _edges: ClassVar[tuple[float | None, float | None]] = (0.0, None)
    reaches: tuple[bool, bool]
    """Whether the part's support begins, or ends, where the image of the line does."""

    def _part_end(self, side: int) -> Tensor | None:
        return None if self.reaches[side] else super()._part_end(side)

    def _tail_end(self, side: int) -> Tensor | None:
        end, edge = self._part_end(side), self._edges[side]
        return end if end is None or edge is None else torch.where(end == edge, torch.inf, end)

    def _beyond(self, tail: Tail, side: int) -> Tail:
        return self._growths[side].before(tail)

    def log_density(self, at: Points) -> Tensor:
        # These derivatives are large where the density is small, so nothing cancels.
        inner = self._inverse(at)
        return self.part.log_density(inner) - self._log_derivative(inner, at)


@dataclass(frozen=True)
class LogDensity(_InverseMappedDensity):
    """The density of log y, for a positive y."""

    part: Density
    reaches: tuple[bool, bool]

    def _keeps_coordinate(self) -> bool:
        return self.low() is None and self.high() is None

    def _image(self, y: Tensor) -> Tensor:
        return torch.log(y)

    def _derivative_at(self, end: Tensor) -> Tensor:
        return 1 / end

    def _log_derivative(self, inner: Points, at: Points) -> Tensor:
        return -at.x

    def _inverse(self, at: Points) -> Points:
        low, high = self.low(), self.part.high()
        above = at.x if low is None else low + _log_expm1(at.log_above(low))
        below = None
        if high is not None:
            below = torch.log(high) + _log_minus_expm1(at.log_below(torch.log(high)))
        return Points(torch.exp(at.x), self.part.low(), above, high, below)

    def _log_distances(self, inner: Points) -> tuple[Tensor, Tensor]:
        low, log_y = self.low(), torch.log(inner.x)
        above, below = log_y, log_y
        if low is not None and inner.log_above_low is not None:
            above = _log_log1p(inner.log_above_low - low)
        if inner.high is not None and inner.log_below_high is not None:
            log_high = torch.log(inner.high)
            below = _log_minus_log1p(inner.log_below_high - log_high, log_high - log_y)
        return above, below


@dataclass(frozen=True)
class SigmoidDensity(_MappedDensity):
    """The density of 1 / (1 + e^-y)."""

    part: Density
    _images_of_infinity: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def _image(self, y: Tensor) -> Tensor:
        return torch.sigmoid(y)

    def _derivative_at(self, end: Tensor) -> Tensor:
        return torch.sigmoid(end) * torch.sigmoid(-end)

    def _logs(self, at: Points) -> tuple[Tensor, Tensor]:
        """Return log x and log(1 - x)."""
        log_x = at.log_above(0.0) if self.part.low() is None else torch.log(at.x)
        return log_x, at.log_below(1.0) if self.part.high() is None else torch.log1p(-at.x)

    def _log_derivative(self, inner: Points, at: Points) -> Tensor:
        return sum(self._logs(at), torch.zeros((), dtype=torch.float64, device="cpu"))

    def _inverse(self, at: Points) -> Points:
        low, high = self.part.low(), self.part.high()
        log_x, log_rest = self._logs(at)
        y = log_x - log_rest
        above, below = None, None
        if low is not None:
            above = _log_logit_difference(
                at.log_above(torch.sigmoid(low)), logsigmoid(low), logsigmoid(-low), y - low
            )
        if high is not None:
            distance = at.log_below(torch.sigmoid(high))
            below = _log_logit_difference(distance, logsigmoid(-high), logsigmoid(high), high - y)
        return Points(y, low, above, high, below)

    def _log_distances(self, inner: Points) -> tuple[Tensor, Tensor]:
        above, below = logsigmoid(inner.x), logsigmoid(-inner.x)
        if inner.low is not None and inner.log_above_low is not None:
            above = above + logsigmoid(-inner.low) + _log_minus_expm1(inner.log_above_low)
        if inner.high is not None and inner.log_below_high is not None:
            below = below + logsigmoid(inner.high) + _log_minus_expm1(inner.log_below_high)
        return above, below


@dataclass(frozen=True)
class LogitDensity(_InverseMappedDensity):
    """The density of log(y / (1 - y)), for a y between 0 and 1."""

    part: Density
    reaches: tuple[bool, bool]
    _edges: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def _keeps_coordinate(self) -> bool:
        return all(self.reaches)

    def _image(self, y: Tensor) -> Tensor:
        return torch.log(y) - torch.log1p(-y)

    def _derivative_at(self, end: Tensor) -> Tensor:
        return 1 / (end * (1 - end))

    def _log_derivative(self, inner: Points, at: Points) -> Tensor:
        return -logsigmoid(at.x) - logsigmoid(-at.x)

    def _inverse(self, at: Points) -> Points:
        low, high = self.low(), self.high()
        above, below = logsigmoid(at.x), logsigmoid(-at.x)
        if low is not None:
            above = logsigmoid(low) + logsigmoid(-at.x) + _log_expm1(at.log_above(low))
        if high is not None:
            below = logsigmoid(-high) + logsigmoid(at.x) + _log_expm1(at.log_below(high))
        return Points(torch.sigmoid(at.x), self.part.low(), above, self.part.high(), below)

    def _log_distances(self, inner: Points) -> tuple[Tensor, Tensor]:
        low, high = self._part_end(0), self._part_end(1)
        log_y, log_rest = inner.log_above(0.0), inner.log_below(1.0)
        y = log_y - log_rest
        above, below = y, y
        if low is not None and inner.log_above_low is not None:
            start = self._image(low)
            above = _log_logit_difference(inner.log_above_low, torch.log(low), torch.log1p(-low), y - start)
        if high is not None and inner.log_below_high is not None:
            stop = self._image(high)
            below = _log_logit_difference(inner.log_below_high, torch.log1p(-high), torch.log(high), stop - y)
        return above, below


@dataclass(frozen=True)
class SoftplusDensity(_MappedDensity):
    """The density of log(1 + e^y)."""

    part: Density
    _growths: ClassVar[tuple[Growth, Growth]] = (_OF_EXP, _NO_CHANGE)

    def _image(self, y: Tensor) -> Tensor:
        return _softplus(y)

    def _derivative_at(self, end: Tensor) -> Tensor:
        return torch.sigmoid(end)

    def _log_derivative(self, inner: Points, at: Points) -> Tensor:
        return logsigmoid(inner.x)

    def _inverse(self, at: Points) -> Points:
        low, high = self.part.low(), self.part.high()
        # x is log(1 + e^y), so y is log(e^x - 1).
        y = _log_expm1(at.log_above(0.0))
        above, below = None, None
        if low is not None:
            above = _log_log1p(_log_expm1(at.log_above(_softplus(low))) - logsigmoid(low))
        if high is not None:
            distance = at.log_below(_softplus(high))
            below = _log_minus_log1p(_log_minus_expm1(distance) - logsigmoid(high), high - y)
        return Points(y, low, above, high, below)

    def _log_distances(self, inner: Points) -> tuple[Tensor, Tensor]:
        above, below = _log_log1p(inner.x), inner.x
        if inner.low is not None and inner.log_above_low is not None:
            above = _log_log1p(logsigmoid(inner.low) + _log_expm1(inner.log_above_low))
        if inner.high is not None and inner.log_below_high is not None:
            rest = _softplus(inner.high) - _softplus(inner.x)
            log_share = logsigmoid(inner.high) + _log_minus_expm1(inner.log_below_high)
            below = _log_minus_log1p(log_share, rest)
        return above, below


@dataclass(frozen=True)
class SoftplusInverseDensity(_InverseMappedDensity):
    """The density of log(e^y - 1), for a positive y."""

    part: Density
    reaches: tuple[bool, bool]
    _growths: ClassVar[tuple[Growth, Growth]] = (_OF_EXP, _NO_CHANGE)

    def _keeps_coordinate(self) -> bool:
        return False

    def _image(self, y: Tensor) -> Tensor:
        return y + torch.log(-torch.expm1(-y))

    def _derivative_at(self, end: Tensor) -> Tensor:
        return -1 / torch.expm1(-end)

    def _log_derivative(self, inner: Points, at: Points) -> Tensor:
        return -logsigmoid(at.x)

    def _inverse(self, at: Points) -> Points:
        low, high = self.low(), self.high()
        above, below = _log_log1p(at.x), None
        if low is not None:
            above = _log_log1p(logsigmoid(low) + _log_expm1(at.log_above(low)))
        if high is not None:
            rest = _softplus(high) - _softplus(at.x)
            below = _log_minus_log1p(logsigmoid(high) + _log_minus_expm1(at.log_below(high)), rest)
        return Points(_softplus(at.x), self.part.low(), above, self.part.high(), below)

    def _log_distances(self, inner: Points) -> tuple[Tensor, Tensor]:
        low, high = self.low(), self.high()
        y = _log_expm1(inner.log_above(0.0))
        above, below = y, y
        if low is not None and inner.log_above_low is not None:
            above = _log_log1p(_log_expm1(inner.log_above_low) - logsigmoid(low))
        if high is not None and inner.log_below_high is not None:
            log_share = _log_minus_expm1(inner.log_below_high) - logsigmoid(high)
            below = _log_minus_log1p(log_share, high - y)
        return above, below


class SymmetricCurve(NamedTuple):
    """The distribution function of a standard distribution that is symmetric about 0, in logarithms."""

    log_mass: Callable[[Tensor], Tensor]
    """The logarithm of the mass below y."""
    quantile: Callable[[Tensor], Tensor]
    """The y below which there is a mass of at most 1/2, from the mass's logarithm."""
    log_density: Callable[[Tensor], Tensor]
    growth: Growth

    def inverse(self, log_below: Tensor, log_above: Tensor) -> Tensor:
        """Return y from the logarithms of the masses below and above it."""
        is_below = log_below < log_above
        size = self.quantile(
            torch.minimum(torch.minimum(log_below, log_above), log_below.new_tensor(_LOG_HALF))
        )
        return torch.where(is_below, size, -size)


_LOG_HALF = math.log(0.5)


def _normal_log_mass(y: Tensor) -> Tensor:
    """Return log of the standard normal mass below y; torch's derivative is NaN where y^2 overflows."""
    far = y < -_FAR_OUT
    size = -y.clamp(_LEAST, -_FAR_OUT)
    asymptote = -(size**2) / 2 - torch.log(size) - HALF_LOG_2PI + torch.log1p(-1 / size**2)
    return torch.where(far, asymptote, torch.special.log_ndtr(torch.where(far, 0.0, y)))


def _normal_quantile(log_mass: Tensor) -> Tensor:
    """Return the standard normal quantile, by Newton's method; the last two steps give two derivatives."""
    fixed = log_mass.detach()
    square = (-2 * fixed).clamp(min=10.0)
    start = -torch.sqrt(square - math.log(2 * math.pi) - torch.log(square))
    y = torch.where(fixed > -700, torch.special.ndtri(torch.exp(fixed.clamp(min=-700))), start)
    for _ in range(3):
        mass, size = _normal_log_mass(y), -y.clamp(_LEAST, -_FAR_OUT)
        far = y < -_FAR_OUT
        near = torch.exp(-(torch.where(far, 0.0, y) ** 2) / 2 - HALF_LOG_2PI - torch.where(far, 0.0, mass))
        y = y + (log_mass - mass) / torch.where(far, size + 1 / size, near)
    return y


# Farther out, the mass below -y is its density divided by y + 1/y.
_FAR_OUT, _LEAST = 1e4, -1e150


def _cauchy_log_mass(y: Tensor) -> Tensor:
    return torch.log(torch.atan2(torch.ones_like(y), -y) / math.pi)


def _cauchy_quantile(log_mass: Tensor) -> Tensor:
    tiny = log_mass < -30
    angle = math.pi * torch.exp(torch.where(tiny, -1.0, log_mass))
    return torch.where(tiny, -torch.exp(-log_mass.clamp(min=-690)) / math.pi, -1 / torch.tan(angle))


def _cauchy_log_density(y: Tensor) -> Tensor:
    return -log_one_plus_square(y) - math.log(math.pi)


def _laplace_log_mass(y: Tensor) -> Tensor:
    return torch.where(y < 0, y - math.log(2), torch.log1p(-torch.exp(-y.clamp(min=0)) / 2))


NORMAL = SymmetricCurve(
    _normal_log_mass, _normal_quantile, lambda y: -(y**2) / 2 - HALF_LOG_2PI, Growth(0, 2.0, 0.5, False)
)
LAPLACE = SymmetricCurve(
    _laplace_log_mass,
    lambda log_mass: log_mass + math.log(2),
    lambda y: -y.abs() - math.log(2),
    Growth(0, 1.0, 1.0, False),
)
CAUCHY = SymmetricCurve(_cauchy_log_mass, _cauchy_quantile, _cauchy_log_density, Growth(1, 1.0, 1.0, False))


@dataclass(frozen=True)
class CurveDensity(_MappedDensity):
    """The density of F(y) for a distribution function F and a y on the whole line."""

    part: Density
    curve: SymmetricCurve
    _images_of_infinity: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def _keeps_coordinate(self) -> bool:
        return False

    def _image(self, y: Tensor) -> Tensor:
        return torch.exp(self.curve.log_mass(y))

    def _derivative_at(self, end: Tensor) -> Tensor:
        return torch.exp(self.curve.log_density(end))

    def _log_derivative(self, inner: Points, at: Points) -> Tensor:
        return self.curve.log_density(inner.x)

    def _inverse(self, at: Points) -> Points:
        return Points(self.curve.inverse(at.log_above(0.0), at.log_below(1.0)))

    def _log_distances(self, inner: Points) -> tuple[Tensor, Tensor]:
        return self.curve.log_mass(inner.x), self.curve.log_mass(-inner.x)

    def _beyond(self, tail: Tail, side: int) -> Tail:
        return self.curve.growth.after(tail)


@dataclass(frozen=True)
class CurveInverseDensity(_InverseMappedDensity):
    """The density of the inverse of a distribution function of y, whose support is from 0 to 1."""

    part: Density
    curve: SymmetricCurve
    reaches: tuple[bool, bool] = (True, True)
    _edges: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)

    def _keeps_coordinate(self) -> bool:
        return False

    def _image(self, y: Tensor) -> Tensor:
        return self.curve.inverse(torch.log(y), torch.log1p(-y))

    def _derivative_at(self, end: Tensor) -> Tensor:
        return torch.exp(-self.curve.log_density(self._image(end)))

    def _log_derivative(self, inner: Points, at: Points) -> Tensor:
        return -self.curve.log_density(at.x)

    def _inverse(self, at: Points) -> Points:
        above, below = self.curve.log_mass(at.x), self.curve.log_mass(-at.x)
        return Points(torch.exp(above), self.part.low(), above, self.part.high(), below)

    def _own_coordinate(self, t: Tensor) -> Tensor:
        at = self.part.coordinate().points(t)
        return self.curve.inverse(at.log_above(0.0), at.log_below(1.0))

    def _log_distances(self, inner: Points) -> tuple[Tensor, Tensor]:
        raise NotImplementedError  # both ends are infinite

    def _beyond(self, tail: Tail, side: int) -> Tail:
        return self.curve.growth.before(tail)


def _softplus(y: Tensor) -> Tensor:
    """Return log(1 + e^y); torch's function rounds it to y above a threshold."""
    return -logsigmoid(-y)


def _log_expm1(log_d: Tensor) -> Tensor:
    """Return log(e^d - 1) from log d."""
    d = torch.exp(log_d.clamp(-30, 4))
    return torch.where(
        log_d < -30, log_d, torch.where(log_d > 4, torch.exp(log_d), torch.log(torch.expm1(d)))
    )


def _log_minus_expm1(log_d: Tensor) -> Tensor:
    """Return log(1 - e^-d) from log d."""
    return torch.where(log_d < -30, log_d, torch.log(-torch.expm1(-torch.exp(log_d.clamp(-30, 7)))))


def _log_log1p(log_d: Tensor) -> Tensor:
    """Return log(log(1 + d)) from log d."""
    close = torch.log(torch.log1p(torch.exp(log_d.clamp(-30, 30))))
    return torch.where(log_d < -30, log_d, torch.where(log_d > 30, torch.log(log_d.clamp(min=1)), close))


def _log_minus_log1p(log_d: Tensor, result: Tensor) -> Tensor:
    """Return log(-log(1 - d)) from log d; `result` is -log(1 - d), which is used where d is near 1."""
    d = torch.exp(log_d.clamp(-30, -0.1))
    far = torch.log(torch.where(log_d > -0.1, result, 1))
    return torch.where(log_d < -30, log_d, torch.where(log_d > -0.1, far, torch.log(-torch.log1p(-d))))


def _log_logit_difference(log_d: Tensor, log_x: Tensor, log_rest: Tensor, result: Tensor) -> Tensor:
    """Return the logarithm of logit(x + d) - logit(x) from log d, log x and log(1 - x).

    `result` is the difference itself, which is used where it is large.
    """
    first, second = log_d - log_x, log_d - log_rest
    tiny, large = torch.maximum(first, second) < -30, result > 1
    usual = ~(tiny | large)
    one, two = (torch.exp(torch.where(usual, ratio, -1.0)) for ratio in (first, second))
    close = torch.log(torch.log1p(one) - torch.log1p(-two))
    far = torch.log(torch.where(large, result, 1))
    return torch.where(tiny, log_d - log_x - log_rest, torch.where(large, far, close))
