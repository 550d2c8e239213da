"""Functions for losses over sharded classes: this rank's tensors, and the checks that all ranks agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from kullback.errors import KullbackError, invalid_type
from kullback.losses.positions import Positions
from kullback.losses.teachers import PartialTeacher
from kullback.parallel.collectives import Ranks, agree, pattern
from kullback.parallel.shards import Sides, is_dtensor, local_part, mesh_group

_T = TypeVar("_T")


def local_tensors(
    call: str, tensors: Mapping[str, Any], dims: Sequence[int | None], group: Any
) -> tuple[list[Any], Ranks]:
    """Return this rank's part of each tensor, and the ranks. DTensors' device mesh gives the ranks. `dims` has the
    dimension of the classes of each tensor, or None if every rank has all classes. Other objects stay unchanged.
    """
    named = zip(tensors.items(), dims, strict=True)
    sharded = {name: (x, dim) for (name, x), dim in named if is_dtensor(x)}
    if not sharded:
        return list(tensors.values()), Ranks(call, group)
    by_class = [name for name, (_, dim) in sharded.items() if dim is not None] or list(sharded)
    is_cut = {name: not all(part.is_replicate() for part in sharded[name][0].placements) for name in by_class}
    name = next((name for name in by_class if is_cut[name]), by_class[0])
    if group is not None:
        wanted = "None with DTensors, which know how they are sharded"
        instead = f"group=None, or the shards of this rank: {name}={name}.to_local()"
        raise invalid_type(call, "group", wanted=wanted, got=type(group).__name__, instead=instead)
    sharded_tensor, sharded_dim = sharded[name]
    group, mesh, mesh_dim = mesh_group(call, name, sharded_tensor, sharded_dim or 0)
    parts: list[Any] = []
    for (name, x), dim in zip(tensors.items(), dims, strict=True):
        parts.append(local_part(call, name, x, mesh, mesh_dim, dim) if isinstance(x, Tensor) else x)
    return parts, Ranks(call, group)


def checked_on_every_rank(ranks: Ranks, check: Callable[[], _T], tensors: Iterable[object]) -> _T:
    """Return the result of `check` for this rank's arguments. Its error is raised on the other ranks too."""
    try:
        return check()
    except KullbackError as error:
        backend = dist.get_backend(ranks.group)
        default = torch.device("cuda" if backend == "nccl" else "cpu")
        device = next((x.device for x in tensors if isinstance(x, Tensor)), default)
        agree(ranks, device, same={}, own={}, problem=error)
        raise


def requires_gradient(*tensors: Tensor | None) -> int:
    """Return 1 if autograd will need the gradient of at least one of the tensors, else 0."""
    return int(torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors))


def agreed_sides(
    positions: Positions,
    ranks: Ranks,
    tensors: Mapping[str, Any],
    sizes: Mapping[str, int],
    *,
    same: Mapping[str, object],
    own: Mapping[str, int],
) -> tuple[Sides, dict[str, list[int]]]:
    """Return the shards of student and teacher, and the numbers of all ranks for each name in `sizes` and `own`. If
    values that must agree differ, every rank raises. `sizes` has this rank's number of classes by the argument with the
    classes: the student's first, then the teacher's, unless every rank has the full teacher. `same` has other values
    that must agree, and `own` numbers that may differ.
    """
    weights, labels, normalizer = positions.weights, positions.labels, positions.normalizer
    teacher = tensors["teacher"]
    stored = teacher.index_tensors if isinstance(teacher, PartialTeacher) else ()
    values: dict[str, object] = {
        "student number of positions": positions.shape.numel(),
        "student leading shape": tuple(positions.shape),
        "student dtypes of student and teacher": [getattr(x, "dtype", type(x)) for x in tensors.values()],
        "mask positions that count, by mask, weight and labels,": pattern(
            None if weights is None else weights != 0
        ),
        "teacher classes": sum(map(pattern, stored)),
        "labels classes at the positions that count": pattern(None if labels is None else labels.classes),
        "normalizer": None if isinstance(normalizer, Tensor) else normalizer,  # ranks cannot compare tensors
        **positions.settings._asdict(),
        **same,
    }
    numbers = agree(ranks, positions.device, same=values, own={**sizes, **own}, problem=None)
    student, teacher = sizes if len(sizes) == 2 else (*sizes, "teacher")
    settings = positions.settings
    sides = Sides.between(
        ranks,
        numbers[student],
        numbers.get(teacher),
        classes=settings.classes,
        vocabulary=settings.vocabulary,
        names=(student, teacher),
    )
    return sides, numbers
