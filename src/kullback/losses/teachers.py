"""Teachers, which give logits of all classes or probabilities of some classes, and their interface for the losses."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from torch import Tensor

from kullback.common.inputs import are_logits, can_inspect, check_dense, described, recordable, tensor_remedy
from kullback.common.short_repr import ShortRepr
from kullback.errors import invalid_type, invalid_value
from kullback.generators import Divergence
from kullback.kernels import RowDivergence, logit_divergence, weighted_total
from kullback.kernels.label_terms import HardLabels
from kullback.kernels.reference import pair_of_logs
from kullback.kernels.row_operation import Gradients, RowOperation, RowValueFunction, Wanted
from kullback.kernels.selected_rows import SelectedClasses
from kullback.losses.positions import Positions
from kullback.losses.settings import ARGUMENTS, LossSettings, check_classes, check_kind, check_result_dtype
from kullback.parallel.rows import ShardedRows
from kullback.parallel.selected import Shard, ShardedClasses
from kullback.parallel.shards import Sides


class LogitTeacher(NamedTuple):
    """A teacher that gives the logits of all classes."""

    logits: Tensor

    def check(self, call: str, student: Tensor, settings: LossSettings) -> torch.dtype:
        """Return the dtype of the loss; raise unless both sides have the same positions and device."""
        teacher = self.logits
        if not are_logits(student, teacher):
            check_logits(call, "student", student, other=teacher)
            check_logits(call, "teacher", teacher, other=student)
        if student.shape[:-1] != teacher.shape[:-1] or student.device != teacher.device:
            check_positions(call, student, teacher, "teacher=teacher.to(student.device)")
        return torch.float64 if torch.float64 in (student.dtype, teacher.dtype) else torch.float32

    def loss(self, student: Tensor, positions: Positions, inplace: bool) -> Tensor:
        """Return the reduced loss, computed from the student's logits."""
        settings, teacher = positions.settings, self.logits
        sizes = student.shape[-1], teacher.shape[-1]
        kept = compared_classes(positions.call, ("student", "teacher"), sizes, settings)
        if kept != sizes:
            student, teacher = student[..., : kept[0]], teacher[..., : kept[1]]
        if kept[0] != kept[1]:  # a class that only one side has gets the logit -inf on the other side
            student, teacher = (
                torch.nn.functional.pad(x, (0, max(kept) - x.shape[-1]), value=-math.inf)
                for x in (student, teacher)
            )
        if positions.labels is not None:
            positions.check_labels(kept[0])
        rows = RowDivergence(settings.kind, settings.temperature, positions.dtype, positions.labels)
        if settings.reduction == "none":
            return positions.reduce(logit_divergence(rows, recordable(teacher), recordable(student)))
        shares, factor = positions.shares()
        if student.ndim != 2:  # even a reshape that changes nothing costs time
            teacher, student = _as_matrix(teacher), _as_matrix(student)
        shares = None if shares is None else shares.reshape(-1)
        return weighted_total(rows, teacher, student, shares, scale=factor, inplace=inplace)

    def sharded_values(
        self, student: Tensor, positions: Positions, sides: Sides, needed: tuple[bool, bool], inplace: bool
    ) -> Tensor:
        """Return the value of each position, computed from this rank's shard of the student's logits."""
        kind, temperature = positions.settings.kind, float(positions.settings.temperature)
        teacher = sides.padded(sides.teacher_part(recordable(self.logits)))
        of_loss = positions.dtype, positions.labels, inplace
        rows = ShardedRows(sides.ranks, kind, temperature, sides.classes, needed, sides.own[0], *of_loss)
        return RowValueFunction.apply(rows, _as_matrix(teacher), _as_matrix(student)).reshape(positions.shape)


def _as_matrix(logits: Tensor) -> Tensor:
    """Return the logits as a matrix that has one row for each position."""
    return logits.reshape(logits.shape[:-1].numel(), logits.shape[-1])


@dataclass(frozen=True, eq=False)
class TeacherRows(ABC):
    """The rows of a `PartialTeacher`, with the settings of the divergence. A subclass defines `divergence`.

    Attributes:
        kind: the divergence.
        indices: the teacher's classes in each row, shape (rows, k), negative for padding.
        log_probs: the log-probabilities of these classes under the teacher, or other numbers that determine them, shape
            (rows, ...). Only these numbers can have a gradient.
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
    """The names of the attributes that have one row for each position."""
    leaves_out: ClassVar[bool] = True
    """Whether the last column of the logits in `divergence` is the logsumexp of only the classes that are not in
    `indices`. If False, the column is the logsumexp of all classes.
    """

    @abstractmethod
    def divergence(self, log_probs: Tensor, logits: Tensor) -> Tensor:
        """Return the divergence of each row, shape (rows,), by differentiable operations.

        Arguments:
            log_probs: the attribute `log_probs` in float64.
            logits: float64, shape (rows, k + 1). The first k columns are the student's logits of the classes in
                `indices`, divided by the temperature, -inf for padding. The last column is the logsumexp of the other
                classes if `leaves_out`, else of all classes.
        """

    def of_rows(self, rows: slice | Tensor) -> Self:
        """Return the same object with only the rows that `rows`, a slice or an index, selects."""
        if isinstance(rows, slice) and rows == slice(0, len(self.indices)):
            return self
        return replace(self, **{name: getattr(self, name)[rows] for name in self.per_row})

    def classes(
        self, labels: HardLabels | None = None, shard: Shard | None = None
    ) -> SelectedClasses | ShardedClasses:
        """Return the row operation that reads the student's logits at `indices`: of all classes, or of a `shard`."""
        of_labels = None if labels is None else labels.classes
        read = SelectedClasses(self.indices, self.temperature, self.leaves_out, of_labels)
        return read if shard is None else ShardedClasses(shard, read)

    def values(self, log_probs: Tensor, columns: Tensor, labels: HardLabels | None) -> Tensor:
        """Return the divergences from `columns`, the results of `classes`, mixed with cross-entropies of labels."""
        log_probs = log_probs.to(columns.dtype)
        if labels is None:
            return self.divergence(log_probs, columns)
        return labels.mixed_with(self.divergence(log_probs, columns[:, :-1]), columns[:, -1])

    def of_student(
        self,
        student: Tensor,
        labels: HardLabels | None = None,
        shard: Shard | None = None,
        excluded: Tensor | None = None,
    ) -> Tensor:
        """Return the value of each position from the student's logits of all classes, or of `shard`. An `excluded`
        position has an arbitrary constant value, so that NaN there has no effect, even on higher derivatives.
        """
        positions = student.shape[:-1]
        rows = recordable(student).reshape(positions.numel(), student.shape[-1])
        columns, log_probs = self.classes(labels, shard).of(rows), self.log_probs
        if excluded is not None:
            excluded = excluded.reshape(-1, *[1] * (log_probs.ndim - 1))
            columns = torch.where(excluded.reshape(-1, 1), 0, columns)
            log_probs = torch.where(excluded, 0, log_probs)
        return self.values(log_probs, columns, labels).reshape(positions)


class PartialTeacher(ShortRepr, ABC):
    """A teacher that gives the probabilities of some classes of each position, instead of logits.

    A subclass defines `kept_indices`, `kept_log_probs` and `rows`. The losses accept instances of the subclass as
    `teacher`.

    Example:
        >>> from kullback.functional import PartialTeacher, TopK
        >>> issubclass(TopK, PartialTeacher), sorted(PartialTeacher.__abstractmethods__)
        (True, ['kept_indices', 'kept_log_probs', 'rows'])
    """

    remedy_of_device: ClassVar[str] = "a teacher of tensors on student.device"
    """The code that moves the teacher to the student's device. Error messages suggest this code."""

    @property
    @abstractmethod
    def kept_indices(self) -> Tensor:
        """The indices of the classes whose probabilities are known, shape (..., k)."""

    @property
    @abstractmethod
    def kept_log_probs(self) -> Tensor:
        """The log-probabilities of `kept_indices`, or other numbers that determine them. Only this tensor can have a
        gradient.
        """

    @abstractmethod
    def rows(self, kind: Divergence, classes: int, temperature: float, dtype: torch.dtype) -> TeacherRows:
        """Return the teacher's rows for a student that has `classes` classes."""

    @property
    def index_tensors(self) -> Sequence[Tensor]:
        """All tensors that contain indices of classes."""
        return (self.kept_indices,)

    @property
    def largest_index(self) -> int:
        """The largest index of a class, or -1 if the tensors are empty or have no readable values."""
        if not all(can_inspect(x) for x in self.index_tensors):
            return -1
        return max((int(x.max()) for x in self.index_tensors if x.numel()), default=-1)

    def check_settings(self, call: str, kind: Divergence, temperature: float) -> None:
        """Raise unless the teacher supports `kind` and `temperature`."""

    def result_dtype(self, student: torch.dtype) -> torch.dtype:
        """Return the dtype of the divergence: float64 if the student or the teacher is float64, else float32."""
        return torch.float64 if torch.float64 in (student, self.kept_log_probs.dtype) else torch.float32

    def flat(self, x: Tensor) -> Tensor:
        """Return `x` as a matrix that has one row for each position, and that autograd can save."""
        positions = self.kept_indices.shape[:-1]
        return recordable(x).reshape(positions.numel(), x.shape[len(positions) :].numel())

    def check_counted(self, call: str, weights: Tensor | None) -> None:
        """Raise if the teacher is unknown at a position whose weight is not 0; None means weights of 1."""

    def check_indices(self, call: str, classes: int) -> None:
        """Raise if an index of a class is not below `classes`, the student's number of classes."""
        largest = -1 if torch.compiler.is_compiling() else self.largest_index
        if largest >= classes:
            wanted = f"indices below the student's number of classes, {classes}"
            instead = "a student with the teacher's vocabulary"
            raise invalid_value(call, "teacher", wanted=wanted, got=f"an index {largest}", instead=instead)

    def checked_rows(self, positions: Positions, classes: int) -> TeacherRows:
        """Return `rows`; raise if an index is too large, or a position that counts is unknown."""
        self.check_indices(positions.call, classes)
        self.check_counted(positions.call, positions.weights)
        settings = positions.settings
        return self.rows(settings.kind, classes, settings.temperature, positions.dtype)

    def check(self, call: str, student: Tensor, settings: LossSettings) -> torch.dtype:
        """Return the dtype of the loss. Raise unless the teacher fits the student's logits and the settings."""
        self.check_student(call, student)
        self.check_settings(call, settings.kind, settings.temperature)
        return self.result_dtype(student.dtype)

    def check_student(self, call: str, student: Tensor) -> None:
        """Raise unless the student's logits and the teacher have the same positions and device."""
        check_logits(call, "student", student)
        check_positions(call, student, self.kept_indices, self.remedy_of_device)

    def loss(self, student: Tensor, positions: Positions, inplace: bool) -> Tensor:
        """Return the reduced loss, computed from the student's logits."""
        sizes = student.shape[-1], student.shape[-1]
        classes, _ = compared_classes(positions.call, ("student", "teacher"), sizes, positions.settings)
        positions.check_labels(classes)
        return positions.reduce(self._values(student[..., :classes], positions, classes, None))

    def sharded_values(
        self, student: Tensor, positions: Positions, sides: Sides, needed: tuple[bool, bool], inplace: bool
    ) -> Tensor:
        """Return the value of each position, computed from this rank's shard of the student's logits."""
        shard = Shard(sides.ranks, sides.own[0], sides.classes)
        return self._values(student, positions, sides.classes, shard)

    def _values(self, student: Tensor, positions: Positions, classes: int, shard: Shard | None) -> Tensor:
        rows = self.checked_rows(positions, classes)
        excluded = None if positions.weights is None else positions.weights == 0
        return rows.of_student(student, positions.labels, shard, excluded)


@dataclass(slots=True, eq=False)
class WeightedTerms(RowOperation):
    """The weighted sum of a divergence's terms over some classes, whose masses need not sum to 1. The gradients come
    from `kind.derivatives`. A term of weight 0 has no effect, even if it is NaN.
    """

    kind: Divergence

    def compute(self, log_p: Tensor, log_q: Tensor, weights: Tensor) -> tuple[Tensor]:
        terms = self.kind.terms(pair_of_logs(log_p, log_q))
        return (torch.where(weights == 0, 0, weights * terms).sum(-1),)

    def gradients(self, tensors: Any, kept: Any, grad: Tensor, wanted: Wanted, is_plain: bool) -> Gradients:
        log_p, log_q, weights = tensors
        counted = weights * grad.unsqueeze(-1)
        by_p, by_q = self.kind.derivatives(pair_of_logs(log_p, log_q))
        return [torch.where(counted == 0, 0, counted * by) for by in (by_p, by_q)]

    def changes(self, tensors: Any, tangents: Gradients) -> Tensor:
        log_p, log_q, weights = tensors
        derivatives = self.kind.derivatives(pair_of_logs(log_p, log_q))
        changes = [by * t for by, t in zip(derivatives, tangents, strict=False) if t is not None]
        return torch.where(weights == 0, 0, weights * torch.stack(changes).sum(0)).sum(-1)


def partial_divergence(
    call: str,
    wanted: type[PartialTeacher],
    kind: Divergence | str,
    teacher: PartialTeacher,
    student: Tensor,
    temperature: float,
    dtype: torch.dtype | None,
) -> Tensor:
    """Return the divergence of each position; raise unless the teacher is a `wanted`."""
    kind = check_kind(call, kind)
    check_result_dtype(call, dtype)
    temperature = ARGUMENTS.check(call, temperature=temperature)["temperature"]
    if not isinstance(teacher, wanted):
        name, got = wanted.__name__, type(teacher).__name__
        instead = f"teacher={name}({'indices, log_probs' if name == 'TopK' else '...'})"
        raise invalid_type(call, "teacher", wanted=f"a {name}", got=got, instead=instead)
    teacher.check_student(call, student)
    teacher.check_settings(call, kind, temperature)
    teacher.check_indices(call, student.shape[-1])
    teacher.check_counted(call, None)
    dtype = teacher.result_dtype(student.dtype) if dtype is None else dtype
    return teacher.rows(kind, student.shape[-1], temperature, dtype).of_student(student)


def check_logits(call: str, name: str, x: object, *, other: object = None) -> None:
    """Raise unless `x` is a dense tensor of logits. The remedy depends on `other`, the other side's logits."""
    if isinstance(x, Tensor):
        check_dense(call, name, x)
        if x.is_floating_point() and x.ndim > 0:
            return
    instead = f"{name}=model(inputs).logits"
    if hasattr(x, "logits"):
        instead = f"{name}={name}.logits"
    elif isinstance(other, Tensor) and isinstance(x, list | tuple) and all(isinstance(e, Tensor) for e in x):
        instead = _remedy_for_parts(call, name, list(cast("list[Tensor]", x)), other.shape[:-1]) or instead
    elif (made := tensor_remedy(name, x, floating=True)) is not None:
        instead = f"{name}={made}"
    wanted = "a floating-point tensor of logits, shape (..., classes)"
    raise invalid_type(call, name, wanted=wanted, got=described(x), instead=instead)


def _remedy_for_parts(call: str, name: str, parts: list[Tensor], positions: torch.Size) -> str | None:
    """Return the remedy for a list of tensors: join them, or average their losses; None if neither is possible."""
    to_float = "" if all(part.is_floating_point() for part in parts) else ".float()"
    for join in ("stack", "cat") if positions else ():
        with suppress(RuntimeError):
            if getattr(torch, join)([part.detach() for part in parts]).shape[:-1] == positions:
                return f"{name}=torch.{join}(tuple({name})){to_float}"
    if parts and all(part.shape[:-1] == positions for part in parts):
        other = "student" if name == "teacher" else "teacher"
        return f"sum({call}({other}={other}, {name}=each{to_float}) for each in {name}) / len({name})"
    return None


def compared_classes(
    call: str, names: tuple[str, str], sizes: tuple[int, int], settings: LossSettings
) -> tuple[int, int]:
    """Return the numbers of leading classes of student and teacher to compare; raise if `sizes` contradict the
    settings. `names` are the arguments with the classes.
    """
    if 0 in sizes:
        check_any_class(call, names[sizes.index(0)], 0)
    least = min(sizes)
    if settings.classes is not None:
        least = check_classes(call, settings.classes, least) or least
    elif sizes[0] == sizes[1] or settings.vocabulary == "mask":
        return sizes
    elif settings.vocabulary == "error":
        wanted = f"as many classes as {'the teacher' if names[1] == 'teacher' else names[1]}, {sizes[1]}"
        instead = "vocabulary='truncate' if the first classes of both mean the same"
        raise invalid_value(call, names[0], wanted=wanted, got=f"{sizes[0]}", instead=instead)
    return least, least


def check_any_class(call: str, name: str, classes: int) -> None:
    """Raise if `classes`, the number of classes of the argument `name`, is 0."""
    if classes == 0:
        instead = (
            f"{name}= with the classes in its {'first' if name.endswith('weight') else 'last'} dimension"
        )
        raise invalid_value(call, name, wanted="one class or more", got="none", instead=instead)


def check_positions(
    call: str, student: Tensor, teacher: Tensor, move: str, *, last: str = "classes", rows: str = "logits"
) -> None:
    """Raise unless both have one device and the same positions, all dimensions but the last. `move` is the remedy for
    devices; `last` and `rows` are words for the student's last dimension and its rows.
    """
    if student.shape[:-1] != teacher.shape[:-1]:
        wanted = f"the teacher's positions, shape {tuple(teacher.shape[:-1])}"
        got = f"shape {tuple(student.shape[:-1])} without the {last}"
        instead = f"the {rows} of the same positions of both, neither shifted nor cut"
        raise invalid_value(call, "student", wanted=wanted, got=got, instead=instead)
    if student.device != teacher.device:
        wanted, got = f"a tensor on {student.device}, where the student is", f"one on {teacher.device}"
        raise invalid_value(call, "teacher", wanted=wanted, got=got, instead=move)
