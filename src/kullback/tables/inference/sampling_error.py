"""Sampling errors of the proportions of bins, with independent rows and with clusters of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from kullback.common.arrays import Floats
from kullback.common.inference import student_ratio
from kullback.estimators.discrete.counts import dof_of_squares
from kullback.estimators.draws import cluster_correction

MOST_GAIN = 100.0  # a variance is at least the variance of 100 times as many independent rows
BLOCK = 1 << 21  # about this many numbers are drawn at a time


class ProportionErrors(ABC):
    """The sampling errors of the proportions p and q, by `effective` numbers of independent rows of P and of Q.

    `clusters` has their numbers of clusters, or is None. `scale` is the mean square error of p - q at p = q for each of
    the `dof` degrees of freedom: 1/n + 1/m for independent rows.
    """

    clusters: tuple[int, int] | None
    effective: tuple[float, float]
    scale: float
    dof: float

    @abstractmethod
    def variance(self, of_p: Floats, of_q: Floats) -> float:
        """Return the variance of a function with these gradients with respect to p and q."""

    def inflation(self, of_p: Floats, of_q: Floats, confidence: float) -> float:
        """Return the factor of the variance that makes a normal interval as wide as an interval of Student's t.

        The factor is 1 if the variance comes from many rows or values.
        """
        del of_p, of_q, confidence
        return 1.0

    @abstractmethod
    def standard_errors_of_difference(self) -> Floats:
        """Return the standard error of each component of p - q."""

    @abstractmethod
    def draws(self, random: np.random.Generator, number: int) -> Iterator[tuple[slice, Floats]]:
        """Yield blocks of normal errors of p - q, shape (draws, K), each with the slice of the block's draws."""


class IndependentRows(ProportionErrors):
    """The sampling errors of multinomial counts a of P and b of Q, from n and m independent rows."""

    def __init__(self, a: Floats, b: Floats, n: float, m: float) -> None:
        self._p, self._q = a / a.sum(), b / b.sum()
        self.clusters, self.effective = None, (n, m)
        self.scale, self.dof = 1 / n + 1 / m, float(len(a) - 1)

    def variance(self, of_p: Floats, of_q: Floats) -> float:
        return multinomial_variance((self._p, self._q), (of_p, of_q), self.effective)

    def standard_errors_of_difference(self) -> Floats:
        n, m = self.effective
        return np.sqrt(self._p * (1 - self._p) / n + self._q * (1 - self._q) / m)

    def draws(self, random: np.random.Generator, number: int) -> Iterator[tuple[slice, Floats]]:
        for rows in _blocks(number, len(self._p)):
            errors = np.zeros((rows.stop - rows.start, len(self._p)))
            for proportion, size in zip((self._p, self._q), self.effective, strict=True):
                normal = random.standard_normal(errors.shape) * np.sqrt(proportion / size)
                errors += normal - normal.sum(1, keepdims=True) * proportion
            yield rows, errors


class _ErrorRows(ProportionErrors):
    """The sampling errors of sums over independent units, from each unit's part of the errors of p and q.

    A row of these (rows, K) may represent k equal ones, times the square root of k.
    """

    def __init__(
        self,
        errors_p: Floats,
        errors_q: Floats,
        proportions: tuple[Floats, Floats],
        sizes: tuple[float, float],
        units: float,
        clusters: tuple[int, int] | None,
    ) -> None:
        self._errors_p, self._errors_q = errors_p, errors_q
        self._errors = errors_p - errors_q
        pooled = (proportions[0] + proportions[1]) / 2
        bins = len(pooled)
        # Units that are all alike would give an error of 0, so the error is at least a tenth of the error of
        # independent rows.
        least = [(bins - 1) / (MOST_GAIN * size) for size in sizes]
        trace_p, trace_q, trace = (
            max(float((errors**2 / pooled).sum()), floor)
            for errors, floor in ((errors_p, least[0]), (errors_q, least[1]), (self._errors, sum(least)))
        )
        self.dof = _satterthwaite(self._errors / np.sqrt(pooled), trace, units)
        self.scale = trace / self.dof
        # The errors that both sides share cancel in p - q, and in the bias of a divergence.
        shared = (trace_p + trace_q) / trace
        self.effective = (bins - 1) / trace_p * shared, (bins - 1) / trace_q * shared
        self.clusters = clusters

    def variance(self, of_p: Floats, of_q: Floats) -> float:
        return float(((self._errors_p @ of_p + self._errors_q @ of_q) ** 2).sum())

    def standard_errors_of_difference(self) -> Floats:
        return np.sqrt((self._errors**2).sum(0))

    def draws(self, random: np.random.Generator, number: int) -> Iterator[tuple[slice, Floats]]:
        for rows in _blocks(number, max(self._errors.shape)):
            yield rows, random.standard_normal((rows.stop - rows.start, len(self._errors))) @ self._errors


class ClusteredRows(_ErrorRows):
    """The sampling errors of counts a and b in independent clusters, shape (G, K), which may have rows on both sides.

    The effective `sizes` are by default the total weights. The errors of rare values, in the last bins, are by value.

    References:
        Longitudinal data analysis using generalized linear models (Liang and Zeger, 1986)
        On chi-squared tests for multiway contingency tables with cell proportions estimated from survey data
            (Rao and Scott, 1984)
    """

    def __init__(
        self,
        a: Floats,
        b: Floats,
        sizes: tuple[float, float] | None = None,
        rare: tuple[Floats, Floats, Floats] | None = None,
    ) -> None:
        totals = float(a.sum()), float(b.sum())
        proportions = a.sum(0) / totals[0], b.sum(0) / totals[1]
        errors = [_errors_by_cluster(a), _errors_by_cluster(b)]
        if rare is not None:
            by_value = _errors_by_value(rare, proportions, totals)
            errors = [np.vstack(each) for each in zip(errors, by_value, strict=True)]
        clusters = int((a.sum(1) > 0).sum()), int((b.sum(1) > 0).sum())
        units = float(((a.sum(1) + b.sum(1)) > 0).sum())
        super().__init__(errors[0], errors[1], proportions, sizes or totals, units, clusters)
        self._held = a.sum(1) > 0, b.sum(1) > 0

    def inflation(self, of_p: Floats, of_q: Floats, confidence: float) -> float:
        # The degrees of freedom of a side follow from its clusters' contributions to the variance.
        total, wider = 0.0, 0.0
        sides = zip((self._errors_p, self._errors_q), (of_p, of_q), self._held, strict=True)
        for errors, gradient, present in sides:
            squares = (errors[: len(present)] @ gradient)[present] ** 2
            if len(squares) > 1:
                variance = float(squares.sum())
                dof = dof_of_squares(variance, float((squares**2).sum()), len(squares))
                total += variance
                wider += variance * student_ratio(confidence, 1 + dof) ** 2
        return wider / total if total > 0 else 1.0


class RowsWithRareValues(_ErrorRows):
    """The errors of independent rows; `rare` has weights by value and bin, and how many values each row has."""

    def __init__(self, a: Floats, b: Floats, rare: tuple[Floats, Floats, Floats]) -> None:
        totals = float(a.sum()), float(b.sum())
        proportions = a / totals[0], b / totals[1]
        frequent = a - rare[2] @ rare[0], b - rare[2] @ rare[1]
        by_value = _errors_by_value(rare, proportions, totals)
        width = len(a)
        errors: list[Floats] = []
        for side in range(2):
            by_row = np.zeros((2 * width, width))
            root = np.sqrt(np.maximum(frequent[side], 0))[:, None] / totals[side]
            by_row[side * width : (side + 1) * width] = root * (np.eye(width) - proportions[side])
            errors.append(np.vstack([by_row, by_value[side]]))
        units = float(frequent[0].sum() + frequent[1].sum() + rare[2].sum())
        super().__init__(errors[0], errors[1], proportions, totals, units, None)


def multinomial_variance(
    proportions: tuple[Floats, Floats], gradients: tuple[Floats, Floats], sizes: tuple[float, float]
) -> float:
    """Return the variance of a function of two vectors of proportions, by the delta method."""
    parts = zip(proportions, gradients, sizes, strict=True)
    return sum(_variance_under(proportion, gradient) / rows for proportion, gradient, rows in parts)


def _variance_under(proportion: Floats, gradient: Floats) -> float:
    positive = proportion > 0
    proportion, gradient = proportion[positive], gradient[positive]
    return float((proportion * (gradient - (proportion * gradient).sum()) ** 2).sum())


def _errors_by_cluster(counts: Floats) -> Floats:
    """Return each cluster's contribution to the errors of the proportions; the squares add up to the variance."""
    sizes, total = counts.sum(1), counts.sum()
    errors = (counts - sizes[:, None] * (counts.sum(0) / total)) / total
    return errors * np.sqrt(cluster_correction(sizes)) if (sizes > 0).sum() > 1 else errors


def _errors_by_value(
    rare: tuple[Floats, Floats, Floats], proportions: tuple[Floats, Floats], totals: tuple[float, float]
) -> list[Floats]:
    """Return the contribution of each rare value to the errors of p and of q."""
    root = np.sqrt(rare[2])[:, None]
    return [
        root * (counts - counts.sum(1, keepdims=True) * proportion) / total
        for counts, proportion, total in zip(rare[:2], proportions, totals, strict=True)
    ]


def _satterthwaite(errors: Floats, trace: float, units: float) -> float:
    """Return Satterthwaite's degrees of freedom of a sum of squared errors: trace(C)² / trace(C²)."""
    bins = errors.shape[1]
    units = max(units, 1.0)
    square = errors.T @ errors if bins <= len(errors) else errors @ errors.T
    # The eigenvalues of a covariance estimated from few units are too spread out, so the excess is subtracted.
    squares = (float((square**2).sum()) - trace**2 / units) / (1 + 1 / units)
    least = trace**2 / (bins - 1)
    return float(trace**2 / max(squares, least))


def _blocks(number: int, width: int) -> Iterator[slice]:
    step = max(1, BLOCK // width)
    for start in range(0, number, step):
        yield slice(start, min(start + step, number))
