"""The weighted sum of a divergence's terms over some classes, for teachers that have only these classes."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from kullback.generators import Divergence, FinitePair

__all__ = ["weighted_terms"]


def weighted_terms(kind: Divergence, log_p: Tensor, log_q: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of each row's terms. The gradients by log p and log q use the kind's derivatives.

    Rows are not normalized. Terms of weight 0 have no effect, even if they are NaN.
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
