"""The memory and time of `kullback compare` for two files of logits that do not fit into its memory.

Writes two .npy files of float16 logits, compares them in a process of its own, and reports that process's
peak resident memory (which includes Python and torch themselves) and its time.

    python benchmarks/compare_memory.py            # two files of 4 GB: needs 8 GB of disk
    python benchmarks/compare_memory.py --gb 0.5
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RESULT = Path(__file__).parent / "results" / "compare_memory.json"
COMMAND = [sys.executable, "-c", "from kullback.cli import main; main()"]
BLOCK_ELEMENTS = 8_000_000
LIMIT_MIB = 1000


def write_logits(p_path: Path, q_path: Path, rows: int, classes: int) -> None:
    """Write random logits as P, and the same logits with noise as Q, a block at a time."""
    random = np.random.default_rng(0)
    header = {"descr": "<f2", "fortran_order": False, "shape": (rows, classes)}
    step = max(1, BLOCK_ELEMENTS // classes)
    with p_path.open("wb") as p_file, q_path.open("wb") as q_file:
        for file in (p_file, q_file):
            np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, rows, step):
            shape = min(step, rows - start), classes
            p = 3 * random.standard_normal(shape, dtype="float32")
            q = p + 0.1 * random.standard_normal(shape, dtype="float32")
            for file, x in ((p_file, p), (q_file, q)):
                file.write(x.astype("<f2").tobytes())


def peak_mib_of_children() -> float:
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=4.0, help="size of each file in GB (10^9 bytes)")
    parser.add_argument("--classes", type=int, default=32_000)
    parser.add_argument("--dir", type=Path, help="where to put the files; default: the temporary directory")
    options = parser.parse_args()
    rows = round(options.gb * 1e9 / 2 / options.classes)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        p, q = Path(folder, "p.npy"), Path(folder, "q.npy")
        write_logits(p, q, rows, options.classes)
        started = time.perf_counter()
        command = [*COMMAND, "compare", str(p), str(q), "--as", "logits", "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        seconds = time.perf_counter() - started
    found = json.loads(done.stdout)
    result = {
        "gigabytes_each": options.gb,
        "rows": rows,
        "classes": options.classes,
        "dtype": "float16",
        "peak_mib": round(peak_mib_of_children(), 1),
        "seconds": round(seconds, 1),
        "nanoseconds_per_class": round(1e9 * seconds / (rows * options.classes), 1),
        "kl_pq_mean": found["divergences"]["kl_pq"]["mean"],
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    if found["rows"] != rows or result["peak_mib"] >= LIMIT_MIB:
        sys.exit(f"expected {rows} rows and less than {LIMIT_MIB} MiB")


if __name__ == "__main__":
    main()
