"""Gain of each closed form in C++ over the same form in plain torch: value, and value with gradient.

python benchmarks/bench_native_forms.py [--quick] [--only WORD,...]

With --only, the pairs whose names contain one of the words are measured again; the other rows stay.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from bench_pairs import CLOSED_FORMS, made, repeated, with_leaves
from rich.console import Console
from rich.table import Table
from timing import RESULTS, Step, interleave, machine, summarize
from torch import Tensor

from kullback import kl_divergence
from kullback.pairs import native_forms
from kullback.pairs.registry import fused_divergence

SCHEMA = "kullback.native_forms/1"
PAGE = RESULTS / "native_forms.json"
MANY = 1_000_000
SIZES = (1, 1_000, MANY)
# The required gain of a kernel for two families, or for factor models: the geometric mean over sizes and kinds.
LEAST_GAIN = 2.0


def in_python(run: Callable[[], object]) -> Callable[[], None]:
    def without_kernels() -> None:
        with patch.object(native_forms, "_is_available", lambda: False):
            run()

    return without_kernels


def measure(name: str, n: int, *, quick: bool) -> dict[str, Any]:
    """Microseconds of CPU time of one call, on one thread, by the kernel and in Python in turns."""
    (p, of_p), (q, of_q) = (with_leaves(made(make, n, torch.float64)) for make in CLOSED_FORMS[name])
    leaves: list[Tensor] = of_p + of_q
    is_large = n >= MANY or (n > 1 and "50 dimensions" in name)
    calls = 1 if is_large else 20

    def value() -> None:
        with torch.no_grad():
            kl_divergence(p, q)

    def with_gradient() -> None:
        torch.autograd.grad(kl_divergence(p, q).sum(), leaves, retain_graph=True, allow_unused=True)

    row: dict[str, Any] = {"pair": name, "size": n}
    for kind, run in (("value", value), ("gradient", with_gradient)):
        several = repeated(run, calls)
        steps = {"cpp": Step(several), "python": Step(in_python(several))}
        least, most = (2, 2) if quick or is_large else (5, 15)
        times = interleave(
            steps, least=least, most=most, seconds=0.5, warm_up=not is_large, clock=time.process_time
        )
        row[kind] = {step: 1e6 * summarize(x)["median"] / calls for step, x in times.items()}
    return row


def is_in_cpp(name: str) -> bool:
    p, q = (made(make, 2, torch.float64) for make in CLOSED_FORMS[name])
    value = fused_divergence(p, q)
    return value is not None and bool(value.isfinite().any())


def gain(rows: list[dict[str, Any]]) -> float:
    """Return the geometric mean of Python's time over C++'s time."""
    logs = [
        math.log(row[kind]["python"] / row[kind]["cpp"]) for row in rows for kind in ("value", "gradient")
    ]
    return math.exp(sum(logs) / len(logs))


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table("pair", "geometric mean of the gains")
    for name in dict.fromkeys(row["pair"] for row in rows):
        table.add_row(name, f"{gain([row for row in rows if row['pair'] == name]):.1f}")
    console.print(table)


def main(arguments: list[str]) -> None:
    quick = "--quick" in arguments
    words = arguments[arguments.index("--only") + 1].split(",") if "--only" in arguments else [""]
    old = json.loads(PAGE.read_text())["rows"] if words != [""] else []
    torch.manual_seed(0)
    here = machine()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in filter(is_in_cpp, CLOSED_FORMS):
        if any(word in name for word in words):
            few = quick or "dimensions" in name
            rows += [measure(name, n, quick=quick) for n in (SIZES[:2] if few else SIZES)]
        else:
            rows += [row for row in old if row["pair"] == name]
    show(Console(), rows)
    if not quick:
        document = {"schema": SCHEMA, "machine": here, "rows": rows}
        PAGE.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
