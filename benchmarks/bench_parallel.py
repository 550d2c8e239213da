"""Cost of a loss with sharded classes: bytes and time on 1, 2 and 4 processes.

    python benchmarks/bench_parallel.py [--quick] [--page]

Two ways alternate: the loss with `group=`, and gathering the logits of both sides on every process. The script writes
results/parallel.json and docs/records/parallel_cost.md; --page writes only the page.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from timing import RESULTS, machine
from torch import Tensor

from kullback import KL, JensenShannon
from kullback.functional import distillation_loss

PAGE = Path(__file__).parents[1] / "docs" / "records" / "parallel_cost.md"
SIZES = (1, 2, 4)
LARGER = (8, 64, 1024)
ROUNDS = 3
KINDS = {"KL": KL(), "JS": JensenShannon()}
CASES = [
    {"rows": 64, "classes": 32_000, "dtype": "float32", "kind": "KL"},
    {"rows": 64, "classes": 32_000, "dtype": "float32", "kind": "JS"},
    {"rows": 16, "classes": 128_256, "dtype": "bfloat16", "kind": "KL"},
    {"rows": 256, "classes": 8192, "dtype": "bfloat16", "kind": "KL"},
]
QUICK = [{"rows": 4, "classes": 64, "dtype": "float32", "kind": "KL"}]
# The link between accelerators in the computed part: bytes a second each way, and seconds to start a collective.
BANDWIDTH, LATENCY = 50e9, 20e-6


class Counter:
    """Counts the bytes that pass through the collectives, and the time in them."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.seconds = 0.0

    def watching(self, name: str, place: int) -> Any:
        original = getattr(dist, name)

        def counted(*args: Any, **options: Any) -> Any:
            x = args[place]
            self.sent.append((name, x.numel() * x.itemsize))
            began = time.perf_counter()
            result = original(*args, **options)
            self.seconds += time.perf_counter() - began
            return result

        return mock.patch.object(dist, name, counted)


def gathered(student: Tensor, teacher: Tensor, kind: Any, group: Any) -> None:
    """The loss of all classes on every process; this process's part of the gradient is its columns."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    sides: list[Tensor] = []
    for x in (student.detach(), teacher):
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(parts, x, group=group)
        sides.append(torch.cat(parts, -1))
    whole = sides[0].requires_grad_()
    distillation_loss(student=whole, teacher=sides[1], kind=kind).backward()
    assert whole.grad is not None
    student.grad = whole.grad.tensor_split(size, -1)[rank].contiguous()


def sharded(student: Tensor, teacher: Tensor, kind: Any, group: Any) -> None:
    distillation_loss(student=student, teacher=teacher, kind=kind, group=group).backward()


def work(rank: int, size: int, cases: list[dict[str, Any]], rounds: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{size}", rank=rank, world_size=size)
    group = dist.group.WORLD
    found = []
    for case in cases:
        generator = torch.Generator().manual_seed(0)
        shape = case["rows"], case["classes"]
        student, teacher = (
            torch.randn(shape, generator=generator)
            .to(getattr(torch, case["dtype"]))
            .tensor_split(size, -1)[rank]
            .contiguous()
            for _ in range(2)
        )
        student.requires_grad_()
        steps: dict[str, Callable[..., None]] = {"sharded": sharded, "gathered": gathered}
        times: dict[str, list[float]] = {name: [] for name in steps}
        inside: dict[str, list[float]] = {name: [] for name in steps}
        sent: dict[str, list[tuple[str, int]]] = {}
        for done in range(rounds + 1):
            for name, step in steps.items():
                student.grad = None
                counter = Counter()
                dist.barrier()
                with counter.watching("all_gather", 1), counter.watching("all_reduce", 0):
                    began = time.perf_counter()
                    step(student, teacher, KINDS[case["kind"]], group)
                    dist.barrier()
                    if done:
                        times[name].append(time.perf_counter() - began)
                        inside[name].append(counter.seconds)
                sent[name] = counter.sent
        found.append(
            {
                name: {
                    "median": statistics.median(times[name]),
                    "in_collectives": statistics.median(inside[name]),
                    "sent": sent[name],
                }
                for name in steps
            }
        )
    if rank == 0:
        Path(folder, f"{size}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def measure(cases: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    results = [{"case": case, "ranks": {}} for case in cases]
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            workers = [
                context.Process(target=work, args=(rank, size, cases, rounds, folder)) for rank in range(size)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            for result, found in zip(
                results, json.loads(Path(folder, f"{size}.json").read_text()), strict=True
            ):
                result["ranks"][str(size)] = found
    return results


def received(sent: list[tuple[str, int]], ranks: int) -> float:
    """Bytes that a rank receives by ring algorithms: in a gather the bytes of all others, in a sum nearly twice its
    own."""
    factors = {"all_gather": ranks - 1, "all_reduce": 2 * (ranks - 1) / ranks}
    return sum(factors[name] * size for name, size in sent)


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    return [
        f"| {' | '.join(heads)} |",
        f"|{' --- |' * len(heads)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def size_of(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def name_of(case: dict[str, Any]) -> str:
    return f"{case['kind']}, {case['rows']} × {case['classes']}, {case['dtype']}"


def answer(cases: list[dict[str, Any]]) -> list[str]:
    """The head of the page: the measurement, the result and the conclusion."""
    largest = [result["ranks"]["4"] for result in cases]
    traffic = [received(x["gathered"]["sent"], 4) / received(x["sharded"]["sent"], 4) for x in largest]
    times = [x["sharded"]["median"] / x["gathered"]["median"] for x in largest]
    return textwrap.wrap(
        "Measured: bytes and time of a loss whose classes are divided among processes, against gathering all logits. "
        f"Result: each of 4 processes receives {min(traffic):,.0f} to {max(traffic):,.0f} times fewer bytes. On one "
        f"machine it takes {min(times):.1f} to {max(times):.1f} times as long. Conclusion: sharding saves "
        "memory and traffic. It saves time if communication limits the step, not among few processes of one machine.",
        119,
    )


def page_of(document: dict[str, Any]) -> str:
    """The page, from the numbers."""
    here = document["machine"]
    lines = [
        "# Cost of sharded classes",
        "",
        *answer(document["cases"]),
        "",
        "`python benchmarks/bench_parallel.py` counts the bytes that `distillation_loss(group=)` passes to the",
        "collectives, times a step (forward and backward), and writes this page. *Gathered* is the alternative: every",
        "process receives all logits of both sides, and then computes the loss of whole rows.",
        "",
        "## Measured",
        "",
        f"{here['processor']}, {here['cores']} cores, one thread a process, gloo, torch {here['torch']}:",
        f"the median of {document['rounds']} interleaved rounds; the machine's load was {here['load']} at the start",
        "(0 is idle). If there are more processes than cores, they wait for each other. One process alone uses the",
        "kernels of whole rows in float32. Several processes use float64, and read their classes five times.",
        "",
    ]
    measured: list[list[str]] = []
    for result in document["cases"]:
        for ranks, found in result["ranks"].items():
            counted = [found[way]["sent"] for way in ("sharded", "gathered")]
            measured.append(
                [
                    name_of(result["case"]),
                    ranks,
                    milliseconds(found["sharded"]["median"]),
                    milliseconds(found["sharded"]["in_collectives"]),
                    milliseconds(found["gathered"]["median"]),
                    *(size_of(received(sent, int(ranks))) for sent in counted),
                ]
            )
    heads = [
        "case",
        "processes",
        "ms",
        "of these in collectives",
        "gathered, ms",
        "received",
        "gathered, received",
    ]
    lines += table(heads, measured)
    lines += [
        "Time in collectives includes waiting for the slowest process.",
        "",
        "## Computed from the traffic",
        "",
        "These numbers are computed from the counted traffic, not measured. Each rank passes 4 float64 numbers a row",
        "to an all-gather and 4 to an all-reduce, and a header of 32 integers. The assumptions are ring algorithms,",
        f"links of {BANDWIDTH / 1e9:.0f} GB/s, and a latency of {1e6 * LATENCY:.0f} µs per collective. The time is for",
        "communication only. The local work is divided like the classes.",
        "",
    ]
    computed: list[list[str]] = []
    for result in document["cases"]:
        counted = [result["ranks"]["4"][way]["sent"] for way in ("sharded", "gathered")]
        for ranks in LARGER:
            row = [name_of(result["case"]), str(ranks)]
            for way, sent in zip(("sharded", "gathered"), counted, strict=True):
                # With more ranks, a shard of the logits is smaller, but there are as many numbers per row.
                scale = 4 / ranks if way == "gathered" else 1.0
                count = received([(name, scale * size) for name, size in sent], ranks)
                row += [size_of(count), milliseconds(count / BANDWIDTH + LATENCY * len(sent))]
            computed.append(row)
    heads = ["case", "ranks", "received", "ms", "gathered, received", "gathered, ms"]
    lines += table(heads, computed)
    lines += [
        "The all-gather receives 32 bytes a row from every rank. Beyond some hundred ranks this exceeds half-precision",
        "logits of a small vocabulary, but vocabularies are not divided among so many ranks.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, few rounds: only to see that it runs"
    )
    parser.add_argument("--page", action="store_true", help="write the page from the numbers there are")
    options = parser.parse_args()
    path = RESULTS / "parallel.json"
    if options.page:
        PAGE.write_text(page_of(json.loads(path.read_text())))
        return
    rounds = 2 if options.quick else ROUNDS
    document = {
        "schema": "kullback.benchmark.parallel/1",
        "machine": {**machine(), "load": round(os.getloadavg()[0], 1)},
        "rounds": rounds,
        "cases": measure(QUICK if options.quick else CASES, rounds),
    }
    text = page_of(document)
    if options.quick:
        print(text)
        return
    path.write_text(json.dumps(document, indent=1) + "\n")
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
