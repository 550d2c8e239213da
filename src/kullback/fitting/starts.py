"""The start of a fit if the user passes a class instead of a member, and further starts for a fit to a mixture.

The divergence from a mixture may have a minimum near each component.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    constraints,
)

from kullback.errors import ArgumentValueError, invalid_type, invalid_value
from kullback.fitting.exact_fit import nearest
from kullback.fitting.fit_result import FitProblem
from kullback.fitting.unconstrained import Family, Values, read_family
from kullback.pairs.family import FAMILIES
from kullback.pairs.sampling import DrawsFrom
from kullback.samples import Samples


def start_of(family: Any, to: Any) -> tuple[Distribution, bool | None]:
    """Return a start of the class `family` for the target `to`, and whether the start has the smallest KL(to || q).

    If a formula gives the member with the smallest KL(to || q), the results are this member and True. Otherwise the
    first result is the standard member of the class. The second result is False if the formula gives parameters outside
    their range, and None if no formula exists.
    """
    if not issubclass(family, Distribution):
        raise invalid_type(
            "fit",
            "q",
            wanted="a class of distributions, or one of its members",
            got=family.__name__,
            instead="fit(Normal, to=p)",
        )
    start = _standard(family, to)
    if isinstance(to, Distribution | Samples):
        family = read_family(start, frozenset())
        values, is_inside = nearest(start, to, family, frozenset())
        if values is not None:
            return (family.finished(values), True) if is_inside else (start, False)
    return start, None


def _standard(family: Any, to: Any) -> Distribution:
    """Return the standard member of a class, in the batch shape of `to`.

    Without a start in the family's record, a positive parameter is 1, one between 0 and 1 is 1/2, and others are 0.
    """
    accepted = inspect.signature(family.__init__).parameters
    ranges: Any = family.arg_constraints if isinstance(family.arg_constraints, dict) else {}
    own = FAMILIES[family].start if family in FAMILIES else {}
    names = [
        name
        for name in accepted
        if (name in ranges or name in own) and accepted[name].default is inspect.Parameter.empty
    ]
    names = names or [name for name in ("logits",) if name in ranges and ranges[name].event_dim == 0]
    shape = to.batch_shape if isinstance(to, Distribution) else torch.Size()
    is_vector = isinstance(to, Distribution) and bool(to.event_shape)
    declared = [ranges[name] for name in names if name in ranges]
    if not names or is_vector or any(x.is_discrete or x.event_dim for x in declared):
        raise invalid_value(
            "fit",
            "q",
            wanted="a class of distributions of numbers with a standard start",
            got=family.__name__,
            instead=f"q={family.__name__}(...) with the parameters to start from",
        )
    standard = {constraints.positive: 1.0, constraints.nonnegative: 1.0, constraints.unit_interval: 0.5}
    numbers = {name: own[name] if name in own else standard.get(ranges[name], 0.0) for name in names}
    parameters = {
        name: torch.full(shape, x, dtype=torch.float64, device="cpu") for name, x in numbers.items()
    }
    return family(**parameters, validate_args=False)


# A fit starts near at most this number of components, because each start costs a minimization.
_MOST_COMPONENTS = 8
# If a component has no finite moments, `_DRAWS` draws give its quartiles. The number is odd, so that the median is one
# of the draws. `_RANGE_OF_QUARTILES` is the interquartile range of the standard normal distribution.
_DRAWS, _RANGE_OF_QUARTILES = 1001, 1.349


def other_starts(problem: FitProblem) -> Iterator[Tensor]:
    """Yield a start, in unconstrained parameters, for each component of a mixture target, by falling weight."""
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
    """Return the parameters of component k, of q's class, as parameters of q; None if names or shapes differ."""
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
    """Return the means and deviations of the components; if infinite, those of normals with the quartiles of draws."""
    with suppress(NotImplementedError):
        mean, scale = components.mean, components.variance.sqrt()
        if bool((mean + scale).isfinite().all()):
            return mean, scale
    with DrawsFrom(0):
        x = components.sample(torch.Size([_DRAWS])).double()
    low, middle, high = x.quantile(x.new_tensor([0.25, 0.5, 0.75]), 0)
    return middle, (high - low) / _RANGE_OF_QUARTILES


def _normal_like(components: Any, moments: tuple[Tensor, Tensor] | None, k: int) -> Distribution:
    """Return a normal distribution with the mean and spread of component k; `moments` is None for normal vectors."""
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

    Without a formula, `near` gives the loc and the scale. If q has no free loc, or the shapes differ, return None.
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
