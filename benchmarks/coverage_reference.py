"""Coverage of the intervals of mean divergences from a reference file.

Each case creates the rows of a base and of a candidate, and draws the classes of the reference file many times. The
interval of `drawn_mean` is for these rows: it should include the exact mean over all classes. Writes
benchmarks/results/coverage_reference.json and the table in docs/records/coverage.md.

    python benchmarks/coverage_reference.py
    python benchmarks/coverage_reference.py --missing                 # the cases that the results file lacks
    python benchmarks/coverage_reference.py --windows                 # few windows of a population, a table of its own
    python benchmarks/coverage_reference.py --drawings 100 --dry      # prints alone
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kullback.generators import FinitePair
from kullback.io import PartialRows
from kullback.partial_rows import summarize_rows
from kullback.predictions.mean_intervals import MeanEstimator
from kullback.predictions.measure import DIVERGENCES
from kullback.predictions.reference_rows import (
    CandidateLogProbs,
    drawn_mean,
    measure_candidate,
    measure_reference,
    population_mean,
    read_candidate,
)

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "coverage_reference.json"
PAGE = ROOT / "docs" / "records" / "coverage.md"
START, END = "<!-- reference table: start -->", "<!-- reference table: end -->"
WINDOWS_RESULT = ROOT / "benchmarks" / "results" / "coverage_windows.json"
WINDOWS_START, WINDOWS_END = "<!-- windows table: start -->", "<!-- windows table: end -->"
LEAST = 93.0
DRAWS = 32
NAMES = ("kl_pq", "js", "tv")


def normal(*size: int, seed: torch.Generator) -> Tensor:
    return torch.randn(*size, generator=seed, dtype=torch.float64)


def gaussian_logits(rows: int, classes: int, seed: torch.Generator) -> Tensor:
    """Normal logits; their standard deviation is different in each row, from 1 to 4."""
    scale = torch.empty(rows, 1, dtype=torch.float64).uniform_(1, 4, generator=seed)
    return scale * normal(rows, classes, seed=seed)


def zipf_logits(rows: int, classes: int, seed: torch.Generator) -> Tensor:
    """Probabilities that fall as a power from 0.9 to 2 of the rank, in random order."""
    power = torch.empty(rows, 1, dtype=torch.float64).uniform_(0.9, 2.0, generator=seed)
    order = torch.stack([torch.randperm(classes, generator=seed) for _ in range(rows)])
    return -power * (order + 1.0).log()


def noisy(sigma: float) -> Callable[[Tensor, torch.Generator], Tensor]:
    return lambda x, seed: x + sigma * normal(*x.shape, seed=seed)


def heavy(x: Tensor, seed: torch.Generator) -> Tensor:
    """Noise of Student's t with 2 degrees of freedom."""
    square = torch.empty(x.shape, dtype=torch.float64).exponential_(generator=seed)
    return x + 0.3 * normal(*x.shape, seed=seed) / square.sqrt()


def mixed(x: Tensor, seed: torch.Generator) -> Tensor:
    """Noise whose size differs from row to row by orders of magnitude."""
    return x + torch.exp(1.5 * normal(len(x), 1, seed=seed) - 3) * normal(*x.shape, seed=seed)


def flatter(x: Tensor, seed: torch.Generator) -> Tensor:
    return 0.8 * x + 0.1 * normal(*x.shape, seed=seed)


def unrelated(x: Tensor, seed: torch.Generator) -> Tensor:
    return 2 * normal(*x.shape, seed=seed)


def with_one_class(x: Tensor, seed: torch.Generator) -> Tensor:
    """Noise of 0.02, and 0.3 % on the class that the base gives least."""
    position = x.argmin(-1, keepdim=True)
    noise = noisy(0.02)(x, seed)
    return noise.scatter(-1, position, x.logsumexp(-1, keepdim=True) + math.log(0.003))


def with_many_classes(x: Tensor, seed: torch.Generator) -> Tensor:
    """Noise of 0.02, and ten times as much on a random hundredth of the classes."""
    picked = torch.rand(x.shape, generator=seed, dtype=torch.float64) < 0.01
    return noisy(0.02)(x, seed) + picked * math.log(10)


class Case(NamedTuple):
    """A base, a candidate, and the number of classes."""

    base: str
    candidate: str
    classes: int
    make_base: Callable[[int, int, torch.Generator], Tensor]
    make_candidate: Callable[[Tensor, torch.Generator], Tensor]


CANDIDATES: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "noise 0.02": noisy(0.02),
    "noise 0.3": noisy(0.3),
    "noise 1.5": noisy(1.5),
    "noise of heavy tails": heavy,
    "noise of mixed size": mixed,
    "flatter, noise 0.1": flatter,
    "one class too probable": with_one_class,
    "1 % of the classes 10 times": with_many_classes,
    "unrelated": unrelated,
}
BASES = {"normal": gaussian_logits, "Zipf": zipf_logits}
CASES = [
    Case(base, name, 32_000, make, CANDIDATES[name]) for base, make in BASES.items() for name in CANDIDATES
] + [
    Case("Zipf", name, 128_256, zipf_logits, CANDIDATES[name])
    for name in ("noise 0.02", "noise 0.3", "unrelated")
]


def truth(base: Tensor, candidate: Tensor) -> dict[str, Tensor]:
    """Every divergence of every row from all classes."""
    log_p, log_q = base.log_softmax(-1), candidate.log_softmax(-1)
    pair = FinitePair(log_p.exp(), log_q.exp(), log_p - log_q)
    return {name: kind.total(pair) for name, kind in DIVERGENCES.items()}


def study(
    case: Case, tops: tuple[int, ...], rows: int, drawings: int, names: tuple[str, ...] = NAMES
) -> list[dict[str, Any]]:
    """How often the intervals of a case contain the truth, for several numbers of top classes."""
    seed = torch.Generator().manual_seed(case.classes + len(case.base))
    blocks: dict[int, list[PartialRows]] = {top: [] for top in tops}
    candidates: dict[int, list[CandidateLogProbs]] = {top: [] for top in tops}
    true: dict[str, list[Tensor]] = {name: [] for name in DIVERGENCES}
    for _ in range(0, rows, 4):
        base = case.make_base(4, case.classes, seed)
        logits = case.make_candidate(base, seed)
        for name, values in truth(base, logits).items():
            true[name].append(values)
        labels = torch.zeros(4, dtype=torch.int64)
        for top in tops:
            uniforms = torch.rand(4, drawings * DRAWS, generator=seed, dtype=torch.float64)
            block = summarize_rows(base.clone(), labels, top=top, uniforms=uniforms)
            blocks[top].append(block)
            candidates[top].append(read_candidate(block, logits))
    found: list[dict[str, Any]] = []
    for top in tops:
        estimates: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
        bounds: dict[str, float] = {}
        block = PartialRows.join(blocks[top])
        candidate = CandidateLogProbs(*(torch.cat(column) for column in zip(*candidates[top], strict=True)))
        for drawing in range(drawings):
            picked = slice(drawing * DRAWS, (drawing + 1) * DRAWS)
            drawn = {name: getattr(block, name)[:, picked] for name in ("tail_indices", "tail_log_probs")}
            measured = measure_candidate(
                dataclasses.replace(block, **drawn), candidate._replace(drawn=candidate.drawn[:, picked])
            )
            for name, held in estimates.items():
                mean = drawn_mean(measured, name)
                held.append((mean.mean, *mean.interval))
                bounds[name] = mean.bounds[0]
        for name, held in estimates.items():
            means, low, high = torch.tensor(held, dtype=torch.float64).T
            value = float(torch.cat(true[name]).mean())
            found.append(
                {
                    "base": case.base,
                    "candidate": case.candidate,
                    "classes": case.classes,
                    "top": top,
                    "divergence": name,
                    "rows": rows,
                    "drawings": drawings,
                    "truth": value,
                    "bound": bounds[name] / value,
                    "covers": 100 * float(((low <= value) & (value <= high)).double().mean()),
                    "wide": 100 * float(((high - low) > 0.5 * value).double().mean()),
                    "error": float(means.std()) / value,
                    "bias": float(means.mean() - value) / value,
                }
            )
    return found


def rows_of_windows(windows: int, effect: float, seed: torch.Generator) -> tuple[Tensor, Tensor]:
    """A base and a candidate over windows of 40 rows; the size of the noise differs between windows and rows."""
    base = 3 * normal(40 * windows, 300, seed=seed)
    size = effect * normal(windows, 1, seed=seed).repeat_interleave(40, 0) + 0.5 * normal(
        len(base), 1, seed=seed
    )
    return base, base + 0.3 * size.exp() * normal(*base.shape, seed=seed)


def study_windows(windows: int, effect: float, samples: int, true: dict[str, float]) -> list[dict[str, Any]]:
    """How often the interval of the population's mean contains it, and is open, for few windows of a reference."""
    names = ("kl_pq", "js")
    covers, is_open, widths = ({name: [] for name in names} for _ in range(3))
    for sample in range(samples):
        seed = torch.Generator().manual_seed(sample)
        base, candidate = rows_of_windows(windows, effect, seed)
        uniforms = torch.rand(len(base), 8, generator=seed, dtype=torch.float64)
        labels = torch.zeros(len(base), dtype=torch.int64)
        rows = measure_reference(summarize_rows(base, labels, top=8, uniforms=uniforms), candidate)
        cluster = torch.arange(windows).repeat_interleave(40)
        for name in names:
            found = population_mean(rows, name, MeanEstimator(1, 400, None, cluster))
            low, high = found.interval or (0.0, math.inf)
            covers[name].append(low <= true[name] <= high)
            is_open[name].append(found.reason is not None)
            widths[name].append((high - low) / 2 / true[name])
    return [
        {
            "effect": effect,
            "windows": windows,
            "divergence": name,
            "samples": samples,
            "covers": 100 * sum(covers[name]) / samples,
            "open": 100 * sum(is_open[name]) / samples,
            "half_width": float(torch.tensor(widths[name], dtype=torch.float64).median()),
        }
        for name in names
    ]


def write_windows(samples: int) -> None:
    """Measure few windows, and write the results and their table."""
    results: list[dict[str, Any]] = []
    for effect in (0.25, 0.5):
        every = [
            truth(*rows_of_windows(50, effect, torch.Generator().manual_seed(1_000_000 + i)))
            for i in range(40)
        ]
        true = {name: float(torch.cat([each[name] for each in every]).mean()) for name in NAMES}
        for windows in (12, 20, 40):
            results += study_windows(windows, effect, samples, true)
            print(results[-2:], flush=True)
    WINDOWS_RESULT.write_text(json.dumps(results, indent=1) + "\n")
    lines = [
        "| log sd of windows | windows | divergence | covers the mean, % | open, % | half-width / mean |",
        "|---:|---:|---|---:|---:|---:|",
        *(
            f"| {each['effect']:g} | {each['windows']} | {'JS' if each['divergence'] == 'js' else 'KL'} "
            f"| {each['covers']:.1f} | {each['open']:.0f} | {each['half_width']:.2g} |"
            for each in results
        ),
    ]
    page = PAGE.read_text()
    before, after = page.split(WINDOWS_START)[0], page.split(WINDOWS_END)[1]
    text = "\n".join(lines)
    PAGE.write_text(f"{before}{WINDOWS_START}\n\n{text}\n\n{WINDOWS_END}{after}")


def table(results: list[dict[str, Any]]) -> str:
    """The results in Markdown: a line for each case and number of top classes."""
    lines = [
        "| base | candidate | classes | top | KL | exact, % | error, % | KL covers, % | JS covers, % | TV covers, % |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    by_case: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for each in results:
        key = each["base"], each["candidate"], each["classes"], each["top"]
        by_case.setdefault(key, {})[each["divergence"]] = each
    for (base, candidate, classes, top), of in by_case.items():
        kl = of["kl_pq"]
        covers = " | ".join(f"{of[name]['covers']:.1f}" for name in NAMES)
        lines.append(
            f"| {base} | {candidate} | {classes:,} | {top} | {kl['truth']:.2g} | {100 * kl['bound']:.0f} "
            f"| {100 * kl['error']:.2g} | {covers} |"
        )
    return "\n".join(lines)


def of_case(results: list[dict[str, Any]], case: Case) -> list[dict[str, Any]]:
    """The results of one case."""
    return [each for each in results if tuple(each[name] for name in Case._fields[:3]) == case[:3]]


def write(results: list[dict[str, Any]]) -> None:
    """Write the results and the page's table, in the order of the cases."""
    ordered = [each for case in CASES for each in of_case(results, case)]
    RESULT.write_text(json.dumps(ordered, indent=1) + "\n")
    page = PAGE.read_text()
    before, after = page.split(START)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{START}\n\n{table(ordered)}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--drawings", type=int, default=500)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--top", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--only", help="cases whose candidate has this name")
    parser.add_argument(
        "--missing", action="store_true", help="keep the results there are, and add the others"
    )
    parser.add_argument("--windows", action="store_true", help="few windows of a population alone")
    parser.add_argument("--dry", action="store_true", help="write no file")
    options = parser.parse_args()
    if options.windows:
        write_windows(150)
        return
    results: list[dict[str, Any]] = json.loads(RESULT.read_text()) if options.missing else []
    for case in CASES:
        if options.only in (None, case.candidate) and not of_case(results, case):
            results += study(case, tuple(options.top), options.rows, options.drawings)
            print(table(of_case(results, case)).split("\n", 2)[2], flush=True)
            if not options.dry:
                write(results)
    for each in results:
        if each["covers"] < LEAST:
            print("below", LEAST, each)


if __name__ == "__main__":
    main()
