"""How the time of KL, forward and backward, grows with rows, classes and threads.

python benchmarks/bench_scaling.py [--quick]
"""

from __future__ import annotations

import os

import torch
from bench_rows import logits, ours, stepper
from peers import EAGER
from timing import Benchmark, Case, Step, main

from kullback import KL

ROWS = [1, 8, 64, 512, 2048]
CLASSES = [100, 1000, 10_000, 100_000, 1_000_000]


def build(case: Case) -> dict[str, Step]:
    torch.set_num_threads(case["threads"])
    original, teacher = logits(case)
    student = original.clone()
    losses = {"KL: kullback": ours(KL()), "KL: eager": EAGER["KL"]}
    steps = {name: stepper(loss, student, teacher, original) for name, loss in losses.items()}
    steps["clone"] = Step(student.clone, lambda: student.copy_(original))
    return steps


def cases(rows: list[int], classes: list[int], most_threads: int) -> list[Case]:
    """Rows at 16,000 classes, classes at 32 rows, and threads at 512 × 32,000."""
    shapes = [("rows", n, 16_000, most_threads) for n in rows]
    shapes += [("classes", 32, v, most_threads) for v in classes]
    shapes += [("threads", 512, 32_000, k) for k in range(1, most_threads + 1) if k & (k - 1) == 0]
    return [
        {"along": along, "rows": n, "classes": v, "threads": k, "dtype": "float32"}
        for along, n, v, k in shapes
    ]


CORES = os.cpu_count() or 1
BENCHMARK = Benchmark(
    name="scaling",
    cases=cases(ROWS, CLASSES, CORES),
    quick=cases([1, 2], [10, 20], 1)[:4],
    build=build,
    most=31,
    seconds=5,
    memory=False,
)

if __name__ == "__main__":
    main(BENCHMARK, __file__, __doc__)
