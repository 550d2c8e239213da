"""The image of a support under transforms, and the density of a transformed distribution from torch's log_prob.

Torch declares the codomain of the last transform as the support, but the image of the base's support may be smaller.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.transforms import Transform

from kullback.common.dtypes import tensor_of, upcast
from kullback.pairs.clone import unvalidated
from kullback.pairs.densities.black_box import black_box
from kullback.pairs.densities.density import Density

_ONE = torch.Size()

Ends = tuple[Tensor | None, Tensor | None]


def ends_after(ends: Ends, step: Transform) -> Ends | None:
    """Return the ends of the image of an interval under a monotone transform; None if they are not known."""
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
    """A distribution with a given support, such as the image of a transform instead of the transform's codomain."""

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
    """Return the constraint low < x < high; None means that an end is infinite."""
    if low is None:
        return constraints.real if high is None else constraints.less_than(high)
    return constraints.greater_than(low) if high is None else constraints.interval(low, high)
