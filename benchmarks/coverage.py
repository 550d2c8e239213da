"""Coverage of 95 % intervals on hard pairs, which bench_samples.py does not have.

python benchmarks/coverage.py [--repetitions 200] [--only WORDS] [--missing]

With --missing, only the cases that the results file lacks are run.

A case passes if its interval covers in at least 93 % of the repetitions, apart from binomial error. An interval with
an infinite upper limit covers if its lower limit is below the truth. A refusal, or an estimate without an interval, is
not counted, and its reason is listed.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import itertools
import json
import math
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import scipy.stats as st
import torch
from scipy.ndimage import gaussian_filter
from scipy.special import digamma, gammaln
from torch.distributions import Dirichlet, Distribution, Laplace, Normal, StudentT, Uniform

sys.path.insert(0, str(Path(__file__).parents[1]))  # the oracles of the tests

from tests.oracles.sample_cases import CASES
from timing import RESULTS, machine

from kullback import Estimate, Probs, Samples, compare_tables, divergence, estimate, kl_estimate
from kullback.errors import KullbackError
from kullback.estimators import bias_corrected, log_ratio

SCHEMA = "kullback.coverage/1"
LEAST = 0.93
Draw = Callable[[np.random.Generator, int], Any]


class Case(NamedTuple):
    """A name, KL in nats, how to draw P and Q (or Q itself), how many, and a share of the repetitions if slow."""

    name: str
    truth: float
    p: Draw
    q: Draw | Distribution
    n: int
    share: float = 1.0
    estimate: Callable[[Samples, Any, torch.Generator], Estimate] | None = None


def of(distribution: Any) -> Draw:
    return lambda rng, n: distribution.rvs(n, random_state=rng)


def by_quadrature(p: Any, q: Any) -> float:
    low, high = p.ppf(1e-13), p.isf(1e-13)
    cuts = np.unique(np.concatenate([np.linspace(low, high, 41), p.ppf(np.linspace(0.001, 0.999, 81))]))
    nodes, weights = np.polynomial.legendre.leggauss(40)
    middle, half = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts) / 2
    x = middle[:, None] + half[:, None] * nodes
    return float((half[:, None] * weights * p.pdf(x) * (p.logpdf(x) - q.logpdf(x))).sum())


def line(name: str, p: Any, q: Any, *sizes: int, truth: float | None = None) -> list[Case]:
    value = by_quadrature(p, q) if truth is None else truth
    return [Case(name, value, of(p), of(q), n) for n in sizes]


def categories(name: str, p: Any, q: Any, *sizes: int) -> list[Case]:
    p, q = (np.asarray(x, float) / np.sum(x) for x in (p, q))
    with np.errstate(divide="ignore"):
        truth = float(np.sum(p[p > 0] * (np.log(p[p > 0]) - np.log(q[p > 0]))))

    def draw(probabilities: np.ndarray) -> Draw:
        return lambda rng, n: rng.choice(len(probabilities), n, p=probabilities)

    return [Case(name, truth, draw(p), draw(q), n) for n in sizes]


def of_kinds(name: str, p: Any, q: Any, n: int, *kinds: str) -> list[Case]:
    """Return a case for each kind, of `Counts` as of rows: the interval is the same."""
    p, q = (np.asarray(x, float) / np.sum(x) for x in (p, q))

    def estimate(kind: str) -> Callable[[Samples, Any, torch.Generator], Estimate]:
        return lambda x, y, _: bias_corrected(x, y, kind)

    def draw(probabilities: np.ndarray) -> Draw:
        return lambda rng, n: rng.choice(len(probabilities), n, p=probabilities)

    sides = [Probs(torch.from_numpy(x)) for x in (p, q)]
    return [
        Case(f"{kind}: {name}", float(divergence(*sides, kind)), draw(p), draw(q), n, 1.0, estimate(kind))
        for kind in kinds
    ]


def gaussian(mean: Any, covariance: Any) -> Draw:
    root = np.linalg.cholesky(np.asarray(covariance, float))
    return lambda rng, n: np.asarray(mean, float) + rng.standard_normal((n, len(root))) @ root.T


def equal_correlation(d: int, rho: float) -> np.ndarray:
    return np.full((d, d), rho) + (1 - rho) * np.eye(d)


def gaussians(name: str, d: int, first: Any, mean: Any, second: Any, n: int, share: float = 0.3) -> Case:
    inverse = np.linalg.inv(second)
    mean = np.asarray(mean, float)
    determinants = np.linalg.slogdet(second)[1] - np.linalg.slogdet(first)[1]
    truth = float(np.trace(inverse @ first) + mean @ inverse @ mean - d + determinants) / 2
    return Case(name, truth, gaussian(np.zeros(d), first), gaussian(mean, second), n, share)


def dirichlet_truth(a: np.ndarray, b: np.ndarray) -> float:
    constants = gammaln(a.sum()) - gammaln(b.sum()) - (gammaln(a) - gammaln(b)).sum()
    return float(constants + ((a - b) * (digamma(a) - digamma(a.sum()))).sum())


def with_total(shift: float, dtype: Any) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        parts = rng.standard_normal((n, 2)) + shift
        return np.column_stack([parts, parts.sum(1)]).astype(dtype)

    return draw


def clustered(shift: float, clusters: int, d: int = 1) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> Samples:
        group = np.repeat(np.arange(clusters), n // clusters)
        x = (rng.standard_normal((clusters, d))[group] + rng.standard_normal((n, d))) / math.sqrt(2) + shift
        return Samples(x, cluster=group)

    return draw


def unequal_clusters(spread: float, correlation: float, *groups: tuple[int, int]) -> Draw:
    """Draws of N(0, 1) in clusters; each of `groups` is a number of clusters and their size.

    The weights are gamma distributed and unrelated to the draws; a `spread` of 0 means equal weights, otherwise it is
    the square of their coefficient of variation.
    """
    cluster = np.repeat(
        np.arange(sum(number for number, _ in groups)),
        np.concatenate([np.full(number, size) for number, size in groups]),
    )

    def draw(rng: np.random.Generator, n: int) -> Samples:
        own = rng.standard_normal(cluster[-1] + 1)[cluster]
        x = math.sqrt(correlation) * own + math.sqrt(1 - correlation) * rng.standard_normal(n)
        weights = rng.gamma(1 / spread, size=n) + 1e-12 if spread else None
        return Samples(x, cluster=None if len(groups) == 1 else cluster, weights=weights)

    return draw


def clustered_categories(probabilities: Any, clusters: int) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> Samples:
        own = rng.dirichlet(5 * np.asarray(probabilities), clusters)
        x = np.concatenate([rng.choice(len(probabilities), n // clusters, p=each) for each in own])
        return Samples(x, cluster=np.repeat(np.arange(clusters), n // clusters))

    return draw


def autoregression(correlation: float, shift: float = 0.0) -> Draw:
    """Rows that are each correlated with the one before; normal, with variance 1."""

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        x = rng.standard_normal(n) * math.sqrt(1 - correlation**2)
        x[0] = rng.standard_normal()
        for t in range(1, n):
            x[t] += correlation * x[t - 1]
        return x + shift

    return draw


def unnamed_clusters(shift: float, clusters: int) -> Draw:
    """Rows of clusters, one cluster after the other; the estimator does not get the clusters."""

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        own = np.repeat(rng.standard_normal(clusters), n // clusters)
        return (own + rng.standard_normal(len(own))) / math.sqrt(2) + shift

    return draw


def three_times(shift: float) -> Draw:
    return lambda rng, n: rng.permutation(np.repeat(rng.standard_normal(n // 3) + shift, 3))


def near_copies(shift: float) -> Draw:
    """Rows that each come three times, with a relative error of 1e-12."""

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.permutation(np.repeat(rng.standard_normal(n // 3) + shift, 3)) * (
            1 + 1e-12 * rng.standard_normal(n // 3 * 3)
        )

    return draw


def grid(side: int, sd: float) -> Draw:
    """A smooth field on a square grid, in the order of its rows."""
    return lambda rng, _: gaussian_filter(rng.standard_normal((side, side)), sd, mode="wrap").ravel()


def panel(units: int, times: int, missing: float, spread: float = 1.0) -> Draw:
    """Units at each time, sorted by time, with rows missing at random.

    The variance of units is `spread` squared times the variance within units.
    """

    def draw(rng: np.random.Generator, _: int) -> np.ndarray:
        x = spread * rng.standard_normal((1, units)) + rng.standard_normal((times, units))
        return x.ravel()[rng.random(units * times) >= missing] / math.sqrt(1 + spread**2)

    return draw


def panel_of_categories(units: int, times: int, missing: float) -> Draw:
    """Units at each time, sorted by time, with rows missing at random.

    From one time to the next, a unit keeps its category with probability 0.9, or draws one of 4.
    """

    def draw(rng: np.random.Generator, _: int) -> np.ndarray:
        x = rng.integers(0, 4, (times, units))
        for before, now in pairwise(x):
            np.copyto(now, before, where=rng.random(units) < 0.9)
        return x.ravel()[rng.random(units * times) >= missing]

    return draw


def with_atoms(shares: np.ndarray, shift: float, part: float = 0.5) -> Draw:
    """Draws of N(shift, 1), and a part of them at atoms with these shares."""
    atoms = np.random.default_rng(5).standard_normal(len(shares))

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        at = atoms[rng.choice(len(atoms), n, p=shares / shares.sum())]
        return np.where(rng.random(n) < part, at, shift + rng.standard_normal(n))

    return draw


def atoms(name: str, number: int, n: int) -> list[Case]:
    """Half of the draws at atoms, with shares from 1 to 3 of P and reversed ones of Q, beside normal densities."""
    p = np.linspace(1, 3, number)
    p = p / p.sum()
    truth = 0.5 * float((p * np.log(p / p[::-1])).sum()) + 0.5 * 0.3**2 / 2
    return [
        Case(f"{name}, P = Q", 0.0, with_atoms(p, 0.0), with_atoms(p, 0.0), n),
        Case(name, truth, with_atoms(p, 0.0), with_atoms(p[::-1], 0.3), n),
    ]


def heaped(share: float, sd: float = 15.0) -> Draw:
    """Draws of N(120, sd²), rounded to 1, and a share of them to 5."""

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        x = 120 + sd * rng.standard_normal(n)
        return np.where(rng.random(n) < share, np.round(x / 5) * 5, np.round(x))

    return draw


def heaped_truth(of_p: float, of_q: float, sd: float = 15.0) -> float:
    k = np.arange(-12 * math.ceil(sd), 12 * math.ceil(sd) + 1)
    fine, coarse = (st.norm.cdf((k + step / 2) / sd) - st.norm.cdf((k - step / 2) / sd) for step in (1, 5))
    p, q = ((1 - share) * fine + share * coarse * (k % 5 == 0) for share in (of_p, of_q))
    seen = (p > 1e-300) & (q > 1e-300)
    return float((p[seen] * np.log(p[seen] / q[seen])).sum())


SCALES = (0.5, 1.5)


def common_scale(d: int, n: int, share: float = 1.0) -> Case:
    """Normal draws with one of two scales for all components, against a scale for each: the margins are equal."""
    margin = [st.norm(0, scale) for scale in SCALES]

    def log_of_margin(x: float) -> float:
        return float(np.logaddexp(*(one.logpdf(x) for one in margin))) - math.log(2)

    def log_p(radius: float) -> float:
        logs = [-(radius**2) / 2 / scale**2 - d * math.log(scale) for scale in SCALES]
        return float(np.logaddexp(*logs)) - math.log(2) - d / 2 * math.log(2 * math.pi)

    truth = sum(
        st.chi(d).expect(lambda r, scale=scale: log_p(scale * r)) - d * one.expect(log_of_margin)
        for scale, one in zip(SCALES, margin, strict=True)
    )
    return Case(
        f"{d}-D, one scale ‖ a scale for each",
        float(truth) / 2,
        lambda rng, n: rng.standard_normal((n, d)) * rng.choice(SCALES, (n, 1)),
        lambda rng, n: rng.standard_normal((n, d)) * rng.choice(SCALES, (n, d)),
        n,
        share,
    )


def joint_student(d: int, n: int, share: float = 1.0) -> Case:
    """t(4) with one divisor for all components, against independent t(4)."""
    return Case(
        f"{d}-D, t(4) ‖ independent t(4)",
        d * float(st.t(4).entropy()) - float(st.multivariate_t(np.zeros(d), np.eye(d), df=4).entropy()),
        lambda rng, n: rng.standard_normal((n, d)) / np.sqrt(rng.chisquare(4, (n, 1)) / 4),
        student(4, d),
        n,
        share,
    )


def wave(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draws of 1 + cos(40 pi x) on the unit interval."""
    x = rng.random(8 * n)
    return x[2 * rng.random(8 * n) < 1 + np.cos(40 * np.pi * x)][:n]


def draws_of(name: str) -> tuple[Draw, Draw]:
    return CASES[name].draw_p, CASES[name].draw_q


def rounded_pair(sd: float) -> tuple[Draw, Draw]:
    """Draws of N(0, sd²) and of N(sd / 2, sd²), rounded to whole numbers."""
    return (
        lambda rng, n: np.round(sd * rng.standard_normal(n)),
        lambda rng, n: np.round(sd / 2 + sd * rng.standard_normal(n)),
    )


def rounded_truth(sd: float) -> float:
    k = np.arange(-12 * math.ceil(sd), 12 * math.ceil(sd) + 1)
    p, q = (st.norm.cdf(k + 0.5, mean, sd) - st.norm.cdf(k - 0.5, mean, sd) for mean in (0.0, sd / 2))
    seen = (p > 1e-300) & (q > 1e-300)
    return float((p[seen] * np.log(p[seen] / q[seen])).sum())


def rounded(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal(n).round(1)


def student(dof: float, d: int) -> Draw:
    return lambda rng, n: rng.standard_t(dof, (n, d))


def double(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def by_log_ratio(p: Distribution) -> Callable[[Samples, Any, torch.Generator], Estimate]:
    return lambda x, q, _: log_ratio(x, p.log_prob, q.log_prob)


def torch_draw(p: Distribution) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        with torch.random.fork_rng():
            torch.manual_seed(int(rng.integers(2**31)))
            return p.sample(torch.Size([n])).numpy()

    return draw


def weighted(rng: np.random.Generator, n: int) -> Samples:
    """Draws of N(0, 1.3²), weighted to represent N(0, 1)."""
    x = 1.3 * rng.standard_normal(n)
    return Samples(x, weights=np.exp(-(x**2) / 2 + x**2 / 3.38))


def of_tables(p: Samples, q: Samples, generator: torch.Generator) -> Estimate:
    """PSI of two tables with one column of categories."""
    del generator
    return psi_of(*([f"c{value:g}" for value in side.tensor[:, 0].tolist()] for side in (p, q)))


def of_numbers(p: Samples, q: Samples, generator: torch.Generator) -> Estimate:
    """PSI of two tables with one column of numbers."""
    del generator
    return psi_of(*(side.tensor[:, 0].numpy() for side in (p, q)))


def of_kind(kind: str) -> Callable[[Samples, Any, torch.Generator], Estimate]:
    return lambda p, q, _: estimate(p, q, kind=kind)


def bits(probability: float, parity: float = 0.0) -> Draw:
    """Ten bits, each 1 with this probability, independent but for the tilt of the parity of all."""
    every = np.array(list(itertools.product([0, 1], repeat=10)))
    p = np.prod(np.where(every == 1, probability, 1 - probability), 1) * np.exp(
        parity * (-1.0) ** every.sum(1)
    )
    return lambda rng, n: every[rng.choice(len(every), n, p=p / p.sum())]


def psi_of(*columns: Any) -> Estimate:
    """PSI of two tables with one column each."""
    found = compare_tables(*(pa.table({"x": column}) for column in columns)).columns[0]
    low, high = map(double, found.psi.interval or (0.0, math.inf))
    return Estimate(double(found.psi.value or 0.0), None, "PSI", (low, high))


def psi(name: str, p: Any, q: Any, n: int, m: int) -> Case:
    """A case of PSI in categories: n rows of P against m of Q."""
    p, q = (np.asarray(x, float) / np.sum(x) for x in (p, q))
    truth = float(((p - q) * np.log(p / q)).sum())

    def draw(probabilities: np.ndarray, rows: int) -> Draw:
        return lambda rng, _: rng.choice(len(probabilities), rows, p=probabilities).astype(float)

    return Case(name, truth, draw(p, n), draw(q, m), n, 1.0, of_tables)


T3 = StudentT(double(3.0), double(0.0), double(1.0))
STANDARD = Normal(double(0.0), double(1.0))
LAPLACE = Laplace(double(0.0), double(1.0))
NORMAL, THREE, FIVE = st.norm(), st.t(3), st.t(5)
K, FAR = np.arange(1, 100_001.0), np.arange(400.0)
FIRST, SECOND = np.array([2.0, 3, 4, 5]), np.full(4, 3.0)
SIX_CATEGORIES = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
ZIPF = np.arange(1, 101.0)
KINDS = ("js", "tv", "hellinger", "skew:0.1", "renyi:0.5", "chi2")
FIVE_CATEGORIES = np.array([0.4, 0.3, 0.15, 0.1, 0.05])


def cases() -> list[Case]:
    third = [0.5, 0.47, 0.03]
    rest = by_quadrature
    return [
        *line("t(3) ‖ N(0, 3)", THREE, st.norm(0, 3), 300, 1000, 5000, truth=rest(THREE, st.norm(0, 3))),
        *line("t(3) ‖ N(0, √3)", THREE, st.norm(0, 3**0.5), 1000, 5000, truth=0.194845),
        *line("t(3) ‖ N(0, 1)", THREE, NORMAL, 1000, 5000, truth=0.645540),
        *line("t(5) ‖ N(0, 1)", FIVE, NORMAL, 300, 1000, 5000),
        *line("N(0, 1) ‖ t(3)", NORMAL, THREE, 300, 1000),
        *line("Laplace ‖ normal of its variance", st.laplace(), st.norm(0, 2**0.5), 1000, 5000),
        *line("N(0, 4) ‖ N(0, 1)", st.norm(0, 2), NORMAL, 300, 5000),
        *line("lognormal, wider ‖ narrower", st.lognorm(1.5), st.lognorm(1.0), 300, 1000),
        *line("lognormal, narrower ‖ wider", st.lognorm(1.0), st.lognorm(1.5, scale=math.exp(0.5)), 1000),
        *line("gamma(2) ‖ gamma(3)", st.gamma(2), st.gamma(3), 300, 1000),
        *line("uniform ‖ beta(2, 2)", st.uniform(), st.beta(2, 2), 1000, truth=2 - math.log(6)),
        *line("logistic ‖ normal", st.logistic(0, 0.55), NORMAL, 1000),
        *line(
            "3 % of a uniform outside Q", st.uniform(), st.uniform(0, 0.97), 300, 1000, 5000, truth=math.inf
        ),
        *line("P = Q, uniform", st.uniform(), st.uniform(), 300, 1000, truth=0.0),
        *line("P = Q, exponential", st.expon(), st.expon(), 1000, truth=0.0),
        Case("P rounded to 0.1, Q continuous", math.inf, rounded, of(NORMAL), 1000),
        Case("both rounded to 0.1", 0.0, rounded, rounded, 1000),
        *categories("a category 0.03 ‖ 1e-9", third, [0.5, 0.5 - 1e-9, 1e-9], 200, 1000, 5000),
        *categories("1 % of categories outside Q", [0.5, 0.49, 0.01], [0.5, 0.5, 0], 500, 1000, 5000),
        *categories(
            "2 % in 50 categories outside Q", [0.98 / 50] * 50 + [0.02 / 50] * 50, [1] * 50 + [0] * 50, 1000
        ),
        *categories("zeta(2) ‖ zeta(2.5)", K**-2, K**-2.5, 1000, 5000),
        *categories("geometric 0.1 ‖ 0.2", 0.9**FAR, 0.8**FAR, 1000, 5000),
        *categories("geometric 0.2 ‖ 0.1", 0.8**FAR, 0.9**FAR, 1000),
        *categories("P = Q, a hundred categories", [1] * 100, [1] * 100, 1000),
        *categories("two categories", [0.3, 0.7], [0.5, 0.5], 50),
        *of_kinds("P = Q, a hundred", [1] * 100, [1] * 100, 1000, *KINDS),
        *of_kinds("five categories", FIVE_CATEGORIES, [1] * 5, 200, *KINDS),
        *of_kinds("Zipf(1.1) ‖ Zipf(0.8), a hundred", ZIPF**-1.1, ZIPF**-0.8, 1000, *KINDS),
        *of_kinds("3 % outside Q", [0.5, 0.47, 0.03], [0.5, 0.5, 0], 200, *KINDS),
        gaussians("2-D, correlation 0 ‖ 0.9", 2, np.eye(2), [0, 0], equal_correlation(2, 0.9), 1000, 0.25),
        gaussians("2-D, correlation 0.9 ‖ 0", 2, equal_correlation(2, 0.9), [0, 0], np.eye(2), 1000),
        gaussians("2-D, shift 1 in both", 2, np.eye(2), [1, 1], np.eye(2), 1000),
        gaussians("P = Q, 3-D", 3, np.eye(3), [0, 0, 0], np.eye(3), 1000),
        Case(
            "2-D, t(5) ‖ normal",
            2 * rest(FIVE, NORMAL),
            student(5, 2),
            gaussian([0, 0], np.eye(2)),
            1000,
            0.25,
        ),
        Case(
            "2-D, 3 % outside Q",
            math.inf,
            lambda rng, n: rng.random((n, 2)),
            lambda rng, n: rng.random((n, 2)) * [0.97, 1],
            1000,
            0.25,
        ),
        Case(
            "Dirichlet proportions, 4-D",
            dirichlet_truth(FIRST, SECOND),
            lambda rng, n: rng.dirichlet(FIRST, n),
            lambda rng, n: rng.dirichlet(SECOND, n),
            1000,
            0.3,
        ),
        *[
            Case(f"unit vectors, {d} components", CASES[f"sphere{d}"].truth, *draws_of(f"sphere{d}"), n, 0.3)
            for d, n in ((3, 1000), (6, 1000), (8, 1000), (10, 2000))
        ],
        Case("softmax rows, 5 classes", CASES["softmax5"].truth, *draws_of("softmax5"), 1000, 0.3),
        Case(
            "known Q: Dirichlet proportions",
            dirichlet_truth(FIRST, SECOND),
            lambda rng, n: rng.dirichlet(FIRST, n),
            Dirichlet(torch.from_numpy(SECOND)),
            1000,
            0.3,
        ),
        Case(
            "a sphere, Q all of space",
            math.inf,
            draws_of("sphere3")[0],
            gaussian([0, 0, 0], np.eye(3)),
            300,
            0.2,
        ),
        *[
            Case(f"rounded to 1, standard deviation {sd:g}", rounded_truth(sd), *rounded_pair(sd), 1000)
            for sd in (5.0, 15.0, 50.0)
        ],
        *[
            Case(f"{name} rounded to 5", heaped_truth(p, q), heaped(p), heaped(q), n)
            for name, p, q in (("60 ‖ 20 %", 0.6, 0.2), ("P = Q, 40 %", 0.4, 0.4))
            for n in (300, 1000)
        ],
        Case(
            "60 ‖ 20 % rounded to 5, standard deviation 80",
            heaped_truth(0.6, 0.2, 80.0),
            heaped(0.6, 80.0),
            heaped(0.2, 80.0),
            300,
        ),
        *[
            case
            for number in (1, 5, 30, 200)
            for case in atoms(f"half on atoms, {number} beside a density", number, 1500)
        ],
        *[
            Case(
                f"compare_tables: half on {number} atoms, P = Q",
                0.0,
                with_atoms(np.ones(number), 0.0),
                with_atoms(np.ones(number), 0.0),
                1500,
                1.0,
                of_numbers,
            )
            for number in (30, 200)
        ],
        Case("a total among three", 0.25, with_total(0, np.float64), with_total(0.5, np.float64), 1000, 0.3),
        Case("a total in float32", 0.25, with_total(0, np.float32), with_total(0.5, np.float32), 1000, 0.3),
        psi("PSI of six categories against 20,000 rows, P = Q", SIX_CATEGORIES, SIX_CATEGORIES, 100, 20_000),
        psi(
            "PSI of six categories against 20,000 rows",
            SIX_CATEGORIES,
            SIX_CATEGORIES * np.exp(0.5 * np.resize([1, -1], 6)),
            100,
            20_000,
        ),
        psi(
            "PSI of 40 rows of six categories against 40,000, P = Q",
            SIX_CATEGORIES,
            SIX_CATEGORIES,
            40,
            40_000,
        ),
        psi(
            "PSI of 40 rows of six categories against 40,000",
            SIX_CATEGORIES,
            SIX_CATEGORIES * np.exp(0.5 * np.resize([1, -1], 6)),
            40,
            40_000,
        ),
        psi("PSI of 40 rows of ten categories against 40,000, P = Q", np.ones(10), np.ones(10), 40, 40_000),
        psi(
            "PSI of 40 rows of ten categories against 40,000",
            np.ones(10),
            np.exp(0.5 * np.resize([1, -1], 10)),
            40,
            40_000,
        ),
        psi(
            "PSI of 40 rows of twenty categories against 40,000, P = Q", np.ones(20), np.ones(20), 40, 40_000
        ),
        *[
            Case(f"vectors of ten bits, {name}", truth, bits(0.5, parity), bits(of_q), n, share)
            for name, truth, parity, of_q, n, share in (
                ("P = Q", 0.0, 0.0, 0.5, 1000, 1.0),
                ("0.5 ‖ 0.4", -5 * math.log(0.96), 0.0, 0.4, 1000, 1.0),
                ("0.5 ‖ 0.4", -5 * math.log(0.96), 0.0, 0.4, 300, 0.3),
                (
                    "tilt 0.5 of the parity",
                    0.5 * math.tanh(0.5) - math.log(math.cosh(0.5)),
                    0.5,
                    0.5,
                    1000,
                    0.3,
                ),
            )
        ],
        *[
            Case(
                f"chi2 of numbers, shift {shift:g}",
                math.expm1(shift**2),
                of(st.norm(shift)),
                of(NORMAL),
                400,
                1.0,
                of_kind("chi2"),
            )
            for shift in (0.0, 0.5)
        ],
        Case("clusters, 20 of 50, P = Q", 0.0, clustered(0, 20), clustered(0, 20), 1000, 0.5),
        Case("clusters, 20 of 50, shift 0.5", 0.125, clustered(0, 20), clustered(0.5, 20), 1000),
        Case("clusters, 50 of 20, shift 0.5", 0.125, clustered(0, 50), clustered(0.5, 50), 1000),
        Case("clusters, 100 of 10, shift 0.5", 0.125, clustered(0, 100), clustered(0.5, 100), 1000),
        Case("clusters, 3-D, 20 of 50, P = Q", 0.0, clustered(0, 20, 3), clustered(0, 20, 3), 1000, 0.2),
        Case(
            "clusters of categories, P = Q",
            0.0,
            clustered_categories(FIVE_CATEGORIES, 20),
            clustered_categories(FIVE_CATEGORIES, 20),
            1000,
        ),
        *[
            Case(
                f"rows in order, autoregression {r:g}, {name}",
                shift**2 / 2,
                autoregression(r, shift),
                autoregression(r),
                n,
            )
            for r in (0.3, 0.6, 0.9, 0.95)
            for name, shift in (("P = Q", 0.0), ("shift 0.3", 0.3))
            for n in (1000, 3000)
        ],
        *[
            Case(f"{rows}, {name}", shift**2 / 2, draw(shift), draw(0.0), 1200)
            for rows, draw in (
                ("rows in order, 40 clusters not named", lambda shift: unnamed_clusters(shift, 40)),
                ("rows in order, each three times, shuffled", three_times),
                ("rows in order, each three times but for rounding errors, shuffled", near_copies),
            )
            for name, shift in (("P = Q", 0.0), ("shift 0.3", 0.3))
        ],
        *[
            Case(f"rows in order, {name}, P = Q", 0.0, draw, draw, n)
            for name, draw, n in (
                ("a grid of 40 × 40", grid(40, 2), 1600),
                ("a grid of 30 × 30", grid(30, 2), 900),
                ("a rough grid of 40 × 40", grid(40, 1), 1600),
                ("a panel by time, 15 % missing", panel(80, 12, 0.15), 816),
                ("a panel by time, correlation 0.8, 30 % missing", panel(40, 20, 0.3, 2.0), 560),
                ("a panel of categories by time", panel_of_categories(40, 15, 0.0), 600),
                ("a panel of categories by time, 15 % missing", panel_of_categories(40, 15, 0.15), 510),
                ("a panel of categories by time, 30 % missing", panel_of_categories(40, 15, 0.3), 420),
            )
        ],
        *[common_scale(d, 2000, share) for d, share in ((6, 1.0), (8, 1.0), (10, 0.3))],
        joint_student(4, 3000),
        joint_student(8, 3000, 0.3),
        *[
            Case(f"compare_tables: numbers {rows}, P = Q", 0.0, draw, draw, 2000, 1.0, of_numbers)
            for rows, draw in (
                ("in order, autoregression 0.6", autoregression(0.6)),
                ("in order, autoregression 0.9", autoregression(0.9)),
                ("in order, each three times, shuffled", three_times(0.0)),
                ("in order, each three times but for rounding errors, shuffled", near_copies(0.0)),
            )
        ],
        Case(
            "compare_tables: a panel of categories by time, 30 % missing, P = Q",
            *(0.0, panel_of_categories(40, 15, 0.3), panel_of_categories(40, 15, 0.3), 420, 1.0, of_tables),
        ),
        Case("known Q: waves ‖ uniform", 1 - math.log(2), wave, Uniform(double(0.0), double(1.0)), 1000, 0.3),
        Case("known Q: t(3) ‖ N(0, 1)", 0.645540, torch_draw(T3), STANDARD, 1000, 0.3),
        Case("known Q: N(0, 1) ‖ Laplace", 0.0721106, of(NORMAL), LAPLACE, 200, 0.5),
        Case("known Q: weighted draws", 0.349910, weighted, Normal(double(1.0), double(1.5)), 1000, 0.3),
        *[
            Case(f"known Q: {name}", 0.125, draw, Normal(double(0.5), double(1.0)), 450)
            for name, draw in (
                ("150 clusters of 1 and 10 of 30", unequal_clusters(0, 0, (150, 1), (10, 30))),
                ("150 clusters of 1 and 10 of 30, correlated", unequal_clusters(0, 0.5, (150, 1), (10, 30))),
                ("150 clusters of 2 and 50 of 3", unequal_clusters(0, 0, (150, 2), (50, 3))),
                ("weights gamma(0.2)", unequal_clusters(5, 0, (450, 1))),
                ("weights gamma(1)", unequal_clusters(1, 0, (450, 1))),
                ("unequal clusters and weights gamma(0.2)", unequal_clusters(5, 0, (150, 1), (10, 30))),
                ("unequal clusters and weights gamma(1)", unequal_clusters(1, 0, (150, 1), (10, 30))),
            )
        ],
        Case(
            "both known: N(0, 1) ‖ t(3)",
            rest(NORMAL, THREE),
            of(NORMAL),
            T3,
            100,
            1.0,
            by_log_ratio(STANDARD),
        ),
        *[
            Case("both known: t(3) ‖ N(0, 1)", 0.645540, torch_draw(T3), STANDARD, n, 1.0, by_log_ratio(T3))
            for n in (100, 1000)
        ],
        *[
            Case(
                "both known: N(0, 1) ‖ Laplace",
                0.0721106,
                of(NORMAL),
                LAPLACE,
                n,
                1.0,
                by_log_ratio(STANDARD),
            )
            for n in (30, 100, 1000)
        ],
    ]


def measured(case: Case, repetitions: int) -> dict[str, Any]:
    covered = opened = given = 0
    widths, values, reasons = [], [], Counter()
    started = time.perf_counter()
    count = max(20, round(case.share * repetitions))
    for seed in range(count):
        streams = np.random.SeedSequence([seed, case.n]).spawn(2)
        x = case.p(np.random.default_rng(streams[0]), case.n)
        p = x if isinstance(x, Samples) else Samples(x)
        q: Any = case.q
        if not isinstance(q, Distribution):
            y = q(np.random.default_rng(streams[1]), case.n)
            q = y if isinstance(y, Samples) else Samples(y)
        generator = torch.Generator().manual_seed(seed)
        try:
            found = (
                case.estimate(p, q, generator) if case.estimate else kl_estimate(p, q, generator=generator)
            )
        except KullbackError as refusal:
            reasons[str(refusal)] += 1
            continue
        values.append(float(found.value))
        if found.interval is None:
            reasons[next(note for note in found.notes if "interval" in note)] += 1
            continue
        low, high = map(float, found.interval)
        given += 1
        covered += low <= case.truth <= high
        opened += math.isinf(high)
        if math.isfinite(high):
            widths.append(high - low)
    share = covered / given if given else None
    slack = 2 * math.sqrt(LEAST * (1 - LEAST) / given) if given else 0.0
    return {
        "case": case.name,
        "n": case.n,
        "truth": None if math.isinf(case.truth) else case.truth,
        "repetitions": count,
        "mean": statistics.fmean(values) if values else None,
        "intervals": given,
        "coverage": share,
        "open": opened / given if given else None,
        "width": statistics.median(widths) if widths else None,
        "holds": share is None or share >= LEAST - slack,
        "reasons": [reason for reason, _ in reasons.most_common(2)],
        "seconds": (time.perf_counter() - started) / count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--only", nargs="*", help="cases whose names have these words")
    parser.add_argument("--missing", action="store_true", help="cases that the results file lacks")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = RESULTS / "coverage.json"
    kept = json.loads(path.read_text())["rows"] if arguments.missing else []
    kept = {(row["case"], row["n"]): row for row in kept}
    rows = []
    for case in cases():
        if (case.name, case.n) in kept:
            rows.append(kept[case.name, case.n])
            continue
        if arguments.only and not any(word in case.name for word in arguments.only):
            continue
        rows.append(measured(case, arguments.repetitions))
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    if arguments.missing or not arguments.only:
        document = {"schema": SCHEMA, "machine": machine(), "least": LEAST, "rows": rows}
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
