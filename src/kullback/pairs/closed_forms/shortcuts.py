"""The divergence of two distributions by the shortcut for their types, and the shortcuts for LogisticNormal and
Independent.

A shortcut is a function that calls a C++ kernel, or that combines the results of other shortcuts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, LogisticNormal

from kullback.kernels.native.native_closed_forms import divergence, required_gradients
from kullback.pairs.density_overrides import overrides_density
from kullback.pairs.native_forms import NativeForm, is_ordinary_call
from kullback.pairs.registry import plan_for, shortcut

# Rows of logits with more than _MOST_CLASSES classes have other kernels.
_MOST_CLASSES = 32


def fused_divergence(p: object, q: object) -> Tensor | None:
    """Return KL(P || Q) in the dtype of the parameters; None if no shortcut supports P and Q."""
    if torch.compiler.is_compiling() or not (isinstance(p, Distribution) and isinstance(q, Distribution)):
        return None
    plan = plan_for(type(p), type(q))
    if plan.shortcut is None or "log_prob" in vars(p) or "log_prob" in vars(q):
        return None
    if not plan.is_plain and (overrides_density(p) or overrides_density(q)):
        return None
    return plan.shortcut(p, q)


def fused_divergence_of_logits(p: Tensor, q: Tensor) -> Tensor | None:
    """Return KL between rows of logits; None for rows of more than 32 classes."""
    if not 0 < p.shape[-1] == q.shape[-1] <= _MOST_CLASSES:
        return None
    if torch.compiler.is_compiling() or not is_ordinary_call():
        return None
    kernel = plan_for(Categorical, Categorical).shortcut
    if not isinstance(kernel, NativeForm):
        return None
    required = required_gradients((p, q))
    return None if required is None else divergence(kernel.form, (p, q), required)


@shortcut(LogisticNormal, LogisticNormal)
def fused_kl_of_bases(p: Any, q: Any) -> Tensor | None:
    """Return KL of the base distributions if the transforms, which have no parameters, are equal."""
    return fused_divergence(p.base_dist, q.base_dist) if p.transforms == q.transforms else None


@shortcut(Independent, Independent)
def fused_sum_of_dimensions(p: Any, q: Any) -> Tensor | None:
    """Return the sum of KL over the event dimensions."""
    dimensions: int = p.reinterpreted_batch_ndims
    if not dimensions or dimensions != q.reinterpreted_batch_ndims or p.event_shape != q.event_shape:
        return None
    value = fused_divergence(p.base_dist, q.base_dist)
    return None if value is None else value.sum(tuple(range(-dimensions, 0)))
