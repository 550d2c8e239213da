"""Time that `import kullback`, its first name and its first call add to `import torch`: interleaved medians.

Each statement runs in a new interpreter that has only imported PyTorch. All modules are compiled to bytecode first, as
pip does. Times are CPU times, which a busy machine changes least. An import can start Python's garbage collector, which
then visits the objects of PyTorch. Its time is shown separately.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "import.json"
REPEATS = 15
PAIR = "from torch.distributions import *; from kullback import Logits, kl_divergence; p, q ="
# The timed statement, and the statements before it.
STATEMENTS = {
    "import kullback": "",
    "from kullback import Probs": "",
    "from kullback import kl_divergence": "",
    "from kullback.functional import distillation_loss": "",
    "from kullback import compare_tables": "",
    "kl_divergence(p, q)  # Logits": f"{PAIR} Logits(torch.randn(4, 10)), Logits(torch.randn(4, 10))",
    "kl_divergence(p, q)  # Normals": f"{PAIR} Normal(0.0, 1.0), Normal(1.0, 2.0)",
    "kl_divergence(p, q)  # Laplace and StudentT, by quadrature": f"{PAIR} Laplace(0.0, 1.0), StudentT(3.0)",
    "import torchmetrics": "",
    "import scipy.stats": "",
}
PROGRAM = """
import gc, sys, time

start = time.process_time()
import torch
of_torch = time.process_time() - start
exec(sys.argv[2])
collecting, started = 0.0, 0.0

def watch(phase, about):
    global collecting, started
    now = time.process_time()
    if about["generation"] == 2:
        started, collecting = (now, collecting) if phase == "start" else (started, collecting + now - started)

gc.callbacks.append(watch)
start = time.process_time()
exec(sys.argv[1])
print(time.process_time() - start, collecting, of_torch)
"""


def run(statement: str, environment: dict[str, str]) -> list[float]:
    """The times of a statement, of its garbage collection, and of `import torch`."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, statement, STATEMENTS[statement]],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [1000 * float(number) for number in done.stdout.split()]


def main() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for statement in STATEMENTS:
        run(statement, environment)  # compiles
    taken: dict[str, list[list[float]]] = {name: [] for name in STATEMENTS}
    for _ in range(REPEATS):
        for name, times in taken.items():
            times.append(run(name, environment))
    rows = {}
    for name, times in taken.items():
        total, collecting, _ = (statistics.median(column) for column in zip(*times, strict=True))
        rows[name] = {"all": round(total, 1), "of it collecting garbage": round(collecting, 1)}
    torch = statistics.median(times[2] for each in taken.values() for times in each)
    held = {
        "unit": "ms of processor time after `import torch`, median",
        "repeats": REPEATS,
        "import torch": round(torch, 1),
        **rows,
    }
    RESULTS.write_text(json.dumps(held, indent=1) + "\n")
    print(json.dumps(held, indent=1))


if __name__ == "__main__":
    main()
