"""The mixture of several teachers as one teacher of a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kullback.common.extra_arguments import by_name
from kullback.common.inputs import (
    all_recordable,
    can_inspect_all,
    first_of,
    is_other_storage,
    number_from,
    recordable,
)
from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.generators import Divergence
from kullback.kernels.selected_rows import SelectedClasses
from kullback.losses.positions import Positions
from kullback.losses.settings import LossSettings
from kullback.losses.teachers import LogitTeacher, PartialTeacher, TeacherRows, check_logits, compared_classes
from kullback.losses.top_k import ScoredRows, TopK
from kullback.partial_rows import places_of

_CALL = "Mixture"


@by_name("Mixture([teacher, other_teacher], weights=[0.7, 0.3])")
@dataclass(frozen=True, eq=False, repr=False)
class Mixture(PartialTeacher):
    r"""A teacher whose probabilities are the weighted means of several teachers' probabilities.

    .. math:: P = \sum_m w_m P_m, \quad P_m = \operatorname{softmax}(t_m / T) \text{ for logits } t_m

    The argument ``classes`` of a loss, and ``vocabulary="truncate"``, leave classes out of each teacher's softmax.

    The divergence from the mixture is at most the weighted mean of the divergences from the teachers. For KL, both have
    the same gradient for the student. For other kinds, the gradients differ, too.

    If every teacher gives logits, all probabilities of the mixture are known. `TopK` and `Scored` have some classes.
    All teachers then need the same `tail`:

    - ``"bucket"`` and ``"zero"``: a class is known if every teacher lists it. Logits list all classes. All other
      classes count as one, or are left out. The loss never exceeds the divergence from the whole mixture. Teachers that
      score the same classes (`Scored`) keep all of these classes.
    - ``"renormalize"``: each teacher gives its unlisted classes probability 0, so that every class is known that some
      teacher lists. Logits and such lists do not mix.

    Arguments:
        teachers: logits of shape (..., classes), `TopK` or `Scored`, all with the same positions and on one device.
            All logits have the same number of classes.
        weights: w, numbers of at least 0 that sum to 1; equal weights by default. A teacher of weight 0 is left out.

    Raises:
        ArgumentTypeError: a teacher has no known form, such as a `SampledTail`, or a weight is not a number.
        ArgumentValueError: positions, devices, numbers of classes or tails differ; the weights are invalid; logits are
            mixed with ``"renormalize"``. The losses raise this error if the lists of a position that counts have no
            class in common.

    Gradient:
        to the logits and log-probabilities of every teacher that requires a gradient.

    Example:
        >>> import torch
        >>> from kullback.functional import Mixture, Scored, distillation_loss
        >>> code, text = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[0.0, 1.0, 0.0]])
        >>> student = torch.zeros(1, 3)
        >>> distillation_loss(student=student, teacher=Mixture([code, text], weights=[0.75, 0.25]))
        tensor(0.2933)
        >>> ids = torch.tensor([[0, 1]])
        >>> scored = Scored(ids, code.log_softmax(-1).gather(-1, ids))
        >>> distillation_loss(student=student, teacher=Mixture([scored, text], weights=[0.75, 0.25]))
        tensor(0.2933)

    References:
        Efficient Knowledge Distillation from an Ensemble of Teachers (Fukuda and others, 2017)
    """

    teachers: Sequence[Tensor | TopK]
    weights: Sequence[float] | None = None
    _disjoint: Tensor | None = field(init=False, repr=False, default=None)
    """A mask of the positions whose lists have no class in common, or None if no position has such lists."""

    remedy_of_device: ClassVar[str] = "a Mixture of teachers on student.device"

    def __post_init__(self) -> None:
        pairs = [pair for pair in zip(*_checked(self.teachers, self.weights), strict=True) if pair[1] > 0]
        object.__setattr__(self, "teachers", tuple(teacher for teacher, _ in pairs))
        object.__setattr__(self, "weights", tuple(weight for _, weight in pairs))
        lists = [teacher.indices for teacher in self._partial]
        if len(lists) > 1 and can_inspect_all([*lists, *(teacher.log_probs for teacher in self._partial)]):
            is_listed = [(teacher.flat_rows()[0] >= 0).any(-1) for teacher in self._partial]
            is_any = torch.stack(is_listed).any(0).reshape(self._positions)
            disjoint = is_any & (self.kept_indices < 0).all(-1)
            if bool(disjoint.any()):
                object.__setattr__(self, "_disjoint", disjoint)

    @property
    def _partial(self) -> list[TopK]:
        """The teachers with only some classes."""
        return [teacher for teacher in self.teachers if isinstance(teacher, TopK)]

    @property
    def _logits(self) -> list[Tensor]:
        """The logits of the other teachers."""
        return [teacher for teacher in self.teachers if isinstance(teacher, Tensor)]

    @property
    def kept_indices(self) -> Tensor:
        """The classes whose probability in the mixture is known, -1 for padding, shape (..., k)."""
        if self._partial:
            indices = self._known([teacher.flat_rows()[0] for teacher in self._partial])
            return indices.reshape(*self._positions, indices.shape[-1])
        first = self._logits[0]
        return torch.arange(first.shape[-1], device=first.device).expand(first.shape)

    @property
    def kept_log_probs(self) -> Tensor:
        """The mixture's log-probabilities of `kept_indices`, at temperature 1."""
        log_probs = self._mixed(1.0)[1] if self._partial else _mixed_logits(self, 1.0)
        return log_probs.reshape(*self._positions, log_probs.shape[-1])

    @property
    def _positions(self) -> torch.Size:
        first = self.teachers[0]
        return (first if isinstance(first, Tensor) else first.indices).shape[:-1]

    @property
    def largest_index(self) -> int:
        return max([teacher.largest_index for teacher in self._partial], default=self._classes - 1)

    @property
    def _classes(self) -> int:
        return self._logits[0].shape[-1] if self._logits else 0

    def check_settings(self, call: str, kind: Divergence, temperature: float) -> None:
        for teacher in self._partial:
            teacher.check_settings(call, kind, temperature)

    def check_counted(self, call: str, weights: Tensor | None) -> None:
        for teacher in self._partial:
            teacher.check_counted(call, weights)
        if self._disjoint is None:
            return
        wrong = self._disjoint if weights is None else self._disjoint & (weights != 0)
        if bool(wrong.any()):
            wanted = "at each position that counts, a class that all teachers of the Mixture list"
            got = f"lists without a common class at {first_of(wrong)} positions"
            instead = "Scored teachers of the same ids, or mask= without these positions"
            raise invalid_value(call, "teacher", wanted=wanted, got=got, instead=instead)

    def result_dtype(self, student: torch.dtype) -> torch.dtype:
        tensors = [*self._logits, *(teacher.log_probs for teacher in self._partial)]
        return torch.float64 if torch.float64 in (student, *(x.dtype for x in tensors)) else torch.float32

    def check_student(self, call: str, student: Tensor) -> None:
        self._partial[0].check_student(call, student)

    def check(self, call: str, student: Tensor, settings: LossSettings) -> torch.dtype:
        if self._partial:
            return super().check(call, student, settings)
        LogitTeacher(self._logits[0]).check(call, student, settings)
        return self.result_dtype(student.dtype)

    def loss(self, student: Tensor, positions: Positions, inplace: bool) -> Tensor:
        if self._partial:
            return super().loss(student, positions, inplace)
        settings, sizes = positions.settings, (student.shape[-1], self._classes)
        _, classes = compared_classes(positions.call, ("student", "teacher"), sizes, settings)
        temperature = float(settings.temperature)
        mixed = _mixed_logits(self._compared(positions, classes), temperature)
        mixed = mixed if temperature == 1 else mixed * temperature
        return LogitTeacher(mixed).loss(student, positions, inplace)

    def checked_rows(self, positions: Positions, classes: int) -> TeacherRows:
        mixture = self._compared(positions, positions.settings.classes)
        return PartialTeacher.checked_rows(mixture, positions, classes)

    def _compared(self, positions: Positions, classes: int | None) -> Mixture:
        """Return the mixture of the first `classes` logits of each teacher; None means all. Where a position does not
        count, zeros replace logits with a gradient, so that NaN does not reach the gradient.
        """
        excluded = None
        if positions.weights is not None and any(x.requires_grad for x in self._logits):
            excluded = (positions.weights == 0).unsqueeze(-1)
        if excluded is None and classes in (None, self._classes):
            return self
        logits = (x[..., :classes] if isinstance(x, Tensor) else x for x in self.teachers)
        if excluded is not None:
            logits = (torch.where(excluded, 0, x) if isinstance(x, Tensor) else x for x in logits)
        return Mixture(list(logits), self.weights)

    def rows(self, kind: Divergence, classes: int, temperature: float, dtype: torch.dtype) -> ScoredRows:
        partial = self._partial
        tail = partial[0].tail if partial else "bucket"
        if partial:
            indices, log_probs = self._mixed(temperature)
        else:
            if classes != self._classes:  # `loss`, which supports `vocabulary`, does not call this method
                wanted, got = f"logits of the student's {classes} classes", f"{self._classes} classes"
                instead = "teachers of the student's vocabulary"
                raise invalid_value(_CALL, "teachers", wanted=wanted, got=got, instead=instead)
            indices, log_probs = (self.flat(x) for x in (self.kept_indices, _mixed_logits(self, temperature)))
        log_probs = log_probs * temperature  # `ScoredRows` divides by the temperature
        dtypes = {teacher.log_probs.dtype for teacher in partial}
        dtypes |= {torch.promote_types(x.dtype, torch.float32) for x in self._logits}  # of the normalizers
        eps = max(torch.finfo(dtype).eps for dtype in dtypes)
        return ScoredRows(kind, indices, log_probs, temperature, dtype, tail, eps, classes)

    def _known(self, lists: list[Tensor]) -> Tensor:
        """Return the known classes of the mixture, -1 for padding, from the teachers' lists, shape (rows, k)."""
        if self._partial[0].tail == "renormalize":
            return _each_once(torch.cat(lists, -1))
        indices = lists[0]
        for listed in lists[1:]:
            indices = torch.where(places_of(indices, listed)[1], indices, -1)
        return indices

    def _mixed(self, temperature: float) -> tuple[Tensor, Tensor]:
        """Return the known classes, -1 for padding, and the mixture's log-probabilities, both of shape (rows, k)."""
        lists = [_list_of(teacher, temperature) for teacher in self._partial]
        indices, remaining = self._known([listed for listed, _ in lists]), iter(lists)
        mixed = None
        for teacher, weight in zip(self.teachers, cast("Any", self.weights), strict=True):
            if isinstance(teacher, TopK):
                listed, log_probs = next(remaining)
                place, is_listed = places_of(indices, listed)
                part = torch.where(is_listed & (indices >= 0), log_probs.gather(-1, place), -torch.inf)
            else:
                logits = recordable(teacher).reshape(len(indices), teacher.shape[-1])
                columns = SelectedClasses(indices, temperature, leaves_out=False).of(logits)
                part = columns[:, :-1] - columns[:, -1:]
            part = part + math.log(weight)
            mixed = part if mixed is None else _log_sum(mixed, part)
        return indices, cast("Tensor", mixed)


def _mixed_logits(mixture: Mixture, temperature: float) -> Tensor:
    """Return the log-probabilities of all classes in a mixture of logits."""
    mixed = None
    for logits, weight in zip(all_recordable(mixture.teachers), cast("Any", mixture.weights), strict=True):
        dtype = torch.promote_types(logits.dtype, torch.float32)
        scaled = logits if temperature == 1 else logits.to(dtype) / temperature
        part = scaled.log_softmax(-1, dtype=dtype) + math.log(weight)
        mixed = part if mixed is None else _log_sum(mixed, part)
    return cast("Tensor", mixed)


def _list_of(teacher: TopK, temperature: float) -> tuple[Tensor, Tensor]:
    """Return a teacher's classes, -1 for padding, and their log-probabilities, shape (rows, k)."""
    indices, log_probs = teacher.flat_rows()
    if teacher.tail == "renormalize":
        log_probs = (log_probs / temperature).log_softmax(-1)
    return indices, log_probs


def _each_once(indices: Tensor) -> Tensor:
    """Return the sorted classes of each row, with -1 in place of repeated classes."""
    ordered = indices.sort(-1).values
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.where(repeated, -1, ordered)


def _log_sum(a: Tensor, b: Tensor) -> Tensor:
    """Return log(e^a + e^b), whose derivatives are 0 where both terms are -inf."""
    is_forward = forward_ad._current_level >= 0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if not (is_forward or (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad))):
        return torch.logaddexp(a, b)
    nothing = (a == -torch.inf) & (b == -torch.inf)
    # `logaddexp` has second derivatives of NaN where one term is -inf.
    total = torch.stack([torch.where(nothing, 0, x) for x in (a, b)]).logsumexp(0)
    return torch.where(nothing, -torch.inf, total)


def _checked(teachers: object, weights: object) -> tuple[list[Tensor | TopK], list[float]]:
    """Return the teachers and their weights as lists; raise if they are invalid."""
    instead = "Mixture([teacher, other_teacher], weights=[0.5, 0.5])"
    if not isinstance(teachers, Sequence) or isinstance(teachers, str) or not teachers:
        wanted, got = "a list of one teacher or more", safe_repr(teachers)
        raise invalid_type(_CALL, "teachers", wanted=wanted, got=got, instead=instead)
    sides = list(cast("Sequence[Any]", teachers))
    for place, teacher in enumerate(sides):
        if isinstance(teacher, TopK):
            continue
        if not isinstance(teacher, Tensor) or is_other_storage(teacher):
            wanted = "plain tensors of logits, TopK or Scored"
            got = f"a {type(teacher).__name__} at index {place}"
            instead = "teacher.top of a SampledTail, or Scored(indices, log_probs)"
            raise invalid_type(_CALL, "teachers", wanted=wanted, got=got, instead=instead)
        check_logits(_CALL, "teachers", teacher)
    _check_together(sides)
    return sides, _checked_weights(weights, len(sides))


def _check_together(teachers: list[Tensor | TopK]) -> None:
    """Raise unless the teachers have the same positions, device, tail and number of classes."""
    ids = [teacher if isinstance(teacher, Tensor) else teacher.indices for teacher in teachers]
    partial = [teacher for teacher in teachers if isinstance(teacher, TopK)]
    sizes = {teacher.shape[-1] for teacher in teachers if isinstance(teacher, Tensor)}
    tails = {teacher.tail for teacher in partial}
    largest = max([teacher.largest_index for teacher in partial], default=-1)
    for wrong, wanted, got, instead in (
        (
            len({x.shape[:-1] for x in ids}) > 1 or len({x.device for x in ids}) > 1,
            "teachers of the same positions on one device",
            " and ".join(f"shape {tuple(x.shape[:-1])} on {x.device}" for x in ids),
            "teachers of one batch, each .to(student.device)",
        ),
        (
            len(sizes) > 1,
            "logits of the same number of classes",
            " and ".join(map(str, sorted(sizes))),
            "logits[..., :classes] if the first classes of all mean the same",
        ),
        (
            len(tails) > 1,
            "one tail for all lists",
            " and ".join(map(repr, sorted(tails))),
            "TopK(indices, log_probs, tail='bucket')",
        ),
        (
            "renormalize" in tails and len(sizes) > 0,
            "no logits next to tail='renormalize', because such a mixture has neither all classes nor a list",
            f"logits of {max(sizes, default=0)} classes",
            "TopK(indices, log_probs, tail='bucket')",
        ),
        (
            len(sizes) > 0 and largest >= min(sizes, default=0),
            f"indices below the number of classes of the logits, {min(sizes, default=0)}",
            f"an index {largest}",
            "teachers of one vocabulary",
        ),
    ):
        if wrong:
            raise invalid_value(_CALL, "teachers", wanted=wanted, got=got, instead=instead)


def _checked_weights(weights: object, count: int) -> list[float]:
    if weights is None:
        return [1 / count] * count
    values = weights.tolist() if isinstance(weights, Tensor) and not weights.requires_grad else weights
    if not isinstance(values, Sequence) or isinstance(values, str):
        wanted, instead = "a list of numbers, which get no gradient", "weights=[0.5, 0.5]"
        raise invalid_type(_CALL, "weights", wanted=wanted, got=safe_repr(weights), instead=instead)
    numbers = [number_from(x) for x in cast("Sequence[Any]", values)]
    if len(numbers) != count or not all(0 <= x <= 1 for x in numbers) or abs(sum(numbers) - 1) > 1e-6:
        wanted = f"{count} numbers of at least 0 that sum to 1, one for each teacher"
        got = f"{safe_repr(weights)}, with the sum {sum(numbers):g}"
        instead = "weights=[w / sum(weights) for w in weights]"
        raise invalid_value(_CALL, "weights", wanted=wanted, got=got, instead=instead)
    return numbers
