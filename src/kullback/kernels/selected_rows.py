"""Row operations that read the logits of selected classes, for teachers whose probabilities are known for some classes
only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kullback.common.dtypes import upcast
from kullback.common.inputs import can_inspect_all
from kullback.kernels.label_terms import (
    LabelSums,
    cross_entropy_gradient,
    cross_entropy_of_block,
    subtractable,
)
from kullback.kernels.native import library
from kullback.kernels.native.native_rows import DTYPES
from kullback.kernels.reference import origin_of
from kullback.kernels.row_operation import (
    Gradients,
    RowOperation,
    Wanted,
    row_blocks,
    transformable,
    without_spoilt_rows,
)
from kullback.kernels.row_sums import log_sums
from kullback.kernels.triton import triton_sums

Kept = tuple[Tensor, Tensor]
"""The results of `SelectedClasses.read`: the columns, and the sums for the gradient."""
Places = tuple[Tensor, Tensor | None]
"""The indices of the selected classes, shape (rows, k), and of the labels, shape (rows,), in the logits of this rank. A
class of another rank has the index `logits.shape[-1]`.
"""
_LIBRARY_SUMS = 5  # the number of a row's sums from C++ (see csrc/logits/task.h)


def serves(logits: Tensor) -> bool:
    """Return whether the C++ kernels support the logits; they compute in float64 for float64, else float32."""
    return logits.is_cpu and logits.dtype in DTYPES and library.is_available()


@dataclass(slots=True, eq=False)
class SelectedClasses(RowOperation):
    """The classes to read from rows of logits: ``indices[n]`` for row n. A negative index is padding.

    `of` and `read` return these float64 columns for each row:

    - the selected logits divided by the temperature, -inf for padding;
    - the logsumexp of all logits at that temperature or, if `leaves_out`, of the logits of all other classes;
    - with labels, the cross-entropy with the label at temperature 1.

    Logits are relative to the row's largest logit, because logits far from 0 would leave no digits for the logarithm of
    a sum. Derivatives treat this shift as constant. The derivatives are exact for every function of the columns that
    does not depend on the shift.
    """

    indices: Any  # a Tensor; None in the operation that `of` passes to `transformable`
    temperature: float
    leaves_out: bool  # whether the logsumexp covers only the other classes
    labels: Tensor | None = None

    def of(self, logits: Tensor) -> Tensor:
        """Return the columns that the class's docstring lists, shape (rows, columns), differentiably."""
        settings = replace(self, indices=None, labels=None)  # torch.func may transform both tensors
        return transformable(settings, logits, self.indices, self.labels)

    def compute(self, logits: Tensor, indices: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return replace(self, indices=indices, labels=labels).read(logits)

    def gradients(self, tensors: Any, kept: Any, grad: Tensor, wanted: Wanted, is_plain: bool) -> Gradients:
        logits, indices, labels = tensors
        classes = replace(self, indices=indices, labels=labels)
        if not is_plain:
            return classes.gradient_of_block(logits, kept[0], grad).to(logits.dtype), None
        gradient = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        classes.write_gradient(logits, kept, grad, gradient)
        return gradient, None

    def changes(self, tensors: Any, tangents: Gradients) -> Tensor:
        (logits, indices, labels), tangent = tensors, tangents[0]
        spoilt, (logits,) = without_spoilt_rows((logits,), (True,))
        padding, indices = indices < 0, indices.clamp(min=0)
        change = torch.zeros_like(upcast(logits)) if tangent is None else upcast(tangent)
        accurate = self._relative(logits)
        if self.leaves_out:
            left_out = torch.where(padding, 1, 0).to(accurate.dtype)
            counted = torch.ones_like(accurate).scatter_reduce(-1, indices, left_out, "amin")
            accurate = torch.where(counted > 0, accurate, -torch.inf)
        is_empty = (accurate == -torch.inf).all(-1, keepdim=True)
        shares = torch.where(is_empty, 0, torch.softmax(torch.where(is_empty, 0, accurate), -1))
        columns = [
            torch.where(padding, 0, change.gather(-1, indices)),
            (shares * change).sum(-1, keepdim=True),
        ]
        columns = [column / self.temperature for column in columns]
        if labels is not None:
            ones = torch.ones_like(labels, dtype=change.dtype)
            by_label = cross_entropy_gradient(logits, labels, ones)
            columns.append((by_label * change).sum(-1, keepdim=True))
        return torch.where(spoilt.unsqueeze(-1), torch.nan, torch.cat(columns, -1))

    def read(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the columns that the class lists, and the sums for `write_gradient` (five from C++, else fewer)."""
        tensors = (logits, self.indices) if self.labels is None else (logits, self.indices, self.labels)
        if serves(logits):
            if can_inspect_all(tensors):
                return self._read_by_library(logits)
        elif triton_sums.serves(logits, self.temperature, self.indices.shape[-1]) and can_inspect_all(
            tensors
        ):
            return self._read_by_sums(logits)
        parts = [self._of_rows(block).read_block(logits[block]) for block in row_blocks(logits)]
        return torch.cat(parts), upcast(logits.new_empty(0))

    def write_gradient(self, logits: Tensor, kept: Kept, grad: Tensor, out: Tensor) -> None:
        """Write the gradient of the sum of `grad` times the columns to `out`, which may be `logits`."""
        result, sums = kept
        if sums.numel() and sums.shape[-1] < _LIBRARY_SUMS:
            self.write_gradient_by_sums(logits, self._places(logits), kept, grad, out)
            return
        if sums.numel():
            k = self.indices.shape[-1]
            by_label = None if self.labels is None else grad[:, k + 1].contiguous()
            by = (grad[:, :k].contiguous(), grad[:, k].contiguous(), by_label)
            torch.ops.kullback.selected_gradient.default(logits, *self._arguments(), sums, *by, out)
            return
        for block in row_blocks(logits):
            out[block] = self._of_rows(block).gradient_of_block(logits[block], result[block], grad[block])

    def columns(
        self, selected: Tensor, peak: Tensor, total: Tensor, of_labels: LabelSums | None
    ) -> tuple[Tensor, Tensor]:
        """Return the columns that the class lists, and the numbers for `write_gradient_by_sums`: the origin that was
        subtracted and, with labels, `of_labels`. `selected` has -inf for padding. `peak`, the largest logit of the
        summed classes, is 0 if it is not finite; `total` is the sum of their e^((logit - peak) / temperature).
        """
        # Without any summed class, `peak` is 0. The origin needs the true peak, -inf.
        largest = torch.where(total == 0, -torch.inf, peak)
        origin = origin_of(torch.maximum(largest, selected.amax(-1))).unsqueeze(-1)
        log_rest = (peak.unsqueeze(-1) - origin) / self.temperature
        log_rest = log_rest + torch.log(total).unsqueeze(-1)
        columns = [(selected - origin) / self.temperature, log_rest]
        if of_labels is None:
            return torch.cat(columns, -1), origin
        columns.append(of_labels.cross_entropies().unsqueeze(-1))
        return torch.cat(columns, -1), torch.cat([origin, torch.stack(of_labels, -1)], -1)

    def write_gradient_by_sums(
        self, logits: Tensor, at: Places, kept: Kept, grad: Tensor, out: Tensor
    ) -> None:
        """Write the gradient of the sum of `grad` times the columns to `out`, which may be `logits`. `kept` has the
        results of `columns`. The logits may be one rank's.
        """
        k, (places, label_places), (result, sums) = self.indices.shape[-1], at, kept
        of_labels = None if label_places is None else LabelSums(*sums[:, 1:].unbind(-1))
        if triton_sums.serves(logits, self.temperature, k):
            self._write_by_triton(logits, at, kept, grad, out)
            return
        for block in row_blocks(logits):
            rows, by = logits[block], grad[block]
            log_rest, by_rest = result[block, k : k + 1], by[:, k : k + 1]
            # The exponents are clamped as in `gradient_of_block`.
            shifted = (upcast(rows) - sums[block, :1]) / self.temperature
            shifted = shifted - torch.where(log_rest == -torch.inf, 0, log_rest)
            whole = torch.where(by_rest == 0, 0, by_rest * torch.exp(shifted.clamp(max=0)))
            whole = torch.nn.functional.pad(whole, (0, 1))  # the extra column receives classes of other ranks
            if self.leaves_out:
                whole = whole.scatter(-1, places[block], 0)
            whole = whole.scatter_add(-1, places[block], by[:, :k])[:, :-1] / self.temperature
            if of_labels is not None and label_places is not None:
                whole = whole + of_labels.gradient(block, rows, label_places[block], by[:, k + 1])
            out[block] = whole

    def _write_by_triton(self, logits: Tensor, at: Places, kept: Kept, grad: Tensor, out: Tensor) -> None:
        """Do what `write_gradient_by_sums` does, by Triton's kernels."""
        (places, label_places), (result, sums) = at, kept
        k, own = self.indices.shape[-1], logits.shape[-1]
        origin, log_rest, by_rest = sums[:, :1], result[:, k : k + 1], grad[:, k : k + 1] / self.temperature
        by_rest = torch.where((log_rest == -torch.inf) & by_rest.isfinite(), 0, by_rest)  # no class is summed

        def of_rest(shifted: Tensor) -> Tensor:
            """Return the part of the logsumexp's gradient at classes of the sum with the logits `shifted`."""
            return torch.where(by_rest == 0, 0, by_rest * torch.exp((shifted - log_rest).clamp(max=0)))

        rest = triton_sums.Exponentials(*(x.squeeze(-1) for x in (origin, log_rest, by_rest)))
        classes, shifted = torch.where(places < own, places, -1), result[:, :k]
        added = grad[:, :k] / self.temperature
        values = torch.zeros_like(added) if self.leaves_out else of_rest(shifted)
        by_labels = None
        if label_places is not None:
            of_labels, by = LabelSums(*sums[:, 1:].unbind(-1)), grad[:, k + 1 :]
            by_labels = triton_sums.of_label_sums(of_labels, by.squeeze(-1))
            label = label_places.unsqueeze(-1)
            at_label = (upcast(logits.gather(-1, label.clamp(max=own - 1))) - origin) / self.temperature
            is_new = (label < own) & (classes != label).all(-1, keepdim=True)
            classes = torch.cat([classes, torch.where(is_new, label, -1)], -1)
            shifted = torch.cat([shifted, at_label], -1)
            values = torch.cat([values, of_rest(at_label)], -1)
            added = torch.nn.functional.pad(added, (0, 1))
            peak, log_sum, by_others = (x.unsqueeze(-1) for x in by_labels)
            by_class = by_others * torch.exp(shifted * self.temperature + (origin - peak) - log_sum)
            # Without any other class, `log_sum` is -inf, as is the logit of each other class.
            by_class = torch.where(by_others == 0, 0, by_class)
            by_class = torch.where(classes == label, -by * of_labels.shares()[0].unsqueeze(-1), by_class)
            values = values + torch.where(by == 0, 0, by_class)
        entries = triton_sums.Entries(classes, values, added)
        triton_sums.write_exponentials(logits, self.temperature, rest, by_labels, entries, out)

    def _read_by_library(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the results of `read` from the C++ kernel."""
        selected = torch.empty(self.indices.shape, dtype=torch.float64, device="cpu")
        sums = torch.empty(len(selected), _LIBRARY_SUMS, dtype=torch.float64, device="cpu")
        torch.ops.kullback.selected_statistics.default(logits, *self._arguments(), selected, sums)
        if self.temperature != 1:  # subtract the origin before the division, to lose fewer digits
            selected = upcast(logits.gather(-1, self.indices.clamp(min=0)))
            selected = torch.where(self.indices < 0, -torch.inf, selected)
        peak, log_sum = sums[:, :1], sums[:, 1:2]
        origin = origin_of(torch.maximum(peak, selected.amax(-1, keepdim=True)))
        log_sum = (peak - origin) / self.temperature + log_sum
        columns = [(selected - origin) / self.temperature, log_sum]
        return torch.cat(columns if self.labels is None else [*columns, sums[:, 4:]], -1), sums

    def _read_by_sums(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the results of `read` from the sums of the rows, which one sweep over the logits computes."""
        places, labels = self._places(logits)
        sums = log_sums(logits, self.temperature, places if self.leaves_out else None, labels)
        selected = upcast(logits.gather(-1, self.indices.clamp(min=0)))
        of_labels = None
        if labels is not None:
            at_label = upcast(logits.gather(-1, labels.unsqueeze(-1))).squeeze(-1)
            of_labels = LabelSums.of(subtractable(sums[:, 2]), sums[:, 3], at_label)
        selected = torch.where(self.indices < 0, -torch.inf, selected)
        return self.columns(selected, subtractable(sums[:, 0]), sums[:, 1], of_labels)

    def _places(self, logits: Tensor) -> Places:
        return torch.where(self.indices < 0, logits.shape[-1], self.indices), self.labels

    def gradient_of_block(self, logits: Tensor, result: Tensor, grad: Tensor) -> Tensor:
        """Return the gradient with respect to the logits in float64, computed by differentiable operations."""
        k = self.indices.shape[-1]
        padding, indices = self.indices < 0, self.indices.clamp(min=0)
        by_selected, by_sum, log_sum = (
            torch.where(padding, 0, grad[..., :k]),
            grad[..., k : k + 1],
            result[..., k : k + 1],
        )
        # The exponents below are at most 0, except for a selected logit that exceeds the logsumexp of the other
        # classes. Therefore the exponents are clamped.
        shifted = self._relative(logits) - torch.where(log_sum == -torch.inf, 0, log_sum)
        # If the gradient with respect to the logsumexp of a row is 0, the exponents of inf or NaN are set to 0.
        shifted = torch.where((by_sum == 0) & ~(shifted < torch.inf), 0, shifted)
        whole = by_sum * torch.exp(shifted.clamp(max=0))
        if self.leaves_out:  # exactly 0 at the selected classes, before their gradient is added
            whole = whole.scatter_add(-1, indices, -torch.where(padding, 0, whole.gather(-1, indices)))
        whole = whole.scatter_add(-1, indices, by_selected) / self.temperature
        if self.labels is None:
            return whole
        return whole + cross_entropy_gradient(logits, self.labels, grad[..., k + 1])

    def read_block(self, logits: Tensor) -> Tensor:
        """Return the columns that the class's docstring lists, computed on the full tensor without autograd."""
        accurate = self._relative(logits)
        padding, indices = self.indices < 0, self.indices.clamp(min=0)
        selected = torch.where(padding, -torch.inf, accurate.gather(-1, indices))
        if self.leaves_out:
            # Padding is written to class 0, which a row may also select. The minimum makes the result independent of
            # the order of such writes.
            written = torch.where(padding, torch.inf, -torch.inf).to(accurate.dtype)
            accurate = accurate.scatter_reduce(-1, indices, written, "amin")
        columns = [selected, accurate.logsumexp(-1, keepdim=True)]
        if self.labels is not None:
            columns.append(cross_entropy_of_block(logits, self.labels).unsqueeze(-1))
        return torch.cat(columns, -1)

    def _arguments(self) -> tuple[Any, ...]:
        """Return the arguments that both C++ operators take, for the statistics and for the gradient."""
        labels = None if self.labels is None else self.labels.contiguous()
        return self.indices.contiguous(), labels, self.temperature, self.leaves_out

    def _relative(self, logits: Tensor) -> Tensor:
        accurate = upcast(logits)
        return (accurate - origin_of(accurate.amax(-1, keepdim=True).detach())) / self.temperature

    def _of_rows(self, block: slice) -> SelectedClasses:
        labels = None if self.labels is None else self.labels[block]
        return replace(self, indices=self.indices[block], labels=labels)
