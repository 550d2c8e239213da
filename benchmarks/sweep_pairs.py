"""Sweep random hard pairs of distributions, every kind of divergence: values, claimed errors, gradients.

python benchmarks/sweep_pairs.py             # measures on the stored truths, writes docs/sweep.md
python benchmarks/sweep_pairs.py --truths N  # first computes the truths of the first N pairs, which takes hours
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the oracles are those of the tests

from tests.oracles.sweep import TRUTHS, direction_of, load, random_pair, store, truth
from tests.oracles.sweep_checks import Count, check, total

PAGE = Path(__file__).parents[1] / "docs" / "sweep.md"
INTRODUCTION = """\
# A sweep over hard pairs

{pairs} random pairs of distributions on the line, {cases:,} cases: every pair with each of {kinds} divergences, once
without and once with gradients required. There are mixtures of two or three parts with scales from 1e-6 to 1e3, shapes
from 0.03 to 1e6, singular ends, supports inside one another, and maps of variables. The truth is mpmath's, at 34
digits: the definition of the divergence, integrated between and around all peaks on panels that are halved until two
Gauss rules agree to 1e-17, with the derivative along a random direction of all parameters
(`tests/oracles/sweep.py`; the same checks run in the tests).

A value is wrong if it is off by more than 1e-6 of itself and 1e-9, which is what an answer has to reach, if it is
negative, NaN or infinite where it should not be, or if it changes when gradients are required. A bound is wrong if the
value is off by more than the `error` that comes with it and the rounding of the last digit. A gradient is wrong if its
product with the direction is off by more than 1e-5 of the sum of the sizes of its terms, or NaN. “Refused” are the
cases that end in a `ConvergenceError`; “unknown” those of which mpmath could not say whether, or to what, the integral
converges.

| pairs | cases | wrong values | wrong bounds | wrong gradients | refused | unknown |
|---|---|---|---|---|---|---|
{rows}
"""


def compute(count: int) -> None:
    entries: list[dict[str, Any]] = []
    for index in range(count):
        rng = random.Random(f"sweep {index}")  # noqa: S311
        sort, p, q = random_pair(rng)
        direction = direction_of(p, rng) + direction_of(q, rng)
        found = truth(p, q, direction)
        entries.append(
            {
                "index": index,
                "sort": sort,
                "p": p,
                "q": q,
                "direction": direction,
                "values": found.values,
                "derivatives": found.derivatives,
            }
        )
        print(index, sort, flush=True)
    store(entries)


def row(name: str, count: Count) -> str:
    numbers = (count.cases, count.values, count.bounds, count.gradients, count.refused, count.unknown)
    return f"| {name} | " + " | ".join(f"{x:,}" for x in numbers) + " |"


def rendered(counts: dict[str, Count], pairs: int, kinds: int) -> str:
    rows = [row(name, count) for name, count in sorted(counts.items())]
    everything = total(counts.values())
    rows.append(row("all", everything))
    return INTRODUCTION.format(pairs=pairs, cases=everything.cases, kinds=kinds, rows="\n".join(rows))


def main(arguments: list[str]) -> None:
    if "--truths" in arguments:
        compute(int(arguments[arguments.index("--truths") + 1]))
    entries = load()
    counts: dict[str, Count] = {}
    for entry in entries:
        found, faults = check(entry)
        counts[entry["sort"]] = counts.get(entry["sort"], Count()) + found
        for fault in faults:
            print(json.dumps(fault))
    PAGE.write_text(rendered(counts, len(entries), len(entries[0]["values"])))
    print(PAGE, TRUTHS)


if __name__ == "__main__":
    main(sys.argv[1:])
