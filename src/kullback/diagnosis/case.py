"""All that is known about a call: its arguments, what they seem to hold, how they fit, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kullback.diagnosis.reading import Reading, read, read_labels
from kullback.diagnosis.scan import Spots, Spotter
from kullback.diagnosis.shapes import IGNORED, Fit, fit, labels_of
from kullback.diagnosis.values import Overlap, Reductions, RowValues, row_values, torch_values
from kullback.reduction import Reduction

__all__ = ["Case", "examine"]


@dataclass(frozen=True)
class Case:
    """A call and what was found out about it. P is `target`, Q is `input`."""

    input: Tensor
    target: Tensor
    reduction: Reduction
    log_target: bool
    asked_dim: int
    dim: int
    """The dimension of the classes: the one asked for, or the other one along which both tensors are normalized."""
    values: Reductions
    fit: Fit | None = None
    labels: str | None = None
    read_input: Reading | None = None
    read_target: Reading | None = None
    paired: tuple[Tensor, Tensor] | None = None
    """`input` and `target` with their rows matched."""
    forward: RowValues | None = None
    """KL(target || input)."""
    backward: RowValues | None = None
    overlap: Overlap | None = None

    @property
    def call(self) -> str:
        """The call as it would be written."""
        log_target = ", log_target=True" if self.log_target else ""
        return f'F.kl_div(input, target, reduction="{self.reduction}"{log_target})'

    @property
    def classes(self) -> int:
        """The number of classes."""
        shape = (self.paired[0] if self.paired else self.input).shape
        return shape[self.dim] if shape else 1

    @property
    def rows(self) -> int:
        """How many pairs of rows torch's result runs over."""
        return torch.Size(self.values.none).numel() // max(self.classes, 1) if self.values.none else 1

    @property
    def batch_size(self) -> int:
        """What ``"batchmean"`` divides by."""
        return self.input.shape[0] if self.input.ndim else 1

    @property
    def rows_match(self) -> bool:
        """Whether torch pairs the rows as they belong."""
        return (
            self.fit is not None and self.fit.repair is not None and self.fit.repair.how in ("same", "expand")
        )

    @property
    def stray_labels(self) -> Spots:
        """Class indices that no class has."""
        labels = self.target.long()
        outside = ((labels < 0) & (labels != IGNORED)) | (labels >= self.classes)
        spotter = Spotter()
        spotter.add(outside, 0)
        return spotter.spots(tuple(self.target.shape), -1) if self.target.ndim else Spots(spotter.count, None)

    @property
    def reversed(self) -> bool:
        """Whether the arguments seem to stand in each other's place."""
        if not (self.read_input and self.read_target) or self.log_target:
            return False
        return self.read_input.normalized and not self.read_input.in_logs and self.read_target.in_logs

    @property
    def as_expected(self) -> bool:
        """Whether both tensors hold distributions in the form in which torch takes them."""
        a, b = self.read_input, self.read_target
        if not (a and b and a.normalized and b.normalized):
            return False
        return a.in_logs and b.in_logs == self.log_target


def examine(input: Tensor, target: Tensor, reduction: Reduction, log_target: bool, dim: int) -> Case:
    """Look at a call from all sides."""
    dim = dim - input.ndim if dim >= 0 else dim
    case = Case(input, target, reduction, log_target, dim, dim, torch_values(input, target, log_target, dim))
    if not (input.ndim and input.numel() and target.numel()):
        return case
    labels = labels_of(input, target, dim)
    if labels:
        return replace(
            case,
            labels=labels,
            read_input=read(input, dim, logs_expected=True),
            read_target=read_labels(target),
        )
    case = replace(case, fit=fit(input, target, dim))
    return _with_values(_with_readings(_with_pairs(case)))


def _with_pairs(case: Case) -> Case:
    repair = case.fit.repair if case.fit else None
    if repair is None:
        return case
    return replace(case, paired=(repair.on_input(case.input), repair.on_target(case.target)))


def _with_readings(case: Case) -> Case:
    repair = case.fit.repair if case.fit else None
    # Cut rows no longer sum to one: what the tensors hold shows before the cut.
    whole = case.paired is None or (repair is not None and repair.how == "cut-classes")
    a, b = (case.input, case.target) if whole or case.paired is None else case.paired
    read_a = read(a, case.dim, logs_expected=True)
    read_b = read(b, case.dim, logs_expected=case.log_target) if b.ndim >= -case.dim else None
    if (
        read_b is not None
        and read_a.other_dim is not None
        and read_a.other_dim == read_b.other_dim
        and not whole
    ):
        dim = read_a.other_dim
        read_a, read_b = read(a, dim, logs_expected=True), read(b, dim, logs_expected=case.log_target)
        return replace(case, dim=dim, read_input=read_a, read_target=read_b)
    return replace(case, read_input=read_a, read_target=read_b)


def _with_values(case: Case) -> Case:
    if case.paired is None or case.read_input is None or case.read_target is None:
        return case
    a, b = case.paired
    forward, backward, overlap = row_values(b, a, case.read_target, case.read_input, case.dim)
    return replace(case, forward=forward, backward=backward, overlap=overlap)
