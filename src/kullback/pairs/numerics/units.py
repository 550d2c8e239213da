"""A change of the unit of P and Q, for parameters so large or small that their squares leave the range of float64.

A divergence does not depend on the unit. Division of parameters by a power of two is exact, and the chain rule divides
the derivatives by the same power. So a derivative overflows only if the exact derivative with respect to the user's
parameter does.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily

from kullback.common.inputs import can_inspect
from kullback.pairs.density_overrides import overrides_density
from kullback.pairs.family import FAMILIES, Units

# _MILD and _WIDEST are exponents of 2. A parameter below 2^-_MILD or above 2^_MILD needs another unit. One unit
# suffices for P and Q if the ratio of the largest parameter to the smallest is below 2^_WIDEST.
_MILD, _WIDEST = 250, 1990
_LEAST, _LARGEST = 2.0**-_MILD, 2.0**_MILD


def in_common_unit(p: Distribution, q: Distribution, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return P and Q in another unit if a parameter is extremely large or small, else P and Q unchanged.

    The unit is between the smallest and the largest parameter. If `dtype` is smaller than float64, no parameter is
    extreme, because computations are in float64.
    """
    if dtype is not torch.float64 or (_is_mild(p) and _is_mild(q)):
        return p, q
    sizes = _sizes(p), _sizes(q)
    if sizes[0] is None or sizes[1] is None:
        return p, q
    both = [*sizes[0], *sizes[1]]
    if not all(map(can_inspect, both)) or not any(bool((x.abs() > _MILD).any()) for x in both):
        return p, q
    orders = torch.stack(torch.broadcast_tensors(*both))
    lowest, highest = orders.nan_to_num(math.inf).amin(0), orders.nan_to_num(-math.inf).amax(0)
    middle = torch.floor((lowest + highest) / 2)
    power = torch.where(highest - lowest < _WIDEST, middle, 0).nan_to_num(0)
    return _divided(p, power), _divided(q, power)


def _is_mild(d: Distribution) -> bool:
    """Return whether the family has no unit, or no parameter is extreme; a quick test before `_sizes`."""
    if type(d) is MixtureSameFamily and not overrides_density(d):
        return _is_mild(d.component_distribution)
    for name, times in (_powers(d) or {}).items():
        if not times:
            continue
        x: Tensor = getattr(d, name).detach()
        if not can_inspect(x):
            return False
        if x.numel():
            least, most = torch.where(x == 0, 1, x.abs()).aminmax()
            if not (float(least) >= _LEAST and float(most) <= _LARGEST):
                return False
    return True


def _powers(d: Distribution) -> Units | None:
    """Return the power of x's unit in each parameter, such as 1 for a scale and -1 for a rate.

    The result is None if the family has no unit.
    """
    family = None if overrides_density(d) else FAMILIES.get(type(d))
    units = None if family is None else family.units
    return units(d) if callable(units) else units


def _sizes(d: Distribution) -> list[Tensor] | None:
    """Return log2 |x^k| for each parameter x that has a unit, where k is 1 for a scale and -1 for a rate.

    The logarithm is NaN for x = 0. The result is None if the family has no unit.
    """
    if type(d) is MixtureSameFamily and not overrides_density(d):
        sizes = _sizes(d.component_distribution)
        return None if sizes is None else [part for x in sizes for part in x.unbind(-1)]
    powers = _powers(d)
    if powers is None:
        return None
    read: list[Tensor] = []
    for name, times in powers.items():
        if times:
            x: Tensor = getattr(d, name).detach().abs()
            size = torch.where((x > 0) & x.isfinite(), times * torch.log2(x), math.nan)
            if x.ndim == len(d.batch_shape):
                read.append(size)
            else:
                size = size.flatten(len(d.batch_shape))
                read += [size.nan_to_num(math.inf).amin(-1), size.nan_to_num(-math.inf).amax(-1)]
    return [torch.where(x.isinf(), math.nan, x) for x in read]


def _divided(d: Any, power: Tensor) -> Distribution:
    """Return a distribution whose unit is 2^power; a scale, for example, is divided by 2^power."""
    if isinstance(d, MixtureSameFamily):
        components = _divided(d.component_distribution, power.unsqueeze(-1))
        return MixtureSameFamily(d.mixture_distribution, components, validate_args=False)
    half = torch.floor(power / 2)  # two factors, because 2^-power may overflow although the product does not

    def changed(x: Tensor, times: int) -> Tensor:
        if times == 0:
            return x
        events = (1,) * (x.ndim - len(d.batch_shape))
        first, second = (times * part.reshape((*part.shape, *events)) for part in (half, power - half))
        return x * torch.exp2(-first) * torch.exp2(-second)

    powers = cast("Units", _powers(d))
    parameters = {name: changed(getattr(d, name), times) for name, times in powers.items()}
    return type(d)(**parameters, validate_args=False)
