"""Time of a small call: KL of 64 × 10 logits, forward and backward.

python benchmarks/bench_overhead.py [--quick]
"""

from __future__ import annotations

from bench_rows import build as build_rows
from timing import Benchmark, Case, Step, main

CASES: list[Case] = [
    {"rows": 64, "classes": 10, "dtype": dtype, "calls": 20} for dtype in ("float32", "bfloat16")
]


def repeated(step: Step, calls: int) -> Step:
    """Several calls in one timing: a single call is too short for the clock."""

    def run() -> None:
        for _ in range(calls):
            step.run()

    return Step(run, step.prepare)


def build(case: Case) -> dict[str, Step]:
    steps = build_rows(case)
    return {name: repeated(step, case["calls"]) for name, step in steps.items() if "in place" not in name}


BENCHMARK = Benchmark(
    name="overhead",
    cases=CASES,
    quick=CASES[:1],
    build=build,
    least=50,
    most=200,
    seconds=15,
    memory=False,
    notes=lambda: [f"One timing is {CASES[0]['calls']} calls."],
)

if __name__ == "__main__":
    main(BENCHMARK, __file__, __doc__)
