"""Draws from pairs whose divergence is known exactly: what the estimators from samples are measured on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from mpmath import mp
from scipy.stats import vonmises_fisher

Draw = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Case:
    """A pair of distributions, how to draw from each, and KL(P || Q) in nats."""

    name: str
    truth: float
    draw_p: Draw
    draw_q: Draw

    def draws(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return n draws of P and n of Q; shape (n, d) of floats, or (n,) of categories."""
        first, second = np.random.SeedSequence([seed, n]).spawn(2)
        return self.draw_p(np.random.default_rng(first), n), self.draw_q(np.random.default_rng(second), n)


def gaussian(mean: np.ndarray, covariance: np.ndarray) -> Draw:
    root = np.linalg.cholesky(covariance)
    return lambda rng, n: mean + rng.standard_normal((n, len(mean))) @ root.T


def gaussian_case(name: str, mean: np.ndarray, covariance: np.ndarray) -> Case:
    """P standard, Q of this mean and covariance: (tr S^-1 + m S^-1 m - d + log det S) / 2."""
    d = len(mean)
    precision = np.linalg.inv(covariance)
    log_det = float(np.linalg.slogdet(covariance)[1])
    truth = (float(np.trace(precision)) + float(mean @ precision @ mean) - d + log_det) / 2
    return Case(name, truth, gaussian(np.zeros(d), np.eye(d)), gaussian(mean, covariance))


def neighbors_correlated(d: int, correlation: float) -> np.ndarray:
    """The covariance of a stationary autoregression: correlation^|i - j|."""
    index = np.arange(d)
    return correlation ** np.abs(index[:, None] - index)


def shifted(d: int, by: float) -> np.ndarray:
    return np.array([by] + [0.0] * (d - 1))


def mises_fisher(d: int, concentration: float, axis: int) -> Draw:
    """Draw from the von Mises-Fisher distribution on the unit sphere about a coordinate axis."""
    about = cast("Any", vonmises_fisher)(np.eye(d)[axis], concentration)
    return lambda rng, n: about.rvs(n, random_state=rng)


def log_mises_fisher_constant(d: int, concentration: float) -> Any:
    half = mp.mpf(d) / 2
    bessel = mp.besseli(half - 1, concentration)
    return (half - 1) * mp.log(concentration) - half * mp.log(2 * mp.pi) - mp.log(bessel)


def sphere_case(name: str, d: int, first: float, second: float) -> Case:
    """P of one concentration about one axis, Q of another one about an axis at right angles to it."""
    length = mp.besseli(mp.mpf(d) / 2, first) / mp.besseli(mp.mpf(d) / 2 - 1, first)
    constants = log_mises_fisher_constant(d, first) - log_mises_fisher_constant(d, second)
    return Case(
        name, float(constants + first * length), mises_fisher(d, first, 0), mises_fisher(d, second, 1)
    )


def softmax_case(name: str, d: int, shift: float) -> Case:
    """Logistic normal rows of probabilities: a normal distribution and a shifted one, by the softmax of d logits.

    Only differences of logits count: the shift of one of d logits is that of d - 1 equally correlated ones.
    """

    def draw(by: float) -> Draw:
        def rows(rng: np.random.Generator, n: int) -> np.ndarray:
            logits = rng.standard_normal((n, d)) + shifted(d, by)
            values = np.exp(logits - logits.max(1, keepdims=True))
            return values / values.sum(1, keepdims=True)

        return rows

    return Case(name, shift**2 / 2 * (1 - 1 / d), draw(0.0), draw(shift))


def cauchy(location: float, d: int) -> Draw:
    return lambda rng, n: location + rng.standard_cauchy((n, d))


def pareto(shape: float) -> Draw:
    return lambda rng, n: 1 + rng.pareto(shape, (n, 1))


def exponential(rate: float) -> Draw:
    return lambda rng, n: rng.exponential(1 / rate, (n, 1))


CONTINUOUS = [
    gaussian_case("gauss1", np.array([1.0]), np.array([[2.25]])),
    gaussian_case("gauss5", shifted(5, 0.4), neighbors_correlated(5, 0.3)),
    gaussian_case("gauss20", shifted(20, 0.4), neighbors_correlated(20, 0.3)),
    Case("exponential", math.log(1 / 2) + 2 - 1, exponential(1.0), exponential(2.0)),
    Case("cauchy1", math.log(5 / 4), cauchy(0.0, 1), cauchy(1.0, 1)),
    Case("cauchy5", 5 * math.log(5 / 4), cauchy(0.0, 5), cauchy(1.0, 5)),
    Case("pareto", math.log(1 / 2) + 2 - 1, pareto(1.5), pareto(3.0)),
    gaussian_case("far", np.array([5.0]), np.array([[1.0]])),
    gaussian_case("equal5", np.zeros(5), np.eye(5)),
]


def zipf(categories: int, exponent: float) -> np.ndarray:
    weights = np.arange(1, categories + 1) ** -exponent
    return weights / weights.sum()


def categorical_case(name: str, p: np.ndarray, q: np.ndarray) -> Case:
    def draw(probabilities: np.ndarray) -> Draw:
        return lambda rng, n: rng.choice(len(probabilities), n, p=probabilities)

    return Case(name, float(np.sum(p * np.log(p / q))), draw(p), draw(q))


_PERMUTATION = np.random.default_rng(0).permutation(1000)
DISCRETE = [
    categorical_case("zipf", zipf(1000, 1.1), zipf(1000, 0.8)),
    categorical_case("zipf_permuted", zipf(1000, 1.1), zipf(1000, 1.1)[_PERMUTATION]),
    categorical_case("zipf_equal", zipf(1000, 1.1), zipf(1000, 1.1)),
    categorical_case("ten_categories", zipf(10, 1.0), np.full(10, 0.1)),
]
ON_SURFACES = [
    *(sphere_case(f"sphere{d}", d, 4.0, 3.0) for d in (3, 6, 8, 10)),
    softmax_case("softmax5", 5, 1.0),
]
CASES = {case.name: case for case in (*CONTINUOUS, *DISCRETE, *ON_SURFACES)}
