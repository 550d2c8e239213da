"""Limits of this machine for the losses: memory, pages, exponentials, matrix products.

    python benchmarks/limits.py

Each rate is the best of many rounds on one thread, in CPU time, which other programs disturb least.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from bench_rows import build
from timing import RESULTS, interleave, machine
from torch import Tensor

from kullback import KL, JensenShannon, ReverseKL
from kullback.kernels import RowDivergence, value_and_gradient

BYTES = 64 << 20
HEAD = (128_256, 1024)
CHUNKS = (256, 512, 1024)


def best(run: Callable[[], object], rounds: int = 7) -> float:
    """The least CPU time of a run, in seconds."""
    times: list[float] = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def fresh_pages(large: bool) -> float:
    """Seconds to write 64 MiB of newly allocated memory."""
    times: list[float] = []
    for _ in range(7):
        memory = mmap.mmap(-1, BYTES + (2 << 20))
        if large:
            memory.madvise(mmap.MADV_HUGEPAGE)
        start = time.process_time()
        ctypes.memset((ctypes.c_char * BYTES).from_buffer(memory), 1, BYTES)
        times.append(time.process_time() - start)
    return min(times)


def seconds_of_memory() -> dict[str, float]:
    """Copy 64 MiB to memory in use, and write 64 MiB to newly allocated memory, in small and in large pages."""
    source, target = torch.ones(2, BYTES // 4)
    return {
        "copy": best(lambda: target.copy_(source)),
        "fresh, 4 KiB pages": fresh_pages(large=False),
        "fresh, 2 MiB pages": fresh_pages(large=True),
    }


# glibc then keeps freed memory. Otherwise it returns it to the system, which allocates it again page by page.
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}
GRADIENTS = [
    (512, 32_000, "float32", ["KL: kullback", "reverse KL: kullback", "JS: kullback", "clone"]),
    (4096, 1000, "bfloat16", ["KL: kullback", "KL: eager", "JS: kullback", "JS: TRL"]),
]


def milliseconds_of_gradients() -> dict[str, list[float]]:
    """Losses with a new gradient at every step, in interleaved rounds: the fastest and the slowest round."""
    found: dict[str, list[float]] = {}
    for rows, classes, dtype, names in GRADIENTS:
        steps = build({"rows": rows, "classes": classes, "dtype": dtype})
        chosen = {name: steps[name] for name in names}
        times = interleave(chosen, least=9, most=9, seconds=60, clock=time.process_time)
        for name, x in times.items():
            found[f"{rows} × {classes}, {dtype}, {name}"] = [1e3 * min(x), 1e3 * max(x)]
    return found


def elsewhere(environment: dict[str, str]) -> dict[str, list[float]]:
    """The same in a separate process, because the environment is read at its start."""
    command = [sys.executable, __file__, "--gradients"]
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def gradients() -> dict[str, dict[str, float]]:
    """The same with newly allocated memory, and with memory that the process has kept."""
    found = {"fresh memory": elsewhere({}), "kept memory": elsewhere(KEPT)}
    return {
        f"{memory}, {which}": {name: times[i] for name, times in measured.items()}
        for memory, measured in found.items()
        for i, which in enumerate(("fastest", "slowest"))
    }


def nanoseconds_of_rows(dtype: torch.dtype) -> dict[str, float]:
    """Time per class for rows that stay in the cache."""
    teacher = 3 * torch.randn(100, 1000)
    student = (teacher + 0.5 * torch.randn(100, 1000)).to(dtype)
    teacher = teacher.to(dtype)

    def ours(kind: KL | ReverseKL | JensenShannon) -> float:
        return best(
            lambda: value_and_gradient(RowDivergence(kind), teacher, student, None, wanted=(False, True)), 200
        )

    wide = student.float()
    found = {
        "log_softmax of one side, forward": best(lambda: wide.log_softmax(-1), 200),
        "upcast of one side": best(lambda: student.to(torch.float32, copy=True), 200),
        "KL with its gradient": ours(KL()),
        "reverse KL with its gradient": ours(ReverseKL()),
        "JS with its gradient": ours(JensenShannon()),
    }
    return {name: 1e9 * seconds / student.numel() for name, seconds in found.items()}


def gflops_of_products(dtype: torch.dtype) -> dict[str, float]:
    """Rates of a head's three products for chunks of positions: the logits, and the gradients by states and head."""
    classes, hidden = HEAD
    weight = torch.randn(HEAD).to(dtype)
    by_weight = torch.zeros(HEAD, dtype=dtype)
    found: dict[str, float] = {}
    for rows in CHUNKS:
        states, logits = torch.randn(rows, hidden).to(dtype), torch.empty(rows, classes, dtype=dtype)
        operations = 2e-9 * rows * classes * hidden

        def rate(run: Callable[[], Tensor], operations: float = operations) -> float:
            return operations / best(run, 2)

        found[f"{rows} rows: logits"] = rate(lambda s=states, x=logits: torch.mm(s, weight.t(), out=x))
        found[f"{rows} rows: gradient of the states"] = rate(lambda x=logits: x @ weight)
        found[f"{rows} rows: gradient of the head, added"] = rate(
            lambda s=states, x=logits: by_weight.addmm_(x.t(), s)
        )
    return found


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if "--gradients" in sys.argv:
        print(json.dumps(milliseconds_of_gradients()))
        return
    here = machine()
    memory = seconds_of_memory()
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    document = {
        "schema": "kullback.limits/1",
        "machine": here,
        "gigabytes_per_second": {name: BYTES / x / 1e9 for name, x in memory.items()},
        "milliseconds_of_gradients": gradients(),
        "nanoseconds_per_class": {name: nanoseconds_of_rows(x) for name, x in dtypes.items()},
        "gflops": {name: gflops_of_products(x) for name, x in dtypes.items()},
    }
    text = json.dumps(document, indent=1)
    print(text)
    (RESULTS / "limits.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
