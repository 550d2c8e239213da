"""The laws of distributions made from others: mixtures and maps of the line."""

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

from kullback.pairs.densities.base import Coordinate, Growth, Law, Points, Tail, law, law_of
from kullback.pairs.numerics.bernoulli import safe_log
from kullback.pairs.numerics.parameters import given_logits, wide
from kullback.pairs.numerics.special import log_total

__all__ = ["AffineLaw", "ExpLaw", "MixtureLaw", "SigmoidLaw", "log_weights_of"]


@dataclass(frozen=True)
class MixtureLaw(Law):
    """sum_k weight_k p_k(x), the components along the last dimension of the parameters."""

    log_weights: Tensor
    part: Law

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Law:
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
        return log_total(self.log_weights + density, -1)

    def spread(self) -> tuple[Tensor, Tensor]:
        weights = torch.exp(self.log_weights)
        centers, widths = self._of_parts(self.part.spread())
        center = (weights * centers).sum(-1)
        variance = (weights * (widths**2 + (centers - center.unsqueeze(-1)) ** 2)).sum(-1)
        return center, torch.sqrt(variance)

    def landmarks(self) -> list[Tensor]:
        marks = self._of_parts(tuple(self.part.landmarks()))
        return [part for mark in marks for part in mark.unbind(-1)]

    def kinks(self) -> list[Tensor]:
        ends = [end for end in (self.part.low(), self.part.high()) if end is not None and end.ndim]
        return [x for kink in (*self.part.kinks(), *ends) for x in kink.unbind(-1)]

    def lower_tail(self) -> Tail:
        return Tail(*(self._least(x) for x in self.part.lower_tail()))

    def upper_tail(self) -> Tail:
        return Tail(*(self._least(x) for x in self.part.upper_tail()))

    def lower_growth(self) -> Growth:
        return Growth(*(self._least(x) for x in self.part.lower_growth()))

    def upper_growth(self) -> Growth:
        return Growth(*(self._least(x) for x in self.part.upper_growth()))

    def _of_parts(self, marks: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Turn coordinates of the components into those of the mixture, whose ends may lie further out."""
        marks = torch.broadcast_tensors(*marks, self.log_weights)[:-1]
        ends = [end for end in (self.part.low(), self.part.high()) if end is not None and end.ndim]
        if not ends:
            return marks
        own = Coordinate(
            *(None if x is None else x.unsqueeze(-1) if x.ndim else x for x in (self.low(), self.high()))
        )
        moved = [own.of(self.part.coordinate().points(mark).x).clamp(-700, 700) for mark in marks]
        return (*moved[:1], *(torch.ones_like(m) for m in moved[1:])) if len(moved) == 2 else tuple(moved)


class MixtureOfIntegersLaw(MixtureLaw):
    """The same of integer-valued components."""

    integer: ClassVar[bool] = True

    @property
    def smooth(self) -> bool:
        """Tell whether the probabilities of the components are those of smooth functions."""
        return getattr(self.part, "smooth", True)

    def coordinate(self) -> Coordinate:
        return self.part.coordinate()

    def _of_parts(self, marks: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(torch.broadcast_tensors(*marks, self.log_weights)[:-1])


@dataclass(frozen=True)
class AffineLaw(Law):
    """The law of loc + scale y, for y of another law and a scale that is positive throughout, or negative."""

    part: Law
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
        # Distances from P's ends are those from this law's own only where the ends are the same.
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

    def spread(self) -> tuple[Tensor, Tensor]:
        center, width = self.part.spread()
        return self._moved(center), width * self._stretch()

    def landmarks(self) -> list[Tensor]:
        return [self._moved(mark) for mark in self.part.landmarks()]

    def kinks(self) -> list[Tensor]:
        return [self.loc + self.scale * kink for kink in self.part.kinks()]

    def _moved(self, t: Tensor) -> Tensor:
        """Turn the part's coordinate into this law's."""
        own = self.part.coordinate()
        if own.low is None and own.high is None:
            return self.loc + self.scale * t
        shift = 0.0 if own.low is not None and own.high is not None else torch.log(self.scale.abs())
        shift = -shift if own.low is None else shift
        return -(t + shift) if self.falls else t + shift

    def _stretch(self) -> Tensor | float:
        own = self.part.coordinate()
        return self.scale.abs() if own.low is None and own.high is None else 1.0

    def lower_tail(self) -> Tail:
        return self._tail(self.part.upper_tail() if self.falls else self.part.lower_tail(), self.low())

    def upper_tail(self) -> Tail:
        return self._tail(self.part.lower_tail() if self.falls else self.part.upper_tail(), self.high())

    def lower_growth(self) -> Growth:
        growth = self.part.upper_growth() if self.falls else self.part.lower_growth()
        return Growth(growth.power, growth.rate * self._unit(self.low()))

    def upper_growth(self) -> Growth:
        growth = self.part.lower_growth() if self.falls else self.part.upper_growth()
        return Growth(growth.power, growth.rate * self._unit(self.high()))

    def _tail(self, tail: Tail, end: Tensor | None) -> Tail:
        return Tail(tail.power, tail.rate * self._unit(end))

    def _unit(self, end: Tensor | None) -> Tensor:
        """Return how much longer u is in the part: at infinity 1 / scale, at an end scale."""
        size = self.scale.abs()
        return 1 / size if end is None else size


@dataclass(frozen=True)
class ExpLaw(Law):
    """The law of e^y, for y of a law on the whole line."""

    part: Law

    def low(self) -> Tensor | None:
        return torch.zeros((), dtype=torch.float64)

    def log_density(self, at: Points) -> Tensor:
        log_x = at.log_above(0.0)
        return self.part.log_density(Points(log_x)) - log_x

    def spread(self) -> tuple[Tensor, Tensor]:
        return self.part.spread()

    def landmarks(self) -> list[Tensor]:
        return [*self.part.landmarks(), *self.part.kinks()]

    def lower_tail(self) -> Tail:
        return _tail_of_exponential(self.part.lower_tail())

    def upper_tail(self) -> Tail:
        return _tail_of_exponential(self.part.upper_tail())

    def lower_growth(self) -> Growth:
        return Growth(power=self.part.lower_growth().rate)

    def upper_growth(self) -> Growth:
        return Growth(power=self.part.upper_growth().rate)


@dataclass(frozen=True)
class SigmoidLaw(Law):
    """The law of sigmoid(y), for y of a law on the whole line."""

    part: Law

    def low(self) -> Tensor | None:
        return torch.zeros((), dtype=torch.float64)

    def high(self) -> Tensor | None:
        return torch.ones((), dtype=torch.float64)

    def log_density(self, at: Points) -> Tensor:
        log_x, log_rest = at.log_above(0.0), at.log_below(1.0)
        return self.part.log_density(Points(log_x - log_rest)) - log_x - log_rest

    spread = ExpLaw.spread
    landmarks = ExpLaw.landmarks
    lower_tail, upper_tail = ExpLaw.lower_tail, ExpLaw.upper_tail
    lower_growth, upper_growth = ExpLaw.lower_growth, ExpLaw.upper_growth


def _tail_of_exponential(tail: Tail) -> Tail:
    """Return the tail of e^y: an exponential one becomes a power, a heavier one is heavier than any power."""
    power = torch.as_tensor(tail.power, dtype=torch.float64)
    return Tail(
        power=torch.where(power < torch.inf, 0.0, torch.as_tensor(tail.rate, dtype=torch.float64)), rate=0.0
    )


@law(MixtureSameFamily)
def _mixture(d: MixtureSameFamily) -> Law | None:
    part = law_of(d.component_distribution)
    if part is None:
        return None
    return (MixtureOfIntegersLaw if part.integer else MixtureLaw)(log_weights_of(d), part)


def log_weights_of(d: MixtureSameFamily) -> Tensor:
    """Return the logarithms of the weights of a mixture."""
    weights: Categorical = d.mixture_distribution
    return wide(weights.logits).log_softmax(-1) if given_logits(weights) else safe_log(wide(weights.probs))


@law(TransformedDistribution)
def _transformed(d: TransformedDistribution) -> Law | None:
    current = law_of(d.base_dist)
    for step in _steps(d.transforms):
        current = None if current is None or current.integer else _after(current, step)
    return current


def _steps(transforms: list[Transform]) -> list[Transform]:
    return [
        step
        for transform in transforms
        for step in (_steps(transform.parts) if isinstance(transform, ComposeTransform) else [transform])
    ]


def _after(part: Law, step: Transform) -> Law | None:
    """Return the law of what a transform makes of a variable, None where it is not known."""
    if isinstance(step, AffineTransform) and step.event_dim == 0:
        loc, scale = (torch.as_tensor(x) for x in (step.loc, step.scale))
        loc, scale = wide(loc), wide(scale)
        if bool((scale > 0).all()) or bool((scale < 0).all()):
            return AffineLaw(part, loc, scale, bool((scale < 0).all()))
        return None
    on_line = part.low() is None and part.high() is None
    if isinstance(step, ExpTransform) and on_line:
        return ExpLaw(part)
    if isinstance(step, SigmoidTransform) and on_line:
        return SigmoidLaw(part)
    if isinstance(step, TanhTransform) and on_line:
        two = torch.full((), 2.0, dtype=torch.float64)
        doubled = AffineLaw(part, torch.zeros((), dtype=torch.float64), two, falls=False)
        return AffineLaw(SigmoidLaw(doubled), -torch.ones((), dtype=torch.float64), two, falls=False)
    return None
