"""Sweep random hard pairs of distributions, every kind: values, claimed errors, first and second derivatives.

python benchmarks/sweep_pairs.py             # measures stored truths and 2,000 other pairs: docs/records/sweep.md
python benchmarks/sweep_pairs.py --pairs N --kinds K  # N other pairs, with at most K kinds each
python benchmarks/sweep_pairs.py --second    # measures the second derivatives alone, and keeps the page's other tables
python benchmarks/sweep_pairs.py --routes    # measures the routes of differentiation alone, and keeps the other tables
python benchmarks/sweep_pairs.py --truths N  # first computes mpmath's truths of the first N pairs, which takes hours
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the oracles of the tests

from tests.oracles import routes, sweep_extended
from tests.oracles.sweep import KINDS, TRUTHS, direction_of, load, random_pair, store, truth
from tests.oracles.sweep_checks import Count, SecondCount, check, check_second, total
from torch import distributions as td
from torch.distributions.kl import _KL_REGISTRY  # pyright: ignore[reportPrivateUsage]

from kullback import kl_divergence
from kullback.errors import KullbackError

PAGE = Path(__file__).parents[1] / "docs" / "records" / "sweep.md"
# Pairs in extended precision: their first number, how many, and how many kinds of divergence of each.
FIRST, PAIRS, SAMPLED = 1000, 2000, 2
# Numbers of pairs for second derivatives, both of stored pairs and of pairs in extended precision.
SECOND = 80
INTRODUCTION = """\
# A sweep over hard pairs

Measured: {kinds} kinds of divergence for {pairs:,} random pairs of distributions on the line, {cases:,}
cases. Result: {wrong:,} values, error bounds and first derivatives are wrong; {refused:,} cases end in an error;
{unknown:,} have no known truth. Conclusion: if kullback returns a value for such a pair, it is right to within its
`error`, and otherwise you get a `ConvergenceError`. Second derivatives are at the end of this page.

The pairs include mixtures of two or three parts with scales from 1e-6 to 1e3, shapes from 0.03 to 1e6,
densities with singular ends, supports inside one another, and transformed variables. Each case runs without and with
gradients.

The truth comes from two programs that do not use kullback. For {stored} pairs, mpmath integrates the definition at 34
digits (`tests/oracles/sweep.py`). Its panels are halved between and around all peaks until two Gauss rules agree to
1e-17. It also gives the derivative along a random direction of all parameters. For {more:,} other pairs, the same
integral is computed in extended precision (64 bits of mantissa), with its own error
(`tests/oracles/sweep_extended.py`). {drawn} and {sampled} of the {kinds} kinds are drawn for each pair. The two truths
are compared with each other, and a part of the sweep runs in the tests.

A value is wrong if its error exceeds 1e-6 of itself and 1e-9, the limits of a result; if it is wrongly negative, NaN or
infinite; or if it changes with gradients. A bound is wrong if the error of the value exceeds its `error`, plus the
error of the truth and the rounding of the last digit. A gradient is wrong if it is NaN, or if the error of its product
with the direction exceeds 1e-5 of the sum of the absolute terms. “Refused” cases end in a `ConvergenceError`. In
“unknown” cases the truth could not decide whether the integral converges, or its value.

{tables}"""
SECOND_TITLE = "## Second derivatives"
SECOND_INTRODUCTION = """\

Their truth takes four times as long as the truth of a first derivative. So this part has {pairs:,} pairs: the first
{count} that are stored, and {count} drawn with a seed from the numbers of the others, each with all {kinds} kinds. The
second derivative is along the direction, by a second backward pass. Its truth is a central difference of the
derivatives in extended precision. The truth counts as known if the differences of two steps agree.

A second derivative is wrong if it is NaN, or if its error exceeds 1e-9 plus 1e-4 of the sum of the absolute first and
second derivative. “Refused” ones end in a `ConvergenceError`.

The panels are halved until the value is exact enough; second derivatives do not decide. They can be off by about 1e-3
of themselves for mixtures whose components differ in width by factors of hundreds or more. Where another
component becomes the largest, the logarithm of such a mixture bends between the nodes.

| pairs | known | wrong | refused |
|---|---|---|---|
"""
ROUTES_TITLE = "## Routes of differentiation"
ROUTES_INTRODUCTION = """\

A derivative must not depend on how it is asked for. These {pairs} pairs are the pairs of torch's registry that have a
finite KL and a formula at 90 digits. All parameters depend on one number: each has its own step, or is computed from
the one before it, or P and Q share tensors, or one tensor is every parameter. That gives {cases} cases. Each is
differentiated by all {count} routes.

The truth is a difference of the formula with 90 digits (`tests/oracles/routes.py`). A first derivative is wrong if its
error exceeds 1e-9 of itself and 1e-11, a second one 1e-7 and 1e-9. “Refused” cases end in an error.

| route | derivative | cases | wrong | refused |
|---|---|---|---|---|
"""
COLUMNS = """\
| pairs | cases | wrong values | wrong bounds | wrong gradients | refused | unknown |
|---|---|---|---|---|---|---|
"""


def compute(count: int) -> None:
    entries: list[dict[str, Any]] = []
    for index in range(count):
        entry = pair_of(index)
        found = truth(entry["p"], entry["q"], entry["direction"])
        entries.append({**entry, "values": found.values, "derivatives": found.derivatives})
        print(index, entry["sort"], flush=True)
    store(entries)


def row(name: str, count: Count) -> str:
    numbers = (count.cases, count.values, count.bounds, count.gradients, count.refused, count.unknown)
    return f"| {name} | " + " | ".join(f"{x:,}" for x in numbers) + " |"


def table(title: str, counts: dict[str, Count]) -> str:
    rows = [row(name, count) for name, count in sorted(counts.items())]
    rows.append(row("all", total(counts.values())))
    return f"## {title}\n\n{COLUMNS}" + "\n".join(rows) + "\n"


def measured(entries: Iterable[tuple[dict[str, Any], Iterable[str]]]) -> dict[str, Count]:
    """Check kinds of pairs, print the errors, and count by sort."""
    counts: dict[str, Count] = {}
    for entry, kinds in entries:
        found, faults = check(entry, kinds)
        counts[entry["sort"]] = counts.get(entry["sort"], Count()) + found
        for fault in faults:
            print(json.dumps(fault), flush=True)
    return counts


def in_extended_precision(count: int) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield pairs with their truths, and kinds to check."""
    for index in range(FIRST, FIRST + count):
        rng = random.Random(f"sweep {index}")  # noqa: S311
        entry = pair_of(index, rng)
        kinds = rng.sample(KINDS, SAMPLED)
        found = sweep_extended.truth(entry["p"], entry["q"], entry["direction"])
        yield {**entry, **vars(found)}, kinds


def pair_of(index: int, rng: random.Random | None = None) -> dict[str, Any]:
    """Return the pair of this number, and the direction of its derivatives."""
    rng = rng or random.Random(f"sweep {index}")  # noqa: S311
    sort, p, q = random_pair(rng)
    direction = direction_of(p, rng) + direction_of(q, rng)
    return {"index": index, "sort": sort, "p": p, "q": q, "direction": direction}


def second_derivatives() -> str:
    """Check second derivatives, print the errors, and return their part of the page."""
    numbers = random.Random(3).sample(range(FIRST, FIRST + PAIRS), PAIRS)  # noqa: S311
    counts: dict[str, SecondCount] = {}
    for entry in [*load()[:SECOND], *map(pair_of, numbers[:SECOND])]:
        p, q, direction = entry["p"], entry["q"], entry["direction"]
        entry.setdefault(
            "derivatives", sweep_extended.truth(p, q, direction, sweep_extended.SECOND_PANELS).derivatives
        )
        found, faults = check_second(entry, sweep_extended.second_derivatives(p, q, direction))
        counts[entry["sort"]] = counts.get(entry["sort"], SecondCount()) + found
        for fault in faults:
            print(json.dumps(fault), flush=True)
    counts = {**dict(sorted(counts.items())), "all": sum(counts.values(), SecondCount())}
    introduction = SECOND_INTRODUCTION.format(pairs=2 * SECOND, count=SECOND, kinds=len(KINDS))
    rows = [f"| {name} | {x.known:,} | {x.wrong:,} | {x.refused:,} |" for name, x in counts.items()]
    return SECOND_TITLE + "\n" + introduction + "\n".join(rows) + "\n"


def routes_of_differentiation() -> str:
    """Differentiate torch's pairs by every route, print the errors, and return their part of the page."""
    of_torch = {f"{p.__name__}|{q.__name__}" for p, q in _KL_REGISTRY}
    entries = [entry for entry in routes.load() if without_details(entry["name"]) in of_torch]
    cases = [routes.case_of(**entry) for entry in entries]
    counts = {name: [0, 0, 0] for name in routes.ROUTES}
    td.Distribution.set_default_validate_args(False)  # torch's own checks cannot be traced
    for case, name in itertools.product(cases, routes.ROUTES):
        counts[name][0] += 1
        try:
            wrong = routes.wrong_routes(
                lambda t, case=case: kl_divergence(*case.distributions(t)), case.start, case.truth, [name]
            )
        except KullbackError:
            counts[name][2] += 1
            continue
        counts[name][1] += len(wrong)
        for description in wrong:
            print(case.name, description, flush=True)
    pairs = len({without_details(entry["name"]) for entry in entries})
    rows = [
        f"| `{name}` | {'first' if name in routes.FIRST else 'second'} | {' | '.join(f'{x:,}' for x in count)} |"
        for name, count in counts.items()
    ]
    introduction = ROUTES_INTRODUCTION.format(pairs=pairs, cases=len(cases), count=len(counts))
    return ROUTES_TITLE + "\n" + introduction + "\n".join(rows) + "\n"


def without_details(name: str) -> str:
    """Return the types in the name of an audit's pair, without what tells two constructions of one type apart."""
    return "|".join(part.partition("(")[0] for part in name.split("|"))


def main(arguments: list[str]) -> None:
    if "--truths" in arguments:
        compute(int(arguments[arguments.index("--truths") + 1]))
    more, drawn = (
        int(arguments[arguments.index(name) + 1]) if name in arguments else usual
        for name, usual in (("--pairs", PAIRS), ("--kinds", len(KINDS)))
    )
    if "--routes" in arguments:
        PAGE.write_text(
            PAGE.read_text().partition(ROUTES_TITLE)[0].rstrip() + "\n\n" + routes_of_differentiation()
        )
        return
    if "--second" in arguments:
        before, _, after = PAGE.read_text().partition(SECOND_TITLE)
        of_routes = "".join(after.partition(ROUTES_TITLE)[1:])
        PAGE.write_text(before.rstrip() + "\n\n" + second_derivatives() + "\n" + of_routes)
        return
    entries = load()
    stored = measured(
        (entry, random.Random(entry["index"]).sample(KINDS, drawn))  # noqa: S311
        for entry in entries
    )
    extended = measured(in_extended_precision(more))
    tables = [
        table(f"{len(entries):,} pairs against mpmath", stored),
        table(f"{more:,} pairs in extended precision", extended),
        second_derivatives(),
        routes_of_differentiation(),
    ]
    counts = total([*stored.values(), *extended.values()])
    PAGE.write_text(
        INTRODUCTION.format(
            pairs=len(entries) + more,
            cases=counts.cases,
            wrong=counts.values + counts.bounds + counts.gradients,
            refused=counts.refused,
            unknown=counts.unknown,
            kinds=len(KINDS),
            stored=len(entries),
            more=more,
            drawn=drawn,
            sampled=SAMPLED,
            tables="\n".join(tables),
        )
    )
    print(PAGE, TRUTHS)


if __name__ == "__main__":
    main(sys.argv[1:])
