"""The ranks of a process group: the collectives of the losses, and checks that all ranks make the same call."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kullback.common.dtypes import accurate_dtype
from kullback.common.inputs import can_inspect
from kullback.errors import KullbackError, invalid_type, invalid_value

# The number of integers that `agree` sends. The number is the same in all calls, because gloo aborts if a message has
# an unexpected length.
_HEADER = 32


class Ranks:
    """A process group and the rank of this process in it, for the function `call`. Raise unless `group` is a process
    group that contains this process.
    """

    def __init__(self, call: str, group: Any) -> None:
        member = dist.is_available() and isinstance(group, dist.ProcessGroup)
        if not member or dist.get_rank(group) < 0:
            outside = member or (dist.is_available() and group is dist.GroupMember.NON_GROUP_MEMBER)
            raise (invalid_value if outside else invalid_type)(
                call,
                "group",
                wanted="a process group of torch.distributed that contains this process",
                got="one without this process" if outside else type(group).__name__,
                instead="a call on the ranks of the group only"
                if outside
                else "group=torch.distributed.group.WORLD, or group=mesh.get_group('tp') of a DeviceMesh",
            )
        self.call = call
        self.group = group
        self.size = dist.get_world_size(group)
        self.rank = dist.get_rank(group)

    def gather(self, x: Tensor) -> Tensor:
        """Return the tensors of all ranks, which have equal shapes, stacked in rank order, shape (ranks, ...)."""
        gathered = x.new_empty(self.size, *x.shape)
        if x.numel():
            dist.all_gather(list(gathered.unbind(0)), x.contiguous(), group=self.group)
        return gathered

    def sum(self, x: Tensor) -> Tensor:
        """Overwrite the contiguous tensor `x` with its sum over all ranks, and return `x`."""
        if x.numel():
            dist.all_reduce(x, group=self.group)
        return x

    def exchange(self, pieces: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
        """Send the one-dimensional `pieces[i]` to rank i. Return the pieces for this rank, of these sizes, joined."""
        sent = torch.cat(list(pieces))
        received = sent.new_empty(sum(sizes))
        dist.all_to_all_single(
            received, sent, list(sizes), [piece.numel() for piece in pieces], group=self.group
        )
        return received


def agree(
    ranks: Ranks,
    device: torch.device,
    *,
    same: Mapping[str, object],
    own: Mapping[str, int],
    problem: KullbackError | None,
) -> dict[str, list[int]]:
    """Return the integers of all ranks for each key of `own`, from one all-gather, which synchronizes an accelerator.
    Raise on every rank if a rank has a `problem`, or if `same` differs: integers, tensors of one, or objects with a
    repr. A key of `same` is the argument and a description, such as "student number of positions".
    """
    same = {"group call": ranks.call, **same}
    stand_ins = [0 if problem else _number(x) for x in same.values()]
    numbers = [int(problem is not None), *stand_ins, *own.values()]
    numbers += [0] * (_HEADER - len(numbers))
    # The numbers that are not tensors are copied to the device together, in one transfer.
    header = torch.tensor([0 if isinstance(x, Tensor) else x for x in numbers], device=device)
    for place, number in enumerate(numbers):
        if isinstance(number, Tensor):
            header[place] = number
    table = torch.stack(list(ranks.gather(header).unbind(0)), 1).tolist()
    if problem is not None:
        raise problem
    if any(table[0]):
        failed = [rank for rank, status in enumerate(table[0]) if status]
        wanted, got = "arguments that every rank of the group accepts", f"an error on {_named(failed)}"
        instead = f"the arguments that the error on {_named(failed)} asks for; this is rank {ranks.rank}"
        raise invalid_value(ranks.call, "group", wanted=wanted, got=got, instead=instead)
    for name, values in zip(same, table[1:], strict=False):
        others = [rank for rank, number in enumerate(values) if number != values[0]]
        if others:
            shown = "number" in name
            raise invalid_value(
                ranks.call,
                name.partition(" ")[0],
                wanted=f"the same {name.partition(' ')[2] or name} on every rank of the group",
                got=", ".join(map(str, values)) + " on ranks 0 to " + str(ranks.size - 1)
                if shown
                else f"a different one on {_named(others)} than on rank 0",
                instead="the same arguments on every rank, each with its own shard of the classes",
            )
    return dict(zip(own, table[1 + len(same) :], strict=False))


def check_first_derivative(ranks: Ranks, grad: Tensor) -> None:
    """Raise if torch differentiates or batches the backward pass, which receives the gradient `grad`."""
    if torch.is_grad_enabled() or not can_inspect(grad):
        wanted = "first derivatives only, from one backward pass at a time"
        got = "a differentiated or batched backward pass"
        instead = "loss.backward() or torch.autograd.grad(loss, inputs), without create_graph=True"
        raise invalid_value(ranks.call, "group", wanted=wanted, got=got, instead=instead)


def _number(value: object) -> Any:
    """Return `value` if it is an integer or a tensor. Return a hash of its repr if it is another object."""
    if isinstance(value, int | Tensor):
        return value
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=7).digest(), "big")


def _named(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def pattern(x: Tensor | None) -> Tensor | int:
    """Return a checksum of a tensor of integers or booleans: a weighted sum of its elements. For None, return 0."""
    if x is None:
        return 0
    places = torch.arange(1, x.numel() + 1, device=x.device) * 0x9E3779B97F4A7C15 % (1 << 61)
    return (places * (x.reshape(-1).long() + 1)).sum()


def stacked(numbers: Sequence[Tensor]) -> Tensor:
    """Return a matrix of these columns, one number for each row, in the device's most accurate dtype."""
    return torch.stack(list(numbers), -1).to(accurate_dtype(numbers[0].device))
