"""KL from hidden states, a head and a stored teacher's top classes, forward and backward: against whole logits.

    python benchmarks/bench_head_top_k.py [--quick]

The gradients go to the hidden states and the head. `products` are the three matrix products alone, in one piece.
"""

from __future__ import annotations

import torch
from bench_head import Step, cases, tensors
from peers import TOP_K, materialized_top_k, student_products
from timing import Benchmark, Case, main
from torch import Tensor

from kullback.functional import TopK, linear_distillation_loss


def top_k(case: Case) -> tuple[Tensor, Tensor]:
    """A teacher's top classes and their log-probabilities, as a file stores them."""
    parts = [torch.randn(1, case["classes"]).mul_(2).log_softmax(-1).topk(min(TOP_K, case["classes"] - 1))
             for _ in range(case["rows"])]  # fmt: skip
    return torch.cat([x.indices for x in parts]), torch.cat([x.values for x in parts])


def build(case: Case) -> dict[str, Step]:
    h, weight, *_ = tensors(case)
    indices, log_probs = top_k(case)
    teacher = TopK(indices, log_probs)

    def forget() -> None:
        h.grad = weight.grad = None

    def ours() -> None:
        linear_distillation_loss(student=h, student_weight=weight, teacher=teacher).backward()

    return {
        "kullback": Step(ours, forget),
        "eager, whole logits": Step(
            lambda: materialized_top_k(h, weight, indices, log_probs).backward(), forget
        ),
        "products": Step(lambda: student_products(h, weight), forget),
    }


BENCHMARK = Benchmark(
    name="head_top_k",
    cases=cases([(2048, 128_256, 1024, "float32"), (2048, 128_256, 1024, "bfloat16")]),
    quick=cases([(8, 100, 16, "float32")]),
    build=build,
    least=3,
    most=7,
    seconds=60,
    warm_up=0,
)

if __name__ == "__main__":
    main(BENCHMARK, __file__, __doc__)
