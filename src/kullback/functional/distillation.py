"""The divergence of a student's predictions from a teacher's, as a training loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from kullback.errors import invalid_value
from kullback.functional.partial_teacher import PartialTeacher
from kullback.functional.positions import (
    LossSettings,
    Vocabulary,
    check_any_class,
    check_classes,
    check_labels,
    check_logits,
    divided,
    hard_labels,
    position_weights,
    settings_of,
)
from kullback.functional.sharded import agreed, attempt, local_logits, requires_gradient
from kullback.generators import KL, Divergence
from kullback.inputs import are_logits, check_flag, recordable
from kullback.kernels import RowDivergence, logit_divergence, weighted_total
from kullback.kernels.labels import HardLabels
from kullback.kernels.overlap import is_expanded, may_overlap, may_overlap_itself
from kullback.kernels.row_operation import RowValues
from kullback.parallel.ranks import Ranks, pattern
from kullback.parallel.rows import ShardedRows
from kullback.parallel.selected import Shard
from kullback.parallel.shards import Sides, has_dtensor
from kullback.reduction import Reduction
from kullback.representations import can_inspect

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["distillation_loss"]

_CALL = "distillation_loss"
_KL = KL()
_Counted: TypeAlias = tuple[
    Tensor | None, Tensor | None, Tensor | None, int
]  # mask, weight, labels, ignore_index


def distillation_loss(
    *,
    student: Tensor,
    teacher: Tensor | PartialTeacher,
    kind: Divergence | str = _KL,
    temperature: float = 1.0,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    labels: Tensor | None = None,
    label_weight: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    temperature_squared: bool = False,
    normalizer: Tensor | float | None = None,
    vocabulary: Vocabulary = "error",
    inplace_backward: bool = False,
    group: ProcessGroup | None = None,
    classes: int | None = None,
) -> Tensor:
    r"""Compute how far a student's next-class distributions are from a teacher's, both given as logits.

    .. math:: L = \frac{\sum_n w_n\, D(P_n \| Q_n)}{\sum_n w_n}, \quad
        P_n = \operatorname{softmax}(t_n / T),\; Q_n = \operatorname{softmax}(s_n / T)

    P is the teacher and Q the student, so ``kind=KL()`` is KL(teacher || student). A position that `mask` or `labels`
    excludes has no effect, even if its logits are NaN.

    Arguments:
        student: logits s, shape (..., classes), floating point.
        teacher: logits t, the same leading shape; the dtype may differ. Or a `TopK`, which has only the most probable
            classes of each position, or a `SampledTail`, which also has draws from the other classes. D is then
            computed by `top_k_divergence` or `sampled_tail_divergence`, and `vocabulary` is ignored. Or another
            `PartialTeacher`, which computes D itself.
        kind: the divergence D, or its name such as ``"js:0.5"`` (`kullback.generators.parse`).
        temperature: T, which divides both.
        mask: which positions count, boolean, the leading shape. A mask that is False everywhere raises a warning, on
            the CPU only.
        weight: w, a non-negative number for each position, the leading shape.
        labels: true classes, the leading shape. A position whose label is `ignore_index` does not count.
        label_weight: :math:`\lambda` from 0 to 1, the share of the cross-entropy with `labels`. The value of a position
            is then :math:`(1 - \lambda)\, D - \lambda \log q_y`, where y is its label and q are the student's
            probabilities at temperature 1, whatever T is. `temperature_squared` multiplies only D.
        ignore_index: the label of positions that do not count.
        reduction: ``"none"`` returns w D for each position, 0 where it does not count. ``"sum"`` returns the sum,
            ``"mean"`` the weighted mean over counted positions, ``"batchmean"`` the sum divided by
            ``student.shape[0]``.
        temperature_squared: multiply D by T squared, which keeps the size of the gradient.
        normalizer: divide the sum by this number instead. With the number of counted positions of all micro-batches of
            a step, the accumulated gradients equal the gradient of the whole batch.
        vocabulary: how to handle different numbers of classes: raise an error (``"error"``), keep only the first
            classes, which both have, and normalize again (``"truncate"``), or give no mass to the classes that a side
            lacks (``"mask"``). With ``"mask"``, KL is +inf wherever the teacher has more classes than the student.
        inplace_backward: let the backward pass overwrite `student` with its gradient, which saves memory. Use it only
            for logits that are not read afterwards, are not a parameter or a view of one, and share no memory with
            `teacher`. Not available with ``reduction="none"``.
        group: the process group over which the classes are sharded. `student` and `teacher` hold this rank's classes;
            the shards of all ranks, joined in rank order, are the logits. All other arguments are equal on all ranks.
        classes: the number of classes without padding. Logits of later classes count as -inf on both sides. With
            several shards, the number for all shards together.

    Returns:
        the loss, computed in float32 or better: a scalar, or the leading shape for ``"none"``. It is float64 if an
        argument is, and 0 if no position counts.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: shapes, `reduction`, `temperature` or `vocabulary` do not fit, or a label is not a class
            (checked on the CPU only). With `group`, every rank raises it if the arguments of one rank are invalid, or
            if the arguments of two ranks disagree.

    Gradient:
        to the student, and to the teacher if it requires one; as stated by `kind`. It is 0 at positions that do not
        count. The cross-entropy has gradient q - 1 at the label and q elsewhere, even if the label's logit is -inf and
        the loss +inf. The CPU computes it in the same pass over the logits; a GPU reads the logits again.

    Sharded classes:
        With `group`, a shard may have any size, even 0. Every rank returns the same loss. The gradient of a shard is
        the gradient of this single loss, not multiplied by the number of ranks. A DTensor with ``Shard(-1)`` in one
        dimension of its mesh and ``Replicate()`` in the others needs no `group`. A plain tensor next to a DTensor is
        taken as replicated on every rank, and the result is a plain tensor.

        The forward pass has three collectives. First, the ranks compare a few integers that describe their arguments;
        ranks that disagree raise the same error instead of waiting for each other. Then an all-gather of 4 numbers a
        row exchanges the largest logit and the sum of exponentials of both sides. Finally, an all-reduce sums the terms
        and the sums that the gradient needs: 1, 4 or 7 numbers a row if no side, one or both require a gradient. For
        `Renyi` it is an all-gather of at most 12 numbers. A `TopK` or `SampledTail` is whole on every rank: the two are
        then an all-reduce of the logits of its classes and an all-gather of 2 numbers. `label_weight` adds 3 numbers a
        row to the same two collectives. The backward pass communicates nothing.

        Logits are sent only if the teacher's shards have other boundaries than the student's. The ranks then exchange
        the teacher's missing logits by an all-to-all, and by another one backward if the teacher requires a gradient.
        The arithmetic is float64. CPU logits in float32 or less use the native kernels, except for `Renyi` and
        `TotalVariation`; all others use plain torch. Only first derivatives exist, outside `torch.compile` and
        `torch.func`.

    Example:
        >>> import torch
        >>> from kullback.functional import distillation_loss
        >>> teacher = torch.tensor([[2.0, 0.0, -1.0], [0.0, 0.0, 0.0]])
        >>> student = torch.tensor([[1.0, 0.5, -1.0], [9.0, 9.0, 0.0]])
        >>> distillation_loss(student=student, teacher=teacher, mask=torch.tensor([True, False]))
        tensor(0.1718)

    References:
        Distilling the Knowledge in a Neural Network (Hinton, Vinyals and Dean, 2015)
    """
    unchecked = LossSettings(
        kind, temperature, label_weight, reduction, temperature_squared, normalizer, vocabulary, classes
    )
    counted = mask, weight, labels, ignore_index
    if group is not None or has_dtensor((student, teacher)):
        student, teacher, ranks = local_logits(_CALL, student, teacher, group)
        if ranks.size > 1:
            return _sharded_loss(ranks, student, teacher, counted, unchecked, inplace_backward)
    settings = settings_of(_CALL, unchecked)
    word, scale, classes = settings.reduction, settings.scale, settings.classes
    if isinstance(teacher, PartialTeacher):
        return _loss_of_partial_teacher(student, teacher, counted, settings, inplace_backward)
    _check_logits(student, teacher)
    if inplace_backward is not False:
        _check_inplace(inplace_backward, student, teacher, word)
    dtype = torch.float64 if torch.float64 in (student.dtype, teacher.dtype) else torch.float32
    positions, device = student.shape[:-1], student.device
    weights = position_weights(_CALL, positions, *counted, device, dtype)
    if classes is not None:
        teacher, student = _without_padding(teacher, classes), _without_padding(student, classes)
    check_any_class(_CALL, "student", student.shape[-1])
    check_any_class(_CALL, "teacher", teacher.shape[-1])
    hard = None
    if label_weight:
        hard = hard_labels(_CALL, labels, label_weight, weights, scale)
        n_classes = (
            min(teacher.shape[-1], student.shape[-1]) if vocabulary == "truncate" else student.shape[-1]
        )
        check_labels(_CALL, hard, positions, n_classes)
        scale = 1.0
    if teacher.shape[-1] != student.shape[-1]:
        teacher, student = _same_vocabulary(teacher, student, vocabulary)
    rows = RowDivergence(settings.kind, temperature, dtype, hard)
    if word == "none":
        values = logit_divergence(rows, recordable(teacher), recordable(student)) * scale
        return _reduce(values, weights, word, normalizer)
    weights, factor = divided(_CALL, weights, normalizer, word, positions, device, dtype)
    if student.ndim != 2:  # reshape costs time as a no-op too
        teacher, student = _as_matrix(teacher), _as_matrix(student)
    return weighted_total(
        rows,
        teacher,
        student,
        None if weights is None else weights.reshape(-1),
        scale=scale * factor,
        inplace=inplace_backward,
    )


def _loss_of_partial_teacher(
    student: Tensor, teacher: PartialTeacher, counted: _Counted, settings: LossSettings, inplace: bool
) -> Tensor:
    """Compute the loss from a teacher that has only some classes."""
    if inplace is not False:
        _check_inplace(inplace, student, teacher, settings.reduction)
    student = _without_padding(student, settings.classes)
    positions, classes = student.shape[:-1], student.shape[-1]
    teacher.check_student(_CALL, student)
    teacher.check_settings(_CALL, settings.kind, settings.temperature)
    teacher.check_indices(_CALL, classes)
    dtype = teacher.result_dtype(student.dtype)
    weights = position_weights(_CALL, positions, *counted, student.device, dtype)
    hard = hard_labels(_CALL, counted[2], settings.label_weight, weights, settings.scale)
    check_any_class(_CALL, "student", classes)
    check_labels(_CALL, hard, positions, classes)
    values = teacher.rows(settings.kind, classes, settings.temperature, dtype).of_student(student, hard)
    values = values * settings.scale if hard is None else values
    return _reduce(values, weights, settings.reduction, settings.normalizer)


def _sharded_loss(
    ranks: Ranks,
    student: Tensor,
    teacher: Tensor | PartialTeacher,
    counted: _Counted,
    unchecked: LossSettings,
    inplace: bool,
) -> Tensor:
    """Compute the loss from this rank's logits and the shards of the other ranks."""
    is_whole = not isinstance(teacher, PartialTeacher)

    def check() -> tuple[LossSettings, Tensor | None, torch.dtype, HardLabels | None]:
        settings = settings_of(_CALL, unchecked)
        if isinstance(teacher, PartialTeacher):
            teacher.check_student(_CALL, student)
            teacher.check_settings(_CALL, settings.kind, settings.temperature)
            dtype = teacher.result_dtype(student.dtype)
        else:
            _check_logits(student, teacher)
            dtype = torch.float64 if torch.float64 in (student.dtype, teacher.dtype) else torch.float32
        if inplace is not False:
            _check_inplace(inplace, student, teacher, settings.reduction)
        weights = position_weights(_CALL, student.shape[:-1], *counted, student.device, dtype)
        hard = hard_labels(_CALL, counted[2], settings.label_weight, weights, settings.scale)
        return settings, weights, dtype, hard

    checked, problem = attempt(check)
    settings, weights, dtype, hard = checked or (unchecked, None, torch.float32, None)
    same = settings.by_name()
    same["labels classes at the positions that count"] = pattern(None if hard is None else hard.classes)
    numbers = agreed(
        ranks,
        tensors={"student": student, "teacher": teacher},
        weights=weights,
        settings=same,
        own={
            "student": 0 if problem else student.shape[-1],
            "teacher": 0 if problem or not is_whole else teacher.shape[-1],
            "to student": 0 if problem else requires_gradient(student),
            "to teacher": 0 if problem or not is_whole else requires_gradient(teacher),
        },
        problem=problem,
    )
    sides = Sides.between(
        ranks,
        numbers["student"],
        numbers["teacher"] if is_whole else None,
        classes=settings.classes,
        vocabulary=settings.vocabulary,
    )
    check_any_class(_CALL, "student", sides.student[-1][1])
    check_labels(_CALL, hard, student.shape[:-1], sides.student[-1][1])
    student = sides.padded(sides.student_part(recordable(student)))
    shard = Shard(ranks, sides.own[0], sides.classes)
    if isinstance(teacher, PartialTeacher):
        teacher.check_indices(_CALL, sides.classes)
        rows = teacher.rows(settings.kind, sides.classes, settings.temperature, dtype)
        values = rows.of_student(student, hard, shard)
    else:
        teacher = sides.padded(sides.teacher_part(recordable(teacher)))
        needed = any(numbers["to teacher"]), any(numbers["to student"])
        temperature = float(settings.temperature)
        rows = ShardedRows(
            ranks, settings.kind, temperature, sides.classes, needed, shard.start, dtype, hard, inplace
        )
        values = RowValues.apply(rows, _as_matrix(teacher), _as_matrix(student)).reshape(student.shape[:-1])
    values = values * settings.scale if hard is None else values
    return _reduce(values, weights, settings.reduction, settings.normalizer)


def _without_padding(logits: Tensor, classes: int | None) -> Tensor:
    if classes is None:
        return logits
    return logits[..., : check_classes(_CALL, classes, logits.shape[-1])]


def _reduce(
    values: Tensor, weights: Tensor | None, word: Reduction, normalizer: Tensor | float | None
) -> Tensor:
    """Reduce the values of the positions. Positions of weight 0 have no effect, whatever their value."""
    factor = 1.0
    if word != "none":
        weights, factor = divided(_CALL, weights, normalizer, word, values.shape, values.device, values.dtype)
    if weights is not None:
        values = torch.where(weights == 0, 0, values) * weights.to(values.dtype)
    return values if word == "none" else (values * factor).sum()


def _as_matrix(logits: Tensor) -> Tensor:
    """Return the logits as a matrix with one row for each position."""
    return logits.reshape(logits.shape[:-1].numel(), logits.shape[-1])


def _check_inplace(inplace: bool, student: Tensor, teacher: Tensor | PartialTeacher, word: Reduction) -> None:
    """Raise if `inplace` is set and the gradient must not overwrite the student's logits."""
    check_flag(_CALL, "inplace_backward", inplace)
    is_top_k = isinstance(teacher, PartialTeacher)
    # Tensors of other types, such as torch's fake ones, may have no addresses.
    has_memory = all(
        type(x) is Tensor and can_inspect(x) for x in (student, teacher) if isinstance(x, Tensor)
    )
    shares = has_memory and not is_top_k and may_overlap(student, teacher)
    # An expanded tensor is not overwritten.
    overlaps = has_memory and may_overlap_itself(student) and not is_expanded(student)
    for refused, wanted, got in (
        (is_top_k, "a teacher of all classes", f"a {type(teacher).__name__}"),
        (
            word == "none",
            "a reduction, because the gradient of each position is unknown until the backward pass",
            "reduction='none'",
        ),
        (
            student.requires_grad and student.is_leaf,
            "a student that is not a leaf, because its values are overwritten",
            "a leaf",
        ),
        (
            student._base is not None and student._base.is_leaf,  # noqa: SLF001
            "a student that is not a view of a leaf, because its values are overwritten",
            "a view of a leaf",
        ),
        (shares, "a student that shares no memory with the teacher", "two that overlap"),
        (overlaps, "a student whose rows do not overlap in memory", f"strides {student.stride()}"),
        (
            not is_top_k and teacher.requires_grad,
            "a teacher that requires no gradient",
            "one that does",
        ),
    ):
        if refused:
            raise invalid_value(
                _CALL, "inplace_backward", wanted=wanted, got=got, instead="inplace_backward=False"
            )


def _same_vocabulary(teacher: Tensor, student: Tensor, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    classes = teacher.shape[-1], student.shape[-1]
    if vocabulary == "error":
        raise invalid_value(
            _CALL,
            "student",
            wanted=f"as many classes as the teacher, {classes[0]}",
            got=f"{classes[1]}",
            instead="vocabulary='truncate' if the first classes of both mean the same",
        )
    if vocabulary == "truncate":
        shared = min(classes)
        return teacher[..., :shared], student[..., :shared]
    most = max(classes)
    pad = torch.nn.functional.pad
    return tuple(  # pyright: ignore[reportReturnType]
        pad(x, (0, most - x.shape[-1]), value=-math.inf) for x in (teacher, student)
    )


def _check_logits(student: Tensor, teacher: Tensor) -> None:
    if not are_logits(student, teacher):
        check_logits(_CALL, "student", student, beside=teacher)
        check_logits(_CALL, "teacher", teacher, beside=student)
    if student.shape[:-1] != teacher.shape[:-1]:
        raise invalid_value(
            _CALL,
            "student",
            wanted=f"the teacher's positions, shape {tuple(teacher.shape[:-1])}",
            got=f"shape {tuple(student.shape[:-1])} without the classes",
            instead="the logits of the same positions of both, neither shifted nor cut",
        )
    if student.device != teacher.device:
        raise invalid_value(
            _CALL,
            "teacher",
            wanted=f"a tensor on {student.device}, where the student is",
            got=f"one on {teacher.device}",
            instead="teacher=teacher.to(student.device)",
        )
