"""The classes of each rank, and the exchange of logits between ranks if student and teacher are sharded differently."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from kullback.errors import invalid_value, safe_repr
from kullback.parallel.collectives import Ranks, check_first_derivative

Ranges = list[tuple[int, int]]

_MODULE = "torch.distributed.tensor"
_COMMON = frozenset((Tensor, torch.nn.Parameter, type(None)))


def is_dtensor(x: object) -> bool:
    """Return whether `x` is a DTensor. The check does not import the module that defines DTensor."""
    return isinstance(x, Tensor) and _is_of_dtensors(type(x))


def has_dtensor(tensors: Collection[object]) -> bool:
    """Return whether any of `tensors` is a DTensor."""
    return any(map(_is_of_dtensors, set(map(type, tensors)) - _COMMON))


def _is_of_dtensors(kind: type) -> bool:
    return kind.__module__.startswith(_MODULE)


def mesh_group(call: str, name: str, x: Any, dim: int) -> tuple[Any, Any, int]:
    """Return the process group that shards `dim`, the device mesh and its dimension. Raise unless exactly one mesh
    dimension shards `dim`, and no other dimension is sharded.
    """
    placements = x.placements
    sharding = [i for i, p in enumerate(placements) if p.is_shard() and p.dim % x.ndim == dim % x.ndim]
    others = [p for i, p in enumerate(placements) if i not in sharding and not p.is_replicate()]
    if len(sharding) != 1 or others:
        raise invalid_value(
            call,
            name,
            wanted=f"a DTensor with Shard({dim}) in one dimension of its mesh and Replicate() in the others",
            got=f"placements {tuple(placements)}",
            instead=f"{name}={name}.to_local() of the rows of this rank with group=mesh.get_group('tp'), and "
            "normalizer= for a mean over the rows of all ranks",
        )
    mesh = x.device_mesh
    return mesh.get_group(sharding[0]), mesh, sharding[0]


def local_part(call: str, name: str, x: Any, mesh: Any, mesh_dim: int, dim: int | None) -> Tensor:
    """Return this rank's part of dimension `dim` of a DTensor or complete tensor; all of it if `dim` is None."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    placements: list[Any] = [Replicate()] * mesh.ndim
    if not is_dtensor(x):
        x = DTensor.from_local(x, mesh, placements, run_check=False)
    if dim is not None:
        placements[mesh_dim] = Shard(dim % x.ndim)
    if x.device_mesh != mesh:
        wanted, got = f"a DTensor on the same mesh as the other side, {mesh}", f"one on {x.device_mesh}"
        raise invalid_value(call, name, wanted=wanted, got=got, instead=f"{name}={name}.full_tensor()")
    return cast("Tensor", x.redistribute(placements=placements).to_local())


class Sides(NamedTuple):
    """For each rank, the classes of its shard of the student and of the teacher, and the classes it computes."""

    ranks: Ranks
    student: Ranges
    teacher: Ranges
    meeting: Ranges

    @classmethod
    def between(
        cls,
        ranks: Ranks,
        student: Sequence[int],
        teacher: Sequence[int] | None,
        *,
        classes: int | None,
        vocabulary: str,
        names: tuple[str, str] = ("student", "teacher"),
    ) -> Sides:
        """Return the ranges for these numbers of classes on the ranks; `teacher` is None if it is not sharded. `names`
        are the arguments with the classes, for messages.
        """
        cuts = [_ranges(sizes) for sizes in (student, student if teacher is None else teacher)]
        totals = [cut[-1][1] for cut in cuts]
        if classes is not None:
            if classes > min(totals):
                wanted = f"at most the number of classes that all shards have together, {min(totals)}"
                got, instead = safe_repr(classes), f"classes={min(totals)}, or None without padding"
                raise invalid_value(ranks.call, "classes", wanted=wanted, got=got, instead=instead)
            totals = [classes, classes]
        if totals[0] != totals[1] and vocabulary == "error":
            _refuse_totals(ranks, list(student), list(teacher or student), names)
        if vocabulary == "truncate":
            totals = [min(totals)] * 2
        cuts = [_clipped(cut, total) for cut, total in zip(cuts, totals, strict=True)]
        last = max(totals)
        meeting = [*cuts[0][:-1], (min(cuts[0][-1][0], last), last)]
        return cls(ranks, cuts[0], cuts[1], meeting)

    @property
    def classes(self) -> int:
        """The number of classes of a row, after student and teacher are clipped or padded to the same number."""
        return self.meeting[-1][1]

    @property
    def own(self) -> tuple[int, int]:
        """The range of classes that this rank computes."""
        return self.meeting[self.ranks.rank]

    def student_part(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return this rank's shard `x` of the student without the classes of padding."""
        start, stop = self.student[self.ranks.rank]
        return x if x.shape[dim] == stop - start else x.narrow(dim, 0, stop - start)

    def teacher_part(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return the teacher's part for this rank's classes from its shard `x`; other ranks send the rest."""
        start, stop = self.teacher[self.ranks.rank]
        x = x if x.shape[dim] == stop - start else x.narrow(dim, 0, stop - start)
        last = self.teacher[-1][1]
        wanted = _clipped(self.meeting, last)
        # Two empty ranges count as equal, because no class needs to be sent for either.
        if all(
            have == want or (have[0] == have[1] and want[0] == want[1])
            for have, want in zip(self.teacher, wanted, strict=True)
        ):
            return x
        return cast("Tensor", _Exchange.apply(x, self.ranks, self.teacher, wanted, dim))

    def padded(self, x: Tensor) -> Tensor:
        """Return the logits `x` with -inf appended for classes of this rank that the student or the teacher lacks."""
        start, stop = self.own
        lacking = stop - start - x.shape[-1]
        return torch.nn.functional.pad(x, (0, lacking), value=-math.inf) if lacking else x


def _ranges(sizes: Sequence[int]) -> Ranges:
    ends = list(accumulate(sizes))
    return [(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _clipped(ranges: Ranges, last: int) -> Ranges:
    return [(min(start, last), min(stop, last)) for start, stop in ranges]


def _refuse_totals(ranks: Ranks, student: list[int], teacher: list[int], names: tuple[str, str]) -> None:
    total = sum(student)
    start = sum(student[: ranks.rank])
    whole = all(size == total for size in teacher)
    raise invalid_value(
        ranks.call,
        names[1],
        wanted=f"shards with as many classes in total as {names[0]}, {total}",
        got=f"{sum(teacher)}: {', '.join(map(str, teacher))} on ranks 0 to {ranks.size - 1}",
        instead=f"{names[1]}={names[1]}[..., {start}:{start + student[ranks.rank]}], the part of this rank"
        if whole
        else "vocabulary='truncate' if the first classes of both mean the same, or classes= if the last are padding",
    )


class _Exchange(torch.autograd.Function):
    """The autograd function that sends slices of one dimension to the ranks that need them.

    The forward pass and the backward pass make one all-to-all collective each.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, have: Ranges, want: Ranges, dim: int) -> Tensor:
        ctx.arguments = ranks, have, want, dim
        return _exchanged(x, ranks, have, want, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ranks, have, want, dim = ctx.arguments
        check_first_derivative(ranks, grads[0])
        return _exchanged(grads[0], ranks, want, have, dim), None, None, None, None


def _exchanged(x: Tensor, ranks: Ranks, have: Ranges, want: Ranges, dim: int) -> Tensor:
    def overlap(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        start, stop = max(a[0], b[0]), min(a[1], b[1])
        return start, max(stop, start)

    own = have[ranks.rank]
    pieces = [
        x.narrow(dim, start - own[0] if stop > start else 0, stop - start).reshape(-1)
        for start, stop in (overlap(own, other) for other in want)
    ]
    shapes: list[list[int]] = []
    for other in have:
        start, stop = overlap(other, want[ranks.rank])
        shape = list(x.shape)
        shape[dim] = stop - start
        shapes.append(shape)
    sizes = [math.prod(shape) for shape in shapes]
    received = ranks.exchange(pieces, sizes).split(sizes)
    return torch.cat([part.reshape(shape) for part, shape in zip(received, shapes, strict=True)], dim)
