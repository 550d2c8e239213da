"""Losses with their arguments whole, and the same with the classes sharded in one of several ways."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kullback import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    Jeffreys,
    JensenShannon,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
)
from kullback.functional import PartialTeacher, TopK, distillation_loss
from tests.parallel.world import Rank

KINDS: list[Divergence] = [
    KL(),
    ReverseKL(),
    Jeffreys(),
    SkewKL(0.1),
    SkewKL(0.0),
    JensenShannon(),
    JensenShannon(0.3),
    JensenShannon(1.0, scaled=True),
    TotalVariation(),
    SquaredHellinger(),
    ChiSquared(),
    Alpha(-0.5),
    Alpha(0.3),
    Alpha(1.0),
    Alpha(3.0),
    Renyi(0.0),
    Renyi(0.5),
    Renyi(0.999),
    Renyi(1.0),
    Renyi(2.0),
    Renyi(40.0),
    Renyi(math.inf),
]
CLASSES = 11


def even(classes: int, size: int) -> list[int]:
    return [len(x) for x in torch.arange(classes).tensor_split(size)]


def chunked(classes: int, size: int) -> list[int]:
    """As DTensor cuts: ceil(classes / size) each, the last may be short or empty."""
    step = -(-classes // size)
    return [max(0, min(step, classes - step * rank)) for rank in range(size)]


def ragged(classes: int, size: int) -> list[int]:
    """One shard of a single class, one of the rest, others empty."""
    return [1, classes - 1, *[0] * (size - 2)] if size > 1 else [classes]


def late(classes: int, size: int) -> list[int]:
    """An empty shard first, and a different cut than all above."""
    return [0, *even(classes, size - 1)] if size > 1 else [classes]


Cut = Callable[[int, int], list[int]]


@dataclass(frozen=True)
class Loss:
    """One call of `distillation_loss`."""

    student: Tensor
    teacher: Tensor | PartialTeacher
    options: dict[str, Any] = field(default_factory=dict)
    cut: Cut = even
    teacher_cut: Cut | None = None
    to_teacher: bool = True

    def whole(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """Value and gradients from all classes in one process, for logits cast to `dtype`."""
        student = self.student.detach().to(dtype or self.student.dtype).requires_grad_()
        teacher = self.teacher
        if isinstance(teacher, Tensor):
            teacher = teacher.detach().to(dtype or teacher.dtype).requires_grad_(self.to_teacher)
        loss = distillation_loss(student=student, teacher=teacher, **self.options)
        return _with_gradients(loss, student, teacher)

    def sharded(self, place: Rank) -> dict[str, Tensor]:
        """Value and this rank's gradients."""
        student = place.cut(
            self.student.detach().requires_grad_(), self.cut(self.student.shape[-1], place.size)
        )
        teacher = self.teacher
        if isinstance(teacher, Tensor):
            cut = (self.teacher_cut or self.cut)(teacher.shape[-1], place.size)
            teacher = place.cut(teacher.detach().requires_grad_(self.to_teacher), cut)
        loss = distillation_loss(student=student, teacher=teacher, group=place.group, **self.options)
        return _with_gradients(loss, student, teacher)


def _with_gradients(loss: Tensor, student: Tensor, teacher: Any) -> dict[str, Tensor]:
    # A gradient that differs from row to row where there is one loss for each.
    upstream = torch.linspace(0.5, 2.0, max(loss.numel(), 1), dtype=loss.dtype)[: loss.numel()].reshape(
        loss.shape
    )
    loss.backward(upstream)
    found = {"value": loss.detach(), "student": student.grad}
    if isinstance(teacher, Tensor) and teacher.requires_grad:
        found["teacher"] = teacher.grad
    return {name: x for name, x in found.items() if x is not None}


def rows(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Student and teacher: ordinary rows, and every edge."""
    generator = torch.Generator().manual_seed(7)
    student = 2 * torch.randn(14, CLASSES, generator=generator, dtype=torch.float64)
    teacher = 2 * torch.randn(14, CLASSES, generator=generator, dtype=torch.float64)
    inf = math.inf
    teacher[1] = student[1]  # equal
    teacher[2] = student[2] + 1e-6 * teacher[2]  # nearly
    student[3:5], teacher[3:5] = (x[3:5].mul(256).round().div(256) for x in (student, teacher))
    far = 2.0**20 if dtype == torch.float64 else 2.0**10
    student[3] += far  # far from 0; without rounding
    teacher[4] = student[4] - far + teacher[4] / 256
    student[5, 8] += 60  # nearly all mass in one class
    teacher[6, 0] += 800
    student[7, 4] = teacher[7, 4] = -inf  # masked on both sides
    teacher[8, :6] = -inf  # no mass of P on whole shards
    student[9, 6:] = teacher[9, 6:] = -inf  # neither side has mass on whole shards
    student[10, 2] = -inf  # infinite for some kinds
    teacher[11, 3] = -inf
    student[12, :5] = -inf  # nothing in common
    teacher[12, 5:] = -inf
    student[13] = teacher[13] = 0.0  # ties for the most mass
    return student.to(dtype), teacher.to(dtype)


def of_kind(kind: Divergence, cut: Cut) -> Loss:
    return Loss(*rows(), {"kind": kind, "reduction": "none"}, cut)


def plain(seed: int = 3, leading: tuple[int, ...] = (6,), classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (
        torch.randn(*leading, classes, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    return student, teacher


def top_k(tail: Any, log_probs: Tensor, k: int = 4) -> TopK:
    values, indices = log_probs.topk(k)
    values[0, -1] = -math.inf  # padding
    indices[0, -1] = 0
    return TopK(indices, values, tail)
