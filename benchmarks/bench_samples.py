"""Errors of estimates from draws and coverage of their intervals, with peers on the same draws.

python benchmarks/bench_samples.py [--quick]

Seconds are CPU time on one thread, so that other programs do not count.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process for each core instead

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from peers_samples import PEERS

sys.path.insert(0, str(Path(__file__).parents[1]))  # the oracles of the tests

from tests.oracles.sample_cases import CASES, DISCRETE
from timing import RESULTS, machine

from kullback import Samples, kl_estimate

SCHEMA = "kullback.samples/2"
SIZES = (1_000, 10_000, 100_000)
REPETITIONS = {1_000: 200, 10_000: 200, 100_000: 20}
# In several dimensions many of the draws need a classifier; in twenty dimensions all do.
VECTOR_REPETITIONS = {1_000: 200, 10_000: 60, 100_000: 20}
SLOW_REPETITIONS = {1_000: 30, 10_000: 10}
# The errors of peers and other methods need fewer repetitions than a coverage.
OTHER_REPETITIONS = {1_000: 40, 10_000: 10, 100_000: 3}
# It loops over the draws in Python, and takes minutes; the others take seconds.
LOOPS, MOST_FOR_LOOPS = ("universal-divergence",), 10_000
CHUNK = 5
DISCRETE_NAMES = {case.name for case in DISCRETE}


class Task(NamedTuple):
    """Some repetitions of one estimator on one case."""

    case: str
    n: int
    method: str
    seeds: range


class Answer(NamedTuple):
    """One estimate; `low` and `high` are None if there is no interval."""

    value: float
    low: float | None
    high: float | None
    seconds: float
    method: str


def methods_for(case: str) -> list[str]:
    if case in DISCRETE_NAMES:
        return [
            "coverage_adjusted",
            "zhang_grabchak",
            "miller_madow",
            "augmented_plugin",
            "dirichlet",
            "plugin",
        ]
    d = CASES[case].draws(1, 0)[0].shape[1]
    if d == 1:
        return ["auto", "nearest_neighbors", "histogram"]
    return ["auto", "nearest_neighbors", "density_ratio"]


def repetitions(case: str, n: int, method: str) -> int:
    slow = case == "gauss20"
    if (slow or method == "density_ratio") and n not in SLOW_REPETITIONS:
        return 0
    if method != "auto":
        return OTHER_REPETITIONS[n]
    vectors = case not in DISCRETE_NAMES and CASES[case].draws(1, 0)[0].shape[1] > 1
    return (SLOW_REPETITIONS if slow else VECTOR_REPETITIONS if vectors else REPETITIONS)[n]


def tasks(sizes: tuple[int, ...], share: float) -> Iterator[Task]:
    for n, case in product(sizes, CASES):
        peers = [
            name
            for name, (_, discrete) in PEERS.items()
            if discrete == (case in DISCRETE_NAMES) and n <= (MOST_FOR_LOOPS if name.startswith(LOOPS) else n)
        ]
        for method in ["auto", *(m for m in methods_for(case) if m != "auto"), *peers]:
            yield from split(case, n, method, math.ceil(share * repetitions(case, n, method)))


def split(case: str, n: int, method: str, repetitions: int) -> Iterator[Task]:
    for start in range(0, repetitions, CHUNK):
        yield Task(case, n, method, range(start, min(start + CHUNK, repetitions)))


def run(task: Task) -> list[Answer]:
    torch.set_num_threads(1)
    estimator = peer(task.method) if task.method in PEERS else ours(task.method)
    return [estimator(*CASES[task.case].draws(task.n, seed), seed) for seed in task.seeds]


def ours(method: str) -> Callable[[np.ndarray, np.ndarray, int], Answer]:
    def estimate(x: np.ndarray, y: np.ndarray, seed: int) -> Answer:
        started = time.process_time()
        generator = torch.Generator().manual_seed(seed)
        found = kl_estimate(Samples(x), Samples(y), method=method, generator=generator)
        low, high = (None, None) if found.interval is None else map(float, found.interval)
        return Answer(float(found.value), low, high, time.process_time() - started, found.method)

    return estimate


def peer(name: str) -> Callable[[np.ndarray, np.ndarray, int], Answer]:
    function = PEERS[name][0]

    def estimate(x: np.ndarray, y: np.ndarray, seed: int) -> Answer:
        started = time.process_time()
        try:
            value = float(function(x, y))
        except Exception:  # noqa: BLE001  # a peer's failure is a result, too
            value = math.nan
        return Answer(value, None, None, time.process_time() - started, name)

    return estimate


def summary(case: str, n: int, method: str, answers: list[Answer]) -> dict[str, Any]:
    truth = CASES[case].truth
    values = np.array([a.value for a in answers])
    given = [a for a in answers if a.low is not None and a.high is not None]
    covered = sum(a.low <= truth <= a.high for a in given)
    widths = [a.high - a.low for a in given if math.isfinite(a.high - a.low)]
    return {
        "case": case,
        "n": n,
        "method": method,
        "chosen": sorted({a.method for a in answers}),
        "truth": truth,
        "repetitions": len(answers),
        "mean": float(values.mean()),
        "rmse": float(np.sqrt(np.mean((values - truth) ** 2))),
        "intervals": len(given),
        "coverage": covered / len(given) if given else None,
        "one_sided": sum(math.isinf(a.high - a.low) for a in given) / len(given) if given else None,
        "width": statistics.median(widths) if widths else None,
        "seconds": statistics.median(a.seconds for a in answers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a twentieth of the repetitions, and n = 1000 only"
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--only", nargs="*", help="these cases only")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    sizes = (1_000,) if arguments.quick else tuple(arguments.sizes)
    wanted = [t for t in tasks(sizes, 0.05 if arguments.quick else 1) if t.case in (arguments.only or CASES)]
    collected: dict[tuple[str, int, str], list[Answer]] = {}
    with ProcessPoolExecutor(arguments.processes) as pool:
        for task, answers in zip(wanted, pool.map(run, wanted), strict=True):
            collected.setdefault((task.case, task.n, task.method), []).extend(answers)
    rows = [summary(*key, answers) for key, answers in collected.items()]
    for row in rows:
        print(json.dumps(row))
    if not arguments.quick and not arguments.only:
        document = {"schema": SCHEMA, "machine": machine(), "rows": rows}
        (RESULTS / "samples.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
