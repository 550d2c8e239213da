"""The facts about a call that the checks use: arguments, their contents, their shapes, and the values."""

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
    """The arguments of a call and the facts about them. P is `target`, Q is `input`."""

    input: Tensor
    target: Tensor
    reduction: Reduction
    log_target: bool
    asked_dim: int
    dim: int
    """The dimension of the classes: the given one, or another along which both tensors are normalized."""
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
        """The code of the call."""
        log_target = ", log_target=True" if self.log_target else ""
        return f'F.kl_div(input, target, reduction="{self.reduction}"{log_target})'

    @property
    def classes(self) -> int:
        """The number of classes."""
        shape = (self.paired[0] if self.paired else self.input).shape
        return shape[self.dim] if shape else 1

    @property
    def rows(self) -> int:
        """The number of pairs of rows in torch's result."""
        return torch.Size(self.values.none).numel() // max(self.classes, 1) if self.values.none else 1

    @property
    def batch_size(self) -> int:
        """The divisor of ``"batchmean"``."""
        return self.input.shape[0] if self.input.ndim else 1

    @property
    def rows_match(self) -> bool:
        """Whether broadcasting pairs each row with its own."""
        return (
            self.fit is not None and self.fit.repair is not None and self.fit.repair.how in ("same", "expand")
        )

    @property
    def stray_labels(self) -> Spots:
        """Class indices outside the range of the classes."""
        labels = self.target.long()
        outside = ((labels < 0) & (labels != IGNORED)) | (labels >= self.classes)
        spotter = Spotter()
        spotter.add(outside, 0)
        return spotter.spots(tuple(self.target.shape), -1) if self.target.ndim else Spots(spotter.count, None)

    @property
    def reversed(self) -> bool:
        """Whether the arguments are probably exchanged."""
        if not (self.read_input and self.read_target) or self.log_target:
            return False
        return self.read_input.normalized and not self.read_input.in_logs and self.read_target.in_logs

    @property
    def as_expected(self) -> bool:
        """Whether both tensors hold distributions in the form that torch expects."""
        a, b = self.read_input, self.read_target
        if not (a and b and a.normalized and b.normalized):
            return False
        return a.in_logs and b.in_logs == self.log_target


def examine(input: Tensor, target: Tensor, reduction: Reduction, log_target: bool, dim: int) -> Case:
    """Gather the facts about a call."""
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
    # Truncated rows do not sum to one: read the tensors before truncation.
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
