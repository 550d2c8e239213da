"""The logits of a few classes of each row, and the log of the sum over others, where classes are sharded."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from kullback.numeric import upcast
from kullback.parallel.ranks import Ranks, check_first_derivative
from kullback.parallel.rows import blocks, log_sums, merged_log_sums

__all__ = ["Shard"]


class Shard(NamedTuple):
    """This rank's classes.

    Attributes:
        ranks: the group.
        start: the first class of this rank.
        classes: the number of classes of all ranks together.
    """

    ranks: Ranks
    start: int
    classes: int

    def selected_logits(
        self, logits: Tensor, indices: Tensor, excluded: Tensor, temperature: float
    ) -> Tensor:
        """Return the logits of some classes of each row, followed by the logsumexp of those that are not excluded.

        One all-reduce of k numbers a row, one all-gather of two, and none backward.

        Arguments:
            logits: of this rank's classes, shape (rows, classes of this rank).
            indices: the classes, among those of all ranks, shape (rows, k); the same on every rank.
            excluded: which of the k classes the sum leaves out; the same on every rank.
            temperature: what the logits are divided by.

        Returns:
            shape (rows, k + 1), in float64 (float32 on devices without it), the same on every rank.
        """
        return cast("Tensor", _SelectedLogits.apply(logits, indices, excluded, self, temperature))


class _SelectedLogits(torch.autograd.Function):
    """All ranks have the same gradient of the loss by the result; each turns it into that by its own logits."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, indices: Tensor, excluded: Tensor, shard: Shard, temperature: float
    ) -> Tensor:
        ranks, places, own = shard.ranks, indices - shard.start, logits.shape[-1]
        here = (places >= 0) & (places < own)
        inside = torch.where(here, places, own)  # one past the end if another rank has the class
        left_out = torch.where(excluded, inside, own)
        found = torch.zeros(places.shape, dtype=upcast(logits[:0]).dtype, device=logits.device)
        for block in blocks(logits):
            accurate = torch.nn.functional.pad(logits[block], (0, 1))
            found[block] = torch.where(
                here[block], upcast(accurate.gather(-1, inside[block])) / temperature, 0
            )
        ranks.sum(found)
        rest = merged_log_sums(ranks.gather(log_sums(logits, temperature, left_out)), ranks.rank)
        log_rest = (rest.peak + torch.log(rest.total)).unsqueeze(-1)
        ctx.temperature, ctx.ranks = temperature, ranks
        ctx.save_for_backward(logits, inside, left_out, log_rest)
        return torch.cat([found, log_rest], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        check_first_derivative(ctx.ranks, grads[0])
        logits, *others = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for block in blocks(logits):
            inside, left_out, log_rest, grad = (x[block] for x in (*others, grads[0]))
            by_selected, by_rest = grad[:, :-1], grad[:, -1:]
            # A class that is left out may lie above the sum of the others, which no other does.
            shifted = upcast(logits[block]) / ctx.temperature - torch.where(
                log_rest == -torch.inf, 0, log_rest
            )
            whole = torch.where(by_rest == 0, 0, by_rest * torch.exp(shifted.clamp(max=0)))
            whole = torch.nn.functional.pad(whole, (0, 1)).scatter(-1, left_out, 0)
            gradient[block] = whole.scatter_add(-1, inside, by_selected)[:, :-1] / ctx.temperature
        return gradient, None, None, None, None
