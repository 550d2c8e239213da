"""Size and power of `two_sample_test`, and of seven other tests.

python benchmarks/bench_two_sample.py [--repetitions 400]

Every test uses the same draws, at the level 0.05. Tests without a known null distribution use 199 permutations. Cases
with P = Q get twice the repetitions, and those of more than 1000 draws half of them, but at least 200.

`--tests ours` measures only ours again: a row of the output keeps the other tests' results if it has as many
repetitions. So does `--only 2-D` with the other cases. `--before FILE` adds the power of an earlier version, the FILE
that was written by `--tests ours --output FILE` with that version.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.stats
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist, squareform
from timing import RESULTS, machine

from kullback import Samples
from kullback.estimators.draws import Draws as Checked
from kullback.estimators.two_sample_test import permutation_test

SCHEMA = "kullback.two_sample/1"
LEVEL, SHUFFLES = 0.05, 199
Draws = np.ndarray
Draw = Callable[[np.random.Generator, int], Draws]


class Case(NamedTuple):
    name: str
    p: Draw
    q: Draw
    sizes: tuple[int, int]
    equal: bool = False


def normal(shift: float = 0.0, scale: float = 1.0, d: int = 1) -> Draw:
    return lambda rng, n: shift + scale * rng.standard_normal((n, d))


def correlated(rho: float, d: int = 2) -> Draw:
    root = np.linalg.cholesky((1 - rho) * np.eye(d) + rho)
    return lambda rng, n: rng.standard_normal((n, d)) @ root.T


def contaminated(d: int, share: float, scale: float) -> Draw:
    return lambda rng, n: rng.standard_normal((n, d)) * np.where(rng.random((n, 1)) < share, scale, 1.0)


def zeros(share: float, d: int) -> Draw:
    return lambda rng, n: rng.standard_normal((n, d)) * (rng.random((n, 1)) >= share)


def rounded(d: int, shift: float = 0.0) -> Draw:
    return lambda rng, n: first_shifted(d, shift)(rng, n).round()


def yes_or_no(d: int) -> Draw:
    return lambda rng, n: (rng.random((n, d)) < 0.5).astype(float)


def bimodal(rng: np.random.Generator, n: int) -> Draws:
    return 0.6 * rng.standard_normal((n, 1)) + 0.8 * rng.choice([-1, 1], (n, 1))


def first_shifted(d: int, by: float) -> Draw:
    return lambda rng, n: rng.standard_normal((n, d)) + by * np.eye(d)[0]


def heavy(d: int, by: float = 0.0) -> Draw:
    """Student's t with 2 degrees of freedom, the first component shifted."""
    return lambda rng, n: rng.standard_t(2, (n, d)) + by * np.eye(d)[0]


def exponential(scale: float) -> Draw:
    return lambda rng, n: rng.exponential(scale, (n, 1))


def poisson(mean: float) -> Draw:
    return lambda rng, n: rng.poisson(mean, (n, 1)).astype(float)


def rounded_normal(mean: float) -> Draw:
    """A normal distribution of a Poisson's mean and variance, rounded to whole numbers."""
    return lambda rng, n: np.round(mean + mean**0.5 * rng.standard_normal((n, 1)))


def comb(rng: np.random.Generator, n: int) -> Draws:
    """Draws of 1 + 0.9 cos(40 pi x) on the unit interval."""
    x = rng.random(8 * n)
    return x[2 * rng.random(8 * n) < 1 + 0.9 * np.cos(40 * np.pi * x)][:n, None]


def ring(rng: np.random.Generator, n: int) -> Draws:
    angle = 2 * np.pi * rng.random(n)
    return 1.4 * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.35 * rng.standard_normal((n, 2))


def skewed(shape: float) -> Draw:
    """A gamma distribution with mean 0 and variance 1."""
    return lambda rng, n: (rng.gamma(shape, size=(n, 1)) - shape) / shape**0.5


def zeros_and_lognormal(share: float = 0.4, mean: float = 0.0) -> Draw:
    return lambda rng, n: rng.lognormal(mean, 1, (n, 1)) * (rng.random((n, 1)) >= share)


def copula(dof: float | None, rho: float = 0.5, d: int = 2) -> Draw:
    """Standard normal margins with the copula of Student's t, or of a normal distribution if `dof` is None."""

    def draws(rng: np.random.Generator, n: int) -> Draws:
        z = correlated(rho, d)(rng, n)
        if dof is None:
            return z
        t = z / np.sqrt(rng.chisquare(dof, (n, 1)) / dof)
        return scipy.stats.norm.ppf(scipy.stats.t.cdf(t, dof))

    return draws


def spiral(turned: float, noise: float) -> Draw:
    """An arm of a spiral of four turns, turned by an angle, with normal errors."""

    def draws(rng: np.random.Generator, n: int) -> Draws:
        angle = 8 * np.pi * np.sqrt(rng.random(n))
        arm = angle[:, None] * np.stack([np.cos(angle + turned), np.sin(angle + turned)], 1)
        return arm / (2 * np.pi) + noise * rng.standard_normal((n, 2))

    return draws


SMALL, UNEVEN = (100, 100), (100, 2000)
CASES = [
    Case("1-D, equal", normal(), normal(), SMALL, equal=True),
    Case("1-D, rounded, equal", rounded(1), rounded(1), SMALL, equal=True),
    Case("1-D, zeros and lognormal, equal", zeros_and_lognormal(), zeros_and_lognormal(), SMALL, equal=True),
    Case("1-D, Poisson, equal", poisson(5), poisson(5), (500, 500), equal=True),
    Case("2-D, 60 % zero rows, equal", zeros(0.6, 2), zeros(0.6, 2), (200, 200), equal=True),
    Case("2-D, 80 % zero rows, equal", zeros(0.8, 2), zeros(0.8, 2), (200, 200), equal=True),
    Case("2-D, a spiral, equal", spiral(0, 0.1), spiral(0, 0.1), SMALL, equal=True),
    Case("2-D, rounded, equal", rounded(2), rounded(2), (200, 200), equal=True),
    Case("3-D, rounded, equal", rounded(3), rounded(3), SMALL, equal=True),
    Case("three yes or no, equal", yes_or_no(3), yes_or_no(3), (200, 200), equal=True),
    Case("5-D, equal", normal(d=5), normal(d=5), SMALL, equal=True),
    Case("5-D, 100 and 2000, equal", normal(d=5), normal(d=5), UNEVEN, equal=True),
    Case("20-D, equal", normal(d=20), normal(d=20), SMALL, equal=True),
    Case("1-D, shift 0.3", normal(), normal(0.3), SMALL),
    Case("1-D, shift 0.3, 50 and 1000", normal(), normal(0.3), (50, 1000)),
    Case("1-D, rounded, shift 0.3", rounded(1), rounded(1, 0.3), SMALL),
    Case("1-D, Student's t with 2, shift 0.6", heavy(1), heavy(1, 0.6), SMALL),
    Case("1-D, exponential, scale 1.4", exponential(1), exponential(1.4), SMALL),
    Case("1-D, scale 1.3", normal(), normal(0, 1.3), SMALL),
    Case("1-D, normal and Student's t with 3", normal(), lambda r, n: r.standard_t(3, (n, 1)), (300, 300)),
    Case("1-D, normal and two modes", normal(), bimodal, SMALL),
    Case("1-D, Poisson and a rounded normal", poisson(5), rounded_normal(5), (500, 500)),
    Case("1-D, uniform and a comb", lambda rng, n: rng.random((n, 1)), comb, (500, 500)),
    Case("1-D, normal and skewed", normal(), skewed(6), (200, 200)),
    Case(
        "1-D, zeros and lognormal, two means",
        zeros_and_lognormal(0.4),
        zeros_and_lognormal(0.3, 0.25),
        (120, 120),
    ),
    Case(
        "1-D, zeros and lognormal, two shares",
        zeros_and_lognormal(0.5),
        zeros_and_lognormal(0.38),
        (150, 150),
    ),
    Case("2-D, copulas of normal and of t with 2", copula(None), copula(2), (200, 200)),
    Case("2-D, copulas of normal and of t with 4", copula(None), copula(4), (300, 300)),
    Case("5-D, copulas of normal and of t with 4", copula(None, d=5), copula(4, d=5), (100, 100)),
    Case("2-D, two arms of a spiral", spiral(0, 0.1), spiral(np.pi, 0.1), SMALL),
    Case("2-D, two arms of a spiral, wider", spiral(0, 0.2), spiral(np.pi, 0.2), (200, 200)),
    Case("2-D, shift 0.4 of one component", normal(d=2), first_shifted(2, 0.4), SMALL),
    Case("2-D, correlation 0.5", normal(d=2), correlated(0.5), SMALL),
    Case("2-D, normal and a ring", normal(d=2), ring, SMALL),
    Case("3-D, rounded, shift 0.4 of one", rounded(3), rounded(3, 0.4), SMALL),
    Case("5-D, shift 0.5 of one component", normal(d=5), first_shifted(5, 0.5), SMALL),
    Case("5-D, shift 0.25 of each", normal(d=5), normal(0.25, d=5), SMALL),
    Case("5-D, Student's t with 2, shift 0.8 of one", heavy(5), heavy(5, 0.8), SMALL),
    Case("5-D, shift 0.4 of one, 100 and 2000", normal(d=5), first_shifted(5, 0.4), UNEVEN),
    Case("5-D, scale 1.2", normal(d=5), normal(0, 1.2, 5), SMALL),
    Case("5-D, a fifth three times as wide", normal(d=5), contaminated(5, 0.2, 3.0), SMALL),
    Case("10-D, correlation 0.2", normal(d=10), correlated(0.2, 10), SMALL),
    Case("20-D, shift 0.6 of one component", normal(d=20), first_shifted(20, 0.6), SMALL),
    Case("20-D, shift 0.15 of each", normal(d=20), normal(0.15, d=20), SMALL),
]


def ours(x: Draws, y: Draws, rng: np.random.Generator) -> float:
    return permutation_test(Checked.of(Samples(x)), Checked.of(Samples(y)), SHUFFLES, rng)[0]


def kolmogorov_smirnov(x: Draws, y: Draws, _: np.random.Generator) -> float:
    return float(scipy.stats.ks_2samp(x[:, 0], y[:, 0]).pvalue)


def chi_squared(x: Draws, y: Draws, rng: np.random.Generator) -> float:
    """The chi-squared test of ten equally probable bins in one dimension, and of the signs about the medians in two and
    three."""
    both = np.concatenate([x, y])
    if x.shape[1] == 1:
        cuts = np.unique(np.quantile(both, np.arange(1, 10) / 10))
        codes = np.searchsorted(cuts, both[:, 0])
    else:
        codes = (both > np.median(both, 0)) @ 2 ** np.arange(x.shape[1])
    table = np.stack(
        [np.bincount(side, minlength=codes.max() + 1) for side in (codes[: len(x)], codes[len(x) :])]
    )
    table = table[:, table.sum(0) > 0]
    return 1.0 if table.shape[1] < 2 else float(scipy.stats.chi2_contingency(table).pvalue)


def by_similarity(
    similarity: Callable[[Draws], Draws],
) -> Callable[[Draws, Draws, np.random.Generator], float]:
    def test(x: Draws, y: Draws, rng: np.random.Generator) -> float:
        matrix = similarity(np.concatenate([x, y])).astype(np.float32)
        labels = np.r_[np.full(len(x), 1 / len(x)), np.full(len(y), -1 / len(y))].astype(np.float32)
        rows = np.stack([labels, *(rng.permutation(labels) for _ in range(SHUFFLES))], 1)
        found = np.einsum("ij,ij->j", rows, matrix @ rows)
        return float((found >= found[0] - 1e-7 * abs(found[0])).mean())

    return test


def gaussian_kernel(points: Draws) -> Draws:
    distances = squareform(pdist(points))
    median = np.median(distances[np.triu_indices(len(points), 1)])
    return np.exp(-np.square(distances) / (2 * max(median, 1e-9) ** 2))


def anderson_darling(x: Draws, y: Draws, rng: np.random.Generator) -> float:
    shuffles = scipy.stats.PermutationMethod(n_resamples=SHUFFLES, rng=rng)
    samples = [x[:, 0], y[:, 0]]
    return float(scipy.stats.anderson_ksamp(samples, variant="midrank", method=shuffles).pvalue)


def kernels(x: Draws, y: Draws, rng: np.random.Generator) -> float:
    """Gaussian kernels of nine widths: the smallest p-value is compared with the shuffles' (Schrab et al., 2023)."""
    distances = squareform(pdist(np.concatenate([x, y]))).astype(np.float32)
    median = max(float(np.median(distances[np.triu_indices(len(distances), 1)])), 1e-9)
    labels = np.r_[np.full(len(x), 1 / len(x)), np.full(len(y), -1 / len(y))].astype(np.float32)
    rows = np.stack([labels, *(rng.permutation(labels) for _ in range(SHUFFLES))], 1)
    exponents = -np.square(distances / np.float32(median)) / 2
    values = []
    for width in 2.0 ** np.arange(-5, 4):
        kernel = np.exp(
            np.maximum(exponents / np.float32(width**2), -60)
        )  # products of denormal numbers are slow
        values.append(np.einsum("ij,ij->j", rows, kernel @ rows))
    ranks = scipy.stats.rankdata(-np.round(values, 9), method="max", axis=1).min(0)
    return float((ranks <= ranks[0]).mean())


def neighbors(x: Draws, y: Draws, rng: np.random.Generator) -> float:
    """The number of draws' five nearest neighbors that are of the same sample (Schilling, 1986)."""
    points = rng.permutation(both := np.arange(len(x) + len(y)))
    draws = np.concatenate([x, y])[points]
    near = cKDTree(draws).query(draws, 6)[1][:, 1:]
    rows = np.stack([points < len(x), *(rng.permutation(both) < len(x) for _ in range(SHUFFLES))])
    same = (rows[:, near] == rows[:, :, None]).sum((1, 2))
    return float((same >= same[0]).mean())


TESTS = {
    "ours": ours,
    "Kolmogorov-Smirnov": kolmogorov_smirnov,
    "Anderson-Darling": anderson_darling,
    "energy": by_similarity(lambda points: -squareform(pdist(points))),
    "MMD": by_similarity(gaussian_kernel),
    "MMDAgg": kernels,
    "neighbors": neighbors,
    "χ²": chi_squared,
}


def applies(test: str, case: Case) -> bool:
    d = case.p(np.random.default_rng(0), 1).shape[1]
    limits = {
        "Kolmogorov-Smirnov": d == 1,
        "Anderson-Darling": d == 1,
        "MMDAgg": sum(case.sizes) <= 1000,  # its nine matrices take seconds for more draws
        "neighbors": d > 1,
        "χ²": d <= 3,
    }
    return limits.get(test, True)


def repetitions(case: Case, usual: int) -> int:
    number = 2 * usual if case.equal else usual
    return max(number // 2, 200) if sum(case.sizes) > 1000 else number


def measured(case: Case, repetitions: int, tests: Sequence[str]) -> dict[str, Any]:
    applied = [test for test in TESTS if applies(test, case)]
    rejected = {test: 0 for test in applied if test in tests}
    for seed in range(repetitions):
        streams = [np.random.default_rng([seed, i]) for i in range(2 + len(applied))]
        x, y = case.p(streams[0], case.sizes[0]), case.q(streams[1], case.sizes[1])
        for test, rng in zip(applied, streams[2:], strict=True):
            if test in tests:
                rejected[test] += TESTS[test](x, y, rng) <= LEVEL
    shares = {test: count / repetitions for test, count in rejected.items()}
    return {
        "case": case.name,
        "sizes": case.sizes,
        "equal": case.equal,
        "repetitions": repetitions,
        "rejects": shares,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--only", nargs="*", help="cases whose names have these words")
    parser.add_argument("--tests", nargs="*", default=list(TESTS), help="the tests; all by default")
    parser.add_argument("--output", type=Path, default=RESULTS / "two_sample.json")
    parser.add_argument("--before", type=Path, help="the output of an earlier version")
    arguments = parser.parse_args()
    before, old = rows_of(arguments.before), rows_of(arguments.output)
    rows = []
    for case in CASES:
        key = case.name, repetitions(case, arguments.repetitions)
        if not arguments.only or any(word in case.name for word in arguments.only):
            row = measured(case, key[1], arguments.tests)
            row["rejects"] = old.get(key, {}).get("rejects", {}) | row["rejects"]
            row["rejects"] = {test: row["rejects"][test] for test in TESTS if test in row["rejects"]}
            if key in before:
                row["before"] = before[key]["rejects"]["ours"]
            print(json.dumps(row, ensure_ascii=False), flush=True)
            rows.append(row)
        else:
            rows += [row for (name, _), row in old.items() if name == case.name]
    document = {"schema": SCHEMA, "machine": machine(), "level": LEVEL, "rows": rows}
    arguments.output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def rows_of(path: Path | None) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the rows of results, by case and number of repetitions."""
    rows = json.loads(path.read_text())["rows"] if path is not None and path.exists() else []
    return {(row["case"], row["repetitions"]): row for row in rows}


if __name__ == "__main__":
    main()
