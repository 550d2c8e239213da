"""The densities of x = f(y) for an increasing f: exp, sigmoid, softplus, distribution functions, and their inverses.

An `Increasing` record describes f by the logarithms of the distances of x and y from the ends of their supports. The
functions are not composed of elementary functions, because log(e^y - 1), for example, would overflow for a large y,
although the result is about y.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from kullback.common.dtypes import tensor_of
from kullback.common.special import HALF_LOG_2PI
from kullback.pairs.densities.density import Coordinate, Density, Points, Tail, log_one_plus_square

# _FARTHEST is the largest |log f'(y)|, because the sum of a larger logarithm and a number near 1 keeps at most two
# digits of the number.
_FARTHEST = 1e14


class Growth(NamedTuple):
    """How an increasing function changes a tail at infinity: log u' grows as coefficient z^power.

    For x = f(y), u is |y|. If f(infinity) is infinite, u' is |x|; otherwise u' is 1 / |x - f(infinity)|. The variable z
    is the logarithm of u taken `level` times, like y in `Tail`.
    """

    level: int
    power: float = 1.0
    coefficient: float = 1.0
    is_exact: bool = True
    """Whether log u' - coefficient z^power converges to 0; otherwise the limit may be another constant."""

    def after(self, tail: Tail) -> Tail:
        """Return the tail of x = f(y) from the tail of y."""
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
        """Return the tail of y from the tail of x = f(y)."""
        if self[1:] == (1.0, 1.0, True):
            return tail._replace(level=tail.level - 1 + self.level)
        level, power, coefficient = (tensor_of(x, torch.float64) for x in tail)
        same, next_level = level == 1, level == 2
        changed = torch.where(same, coefficient * self.coefficient**power, coefficient)
        changed = torch.where(next_level, coefficient * self.power**power, changed)
        power = torch.where(same, power * self.power, power)
        return Tail(torch.where(level >= 1, level - 1 + self.level, torch.nan), power, changed)


Function = Callable[[Tensor], Tensor]


class Increasing(NamedTuple):
    """An increasing function x = f(y), and its inverse.

    In a pair of functions, the first belongs to the lower end of a support, and the second to the upper end.

    Attributes:
        image: f.
        inverse: the inverse of f.
        slope: f'(y), from y.
        inverse_slope: the derivative of the inverse of f, from x.
        log_slope: log f'(y), from y.
        preimage: y, from `Points` with x and the distances of x from f(-inf) and f(+inf).
        from_infinity: log(x - f(-inf)) and log(f(+inf) - x), from y.
        after: log |x - f(end)|, from log |y - end|, the end and y.
        before: log |y - end|, from log |x - f(end)|, the end, f(end) and y.
        limits: f(-inf) and f(+inf); an infinite limit is None.
        growths: how f changes a tail at -inf and at +inf.
        keeps_coordinate: whether y is the `Coordinate` of x, such as y = log x for x = e^y.
        corner: the y at which log f' has a corner, or None.
    """

    image: Function
    inverse: Function
    slope: Function
    inverse_slope: Function
    log_slope: Function
    preimage: Callable[[Points], Tensor]
    from_infinity: Callable[[Tensor], tuple[Tensor, Tensor]]
    after: tuple[Callable[[Tensor, Tensor, Tensor], Tensor], ...] = ()
    before: tuple[Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], ...] = ()
    limits: tuple[float | None, float | None] = (0.0, None)
    growths: tuple[Growth, Growth] = (Growth(0), Growth(0))
    keeps_coordinate: bool = True
    corner: float | None = None


@dataclass(frozen=True)
class MappedDensity(Density):
    """The density of x = f(y), where y has the density `part` and f is `function`."""

    part: Density
    function: Increasing

    @property
    def low(self) -> Tensor | None:
        return self._end(0)

    @property
    def high(self) -> Tensor | None:
        return self._end(1)

    def _end(self, side: int) -> Tensor | None:
        end = self._part_end(side)
        return self._image_of_infinity(side) if end is None else self._image(end)

    def pieces(self) -> tuple[Tensor, Tensor] | None:
        pieces = self.part.pieces()
        return None if pieces is None else (self._image(pieces[0]), self._image(pieces[1]))

    def _part_end(self, side: int) -> Tensor | None:
        """Return an end of the part's support, or None if the end is infinite or is mapped to infinity."""
        return self.part.high if side else self.part.low

    def _tail_end(self, side: int) -> Tensor | None:
        """Return `_part_end`, with infinity for the batch elements whose end is infinite or is mapped to infinity."""
        return self._part_end(side)

    def _image_of_infinity(self, side: int) -> Tensor | None:
        x = self.function.limits[side]
        return None if x is None else torch.full((), x, dtype=torch.float64, device="cpu")

    def log_density(self, at: Points) -> Tensor:
        inner = self._before(at)
        log_derivative = self._log_slope(inner, at)
        # If |log f'(y)| is very large, log p(y) - log f'(y) loses all digits of log p(y). The mass of these points
        # counts as 0, but the log-density is finite, so that these points do not make a divergence infinite.
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
        points, corner = [*map(self._image, self.part.nonsmooth_points())], self.function.corner
        if corner is not None:
            points.append(self._own_corner(torch.full((1,), corner, dtype=torch.float64, device="cpu")))
        return points

    def _own_corner(self, y: Tensor) -> Tensor:
        """Return the x at which the density has the corner that the function has at y."""
        return self._image(y)

    def image_coordinate(self, t: Tensor) -> Tensor:
        """Return the coordinate of f(y) from the part's coordinate t of y."""
        return t if self._keeps_coordinate() else self._own_coordinate(t)

    def _own_coordinate(self, t: Tensor) -> Tensor:
        """Return the coordinate of f(y) from the part's coordinate t of y, by computation even if it equals t."""
        at = self.part.coordinate().points(t)
        own = Coordinate(self.low, self.high)
        log_above, log_below = self._log_distances(at)
        if own.low is None and own.high is None:
            return self._image_of(at)
        if own.low is None or own.high is None:
            return -log_below if own.low is None else log_above
        return torch.where(own.high.isinf(), log_above, log_above - log_below)

    def _keeps_coordinate(self) -> bool:
        """Return whether the coordinate of x = f(y) is y; this requires that the part's support is the whole line."""
        return self.function.keeps_coordinate and self.part.low is None and self.part.high is None

    def lower_tail(self) -> Tail:
        return self._tail(self.part.lower_tail(), 0)

    def upper_tail(self) -> Tail:
        return self._tail(self.part.upper_tail(), 1)

    def _beyond(self, tail: Tail, side: int) -> Tail:
        """Return the tail of x from the part's tail, at an end where `_part_end` is None."""
        return self.function.growths[side].after(tail)

    def _tail(self, tail: Tail, side: int) -> Tail:
        """Return the tail of x at the image of an end, from the part's tail at this end."""
        beyond, end = self._beyond(tail, side), self._tail_end(side)
        if end is None:
            return beyond
        endless = end.isinf()
        at_end = tail.in_unit(self._slope(torch.where(endless, 1.0, end)))
        both = zip(at_end, beyond, strict=True)
        return Tail(*(torch.where(endless, tensor_of(y, torch.float64), x) for x, y in both))

    def _image(self, y: Tensor) -> Tensor:
        return self.function.image(y)

    def _image_of(self, inner: Points) -> Tensor:
        return self._image(inner.x)

    def _slope(self, end: Tensor) -> Tensor:
        return self.function.slope(end)

    def _log_slope(self, inner: Points, at: Points) -> Tensor:
        return self.function.log_slope(inner.x)

    def _preimage(self, at: Points) -> Tensor:
        return self.function.preimage(at)

    def _before(self, at: Points) -> Points:
        """Return the points y of the part's support from the points x = f(y)."""
        y, ends = self._preimage(at), (self.part.low, self.part.high)
        logs: list[Tensor | None] = [None, None]
        for side, end in enumerate(ends):
            if end is not None:
                image = self._image(end)
                logs[side] = self.function.before[side](_log_distance(at, side, image), end, image, y)
        return Points(y, ends[0], logs[0], ends[1], logs[1])

    def _log_distances(self, inner: Points) -> tuple[Tensor, Tensor]:
        """Return the logarithms of the distances of x = f(y) from the lower and the upper end of its support."""
        logs = list(self.function.from_infinity(inner.x))
        for side, (end, log_distance) in enumerate((inner[1:3], inner[3:5])):
            if end is not None and log_distance is not None:
                logs[side] = self.function.after[side](log_distance, end, inner.x)
        return logs[0], logs[1]


def _log_distance(at: Points, side: int, end: Tensor) -> Tensor:
    return at.log_below(end) if side else at.log_above(end)


class SigmoidDensity(MappedDensity):
    """The density of 1 / (1 + e^-y)."""

    def _logs(self, at: Points) -> tuple[Tensor, Tensor]:
        """Return log x and log(1 - x)."""
        log_x = at.log_above(0.0) if self.part.low is None else torch.log(at.x)
        return log_x, at.log_below(1.0) if self.part.high is None else torch.log1p(-at.x)

    def _log_slope(self, inner: Points, at: Points) -> Tensor:
        return sum(self._logs(at), torch.zeros((), dtype=torch.float64, device="cpu"))

    def _preimage(self, at: Points) -> Tensor:
        log_x, log_rest = self._logs(at)
        return log_x - log_rest


@dataclass(frozen=True)
class InverseMappedDensity(MappedDensity):
    """The density of x = g(y), where g is the inverse of the function f and maps the ends of f's image to infinity."""

    reaches: tuple[bool, bool]
    """Whether the lower end of the part's support is f(-inf), and whether the upper end is f(+inf)."""

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Density:
        part = self.part.mapped(change)
        return replace(self, part=part, reaches=(self._reaches(part, 0), self._reaches(part, 1)))

    def _reaches(self, part: Density, side: int) -> bool:
        mask = self._at_limit(part, side)
        return self.reaches[side] or (mask is not None and bool(mask.all()))

    def _at_limit(self, part: Density, side: int) -> Tensor | None:
        """Return a mask of the elements where `part` ends at f(-inf) or f(+inf); None if all do, or none can."""
        end, limit = part.high if side else part.low, self.function.limits[side]
        return None if self.reaches[side] or end is None or limit is None else end == limit

    def reaches_infinity(self) -> Tensor | None:
        masks = (self._at_limit(self.part, side) for side in (0, 1))
        return next((mask for mask in masks if mask is not None and bool(mask.any() & ~mask.all())), None)

    def _part_end(self, side: int) -> Tensor | None:
        return None if self.reaches[side] else super()._part_end(side)

    def _tail_end(self, side: int) -> Tensor | None:
        end, is_endless = self._part_end(side), self._at_limit(self.part, side)
        return end if is_endless is None else torch.where(is_endless, torch.inf, cast("Tensor", end))

    def _image_of_infinity(self, side: int) -> Tensor | None:
        return None

    def _keeps_coordinate(self) -> bool:
        return self.function.keeps_coordinate and all(self.reaches)

    def _beyond(self, tail: Tail, side: int) -> Tail:
        return self.function.growths[side].before(tail)

    def log_density(self, at: Points) -> Tensor:
        # The two summands do not cancel, because |log f'(x)| is large only where the density of x is small.
        return self.part.log_density(self._before(at)) + self.function.log_slope(at.x)

    def _image(self, y: Tensor) -> Tensor:
        return self.function.inverse(y)

    def _own_corner(self, y: Tensor) -> Tensor:
        return y

    def _slope(self, end: Tensor) -> Tensor:
        return self.function.inverse_slope(end)

    def _before(self, at: Points) -> Points:
        ends, own = (self.part.low, self.part.high), (self.low, self.high)
        logs: list[Tensor | None] = [*self.function.from_infinity(at.x)]
        for side, end in enumerate(own):
            if end is not None:
                logs[side] = self.function.after[side](_log_distance(at, side, end), end, at.x)
            elif ends[side] is None:
                logs[side] = None
        return Points(self.function.image(at.x), ends[0], logs[0], ends[1], logs[1])

    def _log_distances(self, inner: Points) -> tuple[Tensor, Tensor]:
        y = self.function.preimage(inner)
        logs, own = [y, y], (self.low, self.high)
        for side, (end, log_distance) in enumerate((inner[1:3], inner[3:5])):
            image = own[side]
            if image is not None and end is not None and log_distance is not None:
                logs[side] = self.function.before[side](log_distance, image, end, y)
        return logs[0], logs[1]


class QuantileDensity(InverseMappedDensity):
    """The density of x = F^-1(y) for a distribution function F and a variable y on (0, 1)."""

    def _image_of(self, inner: Points) -> Tensor:
        return self.function.preimage(inner)


def _softplus(y: Tensor) -> Tensor:
    """Return log(1 + e^y); torch's softplus returns y itself above a threshold."""
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
    """Return log(-log(1 - d)) from log d, or from `result` = -log(1 - d) if d is near 1."""
    d = torch.exp(log_d.clamp(-30, -0.1))
    far = torch.log(torch.where(log_d > -0.1, result, 1))
    return torch.where(log_d < -30, log_d, torch.where(log_d > -0.1, far, torch.log(-torch.log1p(-d))))


def _log_logit_difference(log_d: Tensor, log_x: Tensor, log_rest: Tensor, result: Tensor) -> Tensor:
    """Return log(logit(x + d) - logit(x)) from log d, log x and log(1 - x).

    `result` is logit(x + d) - logit(x). Where `result` is above 1, the function returns log(result).
    """
    first, second = log_d - log_x, log_d - log_rest
    tiny, large = torch.maximum(first, second) < -30, result > 1
    usual = ~(tiny | large)
    one, two = (torch.exp(torch.where(usual, ratio, -1.0)) for ratio in (first, second))
    close = torch.log(torch.log1p(one) - torch.log1p(-two))
    far = torch.log(torch.where(large, result, 1))
    return torch.where(tiny, log_d - log_x - log_rest, torch.where(large, far, close))


_LOG_HALF = math.log(0.5)


def _normal_log_mass(y: Tensor) -> Tensor:
    """Return log Phi(y), with a finite derivative where y^2 overflows, unlike torch's `log_ndtr`."""
    far = y < -_FAR_OUT
    size = -y.clamp(_LEAST, -_FAR_OUT)
    asymptote = -(size**2) / 2 - torch.log(size) - HALF_LOG_2PI + torch.log1p(-1 / size**2)
    return torch.where(far, asymptote, torch.special.log_ndtr(torch.where(far, 0.0, y)))


def _normal_quantile(log_mass: Tensor) -> Tensor:
    """Return the standard normal quantile of the mass e^log_mass.

    The result of Newton's method is differentiable: its last two steps make the first and second derivatives exact.
    """
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


# For y > _FAR_OUT, the standard normal mass below -y is phi(y) / (y + 1/y) to full precision, where phi is the density.
# An argument below _LEAST counts as _LEAST, whose square does not overflow.
_FAR_OUT, _LEAST = 1e4, -1e150


def _cauchy_quantile(log_mass: Tensor) -> Tensor:
    tiny = log_mass < -30
    angle = math.pi * torch.exp(torch.where(tiny, -1.0, log_mass))
    return torch.where(tiny, -torch.exp(-log_mass.clamp(min=-690)) / math.pi, -1 / torch.tan(angle))


EXP = Increasing(
    torch.exp,
    torch.log,
    slope=torch.exp,
    inverse_slope=lambda x: 1 / x,
    log_slope=lambda y: y,
    preimage=lambda at: at.log_above(0.0),
    from_infinity=lambda y: (y, y),
    after=(
        lambda log_d, low, _: low + _log_expm1(log_d),
        lambda log_d, high, _: high + _log_minus_expm1(log_d),
    ),
    before=(
        lambda log_d, low, _, __: _log_log1p(log_d - low),
        lambda log_d, high, _, y: _log_minus_log1p(log_d - high, high - y),
    ),
)
# `LOG` is the record for the inverse of exp. The `preimage` of `LOG` computes log x from x, and the `preimage` of `EXP`
# takes the logarithm of the distance of x from 0.
LOG = EXP._replace(preimage=lambda at: torch.log(at.x))
SIGMOID = Increasing(
    torch.sigmoid,
    lambda x: torch.log(x) - torch.log1p(-x),
    slope=lambda y: torch.sigmoid(y) * torch.sigmoid(-y),
    inverse_slope=lambda x: 1 / (x * (1 - x)),
    log_slope=lambda y: logsigmoid(y) + logsigmoid(-y),
    preimage=lambda at: at.log_above(0.0) - at.log_below(1.0),
    from_infinity=lambda y: (logsigmoid(y), logsigmoid(-y)),
    after=(
        lambda log_d, low, y: logsigmoid(y) + logsigmoid(-low) + _log_minus_expm1(log_d),
        lambda log_d, high, y: logsigmoid(-y) + logsigmoid(high) + _log_minus_expm1(log_d),
    ),
    before=(
        lambda log_d, low, _, y: _log_logit_difference(log_d, logsigmoid(low), logsigmoid(-low), y - low),
        lambda log_d, high, _, y: _log_logit_difference(log_d, logsigmoid(-high), logsigmoid(high), high - y),
    ),
    limits=(0.0, 1.0),
)
# `LOGIT` is the record for the inverse of sigmoid. The functions `after` and `before` of `LOGIT` get the ends of a
# support as x instead of y, so their formulas differ from the formulas in `SIGMOID`.
LOGIT = SIGMOID._replace(
    after=(
        lambda log_d, low, y: logsigmoid(low) + logsigmoid(-y) + _log_expm1(log_d),
        lambda log_d, high, y: logsigmoid(-high) + logsigmoid(y) + _log_expm1(log_d),
    ),
    before=(
        lambda log_d, low, x, y: _log_logit_difference(log_d, torch.log(x), torch.log1p(-x), y - low),
        lambda log_d, high, x, y: _log_logit_difference(log_d, torch.log1p(-x), torch.log(x), high - y),
    ),
)
SOFTPLUS = Increasing(
    _softplus,
    lambda x: x + torch.log(-torch.expm1(-x)),
    slope=torch.sigmoid,
    inverse_slope=lambda x: -1 / torch.expm1(-x),
    log_slope=logsigmoid,
    preimage=lambda at: _log_expm1(at.log_above(0.0)),
    from_infinity=lambda y: (_log_log1p(y), y),
    after=(
        lambda log_d, low, _: _log_log1p(logsigmoid(low) + _log_expm1(log_d)),
        lambda log_d, high, y: _log_minus_log1p(
            logsigmoid(high) + _log_minus_expm1(log_d), _softplus(high) - _softplus(y)
        ),
    ),
    before=(
        lambda log_d, low, _, __: _log_log1p(_log_expm1(log_d) - logsigmoid(low)),
        lambda log_d, high, _, y: _log_minus_log1p(_log_minus_expm1(log_d) - logsigmoid(high), high - y),
    ),
    growths=(Growth(0), Growth(1)),
)
SOFTPLUS_INVERSE = SOFTPLUS._replace(keeps_coordinate=False)


def _distribution_function(
    log_mass: Function, quantile: Function, log_density: Function, growth: Growth
) -> Increasing:
    """Return the distribution function of a standard distribution that is symmetric about 0.

    `log_mass` is the logarithm of the mass below y. `quantile` is the quantile of a mass of at most 1/2, from the
    logarithm of the mass. `growth` is the change of a tail by the function, at either end.
    """

    def inverse(log_below: Tensor, log_above: Tensor) -> Tensor:
        least = torch.minimum(torch.minimum(log_below, log_above), log_below.new_tensor(_LOG_HALF))
        size = quantile(least)
        return torch.where(log_below < log_above, size, -size)

    def inverse_at(x: Tensor) -> Tensor:
        return inverse(torch.log(x), torch.log1p(-x))

    return Increasing(
        lambda y: torch.exp(log_mass(y)),
        inverse_at,
        slope=lambda y: torch.exp(log_density(y)),
        inverse_slope=lambda x: torch.exp(-log_density(inverse_at(x))),
        log_slope=log_density,
        preimage=lambda at: inverse(at.log_above(0.0), at.log_below(1.0)),
        from_infinity=lambda y: (log_mass(y), log_mass(-y)),
        limits=(0.0, 1.0),
        growths=(growth, growth),
        keeps_coordinate=False,
    )


NORMAL = _distribution_function(
    _normal_log_mass, _normal_quantile, lambda y: -(y**2) / 2 - HALF_LOG_2PI, Growth(0, 2.0, 0.5, False)
)
LAPLACE = _distribution_function(
    lambda y: torch.where(y < 0, y - math.log(2), torch.log1p(-torch.exp(-y.clamp(min=0)) / 2)),
    lambda log_mass: log_mass + math.log(2),
    lambda y: -y.abs() - math.log(2),
    Growth(0, 1.0, 1.0, False),
)._replace(corner=0.0)
CAUCHY = _distribution_function(
    lambda y: torch.log(torch.atan2(torch.ones_like(y), -y) / math.pi),
    _cauchy_quantile,
    lambda y: -log_one_plus_square(y) - math.log(math.pi),
    Growth(1, 1.0, 1.0, False),
)
