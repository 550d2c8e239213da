"""The divergence of a student's predictions from a teacher's, from hidden states and heads: logits never whole."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.functional.head_chunks import FusedRows, FusedTotal, Head, HeadSpec
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
from kullback.functional.sampled_tail import SampledRows, SampledTail, check_sampled_tail
from kullback.functional.top_k import TopK, TopKRows, check_top_k
from kullback.generators import KL, Divergence
from kullback.inputs import check_dense, check_flag, number_from, recordable
from kullback.numeric import accurate_dtype
from kullback.reduction import Reduction, check_reduction
from kullback.representations import can_inspect

__all__ = ["EachSide", "linear_distillation_loss"]

EachSide: TypeAlias = float | tuple[float | None, float | None] | None

_CALL = "linear_distillation_loss"
_KL = KL()
_NAMES = ("student", "student_weight", "student_bias", "teacher", "teacher_weight", "teacher_bias")


def linear_distillation_loss(
    *,
    student: Tensor,
    student_weight: Tensor,
    teacher: Tensor | TopK | SampledTail,
    teacher_weight: Tensor | None = None,
    student_bias: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    softcap: EachSide = None,
    logit_scale: EachSide = 1.0,
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
    chunk_bytes: int | None = None,
    float32_logits: bool = False,
) -> Tensor:
    r"""Compute `distillation_loss` of the logits of two language-model heads without ever holding them all.

    .. math:: L = \frac{\sum_n w_n\, D(P_n \| Q_n)}{\sum_n w_n}, \quad
        P_n = \operatorname{softmax}(t_n / T),\; Q_n = \operatorname{softmax}(s_n / T), \quad
        s_n = c \tanh\bigl(a\,(W h_n + b) / c\bigr)

    and t likewise with the teacher's head. P is the teacher and Q the student. The logits are made for some positions
    at a time, and only for those that count; their gradient overwrites them and goes into those of the hidden states
    and the head at once.

    Arguments:
        student: hidden states h, shape (..., hidden size), floating point.
        student_weight: the head W, shape (classes, hidden size), of the dtype of the hidden states.
        teacher: the teacher's hidden states, the same leading shape; the hidden size and the dtype may differ. Or what
            is stored of a teacher: a `TopK` or a `SampledTail`, by which D is that of `top_k_divergence` or
            `sampled_tail_divergence`. These have no head, and `vocabulary` means nothing for them.
        teacher_weight: the teacher's head, shape (classes, its hidden size); left out where it has none.
        student_bias: b, shape (classes,).
        teacher_bias: the teacher's, shape (classes,).
        softcap: c, beyond which no logit goes; None for no cap. A pair is (student's, teacher's); stored
            log-probabilities are taken as they are.
        logit_scale: a, what the products are multiplied by before the cap. A pair likewise.
        kind: the divergence D.
        temperature: T, which divides the logits of both.
        mask: which positions count, boolean, the leading shape. Finding them synchronizes an accelerator.
        weight: w, a non-negative number for each position, the leading shape.
        labels: a position whose label is `ignore_index` does not count; the leading shape.
        label_weight: :math:`\lambda` from 0 to 1, the share of the cross-entropy with `labels`, which are then the true
            classes: a position's D becomes :math:`(1 - \lambda)\, D - \lambda \log q_y`, where y is its label and q are
            the student's probabilities at temperature 1, whatever T is. `temperature_squared` multiplies D alone.
        ignore_index: that label.
        reduction: ``"none"`` gives w D of each position, 0 where it does not count; ``"sum"`` their sum, ``"mean"`` the
            weighted mean over counted positions, and ``"batchmean"`` the sum divided by ``student.shape[0]``.
        temperature_squared: multiply D by T squared, which keeps the size of the gradient.
        normalizer: what to divide the sum by instead, such as the number of counted positions of all micro-batches.
        vocabulary: what to do where the classes are not as many: ``"error"``, ``"truncate"`` or ``"mask"``, as
            `distillation_loss` does.
        chunk_bytes: what the logits of a chunk of positions may take, of both sides together. Left out, as many
            positions as take 32 MiB, and at least 256 (on an accelerator 512; in half precision twice as many), as
            fewer make the products slow. The result depends on it by rounding alone.
        float32_logits: keep the logits of half-precision heads in float32. Rounding them to bfloat16 costs some
            percent of the gradient; this doubles the size of a chunk.

    Returns:
        the loss, computed in float32 or better: a scalar, or the leading shape for ``"none"``; float64 if an argument
        is. 0 where nothing counts.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: shapes, devices, `reduction`, `temperature`, `vocabulary` or a number do not fit, or a label
            is no class (which is looked for on the CPU alone).

    Gradient:
        to hidden states, weights and biases of either side, where they require one; products that only a frozen one
        would need are left out. Of a reduced loss it is made in the forward pass; of ``"none"``, and in float16, the
        backward pass computes the logits anew. That of a half-precision weight is summed in float32 over more than 16
        chunks, in a buffer that is twice its size. Further and forward-mode derivatives, `torch.func` and
        `torch.compile` go over whole logits. Zero at positions that do not count. Of the cross-entropy with labels as
        `distillation_loss` says. Under autocast the products are in its dtype.

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
    check_kind(_CALL, kind)
    check_temperature(_CALL, temperature)
    if isinstance(teacher, TopK | SampledTail):
        _check_sparse(tensors, teacher, kind, temperature)
        tensors = [*tensors[:3], teacher.log_probs if isinstance(teacher, TopK) else teacher.top.log_probs]
    else:
        _check_tensors(tensors)
    tensors = [None if x is None else recordable(x) for x in tensors]
    word = check_reduction(_CALL, reduction)
    check_vocabulary(_CALL, vocabulary)
    check_flag(_CALL, "temperature_squared", temperature_squared)
    check_flag(_CALL, "float32_logits", float32_logits)
    check_normalizer(_CALL, normalizer, word)
    student_head, teacher_head = _heads(softcap, logit_scale, float32_logits)
    _check_bytes(chunk_bytes)
    positions = student.shape[:-1]
    dtype = _result_dtype(tensors, teacher)
    weights = position_weights(_CALL, positions, mask, weight, labels, ignore_index, student.device, dtype)
    if isinstance(teacher, TopK | SampledTail):
        teacher_head = _rows_of(teacher, kind, student_weight.shape[0], temperature, student.device)
        log_probs = tensors[3] if isinstance(teacher, TopK) else teacher_head.log_probs
        tensors = [*_in_autocast_dtype(tensors[:3]), log_probs]
    else:
        tensors = _same_vocabulary(_in_autocast_dtype(tensors), vocabulary)
    tensors[::3] = [None if x is None else x.reshape(positions.numel(), x.shape[-1]) for x in tensors[::3]]
    scale = float(temperature**2) if temperature_squared else 1.0
    known = (
        min(x.shape[0] for x in tensors[1::3] if x is not None)
        if vocabulary == "truncate"
        else student_weight.shape[0]
    )
    hard = hard_labels(_CALL, labels, label_weight, weights, known, scale)
    if hard is not None:
        scale = 1.0
    stored = None if isinstance(teacher_head, Head) else teacher_head.indices
    inspected = [*tensors, weights, stored, None if hard is None else hard.classes]
    chunked = all(_is_ordinary(x) for x in inspected if x is not None)
    counted = _counted(weights) if chunked else None
    shares = None
    if word != "none":
        shares, factor = divided(_CALL, weights, normalizer, word, positions, student.device, dtype)
        scale *= factor
    constant = None if shares is None else shares.reshape(-1)
    spec = HeadSpec(
        student_head, teacher_head, kind, temperature, scale, dtype, constant, counted, chunk_bytes, hard
    )
    if word != "none" and (constant is None or not constant.requires_grad or not chunked):
        return (
            FusedTotal.apply(spec, torch.is_grad_enabled(), *tensors)
            if chunked
            else spec.reference_total(tensors)
        )
    excluded = None if weights is None else weights.reshape(-1) == 0
    values = FusedRows.apply(spec, *tensors) if chunked else spec.reference_rows(tensors, excluded)
    values = values.reshape(positions) * scale
    shares = weights if word == "none" else shares
    if shares is not None:
        values = values * shares.to(dtype)
    return values if word == "none" else values.sum()


def _result_dtype(tensors: list[Tensor | None], teacher: Tensor | TopK | SampledTail) -> torch.dtype:
    """Return the dtype of the loss; that of a sampled teacher's numbers does not count."""
    counted = tensors[:3] if isinstance(teacher, SampledTail) else tensors
    is_double = any(x is not None and x.dtype == torch.float64 for x in counted)
    return torch.float64 if is_double else torch.float32


def _rows_of(
    teacher: TopK | SampledTail, kind: Divergence, classes: int, temperature: float, device: torch.device
) -> TopKRows | SampledRows:
    if isinstance(teacher, TopK):
        rows = TopKRows.of(kind, teacher, classes, temperature, accurate_dtype(device))
        return rows._replace(
            log_probs=rows.log_probs.detach()
        )  # what is differentiated comes as a tensor of its own
    return SampledRows.of(kind, teacher, accurate_dtype(device))


def _is_ordinary(x: Tensor) -> bool:
    """Tell whether the chunked sweep takes a tensor: it has values to look at and no forward-mode tangent."""
    return can_inspect(x) and forward_ad.unpack_dual(x).tangent is None


def _counted(weights: Tensor | None) -> Tensor | None:
    """Return the indices of the positions that count, None for all."""
    if weights is None:
        return None
    indices = weights.detach().reshape(-1).nonzero().squeeze(-1)
    return None if indices.numel() == weights.numel() else indices


def _is_autocast_on(device: str) -> bool:
    # torch 2.10 does not compile the question whether a device has autocast; what it compiles for has.
    is_available = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)
    return is_available and torch.is_autocast_enabled(device)


def _in_autocast_dtype(tensors: list[Tensor | None]) -> list[Tensor | None]:
    """Cast to the dtype of autocast where that is on, except float64."""
    device = tensors[0].device.type if tensors[0] is not None else "cpu"
    if not _is_autocast_on(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return [x if x is None or x.dtype == torch.float64 else x.to(dtype) for x in tensors]


def _heads(softcap: EachSide, logit_scale: EachSide, float32_logits: bool) -> list[Head]:
    caps, scales = _each_side("softcap", softcap, 30.0), _each_side("logit_scale", logit_scale, 0.0625)
    return [
        Head(1.0 if scale is None else float(scale), None if cap is None else float(cap), float32_logits)
        for scale, cap in zip(scales, caps, strict=True)
    ]


def _each_side(name: str, given: EachSide, example: float) -> tuple[float | None, float | None]:
    """Return a number for the student and one for the teacher."""
    pair = given if isinstance(given, tuple) else (given, given)
    good = len(pair) == 2 and all(
        x is None or (isinstance(x, int | float) and 0 < number_from(x) < math.inf) for x in pair
    )
    if not good:
        raise invalid_value(
            _CALL,
            name,
            wanted="a positive number or None, or a pair of these for student and teacher",
            got=safe_repr(given),
            instead=f"{name}={example} or {name}=(None, {example})",
        )
    return pair


def _check_bytes(chunk_bytes: int | None) -> None:
    if chunk_bytes is not None and (not isinstance(chunk_bytes, int) or chunk_bytes <= 0):
        raise invalid_value(
            _CALL,
            "chunk_bytes",
            wanted="a positive number of bytes, or None",
            got=safe_repr(chunk_bytes),
            instead="chunk_bytes=64 << 20",
        )


def _same_vocabulary(tensors: list[Tensor | None], vocabulary: Vocabulary) -> list[Tensor | None]:
    sizes = [x.shape[0] for x in (tensors[1], tensors[4]) if x is not None]
    if sizes[0] == sizes[1] or vocabulary == "mask":
        return tensors
    if vocabulary == "error":
        raise invalid_value(
            _CALL,
            "student_weight",
            wanted=f"as many classes as teacher_weight, {sizes[1]}",
            got=f"{sizes[0]}",
            instead="vocabulary='truncate' if the first classes of both mean the same",
        )
    shared = min(sizes)
    return [x if x is None or i % 3 == 0 else x[:shared] for i, x in enumerate(tensors)]


def _check_tensors(tensors: list[Any]) -> None:
    for name, x, ndim in zip(_NAMES, tensors, (None, 2, 1) * 2, strict=True):
        if x is not None or ndim != 1:
            _check_tensor(name, x, ndim)
    _check_positions(tensors[0], tensors[3].shape[:-1])
    _check_devices(tensors)
    for side in (0, 3):
        _check_head(_NAMES[side], *tensors[side : side + 3])


def _check_sparse(
    tensors: list[Any], teacher: TopK | SampledTail, kind: Divergence, temperature: float
) -> None:
    """Raise unless a teacher of some classes goes with the student's head, and has none itself."""
    for name, x, ndim in zip(_NAMES[:3], tensors[:3], (None, 2, 1), strict=True):
        if x is not None or ndim != 1:
            _check_tensor(name, x, ndim)
    for name, x in zip(_NAMES[4:], tensors[4:], strict=True):
        if x is not None:
            wanted, instead = f"none with a {type(teacher).__name__}, which has no head", f"{name}=None"
            raise invalid_value(_CALL, name, wanted=wanted, got=type(x).__name__, instead=instead)
    indices = teacher.indices if isinstance(teacher, TopK) else teacher.top.indices
    _check_positions(tensors[0], indices.shape[:-1])
    _check_devices([*tensors[:3], indices])
    _check_head("student", *tensors[:3])
    check = check_top_k if isinstance(teacher, TopK) else check_sampled_tail
    check(_CALL, kind, teacher, tensors[1].shape[0], temperature)  # pyright: ignore[reportArgumentType]


def _check_positions(student: Tensor, positions: torch.Size) -> None:
    if student.shape[:-1] != positions:
        raise invalid_value(
            _CALL,
            "student",
            wanted=f"the teacher's positions, shape {tuple(positions)}",
            got=f"shape {tuple(student.shape[:-1])}, hidden size left out",
            instead="the hidden states of the same positions of both, neither shifted nor cut",
        )


def _check_devices(tensors: list[Tensor | None]) -> None:
    device = tensors[0].device if tensors[0] is not None else None
    for name, x in zip(_NAMES, tensors, strict=False):
        if x is not None and x.device != device:
            raise invalid_value(
                _CALL,
                name,
                wanted=f"a tensor on {device}, where the student is",
                got=f"one on {x.device}",
                instead=f"{name}={name}.to(student.device)",
            )


def _check_tensor(name: str, x: object, ndim: int | None) -> None:
    if isinstance(x, Tensor):
        check_dense(_CALL, name, x)
    if isinstance(x, Tensor) and x.is_floating_point() and (x.ndim == ndim if ndim else x.ndim > 0):
        return
    shape = {None: "(..., hidden size)", 1: "(classes,)", 2: "(classes, hidden size)"}[ndim]
    raise invalid_type(
        _CALL,
        name,
        wanted=f"a floating-point tensor, shape {shape}",
        got=f"dtype {x.dtype}, shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__,
        instead=f"{name}=model(inputs, output_hidden_states=True).hidden_states[-1]"
        if ndim is None
        else f"{name}=model.lm_head.{'weight' if ndim == 2 else 'bias'}",
    )


def _check_head(side: str, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if weight.shape[1] != hidden.shape[-1]:
        raise invalid_value(
            _CALL,
            f"{side}_weight",
            wanted=f"a head for the hidden size of {side}, shape (classes, {hidden.shape[-1]})",
            got=f"shape {tuple(weight.shape)}",
            instead=f"the weight of the torch.nn.Linear that makes logits of {side}, not transposed",
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise invalid_value(
            _CALL,
            f"{side}_bias",
            wanted=f"a number for each class, shape ({weight.shape[0]},)",
            got=f"shape {tuple(bias.shape)}",
            instead=f"{side}_bias=None, or the bias that belongs to {side}_weight",
        )
    autocast = _is_autocast_on(hidden.device.type)
    for name, x in ((f"{side}_weight", weight), (f"{side}_bias", bias)):
        if x is not None and x.dtype != hidden.dtype and not autocast:
            raise invalid_type(
                _CALL,
                name,
                wanted=f"dtype {hidden.dtype}, that of {side}",
                got=f"dtype {x.dtype}",
                instead=f"{name}={name}.to({side}.dtype), or the call under torch.autocast",
            )
