"""Other starts of a fit to a mixture, whose divergence may have a minimum near each component."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MixtureSameFamily, MultivariateNormal, Normal

from kullback.errors import ArgumentValueError
from kullback.projection.closed_form import nearest
from kullback.projection.parameters import Family, Values

__all__ = ["other_starts"]

# Components of a mixture that starts are made of.
_MOST_COMPONENTS = 8


def other_starts(q: Distribution, target: Any, family: Family, fixed: frozenset[str]) -> Iterator[Tensor]:
    """Return unconstrained numbers near each component of a target that is a mixture, the heaviest first.

    Arguments:
        q: the start that was given, of the batch's shape, in float64.
        target: what is fitted to.
        family: q's parameters.
        fixed: the names of those that stay as they are.
    """
    if not isinstance(target, MixtureSameFamily):
        return
    weights = target.mixture_distribution.probs
    order = weights.reshape(-1, weights.shape[-1]).mean(0).argsort(descending=True)
    for k in order[:_MOST_COMPONENTS].tolist():
        values = _values(q, _normal_like(target.component_distribution, k), family, fixed)
        try:
            start = None if values is None else family.start(values)
        except ArgumentValueError:  # a parameter outside of its range
            continue
        if start is not None:
            yield start


def _normal_like(components: Any, k: int) -> Distribution:
    """Return the normal distribution with the mean and the variance of one component."""
    if isinstance(components, MultivariateNormal):
        return MultivariateNormal(
            components.loc[..., k, :], scale_tril=components.scale_tril[..., k, :, :], validate_args=False
        )
    events = len(components.event_shape)
    mean, scale = (x.movedim(-1 - events, 0)[k] for x in (components.mean, components.variance.sqrt()))
    found = Normal(mean, scale, validate_args=False)
    return Independent(found, events, validate_args=False) if events else found


def _values(q: Distribution, near: Any, family: Family, fixed: frozenset[str]) -> Values | None:
    try:
        found = nearest(q, near.expand(q.batch_shape), family, fixed)
    except (ValueError, NotImplementedError):
        found = None
    with suppress(AttributeError):  # the nearest one may be of another family, with other parameters
        if found is not None:
            return {name: _parameter(found, name).double() for name in family.free}
    moments: dict[str, Tensor] = {"loc": near.mean, "scale": near.variance.sqrt()}
    if "loc" not in family.free or any(
        leaf.value.shape != torch.broadcast_shapes(leaf.value.shape, moments[name].shape)
        for name, leaf in family.free.items()
        if name in moments
    ):
        return None
    return {
        name: moments[name].expand(leaf.value.shape) if name in moments else leaf.value
        for name, leaf in family.free.items()
    }


def _parameter(d: Any, path: str) -> Tensor:
    for name in path.split("."):
        d = getattr(d, name)
    return d
