"""Whether kullback is right on a GPU, and how fast: `make gpu`, at most ten minutes.

    python benchmarks/gpu.py [--part NAME ...] [--again] [--results FOLDER] [--seconds TIME]
    python benchmarks/gpu.py --device cpu --small

A part may take its own time, and the time that earlier parts left. Items run in other processes, so that a crash, a
hang or an illegal access ends one item only. The script prints each item and writes gpu_NAME.json after each. A second
run keeps the items that passed, as long as the sources, torch and the device are the same; --again repeats them.

Without a GPU, the script only prints a message.
`--device cpu --small` tries all of it in Triton's interpreter, on tiny tensors.

The exit status is 0 if everything passed, 1 if something failed, and 3 if time was too short for something.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gpu_checks
import gpu_times
import torch
from gpu_items import Item, NotHere, Part, Setting, use_interpreter
from timing import RESULTS, machine

import kullback

SCHEMA = "kullback.gpu/1"
SECONDS = 600.0
SECONDS_OF_AN_ITEM = 90.0
KEPT = ("passed", "measured", "not here")
FAILED, UNFINISHED = 1, 3


@dataclass(frozen=True)
class Entry:
    """A part: its function, its time in seconds, and the number of processes among which its items are divided.

    Checks compile a few hundred variants of the kernels, for which one process is slow. Measurements run alone.
    """

    function: Part
    seconds: float
    processes: int = 1


PARTS: dict[str, Entry] = {
    "likely_faults": Entry(gpu_checks.likely_faults, 110, processes=8),
    "parity": Entry(gpu_checks.parity, 130, processes=8),
    "kinds": Entry(gpu_times.every_kind, 60),
    "rows": Entry(gpu_times.row_kernel, 130),
    "top_k": Entry(gpu_times.top_k, 30),
    "heads": Entry(gpu_times.heads, 70),
    "two_gpus": Entry(gpu_times.several_gpus, 60),
}


@dataclass
class Record:
    """The outcome of an item: passed, measured, failed, not here (this machine cannot run it) or not run (no time)."""

    name: str
    status: str
    seconds: float = 0.0
    remark: str = ""
    result: dict[str, Any] | None = None


@functools.cache
def fingerprint() -> str:
    """A digest of the sources: results of other sources are not kept."""
    paths = [*RESULTS.parent.glob("gpu*.py"), *Path(kullback.__file__).parent.rglob("*.py")]
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# --- the process that runs items


def run_item(item: Item) -> Record:
    began = time.perf_counter()
    status, remark, result = "passed", "", None
    try:
        outcome = item.run()
        if isinstance(outcome, str):
            remark = outcome
        elif outcome is not None:
            status, result = "measured", outcome
    except NotHere as reason:
        status, remark = "not here", str(reason)
    except Exception as error:  # noqa: BLE001  # recorded, and the run goes on
        name = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        status, remark = "failed", f"{name}{error}"[:2000]
    return Record(item.name, status, time.perf_counter() - began, remark, result)


def serve(part: str, setting: Setting, names: Sequence[str]) -> None:
    """Run items by name. Before and after each, write a line of JSON to the standard output."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library that prints would disturb the lines
    if not setting.has_gpu:
        use_interpreter()
    if PARTS[part].processes > 1:
        torch.set_num_threads(1)
    items = {item.name: item for item in PARTS[part].function(setting)}
    for name in names:
        print(json.dumps({"begins": name}), file=out)
        record = run_item(items[name])
        print(json.dumps(asdict(record)), file=out)
        if record.status == "failed" and setting.has_gpu:
            torch.cuda.synchronize()  # after an illegal access this raises, and a new process runs the others
            torch.cuda.empty_cache()


# --- the process that starts the others


@dataclass
class Run:
    """One part under way: its records, in the order of its items, and the file that has them."""

    part: str
    setting: Setting
    path: Path
    ends: float
    machine: dict[str, object]
    records: dict[str, Record] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, record: Record) -> None:
        with self.lock:
            self.records[record.name] = record
            show(record)
            self.write()

    def write(self) -> None:
        document = {
            "schema": SCHEMA,
            "part": self.part,
            "small": self.setting.small,
            "device": self.setting.device,
            "machine": self.machine,
            "sources": fingerprint(),
            "records": [asdict(record) for record in self.records.values()],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".part")
        temporary.write_text(json.dumps(document, indent=1) + "\n")
        temporary.replace(self.path)

    def work(self, names: list[str]) -> None:
        """Have processes run the items, a new process after each that ended early."""
        while names and time.monotonic() < self.ends:
            names = self.one_process(names)
        for name in names:
            self.add(Record(name, "not run", remark="the time of the part was over"))

    def one_process(self, names: list[str]) -> list[str]:
        """Start a process for the items. Return the items that it left."""
        command = [sys.executable, __file__, "--serve", self.part, "--device", self.setting.device]
        command += ["--small"] if self.setting.small else []
        environment = dict(os.environ)
        if not self.setting.has_gpu:
            environment["TRITON_INTERPRET"] = "1"
        left, current, began = list(names), None, time.monotonic()
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(names))
            process.stdin.close()
            limit = self.limited(process)
            for line in process.stdout:
                limit.cancel()
                event = json.loads(line)
                if "begins" in event:
                    current, began = event["begins"], time.monotonic()
                else:
                    left.remove(event["name"])
                    current = None
                    self.add(Record(**event))
                    if time.monotonic() > self.ends:
                        process.kill()
                limit = self.limited(process)
            limit.cancel()
            status = process.wait()
            log.seek(0)
            tail = " | ".join(log.read().strip().splitlines()[-3:])[-600:]
        if current is None and status and left == list(names) and time.monotonic() < self.ends:
            current = left[0]  # the process ended before its first item
        if current is not None:
            spent = time.monotonic() - began
            left.remove(current)
            if time.monotonic() >= self.ends:
                self.add(Record(current, "not run", spent, "the time of the part was over while it ran"))
            else:
                reason = (
                    f"more than {SECONDS_OF_AN_ITEM:g} s"
                    if spent >= SECONDS_OF_AN_ITEM
                    else f"status {status}"
                )
                self.add(Record(current, "failed", spent, f"the process ended with it: {reason}; {tail}"))
        return left

    def limited(self, process: subprocess.Popen[str]) -> threading.Timer:
        """A timer that ends the process when an item takes too long or the part's time is over."""
        seconds = max(0.1, min(SECONDS_OF_AN_ITEM, self.ends - time.monotonic()))
        timer = threading.Timer(seconds, process.kill)
        timer.daemon = True
        timer.start()
        return timer


def show(record: Record) -> None:
    seconds = f" ({record.seconds:.1f} s)" if record.seconds else ""
    print(f"  {record.status:9}{record.name}{seconds}", flush=True)
    if record.remark:
        print(f"           {record.remark}", flush=True)
    if record.result is not None:
        for name, step in record.result["steps"].items():
            memory = "" if step["extra_bytes"] is None else f", {step['extra_bytes'] / 1e6:,.0f} MB"
            print(f"           {name}: {1e3 * step['median']:.4g} ms{memory}", flush=True)
        for note in record.result["notes"]:
            print(f"           {note}", flush=True)


def kept_records(path: Path, setting: Setting, here: dict[str, object]) -> dict[str, Record]:
    """The records of an earlier run that need no repetition."""
    try:
        document = json.loads(path.read_text())
        same = (SCHEMA, setting.small, setting.device, fingerprint())
        if tuple(document[x] for x in ("schema", "small", "device", "sources")) != same:
            return {}
        if any(document["machine"][x] != here[x] for x in ("gpu", "processor", "torch")):
            return {}
        records = [Record(**x) for x in document["records"]]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {x.name: x for x in records if x.status in KEPT}


def run_part(name: str, setting: Setting, folder: Path, seconds: float, again: bool) -> list[Record]:
    entry, here = PARTS[name], machine()
    path = folder / f"gpu_{name}.json"
    names = [item.name for item in entry.function(setting)]
    kept = {} if again else {x: y for x, y in kept_records(path, setting, here).items() if x in names}
    print(f"{name}: {len(names)} items, at most {seconds:.0f} s" + (f", {len(kept)} kept" if kept else ""))
    run = Run(name, setting, path, time.monotonic() + seconds, here, kept)
    missing = [x for x in names if x not in kept]
    count = min(entry.processes, max(1, (os.cpu_count() or 1) // 2), max(1, len(missing)))
    threads = [threading.Thread(target=run.work, args=(missing[i::count],)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.records = {x: run.records[x] for x in names}
    run.write()
    return list(run.records.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    parser.add_argument("--again", action="store_true", help="repeat what an earlier run measured")
    parser.add_argument(
        "--results", type=Path, help="the folder for gpu_*.json; with --small, none is the default"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the time of all parts together")
    parser.add_argument("--device", default="cuda", help="the device; cpu with --small")
    parser.add_argument("--small", action="store_true", help="tiny tensors, only to see that it runs")
    parser.add_argument("--serve", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    setting = Setting(options.device, options.small)
    if options.serve:
        serve(options.serve, setting, json.load(sys.stdin))
        return 0
    if setting.has_gpu and not torch.cuda.is_available():
        print("No GPU here: torch finds none, so `make gpu` measured nothing.")
        return 0
    parts = options.part or list(PARTS)
    began, planned, counts = time.monotonic(), 0.0, Counter[str]()
    with tempfile.TemporaryDirectory() as aside:
        folder = options.results or (Path(aside) if setting.small else RESULTS)
        for name in parts:
            planned += PARTS[name].seconds * max(1.0, options.seconds / SECONDS)
            seconds = max(0.0, began + min(planned, options.seconds) - time.monotonic())
            counts.update(x.status for x in run_part(name, setting, folder, seconds, options.again))
    print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    return FAILED if counts["failed"] else UNFINISHED if counts["not run"] else 0


if __name__ == "__main__":
    sys.exit(main())
