"""Two densities in units of one of them: a divergence is the same there, and so narrow densities keep their digits.

In absolute numbers x - loc loses what x has more than loc. In the unit of P its own location is 0 and its scale 1, so
that a change of either is one of Q alone: the derivatives are sums without large terms that cancel.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kullback.pairs.densities.base import Density
from kullback.pairs.densities.composite import MixtureDensity
from kullback.pairs.densities.real import LocationScaleDensity, StudentTDensity
from kullback.pairs.densities.transformed import AffineDensity

__all__ = ["in_own_scale"]

# The largest ratio of scales, or distance in units of a scale, of which squares are numbers.
_WIDEST = 1e150


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
    usable = (scale > 0) & scale.isfinite() & loc.isfinite()
    for unit in (of_first, of_second):
        if unit is not None:
            far = torch.maximum((unit[0] - loc).abs(), unit[1]) / scale
            usable = usable & (far < _WIDEST)
    loc, scale = torch.where(usable, loc, 0.0), torch.where(usable, scale, 1.0)
    return _moved(p, loc, scale, usable & by_p), _moved(q, loc, scale, usable & ~by_p)


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
