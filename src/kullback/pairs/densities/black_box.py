"""The density of any univariate distribution, such as one of a user's class, from its log_prob, sample and support.

A few draws, made once, give the center and the width. Values of log_prob far from the center give the decay of the
tails. The quadrature checks that the density integrates to 1.

The density of a transformed distribution is of this kind if the transform has no formula. Torch declares the codomain
of the last transform as its support, but the image of the base distribution's support may be smaller.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, VonMises, constraints
from torch.distributions.transforms import Transform

from kullback.common.dtypes import tensor_of, upcast
from kullback.pairs.clone import detached, unvalidated, upcast_copy
from kullback.pairs.densities.density import Coordinate, Density, Points, Tail, register_density
from kullback.pairs.densities.integer import CategoricalDensity
from kullback.pairs.sampling import DrawsFrom

UNDERFLOWED = -746.0
"""The log-density that a distribution may return where its density is positive but underflows to 0."""

# _DRAWS is the number of draws. If fewer than _FEWEST draws are inside of the support, their quartiles are not used.
_DRAWS, _FEWEST = 257, 8
# Tails are evaluated at these points. For an infinite end, _FAR are values of log(|x| / interquartile range). For a
# finite end, _NEAR are values of -log(distance / unit). The unit is |end|, or the interquartile range if the end is 0.
_FAR = (20 * math.log(10.0), 30 * math.log(10.0), 40 * math.log(10.0))
_NEAR = (5 * math.log(10.0), 7.5 * math.log(10.0), 10 * math.log(10.0))
# The density is evaluated up to the first of the log-distances _REACHES at which it is positive. The square of e^200
# does not overflow float64. The square of e^40 does not overflow float32; this distance is for users' classes that
# compute in float32. At the distance e^-20, 1 minus the distance has eight digits of the distance.
_REACHES = (200.0, 40.0, 20.0)
# _RESOLUTION is the smallest distance from an end at which the density is evaluated, relative to the end's absolute
# value.
_RESOLUTION = 1e-8
# Closer to an end than _NEXT_TO times the end's absolute value, a density u^a with |a| < _STEEP is corrected for the
# rounding of the distance u.
_NEXT_TO, _STEEP = 1e-2, 100.0
# An extrapolation is quadratic in log u if the change of the slope over the last step is above _CURVED, which is not a
# rounding error, and if the change before is less than _ALIKE times as large. For a power, it is e times as large.
_CURVED, _ALIKE = 1e-6, 1.6
# For its error, an extrapolation is compared with a longer one, from the share _SOONER of the log-distance.
_SOONER = 0.75
# A log-density of _NEGLIGIBLE has no weight, and as -log q it makes a divergence infinite or too large for any use.
_NEGLIGIBLE = -1e12
# A tail that falls faster than u^-_STEEPEST for u = |x| does not count as a power of u.
_STEEPEST = 1e4
# The search for the point where the density underflows to 0 doubles the distance _STEPS times.
_STEPS = 40
# The power of a tail at infinity is rounded to _DIGITS decimals, because rounding errors change the other decimals.
_DIGITS = 8
# Two falls of the log-density over doubled distances count as equal up to the relative difference _SAME.
_SAME = 0.005


class _Edge(NamedTuple):
    """The point middle + sign e^log_u, close to an end of the support.

    `outwards` is 1 if log_u grows towards this end (log_u = +inf at the end), and -1 if log_u falls towards this end.
    """

    sign: int
    middle: Tensor
    log_u: Tensor
    outwards: int

    def at(self, log_u: Tensor) -> Tensor:
        return self.middle + self.sign * torch.exp(log_u)

    def log_distance(self, x: Tensor) -> Tensor:
        """Return the logarithm of the distance of a rounded x from the end or the middle."""
        return torch.log((x - self.middle).abs())


class _Evaluated(NamedTuple):
    """The log-density at a point, whose distance from the end or the middle is e^log_u."""

    log_u: Tensor
    log_density: Tensor


class _Outermost(NamedTuple):
    """The point farthest out at which a density is evaluated, and the points before it, each at about u / e or e u."""

    edge: _Edge
    points: tuple[_Evaluated, ...]

    def is_finite(self) -> bool:
        return bool((self.points[0].log_density - self.points[-1].log_density).isfinite().all())

    def matters(self) -> bool:
        """Whether the density is extrapolated, and not so small there that an extrapolation does not count."""
        return self.is_finite() and bool((self.points[0].log_density > _NEGLIGIBLE).any())

    def extrapolation(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the numbers c, a, b and k of log density = c + a log u + b (log u)^2 + k u^-outwards.

        For a power of u times a differentiable function, b is 0, and the changes of the slope decrease as
        u^-outwards. If they do not, as for the normal distribution of log u, b is not 0, and four points give all
        numbers.
        """
        (log_0, f_0), *_ = self.points
        slopes, sums, means = [], [], []
        for (log_u, f), (log_next, f_next) in itertools.pairwise(self.points):
            u, u_next = (torch.exp(-self.edge.outwards * x) for x in (log_u, log_next))
            slopes.append((f_next - f) / (log_next - log_u))
            sums.append(log_next + log_u)
            means.append((u_next - u) / (log_next - log_u))
        (change, before), (of_b, of_b_before), (of_k, of_k_before) = (
            (x[1] - x[0], x[2] - x[1]) for x in (slopes, sums, means)
        )
        of_k, of_k_before = (torch.where(x == 0, 1, x) for x in (of_k, of_k_before))  # e^-745 is 0
        is_quadratic = (change.abs() > _CURVED) & (before.abs() < _ALIKE * change.abs())
        determinant = of_b * of_k_before - of_b_before * of_k
        b = torch.where(is_quadratic, (change * of_k_before - before * of_k) / determinant, 0)
        k = torch.where(is_quadratic, (of_b * before - of_b_before * change) / determinant, change / of_k)
        a = slopes[0] - b * sums[0] - k * means[0]
        return f_0 - (a + b * log_0) * log_0 - k * torch.exp(-self.edge.outwards * log_0), a, b, k


class Quartiles(NamedTuple):
    """The quartiles of the draws, in the coordinate of the support, and the interquartile range."""

    first: Tensor
    middle: Tensor
    last: Tensor
    width: Tensor


def black_box(distribution: Distribution) -> BlackBoxDensity:
    """Return the density of a distribution, with quartiles from draws with a fixed seed.

    A user's class may restrict the support without overriding `sample`, so draws outside of the support do not count.
    """
    distribution = unvalidated(distribution)
    low, high = _ends_of(distribution)
    with DrawsFrom(0), torch.no_grad():
        draws = upcast(distribution.sample(torch.Size([_DRAWS])))
        inside = torch.ones_like(draws, dtype=torch.bool)
        inside = inside if low is None else inside & (draws >= low)
        inside = inside if high is None else inside & (draws <= high)
        distribution.log_prob(_inside(draws[0], low, high))  # raises an error for a class without log_prob
        t = Coordinate(low, high).of(draws).nan_to_num(posinf=700.0, neginf=-700.0)
        whole = t.sort(0).values[[_DRAWS // 4, _DRAWS // 2, 3 * _DRAWS // 4]]
        quartiles = whole if bool(inside.all()) else _quartiles_of_some(t, inside)
    first, middle, last = quartiles
    width = (last - first).clamp(min=1e-300) + 1e-12 * middle.abs()
    return BlackBoxDensity(distribution, Quartiles(first, middle, last, width))


def _quartiles_of_some(t: Tensor, inside: Tensor) -> Tensor:
    """Return the quartiles of the draws inside of the support, or -1, 0 and 1 for fewer than `_FEWEST` such draws."""
    count = inside.sum(0)
    ordered = torch.where(inside, t, torch.inf).sort(0).values
    ranks = torch.stack([count // 4, count // 2, 3 * count // 4])
    anywhere = torch.tensor([-1.0, 0.0, 1.0], dtype=t.dtype, device=t.device)
    anywhere = anywhere.reshape(-1, *[1] * count.ndim).expand_as(ranks)
    return torch.where(count < _FEWEST, anywhere, ordered.gather(0, ranks.clamp(max=_DRAWS - 1)))


def _ends_of(distribution: Distribution) -> tuple[Tensor | None, Tensor | None]:
    """Return the lower and the upper end of a distribution's support; an infinite end is None."""
    constraint = distribution.support
    constraint = getattr(constraint, "base_constraint", constraint)
    ends: list[Tensor | None] = []
    for name in ("lower_bound", "upper_bound"):
        bound = getattr(constraint, name, None)
        if bound is not None:
            bound = upcast(tensor_of(bound, None if isinstance(bound, Tensor) else torch.float64))
        ends.append(None if bound is None or bool(bound.isinf().all()) else bound)
    return ends[0], ends[1]


@dataclass(frozen=True)
class BlackBoxDensity(Density):
    """The density of a distribution that has only log_prob, a support and draws."""

    distribution: Distribution
    quartiles: Quartiles
    changes: tuple[Callable[[Tensor], Tensor], ...] = ()
    is_fixed: bool = False
    """Whether the density and the ends of its support are detached."""
    share_of_reach: float = 1.0
    """The density is evaluated up to this share of the largest possible log-distance."""
    reaches: ClassVar[tuple[float, ...]] = _REACHES

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Density:
        return replace(self, changes=(*self.changes, change))

    def tensors(self) -> list[Tensor]:
        return []

    def detached(self) -> Density:
        return replace(self, distribution=detached(self.distribution), is_fixed=True)

    def extrapolated_sooner(self) -> Density:
        if any(self._outermost(side).matters() for side in (-1, 1)):
            return replace(self, share_of_reach=_SOONER)
        return self

    def is_splittable(self) -> bool:
        return False

    @property
    def low(self) -> Tensor | None:
        return self._end(-1)

    @property
    def high(self) -> Tensor | None:
        return self._end(1)

    def log_density(self, at: Points) -> Tensor:
        shape = torch.broadcast_shapes(at.x.shape, (*self.distribution.batch_shape, 1))
        x = _inside(at.x, self.low, self.high)
        result = upcast(self.distribution.log_prob(x.expand(shape).movedim(-1, 0))).movedim(0, -1)
        for side in (-1, 1):
            result = self._continued(side, at, x, result)
        return result

    def _continued(self, side: int, at: Points, x: Tensor, log_density: Tensor) -> Tensor:
        """Return `log_density`, extrapolated at points too far out to be evaluated.

        Near a finite end, x is rounded, so its distance from the end is not the distance in `at`. The slope of the
        extrapolation corrects the other points for this difference.
        """
        end = self.low if side < 0 else self.high
        outermost = self._outermost(side)
        edge = outermost.edge
        middle, log_last = self._changed(edge.middle), self._changed(outermost.points[0].log_u)
        c, a, b, k = map(self._changed, outermost.extrapolation())
        if end is None:
            log_here = torch.log((side * (at.x - middle)).clamp(min=1e-300))
        else:
            log_here = at.log_above(end) if side < 0 else at.log_below(end)
            with torch.no_grad():
                is_rounded = (log_here < torch.log(_NEXT_TO * end.abs())) & (a.abs() < _STEEP)
                moved = (a + 2 * b * log_here) * (log_here - torch.log((x - end).abs()))
                moved = torch.where(is_rounded, moved, 0)
            log_density = log_density + moved
        is_beyond = edge.outwards * (log_here - log_last) > 0
        continued = c + (a + b * log_here) * log_here + k * torch.exp(-edge.outwards * log_here)
        return torch.where(is_beyond, continued, log_density)

    def _outermost(self, side: int) -> _Outermost:
        """Return the log-densities at the first reach where all of them are finite, or else at the last reach."""
        for reach in self.reaches[:-1]:
            outermost = self._at(side, reach)
            if outermost.is_finite():
                return outermost
        return self._at(side, self.reaches[-1])

    def _at(self, side: int, reach: float) -> _Outermost:
        edge = self._edge(side, reach)
        points = (edge.at(edge.log_u - step * edge.outwards) for step in range(4))
        return _Outermost(edge, tuple(_Evaluated(edge.log_distance(x), self._log_prob(x)) for x in points))

    def _edge(self, side: int, reach: float) -> _Edge:
        """Return the evaluation point that is closest to the end on this side."""
        ends = _ends_of(self.distribution)
        end, other = ends if side < 0 else ends[::-1]
        first, middle, last, width = self.quartiles
        reach = reach * self.share_of_reach
        if end is None:
            log_u = torch.log(width) + reach
            if other is not None:  # then the quartiles are logarithms of distances from the other end
                log_u, middle = torch.maximum(last.abs(), first.abs()) + reach, other
            return _Edge(side, middle, log_u, 1)
        log_u = torch.minimum(side * -first, side * -last) if other is None else -middle.abs()
        log_u = log_u - reach
        log_u = torch.maximum(log_u, torch.log(_RESOLUTION**self.share_of_reach * end.abs()))
        return _Edge(-side, end, log_u, -1)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        _, middle, _, width = self.quartiles
        return self._changed(middle), self._changed(width)

    def lower_tail(self) -> Tail:
        return Tail(*map(self._changed, self._read(-1)))

    def upper_tail(self) -> Tail:
        return Tail(*map(self._changed, self._read(1)))

    def _changed(self, x: Tensor) -> Tensor:
        for change in self.changes:
            x = change(x)
        return x

    def _end(self, side: int) -> Tensor | None:
        end = _ends_of(self.distribution)[side > 0]
        if end is not None and self.is_fixed:
            end = end.detach()
        return end if end is None or not end.ndim else self._changed(end)

    def _read(self, side: int) -> list[Tensor]:
        """Return the fields of the `Tail` at the lower end (side -1) or the upper end (side 1), of the batch shape."""
        with torch.no_grad():
            ends = _ends_of(self.distribution)
            end, (_, middle, _, scale) = ends[side > 0], self.quartiles
            if (ends[0] is None) != (ends[1] is None):  # then the quartiles are logarithms of distances
                scale = torch.exp(scale.clamp(max=300) + middle.clamp(-300, 300))
            tail = self._read_at_infinity(side, scale) if end is None else self._read_at_end(side, end, scale)
            return [tensor_of(x).expand(self.distribution.batch_shape) for x in tail]

    def _read_at_infinity(self, side: int, scale: Tensor) -> Tail:
        logs = [self._log_prob(side * scale * math.exp(log_u)) for log_u in _FAR]
        rate = (logs[0] - self._log_prob(2 * side * scale * math.exp(_FAR[0]))) / (scale * math.exp(_FAR[0]))
        read = _tail(logs, _FAR, -1, torch.where(rate > 0, rate, torch.nan), _STEEPEST, _DIGITS)
        return _tail_where(logs[0] == -torch.inf, self._read_closer(side * scale, 2.0, -1), read)

    def _read_at_end(self, side: int, end: Tensor, scale: Tensor) -> Tail:
        unit = torch.where(end == 0, scale.clamp(max=1.0), end.abs().clamp(min=1e-300))
        logs = [self._log_prob(end - side * unit * math.exp(-log_u)) for log_u in _NEAR]
        read = _tail(logs, _NEAR, 1, torch.full_like(logs[0], torch.nan), 100, 4)
        return _tail_where(logs[-1] == -torch.inf, self._read_closer(-side * unit, 0.5, 1, end), read)

    def _read_closer(self, unit: Tensor, step: float, jacobian: int, end: Tensor | float = 0.0) -> Tail:
        """Return the `Tail` of a density that soon underflows, from the last points where the density is positive.

        Let u be |x| at an infinite end, and 1 / distance at a finite end. If the slope of log(-log density) against
        log u is constant, -log density is a power of u. If the slope doubles with u, -log density grows exponentially.
        If log density has a constant slope, the density is a power of u, and log_prob is rounded to -inf further out.
        """
        index = torch.arange(_STEPS, device="cpu").reshape(-1, *[1] * len(self.distribution.batch_shape))
        f = torch.stack([self._log_prob(end + unit * step**k) for k in range(_STEPS)])
        steps = torch.where(f.isfinite() & (f < -1), index, 2).amax(0, keepdim=True).clamp(min=2)
        last, before, first = (f.gather(0, steps - k).squeeze(0) for k in range(3))
        u = 2.0 ** steps.squeeze(0) * (unit.abs() if step > 1 else 1 / unit.abs())
        power_here, power_before = (
            torch.log2(a / b).nan_to_num(nan=0.0) for a, b in ((last, before), (before, first))
        )
        super_exponential = power_here > 1.5 * power_before
        power = power_here.round(decimals=1)
        rate = torch.where((power == 1) & ~super_exponential, 2 * (before - last) / u, torch.nan)
        power = torch.where(super_exponential, 2 * math.log(2) * power_here / u, power)
        read = Tail(torch.where(super_exponential, -1.0, 0.0), power, rate)
        falls, fell = before - last, first - before
        of_power = Tail.of_power((falls / math.log(2) + jacobian).round(decimals=4))
        return _tail_where((falls - fell).abs() < _SAME * falls.abs(), of_power, read)

    def _log_prob(self, x: Tensor) -> Tensor:
        x = _inside(x, *_ends_of(self.distribution)).expand(self.distribution.batch_shape)
        log_density = upcast(self.distribution.log_prob(x))
        return torch.where(log_density == UNDERFLOWED, -torch.inf, log_density)


def _tail_where(where: Tensor, read: Tail, otherwise: Tail) -> Tail:
    """Return the tail `read` where the mask `where` is true, and the tail `otherwise` elsewhere."""
    return Tail(*(torch.where(where, a, b) for a, b in zip(read, otherwise, strict=True)))


def _tail(
    logs: list[Tensor], log_u: tuple[float, ...], jacobian: int, rate: Tensor, steepest: float, digits: int
) -> Tail:
    """Return the tail from the log-densities `logs` at three points with equal steps of log u.

    Here u is |x| at an infinite end, and 1 / distance at a finite end. If the density is a power of u, the log-density
    falls equally in both steps. If -log density is a power of log u, the log-density falls more in the second step, and
    the ratio gives the power. If the density falls faster than u^-steepest, the tail has level 0.
    """
    first, last = ((a - b) / (log_u[1] - log_u[0]) for a, b in itertools.pairwise(logs))
    mean = (first + last) / 2
    steeper = torch.log(last / first) / math.log((log_u[1] + log_u[2]) / (log_u[0] + log_u[1]))
    of_log = torch.where(steeper > 0.3, (1 + steeper).round(), 1.0)
    order = (torch.log(logs[2] / logs[0]) / (log_u[2] - log_u[0])).round(decimals=digits)
    is_power = mean < steepest
    return Tail(
        torch.where(is_power, 1.0, 0.0),
        torch.where(is_power, of_log, order),
        torch.where(
            is_power,
            torch.where(of_log == 1, (mean + jacobian).round(decimals=digits), torch.nan),
            torch.where(order == 1, rate, torch.nan),
        ),
    )


def _inside(x: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    """Return x, or the nearest number inside of the support for an x at or beyond an end, where log_prob may raise."""
    if low is not None:
        x = torch.where(x <= low, torch.nextafter(low.detach(), torch.full_like(low, torch.inf)), x)
    if high is not None:
        x = torch.where(x >= high, torch.nextafter(high.detach(), torch.full_like(high, -torch.inf)), x)
    return x


@register_density(Distribution)
def _of_any_other(d: Distribution) -> Density | None:
    """Return the density of a distribution whose class has no registered density.

    The result is None if the distribution is not univariate, or has no log_prob or support. A discrete distribution
    must have the values 0, 1, ..., n. VonMises is excluded, because torch declares the whole line as its support
    although x is an angle.
    """
    if (
        isinstance(d, VonMises)
        or d.event_shape
        or (type(d).log_prob is Distribution.log_prob and "log_prob" not in vars(d))
    ):
        return None
    try:
        if d.support is None:
            return None
        return _of_all_values(d) if d.support.is_discrete else black_box(upcast_copy(d))
    except NotImplementedError:
        return None


def _of_all_values(d: Distribution) -> Density | None:
    """Return the density with the probabilities of all values, or None unless the values are 0, 1, ..., n."""
    values = upcast(d.enumerate_support(expand=False)).flatten()
    if not bool((values == torch.arange(len(values), device=values.device)).all()):
        return None
    shape = torch.Size([len(values), *[1] * len(d.batch_shape)])
    at = d.enumerate_support(expand=False).reshape(shape).expand(len(values), *d.batch_shape)
    return CategoricalDensity(upcast(d.log_prob(at)).movedim(0, -1))


_ONE = torch.Size()

Ends = tuple[Tensor | None, Tensor | None]


def ends_after(ends: Ends, step: Transform) -> Ends | None:
    """Return the ends of the image of an interval under a monotone transform, or None if they are not known."""
    if torch.compiler.is_compiling():  # a compiled graph cannot read the values of the ends
        return None
    try:
        falls = bool((tensor_of(step.sign) < 0).all())
        rises = bool((tensor_of(step.sign) > 0).all())
    except NotImplementedError:
        return None
    if step.domain.event_dim or not (falls or rises):
        return None
    images: list[Tensor | None] = []
    for end, infinite in zip(ends, (-math.inf, math.inf), strict=True):
        at = torch.full((), infinite, dtype=torch.float64, device="cpu") if end is None else end
        try:
            image = upcast(tensor_of(step(at)))
        except (NotImplementedError, ValueError):  # torch's distribution functions raise at some points
            return None
        if bool(image.isnan().any()):
            return None
        images.append(None if bool(image.isinf().all()) else image)
    return (images[1], images[0]) if falls else (images[0], images[1])


class _Image(Distribution):
    """A copy of a distribution with another support, for example the image of a transform instead of its codomain."""

    def __init__(self, base: Distribution, support: Any) -> None:
        self.base = unvalidated(base)
        self._support = support
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        return self._support

    def log_prob(self, value: Tensor) -> Tensor:
        return self.base.log_prob(value)

    def sample(self, sample_shape: Any = _ONE) -> Tensor:
        return self.base.sample(sample_shape)


def density_on_image(d: Distribution, ends: Ends) -> Density:
    """Return the density of a distribution from its log_prob, with these ends as its support."""
    return black_box(_Image(d, interval_between(*ends)))


def interval_between(low: Tensor | None, high: Tensor | None) -> constraints.Constraint:
    """Return the constraint low < x < high. An end that is None is infinite."""
    if low is None:
        return constraints.real if high is None else constraints.less_than(high)
    return constraints.greater_than(low) if high is None else constraints.interval(low, high)
