"""Two densities as functions of z = (x - loc) / scale, where the unit (loc, scale) belongs to one of the densities.

A divergence is the same in every unit. For a narrow density far from 0, x - loc loses digits of x. In the unit of P, P
has location 0 and scale 1, and P's parameters change only Q. The derivatives are then sums without large terms that
cancel.

A share of a density is the density times a weight between 0 and 1. Each narrow component of P or Q has a weight. The
weight is almost 1 near the center of the component and falls to 0 away from this center. The remaining weight is 1
minus the sum of these weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from kullback.pairs.densities.composite import MixtureDensity
from kullback.pairs.densities.density import (
    DelegatingDensity,
    Density,
    LocationScaleDensity,
    Points,
    log_one_plus_square,
)
from kullback.pairs.densities.transformed import AffineDensity

# _WIDEST is the largest ratio of two scales, and of a distance to a scale, because the squares of larger ratios may
# overflow.
_WIDEST = 1e150
# A component is integrated over z instead of x if |loc| / scale exceeds _FARTHEST, because nodes in x would give
# gradients with an error of 1e-8.
_FARTHEST = 1e4
# If a density is more than _FAR_NARROWER times narrower than the unit, the unit has no derivatives (see `_unit`).
_FAR_NARROWER = 100.0
# If a component has |loc| / scale = _SHARED, the weight of its share is 1/2 at the center of the component.
_SHARED = 1e3
# _OUT are breakpoints where the weight of a share falls, as multiples of the distance at which the weight is 1/2.
_OUT = torch.exp(torch.linspace(-2, 2, 9, dtype=torch.float64, device="cpu"))


def in_own_scale(p: Density, q: Density, *, of_p: bool) -> tuple[Density, Density]:
    """Return the densities of (x - loc) / scale for x ~ P and for x ~ Q.

    The unit (loc, scale) belongs to P if `of_p` is true, and to the narrower density otherwise. P and Q are returned
    unchanged if P has no location and scale. Q must also have a location and a scale, unless `of_p` is true and Q's
    support is the whole line. A batch element does not change if the ratio of both scales, or the ratio of the distance
    between the locations to a scale, is extreme.
    """
    of_first, of_second = _location_and_scale(p), _location_and_scale(q)
    if of_first is None or (of_second is None and not (of_p and lives_everywhere(q))):
        return p, q
    loc, scale = of_first
    by_p = torch.ones_like(scale, dtype=torch.bool)
    if not of_p and of_second is not None:
        by_p = scale <= of_second[1]
        loc, scale = torch.where(by_p, loc, of_second[0]), torch.where(by_p, scale, of_second[1])
    loc, scale, is_fixed = _unit(loc, scale, [p, q])
    is_unit = (scale > 0) & scale.isfinite() & loc.isfinite()
    for unit in (of_first, of_second):
        if unit is not None:
            far = torch.maximum((unit[0] - loc).abs(), unit[1]) / scale
            is_unit = is_unit & (far < _WIDEST)
    loc, scale = torch.where(is_unit, loc, 0.0), torch.where(is_unit, scale, 1.0)
    own = is_unit & ~is_fixed
    return _scaled(p, loc, scale, own & by_p), _scaled(q, loc, scale, own & ~by_p)


def _unit(loc: Tensor, scale: Tensor, densities: list[Density]) -> tuple[Tensor, Tensor, Tensor]:
    """Return `loc` and `scale`, detached where a density is much narrower than `scale`, and a mask of these elements.

    There, derivatives by the unit would be sums of huge terms that cancel.
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


def is_far_and_narrow(d: Density) -> Tensor | None:
    """Return a mask of the elements with a component of large |loc| / scale, where x loses digits, or None."""
    far = _far_components(d)
    far = None if far is None else far.any(-1)
    return far if far is not None and bool(far.any()) else None


def _far_components(d: Density) -> Tensor | None:
    """Return a mask, shape (..., components), of components with a large |loc| / scale; None without loc and scale."""
    own = _components(d)
    if own is None:
        return None
    loc, scale = own[0].detach(), own[1].detach()
    far = loc.abs() > _FARTHEST * scale
    if isinstance(d, MixtureDensity):
        far = far & (d.log_weights > -torch.inf)
    is_unit = (scale > 0) & (loc.abs().amax(-1, keepdim=True) < _WIDEST * scale) & loc.isfinite()
    return far & is_unit.all(-1, keepdim=True)


def _components(d: Density) -> tuple[Tensor, Tensor] | None:
    """Return the locations and scales of a density's components, shape (..., components); None without them."""
    is_mixture = isinstance(d, MixtureDensity)
    own = _location_and_scale(d.part if is_mixture else d)
    if own is None:
        return None
    loc, scale = torch.broadcast_tensors(*own, *([d.log_weights] if is_mixture else []))[:2]
    return (loc, scale) if is_mixture else (loc.unsqueeze(-1), scale.unsqueeze(-1))


def components_in_own_scale(p: Density, q: Density) -> tuple[Tensor, Density, Density, Density]:
    """Return the weights of a mixture P, and three densities in the unit of each component: the component, P and Q.

    All have shape (..., components). The component of the largest weight replaces those of weight 0.
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
        _scaled(part, loc, scale, ~is_fixed),
        replace(mixture, log_weights=mixture.log_weights.unsqueeze(-2), part=_scaled(parts, *apart, itself)),
        _scaled(q, loc, scale, other),
    )


def shares_in_own_scale(p: Density, q: Density) -> list[tuple[Density, Density]]:
    """Return pairs of shares of P and Q, which add up to P and Q.

    For each narrow component of P or Q, the list has a pair of shares in the component's unit. The last pair has the
    remaining weight, and its densities are functions of x. The weights of the shares are functions of x that do not
    depend on the parameters. So the derivatives of the last pair come only from the tails of the narrow components.
    """
    units: list[tuple[int, int, Tensor, Tensor]] = []
    for side, density in enumerate((p, q)):
        own, far = _components(density), _far_components(density)
        if own is not None and far is not None:
            used = far.flatten(0, -2).any(0).nonzero().flatten().tolist()
            units += [(side, k, own[0][..., k], own[1][..., k]) for k in used]
    loc, scale = _side_by_side([unit[2] for unit in units]), _side_by_side([unit[3] for unit in units])
    log_size = 2 * torch.log(loc.abs() / scale / _SHARED).clamp(min=-300)
    shares: list[tuple[Density, Density]] = []
    for index, (side, k, center, unit) in enumerate(units):
        apart = center.unsqueeze(-1), unit.unsqueeze(-1)
        near = (loc - apart[0]) / apart[1], scale / apart[1], log_size, index
        first, second = (_in_unit(d, center, unit, k if side == of else None) for of, d in enumerate((p, q)))
        shares.append((_Share(first, *near), _Share(second, *near)))
    return [*shares, (_Share(p, loc, scale, log_size), _Share(q, loc, scale, log_size))]


def _side_by_side(numbers: list[Tensor]) -> Tensor:
    """Return the tensors, detached and stacked along a new last dimension."""
    return torch.stack(torch.broadcast_tensors(*numbers), -1).detach()


def _in_unit(d: Density, loc: Tensor, scale: Tensor, component: int | None) -> Density:
    """Return the density of (x - loc) / scale for an x with density `d`.

    `component` is the index of the component of `d` with this location and scale, or None if no component has them.
    """
    if not isinstance(d, MixtureDensity):
        return _scaled(d, loc, scale, torch.full_like(scale, component is not None, dtype=torch.bool))
    own = torch.arange(d.log_weights.shape[-1], device=loc.device) == (-1 if component is None else component)
    return replace(d, part=_scaled(d.part, loc.unsqueeze(-1), scale.unsqueeze(-1), own))


@dataclass(frozen=True)
class _Share(DelegatingDensity):
    """The density `part` times the weight of component `index`, or times the remaining weight if `index` is None.

    Let a_k = e^log_size_k / (1 + z_k^2)^2 and z_k = (x - loc_k) / scale_k. The weight of component k is
    a_k / (1 + sum_j a_j), and the remaining weight is 1 / (1 + sum_j a_j).
    """

    part: Density
    loc: Tensor
    scale: Tensor
    log_size: Tensor
    index: int | None = None

    @property
    def low(self) -> Tensor | None:
        return self.part.low if self.index is None else None

    @property
    def high(self) -> Tensor | None:
        return self.part.high if self.index is None else None

    def log_density(self, at: Points) -> Tensor:
        inside = torch.ones_like(at.x, dtype=torch.bool)
        near = self.log_size - 2 * log_one_plus_square((at.x.unsqueeze(-1) - self.loc) / self.scale)
        log_share = -torch.cat([near, torch.zeros_like(near[..., :1])], -1).logsumexp(-1)
        if self.index is not None:
            log_share = log_share + near[..., self.index]
            low, high = self.part.low, self.part.high
            inside = inside if low is None else at.x > low
            inside = inside if high is None else inside & (at.x < high)
            center = self.part.coordinate().points(self.part.center_and_width()[0]).x.detach()
            at = Points(torch.where(inside, at.x, center))
        return torch.where(inside, self.part.log_density(at) + log_share, -torch.inf)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        if self.index is None:
            return self.part.center_and_width()
        return torch.zeros_like(self.loc[..., 0]), torch.ones_like(self.scale[..., 0])

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        peaks = self.part.breakpoints(steps)
        if self.index is None:
            return peaks
        reach = torch.exp(self.log_size[..., self.index] / 4)
        return [*(self.part.coordinate().points(marks).x for marks in peaks), reach * _OUT, -reach * _OUT]

    def nonsmooth_points(self) -> list[Tensor]:
        ends = [] if self.index is None else [self.part.low, self.part.high]
        return [*self.part.nonsmooth_points(), *(end for end in ends if end is not None)]


def _with_weight(x: Tensor, log_weights: Tensor) -> Tensor:
    x, log_weights = torch.broadcast_tensors(x, log_weights)
    largest = x.gather(-1, log_weights.argmax(-1, keepdim=True))
    return torch.where(log_weights > -torch.inf, x, largest)


def lives_everywhere(d: Density) -> bool:
    """Return whether the support of a density is the whole real line."""
    return d.low is None and d.high is None and not d.integer


def _location_and_scale(d: Density) -> tuple[Tensor, Tensor] | None:
    if isinstance(d, LocationScaleDensity):
        return d.loc, d.scale
    if isinstance(d, AffineDensity):
        part = _location_and_scale(d.part)
        return None if part is None else (d.loc + d.scale * part[0], d.scale.abs() * part[1])
    return None


def _scaled(d: Density, loc: Tensor, scale: Tensor, own: Tensor) -> Density:
    """Return the density of (x - loc) / scale for an x with density `d`.

    Where `own` is true, `loc` and `scale` belong to `d`, so its new location is exactly 0 and its new scale exactly 1.
    """
    if isinstance(d, LocationScaleDensity | AffineDensity):
        unit = -1.0 if isinstance(d, AffineDensity) and d.falls else 1.0
        place = torch.where(own, 0.0, (d.loc - loc) / scale), torch.where(own, unit, d.scale / scale)
        if isinstance(d, LocationScaleDensity):
            return replace(d, loc=place[0], scale=place[1])
        part = d.part
        if _location_and_scale(part) is not None:
            part = _scaled(part, torch.zeros_like(loc), torch.ones_like(scale), own)
        return replace(d, part=part, loc=place[0], scale=place[1])
    if isinstance(d, MixtureDensity):
        return replace(d, part=_scaled(d.part, loc.unsqueeze(-1), scale.unsqueeze(-1), own.unsqueeze(-1)))
    # The shift is a separate map before the scaling, so that end - loc keeps its digits for an end of the support.
    moved = AffineDensity(d, -loc, torch.ones_like(scale), falls=False)
    return AffineDensity(moved, torch.zeros_like(loc), 1 / scale, falls=False)
