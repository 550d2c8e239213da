"""Teachers that have the probabilities of only some classes: the interface that the losses use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from kullback.errors import invalid_type, invalid_value
from kullback.functional.positions import check_logits, check_temperature
from kullback.generators import Divergence, FinitePair
from kullback.inputs import recordable
from kullback.kernels.labels import HardLabels
from kullback.kernels.row_operation import Gradients
from kullback.kernels.selected import SelectedClasses
from kullback.numeric import upcast
from kullback.parallel.selected import Shard, ShardedClasses
from kullback.representations import can_inspect
from kullback.short_repr import ShortRepr

__all__ = ["PartialRows", "PartialTeacher", "WeightedTerms", "check_partial_teacher"]


@dataclass(frozen=True, eq=False)
class PartialRows(ABC):
    """The rows of a `PartialTeacher`, with the settings of the divergence. A subclass defines `divergence`.

    Attributes:
        kind: the divergence.
        indices: the teacher's classes in each row, shape (rows, k), negative for padding.
        log_probs: their log-probabilities under the teacher, or other numbers that give these, shape (rows, ...). Only
            these numbers can have a gradient.
        temperature: the divisor of the student's logits.
        dtype: the dtype of the values.

    Example:
        >>> import torch
        >>> from kullback import KL
        >>> from kullback.functional import TopK
        >>> rows = TopK(torch.tensor([[0]]), torch.tensor([[0.9]]).log()).rows(KL(), 2, 1.0, torch.float32)
        >>> rows.of_student(torch.zeros(1, 2))
        tensor([0.3681])
    """

    kind: Divergence
    indices: Tensor
    log_probs: Tensor
    temperature: float
    dtype: torch.dtype

    per_row: ClassVar[tuple[str, ...]] = ("indices", "log_probs")
    """The names of the attributes with one row for each position."""
    leaves_out: ClassVar[bool] = True
    """Whether the student's logsumexp covers only the other classes."""

    @abstractmethod
    def divergence(self, log_probs: Tensor, logits: Tensor) -> Tensor:
        """Return the divergence of each row, shape (rows,), by differentiable operations.

        Arguments:
            log_probs: the attribute `log_probs` in float64.
            logits: the student's logits divided by the temperature, float64, shape (rows, k + 1): of the classes in
                `indices`, -inf for padding, and last the logsumexp of the other classes, or of all unless `leaves_out`.
        """

    def of_rows(self, rows: slice | Tensor) -> Self:
        """Return a selection of the rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in self.per_row})

    def classes(
        self, labels: HardLabels | None = None, shard: Shard | None = None
    ) -> SelectedClasses | ShardedClasses:
        """Return the reader of the student's logits, for all classes or for one shard."""
        of_labels = None if labels is None else labels.classes
        read = SelectedClasses(self.indices, self.temperature, self.leaves_out, of_labels)
        return read if shard is None else ShardedClasses(shard, read)

    def values(self, log_probs: Tensor, columns: Tensor, labels: HardLabels | None) -> Tensor:
        """Return the divergence of each row, mixed with the cross-entropy if there are labels."""
        log_probs = upcast(log_probs)
        if labels is None:
            return self.divergence(log_probs, columns)
        return labels.mixed_with(self.divergence(log_probs, columns[:, :-1]), columns[:, -1])

    def of_student(
        self, student: Tensor, labels: HardLabels | None = None, shard: Shard | None = None
    ) -> Tensor:
        """Return the value of each position, from the student's logits of all classes or of one shard."""
        positions = student.shape[:-1]
        rows = recordable(student).reshape(positions.numel(), student.shape[-1])
        columns = self.classes(labels, shard).of(rows)
        return self.values(self.log_probs, columns, labels).reshape(positions)


class PartialTeacher(ShortRepr, ABC):
    """A teacher that gives the probabilities of some classes of each position, instead of logits.

    A subclass defines `kept_indices`, `kept_log_probs` and `rows`. The losses then accept its instances as `teacher`.

    Example:
        >>> from kullback.functional import PartialTeacher, TopK
        >>> issubclass(TopK, PartialTeacher), sorted(PartialTeacher.__abstractmethods__)
        (True, ['kept_indices', 'kept_log_probs', 'rows'])
    """

    remedy_of_device: ClassVar[str] = "a teacher of tensors on student.device"
    """The code that moves the teacher to the student's device, for error messages."""

    @property
    @abstractmethod
    def kept_indices(self) -> Tensor:
        """The classes, shape (..., k)."""

    @property
    @abstractmethod
    def kept_log_probs(self) -> Tensor:
        """Their log-probabilities, or other numbers that give these. Only these numbers can have a gradient."""

    @abstractmethod
    def rows(self, kind: Divergence, classes: int, temperature: float, dtype: torch.dtype) -> PartialRows:
        """Return the teacher's rows, for a student with `classes` classes."""

    @property
    def index_tensors(self) -> Sequence[Tensor]:
        """All tensors of class indices."""
        return (self.kept_indices,)

    @property
    def largest_index(self) -> int:
        """The largest class index, -1 if the tensors have no values to read."""
        if not all(can_inspect(x) for x in self.index_tensors):
            return -1
        return max((int(x.max()) for x in self.index_tensors if x.numel()), default=-1)

    def check_settings(self, call: str, kind: Divergence, temperature: float) -> None:
        """Raise unless the teacher supports `kind` and `temperature`."""

    def result_dtype(self, student: torch.dtype) -> torch.dtype:
        """Return the dtype of the divergence: float64 if the student's or the teacher's numbers are, else float32."""
        return torch.float64 if torch.float64 in (student, self.kept_log_probs.dtype) else torch.float32

    def flat(self, x: Tensor) -> Tensor:
        """Return a tensor with one row for each position, which autograd can save."""
        positions = self.kept_indices.shape[:-1]
        return recordable(x).reshape(positions.numel(), x.shape[len(positions) :].numel())

    def check_indices(self, call: str, classes: int) -> None:
        """Raise if an index is not below the number of classes."""
        largest = -1 if torch.compiler.is_compiling() else self.largest_index
        if largest >= classes:
            raise invalid_value(
                call,
                "teacher",
                wanted=f"indices below the student's number of classes, {classes}",
                got=f"an index {largest}",
                instead="a student with the teacher's vocabulary",
            )

    def check_student(self, call: str, student: Tensor) -> None:
        """Raise unless the student's logits have the same positions and device."""
        check_logits(call, "student", student)
        kept = self.kept_indices
        if student.shape[:-1] != kept.shape[:-1]:
            raise invalid_value(
                call,
                "student",
                wanted=f"the teacher's positions, shape {tuple(kept.shape[:-1])}",
                got=f"shape {tuple(student.shape[:-1])} without the classes",
                instead="the logits of the same positions of both, neither shifted nor cut",
            )
        if student.device != kept.device:
            raise invalid_value(
                call,
                "teacher",
                wanted=f"tensors on {student.device}, where the student is",
                got=f"some on {kept.device}",
                instead=self.remedy_of_device,
            )


class WeightedTerms(NamedTuple):
    """The weighted sum of each row's terms of some classes, as a row operation. Rows are not normalized.

    The gradients by log p and log q use the kind's derivatives. Terms of weight 0 have no effect, even if they are NaN.
    """

    kind: Divergence

    def compute(self, log_p: Tensor, log_q: Tensor, weights: Tensor) -> tuple[Tensor]:
        """Return the sums."""
        terms = self.kind.terms(_pair(log_p, log_q))
        return (torch.where(weights == 0, 0, weights * terms).sum(-1),)

    def gradients(
        self, tensors: Any, kept: Any, grad: Tensor, wanted: Sequence[bool], is_plain: bool
    ) -> Gradients:
        """Return the gradients by log p and log q."""
        log_p, log_q, weights = tensors
        counted = weights * grad.unsqueeze(-1)
        by_p, by_q = self.kind.derivatives(_pair(log_p, log_q))
        return [torch.where(counted == 0, 0, counted * by) for by in (by_p, by_q)]


def _pair(log_p: Tensor, log_q: Tensor) -> FinitePair:
    both = (log_p == -torch.inf) & (log_q == -torch.inf)
    log_ratio = torch.where(both, 0, log_p - torch.where(both, 0, log_q))
    return FinitePair(log_p.exp(), log_q.exp(), log_ratio, lambda: (log_p, log_q))


def check_partial_teacher(
    call: str,
    wanted: type[PartialTeacher],
    teacher: PartialTeacher,
    student: Tensor,
    kind: Divergence,
    temperature: float,
) -> None:
    """Raise unless the teacher is an instance of `wanted` and fits the student and the settings."""
    check_temperature(call, temperature)
    if not isinstance(teacher, wanted):
        raise invalid_type(
            call,
            "teacher",
            wanted=f"a {wanted.__name__}",
            got=type(teacher).__name__,
            instead=f"teacher={wanted.__name__}({'indices, log_probs' if wanted.__name__ == 'TopK' else '...'})",
        )
    teacher.check_student(call, student)
    teacher.check_settings(call, kind, temperature)
    teacher.check_indices(call, student.shape[-1])
