"""Shuffles of the origins of draws, in whole clusters if there are any."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from kullback.common.progress import progress_bar
from kullback.errors import invalid_value
from kullback.estimators.draws import Array, Draws, Integers

# The size of the statistics of a block of shuffles, which limits the memory.
BLOCK_BYTES = 32 * 1024 * 1024
# Values closer than this count as equal, because the sums of a shuffle may round differently.
ROUNDING = 1e-9


class Labeling(NamedTuple):
    """The unit of each pooled draw, and the units from P."""

    unit_of: Integers | None  # None: each draw is a unit of its own
    from_p: np.ndarray[Any, np.dtype[np.bool_]]
    in_pairs: bool = False  # whether only units of P and Q with the same number are exchanged

    @classmethod
    def of(cls, p: Draws, q: Draws, *, in_pairs: bool = False) -> Labeling:
        """Derive the units from two data sets: their clusters if either has some, otherwise the draws."""
        n, m = len(p), len(q)
        if p.cluster is None and q.cluster is None:
            return cls(None, np.arange(n + m) < n)
        x, y, first, second = p.units, q.units, p.groups, q.groups
        if min(first, second) < 2:
            raise invalid_value(
                "two_sample_test",
                "p, q",
                wanted="at least two clusters on both sides",
                got=f"{first} in p and {second} in q",
                instead="Samples(x) without cluster=, if the draws are independent",
            )
        return cls(np.concatenate([x, first + y]), np.arange(first + second) < first, in_pairs)

    def of_draws(self, units: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Spread labels of units, along the last dimension, over their draws."""
        return units if self.unit_of is None else units[..., self.unit_of]

    def shuffles(self, rows: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Return the draws that count as P's in some shuffles, shape (rows, draws)."""
        if self.in_pairs:
            kept = rng.random((rows, len(self.from_p) // 2)) < 0.5
            return self.of_draws(np.concatenate([kept, ~kept], 1))
        units = np.broadcast_to(self.from_p, (rows, len(self.from_p)))
        return self.of_draws(rng.permuted(units, axis=1))


class PermutationStatistics(ABC):
    """Statistics that are computed for many labelings of the draws at a time."""

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """The names of the statistics."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of values that one shuffle needs."""

    @abstractmethod
    def of_labels(self, from_p: np.ndarray[Any, np.dtype[np.bool_]]) -> Array:
        """Return the statistics, shape (rows, statistics), from labels of the draws, shape (rows, draws)."""

    def observed(self, labeling: Labeling) -> Array:
        """Return the statistics of the observed draws, shape (statistics,)."""
        return self.of_labels(labeling.of_draws(labeling.from_p)[None])[0]

    def shuffled(self, labeling: Labeling, rows: int, rng: np.random.Generator) -> Array:
        """Return the statistics of some shuffles, shape (rows, statistics)."""
        return self.of_labels(labeling.shuffles(rows, rng))


@dataclass(frozen=True)
class BinCounts(PermutationStatistics):
    """Statistics of the number of P's draws in each bin; without clusters, shuffles draw the counts directly.

    Attributes:
        totals: the number of draws in each bin.
        of_counts: the statistics by name, each from P's counts of shape (rows, bins) to shape (rows,).
        codes: the bin of each pooled draw; None if only P's counts are known.
        counts: P's counts of independent draws, in place of codes.
    """

    totals: Integers
    of_counts: dict[str, Callable[[Array], Array]]
    codes: Integers | None = None
    counts: Integers | None = None

    @property
    def names(self) -> Sequence[str]:
        return list(self.of_counts)

    @property
    def width(self) -> int:
        return max(len(self.totals), 0 if self.codes is None else len(self.codes))

    def observed(self, labeling: Labeling) -> Array:
        return super().observed(labeling) if self.counts is None else self._values(self.counts[None])[0]

    def shuffled(self, labeling: Labeling, rows: int, rng: np.random.Generator) -> Array:
        if labeling.unit_of is not None:
            return super().shuffled(labeling, rows, rng)
        draws_of_p = int((labeling.from_p if self.counts is None else self.counts).sum())
        counts = rng.multivariate_hypergeometric(self.totals, draws_of_p, size=rows, method="marginals")
        return self._values(counts)

    def of_labels(self, from_p: np.ndarray[Any, np.dtype[np.bool_]]) -> Array:
        bins, codes = len(self.totals), cast("Integers", self.codes)
        return self._values(np.stack([np.bincount(codes[row], minlength=bins) for row in from_p]))

    def _values(self, counts: Integers) -> Array:
        return np.stack([of(counts.astype(float)) for of in self.of_counts.values()], axis=1)


@dataclass(frozen=True)
class QuadraticForms(PermutationStatistics):
    """Statistics of sums of similarities within P, within Q and between the two.

    A similarity is a symmetric matrix, dense or sparse, or the sum of products of features. For `scores`, the statistic
    is the largest difference of means, not the sum of squares. Features and scores have mean 0 over all draws.
    """

    matrices: dict[str, Any]
    features: dict[str, np.ndarray[Any, np.dtype[np.float32]]]
    scores: dict[str, np.ndarray[Any, np.dtype[np.float32]]]

    @property
    def names(self) -> Sequence[str]:
        return [*self.matrices, *self.features, *self.scores]

    @property
    def width(self) -> int:
        return 4 * next(iter(self.matrices.values())).shape[0]

    def of_labels(self, from_p: np.ndarray[Any, np.dtype[np.bool_]]) -> Array:
        labels = np.ascontiguousarray(from_p.T, dtype=np.float32)
        n = labels.sum(0, dtype=float)
        m = len(labels) - n
        values: list[Array] = []
        for name, matrix in self.matrices.items():
            product = np.asarray(matrix @ labels)
            within_p = np.einsum("ij,ij->j", labels, product, dtype=float)
            all_p = np.einsum("ij,i->j", labels, np.asarray(matrix.sum(1)).ravel(), dtype=float)
            within_q = float(matrix.sum(dtype=float)) - 2 * all_p + within_p
            if name == "nearest_neighbors":
                # Edges of either side, weighted for unequal sizes (Chen, Chen and Su, 2018).
                values.append((m * within_p + n * within_q) / len(labels))
            else:
                values.append(within_p / n**2 + within_q / m**2 - 2 * (all_p - within_p) / (n * m))

        def difference(features: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            return (labels.T @ features) * (1 / n + 1 / m)[:, None]

        values += [np.square(difference(x)).sum(1, dtype=float) for x in self.features.values()]
        values += [np.abs(difference(x)).max(1).astype(float) for x in self.scores.values()]
        return np.stack(values, axis=1)


def permuted(
    statistics: PermutationStatistics, labeling: Labeling, permutations: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return the statistics of the observed draws, and of each shuffle."""
    blocks: list[Array] = []
    block = max(1, BLOCK_BYTES // (8 * statistics.width))
    with progress_bar("permutations") as update:
        for start in range(0, permutations, block):
            rows = min(block, permutations - start)
            blocks.append(statistics.shuffled(labeling, rows, rng))
            if update:
                update(start + rows, permutations)
    return statistics.observed(labeling), np.concatenate(blocks)


def p_value(observed: Array, shuffled: Array, weights: Sequence[float] | None = None) -> tuple[float, int]:
    """Return the p-value of all statistics together, and the index of the most extreme one.

    Every labeling, the observed one included, has for each statistic a normal score among all labelings. The weighted
    mean of the inverse tail probabilities is compared between labelings, so the level is exact for any distributions of
    the statistics.

    Arguments:
        observed: the statistics of the observed draws, shape (statistics,).
        shuffled: the statistics of the shuffles, shape (shuffles, statistics).
        weights: the weight of each statistic's evidence; equal by default.
    """
    values = np.concatenate([observed[None], shuffled])
    values = _rounded(values / np.maximum(np.abs(values).max(0), np.finfo(float).tiny))
    if values.shape[1] == 1:
        return float((values[:, 0] >= values[0, 0]).mean()), 0
    tails = torch.special.log_ndtr(torch.from_numpy(-_normal_scores(values, values)))
    logs = tails.new_tensor([1.0] * values.shape[1] if weights is None else weights).log()
    evidence = _rounded(torch.logsumexp(logs - tails, dim=1).numpy())
    return float((evidence >= evidence[0]).mean()), int(_normal_scores(values[:1], values[1:])[0].argmax())


def _rounded(x: Array) -> Array:
    return np.round(x / ROUNDING) * ROUNDING


def _normal_scores(values: Array, sample: Array) -> Array:
    """Return the deviations of values from the mean of a sample, in standard deviations, made normal by its skewness.

    The distribution of chi-square (Wilson and Hilferty, 1931)
    """
    mean, spread = sample.mean(0), sample.std(0)
    spread = np.where(spread > 0, spread, np.inf)
    skewness = np.maximum((((sample - mean) / spread) ** 3).mean(0), 1e-3)
    return 6 / skewness * (np.cbrt(skewness * (values - mean) / spread / 2 + 1) - 1) + skewness / 6
