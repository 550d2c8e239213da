"""How often the 95 % intervals of `compare_predictions` cover the true mean, on simulated rows and documents.

Each case draws units, rows or documents of unequal length, from a known distribution, many times. They are independent,
or rows whose order shows dependence and is examined. An interval covers if it contains the true mean. An open
(infinite) end means that the units do not determine it. Writes benchmarks/results/coverage_predictions.json and the
table in docs/records/coverage.md.

    python benchmarks/coverage_predictions.py
    python benchmarks/coverage_predictions.py --repetitions 200 --dry     # prints alone
    python benchmarks/coverage_predictions.py --only documents,windows    # measures some cases anew, and keeps the rest
"""

from __future__ import annotations

import argparse
import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from kullback.predictions.mean_intervals import MeanEstimate, MeanEstimator, RatioOfSums

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "coverage_predictions.json"
PAGE = ROOT / "docs" / "records" / "coverage.md"
START, END = "<!-- table: start -->", "<!-- table: end -->"
LEAST = 93.0
TRUTH_UNITS = 20_000_000
Draw = Callable[[np.random.Generator, int], tuple[Any, Any]]


class Case(NamedTuple):
    """A distribution of units, given as the sum and the number of rows of each, and the bounds of a row's value."""

    name: str
    draw: Draw
    units: tuple[int, ...]
    low: float = 0.0
    high: float = math.inf
    binary: bool = False
    clustered: bool = False
    truth: float | None = None
    unseen: bool = (
        False  # whether samples may hold none of the rows that carry the mean, which no interval can tell
    )
    ordered: bool = False  # whether rows may depend on their neighbors; if so, their order is examined


def rows(draw: Callable[[np.random.Generator, int], Any]) -> Draw:
    """Units that are single rows."""
    return lambda random, count: (draw(random, count), np.ones(count))


def documents(length: float, power: float, effect: float, row: float = 1.0) -> Draw:
    """Documents of lognormal length around 20, whose mean KL goes with a power of their length.

    `length`, `effect` and `row` are the standard deviations of the logarithms of the length, of a document's mean and
    of a row; the sum of the rows has a gamma distribution of the right mean and variance.
    """

    def draw(random: np.random.Generator, count: int) -> tuple[Any, Any]:
        sizes = np.maximum(1, np.round(20 * np.exp(length * random.standard_normal(count))))
        means = 0.01 * np.exp(effect * random.standard_normal(count)) * (sizes / 20) ** power
        shape = sizes / math.expm1(row**2)
        return means * sizes * random.gamma(shape) / shape, sizes

    return draw


def autoregression(correlation: float, sd: float = 1.0) -> Draw:
    """Rows whose logarithms are an autoregression of order 1, with this standard deviation and mean 1."""

    def draw(random: np.random.Generator, count: int) -> tuple[Any, Any]:
        noise = random.standard_normal(count) * math.sqrt(1 - correlation**2)
        noise[0] = random.standard_normal()
        for row in range(1, count):
            noise[row] += correlation * noise[row - 1]
        return np.exp(sd * noise - sd**2 / 2), np.ones(count)

    return draw


def zipf_documents(power: float, effect: float) -> Draw:
    """Documents whose length has a Zipf distribution of this power; their mean KL is as in `documents`."""

    def draw(random: np.random.Generator, count: int) -> tuple[Any, Any]:
        sizes = np.minimum(random.zipf(power, count), 100_000).astype(float)
        means = 0.01 * np.exp(effect * random.standard_normal(count))
        shape = sizes / math.expm1(1.0)
        return means * sizes * random.gamma(shape) / shape, sizes

    return draw


def rare_rows(random: np.random.Generator, count: int) -> Any:
    """Rows of KL 0.01 on average, and 1 in 2,000 of KL 10."""
    return np.where(random.random(count) < 1 / 2000, 10.0, 0.01 * random.exponential(size=count))


def signed_documents(random: np.random.Generator, count: int) -> tuple[Any, Any]:
    """Documents whose difference is positive in 80 % of them and negative in the others."""
    sums, sizes = documents(0.7, 1, 0.5)(random, count)
    return sums * (random.random(count) < 0.8) - 0.3 * sums, sizes


def agreement(p: float, correlation: float) -> Draw:
    """Documents of 50 rows that agree with a probability of mean `p`, beta-distributed over documents."""
    scale = 1 / correlation - 1

    def draw(random: np.random.Generator, count: int) -> tuple[Any, Any]:
        return random.binomial(50, random.beta(p * scale, (1 - p) * scale, count)).astype(float), np.full(
            count, 50.0
        )

    return draw


FEW, ALL, MANY = (20, 50, 100), (10, 20, 50, 100, 1000), (100, 1000)
WINDOWS, LONG = (12, 20, 40), (12, 20, 50, 200, 1000)
ANY = -math.inf
CASES = [
    Case("documents, equal length, log sd 0.5", documents(0, 0, 0.5), ALL),
    Case("documents, equal length, log sd 1", documents(0, 0, 1.0), ALL),
    Case("documents, length independent of KL", documents(0.7, 0, 0.5), ALL),
    Case("documents, length tells KL: log sd 0.5, power 1", documents(0.5, 1, 0.3), ALL),
    Case("documents, length tells KL: log sd 0.7, power 1", documents(0.7, 1, 0.5), ALL),
    Case("documents, length tells KL: log sd 1, power 1", documents(1.0, 1, 0.5), ALL),
    Case("documents, length tells KL: log sd 0.6, power 0.7, effect 1", documents(0.6, 0.7, 1.0), FEW),
    Case("documents, length tells KL: log sd 1, power -1", documents(1.0, -1, 0.5), ALL),
    Case("documents, length tells KL: log sd 0.7, power -0.5", documents(0.7, -0.5, 0.5), FEW),
    *(
        Case(f"documents, Zipf length of power {power:g}, effect {effect:g}", zipf_documents(power, effect), LONG,
             clustered=True, truth=0.01 * math.exp(effect**2 / 2))
        for power, effect in ((1.5, 0.5), (2.5, 0.5), (2.5, 1.0))
    ),
    *(
        Case(f"documents, length of log sd {length:g}, effect {effect:g}", documents(length, 0, effect), LONG,
             clustered=True, truth=0.01 * math.exp(effect**2 / 2))
        for length, effect in ((1.5, 0.5), (2.0, 0.5), (2.0, 1.0))
    ),
    *(
        Case(f"windows of 20 tokens, effect {effect:g}", documents(0, 0, effect), WINDOWS, clustered=True,
             truth=0.01 * math.exp(effect**2 / 2))
        for effect in (0.5, 1.0)
    ),
    Case("rows, exponential", rows(lambda r, n: r.exponential(size=n)), ALL, truth=1.0),
    Case("rows, squared normal", rows(lambda r, n: r.standard_normal(n) ** 2), FEW, truth=1.0),
    Case("rows, gamma of shape 0.3", rows(lambda r, n: r.gamma(0.3, size=n)), FEW, truth=0.3),
    Case("rows, squared gamma of shape 0.5", rows(lambda r, n: r.gamma(0.5, size=n) ** 2), FEW, truth=0.75),
    *(
        Case(f"rows, lognormal, sd {s:g}", rows(lambda r, n, s=s: np.exp(s * r.standard_normal(n))), ALL,
             truth=math.exp(s * s / 2))
        for s in (1.0, 1.5, 2.0, 2.5)
    ),
    Case("rows, Pareto of index 3", rows(lambda r, n: r.pareto(3, size=n)), ALL, truth=1 / 2),
    Case("rows, Pareto of index 2.2", rows(lambda r, n: r.pareto(2.2, size=n)), ALL, truth=1 / 1.2),
    Case("rows, Pareto of index 1.5", rows(lambda r, n: r.pareto(1.5, size=n)), ALL, truth=2.0),
    Case("rows, 5 % of them exponential, the rest 0",
         rows(lambda r, n: (r.random(n) < 0.05) * r.exponential(size=n)), (20, 50, 100, 1000), truth=0.05),
    Case("rows, 0.5 % of them exponential, the rest 0",
         rows(lambda r, n: (r.random(n) < 0.005) * r.exponential(size=n)), MANY, truth=0.005),
    Case("rows, normal around 5", rows(lambda r, n: 5 + r.standard_normal(n)), ALL, truth=5.0),
    Case("differences, normal", rows(lambda r, n: r.standard_normal(n)), ALL, ANY, truth=0.0),
    Case("differences, Student's t with 3 degrees", rows(lambda r, n: r.standard_t(3, n)), ALL, ANY, truth=0.0),
    Case("differences, exponential minus gamma of shape 0.3",
         rows(lambda r, n: r.exponential(size=n) - r.gamma(0.3, size=n)), FEW, ANY, truth=0.7),
    Case("differences, minus lognormal of sd 1", rows(lambda r, n: -np.exp(r.standard_normal(n))), ALL, ANY,
         truth=-math.exp(0.5)),
    Case("differences of documents, length tells them", signed_documents, FEW, ANY),
    Case("total variation, beta(0.5, 5)", rows(lambda r, n: r.beta(0.5, 5, n)), FEW, 0.0, 1.0, truth=1 / 11),
    Case("total variation, beta(5, 0.5)", rows(lambda r, n: r.beta(5, 0.5, n)), FEW, 0.0, 1.0, truth=10 / 11),
    *(
        Case(f"agreement of rows, {p:.1%}", rows(lambda r, n, p=p: (r.random(n) < p).astype(float)), (20, 100, 1000),
             0.0, 1.0, True, truth=p)
        for p in (0.5, 0.9, 0.99)
    ),
    Case("agreement of documents, 90 %, correlation 0.1", agreement(0.9, 0.1), FEW, 0.0, 1.0, True, True, 0.9),
    Case("agreement of documents, 99 %, correlation 0.05", agreement(0.99, 0.05), FEW, 0.0, 1.0, True, True, 0.99),
    *(
        Case(f"rows in order, autoregression {r:g}, log sd {s:g}", autoregression(r, s), (500, 2000), ordered=True,
             truth=1.0)
        for r in (0.3, 0.6, 0.8, 0.9, 0.95) for s in (0.5, 1.0)
    ),
    Case("rows in order, autoregression 0", autoregression(0.0), (500, 2000), ordered=True, truth=1.0),
    Case("rows, 1 % of them 30 times the others",
         rows(lambda r, n: r.exponential(size=n) * np.where(r.random(n) < 0.01, 30, 1)), MANY, truth=1.29, unseen=True),
    Case("rows, 1 in 2,000 of KL 10, the rest 0.01", rows(rare_rows), (500, 2000, 20_000),
         truth=0.01 * 1999 / 2000 + 10 / 2000, unseen=True),
]  # fmt: skip


def true_mean(case: Case) -> float:
    """The ratio of expectations: exact if there is a formula, else from 20 million units."""
    if case.truth is not None:
        return case.truth
    random, sums, sizes = np.random.default_rng(0), 0.0, 0.0
    for _ in range(TRUTH_UNITS // 1_000_000):
        s, n = case.draw(random, 1_000_000)
        sums, sizes = sums + float(s.sum()), sizes + float(n.sum())
    return sums / sizes


def one_interval(case: Case, units: int, seed: int, draws: int = 1000) -> MeanEstimate:
    """The estimate from one sample of a case."""
    sums, sizes = case.draw(np.random.default_rng([zlib.crc32(case.name.encode()), units, seed]), units)
    clusters = torch.arange(units) if case.clustered else None
    examined = (0,) if case.ordered else ()
    estimator = MeanEstimator(2, draws, torch.Generator().manual_seed(seed), clusters, examined)
    estimator.add(torch.from_numpy(np.stack([sums, sizes], -1)))
    return estimator.estimates([RatioOfSums(0, 1, case.low, case.high, case.binary)])[0]


def study(case: Case, units: int, repetitions: int, truth: float) -> dict[str, Any]:
    """The rates of intervals that cover, that are open, and of either, and the median relative half-width of those not
    open."""
    covers = is_open = either = 0
    widths: list[float] = []
    for seed in range(repetitions):
        found = one_interval(case, units, seed)
        open_here = found.interval is None or found.reason is not None
        low, high = found.interval or (-math.inf, math.inf)
        inside = low <= truth <= high
        # The other end has to cover even if this one is open.
        either += inside
        covers += inside and not open_here
        is_open += open_here
        if not open_here:
            widths.append((high - low) / 2 / abs(truth) if truth else (high - low) / 2)
    closed = repetitions - is_open
    return {
        "case": case.name,
        "units": units,
        "covers": 100 * either / repetitions,
        "open": 100 * is_open / repetitions,
        "covers_if_closed": 100 * covers / closed if closed else None,
        "half_width": float(np.median(widths)) if widths else None,
        "repetitions": repetitions,
    }


def table(results: list[dict[str, Any]]) -> str:
    """The results in Markdown."""
    lines = [
        "| case | units | covers the mean, % | open, % | of the closed, % | half-width / mean |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for found in results:
        width = "" if found["half_width"] is None else f"{found['half_width']:.2g}"
        closed = "" if found["covers_if_closed"] is None else f"{found['covers_if_closed']:.0f}"
        lines.append(
            f"| {found['case']} | {found['units']} | {found['covers']:.1f} | {found['open']:.0f} | {closed} | {width} |"
        )
    return "\n".join(lines)


def merged(before: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of all cases, in order: the new results, and the stored ones for the other cases."""
    found = {(each["case"], each["units"]): each for each in (*before, *results)}
    places = [(case.name, units) for case in CASES for units in case.units]
    return [found[place] for place in places if place in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument(
        "--only",
        default="",
        help="the cases whose name contains one of these words, with commas between; the other results are kept",
    )
    parser.add_argument("--dry", action="store_true", help="print, and write nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: list[dict[str, Any]] = []
    for case in CASES:
        if not any(words in case.name for words in options.only.split(",")):
            continue
        truth = true_mean(case)
        for units in case.units:
            results.append(study(case, units, options.repetitions, truth))
            print(json.dumps(results[-1]), flush=True)
    slack = 2 * math.sqrt(LEAST * (100 - LEAST) / options.repetitions)
    unseen = {case.name for case in CASES if case.unseen}
    short = [found for found in results if found["covers"] < LEAST - slack and found["case"] not in unseen]
    print(f"{len(short)} of {len(results)} below {LEAST} % by more than two binomial errors")
    if options.only and RESULT.exists():
        results = merged(json.loads(RESULT.read_text())["results"], results)
    if not options.dry:
        RESULT.write_text(json.dumps({"least": LEAST, "results": results}, indent=1) + "\n")
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.split(START)[0], text.split(END)[1]
        PAGE.write_text(f"{before}{START}\n\n{table(results)}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
