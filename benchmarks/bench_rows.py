"""Time and memory of KL and Jensen-Shannon from two logits tensors, forward and backward, beside torch's ways.

    python benchmarks/bench_rows.py [--quick]

All ways run interleaved in one process; a time is the median of the rounds. `clone` copies one of the two tensors,
which is what reading once and writing once costs. Memory is what the peak of the resident set grows by during one step.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from kullback import KL, JensenShannon, Logits, divergence
from kullback.kernels import native

RESULT = Path(__file__).parent / "results" / "rows.json"
SHAPES = [(64, 10), (4096, 1000), (512, 32_000), (128, 128_256), (64, 262_144)]
Step = Callable[[Tensor, Tensor], None]


def eager_kl(student: Tensor, teacher: Tensor) -> Tensor:
    s, t = (x.float().log_softmax(-1) for x in (student, teacher))
    return F.kl_div(s, t, reduction="batchmean", log_target=True)


def eager_js(student: Tensor, teacher: Tensor) -> Tensor:
    s, t = (x.float().log_softmax(-1) for x in (student, teacher))
    mixture = torch.logsumexp(torch.stack([s, t]), 0) - torch.log(torch.tensor(2.0))
    terms = [F.kl_div(mixture, x, reduction="batchmean", log_target=True) for x in (s, t)]
    return (terms[0] + terms[1]) / 2


def ours(kind: KL | JensenShannon) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(student: Tensor, teacher: Tensor) -> Tensor:
        p, q = Logits(teacher, validate=False), Logits(student, validate=False)
        return divergence(p, q, kind).mean()

    return loss


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def extra_memory(step: Callable[[], object]) -> int:
    """Sample the resident set while `step` runs; what it rises above its level before."""
    before, peak, done = resident_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.0005):
            peak = max(peak, resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    step()
    done.set()
    watcher.join()
    return max(0, peak - before)


def measure(rows: int, classes: int, dtype: torch.dtype, rounds: int) -> dict[str, dict[str, float]]:
    teacher = (3 * torch.randn(rows, classes)).to(dtype)
    student = (teacher + torch.randn(rows, classes)).to(dtype)
    losses = {
        "eager KL": eager_kl,
        "torch.compile KL": torch.compile(eager_kl),
        "kullback KL": ours(KL()),
        "eager JS": eager_js,
        "kullback JS": ours(JensenShannon()),
    }

    def stepper(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], object]:
        def step() -> None:
            leaf = student.detach().requires_grad_()
            loss(leaf, teacher).backward()

        return step

    steps: dict[str, Callable[[], object]] = {name: stepper(loss) for name, loss in losses.items()}
    steps["clone"] = student.clone
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {
        name: {"ms": 1e3 * statistics.median(times[name]), "extra_mb": extra_memory(step) / 1e6}
        for name, step in steps.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 5 if parser.parse_args().quick else 15
    found: list[dict[str, object]] = []
    for rows, classes in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            torch.compiler.reset()
            result = measure(rows, classes, dtype, rounds * (20 if rows * classes < 10_000 else 1))
            found.append({"rows": rows, "classes": classes, "dtype": str(dtype), "ways": result})
            base = result["kullback KL"]["ms"]
            print(f"{rows} x {classes} {dtype}")
            for name, numbers in result.items():
                ratio = numbers["ms"] / base
                print(
                    f"  {name:18} {numbers['ms']:9.3f} ms  {ratio:6.2f} x ours  {numbers['extra_mb']:7.0f} MB more"
                )
    machine = {
        "cores": torch.get_num_threads(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "native": native.missing() is None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"machine": machine, "results": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
