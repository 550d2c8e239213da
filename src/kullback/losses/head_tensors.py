"""The tensors of a language-model head (hidden states, weight and bias), and checks that two heads fit together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from kullback.common.inputs import all_recordable, are_logits, check_dense, described, is_other_storage
from kullback.errors import ArgumentValueError, invalid_type, invalid_value
from kullback.losses.settings import LossSettings
from kullback.losses.teachers import PartialTeacher, check_positions

HEAD_CALL = "linear_distillation_loss"


class HeadTensors(NamedTuple):
    """Hidden states, weight and bias of one head; or their gradients, flags or argument names."""

    hidden: Any
    weight: Any
    bias: Any

    def map_rows(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the tensors with `function` applied to the hidden states, which have one row for each position."""
        return self if self.hidden is None else self._replace(hidden=function(self.hidden))

    def map_classes(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the tensors with `function` applied to weight and bias, which have one row for each class."""
        return self._replace(
            weight=function(self.weight), bias=None if self.bias is None else function(self.bias)
        )


STUDENT_NAMES = HeadTensors("student", "student_weight", "student_bias")
TEACHER_NAMES = HeadTensors("teacher", "teacher_weight", "teacher_bias")
CLASS_DIMS = HeadTensors(None, 0, 0)
"""For each tensor of a head, the dimension of the classes. For the hidden states, which have no such dimension, the
entry is None.
"""


def _is_autocast_on(device: str) -> bool:
    """Return whether autocast is on for the device, so that autocast chooses the dtype of matrix products."""
    # torch 2.10 cannot compile `is_autocast_available`. The call is skipped while torch compiles, because torch
    # compiles only for devices that have autocast.
    is_available = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)
    return is_available and torch.is_autocast_enabled(device)


def checked_tensors(
    student: HeadTensors, teacher: HeadTensors, stored: PartialTeacher | None, settings: LossSettings
) -> tuple[torch.dtype, list[HeadTensors]]:
    """Return the dtype of the loss and each head's tensors, which autograd can save, with a matrix of hidden states, in
    the dtype of autocast (except float64). Raise unless they fit. `stored` is a teacher without a head, or None.
    """
    heads = (
        [(STUDENT_NAMES, student)]
        if stored is not None
        else [(STUDENT_NAMES, student), (TEACHER_NAMES, teacher)]
    )
    present = [x for _, head in heads for x in head if x is not None]
    are_plain = are_logits(*present)
    for names, head in heads:
        for name, x, ndim in zip(names, head, (None, 2, 1), strict=True):
            is_absent = x is None and ndim == 1
            if not is_absent and not (are_plain and x is not None and ndim in (None, x.ndim)):
                _check_tensor(name, x, ndim)
    device = student.hidden.device
    autocast_dtype = torch.get_autocast_dtype(device.type) if _is_autocast_on(device.type) else None
    for names, head in heads:
        _check_head(names, head, autocast_dtype is not None)
    dtype = torch.float32
    for x in present:
        dtype = torch.promote_types(dtype, x.dtype)
    rows = teacher.hidden
    if stored is not None:
        _check_absent(teacher, stored)
        dtype = stored.result_dtype(dtype)
        stored.check_settings(HEAD_CALL, settings.kind, settings.temperature)
        rows = stored.kept_indices
    if student.hidden.shape[:-1] != rows.shape[:-1]:
        check_positions(HEAD_CALL, student.hidden, rows, "", last="hidden size", rows="hidden states")
    names = [*STUDENT_NAMES, *TEACHER_NAMES]
    for name, x in zip(names, [*student, rows, teacher.weight, teacher.bias], strict=True):
        if x is not None and x.device != device:
            raise _on_another_device(name, x, device)
    return dtype, [_recorded(head, autocast_dtype) for _, head in heads]


def _check_absent(teacher: HeadTensors, stored: PartialTeacher) -> None:
    for name, x in zip(TEACHER_NAMES[1:], teacher[1:], strict=True):
        if x is not None:
            wanted, instead = f"none with a {type(stored).__name__}, which has no head", f"{name}=None"
            raise invalid_value(HEAD_CALL, name, wanted=wanted, got=type(x).__name__, instead=instead)


def _on_another_device(name: str, x: Tensor, device: torch.device) -> ArgumentValueError:
    wanted, got = f"a tensor on {device}, where the student is", f"one on {x.device}"
    instead = f"{name}={name}.to(student.device)"
    if x.is_meta:
        got += ", which has no values, such as an offloaded weight"
        instead = f"{name} loaded to student.device, or distillation_loss with the model's logits"
    return invalid_value(HEAD_CALL, name, wanted=wanted, got=got, instead=instead)


def _check_tensor(name: str, x: Any, ndim: int | None) -> None:
    if isinstance(x, Tensor):
        check_dense(HEAD_CALL, name, x)
    if isinstance(x, Tensor) and x.is_floating_point() and (x.ndim == ndim if ndim else x.ndim > 0):
        if is_other_storage(x):  # not a DTensor, which this rank's part has already replaced
            got = f"a tensor of class {type(x).__name__}, such as a quantized weight"
            instead = f"{name}={name}.dequantize(), or distillation_loss with the model's logits"
            raise invalid_type(HEAD_CALL, name, wanted="a plain tensor", got=got, instead=instead)
        return
    remedy = f"{name}=model(inputs, output_hidden_states=True).hidden_states[-1]"
    if name == "teacher" and isinstance(x, list | tuple):
        remedy = (
            f"sum({HEAD_CALL}(student=student, student_weight=student_weight, teacher=h, teacher_weight=w) for h, w in "
            "zip(teacher, teacher_weight)) / len(teacher), with a head for each"
        )
    shape = {None: "(..., hidden size)", 1: "(classes,)", 2: "(classes, hidden size)"}[ndim]
    wanted = f"a floating-point tensor, shape {shape}"
    instead = remedy if ndim is None else f"{name}=model.lm_head.{'weight' if ndim == 2 else 'bias'}"
    raise invalid_type(HEAD_CALL, name, wanted=wanted, got=described(x), instead=instead)


def _check_head(names: HeadTensors, head: HeadTensors, is_autocast_on: bool) -> None:
    (hidden, weight, bias), side = head, names.hidden
    if weight.shape[1] != hidden.shape[-1]:
        wanted = f"a head for the hidden size of {side}, shape (classes, {hidden.shape[-1]})"
        got = f"shape {tuple(weight.shape)}"
        instead = f"the weight of the torch.nn.Linear that makes logits of {side}, not transposed"
        raise invalid_value(HEAD_CALL, names.weight, wanted=wanted, got=got, instead=instead)
    if bias is not None and bias.shape != weight.shape[:1]:
        wanted, got = f"a number for each class, shape ({weight.shape[0]},)", f"shape {tuple(bias.shape)}"
        instead = f"{names.bias}=None, or the bias that belongs to {names.weight}"
        raise invalid_value(HEAD_CALL, names.bias, wanted=wanted, got=got, instead=instead)
    for name, x in ((names.weight, weight), (names.bias, bias)):
        if x is not None and x.dtype != hidden.dtype and not is_autocast_on:
            wanted, got = f"dtype {hidden.dtype}, the dtype of {side}", f"dtype {x.dtype}"
            instead = f"{name}={name}.to({side}.dtype), or the call under torch.autocast"
            raise invalid_type(HEAD_CALL, name, wanted=wanted, got=got, instead=instead)


def _recorded(head: HeadTensors, autocast_dtype: torch.dtype | None) -> HeadTensors:
    hidden, *others = all_recordable(head)
    tensors = [hidden.reshape(hidden.shape[:-1].numel(), hidden.shape[-1]), *others]
    if autocast_dtype is not None:
        tensors = [x if x is None or x.dtype == torch.float64 else x.to(autocast_dtype) for x in tensors]
    return HeadTensors(*tensors)
