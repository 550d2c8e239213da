"""`Case`: the facts about a call that the checks use, such as the contents and shapes of its arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from kullback.common.words import NO_LABEL
from kullback.diagnosis.reading import Index, Occurrences, Reading, Role, are_independent
from kullback.diagnosis.shapes import ClassAxes, Repair, axes_of_maps, fit, labels_of
from kullback.diagnosis.values import Overlap, RowValues, row_values, torch_values
from kullback.losses.reduction import Reduction


class Case:
    """The arguments of a call and the facts about them; P is `target`, and Q is `input`.

    `paired` has both tensors with matching rows, after `repair`. `axes` are the dimensions of the classes, or the only
    one along which both are normalized. `forward` is KL(target || input), and `backward` KL(input || target).
    """

    def __init__(
        self, input: Tensor, target: Tensor, reduction: Reduction, log_target: bool, asked: ClassAxes
    ) -> None:
        self.reduction: Reduction = reduction
        self.log_target, self.asked = log_target, asked
        self.shapes = tuple(input.shape), tuple(target.shape)
        dim = -1 if asked.are_several else asked.dims[0]
        self.values, self.error = torch_values(input, target, log_target, dim)
        self.axes = asked if asked.are_several else axes_of_maps(input, target) or asked
        self.labels: str | None = None
        self.broadcasts: Index | None = None
        self.repair = Repair("none")
        self.paired: tuple[Tensor, Tensor] | None = None
        self.read_input: Reading | None = None
        self.read_target: Reading | None = None
        self.are_independent = False
        self.forward: RowValues | None = None
        self.backward: RowValues | None = None
        self.overlap = Overlap(input.reshape(-1), -1)
        self._examine(input, target)

    def _examine(self, whole_input: Tensor, whole_target: Tensor) -> None:
        """Infer the contents of both tensors, and compare their rows."""
        self.input, self.target = input, target = self.axes.join(whole_input), self.axes.join(whole_target)
        if not (input.ndim and input.numel() and target.numel()):
            return
        self.labels = labels_of(input, target, self.dim)
        if self.labels:
            self.read_input = Reading(input, self.dim, self._roles[0])
            self.read_target = Reading(target.reshape(-1), -1, self._roles[1], are_labels=True)
            return
        self.broadcasts, self.repair = fit(input, target, self.dim)
        if self.repair.how != "none":
            self.paired = self.repair.on_input(input), self.repair.on_target(target)
        other = self._read()
        if other is not None and self.axes.are_several:
            self.axes = ClassAxes((other,))
            self._examine(whole_input, whole_target)
        elif self.paired and self.read_input and self.read_target:
            (q, p), readings = self.paired, (self.read_target, self.read_input)
            matched = self.repair.keeps_entries and not self.axes.are_several
            self.are_independent = matched and are_independent(*readings)
            self.forward, self.backward, self.overlap = row_values(
                p, q, *readings, self.dim, of_labels=self.are_independent
            )

    def _read(self) -> int | None:
        """Infer the contents before any classes are cut off, because shortened rows do not sum to one.

        Return the other dimension along which both tensors are normalized, or None; it replaces a single dimension.
        """
        is_cut = self.paired is None or self.repair.how == "cut-classes"
        a, b = (self.input, self.target) if is_cut or self.paired is None else self.paired
        self.read_input = Reading(a, self.dim, self._roles[0])
        if b.ndim < -self.dim:
            return None
        self.read_target = Reading(b, self.dim, self._roles[1])
        other, dim = self.read_input.other_dim, self.dim
        if is_cut or other is None or other != self.read_target.other_dim:
            return None
        if self.axes.are_several:  # joining changes the numbers of all dimensions before `dim`
            return other if other > dim else None
        self.axes = ClassAxes((other,))
        self.read_input = Reading(a, other, self._roles[0])
        self.read_target = Reading(b, other, self._roles[1])
        return other

    @property
    def _roles(self) -> tuple[Role, Role]:
        joined = self.axes.code
        return Role("input", f"input{joined}", True), Role("target", f"target{joined}", self.log_target)

    @property
    def dim(self) -> int:
        """The dimension of the classes of `input` and `target`, negative."""
        return self.axes.joined_dim

    @property
    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield "input", self.input
        yield "target", self.target

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
        """The number of pairs of rows in torch's result, or 1 if torch raises an error."""
        shape = self.values.get("none")
        return math.prod(shape) // max(self.classes, 1) if isinstance(shape, tuple) else 1

    @property
    def batch_size(self) -> int:
        """The divisor of ``"batchmean"``."""
        return self.shapes[0][0] if self.shapes[0] else 1

    @property
    def stray_labels(self) -> Occurrences:
        """The entries of `target` that are neither class indices nor the default `ignore_index` of torch."""
        labels = self.target.long().reshape(self.target.shape or (1,))
        occurrences = Occurrences(labels, -1)
        occurrences.add(((labels < 0) & (labels != NO_LABEL)) | (labels >= self.classes), 0)
        return occurrences

    @property
    def reversed(self) -> bool:
        """Whether the arguments are probably exchanged."""
        a, b = self.read_input, self.read_target
        return bool(a and b and not self.log_target and a.normalized and not a.in_logs and b.in_logs)

    @property
    def as_expected(self) -> bool:
        """Whether both tensors contain distributions in the form that torch expects."""
        a, b = self.read_input, self.read_target
        return bool(a and b and a.normalized and b.normalized and a.in_logs and b.in_logs == self.log_target)
