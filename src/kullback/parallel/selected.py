"""The row operation that reads the logits of a few classes of each row, and the logsumexp of the other classes, for
sharded classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kullback.kernels.label_terms import LabelSums
from kullback.kernels.row_operation import Gradients, RowOperation, RowValueFunction, Wanted
from kullback.kernels.row_sums import log_sums
from kullback.kernels.selected_rows import Kept, Places, SelectedClasses
from kullback.parallel.collectives import Ranks, check_first_derivative
from kullback.parallel.rows import logits_at, merged_log_sums, places_of


class Shard(NamedTuple):
    """The group of ranks, and the range of classes that this rank has."""

    ranks: Ranks
    start: int  # the first class of this rank
    classes: int  # the number of classes of all ranks together


@dataclass(slots=True, eq=False)
class ShardedClasses(RowOperation):
    """`SelectedClasses` for rows whose classes are sharded. The columns are equal on every rank.

    For k selected classes, the forward pass makes two collectives. The first sums k numbers per row (k + 1 with labels)
    over the ranks. The second gathers two numbers per row (four with labels) from all ranks. The backward pass makes no
    collective.
    """

    shard: Shard
    selected: SelectedClasses

    def of(self, logits: Tensor) -> Tensor:
        return RowValueFunction.apply(self, logits)

    def compute(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return self.read(logits)

    def gradients(self, tensors: Any, kept: Any, grad: Tensor, wanted: Wanted, is_plain: bool) -> Gradients:
        """Return the gradient by this rank's logits. `grad` must be equal on all ranks."""
        check_first_derivative(self.shard.ranks, grad)
        gradient = torch.empty_like(tensors[0])
        self.write_gradient(tensors[0], kept, grad, gradient)
        return (gradient,)

    def read(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the results of `SelectedClasses.columns`, which are equal on every rank."""
        (ranks, _, classes), selected = self.shard, self.selected
        places, of_labels = self._places(logits)
        values, indices = logits_at(logits, places), selected.indices
        sums = log_sums(logits, selected.temperature, places if selected.leaves_out else None, of_labels)
        if selected.labels is not None and of_labels is not None:
            indices = torch.cat([indices, selected.labels.unsqueeze(-1)], -1)
            values = torch.cat([values, logits_at(logits, of_labels.unsqueeze(-1))], -1)
        # The sum over the ranks is 0 for a class that no rank has. This sum would look like a logit, so NaN replaces
        # it.
        values = torch.where(indices < classes, ranks.sum(values), torch.nan)
        gathered = ranks.gather(sums)
        rest = merged_log_sums(gathered[..., :2], selected.temperature)
        k, label_sums = places.shape[-1], None
        if of_labels is not None:
            others = merged_log_sums(gathered[..., 2:], 1.0)
            label_sums = LabelSums.of(others.peak, others.total, values[:, k])
        kept = torch.where(selected.indices < 0, -torch.inf, values[:, :k])
        return selected.columns(kept, rest.peak, rest.total, label_sums)

    def write_gradient(self, logits: Tensor, kept: Kept, grad: Tensor, out: Tensor) -> None:
        """Write the gradient of the sum of `grad` times the columns to `out`, which may be `logits`."""
        self.selected.write_gradient_by_sums(logits, self._places(logits), kept, grad, out)

    def _places(self, logits: Tensor) -> Places:
        start, own, labels = self.shard.start, logits.shape[-1], self.selected.labels
        of_labels = None if labels is None else places_of(labels, start, own)
        return places_of(self.selected.indices, start, own), of_labels
