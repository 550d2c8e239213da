"""Mutation testing: change one place of the code at a time, and see whether a test notices.

    make mutate                                        all parts, some hours
    python .ci/mutate.py --parts power --seconds 300   a part, as far as the time goes; the next call goes on

The mutants are Cosmic Ray's. Of the ones at the same place one is drawn, so that every place is tried once. This
process has imported PyTorch; each mutant is tested by a fork of it, in a copy of the sources without native kernels.
The outcomes are kept in `benchmarks/results/mutation.json`.
"""

from __future__ import annotations

import argparse
import compileall
import difflib
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import mpmath  # noqa: F401  the imports that the forks share
import numpy as np  # noqa: F401
import pandas as pd  # noqa: F401
import polars as pl  # noqa: F401
import pytest
import scipy.special
import scipy.stats  # noqa: F401
import torch
import torch.distributions

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutation.json"
LONGEST = 120  # seconds for the tests of one mutant; a mutant that never ends is killed
GENERATORS = [
    "tests/generators",
    "-k",
    "value_of or gradient_of_logits or at_zero or out_of_range or named_members or always_zero",
]
POWER = [GENERATORS[0], "tests/kernels/test_reference.py", "-k", f"largest_ratio or {GENERATORS[2]}"]
# A -k holds for all the files: these are chosen by their names.
KERNELS = [
    "tests/kernels/test_reference.py",
    "tests/kernels/test_far_logits.py",
    "tests/kernels/test_error_budget.py",
    GENERATORS[0],
    "-k",
    f"test_reference or test_far_logits or (budget and not vocabulary) or {GENERATORS[2]}",
]
FORMS = "tests/pairs/closed_forms"
DISCRETE = [
    f"{FORMS}/test_plain_forms.py",
    f"{FORMS}/test_discrete.py",
    f"{FORMS}/test_ends.py",
    "-k",
    "not compile and (plain or discrete or Bernoulli or inomial or eometric or Poisson)",
]
REAL = [
    f"{FORMS}/test_plain_forms.py",
    f"{FORMS}/test_ends.py",
    "-k",
    "real_line or unit or Normal or Laplace or Cauchy or Gumbel or StudentT or Weibull",
]
# The pairs of the audit by their formulas alone, of one module, and the ends of the range of the families in it.
ALONE = [f"{FORMS}/test_plain_forms.py", f"{FORMS}/test_ends.py"]
POSITIVE = "Exponential or Gamma or Chi2 or Weibull or HalfNormal or HalfCauchy or Pareto"
RULES = "tests/estimators/discrete/test_interval_rules.py"
COUNTS = [RULES, "tests/estimators/discrete", "-k", "not zipf and not million and not clusters_hold"]
MEANS = [
    "tests/predictions/test_interval_formulas.py",
    "tests/predictions/test_intervals.py",
    "-k",
    "not study",
]
# The file that is changed, and the tests that have to notice.
PARTS = {
    "entropic": ("generators/entropic.py", GENERATORS),
    "power": ("generators/power.py", POWER),
    "reference": ("kernels/reference.py", KERNELS),
    "gumbel": ("pairs/families/gumbel.py", REAL),
    "trials": ("pairs/families/trials.py", DISCRETE),
    "gamma": (
        "pairs/families/gamma.py",
        [*ALONE, "-k", f"gamma: or positive_ or ends_of and ({POSITIVE})"],
    ),
    "von_mises": (
        "pairs/families/von_mises.py",
        [*ALONE, "-k", "von_mises: or bounded_ or ends_of and VonMises"],
    ),
    "intervals of counts": ("estimators/discrete/count_intervals.py", COUNTS),
    "intervals of predictions": ("predictions/mean_intervals.py", MEANS),
}
# Annotations are text (`from __future__ import annotations`): `Tensor | None` may say anything.
NO_MUTANTS = (
    "BinaryOperator_BitOr",
    "ExceptionReplacer",
    "RemoveDecorator",
    "VariableInserter",
    "VariableReplacer",
)


def mutants(path: Path) -> list[object]:
    """One mutant of every place that has some, in an order that does not depend on the places."""
    from cosmic_ray.commands.init import _all_work_items

    places: dict[object, list[object]] = {}
    for item in _all_work_items([path], {}):
        (mutation,) = item.mutations
        if not any(name in mutation.operator_name for name in NO_MUTANTS):
            places.setdefault((mutation.start_pos, mutation.operator_name.split("_")[0]), []).append(mutation)
    draw = random.Random(0)  # noqa: S311
    chosen = [
        draw.choice(sorted(each, key=lambda m: (m.operator_name, m.occurrence))) for each in places.values()
    ]
    draw.shuffle(chosen)
    return chosen


def outcome_of(tests: list[str], *, quiet: bool = True) -> str:
    """Run tests in a fork: killed, survived, or out of time."""
    child = os.fork()
    if child == 0:
        if quiet:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
        signal.alarm(LONGEST)
        status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests])
        os._exit(0 if status == pytest.ExitCode.OK else 1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "out of time" if os.WTERMSIG(status) == signal.SIGALRM else "killed"
    return "survived" if os.WEXITSTATUS(status) == 0 else "killed"


def one_mutant(
    path: Path, mutation: object, tests: list[str], before_now: dict[tuple[str, ...], dict[str, object]]
) -> dict[str, object] | None:
    """Try a mutant, or take what came of the same change to an earlier text; None where it changes nothing."""
    import cosmic_ray.plugins
    from cosmic_ray.mutating import use_mutation

    operator = cosmic_ray.plugins.get_operator(mutation.operator_name)(**mutation.operator_args)
    with use_mutation(path, operator, mutation.occurrence) as (before, after):
        if after is None or after == before:
            return None
        changed = [
            line
            for line in difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
            if line[0] in "+-" and line[:3] not in ("+++", "---")
        ]
        if tuple(changed) in before_now:
            return before_now[tuple(changed)] | {"line": mutation.start_pos[0]}
        return {"line": mutation.start_pos[0], "change": changed, "outcome": outcome_of(tests)}


def try_part(part: str, folder: Path, held: dict[str, dict[str, object]], end: float, *, again: bool) -> None:
    """Try the mutants of a part that have not been tried, or those that survived `again`, until `end`."""
    file, tests = PARTS[part]
    path = folder / "src" / "kullback" / file
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    todo = mutants(path)
    before_now: dict[tuple[str, ...], dict[str, object]] = {}
    if (
        held.get(part, {}).get("sha256") != digest
    ):  # mutants of another text: those of its unchanged lines still hold
        if part in held:
            before_now = {tuple(each["change"]): each for each in held[part]["tried"].values()}
        held[part] = {"file": f"src/kullback/{file}", "sha256": digest, "places": len(todo), "tried": {}}
    tried = held[part]["tried"]
    if not tried and outcome_of(tests, quiet=False) != "survived":
        raise SystemExit(f"{part}: the tests fail without a mutant: python -m pytest {' '.join(tests)}")
    for number, mutation in enumerate(todo):
        key = f"{mutation.operator_name.removeprefix('core/')} {mutation.occurrence}"
        if (key not in tried or tried[key]["outcome"] != "survived") if again else key in tried:
            continue
        if time.monotonic() > end:
            break
        found = one_mutant(path, mutation, tests, before_now)
        if found is not None:
            tried[key] = found
            print(
                part, f"{number + 1}/{len(todo)}", found["outcome"], *found["change"], sep="\n  ", flush=True
            )
            RESULTS.write_text(json.dumps(held, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--again", action="store_true", help="try the survivors again, and nothing else")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    torch.set_num_threads(1)
    held = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory(prefix="kullback-mutants-") as name:
        leave = shutil.ignore_patterns("__pycache__", "*.so", "*.dll")
        for folder in ("src", "tests", "benchmarks", "docs"):
            shutil.copytree(ROOT / folder, Path(name) / folder, ignore=leave)
        shutil.copy(ROOT / "pyproject.toml", name)
        for folder in ("src", "tests"):
            compileall.compile_dir(Path(name) / folder, quiet=2)
        sys.dont_write_bytecode = True
        os.chdir(name)
        sys.path[:0] = [f"{name}/src", name]
        os.environ["PYTHONPATH"] = f"{name}/src"
        for part in options.parts:
            try_part(part, Path(name), held, end, again=options.again)


if __name__ == "__main__":
    main()
