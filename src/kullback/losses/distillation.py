"""Training losses: the divergence of a teacher's predictions from a student's, for logits or hidden states."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kullback.common.constraints import FLAG, Arguments
from kullback.common.dtypes import accurate_dtype
from kullback.common.extra_arguments import by_name
from kullback.common.inputs import can_inspect, can_inspect_all, recordable
from kullback.errors import invalid_type, invalid_value
from kullback.generators import KL, Divergence
from kullback.kernels.overlap import is_expanded, may_overlap, may_overlap_itself
from kullback.kernels.row_operation import RowTotal, RowValueFunction
from kullback.losses.argument_descriptions import described
from kullback.losses.head import Head, HeadRows, may_overflow, sides_of
from kullback.losses.head_tensors import (
    CLASS_DIMS,
    HEAD_CALL,
    STUDENT_NAMES,
    TEACHER_NAMES,
    HeadTensors,
    checked_tensors,
)
from kullback.losses.positions import Positions, positions_of
from kullback.losses.reduction import Reduction
from kullback.losses.settings import EachSide, HeadSettings, LossSettings, Vocabulary
from kullback.losses.sharded import agreed_sides, checked_on_every_rank, local_tensors, requires_gradient
from kullback.losses.teachers import LogitTeacher, PartialTeacher, check_any_class, compared_classes
from kullback.parallel.collectives import Ranks
from kullback.parallel.rows import ShardedRows
from kullback.parallel.shards import Sides, has_dtensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_CALL = "distillation_loss"
_KL = KL()


@by_name("distillation_loss(student=logits, teacher=teacher_logits)")
@described
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
    r"""Compute the divergence of a teacher's next-class distributions from a student's, both given as logits.

    .. math:: L = \frac{\sum_n w_n\, D(P_n \| Q_n)}{\sum_n w_n}, \quad
        P_n = \operatorname{softmax}(t_n / T),\; Q_n = \operatorname{softmax}(s_n / T)

    P is the teacher and Q the student, so ``kind=KL()`` is KL(teacher || student). A position that `mask` or `labels`
    excludes has no effect, even if its logits are NaN.

    Arguments:
        student: logits s, shape (..., classes), floating point. The dimensions before the last are the leading shape.
        teacher: logits t, with the same leading shape; the dtype may differ. The teacher may also be a `TopK` or a
            `SampledTail`. A `TopK` has only the most probable classes of each position, and a `SampledTail` also has
            draws from the other classes. D is then computed by `top_k_divergence` or `sampled_tail_divergence`, and
            `vocabulary` is ignored. Any other `PartialTeacher` computes D itself, such as `Scored` or a `Mixture`.
        {arguments: kind, temperature, mask, weight, labels, label_weight, ignore_index, reduction}
        {arguments: temperature_squared, normalizer, vocabulary, inplace_backward, group, classes}

    Returns:
        the loss, computed in float32 or better: a scalar, or a tensor of the leading shape for ``"none"``. The loss is
        float64 if an argument is float64, and 0 if no position counts.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: shapes or devices do not match, a setting is invalid, or a label is not a class (checked on
            the CPU only). With `group`, every rank raises this error if the arguments of one rank are invalid, or if
            the arguments of two ranks disagree.

    Gradient:
        to the student, and to the teacher if the teacher requires a gradient. The docstring of the kind's class states
        the derivatives. The gradient is 0 at positions that do not count. The cross-entropy has gradient q - 1 at the
        label and q elsewhere, even if the label's logit is -inf and the loss is +inf. The CPU computes this gradient in
        the same pass over the logits; a GPU reads the logits again.

    Sharded classes:
        With `group`, a shard may have any size, even 0. Every rank returns the same loss. The gradient of a shard is
        the gradient of this single loss, not multiplied by the number of ranks. A DTensor with ``Shard(-1)`` in one
        dimension of its mesh and ``Replicate()`` in the others needs no `group`. A plain tensor next to a DTensor is
        treated as replicated on every rank, and the result is a plain tensor.

        The forward pass has three collectives. First, the ranks compare a few integers that describe their arguments.
        If the arguments disagree, all ranks raise the same error instead of waiting for each other. Then an all-gather
        of 4 numbers a row exchanges the largest logit and the sum of exponentials of both sides. Finally, an all-reduce
        adds up the divergence of each row and the sums for the gradients. This all-reduce sends 1 number a row without
        gradients, 4 if only the student or only the teacher requires a gradient, and 7 if both do. For `Renyi`, an
        all-gather of at most 12 numbers replaces the all-reduce. A `TopK` or `SampledTail` must be complete on every
        rank. With such a teacher, the second collective is an all-reduce of the student's logits at the teacher's
        classes. The third is then an all-gather of 2 numbers a row. With `label_weight`, the second and the third
        collective together exchange 3 more numbers a row. The backward pass communicates nothing.

        Logits are sent only if the teacher's shards have other boundaries than the student's. The ranks then exchange
        the teacher's missing logits by an all-to-all, and by another all-to-all in the backward pass if the teacher
        requires a gradient. C++ and Triton kernels compute float32 and half-precision logits, except for `Renyi` and
        `TotalVariation`, and on GPUs also except for other powers. In all other cases, torch operations compute the
        loss. The arithmetic is float64, except for Triton's float32, whose sums are float64. With
        `group`, only first derivatives exist, and `torch.compile` and `torch.func` are not supported.

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
    settings = LossSettings(
        kind, temperature, reduction, temperature_squared, ignore_index, vocabulary, label_weight, classes
    )
    ranks = None
    if group is not None or has_dtensor((student, teacher)):
        tensors = {"student": student, "teacher": teacher}
        (student, teacher), ranks = local_tensors(_CALL, tensors, (-1, -1), group)
    source = teacher if isinstance(teacher, PartialTeacher) else LogitTeacher(teacher)

    def check() -> Positions:
        checked = settings.checked(_CALL)
        dtype = source.check(_CALL, student, checked)
        if inplace_backward is not False:
            _check_inplace(inplace_backward, student, teacher, checked.reduction)
        return positions_of(_CALL, checked, student, dtype, mask, weight, labels, normalizer)

    if ranks is None or ranks.size == 1:
        return source.loss(student, check(), inplace_backward)
    positions = checked_on_every_rank(ranks, check, (student, teacher))
    tensors = {"student": student, "teacher": teacher}
    logits = {name: x for name, x in tensors.items() if isinstance(x, Tensor)}
    sizes = {name: x.shape[-1] for name, x in logits.items()}
    learn = {f"to {name}": requires_gradient(logits.get(name)) for name in tensors}
    sides, numbers = agreed_sides(positions, ranks, tensors, sizes, same={}, own=learn)
    check_any_class(_CALL, "student", sides.student[-1][1])
    positions.check_labels(sides.student[-1][1])
    student = sides.padded(sides.student_part(recordable(student)))
    needed = any(numbers["to teacher"]), any(numbers["to student"])
    return positions.reduce(source.sharded_values(student, positions, sides, needed, inplace_backward))


class _HeadArguments(TypedDict, total=False):
    """The arguments of `linear_distillation_loss` that have a default, except `return_entropy`."""

    teacher_weight: Tensor | None
    student_bias: Tensor | None
    teacher_bias: Tensor | None
    softcap: EachSide
    logit_scale: EachSide
    kind: Divergence | str
    temperature: float
    mask: Tensor | None
    weight: Tensor | None
    labels: Tensor | None
    label_weight: float
    ignore_index: int
    reduction: Reduction
    temperature_squared: bool
    normalizer: Tensor | float | None
    vocabulary: Vocabulary
    chunk_bytes: int | None
    float32_logits: bool
    group: ProcessGroup | None
    classes: int | None


@overload
def linear_distillation_loss(
    *,
    student: Tensor,
    student_weight: Tensor,
    teacher: Tensor | PartialTeacher,
    return_entropy: Literal[False] = False,
    **others: Unpack[_HeadArguments],
) -> Tensor: ...


@overload
def linear_distillation_loss(
    *,
    student: Tensor,
    student_weight: Tensor,
    teacher: Tensor | PartialTeacher,
    return_entropy: Literal[True],
    **others: Unpack[_HeadArguments],
) -> tuple[Tensor, Tensor]: ...


@by_name("linear_distillation_loss(student=h, student_weight=w, teacher=teacher_h, teacher_weight=teacher_w)")
@described
def linear_distillation_loss(
    *,
    student: Tensor,
    student_weight: Tensor,
    teacher: Tensor | PartialTeacher,
    teacher_weight: Tensor | None = None,
    student_bias: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    softcap: EachSide = None,
    logit_scale: EachSide = 1.0,
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
    chunk_bytes: int | None = None,
    float32_logits: bool = False,
    group: ProcessGroup | None = None,
    classes: int | None = None,
    return_entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Compute `distillation_loss` from the hidden states and heads of two language models, without storing all logits.

    .. math:: L = \frac{\sum_n w_n\, D(P_n \| Q_n)}{\sum_n w_n}, \quad
        P_n = \operatorname{softmax}(t_n / T),\; Q_n = \operatorname{softmax}(s_n / T), \quad
        s_n = c \tanh\bigl(a\,(W h_n + b) / c\bigr)

    The teacher's logits t are computed likewise, with the teacher's head. P is the teacher and Q the student. The
    logits are computed for a chunk of positions at a time, and only for positions that count. Finding these positions
    synchronizes an accelerator. The gradient with respect to the logits overwrites the logits. The products of this
    gradient with the hidden states and the head are immediately added to the gradients of the head and the hidden
    states.

    Arguments:
        student: hidden states h, shape (..., hidden size), floating point. The dimensions before the last are the
            leading shape.
        student_weight: the head W, shape (classes, hidden size), in the dtype of the hidden states.
        teacher: the teacher's hidden states, with the same leading shape; the hidden size and the dtype may differ. The
            teacher may also be stored: a `TopK`, a `SampledTail` or another `PartialTeacher`. D is then computed by
            `top_k_divergence`, by `sampled_tail_divergence` or by the teacher. A stored teacher has no head, and
            `vocabulary` is ignored.
        teacher_weight: the teacher's head, shape (classes, teacher's hidden size); None for a stored teacher.
        student_bias: b, shape (classes,).
        teacher_bias: the teacher's bias, shape (classes,).
        {arguments: softcap, logit_scale, kind, temperature, mask, weight, labels, label_weight, ignore_index}
        {arguments: reduction, temperature_squared, normalizer, vocabulary, chunk_bytes, float32_logits, group}
        {arguments: classes, return_entropy}

    Returns:
        the loss, computed in float32 or better: a scalar, or a tensor of the leading shape for ``"none"``. The loss is
        float64 if an argument is float64, and 0 if no position counts. With `return_entropy`, a pair: the loss, and the
        entropy of Q at each position in nats, a tensor of the leading shape. The entropies are computed at the given
        temperature. The error of an entropy is about 1e-6 for logits in float32 or half precision. At positions that do
        not count, the entropy is 0. The entropies have no gradient.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: shapes or devices do not match, a setting is invalid, or a label is not a class (checked on
            the CPU only). With `group`, every rank raises this error if the arguments of one rank are invalid, or if
            the arguments of two ranks disagree.

    Gradient:
        to the hidden states, weights and biases of both sides that require a gradient. Matrix products for other
        tensors are skipped. A reduced loss computes the gradient in the forward pass. With ``"none"``, and in float16,
        the backward pass computes the logits again. With more than 16 chunks, the gradient of a half-precision weight
        is summed in float32, in a buffer of twice the weight's size. Higher and forward-mode derivatives, `torch.func`
        and `torch.compile` keep the logits of all positions in memory. The gradient is 0 at positions that do not
        count. The gradient of the cross-entropy is the same as in `distillation_loss`. Under autocast the products are
        in the autocast dtype. Positions whose gradient overflows the dtype of the logits are computed again in float64.
        A gradient that is too large for the dtype of its tensor is infinite.

    Sharded classes:
        As in `distillation_loss`, shards may have any size, and the gradient is the gradient of the single loss that
        all ranks return. DTensors with ``Shard(0)`` in one dimension of their mesh need no `group`. In the forward
        pass, the ranks first exchange a few integers. Then each chunk of positions needs an all-gather of 4 numbers a
        row and an all-reduce of at most 7 numbers a row. The docstring of `distillation_loss` has the counts for a
        stored teacher and for `label_weight`. If all logits of a rank fit in `chunk_bytes`, there is one chunk. In the
        backward pass, the gradient of the hidden states is summed over the ranks in float32 or better. This sum needs
        one all-reduce for each side whose hidden states require a gradient. If the teacher's shards have other
        boundaries than the student's, the other ranks send the missing rows of the teacher's weight. Only first
        derivatives exist.

    Example:
        >>> import torch
        >>> from kullback.functional import linear_distillation_loss
        >>> head = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> hidden = torch.tensor([[1.0, 2.0], [0.5, 0.0]])
        >>> linear_distillation_loss(student=hidden, student_weight=head, teacher=hidden, teacher_weight=2 * head)
        tensor(0.0670)

    References:
        Distilling the Knowledge in a Neural Network (Hinton, Vinyals and Dean, 2015)
    """
    of_student = HeadTensors(student, student_weight, student_bias)
    of_teacher = HeadTensors(teacher, teacher_weight, teacher_bias)
    ranks = sides = None
    if group is not None or has_dtensor([*of_student, *of_teacher]):
        named = _named(of_student, of_teacher)
        local, ranks = local_tensors(HEAD_CALL, named, [*CLASS_DIMS, *CLASS_DIMS], group)
        of_student, of_teacher = sides_of(local)
    settings = LossSettings(
        kind, temperature, reduction, temperature_squared, ignore_index, vocabulary, label_weight, classes
    )
    of_heads = HeadSettings(softcap, logit_scale, chunk_bytes, float32_logits, return_entropy)
    stored = teacher if isinstance(teacher, PartialTeacher) else None

    def check() -> tuple[Positions, list[HeadTensors], HeadSettings, bool]:
        checked, checked_heads = settings.checked(HEAD_CALL), of_heads.checked(HEAD_CALL)
        overflows = may_overflow(checked.kind)
        dtype, heads = checked_tensors(of_student, of_teacher, stored, checked)
        positions = positions_of(
            HEAD_CALL, checked, of_student.hidden, dtype, mask, weight, labels, normalizer
        )
        return positions, heads, checked_heads, overflows

    if ranks is None or ranks.size == 1:
        positions, heads, checked_heads, overflows = check()
    else:
        present = [*of_student, *of_teacher]
        positions, heads, checked_heads, overflows = checked_on_every_rank(ranks, check, present)
        sides = _agreed_sides(ranks, positions, of_student, of_teacher, stored, of_heads)
    settings, weights, mixed = positions.settings, positions.weights, positions.labels
    softcaps, scales, chunk_bytes, *_ = checked_heads
    if sides is None:
        sizes = len(heads[0].weight), len(heads[-1].weight)
        kept = compared_classes(HEAD_CALL, ("student_weight", "teacher_weight"), sizes, settings)
        if kept != sizes:
            heads = [head.map_classes(lambda x: x[: kept[0]]) for head in heads]
        n_classes = kept[0]
    else:
        parts = sides.student_part, sides.teacher_part
        heads = [head.map_classes(partial(part, dim=0)) for head, part in zip(heads, parts, strict=False)]
        n_classes = sides.student[-1][1]
    tensors: list[Any] = list(chain(*heads))
    if mixed is not None:
        positions.check_labels(n_classes)
    student_head, teacher_of_rows = map(Head, softcaps, scales, (float32_logits,) * 2)
    inspected = [*tensors, weights, None if mixed is None else mixed.classes]
    if stored is not None:
        rows = stored.checked_rows(positions, n_classes)
        tensors.append(rows.log_probs.reshape(positions.shape.numel(), rows.log_probs.shape[-1]))
        inspected += [rows.log_probs, rows.indices]
        # Autograd differentiates the log-probabilities in `tensors`, so the log-probabilities in `teacher_of_rows` are
        # detached.
        accurate = accurate_dtype(positions.device)
        teacher_of_rows = replace(rows, log_probs=rows.log_probs.detach(), dtype=accurate)
    is_chunked = can_inspect_all(inspected) and not _has_tangents(inspected)
    operation = HeadRows(
        student_head,
        teacher_of_rows,
        settings.kind,
        temperature,
        positions.dtype,
        overflows,
        chunk_bytes,
        _counted(weights) if is_chunked and weights is not None else None,
        mixed,
        has_second=return_entropy,
    )
    if sides is not None:
        operation = _sharded(operation, sides, tensors, is_chunked)
    compute = _chunked_loss if is_chunked else _whole_loss
    return compute(operation, tensors, positions)


def _chunked_loss(operation: HeadRows, tensors: list[Any], positions: Positions) -> Any:
    """Return the loss and, if `operation` has them, the student's entropies, chunk by chunk.
    If a weight requires a gradient, `RowValueFunction` computes all values, else `RowTotal` their total.
    """
    shares, scale = None, 1.0
    is_total = positions.settings.reduction != "none"
    if is_total:
        shares, scale = positions.shares()
        is_total = shares is None or not shares.requires_grad
    if is_total:
        is_early = torch.is_grad_enabled()
        for x in tensors:
            is_early = is_early and (x is None or x.dtype != torch.float16)
        shares = None if shares is None else shares.reshape(-1)
        result = RowTotal.apply(replace(operation, weights=shares, scale=scale), is_early, *tensors)
    else:
        result = RowValueFunction.apply(operation, *tensors)
    loss, *second = result if operation.has_second else (result,)
    loss = loss if is_total else positions.reduce(loss.reshape(positions.shape))
    return (loss, second[0].reshape(positions.shape)) if second else loss


def _whole_loss(operation: HeadRows, tensors: list[Any], positions: Positions) -> Any:
    """Return the same results as `_chunked_loss`, computed from the logits of all positions at once."""
    excluded = None if positions.weights is None else (positions.weights == 0).reshape(-1)
    loss = positions.reduce(operation.reference_rows(tensors, excluded).reshape(positions.shape))
    if not operation.has_second:
        return loss
    return loss, operation.reference_entropies(tensors, excluded).reshape(positions.shape)


def _agreed_sides(
    ranks: Ranks,
    positions: Positions,
    student: HeadTensors,
    teacher: HeadTensors,
    stored: PartialTeacher | None,
    of_heads: HeadSettings,
) -> Sides:
    """Return the shards of the classes of both heads. If the arguments of the ranks disagree, raise on every rank."""
    learn = [*student, *(teacher if stored is None else [stored.kept_log_probs])]
    same = of_heads._asdict()
    same["student_weight gradients that are required"] = [requires_gradient(x) for x in learn]
    weights = {"student_weight": student.weight, "teacher_weight": teacher.weight}
    sizes = {name: len(x) for name, x in weights.items() if x is not None}
    return agreed_sides(positions, ranks, _named(student, teacher), sizes, same=same, own={})[0]


def _sharded(operation: HeadRows, sides: Sides, tensors: list[Tensor | None], is_chunked: bool) -> HeadRows:
    """Return `operation` for heads whose classes are sharded over the ranks of the group."""
    if not is_chunked:
        wanted = "tensors with values, outside torch.compile, torch.func and forward-mode differentiation"
        instead = "the call outside the compiled or transformed function"
        raise invalid_type(HEAD_CALL, "group", wanted=wanted, got="others", instead=instead)
    student, teacher = sides_of(tensors)
    needed = requires_gradient(*teacher) > 0, requires_gradient(*student) > 0
    kind, temperature = operation.kind, float(operation.temperature)
    rows = ShardedRows(sides.ranks, kind, temperature, sides.classes, needed, sides.own[0])
    return replace(operation, shards=rows, widest=max(stop - start for start, stop in sides.meeting))


def _counted(weights: Tensor) -> Tensor | None:
    """Return the indices of the positions with a nonzero weight, shape (counted,); None if all count."""
    indices = weights.detach().reshape(-1).nonzero().squeeze(-1)
    return None if indices.numel() == weights.numel() else indices


_INPLACE = Arguments("distillation_loss", "DistillationLoss", inplace_backward=FLAG)


def _check_inplace(inplace: bool, student: Tensor, teacher: Tensor | PartialTeacher, word: Reduction) -> None:
    """Raise if the backward pass must not overwrite the student's logits, although `inplace` asks for it."""
    if inplace is not True:
        _INPLACE.check(inplace_backward=inplace)
    base = student._base  # noqa: SLF001
    is_partial = isinstance(teacher, PartialTeacher)
    # The overlap is checked only between plain tensors, because tensors of other classes, such as torch's fake tensors,
    # may have no memory address.
    has_memory = all(
        type(x) is Tensor and can_inspect(x) for x in (student, teacher) if isinstance(x, Tensor)
    )
    shares = has_memory and not is_partial and may_overlap(student, teacher)
    # The backward pass never overwrites an expanded tensor, so an expanded tensor is accepted although its rows
    # overlap.
    overlaps = has_memory and may_overlap_itself(student) and not is_expanded(student)
    is_leaf, is_view = student.requires_grad and student.is_leaf, base is not None and base.is_leaf
    reason = "because its values are overwritten"
    unknown = "a reduction, because the gradient of each position is unknown until the backward pass"
    for refused, wanted, got in (
        (is_partial, "a teacher of all classes", f"a {type(teacher).__name__}"),
        (word == "none", unknown, "reduction='none'"),
        (is_leaf, f"a student that is not a leaf, {reason}", "a leaf"),
        (is_view, f"a student that is not a view of a leaf, {reason}", "a view of a leaf"),
        (shares, "a student that shares no memory with the teacher", "two that overlap"),
        (overlaps, "a student whose rows do not overlap in memory", f"strides {student.stride()}"),
        (not is_partial and teacher.requires_grad, "a teacher that requires no gradient", "one that does"),
    ):
        if refused:
            instead = "inplace_backward=False"
            raise invalid_value(_CALL, "inplace_backward", wanted=wanted, got=got, instead=instead)


def _has_tangents(tensors: list[Tensor | None]) -> bool:
    """Return whether forward-mode differentiation is on for a tensor, which needs all logits at once."""
    is_forward = forward_ad._current_level >= 0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return is_forward and any(
        x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors
    )


def _named(student: HeadTensors, teacher: HeadTensors) -> dict[str, Tensor | None]:
    """Return a dict from the names of the arguments of `linear_distillation_loss` to the tensors of both heads."""
    return dict(zip([*STUDENT_NAMES, *TEACHER_NAMES], [*student, *teacher], strict=True))
