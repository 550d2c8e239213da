"""The row operation that reads the logits of a few classes of each row, and the logsumexp of the other classes, for
sharded classes.
"""

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
    """The group of ranks, and the range of classes that this rank has."""

    ranks: Ranks
    start: int  # the first class of this rank
    classes: int  # the number of classes of all ranks together


@dataclass(slots=True, eq=False)
class ShardedClasses(RowOperation):
    """`SelectedClasses` for rows whose classes are sharded. The columns are equal on every rank.

    For k selected classes, the forward pass makes two collectives. One sums k numbers per row (k + 1 with labels) over
    the ranks, and the other gathers two numbers per row (four with labels) from all ranks. The backward pass makes no
    collective.
    """

    shard: Shard
    selected: SelectedClasses

    def of(self, logits: Tensor) -> Tensor:
        """Return the columns that the docstring of `SelectedClasses` lists, differentiable with respect to the
        logits.
        """
        return RowValueFunction.apply(self, logits)

    def compute(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the results of `read` for the logits."""
        return self.read(logits)

    def gradients(self, tensors: Any, kept: Any, grad: Tensor, wanted: Wanted, is_plain: bool) -> Gradients:
        """Return a tuple with the gradient with respect to this rank's logits. `grad` must be equal on all ranks."""
        check_first_derivative(self.shard.ranks, grad)
        gradient = torch.empty_like(tensors[0])
        result, sums = kept
        self.write_gradient(tensors[0], result, sums, grad, gradient)
        return (gradient,)

    def read(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return two results: the columns that the docstring of `SelectedClasses` lists, and numbers that
        `write_gradient` needs.

        These numbers are the origin that was subtracted from the logits of each row and, with labels, the row's
        `LabelSums`.
        """
        (ranks, _, classes), selected = self.shard, self.selected
        places, label_places = self._places(logits)
        values = logits_at(logits, places)
        sums = [log_sums(logits, selected.temperature, places if selected.leaves_out else None)]
        indices = selected.indices
        if selected.labels is not None and label_places is not None:
            indices = torch.cat([indices, selected.labels.unsqueeze(-1)], -1)
            values = torch.cat([values, logits_at(logits, label_places)], -1)
            sums.append(log_sums(logits, 1.0, label_places))
        # The sum over the ranks is 0 for a class that no rank has. This sum would look like a logit, so NaN replaces
        # it.
        values = torch.where(indices < classes, ranks.sum(values), torch.nan)
        gathered = ranks.gather(torch.cat(sums, -1))
        rest = merged_log_sums(gathered[..., :2], selected.temperature)
        k = places.shape[-1]
        kept = torch.where(selected.indices < 0, -torch.inf, values[:, :k])
        # `merged_log_sums` returns the peak 0 for an empty set of classes. The origin needs the true peak, -inf.
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
        """Write the gradient of the sum of `grad` times `result` with respect to this rank's logits to `out`, which may
        be `logits`.
        """
        selected, k = self.selected, self.selected.indices.shape[-1]
        all_places, label_places = self._places(logits)
        of_labels = None if label_places is None else LabelSums(*sums[:, 1:].unbind(-1))
        for block in row_blocks(logits):
            rows, places, by = logits[block], all_places[block], grad[block]
            log_rest, by_rest = result[block, k : k + 1], by[:, k : k + 1]
            # The exponents below are at most 0, except for a selected logit that exceeds the logsumexp of the other
            # classes. Therefore the exponents are clamped.
            shifted = (upcast(rows) - sums[block, :1]) / selected.temperature
            shifted = shifted - torch.where(log_rest == -torch.inf, 0, log_rest)
            whole = torch.where(by_rest == 0, 0, by_rest * torch.exp(shifted.clamp(max=0)))
            whole = torch.nn.functional.pad(whole, (0, 1))  # the extra column receives classes of other ranks
            if selected.leaves_out:
                whole = whole.scatter(-1, places, 0)
            whole = whole.scatter_add(-1, places, by[:, :k])[:, :-1] / selected.temperature
            if of_labels is not None and label_places is not None:
                whole = whole + of_labels.gradient(block, rows, label_places[block, 0], by[:, k + 1])
            out[block] = whole

    def _places(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the results of `places_of` for the selected classes, shape (rows, k), and for the labels, shape (rows,
        1). The second result is None without labels.
        """
        start, own, labels = self.shard.start, logits.shape[-1], self.selected.labels
        of_labels = None if labels is None else places_of(labels.unsqueeze(-1), start, own)
        return places_of(self.selected.indices, start, own), of_labels
