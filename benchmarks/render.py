"""Writes docs/records/benchmarks.md and its plots from the numbers in benchmarks/results/.

python benchmarks/render.py
"""

from __future__ import annotations

import json
import math
import textwrap
from pathlib import Path
from typing import Any

from plots import plot_head, plot_rows, plot_scaling
from targets import Judgment, case_name, judge
from timing import RESULTS, SCHEMA

Result = dict[str, Any]

PAGE = Path(__file__).parents[1] / "docs" / "records" / "benchmarks.md"
ORDER = ["rows", "kinds", "overhead", "scaling", "head", "head_top_k"]
# The parts of `make gpu`: those that check, and the headings of those that measure.
GPU_SCHEMA = "kullback.gpu/1"
GPU_CHECKS = ("likely_faults", "parity", "two_gpus")
GPU_TABLES = {
    "kinds": "Every kind, forward and backward. `copy` copies the student's logits once.",
    "rows": "Losses from logits, forward and backward. `copy` copies one logits tensor, two thirds of the bytes of the "
    "loss.",
    "top_k": "A stored teacher's top classes, forward and backward.",
    "heads": "KL from hidden states and heads, forward and backward. `products` are the four matrix products alone.",
    "two_gpus": "Classes sharded over two GPUs, forward and backward.",
}
KINDS = ["KL", "reverse KL", "JS"]
WAYS = ["kullback", "kullback in place", "eager", "torch.compile", "TRL", "torchtune"]
NATIVE_SIZES = (1, 1_000, 1_000_000)
PLOTS = {"rows": plot_rows, "scaling": plot_scaling, "head": plot_head}

INTRODUCTION = """\
# Benchmarks
"""

METHOD = """\
`make bench` runs the scripts of `benchmarks/`, which write their numbers to `benchmarks/results/`, and this page. A
time is the median of interleaved rounds of all contenders in one process. Each step gets newly written logits. Memory
is the peak of a separate process during one step, minus its size before it. Virtual machines are noisy: repeat the
measurements on your own machine.
"""

HEADINGS = {
    "rows": "Losses from logits",
    "kinds": "Every kind of loss",
    "overhead": "Small calls",
    "scaling": "Scaling",
    "head": "Losses from hidden states and heads",
    "head_top_k": "Losses from a head and a teacher's top classes",
}

EXPLANATIONS = {
    "rows": "Forward and backward from two logits tensors, the gradient to the student; milliseconds. `clone` copies "
    "the student's logits. Eager and compiled torch compute bfloat16 in float32, because bfloat16 is too inaccurate. "
    "TRL's formula uses bfloat16, and torchtune's KL omits the teacher's entropy.",
    "kinds": "Forward and backward from two logits tensors, the gradient to the student; milliseconds. Eager torch is "
    "each kind's definition in a line or two, in float32, as users write it.",
    "overhead": "Forward and backward of logits so small that only the call costs; microseconds a call.",
    "scaling": "KL, forward and backward, in float32; milliseconds.",
    "head": "KL, forward and backward to the student's hidden states and head. `products` are the four matrix products "
    "alone, in one piece. Memory excludes the weight's gradient. When autograd computes this gradient, of the whole "
    "logits only their gradient is still in memory. If logits are small compared with the head, as at 512 × 32000, "
    "chunks save no memory.",
    "head_top_k": "KL of the student's head from the 64 most probable classes of a stored teacher, the others as one, "
    "forward and backward to hidden states and head. `products` are the three matrix products alone. Memory excludes "
    "the weight's gradient.",
}

MEMORY = """\
## Memory of `kullback compare`

Two files of {gigabytes_each:g} GB each, {dtype} logits of {rows:,} positions over {classes:,} classes, compared in a
process of its own (`python benchmarks/compare_memory.py`) on {cores} cores, Python {python}:

| | |
|---|---|
| peak resident memory, Python and torch included | {peak_mib:.0f} MiB |
| time | {seconds:.0f} s, {nanoseconds_per_class:.0f} ns per class of a position |

The memory does not depend on the length of the files. The time includes the effect of other programs.
"""

MODELS = """\
## Comparing models

Two random models of the shape of Llama-3.2-1B ({layers} layers, hidden size {hidden}, {classes:,} classes, float32)
read {windows} window of {context} tokens, half of them scored (`python benchmarks/compare_models.py`). Times are CPU
seconds, medians of interleaved runs on {machine[cores]} cores, Python {machine[python]}, torch {machine[torch]}.

| | |
|---|---|
| both models alone | {seconds[alone]:.1f} s |
| `compare_models` | {seconds[compare]:.1f} s, {compare_over_alone:.2f} × |
| memory beyond both models alone | {compare_beyond_alone_mib:.0f} MiB |
| `record_reference` of one, in times of that model alone | {record_over_half_alone:.2f} × |
| reference file | {reference[bytes_per_row]:.0f} bytes a scored token, read at {reference[mb_per_second]:.0f} MB/s |

The comparison adds a fixed time for each scored token, about 5 ms on one core. The time does not depend on the models'
size, so its share is larger for smaller models.
"""


LIMITS = """\
## Limits of this machine

The tables above may come from another machine than the machine below. The numbers are the best of some rounds, in CPU
time on one thread (`python benchmarks/limits.py`).

{machine}
**Memory.** The machine copies {copy:.1f} GB a second. It writes new memory, which the system has to allocate, at
{fresh:.1f} GB a second ({large:.1f} in pages of 2 MiB). So a new gradient of 512 × 32000 numbers takes {page_ms:.0f} ms
before any computation, for every kind. If glibc keeps freed memory
(`MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8589934592`), allocation is mostly free from the second step on, and the
kinds differ only in arithmetic. Occasionally the system takes several times as long for it:

{gradients}
**Arithmetic.** Nanoseconds per class, value and gradient, for rows that stay in the cache.{vectors}

{rows}
**Matrix products.** Billions of operations a second for a head of 128256 × 1024, by the number of positions in a chunk.
Few positions make them slow, because each product reads the head or its gradient, and the gradient is also written.
More positions take more memory. In bfloat16 the three products take {bf16_class:.1f} ns per class and position, and the
loss itself takes {bf16_loss:.1f}.

{products}"""


GROWTH = """\
## Growth

CPU seconds on one thread at three sizes (`python benchmarks/bench_growth.py`). The exponent is the slope between the
last two sizes, in logarithms: 1 is proportional to the size, and n log n is about 1.1. It is larger if a size exceeds
the caches, or needs newly allocated memory. Losses are measured with their gradients. In many dimensions neighbors are
searched among a part of the draws, and the test of two samples computes distances between a part of them.
`nearest_neighbors` and `two_sample_test` state the numbers.

{machine}
{rows}"""


NATIVE_FORMS = """\
## Closed forms in C++

The factors say how many times longer the same call takes in plain torch, without the kernels
(`python benchmarks/bench_native_forms.py`). They are for the value, and for the value with all gradients, of 1, 1,000
and 1,000,000 elements in float64. Times are CPU times on one thread, interleaved. Multivariate families stop at 1,000
elements. A form between two families, and a factor model, stays in C++ only if the geometric mean of its gains is at
least 2.

{machine}
{rows}"""


NORMALS = """\
## Normals of many dimensions

KL between two multivariate normals (`python benchmarks/bench_normals.py`), in milliseconds. The matrices belong to
smooth processes with noise; their condition number is about 100,000. The last four columns divide kullback's time by
the time of `torch.distributions.kl_divergence` for the same work:

- `value`: the distributions were compared before;
- `first`: the distributions are new;
- `made`: the time includes that to make the distributions;
- `gradient`: a value with all gradients.

Torch has no KL between a full or low-rank covariance and a diagonal one.

{machine}
{note}

{rows}
**Where kullback is slower.** Full matrices in float32: the first value of 2,000 dimensions takes {first} times as
long as torch's. A later one takes {later} times as long. Torch uses the Cholesky factors in float32 that the
distributions have made. Its relative errors in these rows are up to {torch_error}, kullback's up to {error}. For that,
kullback computes the factors in float64, once for each matrix. Each later call compares the matrix with a copy of it.
In float64 an operation takes twice as long. With the two factors, a first value has as many operations as torch's
triangular system. A later value has a third of them, and an estimate of its rounding error. The estimate takes a larger
share of the time in fewer dimensions. Gradients of 2,000 dimensions take fewer operations than torch's.
"""

# The times of kullback and torch that the table compares.
RATIOS = ("value", "first", "made", "gradient")


def normals(document: Result) -> str:
    """The time of KL between normals of many dimensions, beside torch's."""
    rows: list[list[str]] = []
    full = {"covariance ‖ covariance", "precision ‖ precision"}
    slow = [row for row in document["rows"] if row["pair"] in full and row["dtype"] == "float32"]
    slow = [row for row in slow if not row["batch"]]
    errors = {
        name: f"{max(row['relative error'][name] for row in slow):.0e}" for name in ("kullback", "torch")
    }
    for row in document["rows"]:
        spent, ratios = row["milliseconds"], row["ratio to torch"]
        names = ("value", "torch: value", "estimate")
        times = [three_digits(spent[name]) if name in spent else "–" for name in names]
        shape = " × ".join(f"{n:,}" for n in (*row["batch"], row["size"]))
        shares = [f"{ratios[name]:.2f}" if name in ratios else "–" for name in RATIOS]
        rows.append([row["pair"], row["dtype"], shape, *times, *shares])
    headings = ["pair", "dtype", "dimensions", "value", "torch", "`kl_estimate`"]
    return NORMALS.format(
        note=document["note"],
        machine=describe(document["machine"]),
        rows=table([*headings, "value ÷ torch", "first ÷ torch", "made ÷ torch", "gradient ÷ torch"], rows),
        first=_range([row["ratio to torch"]["first"] for row in slow]),
        later=_range([row["ratio to torch"]["value"] for row in slow]),
        error=errors["kullback"],
        torch_error=errors["torch"],
    )


def _range(numbers: list[float]) -> str:
    low, high = (f"{x:.1f}" for x in (min(numbers), max(numbers)))
    return low if low == high else f"{low} to {high}"


def native_forms(document: Result) -> str:
    """The gain of each closed form in C++, with the geometric mean of all gains."""
    rows: list[list[str]] = []
    for name in dict.fromkeys(row["pair"] for row in document["rows"]):
        of_pair = {row["size"]: row for row in document["rows"] if row["pair"] == name}
        gains = [
            [
                of_pair[n][kind]["python"] / of_pair[n][kind]["cpp"] if n in of_pair else None
                for n in NATIVE_SIZES
            ]
            for kind in ("value", "gradient")
        ]
        known = [x for each in gains for x in each if x is not None]
        mean = math.exp(sum(map(math.log, known)) / len(known))
        cells = ["–" if x is None else three_digits(x) for each in gains for x in each]
        times = [three_digits(of_pair[1][kind]["cpp"]) for kind in ("value", "gradient")]
        rows.append([name, *times, *cells, three_digits(mean)])
    sizes = [f"{n:,}" for n in NATIVE_SIZES]
    headings = [
        "pair",
        "µs of 1 value",
        "with gradient",
        *(f"value × {n}" for n in sizes),
        *(f"gradient × {n}" for n in sizes),
        "mean gain",
    ]
    return NATIVE_FORMS.format(machine=describe(document["machine"]), rows=table(headings, rows))


def growth(document: Result) -> str:
    """How the time of each entry point grows, with the exponent between its last two sizes."""
    rows: list[list[str]] = []
    for row in document["rows"]:
        seconds = [x["processor"] for x in row["times"]]
        sizes = [f"{size:,}" for size in row["sizes"]]
        cells = [f"{size}: {three_digits(x)}" for size, x in zip(sizes, seconds, strict=True)]
        rows.append([row["name"], row["along"], *cells, f"{exponent(row):.2f}"])
    headings = ["call", "grows by", "small: s", "middle: s", "large: s", "exponent"]
    return GROWTH.format(machine=describe(document["machine"]), rows=table(headings, rows))


def exponent(row: Result) -> float:
    """The slope of log CPU time against log size, between the last two sizes."""
    (before, after), (less, more) = row["sizes"][-2:], (x["processor"] for x in row["times"][-2:])
    return math.log(more / less) / math.log(after / before)


# Counted in the machine code of csrc/logits/kernel.cpp by GCC 12.
VECTORS = """ For 16 classes of
float32 the AVX-512 loops of KL have 62 arithmetic vector instructions: 28 in the sweep, 34 for the maxima and the
exponentials of both sides. Intel's cores start at most two per cycle: the minimum is 0.75 ns a class at 2.6 GHz. Zen 5
starts four at 3.9 GHz, two additions and two multiplications. Its minimum is 0.25 ns, or 0.28 ns because more than half
of them are multiplications. The classes beyond a multiple of 16 are computed one by one: rows of 1000 take 5 to 10 %
longer per class than rows of 992. At the rate below two threads take {thousand:.1f} ms for 4096 × 1000 in float32, and
{least:.1f} ms at Intel's minimum."""


def limits(document: Result) -> str:
    """The limits of the machine for the losses."""
    rates, classes = document["gigabytes_per_second"], document["nanoseconds_per_class"]
    gradients, products = document["milliseconds_of_gradients"], document["gflops"]
    whole = [x for name, x in products["bfloat16"].items() if name.startswith("1024")]
    fresh = rates["fresh, 4 KiB pages"]
    is_counted = document["machine"]["vector_instructions"] == "AVX512"
    return LIMITS.format(
        machine=describe(document["machine"]),
        vectors=VECTORS.format(
            thousand=4.096 / 2 * classes["float32"]["KL with its gradient"], least=4.096 / 2 * 0.75
        )
        if is_counted
        else "",
        copy=rates["copy"],
        fresh=fresh,
        large=rates["fresh, 2 MiB pages"],
        page_ms=1e3 * 512 * 32_000 * 4 / 1e9 / fresh,
        gradients=_by_name("ms", gradients),
        rows=_by_name("ns a class", classes),
        products=_by_name("GFLOP/s", products),
        bf16_class=sum(2 * 1024 / x for x in whole),
        bf16_loss=classes["bfloat16"]["KL with its gradient"],
    )


def _by_name(unit: str, columns: dict[str, dict[str, float]]) -> str:
    names = list(next(iter(columns.values())))
    rows = [[name, *(three_digits(x[name]) for x in columns.values())] for name in names]
    return table([unit, *columns], rows)


def load(folder: Path) -> dict[str, Result]:
    """The results in a folder by the name of their benchmark."""
    documents = (json.loads(path.read_text()) for path in sorted(folder.glob("*.json")))
    return {x["benchmark"]: x for x in documents if isinstance(x, dict) and x.get("schema") == SCHEMA}


def load_gpu(folder: Path) -> dict[str, Result]:
    """The results of `make gpu` by part, of a GPU and not of a trial on the CPU."""
    documents = (json.loads(path.read_text()) for path in sorted(folder.glob("gpu_*.json")))
    return {
        x["part"]: x
        for x in documents
        if x["schema"] == GPU_SCHEMA and not x["small"] and x["device"] != "cpu"
    }


def gpu(documents: dict[str, Result]) -> str:
    """What the checks said, and the times and peaks of memory."""
    machine = next(iter(documents.values()))["machine"]
    parts = ["## On a GPU\n", describe(machine)]
    records = [x for name in GPU_CHECKS if name in documents for x in documents[name]["records"]]
    count = {
        status: sum(x["status"] == status for x in records) for status in ("failed", "not here", "not run")
    }
    passed = len(records) - sum(count.values())
    parts.append(
        f"`make gpu` checked {len(records)} cases against float64: {passed} passed, {count['failed']} failed, "
        f"{count['not here']} need another machine, and {count['not run']} were not run.\n"
    )
    failed = [f"- {x['name']}: {x['remark']}" for x in records if x["status"] == "failed"]
    parts += ["\n".join(failed) + "\n"] if failed else []
    for name, text in GPU_TABLES.items():
        results = [x["result"] for x in documents.get(name, {"records": ()})["records"] if x["result"]]
        rows = [
            [case_name(x["case"]), step, cell(x["steps"][step]), megabytes(x["steps"][step])]
            for x in results
            for step in x["steps"]
        ]
        if rows:
            parts += [f"{text}\n", table(["case", "step", "ms", "MB"], rows)]
            parts += [f"{note}\n" for note in dict.fromkeys(note for x in results for note in x["notes"])]
    return "\n".join(parts)


def page(folder: Path) -> str:
    """The page, as Markdown."""
    documents, of_gpu = load(folder), load_gpu(folder)
    known = [name for name in ORDER if name in documents]
    results = [x["result"] for x in of_gpu.get("rows", {"records": ()})["records"] if x["result"]]
    judgments = judge([*(documents[name] for name in known), {"benchmark": "gpu", "cases": results}])
    parts = [INTRODUCTION, answer(judgments), METHOD] if judgments else [INTRODUCTION, METHOD]
    missing = [f"“{HEADINGS[name]}”" for name in ORDER if name not in documents]
    if missing := [*missing, *([] if of_gpu else ["“On a GPU”"])]:
        parts.append(f"Not measured yet: {', '.join(missing)}.\n")
    if judgments:
        parts.append(targets(judgments))
    parts += [section(name, documents[name]) for name in known]
    if of_gpu:
        parts.append(gpu(of_gpu))
    compiled = folder / "native_forms.json"
    if compiled.exists():
        parts.append(native_forms(json.loads(compiled.read_text())))
    large = folder / "normals.json"
    if large.exists():
        parts.append(normals(json.loads(large.read_text())))
    grown = folder / "growth.json"
    if grown.exists():
        parts.append(growth(json.loads(grown.read_text())))
    found = folder / "limits.json"
    if found.exists():
        parts.append(limits(json.loads(found.read_text())))
    for name, text in (("compare_models", MODELS), ("compare_memory", MEMORY)):
        measured = folder / f"{name}.json"
        if measured.exists():
            parts.append(text.format(**json.loads(measured.read_text())))
    return "\n".join(parts)


def targets(judgments: list[Judgment]) -> str:
    met = sum(x.met for x in judgments)
    rows = [[x.target, x.case, x.wanted, x.found, "yes" if x.met else "**no**"] for x in judgments]
    body = table(["target", "case", "wanted", "found", "met"], rows)
    return (
        f"## Targets\n\nThey were set before the measurements: {met} of {len(judgments)} are met.\n\n{body}"
    )


COMPARISONS = {
    "KL from two tensors takes {} of eager torch's time": "KL against eager torch",
    "and {} of `torch.compile`'s": "KL against torch.compile",
    "KL from hidden states and heads takes {} of TRL's time": "head, time against TRL, chunked",
    "and {} of Liger's": "head, time against Liger, chunked",
    "A call with 64 × 10 logits takes {} of eager torch's time": "call overhead against eager torch",
}


def answer(judgments: list[Judgment]) -> str:
    """The head of the page: the measurement, the result and the conclusion."""
    shares: list[str] = []
    for text, target in COMPARISONS.items():
        found = [x for x in judgments if x.target == target]
        times = [float(x.found.rstrip("×")) for x in found]
        times = sorted(1 / x if found[0].wanted.startswith("≥") else x for x in times)
        if times:
            shares.append(text.format(f"{100 * times[0]:.0f} to {100 * times[-1]:.0f} %"))
    return (
        textwrap.fill(
            "Measured: time and memory of kullback's losses against other implementations on one machine. "
            f"Result: {'. '.join(shares).replace('. and', ' and')}. {sum(x.met for x in judgments)} of "
            f"{len(judgments)} targets are met. Conclusion: the gain is largest for large vocabularies and for losses "
            "from heads, in time and memory. Calls with tiny tensors are slower than in eager torch.",
            120,
        )
        + "\n"
    )


def section(name: str, document: Result) -> str:
    parts = [f"## {HEADINGS[name]}\n", EXPLANATIONS[name] + "\n", describe(document["machine"])]
    parts += [f"{note}\n" for note in document["notes"]]
    if name in PLOTS:
        parts.append(f"![{HEADINGS[name]}: the tables below as a plot](benchmarks/{name}.svg)\n")
    parts.append(TABLES.get(name, plain_tables)(document["cases"]))
    return "\n".join(parts)


def describe(machine: Result) -> str:
    gpu = f"{machine['gpu']}, " if machine["gpu"] else ""
    return (
        f"{machine['date']}: {gpu}{machine['processor']} ({machine['vector_instructions']}), {machine['cores']} cores, "
        f"{machine['threads']} threads, {machine['system']}, Python {machine['python']}, torch {machine['torch']}, "
        f"{machine['compiler']}, kullback {machine['kullback']} "
        f"{'with' if machine['native_kernels'] else 'without'} native kernels.\n"
    )


def table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(step: Result | None, scale: float = 1e3) -> str:
    return "–" if step is None else three_digits(scale * step["median"])


def three_digits(x: float) -> str:
    return f"{x:.3g}" if x < 1000 else f"{x:,.0f}"


def megabytes(step: Result | None, without: float = 0) -> str:
    if step is None or step["extra_bytes"] is None:
        return "–"
    return f"{max(0, step['extra_bytes'] - without) / 1e6:.0f}"


def kind_tables(cases: list[Result], scale: float, *, memory: bool) -> str:
    """A table of times for each kind and, where it was measured, one of memory."""
    parts = []
    for kind in KINDS:
        ways = [x for x in WAYS if any(f"{kind}: {x}" in c["steps"] for c in cases)]
        names = [f"{kind}: {x}" for x in ways] + ["clone"]
        headings = [kind, *ways, "clone"]
        rows = [[case_name(c["case"]), *(cell(c["steps"].get(x), scale) for x in names)] for c in cases]
        parts.append(table(headings, rows))
    if memory:
        ways = [x for x in WAYS if any(f"KL: {x}" in c["steps"] for c in cases)]
        rows = [[case_name(c["case"]), *(megabytes(c["steps"].get(f"KL: {x}")) for x in ways)] for c in cases]
        parts.append("Extra memory of KL, in MB:\n\n" + table(["KL", *ways], rows))
    return "\n".join(parts)


def rows_tables(cases: list[Result]) -> str:
    return kind_tables(cases, 1e3, memory=True)


def overhead_tables(cases: list[Result]) -> str:
    return kind_tables(cases, 1e6 / cases[0]["case"]["calls"], memory=False)


def kinds_tables(cases: list[Result]) -> str:
    """A table for each case, with a line for each kind."""
    parts = []
    for c in cases:
        steps = c["steps"]
        kinds = dict.fromkeys(name.split(":")[0] for name in steps)
        ways = [x for x in WAYS if any(name.endswith(f": {x}") for name in steps)]
        scale = 1e3 / c["case"].get("calls", 1)
        rows = [[kind, *(cell(steps.get(f"{kind}: {x}"), scale) for x in ways)] for kind in kinds]
        parts.append(table([case_name(c["case"]), *ways], rows))
    return "\n".join(parts)


def plain_tables(cases: list[Result]) -> str:
    names = list(dict.fromkeys(name for c in cases for name in c["steps"]))
    rows = [[case_name(c["case"]), *(cell(c["steps"].get(name)) for name in names)] for c in cases]
    return table(["ms", *names], rows)


def head_tables(cases: list[Result]) -> str:
    names = list(dict.fromkeys(name for c in cases for name in c["steps"]))
    times = [[case_name(c["case"]), *(cell(c["steps"].get(x), 1) for x in names)] for c in cases]
    memory = []
    for c in cases:
        gradient = c["case"]["classes"] * c["case"]["hidden"] * (2 if c["case"]["dtype"] == "bfloat16" else 4)
        memory.append([case_name(c["case"]), *(megabytes(c["steps"].get(x), gradient) for x in names)])
    return table(["seconds", *names], times) + "\n" + table(["MB", *names], memory)


TABLES = {
    "rows": rows_tables,
    "kinds": kinds_tables,
    "overhead": overhead_tables,
    "head": head_tables,
    "head_top_k": head_tables,
}


def main() -> None:
    images = PAGE.with_suffix("")
    for name, document in load(RESULTS).items():
        if name in PLOTS:
            images.mkdir(exist_ok=True)
            PLOTS[name](document, images / f"{name}.svg")
    PAGE.write_text(page(RESULTS))


if __name__ == "__main__":
    main()
