"""What `import kullback`, and the first name taken from it, add to `import torch`: medians, interleaved.

Each is imported by a fork of a process that has imported PyTorch and nothing else; everything was compiled to bytecode
before, as pip does. The times are processor time, which a busy machine changes least.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "import.json"
REPEATS = 7
STATEMENTS = (
    "import kullback",
    "from kullback import Probs",
    "from kullback import kl_divergence",
    "from kullback.functional import distillation_loss",
    "from kullback import compare_tables",
    "import torchmetrics",
    "import scipy.stats",
)
PROGRAM = """
import json, os, time
import torch
taken = {{statement: [] for statement in {statements!r}}}
for _ in range({repeats}):
    for statement, times in taken.items():
        ours, theirs = os.pipe()
        if os.fork() == 0:
            start = time.process_time()
            exec(statement)
            os.write(theirs, str(time.process_time() - start).encode())
            os._exit(0)
        os.close(theirs)
        times.append(float(os.read(ours, 100)))
        os.close(ours)
        os.wait()
print(json.dumps(taken))
"""


def run(repeats: int, environment: dict[str, str]) -> dict[str, list[float]]:
    program = PROGRAM.format(statements=STATEMENTS, repeats=repeats)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def main() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run(1, environment)  # compiles
    taken = run(REPEATS, environment)
    rows = {name: round(1000 * statistics.median(times), 1) for name, times in taken.items()}
    held = {"unit": "ms of processor time after `import torch`, median", "repeats": REPEATS, **rows}
    RESULTS.write_text(json.dumps(held, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
