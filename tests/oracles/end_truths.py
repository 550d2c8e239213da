"""Makes tests/data/end_truths.npz: divergences and gradients at the ends of the range of floats, by mpmath.

python -m tests.oracles.end_truths            # all pairs, an hour
python -m tests.oracles.end_truths Gamma      # those whose name contains a word; the others are kept

Scales are drawn from 1e-300 to 1e300 and below the smallest normal number, for P and Q the same or not; shapes up to
3e120. Left out is what `is_measurable` and `is_out_of_reach` say.
"""

from __future__ import annotations

import contextlib
import math
import random
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch
from mpmath import mp, mpf
from torch import Tensor

from kullback.pairs.registry import plan_for
from tests.oracles.expectations import Number
from tests.oracles.families import (
    Draw,
    Family,
    exponent,
    fitting,
    inner_probability,
    location,
    logit,
    probability,
    scale,
    tail,
)
from tests.oracles.pair_truths import FAILURES, MEMORY, ROOM, STEP, evaluate, limit, orders
from tests.oracles.pairs import PAIRS, Pair
from tests.oracles.special_pairs import angle, bounded_scale, degrees, factor, size, some_probability

# For each dtype and pair: parameters, values, gradients, and the change of the value when all parameters change
# relatively by 1; a line each draw.
Truth = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
DATA = Path(__file__).parents[1] / "data" / "end_truths.npz"
SECONDS = 1
ENDS = {
    "float64": (5e-324, 1e-320, 1e-300, 1e-160, 1e-120, 1.0, 1e120, 1e160, 1e300),
    "float32": (1e-45, 1e-40, 1e-37, 1e-20, 1e-12, 1.0, 1e12, 1e20, 1e37),
}
MODES = ("equal", "equal", "inverse", "mixed", "mixed", "shapes", "shapes", "all")
DRAWS = 24
SCALES, LOCATIONS = (scale, size, bounded_scale), (location, factor)
# Few precisions, as mpmath's gamma functions prepare for each.
DIGITS = (300, 600, 900, 1800)
PROBABILITIES = (probability, some_probability)


def closed_forms() -> dict[str, Pair]:
    """The pairs of the audit that a closed form answers, here or after a reduction to another pair."""
    found: dict[str, Pair] = {}
    for name, pair in PAIRS.items():
        if pair.integral or pair.p.rounds:
            continue
        at = pair.p.draw(random.Random(0), False), pair.q.draw(random.Random(1), False)  # noqa: S311
        fitting(pair.p, pair.q, *at, random.Random(2))  # noqa: S311
        types = [type(f.build(*map(_tensor, x))) for f, x in zip((pair.p, pair.q), at, strict=True)]
        plan = plan_for(*types)
        if plan.closed_form is not None or plan.reduction is not None:
            found[name] = pair
    return found


def _tensor(x: float, dtype: str = "float64") -> Tensor:
    return torch.tensor(x, dtype=getattr(torch, dtype))


def is_valid(pair: Pair, at: list[float], dtype: str) -> bool:
    """Tell whether torch takes the parameters in this dtype."""
    numbers = [_tensor(x, dtype) for x in at]
    split = len(pair.p.parameters)
    try:
        pair.p.build(*numbers[:split]), pair.q.build(*numbers[split:])
    except ValueError:
        return False
    return True


def draw(pair: Pair, ends: tuple[float, ...], rng: random.Random, index: int) -> list[float]:
    """One draw of all parameters, some of which are at the ends."""
    mode = MODES[index % len(MODES)]
    common = ends[index // len(MODES) % len(ends)] if mode in ("equal", "inverse") else 1.0

    def end() -> float:
        return rng.choice(ends) * rng.uniform(1, 3)

    def one(unit: float, kind: Draw) -> float:
        if kind in LOCATIONS:
            return rng.choice([0.0, 1.0, -1.0]) * (end() if mode == "all" else unit * rng.uniform(0.2, 3))
        if kind in SCALES:
            return end() if mode == "all" else unit * rng.uniform(0.5, 2)
        if kind in PROBABILITIES:
            return rng.choice([min(end(), 0.4), rng.uniform(0.1, 0.9)])
        if kind is logit:
            return rng.choice([-1, 1]) * rng.choice([end(), rng.uniform(0, 800), 1.0])
        return shape(kind)

    def shape(kind: Draw) -> float:
        if mode not in ("shapes", "all") or kind in (angle, inner_probability):
            return kind(rng, False)
        return min(end(), 3e120) + (2.6 if kind is degrees else 0)

    def of(family: Family, unit: float) -> list[float]:
        return [one(unit, kind) for kind in family.parameters.values()]

    units = (end(), end()) if mode == "mixed" else (common, 1 / common if mode == "inverse" else common)
    at_p, at_q = of(pair.p, units[0]), of(pair.q, units[1])
    if pair.fit:
        fitting(pair.p, pair.q, at_p, at_q, rng)
    return at_p + at_q


def is_measurable(pair: Pair, at: list[float], dtype: str) -> bool:
    """Tell whether the parameters are such that the closed forms are held to their truth.

    torch keeps all digits of them, which it halves for Chi2 and StudentT. No scales are 602 orders of magnitude apart,
    and no width of a Uniform is subnormal. Matrices reach less far: their scales lie within 60 orders, those of low
    rank above 1e-30. So do Kumaraswamy's shapes, above 1e-4 (the tests go further), and Weibull's, above 1e-150.
    """
    families = [pair.p] * len(pair.p.parameters) + [pair.q] * len(pair.q.parameters)
    kinds = [*pair.p.parameters.values(), *pair.q.parameters.values()]
    halved = [
        x
        for x, family, kind in zip(at, families, kinds, strict=True)
        if family.name == "Chi2" or (family.name == "StudentT" and kind is tail)
    ]
    sharp = [x for x, family in zip(at, families, strict=True) if family.name == "Kumaraswamy"]
    exponents = [
        x
        for x, family, kind in zip(at, families, kinds, strict=True)
        if family.name == "Weibull" and kind is exponent
    ]
    matrix = pair.p.name.startswith(("Multi", "LowRank", "Wishart", "LKJ"))
    ends = [x for x, family in zip(at, families, strict=True) if x and family.name == "Uniform"]
    scales = [
        math.log10(abs(x)) for x, kind in zip(at, kinds, strict=True) if x and kind in (*SCALES, *LOCATIONS)
    ]
    return (
        all(map(math.isfinite, at))
        and all(float(np.dtype(dtype).type(x / 2)) * 2 == x for x in halved)
        and all(abs(x) > 1e-307 for x in ends)
        and max(scales, default=0) - min(scales, default=0) < (60 if matrix else 602)
        and (not pair.p.name.startswith("LowRank") or min(scales, default=0) > -30)
        and all(value > 1e-4 for value in sharp)
        and all(value > 1e-150 for value in exponents)
    )


def truth(pair: Pair, at: list[float]) -> tuple[float, list[float], float] | None:
    """The value, the gradient, and the change of the value relatively to the parameters'; None where there is none."""
    if at[: len(pair.p.parameters)] == at[len(pair.p.parameters) :]:
        return None
    first = 250 + 2 * orders(at)  # differences of tiny derivatives of a huge value
    for digits in (d for d in DIGITS if d >= first):
        value, again = (evaluate(pair, at, d) for d in (digits, digits + 40))
        if value is None or again is None or mp.isnan(value):
            return None
        with mp.workdps(digits):
            if mp.isinf(value):
                return math.inf, [math.nan] * len(at), 0.0
            if abs(value - again) < mpf(10) ** (ROOM + 60 - digits) * again:
                return with_gradient(pair, at, digits, value)
    return None


def is_out_of_reach(pair: Pair, at: list[float], index: int) -> bool:
    """Tell of a location whether the quotient of two scales, which its derivative goes through, underflows."""
    kinds = [*pair.p.parameters.values(), *pair.q.parameters.values()]
    scales = [math.log10(x) for x, kind in zip(at, kinds, strict=True) if x and kind in SCALES]
    return kinds[index] in LOCATIONS and max(scales, default=0) - min(scales, default=0) > 300


def with_gradient(
    pair: Pair, at: list[float], digits: int, value: Number
) -> tuple[float, list[float], float] | None:
    parameters = [mpf(x) for x in at]
    gradient: list[float] = []
    natural = mpf(0)
    for i, (step, unit) in enumerate(zip(pair.steps(at), pair.units(at), strict=True)):
        if i in pair.fixed(at) or is_out_of_reach(pair, at, i):
            gradient.append(math.nan)
            continue
        h = STEP * mpf(step)
        sides: list[Number] = []
        for sign in (1, -1):
            moved = list(parameters)
            moved[i] += sign * h
            sides.append(evaluate(pair, moved, digits))
        if any(side is None for side in sides):
            return None
        derivative = (sides[0] - sides[1]) / (2 * h)
        if not mp.isfinite(derivative):
            gradient.append(math.nan)
            continue
        noise = abs(derivative) * unit < mpf(10) ** -60 * value
        if noise and unit == step:  # the truncation error of the difference quotient
            gradient.append(math.nan)
            continue
        if (
            abs(derivative) * h < mpf(10) ** (205 - digits) * value
        ):  # what the difference quotient does not resolve
            derivative = mpf(0)
        natural = max(natural, abs(derivative) * unit)
        gradient.append(saturated(derivative))
    return saturated(value), gradient, saturated(natural)


def saturated(x: Number) -> float:
    """The nearest float, infinite beyond the largest."""
    if abs(x) > mpf("1.7e308"):
        return math.copysign(math.inf, x)
    return float(x)


def cases(name: str, pair: Pair, dtype: str) -> Truth:
    """Parameters, values, gradients and relative changes of a pair's draws."""
    rng = random.Random(f"{name} {dtype}")  # noqa: S311
    rows: list[tuple[list[float], tuple[float, list[float], float]]] = []
    slow = 0
    for index in range(DRAWS):
        with np.errstate(over="ignore", under="ignore"):
            at = [float(np.dtype(dtype).type(x)) for x in draw(pair, ENDS[dtype], rng, index)]
        if not is_measurable(pair, at, dtype) or not is_valid(pair, at, dtype):
            continue
        with contextlib.suppress(*FAILURES), limit(SECONDS):
            slow += 1
            found = truth(pair, at)
            if found is not None:
                rows.append((at, found))
            slow -= 1
        if slow > 2:
            break
    width = len(pair.p.parameters) + len(pair.q.parameters)
    columns = [np.array([row[1][i] for row in rows]) for i in range(3)]
    return (
        np.array([row[0] for row in rows]).reshape(-1, width),
        columns[0],
        columns[1].reshape(-1, width),
        columns[2],
    )


def load() -> dict[tuple[str, str], Truth]:
    """All truths by the name of their pair and of the dtype."""
    with np.load(DATA) as file:
        keys = dict.fromkeys(key.rsplit("/", 1)[0] for key in file.files)
        return {
            tuple(key.rsplit("/", 1)): tuple(file[f"{key}/{part}"] for part in PARTS)  # type: ignore[misc]
            for key in keys
        }


PARTS = ("parameters", "value", "gradient", "change")


def save(truths: dict[tuple[str, str], Truth]) -> None:
    arrays = {
        f"{name}/{dtype}/{part}": array
        for (name, dtype), truth in sorted(truths.items())
        for part, array in zip(PARTS, truth, strict=True)
    }
    unfinished = DATA.with_name("unfinished.npz")
    np.savez_compressed(unfinished, **arrays)
    unfinished.replace(DATA)


def prepare() -> None:
    """Have mpmath compute the constants of its gamma functions, which takes seconds, outside of any limit of time."""
    for digits in DIGITS[:3]:
        for more in (0, 40):
            with mp.workdps(digits + more):
                mp.loggamma(mpf("1.7")), mp.digamma(mpf("1.7"))


def main(words: list[str]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    truths = load() if words and DATA.exists() else {}
    prepare()
    started = time.perf_counter()
    for name, pair in closed_forms().items():
        if words and not any(word in name for word in words) and name not in words:
            continue
        for dtype in ENDS:
            begun = time.perf_counter()
            found = cases(name, pair, dtype)
            if len(found[1]):
                truths[name, dtype] = found
            print(f"{name} {dtype}: {len(found[1])} in {time.perf_counter() - begun:.1f} s", flush=True)
        save(truths)
    draws = sum(len(values) for _, values, _, _ in truths.values())
    print(f"{len(truths)} pairs, {draws} draws, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
