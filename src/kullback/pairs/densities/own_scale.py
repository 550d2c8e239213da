"""Two densities in units of one of them: a divergence is the same there, and so narrow densities keep their digits.

In absolute numbers x - loc loses what x has more than loc. In the unit of P its own location is 0 and its scale 1, so
that a change of either is one of Q alone: the derivatives are sums without large terms that cancel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from kullback.pairs.densities.base import Density, Points, Tail
from kullback.pairs.densities.composite import MixtureDensity
from kullback.pairs.densities.real import LocationScaleDensity, StudentTDensity
from kullback.pairs.densities.transformed import AffineDensity

__all__ = ["components_in_own_scale", "in_own_scale", "is_far_and_narrow", "shares_in_own_scale"]

# The largest ratio of scales, or distance in units of a scale, of which squares are numbers.
_WIDEST = 1e150
# How many of its scales a component may be from 0: further out, gradients on absolute nodes miss a part in 1e8.
_FARTHEST = 1e4
# How many times narrower a density is that a change of the unit would move too far.
_FAR_NARROWER = 100.0


def in_own_scale(p: Density, q: Density, *, of_p: bool) -> tuple[Density, Density]:
    """Return two densities in the unit of P, or of the narrower one; as they are if they have no location and scale.

    Elements of a batch whose scales are too far apart stay as they are.
    """
    of_first, of_second = _location_and_scale(p), _location_and_scale(q)
    if of_first is None or (of_second is None and not (of_p and _lives_everywhere(q))):
        return p, q
    loc, scale = of_first
    by_p = torch.ones_like(scale, dtype=torch.bool)
    if not of_p and of_second is not None:
        by_p = scale <= of_second[1]
        loc, scale = torch.where(by_p, loc, of_second[0]), torch.where(by_p, scale, of_second[1])
    loc, scale, is_fixed = _unit(loc, scale, [p, q])
    usable = (scale > 0) & scale.isfinite() & loc.isfinite()
    for unit in (of_first, of_second):
        if unit is not None:
            far = torch.maximum((unit[0] - loc).abs(), unit[1]) / scale
            usable = usable & (far < _WIDEST)
    loc, scale = torch.where(usable, loc, 0.0), torch.where(usable, scale, 1.0)
    own = usable & ~is_fixed
    return _moved(p, loc, scale, own & by_p), _moved(q, loc, scale, own & ~by_p)


def _unit(loc: Tensor, scale: Tensor, densities: list[Density]) -> tuple[Tensor, Tensor, Tensor]:
    """Return a unit, without derivatives where a density is far narrower, and where that is so.

    A change of the unit moves such a density by many of its widths: its derivatives would be huge terms that cancel.
    """
    is_fixed = torch.zeros_like(scale, dtype=torch.bool)
    for density in densities:
        own = _location_and_scale(density.part if isinstance(density, MixtureDensity) else density)
        if own is None:
            continue
        narrowest = own[1].detach()
        if isinstance(density, MixtureDensity):
            narrowest = torch.where(density.log_weights > -torch.inf, narrowest, torch.inf).amin(-1)
        is_fixed = is_fixed | (scale.detach() > _FAR_NARROWER * narrowest)
    return torch.where(is_fixed, loc.detach(), loc), torch.where(is_fixed, scale.detach(), scale), is_fixed


def is_far_and_narrow(p: Density, q: Density) -> Tensor | None:
    """Tell where P is a mixture of components so far from 0 and so narrow that absolute numbers lose their digits.

    None where that is so of no element, or components have no scale of their own.
    """
    if not (isinstance(p, MixtureDensity) and _lives_everywhere(q)):
        return None
    own = _location_and_scale(p.part.detached())
    if own is None:
        return None
    far = (own[0].abs() > _FARTHEST * own[1]) & (p.log_weights > -torch.inf)
    usable = (own[1] > 0) & (own[0].abs().amax(-1, keepdim=True) < _WIDEST * own[1]) & own[0].isfinite()
    far = far.any(-1) & usable.all(-1)
    return far if bool(far.any()) else None


def components_in_own_scale(p: Density, q: Density) -> tuple[Tensor, Density, Density, Density]:
    """Return the weights of a mixture, and its components, the mixture and Q in the unit of each component.

    The components are one more dimension. One without weight is replaced by that of the largest.
    """
    mixture = cast("MixtureDensity", p)
    part = mixture.part.mapped(lambda x: _with_weight(x, mixture.log_weights))
    loc, scale = cast("tuple[Tensor, Tensor]", _location_and_scale(part))
    q = q.mapped(lambda x: x.unsqueeze(-1))
    whole = mixture.mapped(lambda x: x.unsqueeze(-1))
    loc, scale, is_fixed = _unit(loc, scale, [whole, q])
    other = torch.zeros_like(loc, dtype=torch.bool)
    itself = torch.eye(other.shape[-1], dtype=torch.bool, device=other.device) & ~is_fixed.unsqueeze(-1)
    apart = loc.unsqueeze(-1), scale.unsqueeze(-1)
    parts = part.mapped(lambda x: x.unsqueeze(-2))
    return (
        torch.exp(mixture.log_weights),
        _moved(part, loc, scale, ~is_fixed),
        replace(mixture, log_weights=mixture.log_weights.unsqueeze(-2), part=_moved(parts, *apart, itself)),
        _moved(q, loc, scale, other),
    )


def shares_in_own_scale(p: Density, q: Density) -> list[tuple[Density, Density]]:
    """Return the parts of P and Q near each component of the mixture P, in its unit: they add up to P and Q."""
    weights, part, whole, q = components_in_own_scale(p, q)
    loc, scale = cast("tuple[Tensor, Tensor]", _location_and_scale(cast("MixtureDensity", whole).part))
    heavy = torch.full_like(scale, 3.0)
    near_any = MixtureDensity(torch.zeros_like(scale), StudentTDensity(heavy, loc, scale))
    loc, scale = cast("tuple[Tensor, Tensor]", _location_and_scale(part))
    near = StudentTDensity(torch.full_like(scale, 3.0), loc, scale)
    both = [_Share(density, near, near_any) for density in (whole, q)]

    def of(k: int, density: Density) -> Density:
        return density.mapped(lambda x: x[..., k if x.shape[-1] > 1 else 0])

    return [(of(k, both[0]), of(k, both[1])) for k in range(weights.shape[-1])]


@dataclass(frozen=True)
class _Share(Density):
    """A density times how near a point is to one place rather than to any of several."""

    part: Density
    near: Density
    near_any: Density

    def log_density(self, at: Points) -> Tensor:
        return self.part.log_density(at) + self.near.log_density(at) - self.near_any.log_density(at)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return self.near.center_and_width()

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        return self.part.breakpoints(steps)

    def nonsmooth_points(self) -> list[Tensor]:
        return self.part.nonsmooth_points()

    def lower_tail(self) -> Tail:
        return self.part.lower_tail()

    def upper_tail(self) -> Tail:
        return self.part.upper_tail()


def _with_weight(x: Tensor, log_weights: Tensor) -> Tensor:
    x, log_weights = torch.broadcast_tensors(x, log_weights)
    largest = x.gather(-1, log_weights.argmax(-1, keepdim=True))
    return torch.where(log_weights > -torch.inf, x, largest)


def _lives_everywhere(d: Density) -> bool:
    return d.low() is None and d.high() is None and not d.integer


def _location_and_scale(d: Density) -> tuple[Tensor, Tensor] | None:
    if isinstance(d, LocationScaleDensity | StudentTDensity):
        return d.loc, d.scale
    if isinstance(d, AffineDensity):
        part = _location_and_scale(d.part)
        return None if part is None else (d.loc + d.scale * part[0], d.scale.abs() * part[1])
    return None


def _moved(d: Density, loc: Tensor, scale: Tensor, own: Tensor) -> Density:
    """Return the density of (x - loc) / scale, which is the standard one of the family where that is its own unit."""
    if isinstance(d, LocationScaleDensity | StudentTDensity):
        return replace(
            d,
            loc=torch.where(own, 0.0, (d.loc - loc) / scale),
            scale=torch.where(own, 1.0, d.scale / scale),
        )
    if isinstance(d, AffineDensity):
        part = d.part
        if _location_and_scale(part) is not None:
            part = _moved(part, torch.zeros_like(loc), torch.ones_like(scale), own)
        return replace(
            d,
            part=part,
            loc=torch.where(own, 0.0, (d.loc - loc) / scale),
            scale=torch.where(own, -1.0 if d.falls else 1.0, d.scale / scale),
        )
    if isinstance(d, MixtureDensity):
        apart = (x.unsqueeze(-1) for x in (loc, scale, own))
        return replace(d, part=_moved(d.part, *apart))
    return AffineDensity(d, -loc / scale, 1 / scale, falls=False)
