"""Losses from two logits tensors, forward and backward: kullback against torch, TRL and torchtune.

    python benchmarks/bench_rows.py [--quick]

The gradient goes to the student. `clone` copies the student's logits: the cost of reading and writing them once.
"""

from __future__ import annotations

import torch
from peers import ROW_LOSSES, RowLoss
from timing import Benchmark, Case, Step, main
from torch import Tensor

from kullback import KL, JensenShannon, ReverseKL
from kullback.functional import distillation_loss
from kullback.generators import Divergence

SHAPES = [(4096, 1000), (512, 32_000), (128, 128_256), (64, 262_144)]
DTYPES = ["float32", "bfloat16"]
KINDS: dict[str, Divergence] = {"KL": KL(), "reverse KL": ReverseKL(), "JS": JensenShannon()}


def logits(case: Case) -> tuple[Tensor, Tensor]:
    """A student's and a teacher's logits, with a difference typical of a model in training."""
    shape, dtype = (case["rows"], case["classes"]), getattr(torch, case["dtype"])
    teacher = 3 * torch.randn(shape)
    student = teacher + 0.5 * torch.randn(shape)
    return student.to(dtype), teacher.to(dtype)


def ours(kind: Divergence, *, inplace: bool = False) -> RowLoss:
    def loss(student: Tensor, teacher: Tensor) -> Tensor:
        return distillation_loss(
            student=student, teacher=teacher, kind=kind, reduction="batchmean", inplace_backward=inplace
        )

    return loss


class Layer(torch.autograd.Function):
    """Replaces the model's last layer: its output is not a leaf tensor, and it receives the gradient of the logits."""

    @staticmethod
    def forward(_ctx: object, _parameter: Tensor, logits: Tensor) -> Tensor:
        return logits.detach()

    @staticmethod
    def backward(_ctx: object, _gradient: Tensor) -> tuple[None, None]:
        return None, None


def stepper(loss: RowLoss, student: Tensor, teacher: Tensor, original: Tensor) -> Step:
    """Forward and backward. Before every step, the student's logits are newly written, as by a model."""
    parameter = torch.zeros((), requires_grad=True)

    def run() -> Tensor:
        value = loss(Layer.apply(parameter, student), teacher)
        value.backward()
        return value

    return Step(run, lambda: student.copy_(original))


def build(case: Case) -> dict[str, Step]:
    original, teacher = logits(case)
    student = original.clone()
    losses = {f"{name}: kullback": ours(kind) for name, kind in KINDS.items()}
    losses |= {f"{name}: kullback in place": ours(kind, inplace=True) for name, kind in KINDS.items()}
    losses |= ROW_LOSSES
    steps = {name: stepper(loss, student, teacher, original) for name, loss in sorted(losses.items())}
    steps["clone"] = Step(student.clone, lambda: student.copy_(original))
    return steps


def cases(shapes: list[tuple[int, int]]) -> list[Case]:
    return [{"rows": n, "classes": v, "dtype": dtype} for n, v in shapes for dtype in DTYPES]


BENCHMARK = Benchmark(name="rows", cases=cases(SHAPES), quick=cases([(64, 100)]), build=build, seconds=20)

if __name__ == "__main__":
    main(BENCHMARK, __file__, __doc__)
