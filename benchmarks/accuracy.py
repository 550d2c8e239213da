"""Measures the errors of kullback's and torch's divergences against mpmath, pair by pair.

It writes docs/records/numerics.md.

python benchmarks/accuracy.py           # measures, writes benchmarks/results/accuracy.json and the page
python benchmarks/accuracy.py --render  # writes the page from the numbers that are there
"""

from __future__ import annotations

import json
import math
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

sys.path.insert(0, str(Path(__file__).parents[1]))  # the oracles of the tests

from tests.oracles.audit import Measured, cases_in, compare, evaluate, measure, own_divergence, tiny
from tests.oracles.pair_truths import Truth, load
from tests.oracles.pairs import PAIRS, Pair

from kullback import kl_estimate
from kullback.errors import ConvergenceError

SCHEMA = "kullback.accuracy/1"
RESULTS = Path(__file__).parent / "results" / "accuracy.json"
PAGE = Path(__file__).parents[1] / "docs" / "records" / "numerics.md"


def torch_divergence(p: Distribution, q: Distribution) -> tuple[Tensor, None]:
    return torch.distributions.kl_divergence(p, q), None


def row_by_row(pair: Pair, truth: Truth, dtype: torch.dtype) -> Measured | None:
    """torch's answers: one case after the other if it refuses the batch, None if it refuses the pair."""
    try:
        return measure(pair, truth, dtype, torch_divergence)
    except NotImplementedError:
        return None
    except (RuntimeError, IndexError, ValueError):
        parameters, value, gradient = truth
        index = cases_in(dtype, parameters)
        results = []
        for i in index:
            try:
                results.append(evaluate(pair, parameters[i : i + 1], dtype, torch_divergence))
            except (NotImplementedError, RuntimeError, IndexError, ValueError):
                missing = np.full((1, parameters.shape[1]), math.nan)
                results.append((missing[:, 0], missing, np.zeros(1, bool)))
        found = tuple(np.concatenate(parts) for parts in zip(*results, strict=True))
        return compare(pair, (parameters[index], value[index], gradient[index]), dtype, index, found)


def errors(pair: Pair, truth: Truth, dtype: torch.dtype, measured: Measured | None) -> dict[str, Any] | None:
    """The numbers of the page: failing cases, the largest relative errors, and the kinds of invalid results."""
    if measured is None:
        return None
    parameters, value, gradient = (part[measured.index] for part in truth)
    units = np.array([pair.units(list(row)) for row in parameters])
    with np.errstate(all="ignore"):
        judged = np.isfinite(value) & np.isfinite(measured.value) & ~measured.refused
        judged &= value > tiny(dtype) / torch.finfo(dtype).eps  # smaller values have fewer digits
        judged &= measured.value_ratio > 0  # neither right to the last digit nor beyond the dtype
        relative = (np.abs(measured.value - value) / value)[judged]
        known = np.isfinite(gradient) & np.isfinite(measured.gradient) & judged[:, None]
        derivatives = np.abs(np.where(known, gradient, 0)) * units
        off = np.abs(np.where(known, measured.gradient - gradient, 0)) * units
        off = np.nan_to_num(off.max(axis=1, initial=0) / derivatives.max(axis=1, initial=0), posinf=0)
    return {
        "cases": len(value),
        "refused": int(measured.refused.sum()),
        "failing": int(measured.failing.sum()),
        "value": float(f"{np.max(relative, initial=0):.2g}"),
        "gradient": float(f"{np.max(off, initial=0):.2g}"),
        "nan": int(np.isnan(measured.value).sum()),
        "nan_gradient": int(np.isnan(measured.gradient).any(axis=1).sum()),
        "negative": int((measured.value < 0).sum()),
        "wrong_infinity": int(
            (np.isinf(measured.value_ratio) & ~np.isnan(measured.value) & (measured.value >= 0)).sum()
        ),
    }


def rule(pair: Pair, truth: Truth) -> str:
    columns = [torch.tensor(column[:1]) for column in truth[0].T]
    split = len(pair.p.parameters)
    try:
        return kl_estimate(pair.p.build(*columns[:split]), pair.q.build(*columns[split:])).method
    except ConvergenceError as error:
        return error.estimate.method


def audit() -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for name, truth in load().items():
        pair = PAIRS[name]
        row: dict[str, Any] = {"method": rule(pair, truth), "infinite": bool(np.isinf(truth[1]).all())}
        for dtype in (torch.float64, torch.float32):
            row[str(dtype).removeprefix("torch.")] = {
                "kullback": errors(pair, truth, dtype, measure(pair, truth, dtype, own_divergence)),
                "torch": errors(pair, truth, dtype, row_by_row(pair, truth, dtype)),
            }
        pairs[name] = row
    machine = {"torch": torch.__version__, "python": platform.python_version()}
    return {"schema": SCHEMA, "machine": machine, "pairs": pairs}


KINDS_OF_FAILURE = {
    "nan": "NaN",
    "nan_gradient": "NaN gradients",
    "negative": "negative",
    "wrong_infinity": "wrong infinity",
    "refused": "refused",
}
INTRODUCTION = """\
# Numerics

Measured: values and gradients of KL for {pairs} pairs of distributions in {cases:,} cases, against mpmath at 150
digits. Result: {failing:,} cases fail in kullback; {refused:,} is refused with an error. Of the {torch_cases:,} cases
that torch serves, {torch_failing:,} fail there. Conclusion: values of these pairs have 10 digits in float64 and 5 in
float32, up to the rounding of the parameters. This includes extreme and nearly equal parameters.

The truth is mpmath's, at 150 digits or more (28 for integrals), for the parameters after rounding to the dtype
(`tests/oracles/pair_truths.py`). The same cases run in the tests. The parameters are moderate, tiny or huge: 1e-30 to
1e30, concentrations from 1e-6 to 1e8, logits to ±100, probabilities near 0 and 1 and equal to them. Other pairs are
equal or nearly equal, with a relative difference down to 1e-8.

A case fails in three ways. The relative error of the value exceeds 1e-10 (float32: 1e-5), and the error exceeds the
effect of a relative change of 1e-13 in a parameter. A derivative is wrong in the same sense, with 1e-7 (1e-4). Or the
value is wrongly negative, NaN or infinite, or a derivative is NaN. For families whose parameters torch's constructor
normalizes in the dtype (such as Categorical), the error of this normalization is allowed.

“Value” and “gradient” are the largest relative errors. The gradient is by the logarithms of the parameters, and its
error is relative to its largest component. These errors may exceed the tolerance if P and Q are so close that the
rounding of the parameters decides. “Fail” counts failing cases. “Refused” cases end in a `ConvergenceError`, which has
the best value and its bound. “None” means that torch {torch} has no rule. `benchmarks/accuracy.py` makes this page.

Sums and integrals of every kind of divergence follow one policy (`kullback.pairs.solve_options`). Their goal is a
relative error of 1e-10, or an absolute error of 1e-15. A result is refused if its error exceeds both 1e-6 of the
value (`rtol=`) and 1e-9 (`atol=`), apart from the rounding to its dtype.

The limits of the range of floats have 7,498 cases of their own, for the closed forms of 177 pairs
(`tests/oracles/end_truths.py`). P and Q have equal or different scales from 1e-300 to 1e300, subnormal scales, and
shapes up to 3e120. A value or derivative within the range of the dtype is right to the same tolerance. One beyond it is
infinite with the right sign, and none is NaN. If a value is +inf, its derivatives are 0. The file lists the exceptions:
matrices whose scales differ by more than 60 orders of magnitude; derivatives by a location if two scales differ by more
than 300 orders; and extreme shapes of single families. A parameter that is NaN makes its element of the batch NaN.
"""


def cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "none | | "
    wrong = [f"{found[key]} {word}" for key, word in KINDS_OF_FAILURE.items() if found[key]]
    fail = str(found["failing"]) + (f" ({', '.join(wrong)})" if wrong else "")
    return f"{error(found['value'])} | {error(found['gradient'])} | {fail}"


def error(x: float) -> str:
    return f"{x:.0e}" if x else "0"


def page(document: dict[str, Any], speed: dict[str, Any] | None) -> str:
    pairs = document["pairs"]
    dtypes = ("float64", "float32")
    counts = {
        f"{prefix}{key}": sum(
            row[dtype][library][key] for row in pairs.values() for dtype in dtypes if row[dtype][library]
        )
        for library, prefix in (("kullback", ""), ("torch", "torch_"))
        for key in ("cases", "failing", "refused")
    }
    parts = [INTRODUCTION.format(**counts, pairs=len(pairs), torch=document["machine"]["torch"])]
    parts += [summary(pairs, dtypes), *(table(pairs, dtype) for dtype in dtypes)]
    if speed is not None:
        parts.append(speed_section(speed))
    return "\n".join(parts)


def table(pairs: dict[str, Any], dtype: str) -> str:
    """A row for each pair, and one row for all pairs that are always infinite and have no failing case."""
    infinite = {name: row for name, row in pairs.items() if row["infinite"]}
    shown = {
        name: row for name, row in pairs.items() if name not in infinite or row[dtype]["kullback"]["failing"]
    }
    rows = [
        f"| {name.replace('|', ' ‖ ')} | {row['method']} | {row[dtype]['kullback']['cases']} | "
        f"{cell(row[dtype]['kullback'])} | {cell(row[dtype]['torch'])} |"
        for name, row in sorted(shown.items())
    ]
    ours = [row[dtype]["kullback"] for row in infinite.values()]
    theirs = [row[dtype]["torch"] for row in infinite.values() if row[dtype]["torch"]]
    rows.append(
        f"| {len(infinite)} pairs that are always infinite | | {sum(x['cases'] for x in ours)} | 0 | | "
        f"{sum(x['failing'] for x in ours)} | {len(theirs)} of them: 0 | | {sum(x['failing'] for x in theirs)} |"
    )
    heading = "| pair | rule | cases | value | gradient | fail | torch: value | gradient | fail |"
    return "\n".join([f"## {dtype}", "", heading, "|---|---|---|---|---|---|---|---|---|", *rows, ""])


# The allowed time of a call: this multiple of torch's time, plus this many microseconds.
MOST, CONSTANT = 1.2, 2


def speed_section(speed: dict[str, Any]) -> str:
    """Times of closed forms, of torch's and of quadrature, from benchmarks/results/pairs.json."""
    rows = speed["closed_forms"]
    known = [x for x in rows if x["torch"]]
    slow = [x["pair"] for x in known if x["kullback"] > MOST * x["torch"] + CONSTANT]
    lines = [
        "## Speed",
        "",
        f"One call on one thread of {speed['machine']['processor']}, forward only, in microseconds; CPU time if the",
        "machine was loaded. For a pair that is always infinite, torch takes about a microsecond: one look-up and one",
        "tensor with the shape of P's first parameter. kullback's result also has the broadcast shape, the common",
        "dtype and a gradient of 0. It also checks for a Poisson of rate 0, whose divergence is finite.",
        "",
        f"{len(known) - len(slow)} of the {len(known)} rows that torch has too take at most {MOST} times its time plus",
        f"{CONSTANT} microseconds. The others are",
        f"{', '.join(dict.fromkeys(slow)) or 'no pair'}.",
        "",
        "| pair | dtype | batch | kullback | torch |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {x['pair']} | {x['dtype']} | {x['batch']:,} | {micros(x['kullback'])} | {micros(x['torch'])} |"
        for x in rows
    ]
    gradients = speed["gradients"]
    slow = [x["pair"] for x in gradients if x["kullback"] > MOST * x["torch"] + CONSTANT]
    lines += [
        "",
        "Values with the gradients of all parameters, in float64, where torch has a gradient:",
        f"{len(gradients) - len(slow)} of {len(gradients)} rows take at most {MOST} times torch's time plus {CONSTANT}",
        "microseconds. The others are",
        f"{', '.join(dict.fromkeys(slow)) or 'no pair'}.",
        "",
        "| pair, with gradients | batch | kullback | torch |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {x['pair']} | {x['batch']:,} | {micros(x['kullback'])} | {micros(x['torch'])} |"
        for x in gradients
    ]
    lines += [
        "",
        "CPU time of the quadrature of 1,000 pairs, to 1e-10, in milliseconds:",
        "",
        "| pair | ms |",
        "|---|---|",
    ]
    lines += [f"| {x['pair']} | {x['cpu_ms']:.0f} |" for x in speed["quadrature"]]
    return "\n".join([*lines, ""])


def micros(x: float | None) -> str:
    if x is None:
        return ""
    return f"{x:,.0f}" if x >= 10 else f"{x:.1f}"


def summary(pairs: dict[str, Any], dtypes: tuple[str, ...]) -> str:
    lines = [
        "| | pairs served | cases | failing | pairs with failures | refused |",
        "|---|---|---|---|---|---|",
    ]
    for dtype in dtypes:
        for library in ("kullback", "torch"):
            rows = [row[dtype][library] for row in pairs.values() if row[dtype][library]]
            cases, failing, refused = (
                sum(row[key] for row in rows) for key in ("cases", "failing", "refused")
            )
            faulty = sum(row["failing"] > 0 for row in rows)
            lines.append(
                f"| {library}, {dtype} | {len(rows)} | {cases:,} | {failing:,} | {faulty} | {refused} |"
            )
    return "\n".join([*lines, ""])


def rendered() -> str:
    speed = RESULTS.with_name("pairs.json")
    return page(json.loads(RESULTS.read_text()), json.loads(speed.read_text()) if speed.exists() else None)


def main(arguments: list[str]) -> None:
    if "--render" not in arguments:
        RESULTS.write_text(json.dumps(audit(), indent=0) + "\n")
    PAGE.write_text(rendered())


if __name__ == "__main__":
    main(sys.argv[1:])
