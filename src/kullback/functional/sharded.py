"""Functions for losses over sharded classes: this rank's tensors, and the checks that all ranks agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from kullback.errors import KullbackError, invalid_type
from kullback.functional.partial_teacher import PartialTeacher
from kullback.parallel.ranks import Ranks, agree, pattern
from kullback.parallel.shards import Sides, is_dtensor, local_shard, mesh_group, whole_on_every_rank

__all__ = ["agreed", "attempt", "head_parts", "local_heads", "local_logits", "requires_gradient"]

_T = TypeVar("_T")


def local_logits(call: str, student: Any, teacher: Any, group: Any) -> tuple[Any, Any, Ranks]:
    """Return this rank's logits of both sides, and the group; DTensors bring their group."""
    if not (is_dtensor(student) or is_dtensor(teacher)):
        return student, teacher, Ranks(call, group)
    if group is not None:
        raise invalid_type(
            call,
            "group",
            wanted="None with DTensors, which know how they are sharded",
            got=type(group).__name__,
            instead="group=None, or the shards of this rank: student.to_local(), teacher.to_local()",
        )
    name, sharded = ("student", student) if is_dtensor(student) else ("teacher", teacher)
    if is_dtensor(student) and is_dtensor(teacher) and _is_whole(student):
        name, sharded = "teacher", teacher
    group, mesh, dim = mesh_group(call, name, sharded, -1)
    sides = [
        local_shard(call, name, x, mesh, dim, -1) if isinstance(x, Tensor) else x
        for name, x in (("student", student), ("teacher", teacher))
    ]
    return sides[0], sides[1], Ranks(call, group)


def local_heads(call: str, names: Sequence[str], tensors: list[Any], group: Any) -> tuple[list[Any], Ranks]:
    """Return this rank's rows of weights and biases, all hidden states, and the group.

    Arguments:
        call: the function that the user called, for messages.
        names: the names of the tensors.
        tensors: hidden states, weight and bias of the student, then of the teacher.
        group: the process group; None with DTensors.
    """
    sharded = {name: x for name, x in zip(names, tensors, strict=True) if is_dtensor(x)}
    if not sharded:
        return tensors, Ranks(call, group)
    if group is not None:
        raise invalid_type(
            call,
            "group",
            wanted="None with DTensors, which know how they are sharded",
            got=type(group).__name__,
            instead="group=None, or the shards of this rank: student_weight=student_weight.to_local()",
        )
    weights = [name for name in sharded if name.endswith("weight")] or list(sharded)
    chosen = next((name for name in weights if not _is_whole(sharded[name])), weights[0])
    group, mesh, dim = mesh_group(call, chosen, sharded[chosen], 0)
    parts: list[Any] = []
    for i, (name, x) in enumerate(zip(names, tensors, strict=True)):
        if isinstance(x, Tensor):
            part = (
                local_shard(call, name, x, mesh, dim, 0)
                if i % 3
                else whole_on_every_rank(call, name, x, mesh)
            )
        else:
            part = x
        parts.append(part)
    return parts, Ranks(call, group)


def _is_whole(x: Any) -> bool:
    return all(placement.is_replicate() for placement in x.placements)


def head_parts(sides: Sides, tensors: list[Tensor | None]) -> list[Tensor | None]:
    """Return the hidden states and this rank's classes of the heads."""
    parts: list[Tensor | None] = []
    for i, x in enumerate(tensors):
        part = sides.student_part if i < 3 else sides.teacher_part
        parts.append(x if x is None or i % 3 == 0 else part(x, 0))
    return parts


def attempt(compute: Callable[[], _T]) -> tuple[_T | None, KullbackError | None]:
    """Return the result or the error. A rank must report its error to the other ranks before it raises."""
    try:
        return compute(), None
    except KullbackError as error:
        return None, error


def requires_gradient(*tensors: Tensor | None) -> int:
    """Return 1 if autograd will need a gradient of one of the tensors, else 0."""
    return int(torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors))


def agreed(
    ranks: Ranks,
    *,
    tensors: Mapping[str, Any],
    weights: Tensor | None,
    settings: Mapping[str, object],
    own: Mapping[str, int],
    problem: KullbackError | None,
) -> dict[str, list[int]]:
    """Return the numbers `own` of every rank. If the ranks' arguments disagree, raise on every rank.

    Arguments:
        ranks: the group.
        tensors: the tensors by the names of their arguments; the first has the positions as its leading dimensions.
        weights: the weights of the positions; all ranks must count the same positions.
        settings: other values that must agree, by the name of the argument.
        own: numbers that may differ.
        problem: the error of this rank's arguments, if any.
    """
    if problem is not None:
        device = next((x.device for x in tensors.values() if isinstance(x, Tensor)), _default_device(ranks))
        return agree(
            ranks,
            device,
            same=dict.fromkeys(_names(tensors, settings), 0),
            own=dict.fromkeys(own, 0),
            problem=problem,
        )
    first = next(iter(tensors.values()))
    teacher = tensors.get("teacher")
    classes = sum(map(pattern, teacher.index_tensors)) if isinstance(teacher, PartialTeacher) else 0
    values: list[object] = [
        first.shape[:-1].numel(),
        tuple(first.shape[:-1]),
        [getattr(x, "dtype", type(x)) for x in tensors.values()],
        pattern(None if weights is None else weights != 0),
        classes,
        *settings.values(),
    ]
    same = dict(zip(_names(tensors, settings), values, strict=True))
    return agree(ranks, first.device, same=same, own=own, problem=None)


def _names(tensors: Mapping[str, Any], settings: Mapping[str, object]) -> list[str]:
    """Return the names of the values that must agree: an argument and its property."""
    first = next(iter(tensors))
    return [
        f"{first} number of positions",
        f"{first} leading shape",
        f"{first} dtypes of student and teacher",
        "mask positions that count, by mask, weight and labels,",
        "teacher classes",
        *settings,
    ]


def _default_device(ranks: Ranks) -> torch.device:
    return torch.device("cuda" if dist.get_backend(ranks.group) == "nccl" else "cpu")
