"""Checks of the tensors of `linear_distillation_loss`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kullback.errors import invalid_type, invalid_value
from kullback.functional.partial_teacher import PartialTeacher
from kullback.generators import Divergence
from kullback.inputs import are_logits, check_dense

__all__ = ["CALL", "NAMES", "check_sparse", "check_tensors", "is_autocast_on"]

CALL = "linear_distillation_loss"
NAMES = ("student", "student_weight", "student_bias", "teacher", "teacher_weight", "teacher_bias")


def is_autocast_on(device: str) -> bool:
    """Return whether autocast chooses the dtype of matrix products."""
    # torch 2.10 cannot compile `is_autocast_available`; all devices that it compiles for have autocast.
    is_available = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)
    return is_available and torch.is_autocast_enabled(device)


def check_tensors(tensors: list[Any]) -> None:
    """Raise unless hidden states, weights and biases of both sides fit together."""
    for name, x, ndim in zip(NAMES, tensors, (None, 2, 1) * 2, strict=True):
        if x is not None or ndim != 1:
            _check_tensor(name, x, ndim)
    _check_positions(tensors[0], tensors[3].shape[:-1])
    _check_devices(tensors)
    for side in (0, 3):
        _check_head(NAMES[side], *tensors[side : side + 3])


def check_sparse(tensors: list[Any], teacher: PartialTeacher, kind: Divergence, temperature: float) -> None:
    """Raise unless a partial teacher fits the student's head and has no head itself."""
    for name, x, ndim in zip(NAMES[:3], tensors[:3], (None, 2, 1), strict=True):
        if x is not None or ndim != 1:
            _check_tensor(name, x, ndim)
    for name, x in zip(NAMES[4:], tensors[4:], strict=True):
        if x is not None:
            wanted, instead = f"none with a {type(teacher).__name__}, which has no head", f"{name}=None"
            raise invalid_value(CALL, name, wanted=wanted, got=type(x).__name__, instead=instead)
    indices = teacher.kept_indices
    _check_positions(tensors[0], indices.shape[:-1])
    _check_devices([*tensors[:3], indices])
    _check_head("student", *tensors[:3])
    teacher.check_settings(CALL, kind, temperature)


def _check_positions(student: Tensor, positions: torch.Size) -> None:
    if student.shape[:-1] != positions:
        raise invalid_value(
            CALL,
            "student",
            wanted=f"the teacher's positions, shape {tuple(positions)}",
            got=f"shape {tuple(student.shape[:-1])} without the hidden size",
            instead="the hidden states of the same positions of both, neither shifted nor cut",
        )


def _check_devices(tensors: list[Tensor | None]) -> None:
    device = tensors[0].device if tensors[0] is not None else None
    for name, x in zip(NAMES, tensors, strict=False):
        if x is not None and x.device != device:
            raise invalid_value(
                CALL,
                name,
                wanted=f"a tensor on {device}, where the student is",
                got=f"one on {x.device}",
                instead=f"{name}={name}.to(student.device)",
            )


def _check_tensor(name: str, x: Any, ndim: int | None) -> None:
    if are_logits(x) and (ndim is None or x.ndim == ndim):
        return
    if isinstance(x, Tensor):
        check_dense(CALL, name, x)
    if isinstance(x, Tensor) and x.is_floating_point() and (x.ndim == ndim if ndim else x.ndim > 0):
        return
    remedy = f"{name}=model(inputs, output_hidden_states=True).hidden_states[-1]"
    if name == "teacher" and isinstance(x, list | tuple):
        remedy = (
            f"sum({CALL}(student=student, student_weight=student_weight, teacher=h, teacher_weight=w) for h, w in "
            "zip(teacher, teacher_weight)) / len(teacher), with a head for each"
        )
    shape = {None: "(..., hidden size)", 1: "(classes,)", 2: "(classes, hidden size)"}[ndim]
    raise invalid_type(
        CALL,
        name,
        wanted=f"a floating-point tensor, shape {shape}",
        got=f"dtype {x.dtype}, shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__,
        instead=remedy if ndim is None else f"{name}=model.lm_head.{'weight' if ndim == 2 else 'bias'}",
    )


def _check_head(side: str, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if weight.shape[1] != hidden.shape[-1]:
        raise invalid_value(
            CALL,
            f"{side}_weight",
            wanted=f"a head for the hidden size of {side}, shape (classes, {hidden.shape[-1]})",
            got=f"shape {tuple(weight.shape)}",
            instead=f"the weight of the torch.nn.Linear that makes logits of {side}, not transposed",
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise invalid_value(
            CALL,
            f"{side}_bias",
            wanted=f"a number for each class, shape ({weight.shape[0]},)",
            got=f"shape {tuple(bias.shape)}",
            instead=f"{side}_bias=None, or the bias that belongs to {side}_weight",
        )
    autocast = is_autocast_on(hidden.device.type)
    for name, x in ((f"{side}_weight", weight), (f"{side}_bias", bias)):
        if x is not None and x.dtype != hidden.dtype and not autocast:
            raise invalid_type(
                CALL,
                name,
                wanted=f"dtype {hidden.dtype}, the dtype of {side}",
                got=f"dtype {x.dtype}",
                instead=f"{name}={name}.to({side}.dtype), or the call under torch.autocast",
            )
