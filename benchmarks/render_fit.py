"""Writes docs/records/fitting.md, which compares `fit` with other libraries, from benchmarks/results/fit.json.

python benchmarks/render_fit.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from render import describe, table
from timing import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "records" / "fitting.md"

INTRODUCTION = """\
# Fits compared with other libraries

Measured: the divergence that `fit` and {peers} other ways reach in {cases} tasks, and their CPU time. Result: `fit` has
the best value in {best} of {cases} tasks, to 1e-9 nats, with {lines} lines of code. A peer takes less time in {slower}.
Conclusion: `fit` finds the minimum with little code. scikit-learn is faster for mixtures of Normals, and plain Adam can
be faster, but its result is then less accurate.

Every contender fits the same family to the same target from the same start, written as its documentation shows
(`benchmarks/bench_fit.py`, `benchmarks/fit_peers.py`). The peers that use random draws take 2,000 steps of Adam; `fit`
uses them only for the posterior, with its default of 1,000 steps. Independent functions measure each result, in nats:
SciPy's quadrature on the line, the mean log-likelihood of the draws, and the ELBO over 200,000 fixed draws for the
posterior. *Above the best* is the difference from the best value of the table. Times are CPU times, medians of
interleaved rounds, including compilation. Lines are counted in the contender's function.
"""


def page(document: dict[str, Any]) -> str:
    """The page, as Markdown."""
    rounds = {row["rounds"] for row in document["rows"]}
    counted = f"Rounds: {', '.join(map(str, sorted(rounds)))}. "
    parts = [introduction(document["rows"]), counted + describe(document["machine"])]
    parts.append("## Where a peer wins\n")
    parts.append("\n".join(f"- {line}" for line in wins(document)) + "\n")
    for row in document["rows"]:
        best = min(x["value"] for x in row["contenders"].values())
        lines = [
            [name, f"{x['value']:.10g}", above(x["value"] - best), f"{x['seconds']:.2g}", str(x["lines"])]
            for name, x in row["contenders"].items()
        ]
        headings = ["", row["quantity"], "above the best", "CPU seconds", "lines"]
        parts.append(f"## {row['case']}\n")
        parts.append(table(headings, lines) + "\n")
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def introduction(rows: list[dict[str, Any]]) -> str:
    """The head of the page: the measurement, the result, the conclusion, and the method."""
    contenders = [row["contenders"] for row in rows]
    ours = [each["kullback"] for each in contenders]
    both = list(zip(ours, contenders, strict=True))
    lines = sorted(x["lines"] for x in ours)
    return INTRODUCTION.format(
        peers=len({name for each in contenders for name in each}) - 1,
        cases=len(rows),
        best=sum(x["value"] <= min(y["value"] for y in each.values()) + 1e-9 for x, each in both),
        slower=sum(x["seconds"] > min(y["seconds"] for y in each.values()) for x, each in both),
        lines=f"{lines[0]} to {lines[-1]}",
    )


def above(difference: float) -> str:
    return "0" if difference == 0 else f"{difference:.1e}"


def wins(document: dict[str, Any]) -> list[str]:
    """The peers that are better than `fit`: a value that is lower by more than 1e-9 nats, or less time."""
    found: list[str] = []
    for row in document["rows"]:
        ours = row["contenders"]["kullback"]
        for name, x in row["contenders"].items():
            lower, faster = ours["value"] - x["value"], ours["seconds"] / x["seconds"]
            if lower > 1e-9:
                found.append(f"{row['case']}: {name} ends {lower:.1e} nats lower.")
            if faster > 1:
                behind = x["value"] - ours["value"]
                where = f", {behind:.1e} nats above ours" if behind > 1e-9 else ""
                found.append(
                    f"{row['case']}: {name} takes {x['seconds']:.2g} s, ours {ours['seconds']:.2g} s{where}."
                )
    return found or ["Nowhere in these cases."]


def main() -> None:
    PAGE.write_text(page(json.loads((RESULTS / "fit.json").read_text())))


if __name__ == "__main__":
    main()
