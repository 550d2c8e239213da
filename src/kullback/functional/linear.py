"""The divergence of a student's predictions from a teacher's, from hidden states and heads: logits never whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.functional.head_chunks import FusedRows, FusedTotal, Head, HeadSpec
from kullback.functional.positions import (
    Vocabulary,
    check_classes,
    check_kind,
    check_normalizer,
    check_temperature,
    check_vocabulary,
    divided,
    named_kind,
    position_weights,
)
from kullback.functional.sharded import agreed, attempt, head_parts, local_heads, requires_gradient
from kullback.generators import KL, Divergence
from kullback.inputs import check_dense, check_flag, number_from, recordable
from kullback.parallel.ranks import Ranks
from kullback.parallel.rows import ShardedRows
from kullback.parallel.shards import Sides, is_dtensor
from kullback.reduction import Reduction, check_reduction
from kullback.representations import can_inspect

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["EachSide", "linear_distillation_loss"]

EachSide: TypeAlias = float | tuple[float | None, float | None] | None

_CALL = "linear_distillation_loss"
_KL = KL()
_NAMES = ("student", "student_weight", "student_bias", "teacher", "teacher_weight", "teacher_bias")


class _Settings(NamedTuple):
    """The arguments that are no tensors of this rank."""

    kind: Divergence
    temperature: float
    reduction: Reduction
    temperature_squared: bool
    normalizer: Tensor | float | None
    vocabulary: Vocabulary
    classes: int | None
    softcap: EachSide
    logit_scale: EachSide
    chunk_bytes: int | None
    float32_logits: bool

    def check(self) -> tuple[Reduction, list[Head]]:
        """Return the reduction and both heads, or raise."""
        check_kind(_CALL, self.kind)
        check_temperature(_CALL, self.temperature)
        word = check_reduction(_CALL, self.reduction)
        check_vocabulary(_CALL, self.vocabulary)
        check_flag(_CALL, "temperature_squared", self.temperature_squared)
        check_flag(_CALL, "float32_logits", self.float32_logits)
        check_normalizer(_CALL, self.normalizer, word)
        check_classes(_CALL, self.classes)
        heads = _heads(self.softcap, self.logit_scale, self.float32_logits)
        _check_bytes(self.chunk_bytes)
        return word, heads


class _Checked(NamedTuple):
    """What the checks of the arguments found."""

    word: Reduction
    heads: list[Head]
    weights: Tensor | None
    dtype: torch.dtype


def linear_distillation_loss(
    *,
    student: Tensor,
    student_weight: Tensor,
    teacher: Tensor,
    teacher_weight: Tensor,
    student_bias: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    softcap: EachSide = None,
    logit_scale: EachSide = 1.0,
    kind: Divergence | str = _KL,
    temperature: float = 1.0,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    labels: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    temperature_squared: bool = False,
    normalizer: Tensor | float | None = None,
    vocabulary: Vocabulary = "error",
    chunk_bytes: int | None = None,
    float32_logits: bool = False,
    group: ProcessGroup | None = None,
    classes: int | None = None,
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
        teacher: the teacher's hidden states, the same leading shape; the hidden size and the dtype may differ.
        teacher_weight: the teacher's head, shape (classes, its hidden size).
        student_bias: b, shape (classes,).
        teacher_bias: the teacher's, shape (classes,).
        softcap: c, beyond which no logit goes; None for no cap. A pair is (student's, teacher's).
        logit_scale: a, what the products are multiplied by before the cap. A pair is (student's, teacher's).
        kind: the divergence D, or its name such as ``"js:0.5"`` (`kullback.generators.parse`).
        temperature: T, which divides the logits of both.
        mask: which positions count, boolean, the leading shape. Finding them synchronizes an accelerator.
        weight: w, a non-negative number for each position, the leading shape.
        labels: a position whose label is `ignore_index` does not count; the leading shape.
        ignore_index: that label.
        reduction: ``"none"`` gives w D of each position, 0 where it does not count; ``"sum"`` their sum, ``"mean"`` the
            weighted mean over counted positions, and ``"batchmean"`` the sum divided by ``student.shape[0]``.
        temperature_squared: multiply by T squared, which keeps the size of the gradient.
        normalizer: what to divide the sum by instead, such as the number of counted positions of all micro-batches.
        vocabulary: what to do where the classes are not as many: ``"error"``, ``"truncate"`` or ``"mask"``, as
            `distillation_loss` does.
        chunk_bytes: what the logits of a chunk of positions may take, of both sides together. Left out, as many
            positions as take 32 MiB, and at least 128 (on an accelerator 512), as fewer make the products slow. The
            result depends on it by rounding alone.
        float32_logits: keep the logits of half-precision heads in float32. Rounding them to bfloat16 costs some
            percent of the gradient; this doubles the size of a chunk.
        group: the process group over which the classes are sharded: weights and biases hold the rows of this rank's
            classes, those of all ranks joined in rank order are the heads, and all else, the hidden states too, is the
            same on every rank.
        classes: the number of classes, if those beyond are padding, which counts as -inf; of all shards together.

    Returns:
        the loss, computed in float32 or better: a scalar, or the leading shape for ``"none"``; float64 if an argument
        is. 0 where nothing counts.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: shapes, devices, `reduction`, `temperature`, `vocabulary` or a number do not fit; or, on
            every rank of a group, one rank's arguments do not, or do not ask for the same as another's.

    Gradient:
        to hidden states, weights and biases of either side, where they require one; products that only a frozen one
        would need are left out. Of a reduced loss it is made in the forward pass; of ``"none"``, and in float16, the
        backward pass computes the logits anew. That of a half-precision weight is summed in float32 over more than 16
        chunks, in a buffer that is twice its size. Further and forward-mode derivatives, `torch.func` and
        `torch.compile` go over whole logits. Zero at positions that do not count. Under autocast the products are in
        its dtype.

    Sharded classes:
        As with `distillation_loss`, shards may be of any size, DTensors with ``Shard(0)`` in one dimension of their
        mesh need no `group`, and the gradient is that of the one loss that all ranks have. Forward, the ranks first
        exchange a few integers, then for each chunk of positions 4 numbers a row in an all-gather and at most 7 in an
        all-reduce; a `chunk_bytes` that all logits of a rank fit in makes it one chunk. Backward, the gradient by
        hidden states is summed over the ranks, in float32 or better: one all-reduce for each side that requires one. If
        the teacher's shards end elsewhere than the student's, the rows of its weight that a rank lacks come from the
        others. There are first derivatives alone.

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
    tensors = [student, student_weight, student_bias, teacher, teacher_weight, teacher_bias]
    ranks = None
    if group is not None or any(is_dtensor(x) for x in tensors):
        tensors, ranks = local_heads(_CALL, _NAMES, tensors, group)
        student = tensors[0]
    settings = _Settings(
        named_kind(kind),
        temperature,
        reduction,
        temperature_squared,
        normalizer,
        vocabulary,
        classes,
        softcap,
        logit_scale,
        chunk_bytes,
        float32_logits,
    )

    def check() -> _Checked:
        _check_tensors(tensors)
        word, heads = settings.check()
        is_double = any(x is not None and x.dtype == torch.float64 for x in tensors)
        dtype = torch.float64 if is_double else torch.float32
        positions, device = student.shape[:-1], student.device
        weights = position_weights(_CALL, positions, mask, weight, labels, ignore_index, device, dtype)
        return _Checked(word, heads, weights, dtype)

    sides = None
    if ranks is None or ranks.size == 1:
        checked = check()
    else:
        checked, sides = _agreed_sides(ranks, tensors, settings, check)
    word, heads, weights, dtype = checked
    tensors = [None if x is None else recordable(x) for x in tensors]
    positions = student.shape[:-1]
    tensors = _in_autocast_dtype(tensors)
    tensors = _same_vocabulary(tensors, vocabulary, classes) if sides is None else head_parts(sides, tensors)
    tensors[::3] = [None if x is None else x.reshape(positions.numel(), x.shape[-1]) for x in tensors[::3]]
    scale = float(temperature**2) if temperature_squared else 1.0
    chunked = all(_is_ordinary(x) for x in [*tensors, weights] if x is not None)
    counted = _counted(weights) if chunked else None
    shares = None
    if word != "none":
        shares, factor = divided(_CALL, weights, normalizer, word, positions, student.device, dtype)
        scale *= factor
    constant = None if shares is None else shares.reshape(-1)
    student_head, teacher_head = heads
    spec = HeadSpec(
        student_head, teacher_head, settings.kind, temperature, scale, dtype, constant, counted, chunk_bytes
    )
    if sides is not None:
        spec = _sharded(spec, sides, tensors, chunked)
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


def _agreed_sides(
    ranks: Ranks, tensors: list[Any], settings: _Settings, check: Callable[[], _Checked]
) -> tuple[_Checked, Sides]:
    """Check the arguments and return how the heads are sharded, or raise on every rank."""
    checked, problem = attempt(check)
    named: dict[str, Any] = dict(zip(_NAMES, tensors, strict=True))
    same = settings._asdict()
    if isinstance(settings.normalizer, Tensor):
        same["normalizer"] = None
    same["student_weight gradients that are required"] = [
        0 if problem else requires_gradient(x) for x in tensors
    ]
    own = {name: 0 if problem else named[name].shape[0] for name in ("student_weight", "teacher_weight")}
    weights = None if checked is None else checked.weights
    found = agreed(ranks, tensors=named, weights=weights, settings=same, own=own, problem=problem)
    sides = Sides.between(
        ranks,
        found["student_weight"],
        found["teacher_weight"],
        classes=settings.classes,
        vocabulary=settings.vocabulary,
        names=("student_weight", "teacher_weight"),
    )
    return cast("_Checked", checked), sides


def _sharded(spec: HeadSpec, sides: Sides, tensors: list[Tensor | None], chunked: bool) -> HeadSpec:
    """Let the ranks of a group work on their classes together."""
    if not chunked:
        raise invalid_type(
            _CALL,
            "group",
            wanted="tensors with values, outside torch.compile, torch.func and forward-mode differentiation",
            got="others",
            instead="the call outside the compiled or transformed function",
        )
    needed = requires_gradient(*tensors[3:]) > 0, requires_gradient(*tensors[:3]) > 0
    rows = ShardedRows(sides.ranks, spec.kind, float(spec.temperature), sides.classes, needed)
    return spec._replace(shards=rows, widest=max(stop - start for start, stop in sides.meeting))


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


def _same_vocabulary(
    tensors: list[Tensor | None], vocabulary: Vocabulary, classes: int | None
) -> list[Tensor | None]:
    sizes = [x.shape[0] for x in (tensors[1], tensors[4]) if x is not None]
    if classes is not None:
        check_classes(_CALL, classes, min(sizes))
        return [x if x is None or i % 3 == 0 else x[:classes] for i, x in enumerate(tensors)]
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


def _check_tensors(tensors: list[Tensor | None]) -> None:
    for name, x, ndim in zip(_NAMES, tensors, (None, 2, 1) * 2, strict=True):
        if x is not None or ndim != 1:
            _check_tensor(name, x, ndim)
    student, teacher = tensors[0], tensors[3]
    if student is None or teacher is None:  # told above
        return
    if student.shape[:-1] != teacher.shape[:-1]:
        raise invalid_value(
            _CALL,
            "student",
            wanted=f"the teacher's positions, shape {tuple(teacher.shape[:-1])}",
            got=f"shape {tuple(student.shape[:-1])}, hidden size left out",
            instead="the hidden states of the same positions of both, neither shifted nor cut",
        )
    for name, x in zip(_NAMES, tensors, strict=True):
        if x is not None and x.device != student.device:
            raise invalid_value(
                _CALL,
                name,
                wanted=f"a tensor on {student.device}, where the student is",
                got=f"one on {x.device}",
                instead=f"{name}={name}.to(student.device)",
            )
    for side in (0, 3):
        hidden, weight, bias = tensors[side : side + 3]
        if hidden is not None and weight is not None:
            _check_head(_NAMES[side], hidden, weight, bias)


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
