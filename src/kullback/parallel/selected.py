"""The logits of a few classes of each row, and the logsumexp of the other classes, for sharded classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kullback.common.dtypes import upcast
from kullback.kernels.blocks import row_blocks
from kullback.kernels.reference import origin_of
from kullback.kernels.row_operation import Gradients, RowOperation, RowValueFunction, Wanted
from kullback.kernels.selected_rows import SelectedClasses
from kullback.parallel.collectives import Ranks, check_first_derivative
from kullback.parallel.rows import log_sums, merged_log_sums
from kullback.parallel.sharded_labels import LabelSums, logits_at, places_of


class Shard(NamedTuple):
    """The range of classes that this rank has, and the group of ranks."""

    ranks: Ranks
    start: int  # the first class of this rank
    classes: int  # the number of classes of all ranks together


@dataclass(slots=True, eq=False)
class ShardedClasses(RowOperation):
    """`SelectedClasses` for rows whose classes are sharded; the columns are the same on every rank.

    For k selected classes, the forward pass makes an all-reduce of k numbers per row (k + 1 with labels). The forward
    pass also makes an all-gather of two numbers per row (four with labels). The backward pass makes no collective.
    """

    shard: Shard
    selected: SelectedClasses

    def of(self, logits: Tensor) -> Tensor:
        """Return the columns of `SelectedClasses` for each row of logits, differentiable with respect to the logits."""
        return RowValueFunction.apply(self, logits)

    def compute(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the results of `read`."""
        return self.read(logits)

    def gradients(self, tensors: Any, kept: Any, grad: Tensor, wanted: Wanted, is_plain: bool) -> Gradients:
        """Return the gradient with respect to this rank's logits. `grad` must be the same on all ranks."""
        check_first_derivative(self.shard.ranks, grad)
        gradient = torch.empty_like(tensors[0])
        result, sums = kept
        self.write_gradient(tensors[0], result, sums, grad, gradient)
        return (gradient,)

    def read(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the columns, and the origins and label sums that `write_gradient` needs."""
        (ranks, _, classes), selected = self.shard, self.selected
        places, label_places = self._places(logits)
        values = logits_at(logits, places)
        sums = [log_sums(logits, selected.temperature, places if selected.leaves_out else None)]
        indices = selected.indices
        if selected.labels is not None and label_places is not None:
            indices = torch.cat([indices, selected.labels.unsqueeze(-1)], -1)
            values = torch.cat([values, logits_at(logits, label_places)], -1)
            sums.append(log_sums(logits, 1.0, label_places))
        # A class that no rank has must give NaN. For such a class, the sum over the ranks is 0, which would look like a
        # logit.
        values = torch.where(indices < classes, ranks.sum(values), torch.nan)
        gathered = ranks.gather(torch.cat(sums, -1))
        rest = merged_log_sums(gathered[..., :2], selected.temperature)
        k = places.shape[-1]
        kept = torch.where(selected.indices < 0, -torch.inf, values[:, :k])
        # The peak over an empty set of classes is stored as 0. The true peak, -inf, is needed for the origin.
        peak = torch.where(rest.total == 0, -torch.inf, rest.peak)
        origin = origin_of(torch.maximum(peak, kept.amax(-1))).unsqueeze(-1)
        log_rest = (rest.peak.unsqueeze(-1) - origin) / selected.temperature
        log_rest = log_rest + torch.log(rest.total).unsqueeze(-1)
        columns = [(kept - origin) / selected.temperature, log_rest]
        if label_places is None:
            return torch.cat(columns, -1), origin
        others = merged_log_sums(gathered[..., 2:], 1.0)
        of_labels = LabelSums.of(others.peak, others.total, values[:, k])
        columns.append(of_labels.cross_entropies().unsqueeze(-1))
        return torch.cat(columns, -1), torch.cat([origin, torch.stack(of_labels, -1)], -1)

    def write_gradient(self, logits: Tensor, result: Tensor, sums: Tensor, grad: Tensor, out: Tensor) -> None:
        """Write this rank's gradient of the sum of `grad` times `result` to `out`, which may be `logits`."""
        selected, k = self.selected, self.selected.indices.shape[-1]
        all_places, label_places = self._places(logits)
        of_labels = None if label_places is None else LabelSums(*sums[:, 1:].unbind(-1))
        for block in row_blocks(logits):
            rows, places, by = logits[block], all_places[block], grad[block]
            log_rest, by_rest = result[block, k : k + 1], by[:, k : k + 1]
            # An excluded logit may exceed the logsumexp of the other classes, so the difference is clamped below. No
            # other logit exceeds the logsumexp.
            shifted = (upcast(rows) - sums[block, :1]) / selected.temperature
            shifted = shifted - torch.where(log_rest == -torch.inf, 0, log_rest)
            whole = torch.where(by_rest == 0, 0, by_rest * torch.exp(shifted.clamp(max=0)))
            whole = torch.nn.functional.pad(whole, (0, 1))  # an extra column receives the places past the end
            if selected.leaves_out:
                whole = whole.scatter(-1, places, 0)
            whole = whole.scatter_add(-1, places, by[:, :k])[:, :-1] / selected.temperature
            if of_labels is not None and label_places is not None:
                whole = whole + of_labels.gradient(block, rows, label_places[block, 0], by[:, k + 1])
            out[block] = whole

    def _places(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return `places_of` the selected classes, shape (rows, k), and of the labels, shape (rows, 1)."""
        start, own, labels = self.shard.start, logits.shape[-1], self.selected.labels
        of_labels = None if labels is None else places_of(labels.unsqueeze(-1), start, own)
        return places_of(self.selected.indices, start, own), of_labels
