"""Reductions of a pair to other pairs, for Independent, equal transforms, and mixtures of classes.

Two reductions combine the results of C++ kernels: the shortcuts of Independent and LogisticNormal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    LogisticNormal,
    MixtureSameFamily,
    OneHotCategorical,
    TransformedDistribution,
)
from torch.nn.functional import logsigmoid

from kullback.common.dtypes import upcast
from kullback.common.special import safe_logsumexp
from kullback.errors import P, Q, no_rule
from kullback.pairs.densities.composite import log_weights_of
from kullback.pairs.densities.maps import (
    is_elementwise,
    mapped,
    move_apart,
    parts_of_maps,
    same_maps,
    shared_last_steps,
)
from kullback.pairs.family import overrides_density
from kullback.pairs.numerics.parameters import dtype_of, given_logits
from kullback.pairs.registry import fused_divergence, reduction, shortcut
from kullback.results.estimate import Estimate

SolvePair = Callable[[Distribution, Distribution], Estimate]


def sum_of_dimensions(x: Tensor, dimensions: int) -> Tensor:
    """Return the sum of a tensor over its last `dimensions` dimensions."""
    return x.flatten(-dimensions).sum(-1) if dimensions and x.ndim else x


@reduction(Independent, Independent)
def kl_independent_independent(
    p: Independent[Distribution], q: Independent[Distribution], kl: SolvePair
) -> Estimate:
    """Return the sum of KL over the dimensions that both reinterpret; further dimensions stay in an `Independent`."""
    shared = min(p.reinterpreted_batch_ndims, q.reinterpreted_batch_ndims)
    each = kl(_unwrapped(p, shared), _unwrapped(q, shared))
    error = None if each.error is None else sum_of_dimensions(each.error, shared)
    return Estimate(sum_of_dimensions(each.value, shared), error, each.method)


@shortcut(Independent, Independent)
def fused_sum_of_dimensions(p: Any, q: Any) -> Tensor | None:
    """Return the sum of KL over the reinterpreted batch dimensions, or None if no shortcut supports P and Q."""
    dimensions: int = p.reinterpreted_batch_ndims
    if not dimensions or dimensions != q.reinterpreted_batch_ndims or p.event_shape != q.event_shape:
        return None
    value = fused_divergence(p.base_dist, q.base_dist)
    return None if value is None else value.sum(tuple(range(-dimensions, 0)))


def _unwrapped(d: Independent[Distribution], dimensions: int) -> Distribution:
    rest = d.reinterpreted_batch_ndims - dimensions
    return Independent(d.base_dist, rest) if rest else d.base_dist


@shortcut(LogisticNormal, LogisticNormal)
def fused_kl_of_bases(p: Any, q: Any) -> Tensor | None:
    """Return KL of the base distributions, or None if the transforms of P and Q differ."""
    return fused_divergence(p.base_dist, q.base_dist) if p.transforms == q.transforms else None


@reduction(TransformedDistribution, TransformedDistribution)
def kl_transformed_transformed(
    p: TransformedDistribution, q: TransformedDistribution, kl: SolvePair
) -> Estimate | None:
    """Return KL before the last transforms that are equal, bijective and share all tensors that require gradients."""
    if same_maps(p.transforms, q.transforms) and all(step.bijective for step in p.transforms):
        if not move_apart(p.transforms, q.transforms):
            return kl(p.base_dist, q.base_dist)
        if p.event_shape:
            return kl(_of_dimensions(p), _of_dimensions(q))
    if type(p) is not TransformedDistribution or type(q) is not TransformedDistribution:
        return None
    steps = parts_of_maps(p.transforms), parts_of_maps(q.transforms)
    count = shared_last_steps(*steps)
    if not count or not all(map(is_elementwise, steps)):
        return kl_of_dimensions(p, q, kl)
    return kl(*(mapped(d.base_dist, own[: len(own) - count]) for d, own in zip((p, q), steps, strict=True)))


@reduction(TransformedDistribution, Independent)
@reduction(Independent, TransformedDistribution)
def kl_of_dimensions(p: Distribution, q: Distribution, kl: SolvePair) -> Estimate | None:
    """Return KL of two Independent distributions, after moving elementwise transforms inside Independent."""
    left, right = _in_dimensions(p), _in_dimensions(q)
    if (left is p and right is q) or not (isinstance(left, Independent) and isinstance(right, Independent)):
        return None
    return kl(left, right)


def _in_dimensions(d: Distribution) -> Distribution:
    """Return `d` with elementwise transforms of an `Independent` moved inside of it, or `d` itself."""
    base: Any = d.base_dist if type(d) is TransformedDistribution else None
    if not isinstance(base, Independent) or overrides_density(base):
        return d
    steps = parts_of_maps(cast("TransformedDistribution", d).transforms)
    if not is_elementwise(steps):
        return d
    each = TransformedDistribution(base.base_dist, steps, validate_args=False)
    return Independent(each, base.reinterpreted_batch_ndims, validate_args=False)


def _of_dimensions(d: TransformedDistribution) -> Distribution:
    """Return `_in_dimensions(d)`; raise if `d` does not consist of elementwise transforms of an `Independent`."""
    result = _in_dimensions(d)
    if result is d:
        raise no_rule(
            "kl_divergence",
            "p, q",
            wanted=(
                "the same transforms in ",
                P,
                " and ",
                Q,
                ", or transforms whose parameters require no gradients, or transforms of single numbers",
            ),
            got=f"maps of vectors of {type(d.base_dist).__name__} that are equal but have separate parameters that "
            "require gradients",
            instead="the same transforms for p and q, or kl_divergence under torch.no_grad() for the value alone",
        )
    return result


@reduction(MixtureSameFamily, MixtureSameFamily)
@reduction(MixtureSameFamily, Distribution)
@reduction(Distribution, MixtureSameFamily)
def kl_mixture(p: Distribution, q: Distribution, kl: SolvePair) -> Estimate | None:
    """Return KL after replacing each mixture of Categoricals or Bernoullis by one Categorical or Bernoulli."""
    left, right = _collapsed(p), _collapsed(q)
    if left is p and right is q:
        return None
    result = kl(left, right)
    dtype = dtype_of(p, q)
    error = result.error
    if error is not None:
        error = (error + torch.finfo(dtype).eps * result.value.detach().abs().nan_to_num(posinf=0)).to(dtype)
    return Estimate(result.value.to(dtype), error, result.method)


def _collapsed(d: Distribution) -> Distribution:
    parts = getattr(d, "component_distribution", None) if isinstance(d, MixtureSameFamily) else None
    if not isinstance(parts, Categorical | OneHotCategorical | Bernoulli) or overrides_density(parts):
        return d
    log_weights = log_weights_of(cast("MixtureSameFamily", d))
    if isinstance(parts, Categorical | OneHotCategorical):
        family = OneHotCategorical if isinstance(parts, OneHotCategorical) else Categorical
        if not given_logits(getattr(parts, "_categorical", parts)):
            probs = torch.exp(log_weights).unsqueeze(-1) * upcast(parts.probs)
            return family(probs=probs.sum(-2), validate_args=False)
        return family(
            logits=safe_logsumexp(log_weights.unsqueeze(-1) + upcast(parts.logits), -2), validate_args=False
        )
    if not given_logits(parts):
        return Bernoulli(probs=(torch.exp(log_weights) * upcast(parts.probs)).sum(-1), validate_args=False)
    logits = upcast(parts.logits)
    sides = (safe_logsumexp(log_weights + logsigmoid(x), -1) for x in (logits, -logits))
    return Bernoulli(logits=next(sides) - next(sides), validate_args=False)
