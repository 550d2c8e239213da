"""Losses of every kind from two logits tensors, forward and backward, against one or two lines of torch for each.

python benchmarks/bench_kinds.py [--quick]
"""

from __future__ import annotations

from bench_overhead import CASES as SMALL, repeated
from bench_rows import cases, logits, ours, stepper
from peers import EAGER, RowLoss, compiled, in_float32, short_formulas
from timing import Benchmark, Case, Step, main

from kullback.generators import parse

SHAPES = [(4096, 1000), (128, 128_256)]
# Every kind by its name here, in `peers` and in `kullback.generators.parse`.
KINDS = {
    "KL": "kl",
    "reverse KL": "reverse_kl",
    "JS": "js:0.5",
    "Jeffreys": "jeffreys",
    "skew KL 0.1": "skew:0.1",
    "total variation": "tv",
    "Hellinger": "hellinger",
    "chi-squared": "chi2",
    "alpha 0.7": "alpha:0.7",
    "Renyi 0.5": "renyi:0.5",
    "Renyi 2": "renyi:2",
}


def build(case: Case) -> dict[str, Step]:
    original, teacher = logits(case)
    student = original.clone()
    losses: dict[str, RowLoss] = {}
    for name, kind in KINDS.items():
        # Each of our steps follows one of torch's, which has returned its memory to the system.
        losses[f"{name}: kullback"] = ours(parse(kind))
        eager = in_float32(EAGER[name]) if name in EAGER else short_formulas(name)
        losses[f"{name}: eager"] = eager
        if "calls" not in case:
            losses[f"{name}: torch.compile"] = compiled(eager)
    steps = {name: stepper(loss, student, teacher, original) for name, loss in losses.items()}
    return {name: repeated(step, case["calls"]) if "calls" in case else step for name, step in steps.items()}


BENCHMARK = Benchmark(
    name="kinds",
    cases=SMALL + cases(SHAPES),
    quick=SMALL[:1],
    build=build,
    most=50,
    seconds=30,
    memory=False,
    notes=lambda: [f"One timing of {SMALL[0]['rows']} × {SMALL[0]['classes']} is {SMALL[0]['calls']} calls."],
)

if __name__ == "__main__":
    main(BENCHMARK, __file__, __doc__)
