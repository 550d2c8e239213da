"""The densities of monotone maps of variables on the line."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import RelaxedBernoulli, TransformedDistribution
from torch.distributions.transforms import (
    AffineTransform,
    ExpTransform,
    PowerTransform,
    SigmoidTransform,
    SoftplusTransform,
    TanhTransform,
    Transform,
)
from torch.nn.functional import logsigmoid

from kullback.common.dtypes import tensor_of, upcast
from kullback.pairs.densities.density import (
    Coordinate,
    Density,
    Points,
    Tail,
    density_of,
    register_density,
)
from kullback.pairs.densities.image import density_on_image, ends_after, steps_of
from kullback.pairs.densities.real_densities import logit_relaxed_bernoulli

_FARTHEST = 1e14


@dataclass(frozen=True)
class AffineDensity(Density):
    """The density of loc + scale y, where y has another density. All scales have the same sign."""

    part: Density
    loc: Tensor
    scale: Tensor
    falls: bool

    def low(self) -> Tensor | None:
        end = self.part.high() if self.falls else self.part.low()
        return None if end is None else self.loc + self.scale * end

    def high(self) -> Tensor | None:
        end = self.part.low() if self.falls else self.part.high()
        return None if end is None else self.loc + self.scale * end

    def log_density(self, at: Points) -> Tensor:
        log_scale = torch.log(self.scale.abs())
        low, high = self.low(), self.high()
        below = None if low is None else at.log_above(low) - log_scale
        above = None if high is None else at.log_below(high) - log_scale
        if self.falls:
            below, above = above, below
        own = Points((at.x - self.loc) / self.scale, self.part.low(), below, self.part.high(), above)
        return self.part.log_density(own) - log_scale

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        center, width = self.part.center_and_width()
        own = self.part.coordinate()
        is_line = own.low is None and own.high is None
        return self._own_coordinate(center), width * self.scale.abs() if is_line else width

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        return [self._own_coordinate(marks) for marks in self.part.breakpoints(steps)]

    def nonsmooth_points(self) -> list[Tensor]:
        return [self.loc + self.scale * point for point in self.part.nonsmooth_points()]

    def image_coordinate(self, t: Tensor) -> Tensor:
        """Convert the part's coordinate to the coordinate of this density."""
        return self._own_coordinate(t)

    def _own_coordinate(self, t: Tensor) -> Tensor:
        """Convert the part's coordinate to the coordinate of this density."""
        own = self.part.coordinate()
        if own.low is None and own.high is None:
            return self.loc + self.scale * t
        shift = 0.0 if own.low is not None and own.high is not None else torch.log(self.scale.abs())
        shift = -shift if own.low is None else shift
        return -(t + shift) if self.falls else t + shift

    def tail_factor(self) -> Tensor | float:
        return self.part.tail_factor()

    def lower_tail(self) -> Tail:
        return self._tail(self.part.upper_tail() if self.falls else self.part.lower_tail(), self.low(), -1)

    def upper_tail(self) -> Tail:
        return self._tail(self.part.lower_tail() if self.falls else self.part.upper_tail(), self.high(), 1)

    def _tail(self, tail: Tail, end: Tensor | None, side: int) -> Tail:
        size = self.scale.abs()
        return tail.in_unit(1 / size).shifted(-side * self.loc) if end is None else tail.in_unit(size)


class _MappedDensity(Density):
    """The density of an increasing function of a variable, whose support may be smaller than the function's domain."""

    part: Density
    # An infinite end adds this number to the level of a tail.
    _levels: ClassVar[int] = 1
    # The images of -inf and of +inf; None is infinite.
    _images_of_infinity: ClassVar[tuple[float | None, float | None]] = (0.0, None)

    def low(self) -> Tensor | None:
        end = self.part.low()
        return self._image_of_infinity(0) if end is None else self._image(end)

    def high(self) -> Tensor | None:
        end = self.part.high()
        return self._image_of_infinity(1) if end is None else self._image(end)

    def _image_of_infinity(self, side: int) -> Tensor | None:
        x = self._images_of_infinity[side]
        return None if x is None else torch.full((), x, dtype=torch.float64, device="cpu")

    def log_density(self, at: Points) -> Tensor:
        inner = self._inverse(at)
        log_derivative = self._log_derivative(inner, at)
        # Farther out, the density of x and dx nearly cancel, and rounding destroys their product.
        is_kept = log_derivative.detach().abs() < _FARTHEST
        return torch.where(is_kept, self.part.log_density(inner) - log_derivative, -torch.inf)

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
        return self._tail(self.part.lower_tail(), self.part.low())

    def upper_tail(self) -> Tail:
        return self._tail(self.part.upper_tail(), self.part.high())

    def _tail(self, tail: Tail, end: Tensor | None) -> Tail:
        """Return the tail at the image of an end from the part's tail; at infinity the level changes."""
        beyond = tail._replace(level=tail.level + self._levels)
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


@dataclass(frozen=True)
class LogDensity(_MappedDensity):
    """The density of log y, for a positive y."""

    part: Density
    _levels: ClassVar[int] = -1
    _images_of_infinity: ClassVar[tuple[float | None, float | None]] = (None, None)

    def low(self) -> Tensor | None:
        end = self.part.low()
        return None if end is None or bool((end == 0).all()) else torch.log(end)

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

    def lower_tail(self) -> Tail:
        end = None if self.low() is None else self.part.low()
        return self._tail(
            self.part.lower_tail(), end if end is None else torch.where(end == 0, torch.inf, end)
        )


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


register_density(RelaxedBernoulli)(lambda d: SigmoidDensity(logit_relaxed_bernoulli(d.base_dist)))


@register_density(TransformedDistribution)
def _transformed(d: TransformedDistribution) -> Density | None:
    current = density_of(d.base_dist)
    if current is None or current.integer:
        return None
    ends: tuple[Tensor | None, Tensor | None] | None = current.low(), current.high()
    image: Density | None = current
    for step in steps_of(d.transforms):
        image = None if image is None else _after(image, step)
        ends = None if ends is None else ends_after(ends, step)
    return density_on_image(d, ends) if image is None and ends is not None else image


def _after(part: Density, step: Transform) -> Density | None:
    """Return the density of a transformed variable; None if it is not known."""
    zero, one, two = (torch.full((), x, dtype=torch.float64, device="cpu") for x in (0.0, 1.0, 2.0))
    inverse = getattr(step, "_inv", None) if type(step).__name__ == "_InverseTransform" else None
    if isinstance(step, AffineTransform) and step.event_dim == 0:
        loc, scale = (upcast(tensor_of(x)) for x in (step.loc, step.scale))
        return _affine(part, loc, scale)
    if isinstance(step, ExpTransform | SigmoidTransform):
        return ExpDensity(part) if isinstance(step, ExpTransform) else SigmoidDensity(part)
    if isinstance(step, TanhTransform | SoftplusTransform):
        if isinstance(step, SoftplusTransform):  # log(1 + e^y)
            return LogDensity(AffineDensity(ExpDensity(part), one, one, falls=False))
        doubled = AffineDensity(part, zero, two, falls=False)
        return AffineDensity(SigmoidDensity(doubled), -one, two, falls=False)
    if isinstance(inverse, ExpTransform) or isinstance(step, PowerTransform):
        exponent = upcast(tensor_of(step.exponent)) if isinstance(step, PowerTransform) else None
        return _after_logarithm(part, exponent)
    return _logit(part) if isinstance(inverse, SigmoidTransform) else None


def _logit(part: Density) -> Density | None:
    """Return the density of -log(1 / X - 1); None unless X is known to be between 0 and 1."""
    low, high = part.low(), part.high()
    if low is None or high is None or not bool(((low >= 0) & (high <= 1)).all()):
        return None
    zero, one = (torch.full((), x, dtype=torch.float64, device="cpu") for x in (0.0, 1.0))
    inverse = ExpDensity(AffineDensity(LogDensity(part), zero, -one, falls=True))
    odds = LogDensity(AffineDensity(inverse, -one, one, falls=False))
    return AffineDensity(odds, zero, -one, falls=True)


def _after_logarithm(part: Density, exponent: Tensor | None) -> Density | None:
    """Return the density of log X, or of X^exponent; None unless X is known to be positive."""
    end = part.low()
    if end is None or not bool((end >= 0).all()):
        return None
    if exponent is None:
        return LogDensity(part)
    powered = _affine(LogDensity(part), torch.zeros_like(exponent), exponent)
    return None if powered is None else ExpDensity(powered)


def _affine(part: Density, loc: Tensor, scale: Tensor) -> Density | None:
    if bool((scale > 0).all()) or bool((scale < 0).all()):
        return AffineDensity(part, loc, scale, bool((scale < 0).all()))
    return None
