"""One training step of distillation, split over processes in four ways; all give the gradient of one process.

Run it with: torchrun --nproc-per-node 2 examples/parallel_training.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from kullback import JensenShannon
from kullback.functional import distillation_loss, linear_distillation_loss


class Model(nn.Module):
    """A model of the next class."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, size)
        self.mix = nn.Linear(size, size)
        self.head = nn.Linear(size, classes, bias=False)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the input of the head."""
        return torch.tanh(self.mix(self.embedding(tokens)))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.hidden(tokens))


def counted_by_rank(mask: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the number of counted positions of all ranks, divided by the number of ranks."""
    count = mask.sum().float()
    dist.all_reduce(count, group=group)
    return (count / dist.get_world_size(group)).clamp(min=1)


def data_parallel(
    model: Model, teacher: Model, tokens: Tensor, mask: Tensor, group: dist.ProcessGroup
) -> Tensor:
    """Each rank has some of the sequences, or a part of each; DDP averages the gradients over the ranks."""
    replica = DistributedDataParallel(model, process_group=group)
    with torch.no_grad():
        target = teacher(tokens)
    loss = distillation_loss(
        student=replica(tokens), teacher=target, mask=mask, normalizer=counted_by_rank(mask, group)
    )
    loss.backward()
    return loss


def fully_sharded(
    model: Model, teacher: Model, tokens: Tensor, mask: Tensor, group: dist.ProcessGroup
) -> Tensor:
    """Each rank also has a part of the parameters; the call of the loss does not change."""
    fully_shard(model, mesh=DeviceMesh.from_group(group, tokens.device.type))
    with torch.no_grad():
        target = teacher(tokens)
    loss = distillation_loss(
        student=model(tokens), teacher=target, mask=mask, normalizer=counted_by_rank(mask, group)
    )
    loss.backward()
    return loss


def tensor_parallel(
    model: Model, teacher: Model, tokens: Tensor, mask: Tensor, group: dist.ProcessGroup
) -> Tensor:
    """Each rank has all positions and some of the classes: the logits stay sharded, as the heads compute them."""
    mesh = DeviceMesh.from_group(group, tokens.device.type)
    for side in (model, teacher):
        parallelize_module(side, mesh, {"head": ColwiseParallel(use_local_output=False)})
    with torch.no_grad():
        target = teacher(tokens)
    loss = distillation_loss(student=model(tokens), teacher=target, mask=mask, kind=JensenShannon())
    loss.backward()
    return loss


def sharded_head(
    model: Model, teacher: Model, tokens: Tensor, mask: Tensor, group: dist.ProcessGroup
) -> Tensor:
    """The same without DTensors, and without storing logits: each rank passes the rows of the heads for its classes."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    with torch.no_grad():
        target = teacher.hidden(tokens)
    loss = linear_distillation_loss(
        student=model.hidden(tokens),
        student_weight=model.head.weight.tensor_split(size)[rank],
        teacher=target,
        teacher_weight=teacher.head.weight.detach().tensor_split(size)[rank],
        mask=mask,
        kind=JensenShannon(),
        group=group,
    )
    loss.backward()
    return loss


def data(classes: int = 32) -> tuple[Model, Model, Tensor, Tensor]:
    """Return a student, a teacher, four sequences, and which positions count; the same on every rank."""
    torch.manual_seed(0)
    tokens = torch.randint(classes, (4, 6))
    return Model(classes, 8), Model(classes, 16), tokens, torch.rand(4, 6) < 0.7


def main() -> None:
    dist.init_process_group("gloo")
    group, rank, size = dist.new_group(), dist.get_rank(), dist.get_world_size()
    for step in (data_parallel, fully_sharded):
        model, teacher, tokens, mask = data()
        loss = step(model, teacher, tokens.tensor_split(size)[rank], mask.tensor_split(size)[rank], group)
        dist.all_reduce(loss := loss.detach())
        if rank == 0:
            print(f"{step.__name__}: {loss / size:.6f}")
    for step in (tensor_parallel, sharded_head):
        loss = step(*data(), group)
        if rank == 0:
            print(f"{step.__name__}: {loss:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
