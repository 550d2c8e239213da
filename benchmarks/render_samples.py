"""Writes docs/records/estimators.md, the accuracy and the speed of estimates from data, from benchmarks/results/.

python benchmarks/render_samples.py
"""

from __future__ import annotations

import json
import math
import textwrap
from pathlib import Path
from typing import Any

from render import cell, describe, megabytes, table
from targets import judge
from timing import RESULTS

Row = dict[str, Any]

PAGE = Path(__file__).parents[1] / "docs" / "records" / "estimators.md"
CASES = {
    "gauss1": "N(0, 1) ‖ N(1, 1.5²)",
    "exponential": "Exponential(1) ‖ Exponential(2)",
    "cauchy1": "Cauchy(0) ‖ Cauchy(1)",
    "pareto": "Pareto(1.5) ‖ Pareto(3)",
    "far": "N(0, 1) ‖ N(5, 1)",
    "gauss5": "5-D Gaussians",
    "cauchy5": "5-D Cauchys",
    "equal5": "P = Q, 5-D Gaussian",
    "gauss20": "20-D Gaussians",
    "zipf": "Zipf(1.1) ‖ Zipf(0.8), 1000 categories",
    "zipf_permuted": "Zipf ‖ Zipf permuted, 1000 categories",
    "zipf_equal": "P = Q, Zipf, 1000 categories",
    "ten_categories": "Zipf(1) ‖ uniform, 10 categories",
}
NOMINAL = 0.95
LEAST_COVERAGE = 0.93

INTRODUCTION = """\
# Estimates from data
"""

METHOD = """\
All numbers are measured (`make bench`) on draws from pairs whose divergence is known exactly, with equally many draws
of P and Q, in nats. *Ours* is `kl_estimate(Samples(x), Samples(y))` without further arguments.
"""

ERRORS = """\
## Errors

The root mean square error over repetitions, with the mean of the estimates in brackets. Peers get the same draws, with
fewer repetitions. No method can estimate the KL of N(0, 1) ‖ N(5, 1) from so few draws, because nearly all of it comes
from a region without draws of Q. **Bold** marks a peer that is significantly better than ours.
"""

HARD = """\
## Hard cases

How often the 95 % interval covers on pairs that are meant to break it: tails of P beyond Q's, categories that Q lacks,
atoms, planes, spheres, lattices, clusters, waves (`python benchmarks/coverage.py`). An interval with an infinite upper
limit covers if its lower limit is below the truth. **Bold** is coverage significantly below 93 %.

Nearly all panels with gaps are open. Of 200 samples with 15 % of the rows missing, 6 had an interval. Of 200 samples
with 30 % missing, 2 had an interval, and both excluded 0 (the bold row). Gaps are harder to see if rows of one unit are
less alike. With a correlation of 0.5 and 30 % missing, 99 of 200 panels of 80 units had an interval, and 86 of these
covered. Pass `cluster=` for such data.
"""

OPEN_BEFORE = """\
## Intervals that were always open

The share of repetitions without a finite upper limit, before 2026-11-29 and now, among the hard cases above.
"""

_FEW_ROWS = (
    "A category without rows on one side, where 3 or more are expected, gives an infinite upper limit. Merge rare "
    "categories, or take more rows."
)
_OF_THE_TAILS = (
    "Chi-squared depends on the unobserved tails. Use a bounded kind, such as `js`, or bins: their divergence is a "
    "lower bound of the divergence of the densities."
)
_OF_BITS = (
    "Classifiers of the bits give the estimate. Where equal vectors show that these miss a part, compare fewer bits: "
    "their divergence is a lower bound."
)
# The cases by name and number of draws, and why some or all of their intervals are still open, with the remedy.
WERE_OPEN = {
    ("PSI of 40 rows of six categories against 40,000, P = Q", 40): _FEW_ROWS,
    ("PSI of 40 rows of six categories against 40,000", 40): _FEW_ROWS,
    ("PSI of 40 rows of ten categories against 40,000, P = Q", 40): _FEW_ROWS,
    ("PSI of 40 rows of ten categories against 40,000", 40): _FEW_ROWS,
    ("PSI of 40 rows of twenty categories against 40,000, P = Q", 40): (
        "The posterior needs 4 rows of each category on average. Merge rare categories, or take 120 rows."
    ),
    ("vectors of ten bits, P = Q", 1000): _OF_BITS,
    ("vectors of ten bits, 0.5 ‖ 0.4", 1000): _OF_BITS,
    ("vectors of ten bits, 0.5 ‖ 0.4", 300): _OF_BITS,
    ("vectors of ten bits, tilt 0.5 of the parity", 1000): _OF_BITS,
    ("chi2 of numbers, shift 0", 400): _OF_THE_TAILS,
    ("chi2 of numbers, shift 0.5", 400): _OF_THE_TAILS,
}

TWO_SAMPLES = """\
## One distribution or two?

How often `two_sample_test` and other tests of the same draws reject at the level 0.05
(`python benchmarks/bench_two_sample.py`). If P = Q, 5 % is right. *Before* is the version without the statistics
`anderson_darling`, `skewness_of_ranks`, `tails` and `narrow_kernel`. MMDAgg takes Gaussian kernels of nine widths,
*neighbors* counts five neighbors of each draw, and χ² uses ten bins, or signs about medians. The last column is the
difference between ours and the best of the others, in percentage points.
"""

COVERAGE = """\
## Intervals

How often the 95 % interval covers the truth, and its median width. If draws cannot bound KL from above, the upper
limit is infinite (*no upper end*). If no interval would be valid, there is none (*refused*). The notes of the estimate
give the reason. Intervals with a higher coverage are widened for a possible bias.
"""

SPEED = """\
## Time and memory of nearest neighbors

Milliseconds, the median of interleaved rounds; both sides are standard normal. Extra memory is measured in a separate
process.
"""

TABLES = """\
## Tables

Two Parquet files of 100 columns, most of them numbers, compared column by column in a separate process. Time and memory
include Python, its imports and reading the files.
"""

ENGINES = """\
### Engines

A profile of 10,000,000 rows and 9 columns: floating-point numbers, integers, words, timestamps and booleans
(`python benchmarks/bench_tables.py --engines after`). Each engine has its table open before the clock starts; PyArrow,
pandas and Polars have it in memory, the others read a Parquet file. CPU seconds include Spark's other processes. In the
version before, Spark and Ibis counted by expressions of narwhals; now they hand over Arrow batches. The other engines
count by nearly the same code in both versions, so they show the noise. Other programs ran at the same time: compare CPU
seconds.
"""


def main() -> None:
    PAGE.write_text(page(RESULTS))


def page(folder: Path) -> str:
    """The page, as Markdown."""
    parts = [INTRODUCTION, *answer(folder), METHOD]
    if document := read(folder / "samples.json"):
        parts += [describe(document["machine"])]
        if note := document.get("note"):
            parts.append(f"{textwrap.fill(note, 120)}\n")
        parts += [errors(document["rows"]), intervals(document["rows"])]
    if document := read(folder / "coverage.json"):
        parts += [hard_cases(document)]
    if document := read(folder / "two_sample.json"):
        parts += [two_samples(document)]
    if document := read(folder / "neighbors.json"):
        parts.append(speed(document))
    if document := read(folder / "tables.json"):
        parts.append(tables(document))
    if document := read(folder / "table_engines.json"):
        parts.append(engines(document))
    return "\n".join(parts)


def answer(folder: Path) -> list[str]:
    """The head of the page: the measurement, the result and the conclusion."""
    documents = [read(folder / f"{name}.json") for name in ("samples", "coverage", "two_sample")]
    samples, hard, tests = ([] if x is None else x["rows"] for x in documents)
    if not (samples and hard and tests):
        return []
    of_case = {(x["case"], x["n"]): x for x in samples if x["method"] == "auto" and x["case"] in CASES}
    compared = {key: [x for x in samples if is_peer(x) and (x["case"], x["n"]) == key] for key in of_case}
    behind = sum(any(is_better(peer, of_case[key]) for peer in peers) for key, peers in compared.items())
    covered = sum(x["holds"] for x in hard)
    rejected = sorted(x["rejects"]["ours"] for x in tests if x["equal"])
    text = (
        "Measured: `kl_estimate` and `two_sample_test` on draws from pairs with a known divergence. Result: a peer is "
        f"significantly more accurate in {behind} of {sum(map(bool, compared.values()))} cases. The 95 % intervals "
        f"cover at least {100 * LEAST_COVERAGE:.0f} % in {covered} of {len(hard)} hard cases, apart from chance. The "
        f"test rejects equal distributions in {100 * rejected[0]:.0f} to {100 * rejected[-1]:.0f} % of runs at the "
        "level 5 %. Conclusion: a finite interval can be trusted under its [assumptions](../intervals.md); an infinite "
        "upper limit means that the draws do not bound KL."
    )
    return [textwrap.fill(text, 120) + "\n"]


def read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


def errors(rows: list[Row]) -> str:
    sizes = sorted({row["n"] for row in rows})
    peers = list(dict.fromkeys(row["method"] for row in rows if is_peer(row)))
    parts = [ERRORS]
    for n in sizes:
        body = []
        for case, name in CASES.items():
            here = {row["method"]: row for row in rows if row["case"] == case and row["n"] == n}
            if "auto" not in here:
                continue
            ours = here["auto"]
            cells = [short(ours)]
            cells += [short(here[x], bold=is_better(here[x], ours)) if x in here else "" for x in peers]
            body.append([name, f"{ours['truth']:.3f}", ", ".join(ours["chosen"]), *cells])
        parts.append(f"n = {n:,}\n\n{table(['', 'KL', 'method', 'ours', *peers], body)}")
    return "\n".join(parts)


def is_peer(row: Row) -> bool:
    return row["chosen"] == [row["method"]] and any(c in row["method"] for c in ",.")


def is_better(peer: Row, ours: Row) -> bool:
    """Whether the peer's error is smaller by more than twice the standard errors of the two."""
    if not math.isfinite(peer["rmse"]):
        return False
    doubt = sum((row["rmse"] / math.sqrt(2 * row["repetitions"])) ** 2 for row in (peer, ours)) ** 0.5
    return peer["rmse"] < ours["rmse"] - 2 * doubt


def short(row: Row, *, bold: bool = False) -> str:
    if not math.isfinite(row["rmse"]):
        return "inf" if row["mean"] == math.inf else "fails"
    text = f"{row['rmse']:.3f} ({row['mean']:.3f})"
    return f"**{text}**" if bold else text


def intervals(rows: list[Row]) -> str:
    ours = [row for case in CASES for row in rows if row["case"] == case and row["method"] == "auto"]
    body = [[CASES[x["case"]], f"{x['n']:,}", str(x["repetitions"]), *coverage(x)] for x in ours]
    return f"{COVERAGE}\n{table(['', 'n', 'repetitions', 'covers', 'median width', 'no upper end', 'refused'], body)}"


def coverage(row: Row) -> list[str]:
    if row["coverage"] is None:
        return ["–", "–", "–", "100 %"]
    refused = 1 - row["intervals"] / row["repetitions"]
    width = "–" if row["width"] is None else f"{row['width']:.3f}"
    covers = f"{100 * row['coverage']:.1f} %"
    chance = math.sqrt(NOMINAL * (1 - NOMINAL) / row["intervals"])
    if row["coverage"] < LEAST_COVERAGE - 2 * chance:
        covers = f"**{covers}**"
    return [covers, width, *(f"{100 * x:.0f} %" if x else "" for x in (row["one_sided"], refused))]


def hard_cases(document: dict[str, Any]) -> str:
    body = []
    for row in document["rows"]:
        truth = "∞" if row["truth"] is None else f"{row['truth']:.3f}"
        covers = "–" if row["coverage"] is None else f"{100 * row['coverage']:.1f} %"
        refused = 1 - row["intervals"] / row["repetitions"]
        shares = [f"{100 * x:.0f} %" if x else "" for x in (row["open"], refused)]
        width = "–" if row["width"] is None else f"{row['width']:.3f}"
        cells = [row["case"], f"{row['n']:,}", truth, str(row["repetitions"])]
        body.append([*cells, covers if row["holds"] else f"**{covers}**", width, *shares])
    head = ["", "n", "KL", "repetitions", "covers", "median width", "no upper end", "refused"]
    return f"{HARD}\n{describe(document['machine'])}\n{table(head, body)}\n{were_open(document['rows'])}"


def were_open(rows: list[Row]) -> str:
    body = []
    for row in rows:
        if reason := WERE_OPEN.get((row["case"], row["n"])):
            finite = row["intervals"] * (1 - row["open"]) / row["repetitions"]
            body.append([row["case"], f"{row['n']:,}", "100 %", f"{100 * (1 - finite):.1f} %", reason])
    return f"{OPEN_BEFORE}\n{table(['', 'n', 'open before', 'open now', 'reason and remedy'], body)}"


def two_samples(document: dict[str, Any]) -> str:
    tests = list(dict.fromkeys(test for row in document["rows"] for test in row["rejects"]))
    body = []
    for row in document["rows"]:
        sizes = " and ".join(f"{size:,}" for size in row["sizes"])
        of_test = {"before": row["before"]} | row["rejects"] if "before" in row else row["rejects"]
        shares = [f"{100 * of_test[test]:.0f} %" if test in of_test else "" for test in ("before", *tests)]
        shares.append("" if row["equal"] else f"{100 * (row['rejects']['ours'] - best_peer(row)):+.0f}")
        body.append([row["case"], sizes, "P = Q" if row["equal"] else "", str(row["repetitions"]), *shares])
    head = ["", "draws", "", "repetitions", "before", *tests, "ours − best"]
    return f"{TWO_SAMPLES}\n{describe(document['machine'])}\n{table(head, body)}"


def best_peer(row: Row) -> float:
    return max(share for test, share in row["rejects"].items() if test != "ours")


def speed(document: dict[str, Any]) -> str:
    names = list(dict.fromkeys(name for c in document["cases"] for name in c["steps"]))
    times, memory = [], []
    for c in document["cases"]:
        head = f"{c['case']['rows']:,} draws, {c['case']['classes']}-D"
        times.append([head, *(cell(c["steps"].get(x)) for x in names)])
        memory.append([head, *(megabytes(c["steps"].get(x)) for x in names)])
    judged = [[x.target, x.case, x.wanted, x.found, "yes" if x.met else "**no**"] for x in judge([document])]
    return "\n".join(
        [
            SPEED,
            describe(document["machine"]),
            table(["ms", *names], times),
            table(["MB", *names], memory),
            table(["target", "case", "wanted", "found", "met"], judged),
        ]
    )


def tables(document: dict[str, Any]) -> str:
    body = []
    for case in document["cases"]:
        for step, x in case["steps"].items():
            numbers = f"{x['seconds']:.1f}", f"{x['cpu_seconds']:.1f}", f"{x['peak_mib']:.0f}"
            body.append([f"{case['rows']:,}", f"{case['bytes'] / 1e6:,.0f}", step, *numbers])
    headings = ["rows", "MB of a file", "", "seconds", "CPU seconds", "peak MiB"]
    judged = [
        [x["target"], x["wanted"], str(x["found"]), "yes" if x["met"] else "**no**"]
        for x in document["targets"]
    ]
    return "\n".join([TABLES, table(headings, body), table(["target", "wanted", "found", "met"], judged)])


def engines(document: dict[str, Any]) -> str:
    runs = document["runs"]
    body = [
        [
            engine,
            *(
                f"{x:,.1f}"
                for run in runs.values()
                for x in (run[engine]["seconds"], run[engine]["cpu_seconds"])
            ),
        ]
        for engine in next(iter(runs.values()))
    ]
    headings = ["", *(f"{label}, {unit}" for label in runs for unit in ("seconds", "CPU seconds"))]
    return "\n".join([ENGINES, describe(document["machine"]), table(headings, body)])


if __name__ == "__main__":
    main()
