"""Time and memory of KL from nearest neighbors, against other packages on the same draws.

    python benchmarks/bench_neighbors.py [--quick]

Both sides are standard normal; neighbors of other draws are not harder to find. With a million draws there are no
peers.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from peers_samples import PEERS, Peer
from timing import Benchmark, Case, Step, main

from kullback import Samples
from kullback.estimators import nearest_neighbors

CASES = [(100_000, 1), (1_000_000, 1), (100_000, 2), (10_000, 5), (100_000, 5), (1_000_000, 5), (10_000, 20)]
MOST_FOR_PEERS = 100_000
# It loops over the draws in Python, and takes minutes; the others take seconds.
MOST_FOR_LOOPS = 10_000
LOOPS = ("universal-divergence",)


def build(case: Case) -> dict[str, Step]:
    torch.set_num_threads(case["threads"])
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((case["rows"], case["classes"])) for _ in range(2))
    p, q = Samples(x), Samples(y)
    steps = {"kullback": Step(lambda: nearest_neighbors(p, q))}
    for name, (peer, discrete) in PEERS.items():
        most = MOST_FOR_LOOPS if name.startswith(LOOPS) else MOST_FOR_PEERS
        if not discrete and case["rows"] <= most:
            steps[name] = Step(lambda call=peer: call_peer(call, x, y))
    return steps


def call_peer(peer: Peer, x: np.ndarray, y: np.ndarray) -> float:
    return peer(x, y)


def cases(sizes: list[tuple[int, int]]) -> list[Case]:
    """The tables call the draws rows and the components classes."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [{"rows": n, "classes": d, "dtype": "float64", "threads": threads} for n, d in sizes]


BENCHMARK = Benchmark(
    name="neighbors",
    cases=cases(CASES),
    quick=cases([(2000, 1), (2000, 5)]),
    build=build,
    least=3,
    most=7,
    seconds=30,
)

if __name__ == "__main__":
    main(BENCHMARK, __file__, __doc__)
