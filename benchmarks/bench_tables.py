"""Time and memory of comparing tables of 100 columns, also with Evidently if it is installed.

Each measurement runs in a process of its own. Its time includes reading the files, its memory Python and all imports.

    python benchmarks/bench_tables.py                    # to 10⁷ rows: needs 15 GB of disk for a while
    python benchmarks/bench_tables.py --rows 100000
    python benchmarks/bench_tables.py --peers FOLDER     # the folder of `pip install --target FOLDER evidently`
    python benchmarks/bench_tables.py --engines after    # every engine on the same 10⁷ rows, under this name
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULT = Path(__file__).parent / "results" / "tables.json"
ENGINES_RESULT = RESULT.with_name("table_engines.json")
SCHEMA = "kullback.tables/1"
COLUMNS = 100
SIZES = (100_000, 1_000_000, 10_000_000)
EVIDENTLY_ROWS = 1_000_000  # it holds both tables in memory as pandas
ENGINE_TYPES = ("float",) * 5 + ("integer", "string", "datetime", "boolean")
LIMIT_SECONDS, LIMIT_MIB, LEAST_RATIO = 60.0, 2000.0, 10.0


def profile(before: str, after: str) -> Callable[[], object]:
    from kullback.tables import profile_table

    return lambda: profile_table(before)


def compare(before: str, after: str) -> Callable[[], object]:
    from kullback.tables import compare_tables

    return lambda: compare_tables(before, after)


def evidently(before: str, after: str) -> Callable[[], object]:
    """PSI of every column, by Evidently's preset; dates and booleans have to be converted for it."""
    import pandas as pd
    from evidently import DataDefinition, Dataset, Report
    from evidently.presets import DataDriftPreset

    def run() -> object:
        frames = [pd.read_parquet(path) for path in (before, after)]
        strings = [name for name in frames[0] if name.startswith(("string", "boolean"))]
        numbers = [name for name in frames[0] if name.startswith(("float", "integer"))]
        definition = DataDefinition(numerical_columns=numbers, categorical_columns=strings)
        p, q = (Dataset.from_pandas(frame[numbers + strings], definition) for frame in frames)
        return Report([DataDriftPreset(method="psi")]).run(q, p).dict()

    return run


STEPS = {"profile of one table": profile, "comparison": compare, "Evidently": evidently}


def with_pyarrow(path: str) -> object:
    import pyarrow.parquet as pq

    return pq.read_table(path)


def with_pandas(path: str) -> object:
    import pandas as pd

    return pd.read_parquet(path, dtype_backend="pyarrow")


def with_polars(path: str) -> object:
    import polars as pl

    return pl.read_parquet(path)


def with_lazy_polars(path: str) -> object:
    import polars as pl

    return pl.scan_parquet(path)


def with_duckdb(path: str) -> object:
    import duckdb

    return duckdb.read_parquet(path)


def with_dask(path: str) -> object:
    import dask.dataframe as dd

    return dd.read_parquet(path, split_row_groups=10)


def with_ibis(path: str) -> object:
    import ibis

    return ibis.duckdb.connect().read_parquet(path)


def with_spark(path: str) -> object:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session.read.parquet(path)


ENGINES: dict[str, Callable[[str], object]] = {
    "a Parquet file": lambda path: path,
    "DuckDB": with_duckdb,
    "PyArrow": with_pyarrow,
    "pandas": with_pandas,
    "Polars": with_polars,
    "Polars, lazy": with_lazy_polars,
    "Dask": with_dask,
    "Ibis on DuckDB": with_ibis,
    "PySpark": with_spark,
}


def engine_step(name: str) -> Callable[[str, str], Callable[[], object]]:
    """A step that profiles an engine's table; the table is opened before the clock starts."""

    def step(path: str, _: str) -> Callable[[], object]:
        from kullback.tables import profile_table

        frame = ENGINES[name](path)
        return lambda: profile_table(frame)

    return step


STEPS |= {f"engine {name}": engine_step(name) for name in ENGINES}


def measured(step: str, before: Path, after: Path, peers: Path | None) -> dict[str, float] | None:
    """Seconds, CPU seconds and peak memory of a step in a separate process; None if its package is missing."""
    environment = dict(os.environ)
    if peers is not None and step == "Evidently":
        environment["PYTHONPATH"] = str(peers)
    command = [sys.executable, "-W", "ignore", __file__, "--step", step, str(before), str(after)]
    done = subprocess.run(
        command, capture_output=True, env=environment, check=False, text=True, start_new_session=True
    )
    if done.returncode != 0:
        if "No module named 'evidently'" in done.stderr:
            return None
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def run_step(step: str, before: str, after: str) -> None:
    run = STEPS[step](before, after)
    started, cpu = time.perf_counter(), session_seconds()
    run()
    seconds, cpu = time.perf_counter() - started, session_seconds() - cpu
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak = used.ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "peak_mib": peak}))


def session_seconds() -> float:
    """CPU seconds of all processes of this session, Spark's too; without /proc, of this process alone."""
    if not Path("/proc/self/stat").exists():
        return time.process_time()
    session, ticks = str(os.getsid(0)), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            # Fields 6 and 14 to 17 of proc(5): the session, and the times of the process and its ended children.
            ticks += sum(map(int, fields[11:15])) if fields[3] == session else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def measure_engines(label: str, rows: int, folder: Path, names: list[str]) -> dict[str, Any]:
    """The measurements so far, with new ones of the engines on one table under a label."""
    from table_data import write_table
    from timing import machine

    path = folder / "table.parquet"
    write_table(path, rows, ENGINE_TYPES, seed=0)
    document = json.loads(ENGINES_RESULT.read_text()) if ENGINES_RESULT.exists() else {}
    runs = document.get("runs", {})
    runs.setdefault(label, {})
    for name in names:
        runs[label][name] = measured(f"engine {name}", path, path, None)
        load = os.getloadavg()[0]
        print(name, runs[label][name], f"load {load:.1f}", flush=True)
    return {"schema": SCHEMA, "machine": machine(), "rows": rows, "columns": len(ENGINE_TYPES), "runs": runs}


def measure_size(rows: int, folder: Path, peers: Path | None) -> dict[str, Any]:
    from table_data import types_of, write_table

    before, after = folder / "before.parquet", folder / "after.parquet"
    write_table(before, rows, types_of(COLUMNS), seed=0)
    write_table(after, rows, types_of(COLUMNS), seed=1, shift=0.1)
    size = before.stat().st_size
    steps = [step for step in STEPS if step != "Evidently" or rows <= EVIDENTLY_ROWS]
    found = {step: measured(step, before, after, peers) for step in steps}
    before.unlink()
    after.unlink()
    return {"rows": rows, "columns": COLUMNS, "bytes": size, "steps": {k: v for k, v in found.items() if v}}


def judged(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each target, the measured value, and whether it is met."""
    found = []
    for case in cases:
        steps = case["steps"]
        if case["rows"] == SIZES[-1]:
            for name, unit, limit in (("seconds", "s", LIMIT_SECONDS), ("peak_mib", "MiB", LIMIT_MIB)):
                value = steps["profile of one table"][name]
                found.append(_judgment(f"10⁷ rows, {name}", f"< {limit:g} {unit}", value, met=value < limit))
        if "Evidently" in steps:
            ratio = steps["Evidently"]["seconds"] / steps["comparison"]["seconds"]
            wanted = f"≥ {LEAST_RATIO:g}×"
            target = f"Evidently's time, {case['rows']:,} rows"
            found.append(_judgment(target, wanted, ratio, met=ratio >= LEAST_RATIO))
    return found


def _judgment(target: str, wanted: str, value: float, *, met: bool) -> dict[str, Any]:
    return {"target": target, "wanted": wanted, "found": round(value, 1), "met": met}


def show(cases: list[dict[str, Any]]) -> None:
    table = Table("rows", "", "seconds", "CPU seconds", "peak MiB")
    for case in cases:
        for step, x in case["steps"].items():
            numbers = f"{x['seconds']:.1f}", f"{x['cpu_seconds']:.1f}", f"{x['peak_mib']:.0f}"
            table.add_row(f"{case['rows']:,}", step, *numbers)
    Console().print(table)
    for x in judged(cases):
        print(f"{x['target']}: {x['found']}, wanted {x['wanted']}: {'met' if x['met'] else 'NOT met'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, action="append", help="how many; may be given several times")
    parser.add_argument("--dir", type=Path, help="where to put the files; default: the temporary directory")
    parser.add_argument("--peers", type=Path, help="a folder with the packages to compare with")
    parser.add_argument("--quick", action="store_true", help="1000 rows, only to see that it runs")
    parser.add_argument("--engines", help="the name of this version: measure every engine instead")
    parser.add_argument("--engine", action="append", help="only this engine; may be given several times")
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        run_step(*options.step)
        return
    if options.engines:
        rows = 1000 if options.quick else (options.rows or SIZES)[-1]
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            names = options.engine or list(ENGINES)
            document = measure_engines(options.engines, rows, Path(folder), names)
        if not options.quick and not options.rows:
            ENGINES_RESULT.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        return
    from timing import machine

    here, cases = machine(), []
    for rows in [1000] if options.quick else options.rows or SIZES:
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            cases.append(measure_size(rows, Path(folder), options.peers))
    show(cases)
    if not options.quick and not options.rows:
        document = {"schema": SCHEMA, "machine": here, "cases": cases, "targets": judged(cases)}
        RESULT.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
