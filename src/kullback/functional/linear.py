"""The distillation loss from hidden states and heads, without storing all logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.functional.head_checks import (
    CALL,
    NAMES,
    check_sparse,
    check_tensors,
    is_autocast_on,
)
from kullback.functional.head_chunks import Head, HeadSpec
from kullback.functional.partial_teacher import PartialTeacher
from kullback.functional.positions import (
    LossSettings,
    Vocabulary,
    check_any_class,
    check_classes,
    check_labels,
    divided,
    hard_labels,
    position_weights,
    remembered,
    settings_of,
)
from kullback.functional.sharded import agreed, attempt, head_parts, local_heads, requires_gradient
from kullback.generators import KL, Divergence
from kullback.inputs import check_flag, number_from, recordable, whole_from
from kullback.kernels.labels import HardLabels
from kullback.kernels.row_operation import RowTotal, RowValues
from kullback.numeric import accurate_dtype
from kullback.parallel.ranks import Ranks, pattern
from kullback.parallel.rows import ShardedRows
from kullback.parallel.shards import Sides, has_dtensor
from kullback.reduction import Reduction
from kullback.representations import can_inspect_all

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["EachSide", "check_head_settings", "linear_distillation_loss"]

EachSide: TypeAlias = float | tuple[float | None, float | None] | None

_KL = KL()


class HeadSettings(NamedTuple):
    """The non-tensor arguments of `linear_distillation_loss` that `distillation_loss` does not have."""

    softcap: EachSide
    logit_scale: EachSide
    chunk_bytes: int | None
    float32_logits: bool
    return_entropy: bool


class _Checked(NamedTuple):
    """The arguments, checked."""

    settings: LossSettings
    heads: tuple[Head, Head]
    weights: Tensor | None
    hard: HardLabels | None
    dtype: torch.dtype


@overload
def linear_distillation_loss(
    *,
    student: Tensor,
    student_weight: Tensor,
    teacher: Tensor | PartialTeacher,
    teacher_weight: Tensor | None = ...,
    student_bias: Tensor | None = ...,
    teacher_bias: Tensor | None = ...,
    softcap: EachSide = ...,
    logit_scale: EachSide = ...,
    kind: Divergence | str = ...,
    temperature: float = ...,
    mask: Tensor | None = ...,
    weight: Tensor | None = ...,
    labels: Tensor | None = ...,
    label_weight: float = ...,
    ignore_index: int = ...,
    reduction: Reduction = ...,
    temperature_squared: bool = ...,
    normalizer: Tensor | float | None = ...,
    vocabulary: Vocabulary = ...,
    chunk_bytes: int | None = ...,
    float32_logits: bool = ...,
    group: ProcessGroup | None = ...,
    classes: int | None = ...,
    return_entropy: Literal[False] = False,
) -> Tensor: ...


@overload
def linear_distillation_loss(
    *,
    student: Tensor,
    student_weight: Tensor,
    teacher: Tensor | PartialTeacher,
    teacher_weight: Tensor | None = ...,
    student_bias: Tensor | None = ...,
    teacher_bias: Tensor | None = ...,
    softcap: EachSide = ...,
    logit_scale: EachSide = ...,
    kind: Divergence | str = ...,
    temperature: float = ...,
    mask: Tensor | None = ...,
    weight: Tensor | None = ...,
    labels: Tensor | None = ...,
    label_weight: float = ...,
    ignore_index: int = ...,
    reduction: Reduction = ...,
    temperature_squared: bool = ...,
    normalizer: Tensor | float | None = ...,
    vocabulary: Vocabulary = ...,
    chunk_bytes: int | None = ...,
    float32_logits: bool = ...,
    group: ProcessGroup | None = ...,
    classes: int | None = ...,
    return_entropy: Literal[True],
) -> tuple[Tensor, Tensor]: ...


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

    and t likewise with the teacher's head. P is the teacher and Q the student. The logits are computed for a chunk of
    positions at a time, and only for positions that count. Their gradient overwrites them and is immediately added to
    the gradients of the hidden states and the head.

    Arguments:
        student: hidden states h, shape (..., hidden size), floating point.
        student_weight: the head W, shape (classes, hidden size), of the dtype of the hidden states.
        teacher: the teacher's hidden states, the same leading shape; the hidden size and the dtype may differ. Or a
            stored teacher: a `TopK`, a `SampledTail` or another `PartialTeacher`. D is then computed by
            `top_k_divergence`, by `sampled_tail_divergence` or by the teacher. A stored teacher has no head, and
            `vocabulary` is ignored.
        teacher_weight: the teacher's head, shape (classes, its hidden size); None for a stored teacher.
        student_bias: b, shape (classes,).
        teacher_bias: the teacher's, shape (classes,).
        softcap: c, the largest absolute value of a logit; None for no cap. A pair is (student's, teacher's). Stored
            log-probabilities are not changed.
        logit_scale: a, the factor of the products before the cap. A pair is (student's, teacher's).
        kind: the divergence D, or its name such as ``"js:0.5"`` (`kullback.generators.parse`).
        temperature: T, which divides the logits of both.
        mask: which positions count, boolean, the leading shape. Finding the counted positions
            synchronizes an accelerator. A mask that is False everywhere raises a warning, on the CPU only.
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
        normalizer: divide the sum by this number instead, such as the number of counted positions of all micro-batches.
        vocabulary: how to handle different numbers of classes: ``"error"``, ``"truncate"`` or ``"mask"``, as in
            `distillation_loss`.
        chunk_bytes: the memory for the logits of a chunk of positions, both sides together. By default, 32 MiB or a
            quarter of the head's bytes, whichever is more. Products with few rows are slow, so the default is at least
            512 positions (256 on a single thread; twice as many in half precision). The size of a chunk changes the
            result only by rounding.
        float32_logits: keep the logits of half-precision heads in float32. This doubles the size of a chunk. Without
            it, rounding to bfloat16 changes the gradient by some percent.
        group: the process group over which the classes are sharded. Weights and biases hold the rows of this rank's
            classes; the shards of all ranks, joined in rank order, are the heads. All other arguments, including the
            hidden states, are equal on all ranks.
        classes: the number of classes without padding, for all shards together. Later classes count as -inf.
        return_entropy: also return the student's entropy, computed in the same pass over the chunks.

    Returns:
        the loss, computed in float32 or better: a scalar, or the leading shape for ``"none"``. It is float64 if an
        argument is, and 0 if no position counts. With `return_entropy`, a pair: the loss, and the entropy of Q at each
        position in nats, the leading shape. The entropies are at the given temperature, accurate to about 1e-6 for
        logits of float32 or less. They are 0 at positions that do not count, and have no gradient.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: shapes, devices, `reduction`, `temperature`, `vocabulary` or a number do not fit, or a label
            is not a class (checked on the CPU only). With `group`, every rank raises it if the arguments of one rank
            are invalid, or if the arguments of two ranks disagree.

    Gradient:
        to hidden states, weights and biases of either side, where they require one; products for tensors that require
        none are skipped. A reduced loss computes it in the forward pass; with ``"none"``, and in float16, the backward
        pass computes the logits again. With more than 16 chunks, the gradient of a half-precision weight is summed in
        float32, in a buffer of twice its size. Higher and forward-mode derivatives, `torch.func` and `torch.compile`
        use all logits at once. The gradient is 0 at positions that do not count. The gradient of the cross-entropy is
        the same as in `distillation_loss`. Under autocast the products are in the autocast dtype. Positions whose
        gradient overflows the dtype of the logits are computed again in float64. A gradient that is too large for its
        own dtype is infinite.

    Sharded classes:
        As in `distillation_loss`, shards may have any size, and the gradient is the gradient of the single loss that
        all ranks return. DTensors with ``Shard(0)`` in one dimension of their mesh need no `group`. In the forward
        pass, the ranks first exchange a few integers. Then each chunk of positions needs an all-gather of 4 numbers a
        row and an all-reduce of at most 7; `distillation_loss` gives the numbers for a stored teacher and for
        `label_weight`. If all logits of a rank fit in `chunk_bytes`, there is one chunk. In the backward pass, the
        gradient of the hidden states is summed over the ranks in float32 or better: one all-reduce for each side that
        requires one. If the teacher's shards have other boundaries than the student's, the other ranks send the missing
        rows of its weight. Only first derivatives exist.

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
    tensors: list[Any] = [student, student_weight, student_bias, teacher, teacher_weight, teacher_bias]
    ranks = None
    if group is not None or has_dtensor(tensors):
        tensors, ranks = local_heads(CALL, NAMES, tensors, group)
        student = tensors[0]
    unchecked = LossSettings(
        kind, temperature, label_weight, reduction, temperature_squared, normalizer, vocabulary, classes
    )
    of_heads = HeadSettings(softcap, logit_scale, chunk_bytes, float32_logits, return_entropy)

    def check() -> _Checked:
        settings, heads = settings_of(CALL, unchecked), _heads(*of_heads)
        if isinstance(teacher, PartialTeacher):
            check_sparse(tensors, teacher, settings.kind, temperature)
        else:
            check_tensors(tensors)
        dtype = _result_dtype(tensors)
        positions, device = student.shape[:-1], student.device
        weights = position_weights(CALL, positions, mask, weight, labels, ignore_index, device, dtype)
        hard = hard_labels(CALL, labels, label_weight, weights, settings.scale)
        return _Checked(settings, heads, weights, hard, dtype)

    sides = None
    if ranks is None or ranks.size == 1:
        checked = check()
    else:
        checked, sides = _agreed_sides(ranks, tensors, of_heads, check)
    settings, (student_head, teacher_head), weights, hard, dtype = checked
    word, positions = settings.reduction, student.shape[:-1]
    if isinstance(teacher, PartialTeacher):
        tensors = [*tensors[:3], teacher.kept_log_probs]
    tensors = _in_autocast_dtype([None if x is None else recordable(x) for x in tensors])
    tensors = _same_vocabulary(tensors, vocabulary, classes) if sides is None else head_parts(sides, tensors)
    n_classes = tensors[1].shape[0] if sides is None else sides.student[-1][1]
    if hard is not None:
        check_labels(CALL, hard, positions, n_classes)
    if isinstance(teacher, PartialTeacher):
        teacher.check_indices(CALL, n_classes)
        rows = teacher.rows(settings.kind, n_classes, temperature, accurate_dtype(student.device))
        tensors[3] = rows.log_probs
        teacher_head = replace(
            rows, log_probs=rows.log_probs.detach()
        )  # autograd differentiates the ones in `tensors`
    tensors[::3] = [None if x is None else x.reshape(positions.numel(), x.shape[-1]) for x in tensors[::3]]
    stored = None if isinstance(teacher_head, Head) else teacher_head.indices
    inspected = [*tensors, weights, stored, None if hard is None else hard.classes]
    chunked = _are_ordinary([x for x in inspected if x is not None])
    scale = settings.scale if hard is None else 1.0
    shares = None
    if word != "none":
        shares, factor = divided(CALL, weights, normalizer, word, positions, student.device, dtype)
        scale *= factor
    spec = HeadSpec(
        student_head,
        teacher_head,
        settings.kind,
        temperature,
        scale,
        dtype,
        None if shares is None else shares.reshape(-1),
        _counted(weights) if chunked and weights is not None else None,
        whole_from(chunk_bytes),
        hard,
    )
    if sides is not None:
        spec = _sharded(spec, sides, tensors, chunked)
    shares = weights if word == "none" else shares
    return (_reduced_with_entropies if return_entropy else _reduced)(
        spec, tensors, positions, word, None if weights is None else weights == 0, shares, chunked
    )


def _reduced_with_entropies(
    spec: HeadSpec,
    tensors: list[Any],
    positions: torch.Size,
    word: Reduction,
    excluded: Tensor | None,
    shares: Tensor | None,
    chunked: bool,
) -> tuple[Tensor, Tensor]:
    """Return the result of `_reduced` and the student's entropy at each position."""
    if chunked:
        entropies = torch.zeros(positions.numel(), dtype=spec.dtype, device=tensors[0].device)
        spec = spec._replace(entropies=entropies)
    else:
        entropies = spec.reference_entropies(tensors, None if excluded is None else excluded.reshape(-1))
    loss = _reduced(spec, tensors, positions, word, excluded, shares, chunked)
    return loss, entropies.reshape(positions)


def _reduced(
    spec: HeadSpec,
    tensors: list[Any],
    positions: torch.Size,
    word: Reduction,
    excluded: Tensor | None,
    shares: Tensor | None,
    chunked: bool,
) -> Tensor:
    """Return the loss of checked hidden states and heads.

    Arguments:
        spec: the settings of the loss.
        tensors: hidden states, weights and biases.
        positions: the shape of the positions.
        word: the reduction.
        excluded: True at positions that do not count; None if all count.
        shares: the weight of each position in the result; None if all are 1.
        chunked: whether the pass over chunks accepts the tensors.
    """
    constant = spec.weights
    if word != "none" and (constant is None or not constant.requires_grad or not chunked):
        if not chunked:
            return spec.reference_total(tensors)
        # In float16 small gradients underflow without the loss scale, which only the backward pass knows.
        is_early = torch.is_grad_enabled() and all(x is None or x.dtype != torch.float16 for x in tensors)
        return RowTotal.apply(spec, is_early, *tensors)
    if chunked:
        values = RowValues.apply(spec, *tensors)
    else:
        values = spec.reference_rows(tensors, None if excluded is None else excluded.reshape(-1))
    values = values.reshape(positions) * spec.scale
    if shares is not None:
        values = values * shares.to(spec.dtype)
    return values if word == "none" else values.sum()


def _result_dtype(tensors: list[Any]) -> torch.dtype:
    """Return the dtype of the loss."""
    teacher = tensors[3]
    dtypes = [x.dtype for x in tensors if isinstance(x, Tensor)]
    dtype = torch.float64 if torch.float64 in dtypes else torch.float32
    return teacher.result_dtype(dtype) if isinstance(teacher, PartialTeacher) else dtype


def _agreed_sides(
    ranks: Ranks, tensors: list[Any], of_heads: HeadSettings, check: Callable[[], _Checked]
) -> tuple[_Checked, Sides]:
    """Check the arguments on every rank and return them with the shards of the heads, or raise on every rank."""
    checked, problem = attempt(check)
    named: dict[str, Any] = dict(zip(NAMES, tensors, strict=True))
    heads = [name for name in ("student_weight", "teacher_weight") if named[name] is not None]
    settings = None if checked is None else checked.settings
    named_settings = dict.fromkeys(LossSettings._fields) if settings is None else settings.by_name()
    same: dict[str, Any] = named_settings | of_heads._asdict()
    learn = [x.kept_log_probs if isinstance(x, PartialTeacher) else x for x in tensors]
    same["student_weight gradients that are required"] = [
        0 if problem else requires_gradient(x) for x in learn
    ]
    hard = None if checked is None else checked.hard
    same["labels classes at the positions that count"] = pattern(None if hard is None else hard.classes)
    own = {name: 0 if problem else named[name].shape[0] if name in heads else 0 for name in NAMES[1::3]}
    weights = None if checked is None else checked.weights
    numbers = agreed(ranks, tensors=named, weights=weights, settings=same, own=own, problem=problem)
    sides = Sides.between(
        ranks,
        numbers["student_weight"],
        numbers["teacher_weight"] if "teacher_weight" in heads else None,
        classes=None if settings is None else settings.classes,
        vocabulary="error" if settings is None else settings.vocabulary,
        names=("student_weight", "teacher_weight"),
    )
    return cast("_Checked", checked), sides


def _sharded(spec: HeadSpec, sides: Sides, tensors: list[Tensor | None], chunked: bool) -> HeadSpec:
    """Add the shards of the group's ranks to `spec`."""
    if not chunked:
        raise invalid_type(
            CALL,
            "group",
            wanted="tensors with values, outside torch.compile, torch.func and forward-mode differentiation",
            got="others",
            instead="the call outside the compiled or transformed function",
        )
    needed = requires_gradient(*tensors[3:]) > 0, requires_gradient(*tensors[:3]) > 0
    kind, temperature = spec.kind, float(spec.temperature)
    rows = ShardedRows(sides.ranks, kind, temperature, sides.classes, needed, sides.own[0])
    return spec._replace(shards=rows, widest=max(stop - start for start, stop in sides.meeting))


def _are_ordinary(tensors: list[Tensor]) -> bool:
    """Return whether the chunked pass accepts these tensors: they have values and no forward-mode tangent."""
    if not can_inspect_all(tensors):
        return False
    is_forward = forward_ad._current_level >= 0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return not is_forward or all(forward_ad.unpack_dual(x).tangent is None for x in tensors)


def _counted(weights: Tensor) -> Tensor | None:
    """Return the indices of the positions that count, None if all count."""
    indices = weights.detach().reshape(-1).nonzero().squeeze(-1)
    return None if indices.numel() == weights.numel() else indices


def _in_autocast_dtype(tensors: list[Tensor | None]) -> list[Tensor | None]:
    """Cast tensors to the autocast dtype if autocast is on; float64 stays."""
    device = tensors[0].device.type if tensors[0] is not None else "cpu"
    if not is_autocast_on(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return [x if x is None or x.dtype == torch.float64 else x.to(dtype) for x in tensors]


def check_head_settings(call: str, softcap: EachSide, logit_scale: EachSide, chunk_bytes: int | None) -> None:
    """Raise an error that names `call` if a setting of the heads is invalid."""
    _each_side("softcap", softcap, 30.0, call)
    _each_side("logit_scale", logit_scale, 0.0625, call)
    _check_bytes(chunk_bytes, call)


@remembered
def _heads(
    softcap: EachSide,
    logit_scale: EachSide,
    chunk_bytes: int | None,
    float32_logits: bool,
    return_entropy: bool,
) -> tuple[Head, Head]:
    """Check the settings and return the heads of student and teacher."""
    check_flag(CALL, "float32_logits", float32_logits)
    check_flag(CALL, "return_entropy", return_entropy)
    caps, scales = _each_side("softcap", softcap, 30.0), _each_side("logit_scale", logit_scale, 0.0625)
    _check_bytes(chunk_bytes)
    student, teacher = (
        Head(1.0 if scale is None else float(scale), None if cap is None else float(cap), float32_logits)
        for scale, cap in zip(scales, caps, strict=True)
    )
    return student, teacher


def _each_side(
    name: str, value: EachSide, example: float, call: str = CALL
) -> tuple[float | None, float | None]:
    """Return a number for the student and one for the teacher."""
    pair = value if isinstance(value, tuple) else (value, value)
    if len(pair) != 2 or not all(x is None or 0 < number_from(x) < math.inf for x in pair):
        raise invalid_value(
            call,
            name,
            wanted="a positive number or None, or a pair of these for student and teacher",
            got=safe_repr(value),
            instead=f"{name}={example} or {name}=(None, {example})",
        )
    return pair


def _check_bytes(chunk_bytes: int | None, call: str = CALL) -> None:
    number = whole_from(chunk_bytes)
    if chunk_bytes is not None and (number is None or number <= 0):
        raise invalid_value(
            call,
            "chunk_bytes",
            wanted="a positive whole number of bytes, or None",
            got=safe_repr(chunk_bytes),
            instead="chunk_bytes=64 << 20",
        )


def _same_vocabulary(
    tensors: list[Tensor | None], vocabulary: Vocabulary, classes: int | None
) -> list[Tensor | None]:
    sizes = [x.shape[0] for x in tensors[1::3] if x is not None]
    for name, size in zip(NAMES[1::3], sizes, strict=False):
        check_any_class(CALL, name, size)
    if classes is not None:
        classes = check_classes(CALL, classes, min(sizes))
        return [x if x is None or i % 3 == 0 else x[:classes] for i, x in enumerate(tensors)]
    if len(set(sizes)) == 1 or vocabulary == "mask":
        return tensors
    if vocabulary == "error":
        raise invalid_value(
            CALL,
            "student_weight",
            wanted=f"as many classes as teacher_weight, {sizes[1]}",
            got=f"{sizes[0]}",
            instead="vocabulary='truncate' if the first classes of both mean the same",
        )
    shared = min(sizes)
    return [x if x is None or i % 3 == 0 else x[:shared] for i, x in enumerate(tensors)]
