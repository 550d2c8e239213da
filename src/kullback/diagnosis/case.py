"""`Case`: the facts about a call that the checks use, such as the contents and shapes of its arguments."""

from __future__ import annotations

import math

from torch import Tensor

from kullback.common.words import NO_LABEL
from kullback.diagnosis.maps import Maps, maps_of
from kullback.diagnosis.reading import Reading, are_independent, read, read_labels
from kullback.diagnosis.scan import Occurrences
from kullback.diagnosis.shapes import fit, labels_of
from kullback.diagnosis.values import Overlap, RowValues, independent_values, row_values, torch_values
from kullback.losses.reduction import Reduction


class Case:
    """The arguments of a call and the facts about them; P is `target`, and Q is `input`.

    `paired` contains both tensors after `repair`, so that their rows match. `forward` is KL(target || input), and
    `backward` is KL(input || target). `dim`, the dimension of the classes, is negative. If both tensors are normalized
    along another dimension only, `dim` becomes that dimension. If `maps` is not None, several dimensions contain the
    classes, and they are joined to the dimension `dim` of `input` and `target`.
    """

    def __init__(
        self,
        input: Tensor,
        target: Tensor,
        reduction: Reduction,
        log_target: bool,
        dim: int | tuple[int, ...],
    ) -> None:
        self.log_target = log_target
        self.reduction: Reduction = reduction
        self.shapes = tuple(input.shape), tuple(target.shape)
        self.values, self.error = torch_values(input, target, log_target, dim if isinstance(dim, int) else -1)
        self.maps = Maps(dim) if isinstance(dim, tuple) else maps_of(input, target)
        self.are_maps_asked = isinstance(dim, tuple)
        if self.maps is not None:
            input, target, dim = self.maps.join(input), self.maps.join(target), self.maps.joined_dim
        assert isinstance(dim, int)  # noqa: S101 - for the type checker
        self.input, self.target = input, target
        self.asked_dim = self.dim = dim = dim - input.ndim if dim >= 0 else dim
        self.labels = self.broadcasts = self.repair = None
        self.paired: tuple[Tensor, Tensor] | None = None
        self.read_input: Reading | None = None
        self.read_target: Reading | None = None
        self.forward: RowValues | None = None
        self.backward: RowValues | None = None
        self.overlap: Overlap | None = None
        self.are_independent = False
        if not (input.ndim and input.numel() and target.numel()):
            return
        self.labels = labels_of(input, target, dim)
        if self.labels:
            self.read_input, self.read_target = read(input, dim, logs_expected=True), read_labels(target)
            return
        self.broadcasts, self.repair = fit(input, target, dim)
        if self.repair:
            self.paired = self.repair.on_input(input), self.repair.on_target(target)
        self._read()
        if self.paired and self.read_input and self.read_target:
            q, p = self.paired
            self.are_independent = (
                self.repair is not None
                and self.repair.how in ("same", "expand")
                and self.maps is None
                and are_independent(self.read_target, self.read_input)
            )
            if self.are_independent:
                self.forward, self.backward = independent_values(
                    p, q, self.read_target, self.read_input, self.dim
                )
                return
            self.forward, self.backward, self.overlap = row_values(
                p, q, self.read_target, self.read_input, self.dim
            )

    def _read(self) -> None:
        """Infer the contents of both tensors before any classes are cut off, because shortened rows do not sum to
        one.
        """
        whole = not (self.paired and self.repair) or self.repair.how == "cut-classes"
        a, b = (self.input, self.target) if whole or not self.paired else self.paired
        self.read_input = read(a, self.dim, logs_expected=True)
        if b.ndim < -self.dim:
            return
        self.read_target = read(b, self.dim, logs_expected=self.log_target)
        other = self.read_input.other_dim
        if other is not None and other == self.read_target.other_dim and not whole:
            self.dim = other
            self.read_input = read(a, other, logs_expected=True)
            self.read_target = read(b, other, logs_expected=self.log_target)

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
        return math.prod(self.values["none"]) // max(self.classes, 1) if self.values else 1

    @property
    def batch_size(self) -> int:
        """The divisor of ``"batchmean"``."""
        return self.shapes[0][0] if self.shapes[0] else 1

    @property
    def stray_labels(self) -> Occurrences:
        """The entries of `target` that are neither class indices nor the default `ignore_index` of torch."""
        labels = self.target.long().reshape(self.target.shape or (1,))
        occurrences = Occurrences(tuple(labels.shape), -1)
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
