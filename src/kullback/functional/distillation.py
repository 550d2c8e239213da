"""The divergence of a student's predictions from a teacher's, as a training loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kullback.errors import invalid_type, invalid_value
from kullback.functional.positions import (
    Vocabulary,
    check_kind,
    check_normalizer,
    check_temperature,
    check_vocabulary,
    divided,
    hard_labels,
    position_weights,
)
from kullback.functional.sampled_tail import SampledTail, check_sampled_pair, sampled_tail_values
from kullback.functional.top_k import TopK, check_top_k_pair, result_dtype, top_k_values
from kullback.generators import KL, Divergence
from kullback.inputs import check_dense, check_flag, recordable
from kullback.kernels import row_divergence, weighted_total
from kullback.kernels.overlap import is_expanded, may_overlap, may_overlap_itself
from kullback.reduction import Reduction, check_reduction
from kullback.representations import Logits, can_inspect

__all__ = ["distillation_loss"]

_CALL = "distillation_loss"
_KL = KL()


def distillation_loss(
    *,
    student: Tensor,
    teacher: Tensor | TopK | SampledTail,
    kind: Divergence = _KL,
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
) -> Tensor:
    r"""Compute how far a student's next-class distributions are from a teacher's, both given as logits.

    .. math:: L = \frac{\sum_n w_n\, D(P_n \| Q_n)}{\sum_n w_n}, \quad
        P_n = \operatorname{softmax}(t_n / T),\; Q_n = \operatorname{softmax}(s_n / T)

    P is the teacher and Q the student, so ``kind=KL()`` is KL(teacher || student). A position that `mask` or `labels`
    leaves out counts nothing, whatever its logits hold, NaN included.

    Arguments:
        student: logits s, shape (..., classes), floating point.
        teacher: logits t, the same leading shape; its dtype may differ. Or a `TopK`, where only the most probable
            classes of each position are known, or a `SampledTail`, where there are draws from the others too: then D is
            that of `top_k_divergence` or `sampled_tail_divergence`, and `vocabulary` means nothing.
        kind: the divergence D.
        temperature: T, which divides both.
        mask: which positions count, boolean, the leading shape.
        weight: w, a non-negative number for each position, the leading shape.
        labels: a position whose label is `ignore_index` does not count; the leading shape.
        label_weight: :math:`\lambda` from 0 to 1, the share of the cross-entropy with `labels`, which are then the true
            classes: a position's D becomes :math:`(1 - \lambda)\, D - \lambda \log q_y`, where y is its label and q are
            the student's probabilities at temperature 1, whatever T is. `temperature_squared` multiplies D alone.
        ignore_index: that label.
        reduction: ``"none"`` gives w D of each position, 0 where it does not count; ``"sum"`` their sum, ``"mean"`` the
            weighted mean over counted positions, and ``"batchmean"`` the sum divided by ``student.shape[0]``.
        temperature_squared: multiply D by T squared, which keeps the size of the gradient.
        normalizer: what to divide the sum by instead, such as the number of counted positions of all micro-batches of
            a step, so that gradients accumulate to those of the whole.
        vocabulary: what to do where the classes are not as many: refuse (``"error"``), cut both to those they share and
            normalize anew (``"truncate"``), or give no mass to the classes a side lacks (``"mask"``), by which KL is
            +inf wherever the teacher has more classes than the student.
        inplace_backward: let the backward pass overwrite `student` with its gradient, which then needs no memory. Only
            for logits that nothing else reads afterwards, that are no parameter or a view of one, and that share no
            memory with `teacher`; and not with ``reduction="none"``.

    Returns:
        the loss, computed in float32 or better: a scalar, or the leading shape for ``"none"``; float64 if an argument
        is. 0 where nothing counts.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: shapes, `reduction`, `temperature` or `vocabulary` do not fit, or a label is no class (which
            is looked for on the CPU alone).

    Gradient:
        to the student, and to the teacher if it requires one; as stated by `kind`. Zero at positions that do not count.
        That of the cross-entropy is q - 1 at the label and q elsewhere, also where the label's logit is -inf and the
        loss +inf. On the CPU it is made in the same sweep over the logits; on a GPU they are read again.

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
    check_kind(_CALL, kind)
    check_temperature(_CALL, temperature)
    word = check_reduction(_CALL, reduction)
    check_vocabulary(_CALL, vocabulary)
    check_flag(_CALL, "temperature_squared", temperature_squared)
    check_flag(_CALL, "inplace_backward", inplace_backward)
    check_normalizer(_CALL, normalizer, word)
    scale = float(temperature**2) if temperature_squared else 1.0
    if isinstance(teacher, TopK | SampledTail):
        if inplace_backward:
            _check_inplace(student, teacher, word)
        if isinstance(teacher, TopK):
            check_top_k_pair(kind, teacher, student, temperature)
            dtype = result_dtype(teacher, student)
        else:
            check_sampled_pair(kind, teacher, student, temperature)
            dtype = torch.float64 if student.dtype == torch.float64 else torch.float32
        positions, device = student.shape[:-1], student.device
        weights = position_weights(_CALL, positions, mask, weight, labels, ignore_index, device, dtype)
        hard = hard_labels(_CALL, labels, label_weight, weights, student.shape[-1], scale)
        if isinstance(teacher, TopK):
            values = top_k_values(kind, teacher, student, temperature=temperature, labels=hard)
        else:
            values = sampled_tail_values(kind, teacher, student, temperature=temperature, labels=hard)
        return _reduce(values * scale if hard is None else values, weights, word, normalizer)
    _check_logits(student, teacher)
    if inplace_backward:
        _check_inplace(student, teacher, word)
    dtype = torch.float64 if torch.float64 in (student.dtype, teacher.dtype) else torch.float32
    positions, device = student.shape[:-1], student.device
    weights = position_weights(_CALL, positions, mask, weight, labels, ignore_index, device, dtype)
    known = min(teacher.shape[-1], student.shape[-1]) if vocabulary == "truncate" else student.shape[-1]
    hard = hard_labels(_CALL, labels, label_weight, weights, known, scale)
    scale = scale if hard is None else 1.0
    teacher, student = _same_vocabulary(teacher, student, vocabulary)
    if word == "none":
        p, q = Logits(recordable(teacher), validate=False), Logits(recordable(student), validate=False)
        values = row_divergence(kind, p, q, dtype=dtype, temperature=temperature, labels=hard) * scale
        return _reduce(values, weights, word, normalizer)
    weights, factor = divided(_CALL, weights, normalizer, word, positions, device, dtype)
    return weighted_total(
        kind,
        _as_matrix(teacher),
        _as_matrix(student),
        None if weights is None else weights.reshape(-1),
        dtype=dtype,
        temperature=temperature,
        scale=scale * factor,
        inplace=inplace_backward,
        labels=hard,
    )


def _reduce(
    values: Tensor, weights: Tensor | None, word: Reduction, normalizer: Tensor | float | None
) -> Tensor:
    """Reduce the values of the positions; one of weight 0 counts nothing, whatever its value."""
    factor = 1.0
    if word != "none":
        weights, factor = divided(_CALL, weights, normalizer, word, values.shape, values.device, values.dtype)
    if weights is not None:
        values = torch.where(weights == 0, 0, values) * weights.to(values.dtype)
    return values if word == "none" else (values * factor).sum()


def _as_matrix(logits: Tensor) -> Tensor:
    """Return the logits with one row for each position."""
    return (
        logits if logits.ndim == 2 else logits.reshape(-1, logits.shape[-1])
    )  # reshape costs time as a no-op too


def _check_inplace(student: Tensor, teacher: Tensor | TopK | SampledTail, word: Reduction) -> None:
    """Raise unless the gradient may overwrite the student's logits."""
    is_top_k = isinstance(teacher, TopK | SampledTail)
    # Tensors of other types, such as torch's fake ones, may have no addresses.
    has_memory = all(
        type(x) is Tensor and can_inspect(x) for x in (student, teacher) if isinstance(x, Tensor)
    )
    shares = has_memory and not is_top_k and may_overlap(student, teacher)
    overlaps = (
        has_memory and may_overlap_itself(student) and not is_expanded(student)
    )  # that one is not overwritten
    for refused, wanted, got in (
        (is_top_k, "a teacher of all classes", f"a {type(teacher).__name__}"),
        (
            word == "none",
            "a reduction, as the gradient of a position is not known before",
            "reduction='none'",
        ),
        (
            student.requires_grad and student.is_leaf,
            "a student that some operation made, as its values are lost",
            "a leaf",
        ),
        (
            student._base is not None and student._base.is_leaf,  # noqa: SLF001
            "a student that some operation made, as its values are lost",
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
    if classes[0] == classes[1]:
        return teacher, student
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
    for name, x in (("student", student), ("teacher", teacher)):
        if isinstance(x, Tensor):
            check_dense(_CALL, name, x)
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim == 0:
            got = f"dtype {x.dtype}, shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise invalid_type(
                _CALL,
                name,
                wanted="a floating-point tensor of logits, shape (..., classes)",
                got=got,
                instead=f"{name}=model(inputs).logits",
            )
    if student.shape[:-1] != teacher.shape[:-1]:
        raise invalid_value(
            _CALL,
            "student",
            wanted=f"the teacher's positions, shape {tuple(teacher.shape[:-1])}",
            got=f"shape {tuple(student.shape[:-1])}, classes left out",
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
