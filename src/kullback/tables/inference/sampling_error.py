"""How the shares of cells vary from one table to the next: with independent rows, and with clusters of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

__all__ = ["Clustered", "Independent", "Noise", "multinomial_variance"]

Array = np.ndarray[Any, np.dtype[np.float64]]

MOST_GAIN = 100.0
BLOCK = 1 << 21  # numbers drawn at a time


class Noise(Protocol):
    """What the intervals need to know of the errors of the shares p and q.

    Attributes:
        clusters: how many clusters P has, and Q; None where rows are independent.
        effective: how many independent rows of P, and of Q, tell as much.
        scale: at p = q, the mean of the squared error of p - q over its degrees of freedom: 1/n + 1/m.
        freedom: its degrees of freedom.
    """

    clusters: tuple[int, int] | None
    effective: tuple[float, float]
    scale: float
    freedom: float

    def variance(self, of_p: Array, of_q: Array) -> float:
        """The variance of a function with these gradients to p and to q."""
        ...

    def spread_of_difference(self) -> Array:
        """The standard error of each component of p - q."""
        ...

    def draws(self, random: np.random.Generator, number: int) -> Iterator[tuple[slice, Array]]:
        """Normal errors of p - q, shape (draws, K), block by block, and which draws they are."""
        ...


class Independent:
    """Rows that are independent of each other: multinomial counts.

    Arguments:
        a: P's counts, shape (K,).
        b: Q's.
        n: how many independent rows P has.
        m: how many Q has.
    """

    def __init__(self, a: Array, b: Array, n: float, m: float) -> None:
        self._p, self._q = a / a.sum(), b / b.sum()
        self.clusters: tuple[int, int] | None = None
        self.effective: tuple[float, float] = n, m
        self.scale, self.freedom = 1 / n + 1 / m, float(len(a) - 1)

    def variance(self, of_p: Array, of_q: Array) -> float:
        """The variance of a function with these gradients to p and to q."""
        return multinomial_variance((self._p, self._q), (of_p, of_q), self.effective)

    def spread_of_difference(self) -> Array:
        """The standard error of each component of p - q."""
        n, m = self.effective
        return np.sqrt(self._p * (1 - self._p) / n + self._q * (1 - self._q) / m)

    def draws(self, random: np.random.Generator, number: int) -> Iterator[tuple[slice, Array]]:
        """Normal errors of p - q, shape (draws, K), block by block, and which draws they are."""
        for rows in _blocks(number, len(self._p)):
            noise = np.zeros((rows.stop - rows.start, len(self._p)))
            for share, size in zip((self._p, self._q), self.effective, strict=True):
                normal = random.standard_normal(noise.shape) * np.sqrt(share / size)
                noise += normal - normal.sum(1, keepdims=True) * share
            yield rows, noise


class Clustered:
    """Clusters that are independent of each other, of rows that need not be; a cluster may have rows on both sides.

    Arguments:
        a: P's weight in each cell, cluster by cluster, shape (G, K).
        b: Q's, the same cluster in the same row.
        sizes: how many rows of equal weight P and Q have; their weights by default.

    References:
        Longitudinal data analysis using generalized linear models (Liang and Zeger, 1986)
        On chi-squared tests for multiway contingency tables with cell proportions estimated from survey data
            (Rao and Scott, 1984)
    """

    def __init__(self, a: Array, b: Array, sizes: tuple[float, float] | None = None) -> None:
        rows = sizes or (float(a.sum()), float(b.sum()))
        self._errors_p, self._errors_q = _errors_by_cluster(a), _errors_by_cluster(b)
        self._errors = self._errors_p - self._errors_q
        pooled = (a.sum(0) / a.sum() + b.sum(0) / b.sum()) / 2
        cells = len(pooled)
        # Clusters all alike would leave no error at all: no more than 100 times as sure as independent rows.
        least = [(cells - 1) / (MOST_GAIN * size) for size in rows]
        trace_p, trace_q, trace = (
            max(float((errors**2 / pooled).sum()), floor)
            for errors, floor in (
                (self._errors_p, least[0]),
                (self._errors_q, least[1]),
                (self._errors, sum(least)),
            )
        )
        self.freedom = _satterthwaite(self._errors / np.sqrt(pooled), trace)
        self.scale = trace / (cells - 1)
        # What both sides' errors have in common cancels in the difference, and in the bias of a divergence.
        shared = (trace_p + trace_q) / trace
        n, m = ((cells - 1) / side * shared for side in (trace_p, trace_q))
        self.effective: tuple[float, float] = n, m
        self.clusters: tuple[int, int] | None = int((a.sum(1) > 0).sum()), int((b.sum(1) > 0).sum())

    def variance(self, of_p: Array, of_q: Array) -> float:
        """The variance of a function with these gradients to p and to q."""
        return float(((self._errors_p @ of_p + self._errors_q @ of_q) ** 2).sum())

    def spread_of_difference(self) -> Array:
        """The standard error of each component of p - q."""
        return np.sqrt((self._errors**2).sum(0))

    def draws(self, random: np.random.Generator, number: int) -> Iterator[tuple[slice, Array]]:
        """Normal errors of p - q, shape (draws, K), block by block, and which draws they are."""
        for rows in _blocks(number, max(self._errors.shape)):
            yield rows, random.standard_normal((rows.stop - rows.start, len(self._errors))) @ self._errors


def multinomial_variance(
    shares: tuple[Array, Array], gradients: tuple[Array, Array], sizes: tuple[float, float]
) -> float:
    """The variance of a function of two vectors of shares, by the delta method.

    Arguments:
        shares: p and q.
        gradients: of the function, to each.
        sizes: how many independent rows p and q are from.
    """
    parts = zip(shares, gradients, sizes, strict=True)
    return sum(_variance_under(share, gradient) / rows for share, gradient, rows in parts)


def _variance_under(share: Array, gradient: Array) -> float:
    held = share > 0
    share, gradient = share[held], gradient[held]
    return float((share * (gradient - (share * gradient).sum()) ** 2).sum())


def _errors_by_cluster(counts: Array) -> Array:
    """What each cluster adds to the error of the shares, scaled so that the sum of squares is the variance."""
    sizes, total = counts.sum(1), counts.sum()
    clusters = int((sizes > 0).sum())
    errors = (counts - sizes[:, None] * (counts.sum(0) / total)) / total
    return errors * np.sqrt(clusters / max(clusters - 1, 1))


def _satterthwaite(errors: Array, trace: float) -> float:
    """The degrees of freedom of a sum of squares with the covariance of these errors: trace(C)² / trace(C²)."""
    cells = errors.shape[1]
    clusters = int((errors**2).sum(1).astype(bool).sum())
    square = errors.T @ errors if cells <= len(errors) else errors @ errors.T
    # An estimated covariance of few clusters has spread-out eigenvalues: that part is taken out.
    squares = (float((square**2).sum()) - trace**2 / max(clusters, 1)) / (1 + 1 / max(clusters, 1))
    least = trace**2 / (cells - 1)
    return float(trace**2 / max(squares, least))


def _blocks(number: int, width: int) -> Iterator[slice]:
    step = max(1, BLOCK // width)
    for start in range(0, number, step):
        yield slice(start, min(start + step, number))
