"""KL from hidden states and heads, forward and backward: kullback against whole logits and chunks of TRL and Liger.

    python benchmarks/bench_head.py [--quick]

The gradients go to the student's hidden states and head. `products` are the four matrix products alone, in one piece.
"""

from __future__ import annotations

import torch
from peers import HEAD_LOSSES, HeadLoss, has_liger, products
from timing import Benchmark, Case, Step, main
from torch import Tensor

from kullback.functional import linear_distillation_loss

SHAPES = [
    (1024, 128_256, 1024, "float32"),
    (512, 32_000, 4096, "float32"),
    (1024, 32_000, 1024, "float32"),
    # Without AMX or AVX-512 BF16, torch multiplies bfloat16 matrices at one or two GFLOP/s: this takes minutes.
    (1024, 128_256, 1024, "bfloat16"),
]


def tensors(case: Case) -> list[Tensor]:
    """The student's hidden states and head, and the teacher's, scaled so that logits have a spread of about 2."""
    dtype = getattr(torch, case["dtype"])
    shapes = [(case["rows"], case["hidden"]), (case["classes"], case["hidden"])]
    found = [torch.randn(shape).to(dtype) for shape in shapes * 2]
    for head in (found[1], found[3]):
        head.mul_(2 * case["hidden"] ** -0.5)
    return [x.requires_grad_(i < 2) for i, x in enumerate(found)]


def ours(h: Tensor, weight: Tensor, teacher_h: Tensor, teacher_weight: Tensor) -> Tensor:
    return linear_distillation_loss(
        student=h, student_weight=weight, teacher=teacher_h, teacher_weight=teacher_weight
    )


def stepper(loss: HeadLoss, arguments: list[Tensor]) -> Step:
    def forget() -> None:
        for x in arguments:
            x.grad = None

    return Step(lambda: loss(*arguments).backward(), forget)


def build(case: Case) -> dict[str, Step]:
    arguments = tensors(case)
    losses: dict[str, HeadLoss] = {"kullback": ours, **HEAD_LOSSES}
    steps = {name: stepper(loss, arguments) for name, loss in losses.items()}
    forget = steps["kullback"].prepare
    steps["products"] = Step(lambda: products(*arguments), forget)
    return steps


def cases(shapes: list[tuple[int, int, int, str]]) -> list[Case]:
    return [{"rows": n, "classes": v, "hidden": h, "dtype": dtype} for n, v, h, dtype in shapes]


BENCHMARK = Benchmark(
    name="head",
    cases=cases(SHAPES),
    quick=cases([(8, 100, 16, "float32")]),
    build=build,
    least=3,
    most=7,
    seconds=120,
    notes=lambda: [] if has_liger() else ["liger_kernel is not installed, so Liger's loss was not run."],
)

if __name__ == "__main__":
    main(BENCHMARK, __file__, __doc__)
