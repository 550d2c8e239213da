"""Additional starts for a fit to a mixture, because the divergence may have a minimum near each component."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MixtureSameFamily, MultivariateNormal, Normal

from kullback.errors import ArgumentValueError
from kullback.fitting.exact_fit import nearest
from kullback.fitting.method_answer import FitProblem
from kullback.fitting.unconstrained import Family, Values, read_family
from kullback.pairs.sampling.generator import DrawsFrom

# A fit starts near at most this number of components, because each start costs a minimization.
_MOST_COMPONENTS = 8
# If a component has no finite moments, `_DRAWS` draws give its quartiles. The number is odd, so that the median is one
# of the draws. `_RANGE_OF_QUARTILES` is the interquartile range of the standard normal distribution.
_DRAWS, _RANGE_OF_QUARTILES = 1001, 1.349


def other_starts(problem: FitProblem) -> Iterator[Tensor]:
    """Yield a start, in unconstrained parameters, for each component of a mixture, in the order of decreasing weight.

    For a target that is not a mixture, there are no additional starts.
    """
    target, family = problem.target, problem.family
    if not isinstance(target, MixtureSameFamily):
        return
    weights = target.mixture_distribution.probs
    order = weights.reshape(-1, weights.shape[-1]).mean(0).argsort(descending=True)
    parts = target.component_distribution
    moments = None if isinstance(parts, MultivariateNormal) else _moments(parts)
    for k in order[:_MOST_COMPONENTS].tolist():
        # `family.start` raises an ArgumentValueError for a parameter outside its range.
        with suppress(ArgumentValueError):
            values = _own(parts, k, family) if type(parts) is type(problem.q) else None
            values = values or _values(problem, _normal_like(parts, moments, k))
            if values is not None:
                yield family.start(values)


def _own(components: Distribution, k: int, family: Family) -> Values | None:
    """Return the parameters of component k as parameters of q; None if their names or shapes differ.

    The class of the component must be the class of q.
    """
    leaves, axis = read_family(components, frozenset()).free, len(components.batch_shape) - 1
    values: dict[str, Tensor] = {}
    for name, leaf in family.free.items():
        if (
            name not in leaves
            or leaves[name].value.shape[axis + 1 :] != leaf.value.shape[len(family.shape) :]
        ):
            return None
        values[name] = leaves[name].value.select(axis, k).expand_as(leaf.value)
    return values


def _moments(components: Distribution) -> tuple[Tensor, Tensor]:
    """Return the means and standard deviations of the components.

    Without finite moments, return the mean and standard deviation of normal distributions with the quartiles of draws
    from the components.
    """
    with suppress(NotImplementedError):
        mean, scale = components.mean, components.variance.sqrt()
        if bool((mean + scale).isfinite().all()):
            return mean, scale
    with DrawsFrom(0):
        x = components.sample(torch.Size([_DRAWS])).double()
    low, middle, high = x.quantile(x.new_tensor([0.25, 0.5, 0.75]), 0)
    return middle, (high - low) / _RANGE_OF_QUARTILES


def _normal_like(components: Any, moments: tuple[Tensor, Tensor] | None, k: int) -> Distribution:
    """Return a normal distribution with the mean and standard deviation (or covariance matrix) of component k.

    `moments` is the result of `_moments`; None if the components are multivariate normal.
    """
    if moments is None:
        return MultivariateNormal(
            components.loc[..., k, :], scale_tril=components.scale_tril[..., k, :, :], validate_args=False
        )
    events = len(components.event_shape)
    mean, scale = (x.movedim(-1 - events, 0)[k] for x in moments)
    normal = Normal(mean, scale, validate_args=False)
    return Independent(normal, events, validate_args=False) if events else normal


def _values(problem: FitProblem, near: Any) -> Values | None:
    """Return the parameters of the member of q's family with the smallest KL(near || q).

    Without a formula for this member, return q's parameters, but with the mean of `near` as loc and the standard
    deviation of `near` as scale. If q has no free loc, or the shapes differ, return None.
    """
    q, family, fixed = problem.q, problem.family, problem.fixed
    try:
        values, _ = nearest(q, near.expand(q.batch_shape), family, fixed)
    except (ValueError, NotImplementedError):
        values = None
    if values is not None:
        return values
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
