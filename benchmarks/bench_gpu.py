"""KL of 8192 × 128256 bfloat16 logits on a GPU, forward and backward. Without a GPU, it only prints a message.

    python benchmarks/bench_gpu.py [--quick]

`copy` copies one logits tensor: it reads one tensor and writes one. The loss has to read two and write a gradient.
"""

from __future__ import annotations

import torch
from bench_rows import Layer, logits, ours
from peers import ROW_LOSSES, RowLoss, has_liger
from timing import Benchmark, Case, Step, main
from torch import Tensor

from kullback import KL


def liger_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Liger's Triton kernel, which starts from log-probabilities."""
    from liger_kernel.transformers import LigerKLDIVLoss

    loss = LigerKLDIVLoss(reduction="batchmean", log_target=True)
    return loss(student.float().log_softmax(-1), teacher.float().log_softmax(-1))


def build(case: Case) -> dict[str, Step]:
    with torch.device("cuda"):
        student, teacher = logits(case)
        parameter = torch.zeros((), requires_grad=True)
    losses: dict[str, RowLoss] = {"KL: kullback": ours(KL())}
    losses |= {name: ROW_LOSSES[name] for name in ("KL: eager", "KL: torch.compile")}
    if has_liger():
        losses["KL: Liger"] = liger_kl
    target = torch.empty_like(student)

    def stepper(loss: RowLoss) -> Step:
        return Step(lambda: loss(Layer.apply(parameter, student), teacher).backward())

    steps = {name: stepper(loss) for name, loss in losses.items()}
    steps["copy"] = Step(lambda: target.copy_(student))
    return steps


def case(rows: int, classes: int) -> Case:
    return {"rows": rows, "classes": classes, "dtype": "bfloat16"}


BENCHMARK = Benchmark(
    name="gpu",
    cases=[case(8192, 128_256)],
    quick=[case(64, 1000)],
    build=build,
    least=20,
    most=50,
    memory=False,
)

if __name__ == "__main__":
    if torch.cuda.is_available():
        main(BENCHMARK, __file__, __doc__)
    else:
        print("No CUDA device here: the benchmark of the GPU was not run.")
