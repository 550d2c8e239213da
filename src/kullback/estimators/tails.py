"""Fits of generalized Pareto distributions to tails of draws, and the contribution of an unobserved tail to a mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kullback.estimators.draws import Array
from kullback.estimators.evidence import SMALL_P, SMALL_Q, Shift

# `benchmarks/coverage.py` checks the constants of this file on hard pairs: the coverage of 95 % intervals must be at
# least 93 %.

# A tail is fitted to the largest draws: to the proportion `TAIL` of all draws, but to at least `FEWEST_IN_TAIL` draws.
TAIL, FEWEST_IN_TAIL = 0.1, 10

# A generalized Pareto distribution has a finite variance for shapes below 1/2, and a finite mean for shapes below 1.
_NO_VARIANCE = 0.5


@dataclass(frozen=True)
class ParetoTail:
    """A generalized Pareto distribution of the excesses of draws over a threshold."""

    shape: float
    scale: float

    def log_survival(self, beyond: Array) -> Array:
        """Return the log-probability of a larger excess than each value in `beyond`; -inf above the support."""
        if self.shape == 0:
            return -beyond / self.scale
        with np.errstate(divide="ignore"):
            return -np.log1p(np.maximum(self.shape * beyond / self.scale, -1)) / self.shape


def fit_tail(beyond: Array, spread: float) -> ParetoTail:
    """Return the tail with the largest likelihood for the excesses `beyond`, among tails of shape 0 or more.

    Without excesses, return an exponential tail with the scale `spread`.

    Parameter and Quantile Estimation for the Generalized Pareto Distribution (Hosking and Wallis, 1987)
    """
    if not len(beyond):
        return ParetoTail(0.0, spread)
    mean = float(beyond.mean())
    ratio = np.geomspace(1e-3, 1e3, 61) / float(np.median(beyond))
    shape = np.log1p(ratio[:, None] * beyond).mean(1)
    likelihood = np.log(ratio / shape) - shape
    best = int(likelihood.argmax())
    if best == 0 or likelihood[best] <= -math.log(mean) - 1:
        return ParetoTail(0.0, mean)
    return ParetoTail(float(shape[best]), float(shape[best] / ratio[best]))


def fit_tail_by_moments(beyond: Array) -> ParetoTail:
    """Return a tail of any shape, fitted to sorted excesses by probability-weighted moments.

    Parameter and Quantile Estimation for the Generalized Pareto Distribution (Hosking and Wallis, 1987)
    """
    n = len(beyond)
    first = float(beyond.mean())
    second = float((beyond * (n - np.arange(1, n + 1) + 0.35) / n).mean())
    if not first > 2 * second > 0:
        return ParetoTail(0.0, max(first, np.finfo(np.float64).tiny))
    return ParetoTail(2 - first / (first - 2 * second), 2 * first * second / (first - 2 * second))


def heaviness(values: Array) -> float:
    """Return the tail index k of values f, where P(|f - median| > t) ~ t^(-1/k); the variance is finite for k < 1/2."""
    size = np.sort(np.abs(values - np.median(values)))
    count = min(max(int(TAIL * len(size)), FEWEST_IN_TAIL), len(size) - 1)
    return fit_tail_by_moments(size[-count:] - size[-count - 1]).shape


def tail_allowance(terms: Array, shares: Array, number: float) -> float:
    """Return the possible excess of the true mean of terms over the sample mean, because of an unobserved tail.

    A generalized Pareto distribution is fitted to the largest terms. The mean of this distribution is computed with a
    shape one standard error above the fitted shape. If this shape is 1 or more, the result is infinite.

    Arguments:
        terms: the terms, shape (n,).
        shares: the weights of the terms, with sum 1, shape (n,).
        number: the effective number of terms.
    """
    count = int(max(TAIL * number, min(FEWEST_IN_TAIL, number / 4)) * len(terms) / number)
    if count < 4:
        return math.inf if number < 2 else 0.0
    order = np.argsort(terms)
    threshold = float(terms[order[-count - 1]])
    beyond = terms[order[-count:]] - threshold
    if not float(beyond[-1]) > 0:
        return 0.0
    shape = fit_tail_by_moments(beyond).shape
    if shape > _NO_VARIANCE:  # for such heavy tails, the fit by moments underestimates the shape
        shape = max(shape, fit_tail(beyond, 1.0).shape)
    shape = max(shape + (1 + abs(shape)) / math.sqrt(count * number / len(terms)), 0.0)
    weight = float(shares[order[-count:]].sum())
    return math.inf if shape >= 1 else weight * float(beyond.mean()) * max(1 / (1 - shape) - 1, 0.0)


def beyond_tail(allowance: float, width: float) -> Shift:
    """Return the increase of an upper limit by `allowance`, a `tail_allowance`, as a `Shift`.

    If `allowance` exceeds `width`, the `Shift` has a note.
    """
    limit = "is infinite" if math.isinf(allowance) else "extrapolates a Pareto tail"
    note = (
        f"log {SMALL_P} / {SMALL_Q} has a heavy tail, and its mean may depend on unobserved draws: the upper limit "
        f"{limit}."
    )
    return Shift(allowance, note if allowance > width else "")
