"""`plain_form`, which removes needless wrappers and transforms: an affine transform of a Normal becomes a Normal."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributions import (
    AffineTransform,
    Distribution,
    Independent,
    MixtureSameFamily,
    TransformedDistribution,
    Uniform,
)
from torch.distributions.transforms import (
    CumulativeDistributionTransform,
    ExpTransform,
    SigmoidTransform,
    SoftplusTransform,
    Transform,
)

from kullback.common.inputs import can_inspect
from kullback.pairs.densities.density import density_of
from kullback.pairs.densities.maps import (
    base_and_steps,
    exact_parameters,
    inverted_by,
    is_elementwise,
    is_map,
    mapped,
    same_maps,
)
from kullback.pairs.density_overrides import overrides_density
from kullback.pairs.family import FAMILIES
from kullback.pairs.registry import is_plain


def plain_form(d: Distribution) -> Distribution:
    """Return the same distribution with fewer wrappers and transforms; `d` itself if none can be removed."""
    if is_plain(type(d)) or overrides_density(d):
        return d
    if isinstance(d, Independent):
        return _of_independent(d)
    if is_map(d):
        return _of_map(d)
    if isinstance(d, MixtureSameFamily):
        parts = plain_form(d.component_distribution)
        if parts is not d.component_distribution:
            return MixtureSameFamily(d.mixture_distribution, parts, validate_args=False)
    return d


def pulled_back(p: Distribution, q: Distribution) -> tuple[Distribution, Distribution] | None:
    """Return P and Q after undoing the last transform of P, or of Q, that maps the line onto a part of it; else None.

    A transform such as exp brings an infinite end close to 0, where float64 cannot resolve the mass of a slowly falling
    tail. Undoing the transform does not change the divergence, and float64 resolves this mass on the whole line.
    """
    for side, other in ((p, q), (q, p)):
        if not is_map(side) or side.event_shape:
            continue
        base, steps = base_and_steps(side)
        last = next((i for i in reversed(range(len(steps))) if isinstance(steps[i], _ONTO_A_PART)), None)
        if last is None:
            continue
        back = [step.inv for step in reversed(steps[last:])]
        moved = TransformedDistribution(other, back, validate_args=False)
        before = mapped(base, steps[:last])
        if density_of(moved) is not None:
            return (before, moved) if side is p else (moved, before)
    return None


_ONTO_A_PART = (ExpTransform, SigmoidTransform, SoftplusTransform, CumulativeDistributionTransform)


def _of_independent(d: Any) -> Distribution:
    base, count = plain_form(d.base_dist), d.reinterpreted_batch_ndims
    if isinstance(base, Independent) and not overrides_density(base):
        base, count = base.base_dist, count + base.reinterpreted_batch_ndims
    if not count:
        return base
    return d if base is d.base_dist else Independent(base, count, validate_args=False)


def _of_map(d: TransformedDistribution) -> Distribution:
    base, steps = base_and_steps(d)
    base = plain_form(base)
    if isinstance(base, Independent) and not overrides_density(base) and is_elementwise(steps):
        each = TransformedDistribution(base.base_dist, steps, validate_args=False)
        return _of_independent(Independent(each, base.reinterpreted_batch_ndims, validate_args=False))
    while steps and (image := _image_in_family(base, steps[0])) is not None:
        base, steps = image, steps[1:]
    if not steps:
        return base
    is_unchanged = base is d.base_dist and len(steps) == len(d.transforms)
    if is_unchanged and all(a is b for a, b in zip(steps, d.transforms, strict=True)):
        return d
    return TransformedDistribution(base, steps, validate_args=False)


def _image_in_family(base: Any, step: Transform) -> Distribution | None:
    """Return the distribution of step(x) if it belongs to a registered family; None otherwise."""
    if overrides_density(base):
        return None
    if isinstance(step, AffineTransform):
        family = FAMILIES.get(type(base))
        if family is None or family.image is None:
            return None
        loc, scale = exact_parameters(step)
        return None if can_inspect(scale) and bool((scale == 0).any()) else family.image(base, loc, scale)
    if isinstance(step, CumulativeDistributionTransform) and same_maps(step.distribution, base):
        zero = torch.zeros(base.batch_shape, dtype=torch.float64, device="cpu")
        return Uniform(zero, zero + 1, validate_args=False)
    inverse = inverted_by(step)
    if isinstance(inverse, CumulativeDistributionTransform) and type(base) is Uniform:
        is_unit = can_inspect(base.low) and bool((base.low == 0).all()) and bool((base.high == 1).all())
        known: Any = inverse.distribution
        return known.expand(base.batch_shape) if is_unit else None
    return None
