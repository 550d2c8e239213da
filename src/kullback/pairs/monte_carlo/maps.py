"""Distributions as maps of base distributions: draws before a map have all their digits.

tanh(20) rounds to 1, and e^100 is infinite in float32. So a draw after such a map does not determine the draw before
the map.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    MixtureSameFamily,
    Transform,
    TransformedDistribution,
)

from kullback.pairs.densities.maps import mapped, parts_of_maps, shared_last_steps
from kullback.pairs.density_overrides import overrides


def maps_outside(d: Distribution) -> tuple[Distribution, list[Transform]]:
    """Return a distribution and a list of maps such that `d` is the distribution of the mapped variable.

    Elementwise maps inside `Independent` become maps of the vector. Maps that are equal for all components of a mixture
    become maps of the mixture.
    """
    if _is_mapped(d):
        base, steps = maps_outside(cast("TransformedDistribution", d).base_dist)
        return base, steps + parts_of_maps(cast("TransformedDistribution", d).transforms)
    if type(d) is Independent:
        base, steps = maps_outside(d.base_dist)
        if steps and all(map(is_of_numbers, steps)):
            return Independent(base, d.reinterpreted_batch_ndims, validate_args=False), steps
    if type(d) is MixtureSameFamily:
        base, steps = maps_outside(d.component_distribution)
        count = 0
        for step in reversed(steps):
            if not (is_of_numbers(step) and _is_shared(step)):
                break
            count += 1
        if count:
            part = mapped(base, steps[: len(steps) - count])
            return MixtureSameFamily(d.mixture_distribution, part, validate_args=False), steps[-count:]
    return d, []


def _is_mapped(d: Distribution) -> bool:
    """Return whether a distribution is a `TransformedDistribution` with torch's own draws and density."""
    return (
        isinstance(d, TransformedDistribution)
        and not any(overrides(d, name) for name in ("log_prob", "sample", "rsample"))
        and type(d).log_prob is TransformedDistribution.log_prob
    )


def is_of_numbers(step: Transform) -> bool:
    """Return whether a map is elementwise: each number of the image depends on one number."""
    return not (step.domain.event_dim or step.codomain.event_dim)


def _is_shared(step: Transform) -> bool:
    """Return whether a map is the same for all components of a mixture: its parameters, if any, are scalars."""
    parameters: list[Any] = list(
        vars(step.inv if type(step).__name__ == "_InverseTransform" else step).values()
    )
    return all(
        not isinstance(x, Distribution) and (not isinstance(x, Tensor) or x.numel() == 1) for x in parameters
    )


def without_shared_maps(p: Distribution, q: Distribution) -> tuple[Distribution, Distribution]:
    """Return P and Q without the last maps that both share: equal bijective maps do not change a divergence."""
    (base_p, steps_p), (base_q, steps_q) = maps_outside(p), maps_outside(q)
    count = shared_last_steps(steps_p, steps_q)
    if not count:
        return p, q
    left, right = (mapped(d, s[: len(s) - count]) for d, s in ((base_p, steps_p), (base_q, steps_q)))
    return (left, right) if left.event_shape == right.event_shape else (p, q)


def pushed(u: Tensor, steps: list[Transform], event_dims: int) -> tuple[Tensor, Tensor | None]:
    """Return the images of draws u under maps, and log |det J| of their Jacobian J; None without maps."""
    image, log_det = u, None
    for step in steps:
        before: Tensor = image
        image = cast("Tensor", step(before))
        change: Tensor = step.log_abs_det_jacobian(before, image)
        more = event_dims - step.domain.event_dim
        change = change.flatten(-more).sum(-1) if more else change
        log_det = change if log_det is None else log_det + change
        event_dims += step.codomain.event_dim - step.domain.event_dim
    return image, log_det
