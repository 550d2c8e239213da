"""Measures steps side by side: medians of interleaved rounds in one process, peak memory in another.

A benchmark is a list of cases, such as a shape and a dtype, and a function that builds the steps to compare in a case.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from targets import case_name, judge

import kullback
from kullback.kernels.native import library

SCHEMA = "kullback.benchmark/1"
RESULTS = Path(__file__).parent / "results"
SEED = 0
CPU_TIME = "Measured on one thread, in the time of the processor, as other programs ran at the same time."

Case = dict[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """The timed function, and an untimed one that restores its inputs before."""

    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Benchmark:
    """Cases, and how to build the steps of a case; from `least` to `most` rounds, within `seconds` for each case."""

    name: str
    cases: list[Case]
    quick: list[Case]
    build: Callable[[Case], dict[str, Step]]
    least: int = 7
    most: int = 15
    seconds: float = 20.0
    warm_up: int = 1
    memory: bool = True
    notes: Callable[[], list[str]] = list


def interleave(
    steps: dict[str, Step],
    *,
    least: int,
    most: int,
    seconds: float,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time the steps in interleaved rounds, so that disturbances of the machine affect all steps alike."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    gc.disable()
    try:
        for _ in range(warm_up):
            for step in steps.values():
                timed(step)
        started = time.perf_counter()
        for done in range(most):
            if done >= least and time.perf_counter() - started > seconds:
                break
            for name, step in steps.items():
                times[name].append(timed(step, clock))
    finally:
        gc.enable()
    return times


def timed(step: Step, clock: Callable[[], float] = time.perf_counter) -> float:
    step.prepare()
    synchronize()
    start = clock()
    result = step.run()
    synchronize()
    seconds = clock() - start
    del result  # freeing it is not part of the step
    return seconds


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def summarize(times: list[float]) -> dict[str, float | int]:
    low, _, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    return {"median": statistics.median(times), "low": low, "high": high, "rounds": len(times)}


def touch_memory() -> None:
    """Write to most of the free memory, once: in a virtual machine, the first write takes ten times as long."""
    available = Path("/proc/meminfo")
    if not available.exists():
        return
    lines = available.read_text().splitlines()
    free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    torch.empty(free * 4 // 5, dtype=torch.uint8).fill_(1)


def can_measure_memory() -> bool:
    return Path("/proc/self/clear_refs").exists()


def status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def extra_bytes(step: Step) -> int:
    """The peak of the resident set during one step, minus its size before the step."""
    timed(step)  # compilation, threads, and whatever else only the first call needs
    step.prepare()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status_bytes("VmRSS")
    result = step.run()
    extra = status_bytes("VmHWM") - before
    del result
    return max(0, extra)


def memory_elsewhere(script: str, case: Case) -> dict[str, int]:
    """Run the case in a separate process that returns freed memory to the system at once; return its peaks."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, script, "--memory-of", json.dumps(case)]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def machine() -> dict[str, object]:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    version = (
        subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
        if compiler
        else "none"
    )
    return {
        "processor": processor(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "compiler": version.splitlines()[0] if version else "unknown",
        "kullback": kullback.__version__,
        "native_kernels": library.missing() is None,
        "date": datetime.now(UTC).date().isoformat(),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "unknown")


def measure(
    benchmark: Benchmark,
    case: Case,
    script: str,
    *,
    quick: bool,
    seconds: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """Time and memory of every step of a case. Memory comes first, while the process has no other tensors."""
    memory = memory_elsewhere(script, case) if benchmark.memory and can_measure_memory() else {}
    torch.manual_seed(SEED)
    torch.compiler.reset()
    least, most = (2, 3) if quick else (benchmark.least, benchmark.most)
    times = interleave(
        benchmark.build(case),
        least=least,
        most=most,
        seconds=benchmark.seconds if seconds is None else seconds,
        warm_up=benchmark.warm_up,
        clock=clock,
    )
    steps = {name: {**summarize(x), "extra_bytes": memory.get(name)} for name, x in times.items()}
    return {"case": case, "steps": steps}


def main(benchmark: Benchmark, script: str, description: str) -> None:
    """The command line that every benchmark shares."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, few rounds: only to see that it runs"
    )
    parser.add_argument(
        "--results", type=Path, help="where to leave the numbers; default: results/, none if --quick"
    )
    parser.add_argument(
        "--seconds", type=float, help="time for the rounds of a case, within their least and most"
    )
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="measure the processor's time, on one thread: for a machine that others use at the same time",
    )
    parser.add_argument("--memory-of", metavar="CASE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        torch.manual_seed(SEED)
        steps = benchmark.build(json.loads(options.memory_of))
        print(json.dumps({name: extra_bytes(step) for name, step in steps.items()}))
        return
    folder = options.results or (None if options.quick else RESULTS)
    cases = benchmark.quick if options.quick else benchmark.cases
    console = Console()
    notes = benchmark.notes()
    if options.cpu_time:
        torch.set_num_threads(1)
        notes = [*notes, CPU_TIME]
    clock = time.process_time if options.cpu_time else time.perf_counter
    here = machine()  # before a case sets the number of threads
    if not options.quick:
        touch_memory()
    found = []
    for case in cases:
        found.append(
            measure(benchmark, case, script, quick=options.quick, seconds=options.seconds, clock=clock)
        )
        console.print(table_of(found[-1]))
    document = {
        "schema": SCHEMA,
        "benchmark": benchmark.name,
        "quick": options.quick,
        "machine": here,
        "notes": notes,
        "cases": found,
    }
    for note in document["notes"]:
        console.print(note, highlight=False)
    print_targets(console, document)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{benchmark.name}.json").write_text(json.dumps(document, indent=1) + "\n")


def table_of(result: Result) -> Table:
    table = Table(title=case_name(result["case"]), title_justify="left")
    for heading in ("", "median ms", "quartiles", "rounds", "extra MB"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for name, x in result["steps"].items():
        extra = "" if x["extra_bytes"] is None else f"{x['extra_bytes'] / 1e6:.0f}"
        quartiles = f"{1e3 * x['low']:.3g} – {1e3 * x['high']:.3g}"
        table.add_row(name, f"{1e3 * x['median']:.4g}", quartiles, str(x["rounds"]), extra)
    return table


def print_targets(console: Console, document: Result) -> None:
    table = Table(title="Targets", title_justify="left")
    for heading in ("target", "case", "wanted", "found", "met"):
        table.add_column(heading)
    for x in judge([document]):
        table.add_row(x.target, x.case, x.wanted, x.found, "yes" if x.met else "no")
    if table.row_count:
        console.print(table)
