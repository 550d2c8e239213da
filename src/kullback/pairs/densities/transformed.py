"""The densities of real variables after monotone transforms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import TransformedDistribution
from torch.distributions.transforms import (
    AffineTransform,
    ExpTransform,
    SigmoidTransform,
    SoftplusTransform,
    Transform,
)

from kullback.pairs.densities.black_box import density_on_image, ends_after
from kullback.pairs.densities.density import (
    DelegatingDensity,
    Density,
    Points,
    Tail,
    density_of,
    register_density,
)
from kullback.pairs.densities.mapped import (
    EXP,
    LOG,
    LOGIT,
    SIGMOID,
    SOFTPLUS,
    SOFTPLUS_INVERSE,
    Increasing,
    InverseMappedDensity,
    MappedDensity,
    QuantileDensity,
    SigmoidDensity,
)
from kullback.pairs.densities.maps import base_and_steps, exact_parameters, inverted_by, standard_family
from kullback.pairs.family import FAMILIES
from kullback.pairs.numerics.parameters import dtype_of


@dataclass(frozen=True)
class AffineDensity(DelegatingDensity):
    """The density of loc + scale y, where y has the density `part`. If `falls`, all scales are negative."""

    part: Density
    loc: Tensor
    scale: Tensor
    falls: bool

    @property
    def low(self) -> Tensor | None:
        end = self.part.high if self.falls else self.part.low
        return None if end is None else self.loc + self.scale * end

    @property
    def high(self) -> Tensor | None:
        end = self.part.low if self.falls else self.part.high
        return None if end is None else self.loc + self.scale * end

    def pieces(self) -> tuple[Tensor, Tensor] | None:
        pieces = self.part.pieces()
        if pieces is None:
            return None
        loc, scale = (x.unsqueeze(-1) if x.ndim else x for x in (self.loc, self.scale))
        first, last = (loc + scale * end for end in pieces)
        return (last, first) if self.falls else (first, last)

    def log_density(self, at: Points) -> Tensor:
        log_scale = torch.log(self.scale.abs())
        low, high = self.low, self.high
        below = None if low is None else at.log_above(low) - log_scale
        above = None if high is None else at.log_below(high) - log_scale
        if self.falls:
            below, above = above, below
        own = Points((at.x - self.loc) / self.scale, self.part.low, below, self.part.high, above)
        return self.part.log_density(own) - log_scale

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        center, width = self.part.center_and_width()
        own = self.part.coordinate()
        is_line = own.low is None and own.high is None
        return self.image_coordinate(center), width * self.scale.abs() if is_line else width

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        return [self.image_coordinate(marks) for marks in self.part.breakpoints(steps)]

    def nonsmooth_points(self) -> list[Tensor]:
        return [self.loc + self.scale * point for point in self.part.nonsmooth_points()]

    def image_coordinate(self, t: Tensor) -> Tensor:
        """Return the coordinate of loc + scale y from the part's coordinate t of y."""
        own = self.part.coordinate()
        if own.low is None and own.high is None:
            return self.loc + self.scale * t
        shift = 0.0 if own.low is not None and own.high is not None else torch.log(self.scale.abs())
        shift = -shift if own.low is None else shift
        return -(t + shift) if self.falls else t + shift

    def lower_tail(self) -> Tail:
        return self._tail(self.part.upper_tail() if self.falls else self.part.lower_tail(), self.low, -1)

    def upper_tail(self) -> Tail:
        return self._tail(self.part.lower_tail() if self.falls else self.part.upper_tail(), self.high, 1)

    def _tail(self, tail: Tail, end: Tensor | None, side: int) -> Tail:
        size = self.scale.abs()
        return tail.in_unit(1 / size).shifted(-side * self.loc) if end is None else tail.in_unit(size)


@register_density(TransformedDistribution)
def _transformed(d: TransformedDistribution) -> Density | None:
    base, steps = base_and_steps(d)
    current = density_of(base)
    if current is None or current.integer:
        return None
    ends: tuple[Tensor | None, Tensor | None] | None = current.low, current.high
    image: Density | None = current
    rounding = 4 * torch.finfo(dtype_of(d)).eps
    for step in steps:
        image = None if image is None else _after(image, step, rounding)
        ends = None if ends is None else ends_after(ends, step)
    return density_on_image(d, ends) if image is None and ends is not None else image


def _after(part: Density, step: Transform, rounding: float) -> Density | None:
    """Return the density of a variable with density `part` after the step, or None if it is unknown."""
    if isinstance(step, AffineTransform):
        return _affine(part, *exact_parameters(step))
    family = _IMAGES.get(type(step))
    if family is not None:
        return family(part)
    curve = _curve_of(step)
    if curve is not None:
        return MappedDensity(part, curve) if part.low is None and part.high is None else None
    inverse = inverted_by(step)
    return None if inverse is None else _after_inverse(part, inverse, rounding)


def _after_inverse(part: Density, inverse: Transform, rounding: float) -> Density | None:
    """Return the density of a variable with density `part` after the inverse of `inverse`, or None if it is unknown."""
    from_zero = _reaches(part, 0.0, 0, rounding)
    if from_zero is None:
        return None
    if isinstance(inverse, ExpTransform | SoftplusTransform):
        function = LOG if isinstance(inverse, ExpTransform) else SOFTPLUS_INVERSE
        return InverseMappedDensity(part, function, (from_zero, part.high is None))
    to_one = _reaches(part, 1.0, 1, rounding)
    if to_one is None:
        return None
    if isinstance(inverse, SigmoidTransform):
        return InverseMappedDensity(part, LOGIT, (from_zero, to_one))
    curve = _curve_of(inverse) if from_zero and to_one else None
    return None if curve is None else QuantileDensity(part, curve, (True, True))


_IMAGES: dict[type, Callable[[Density], Density]] = {
    ExpTransform: lambda part: MappedDensity(part, EXP),
    SigmoidTransform: lambda part: SigmoidDensity(part, SIGMOID),
    SoftplusTransform: lambda part: MappedDensity(part, SOFTPLUS),
}


def _reaches(part: Density, edge: float, side: int, rounding: float) -> bool | None:
    """Return whether an end of the support equals an edge of a map's domain, or None for an end outside of the domain.

    The comparison allows for the rounding error of the end of an affine image.
    """
    end = part.high if side else part.low
    if end is None:
        return None
    inside = (edge - end) if side else (end - edge)
    is_rounded = isinstance(part, AffineDensity)
    if bool((inside < (-_OUTSIDE if is_rounded else 0.0)).any()):
        return None
    allowed = rounding if is_rounded else 0.0
    return bool((inside <= allowed).all())


# `check_domains` accepts an end of a support that is at most _OUTSIDE outside of a domain.
_OUTSIDE = 1e-6


def _curve_of(step: Transform) -> Increasing | None:
    """Return the `Increasing` record of a standard distribution function, or None for any other step."""
    family = standard_family(step)
    return None if family is None else FAMILIES[family].curve


def _affine(part: Density, loc: Tensor, scale: Tensor) -> Density | None:
    if bool((scale > 0).all()) or bool((scale < 0).all()):
        return AffineDensity(part, loc, scale, bool((scale < 0).all()))
    return None
