"""The densities of distributions made from others: mixtures and maps of the line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, TransformedDistribution
from torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    SigmoidTransform,
    TanhTransform,
    Transform,
)

from kullback.numeric import upcast
from kullback.pairs.densities.base import (
    Coordinate,
    Density,
    Points,
    Tail,
    TailOrder,
    density_of,
    register_density,
)
from kullback.pairs.numerics.parameters import given_logits
from kullback.special import safe_log, safe_logsumexp

__all__ = ["AffineDensity", "ExpDensity", "MixtureDensity", "SigmoidDensity", "log_weights_of"]


@dataclass(frozen=True)
class MixtureDensity(Density):
    """sum_k weight_k p_k(x), the components along the last dimension of the parameters."""

    log_weights: Tensor
    part: Density

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Density:
        def of_each(x: Tensor) -> Tensor:
            return torch.stack([change(part) for part in x.unbind(-1)], -1) if x.ndim else x

        return replace(self, log_weights=of_each(self.log_weights), part=self.part.mapped(of_each))

    def low(self) -> Tensor | None:
        ends = self.part.low()
        return ends if ends is None or not ends.ndim else self._of_used(ends, torch.inf).amin(-1)

    def high(self) -> Tensor | None:
        ends = self.part.high()
        return ends if ends is None or not ends.ndim else self._of_used(ends, -torch.inf).amax(-1)

    def _of_used(self, x: Tensor, otherwise: float) -> Tensor:
        """Leave out the components that have no weight."""
        return torch.where(self.log_weights == -torch.inf, otherwise, x)

    def _least(self, x: Tensor | float) -> Tensor | float:
        return self._of_used(x, torch.inf).amin(-1) if isinstance(x, Tensor) and x.ndim else x

    def log_density(self, at: Points) -> Tensor:
        rest = (None if x is None else x.unsqueeze(-1) if x.ndim else x for x in at[1:])
        apart = Points(at.x.unsqueeze(-1), *rest)
        low, high = self.part.low(), self.part.high()
        outside = torch.zeros_like(apart.x, dtype=torch.bool)
        if low is not None and low.ndim:
            outside = outside | (apart.x < low)
            apart = Points(torch.maximum(apart.x, low))
        if high is not None and high.ndim:
            outside = outside | (apart.x > high)
            apart = Points(torch.minimum(apart.x, high))
        density = torch.where(outside, -torch.inf, self.part.log_density(apart))
        return safe_logsumexp(self.log_weights + density, -1)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        weights = torch.exp(self.log_weights)
        centers, widths = torch.broadcast_tensors(*self.part.center_and_width(), self.log_weights)[:2]
        if self._moves_ends():
            centers, widths = self._own(centers), torch.ones_like(widths)
        center = (weights * centers).sum(-1)
        variance = (weights * (widths**2 + (centers - center.unsqueeze(-1)) ** 2)).sum(-1)
        return center, torch.sqrt(variance)

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        found = self.part.breakpoints(steps.unsqueeze(-1))
        found = [torch.broadcast_tensors(marks, self.log_weights)[0] for marks in found]
        return [of_part for marks in found for of_part in self._own(marks).unbind(-1)]

    def nonsmooth_points(self) -> list[Tensor]:
        ends = [end for end in (self.part.low(), self.part.high()) if end is not None and end.ndim]
        return [x for point in (*self.part.nonsmooth_points(), *ends) for x in point.unbind(-1)]

    def lower_tail(self) -> Tail:
        return Tail(*(self._least(x) for x in self.part.lower_tail()))

    def upper_tail(self) -> Tail:
        return Tail(*(self._least(x) for x in self.part.upper_tail()))

    def lower_order(self) -> TailOrder:
        return TailOrder(*(self._least(x) for x in self.part.lower_order()))

    def upper_order(self) -> TailOrder:
        return TailOrder(*(self._least(x) for x in self.part.upper_order()))

    def _moves_ends(self) -> bool:
        """Tell whether components have ends of their own."""
        return any(end is not None and end.ndim for end in (self.part.low(), self.part.high()))

    def _own(self, marks: Tensor) -> Tensor:
        """Turn coordinates of the components into those of the mixture, whose ends may lie further out."""
        if not self._moves_ends():
            return marks
        own = Coordinate(
            *(None if x is None else x.unsqueeze(-1) if x.ndim else x for x in (self.low(), self.high()))
        )
        return own.of(self.part.coordinate().points(marks).x).clamp(-700, 700)


class MixtureOfIntegersDensity(MixtureDensity):
    """The same of integer-valued components."""

    integer: ClassVar[bool] = True

    @property
    def smooth(self) -> bool:
        """Tell whether the probabilities of the components are those of smooth functions."""
        return getattr(self.part, "smooth", True)

    def coordinate(self) -> Coordinate:
        return self.part.coordinate()

    def _moves_ends(self) -> bool:
        return False


@dataclass(frozen=True)
class AffineDensity(Density):
    """The density of loc + scale y, for y of another density and a scale that is positive throughout, or negative."""

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
        y = (at.x - self.loc) / self.scale
        low, high = self.part.low(), self.part.high()
        above = at.log_below_high if self.falls else at.log_above_low
        below = at.log_above_low if self.falls else at.log_below_high
        # Distances from P's ends are those from this density's own only where the ends are the same.
        own = Points(
            y,
            *((low, above - log_scale) if low is not None and above is not None else (None, None)),
            *((high, below - log_scale) if high is not None and below is not None else (None, None)),
        )
        return self.part.log_density(own if self._shares_ends(at) else Points(y)) - log_scale

    def _shares_ends(self, at: Points) -> bool:
        return all(
            a is None or b is None or bool((a == b).all())
            for a, b in ((at.low, self.low()), (at.high, self.high()))
        )

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        center, width = self.part.center_and_width()
        return self._moved(center), width * self._scale_of_coordinate()

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        return [self._moved(marks) for marks in self.part.breakpoints(steps)]

    def nonsmooth_points(self) -> list[Tensor]:
        return [self.loc + self.scale * point for point in self.part.nonsmooth_points()]

    def _moved(self, t: Tensor) -> Tensor:
        """Turn the part's coordinate into this density's."""
        own = self.part.coordinate()
        if own.low is None and own.high is None:
            return self.loc + self.scale * t
        shift = 0.0 if own.low is not None and own.high is not None else torch.log(self.scale.abs())
        shift = -shift if own.low is None else shift
        return -(t + shift) if self.falls else t + shift

    def _scale_of_coordinate(self) -> Tensor | float:
        own = self.part.coordinate()
        return self.scale.abs() if own.low is None and own.high is None else 1.0

    def lower_tail(self) -> Tail:
        return self._tail(self.part.upper_tail() if self.falls else self.part.lower_tail(), self.low())

    def upper_tail(self) -> Tail:
        return self._tail(self.part.lower_tail() if self.falls else self.part.upper_tail(), self.high())

    def lower_order(self) -> TailOrder:
        order = self.part.upper_order() if self.falls else self.part.lower_order()
        return TailOrder(order.power, order.rate * self._unit(self.low()))

    def upper_order(self) -> TailOrder:
        order = self.part.lower_order() if self.falls else self.part.upper_order()
        return TailOrder(order.power, order.rate * self._unit(self.high()))

    def _tail(self, tail: Tail, end: Tensor | None) -> Tail:
        return Tail(tail.power, tail.rate * self._unit(end))

    def _unit(self, end: Tensor | None) -> Tensor:
        """Return how much longer u is in the part: at infinity 1 / scale, at an end scale."""
        size = self.scale.abs()
        return 1 / size if end is None else size


@dataclass(frozen=True)
class ExpDensity(Density):
    """The density of e^y, for y of a density on the whole line."""

    part: Density

    def low(self) -> Tensor | None:
        return torch.zeros((), dtype=torch.float64)

    def log_density(self, at: Points) -> Tensor:
        log_x = at.log_above(0.0)
        return self.part.log_density(Points(log_x)) - log_x

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return self.part.center_and_width()

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        return self.part.breakpoints(steps)

    def nonsmooth_points(self) -> list[Tensor]:
        return [torch.exp(point) for point in self.part.nonsmooth_points()]

    def lower_tail(self) -> Tail:
        return _tail_of_exponential(self.part.lower_tail())

    def upper_tail(self) -> Tail:
        return _tail_of_exponential(self.part.upper_tail())

    def lower_order(self) -> TailOrder:
        return TailOrder(power=self.part.lower_order().rate)

    def upper_order(self) -> TailOrder:
        return TailOrder(power=self.part.upper_order().rate)


@dataclass(frozen=True)
class SigmoidDensity(Density):
    """The density of sigmoid(y), for y of a density on the whole line."""

    part: Density

    def low(self) -> Tensor | None:
        return torch.zeros((), dtype=torch.float64)

    def high(self) -> Tensor | None:
        return torch.ones((), dtype=torch.float64)

    def log_density(self, at: Points) -> Tensor:
        log_x, log_rest = at.log_above(0.0), at.log_below(1.0)
        return self.part.log_density(Points(log_x - log_rest)) - log_x - log_rest

    center_and_width = ExpDensity.center_and_width
    breakpoints = ExpDensity.breakpoints

    def nonsmooth_points(self) -> list[Tensor]:
        return [torch.sigmoid(point) for point in self.part.nonsmooth_points()]

    lower_tail, upper_tail = ExpDensity.lower_tail, ExpDensity.upper_tail
    lower_order, upper_order = ExpDensity.lower_order, ExpDensity.upper_order


def _tail_of_exponential(tail: Tail) -> Tail:
    """Return the tail of e^y: an exponential one becomes a power, a heavier one is heavier than any power."""
    power = torch.as_tensor(tail.power, dtype=torch.float64)
    return Tail(
        power=torch.where(power < torch.inf, 0.0, torch.as_tensor(tail.rate, dtype=torch.float64)), rate=0.0
    )


@register_density(MixtureSameFamily)
def _mixture(d: MixtureSameFamily) -> Density | None:
    part = density_of(d.component_distribution)
    if part is None:
        return None
    return (MixtureOfIntegersDensity if part.integer else MixtureDensity)(log_weights_of(d), part)


def log_weights_of(d: MixtureSameFamily) -> Tensor:
    """Return the logarithms of the weights of a mixture."""
    weights: Categorical = d.mixture_distribution
    return (
        upcast(weights.logits).log_softmax(-1) if given_logits(weights) else safe_log(upcast(weights.probs))
    )


@register_density(TransformedDistribution)
def _transformed(d: TransformedDistribution) -> Density | None:
    current = density_of(d.base_dist)
    for step in _steps(d.transforms):
        current = None if current is None or current.integer else _after(current, step)
    return current


def _steps(transforms: list[Transform]) -> list[Transform]:
    return [
        step
        for transform in transforms
        for step in (_steps(transform.parts) if isinstance(transform, ComposeTransform) else [transform])
    ]


def _after(part: Density, step: Transform) -> Density | None:
    """Return the density of what a transform makes of a variable, None where it is not known."""
    if isinstance(step, AffineTransform) and step.event_dim == 0:
        loc, scale = (torch.as_tensor(x) for x in (step.loc, step.scale))
        loc, scale = upcast(loc), upcast(scale)
        if bool((scale > 0).all()) or bool((scale < 0).all()):
            return AffineDensity(part, loc, scale, bool((scale < 0).all()))
        return None
    on_line = part.low() is None and part.high() is None
    if isinstance(step, ExpTransform) and on_line:
        return ExpDensity(part)
    if isinstance(step, SigmoidTransform) and on_line:
        return SigmoidDensity(part)
    if isinstance(step, TanhTransform) and on_line:
        two = torch.full((), 2.0, dtype=torch.float64)
        doubled = AffineDensity(part, torch.zeros((), dtype=torch.float64), two, falls=False)
        return AffineDensity(SigmoidDensity(doubled), -torch.ones((), dtype=torch.float64), two, falls=False)
    return None
