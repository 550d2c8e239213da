"""KL from hidden states and heads, forward and backward: kullback against whole logits and chunks of TRL and Liger.

    python benchmarks/bench_head.py [--quick]
    python benchmarks/bench_head.py --constants

The gradients go to the student's hidden states and head. `products` are the four matrix products alone, in one piece.
`--constants` prints the processor time of one thread for several sizes of the chunks and tiles of `losses/head.py`.
"""

from __future__ import annotations

import sys
import time
from unittest import mock

import torch
from peers import HEAD_LOSSES, HeadLoss, has_liger, products
from timing import Benchmark, Case, Step, main
from torch import Tensor

from kullback.functional import linear_distillation_loss
from kullback.losses import head

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
    for weight in (found[1], found[3]):
        weight.mul_(2 * case["hidden"] ** -0.5)
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


def compare_constants(rounds: int = 3) -> None:
    """Print the seconds of forward and backward for each value of a constant, in turns."""
    torch.set_num_threads(1)
    arguments = tensors({"rows": 1024, "classes": 32_000, "hidden": 512, "dtype": "float32"})
    step = stepper(ours, arguments)
    values = [("_MIN_ROWS_OF_ONE_THREAD", rows) for rows in (64, 128, 256, 512, 1024)]
    values += [("_TILE_BYTES", mebibytes << 20) for mebibytes in (1, 8, 64)]
    seconds: dict[tuple[str, int], list[float]] = {value: [] for value in values}
    for _ in range(rounds):
        for (name, value), times in seconds.items():
            step.prepare()
            with mock.patch.object(head, name, value):
                start = time.process_time()
                step.run()
                times.append(time.process_time() - start)
    for (name, value), times in seconds.items():
        print(name, value, *(f"{x:.2f}" for x in times))


if __name__ == "__main__":
    if "--constants" in sys.argv:
        compare_constants()
        sys.exit()
    main(BENCHMARK, __file__, __doc__)
