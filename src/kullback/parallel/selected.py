"""The logits of a few classes of each row, and the log of the sum over others, where classes are sharded."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from kullback.kernels.selected import SelectedClasses, origin_of
from kullback.numeric import upcast
from kullback.parallel.labels import LabelSums, logits_at, places_of
from kullback.parallel.ranks import Ranks, check_first_derivative
from kullback.parallel.rows import blocks, log_sums, merged_log_sums

__all__ = ["Shard", "ShardedClasses"]


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


class ShardedClasses(NamedTuple):
    """What `SelectedClasses` reads from whole rows, read from this rank's part of them: the same on every rank.

    One all-reduce of k numbers a row and one all-gather of two, with labels of k + 1 and of four, and none backward.
    """

    shard: Shard
    selected: SelectedClasses

    def of(self, logits: Tensor) -> Tensor:
        """Read the logits, differentiably."""
        return cast("tuple[Tensor, Tensor]", _Selected.apply(logits, self))[0]

    def read(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Read the logits; return what `write_gradient` needs beside the result: the origin, and sums of the labels."""
        (ranks, _, classes), selected = self.shard, self.selected
        places, label_places = self._places(logits)
        found = logits_at(logits, places)
        sums = [log_sums(logits, selected.temperature, places if selected.leaves_out else None)]
        indices = selected.indices
        if selected.labels is not None and label_places is not None:
            indices = torch.cat([indices, selected.labels.unsqueeze(-1)], -1)
            found = torch.cat([found, logits_at(logits, label_places)], -1)
            sums.append(log_sums(logits, 1.0, label_places))
        # A class that no rank has must not pass for one whose logit is 0.
        found = torch.where(indices < classes, ranks.sum(found), torch.nan)
        gathered = ranks.gather(torch.cat(sums, -1))
        rest = merged_log_sums(gathered[..., :2], ranks.rank, selected.temperature)
        k = places.shape[-1]
        kept = torch.where(selected.indices < 0, -torch.inf, found[:, :k])
        # The peak of no class at all is given as 0, which need not be near the logits.
        peak = torch.where(rest.total == 0, -torch.inf, rest.peak)
        origin = origin_of(torch.maximum(peak, kept.amax(-1))).unsqueeze(-1)
        log_rest = (rest.peak.unsqueeze(-1) - origin) / selected.temperature
        log_rest = log_rest + torch.log(rest.total).unsqueeze(-1)
        columns = [(kept - origin) / selected.temperature, log_rest]
        if label_places is None:
            return torch.cat(columns, -1), origin
        others = merged_log_sums(gathered[..., 2:], ranks.rank, 1.0)
        of_labels = LabelSums.of(others.peak, others.total, found[:, k])
        columns.append(of_labels.cross_entropies().unsqueeze(-1))
        return torch.cat(columns, -1), torch.cat([origin, torch.stack(of_labels, -1)], -1)

    def write_gradient(self, logits: Tensor, result: Tensor, sums: Tensor, grad: Tensor, out: Tensor) -> None:
        """Write the gradient by this rank's logits, from that by the result, to `out`, which may be the logits."""
        selected, k = self.selected, self.selected.indices.shape[-1]
        all_places, label_places = self._places(logits)
        of_labels = None if label_places is None else LabelSums(*sums[:, 1:].unbind(-1))
        for block in blocks(logits):
            rows, places, by = logits[block], all_places[block], grad[block]
            log_rest, by_rest = result[block, k : k + 1], by[:, k : k + 1]
            # A class that is left out may lie above the sum of the others, which no other does.
            shifted = (upcast(rows) - sums[block, :1]) / selected.temperature
            shifted = shifted - torch.where(log_rest == -torch.inf, 0, log_rest)
            whole = torch.where(by_rest == 0, 0, by_rest * torch.exp(shifted.clamp(max=0)))
            whole = torch.nn.functional.pad(whole, (0, 1))  # one column more takes the places past the end
            if selected.leaves_out:
                whole = whole.scatter(-1, places, 0)
            whole = whole.scatter_add(-1, places, by[:, :k])[:, :-1] / selected.temperature
            if of_labels is not None and label_places is not None:
                whole = whole + of_labels.gradient(block, rows, label_places[block, 0], by[:, k + 1])
            out[block] = whole

    def _places(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return where the selected classes and the labels are among this rank's, shapes (rows, k) and (rows, 1)."""
        start, own, labels = self.shard.start, logits.shape[-1], self.selected.labels
        of_labels = None if labels is None else places_of(labels.unsqueeze(-1), start, own)
        return places_of(self.selected.indices, start, own), of_labels


class _Selected(torch.autograd.Function):
    """All ranks have the same gradient of the loss by the result; each turns it into that by its own logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, task: ShardedClasses) -> tuple[Tensor, Tensor]:
        result, sums = task.read(logits)
        ctx.task = task
        ctx.mark_non_differentiable(sums)
        ctx.save_for_backward(logits, result, sums)
        return result, sums

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        task: ShardedClasses = ctx.task
        check_first_derivative(task.shard.ranks, grads[0])
        logits, result, sums = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        task.write_gradient(logits, result, sums, grads[0], gradient)
        return gradient, None
