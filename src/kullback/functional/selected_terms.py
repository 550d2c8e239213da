"""The weighted sum of a divergence's terms at some classes, for teachers with known probabilities there alone."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from kullback.generators import Divergence, FinitePair

__all__ = ["weighted_terms"]


def weighted_terms(kind: Divergence, log_p: Tensor, log_q: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of each row's terms, with the gradients by log p and log q from the kind's derivatives.

    Nothing is normalized. Terms of weight 0 count nothing, whatever they are.
    """
    return cast("Tensor", _WeightedTerms.apply(log_p, log_q, weights, kind))


class _WeightedTerms(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(log_p: Tensor, log_q: Tensor, weights: Tensor, kind: Divergence) -> Tensor:
        terms = kind.terms(_pair(log_p, log_q))
        return torch.where(weights == 0, 0, weights * terms).sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        log_p, log_q, weights, ctx.kind = inputs
        ctx.save_for_backward(log_p, log_q, weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        log_p, log_q, weights = ctx.saved_tensors
        counted = weights * grads[0].unsqueeze(-1)
        by_logs = (
            torch.where(counted == 0, 0, counted * by) for by in ctx.kind.derivatives(_pair(log_p, log_q))
        )
        return *by_logs, None, None


def _pair(log_p: Tensor, log_q: Tensor) -> FinitePair:
    both = (log_p == -torch.inf) & (log_q == -torch.inf)
    log_ratio = torch.where(both, 0, log_p - torch.where(both, 0, log_q))
    return FinitePair(log_p.exp(), log_q.exp(), log_ratio, lambda: (log_p, log_q))
