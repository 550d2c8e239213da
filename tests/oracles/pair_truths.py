"""Makes tests/data/pair_truths.npz: divergences and gradients of drawn pairs of distributions, by mpmath.

python -m tests.oracles.pair_truths            # all pairs, some ten minutes
python -m tests.oracles.pair_truths Gamma      # those whose name contains a word; the others are kept
python -m tests.oracles.pair_truths --check    # compute all that are there again, and print what differs

A derivative is a difference quotient: it is known up to NOISE times the value over the length of a step in the
parameter, and one smaller than that is 0 as far as it can tell.

The parameters are doubles; those that float32 holds exactly are cases of both dtypes.
"""

from __future__ import annotations

import contextlib
import math
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import numpy as np
from mpmath import mp, mpf

from tests.oracles.expectations import Number
from tests.oracles.families import NEAR, fitting, log_uniform
from tests.oracles.pairs import PAIRS, Pair

Truth = tuple[np.ndarray, np.ndarray, np.ndarray]  # parameters, values, gradients; a line each draw
DATA = Path(__file__).parents[1] / "data" / "pair_truths.npz"
MEMORY = 8 << 30
SECONDS = 4  # for one case; what mpmath cannot do in that time is not drawn
STEP = mpf(10) ** -40
NOISE = 1e-60
ROOM = 90  # digits of the value beyond those that must agree: differences over STEP lose as many as STEP has


class TooSlowError(Exception):
    pass


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    def stop(signum: int, frame: FrameType | None) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# What mpmath raises where it cannot do a case.
FAILURES = (
    TooSlowError,
    ZeroDivisionError,
    OverflowError,
    ValueError,
    MemoryError,
    TypeError,
    mp.NoConvergence,
)


def draw(pair: Pair, rng: random.Random, index: int) -> list[float]:
    """One draw of all parameters: of ten, some are extreme, some nearly equal, and half are rounded to float32."""
    style = index % 10
    wide = style in (0, 1, 2) and not pair.integral
    single = style in (0, 1, 3, 4, 5)
    near = pair.p.parameters == pair.q.parameters and style in (2, 5, 6, 7, 8)
    near = near and not (single and pair.p.rounds)
    if pair.draw is not None:
        return pair.draw(rng, index)
    at_p, at_q = pair.p.draw(rng, wide), pair.q.draw(rng, wide)
    if near:
        at_q = pair.p.near(at_p, 0 if index % 50 == 5 else log_uniform(NEAR, 0.1, rng), rng)
    if pair.fit:
        fitting(pair.p, pair.q, at_p, at_q, rng)
    if single:
        at_p, at_q = ([float(np.float32(x)) for x in at] for at in (at_p, at_q))
    return at_p + at_q


def evaluate(pair: Pair, at: Sequence[Number], digits: int) -> Number | None:
    split = len(pair.p.parameters)
    with mp.workdps(digits):
        numbers = [mpf(x) for x in at]
        value = pair.kl(numbers[:split], numbers[split:])
        return None if value is None else +value


def truth(pair: Pair, at: list[float]) -> tuple[float, list[float]] | None:
    """The value and the gradient; None where mpmath has none or it is no double."""
    if equal(pair, at):
        return 0.0, [math.nan if i in pair.fixed(at) else 0.0 for i in range(len(at))]
    if pair.integral:
        return with_gradient(pair, at, 28, mpf(10) ** -8)
    first = 150 + 2 * orders(at)
    for digits in (first, 2 * first, 4 * first):
        value, again = (evaluate(pair, at, d) for d in (digits, digits + 40))
        if value is None or again is None:
            return None
        with mp.workdps(digits):
            if mp.isinf(value) or abs(value - again) < mpf(10) ** (ROOM - digits) * again:
                return with_gradient(pair, at, digits, STEP)
    return None


def orders(at: list[float]) -> int:
    """How many orders of magnitude the parameters span, and 1 with them."""
    sizes = [math.log10(abs(x)) for x in at if x] + [0.0]
    return math.ceil(max(sizes) - min(sizes))


def equal(pair: Pair, at: list[float]) -> bool:
    split = len(pair.p.parameters)
    return pair.p is pair.q and at[:split] == at[split:]


def with_gradient(pair: Pair, at: list[float], digits: int, step: Number) -> tuple[float, list[float]] | None:
    with mp.workdps(digits):
        parameters = [mpf(x) for x in at]
        value = evaluate(pair, parameters, digits)
        if value is not None and mp.isinf(value):
            return math.inf, [math.nan] * len(at)
        if value is None or not 0 <= value < 1e300:
            return None
        gradient: list[float] = []
        for i, unit in enumerate(pair.steps(at)):
            h = step * mpf(unit)
            sides = []
            for sign in (1, -1):
                moved = list(parameters)
                moved[i] += sign * h
                sides.append(evaluate(pair, moved, digits) if i not in pair.fixed(at) else mp.nan)
            if any(side is None for side in sides):
                return None
            derivative = (
                (sides[0] - sides[1]) / (2 * h) if all(mp.isfinite(side) for side in sides) else mp.nan
            )
            gradient.append(float(derivative))
        return float(value), gradient


def differs(pair: Pair, at: list[float], value: float, gradient: np.ndarray) -> str | None:
    """What comes out otherwise when a truth is computed again; None if nothing does."""
    found = truth(pair, at)
    if found is None:
        return "no truth"
    if not math.isclose(found[0], value, rel_tol=1e-13):
        return f"value {found[0]!r} instead of {value!r}"
    noise = NOISE * value / np.abs(pair.steps(at)) if math.isfinite(value) else 0.0
    allowed = (1e-7 if pair.integral else 1e-12) * np.abs(gradient) + noise
    same = np.isnan(found[1]) & np.isnan(gradient)
    if not (same | (np.array(found[1]) == gradient) | (np.abs(found[1] - gradient) <= allowed)).all():
        return f"gradient {found[1]} instead of {gradient.tolist()}"
    return None


def check(truths: dict[str, Truth]) -> int:
    """Compute all truths again; print those that differ and return how many."""
    count = 0
    for name, (parameters, values, gradients) in truths.items():
        for at, value, gradient in zip(parameters.tolist(), values.tolist(), gradients, strict=True):
            found = differs(PAIRS[name], at, value, gradient)
            if found is not None:
                count += 1
                print(f"  {name} {at}: {found}", flush=True)
    return count


def drawn(pair: Pair, rng: random.Random, index: int) -> tuple[list[float], tuple[float, list[float]] | None]:
    """Parameters that torch takes, and their truth, None where there is none."""
    at = draw(pair, rng, index)
    if not pair.valid(at):
        return at, None
    with contextlib.suppress(*FAILURES), limit(5 * SECONDS if pair.integral else SECONDS):
        return at, truth(pair, at)
    return at, None


def cases(name: str, pair: Pair) -> Truth:
    """Parameters, values and gradients of a pair's draws."""
    rng = random.Random(name)  # noqa: S311
    parameters, values, gradients = [], [], []
    for index in range(pair.draws):
        for _ in range(3 if pair.integral else 10):
            at, found = drawn(pair, rng, index)
            if found is not None:
                parameters.append(at)
                values.append(found[0])
                gradients.append(found[1])
                break
    if len(values) < pair.draws:
        print(f"  {name}: {pair.draws - len(values)} of {pair.draws} draws without a truth", flush=True)
    width = len(pair.p.parameters) + len(pair.q.parameters)
    return np.array(parameters).reshape(-1, width), np.array(values), np.array(gradients).reshape(-1, width)


def load() -> dict[str, Truth]:
    """All truths by the name of their pair."""
    with np.load(DATA) as file:
        return {
            name: (file[f"{name}/parameters"], file[f"{name}/value"], file[f"{name}/gradient"])
            for name in dict.fromkeys(key.rsplit("/", 1)[0] for key in file.files)
        }


def save(truths: dict[str, Truth]) -> None:
    arrays = {}
    for name in sorted(truths):
        for part, array in zip(("parameters", "value", "gradient"), truths[name], strict=True):
            arrays[f"{name}/{part}"] = array
    DATA.parent.mkdir(exist_ok=True)
    unfinished = DATA.with_name("unfinished.npz")
    np.savez_compressed(unfinished, **arrays)
    unfinished.replace(DATA)


def main(words: list[str]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # exp of a huge number may want all there is
    truths = load() if words and DATA.exists() else {}
    truths = {name: known for name, known in truths.items() if name in PAIRS}
    if words == ["--check"]:
        known = load()
        print(f"{check(known)} of {sum(len(values) for _, values, _ in known.values())} truths differ")
        return
    started = saved = time.perf_counter()
    for name, pair in sorted(PAIRS.items(), key=lambda item: item[1].integral):
        if words and not any(word in name for word in words):
            continue
        begun = time.perf_counter()
        truths[name] = cases(name, pair)
        spent = time.perf_counter() - begun
        if spent > 8:
            print(f"  {name}: {len(truths[name][1])} draws in {spent:.0f} s", flush=True)
        if time.perf_counter() - saved > 60:
            save(truths)
            saved = time.perf_counter()
    save(truths)
    draws = sum(len(values) for _, values, _ in truths.values())
    print(
        f"{len(truths)} pairs, {draws} draws, {DATA.stat().st_size / 1e6:.2f} MB, {time.perf_counter() - started:.0f} s"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
