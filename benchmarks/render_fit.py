"""Writes docs/fitting.md, `fit` beside its peers, from benchmarks/results/fit.json.

python benchmarks/render_fit.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from render import describe, table
from timing import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "fitting.md"

INTRODUCTION = """\
# Fits beside the peers

Every contender fits the same family to the same target from the same start, written as its documentation shows
(`benchmarks/bench_fit.py`, `benchmarks/fit_peers.py`). The peers that draw take 2,000 steps of Adam; `fit`, where it
draws, for the posterior, its own 1,000. One judge measures what each returned: SciPy's quadrature on the line, the mean
log-likelihood of the draws, and for the posterior the ELBO over 200,000 fixed draws, in nats. *Above the best* is how
much worse a value is than the best of its table. The time is that of the processor, the median of the rounds, in turn,
with whatever a contender compiles; lines are those of its function.
"""


def page(document: dict[str, Any]) -> str:
    """The page, as Markdown."""
    rounds = {row["rounds"] for row in document["rows"]}
    counted = f"Rounds: {', '.join(map(str, sorted(rounds)))}. "
    parts = [INTRODUCTION, counted + describe(document["machine"])]
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


def above(difference: float) -> str:
    return "0" if difference == 0 else f"{difference:.1e}"


def wins(document: dict[str, Any]) -> list[str]:
    """What peers do better than `fit`: a lower value by more than 1e-9 nats, or less time."""
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
