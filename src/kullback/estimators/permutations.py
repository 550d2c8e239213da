"""Permutation tests: random exchanges of draws or clusters between P and Q, and p-values from these exchanges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from kullback.common.arrays import Flags
from kullback.common.inference import chi_square_scores
from kullback.common.progress import progress_bar
from kullback.errors import invalid_value
from kullback.estimators.draws import Array, Draws, Integers

# Shuffles are computed in blocks whose values have at most this number of bytes, which limits the memory.
BLOCK_BYTES = 32 * 1024 * 1024
# Two values of a statistic count as equal if their difference is below `ROUNDING` times the largest value, because
# sums over shuffles may be rounded differently.
ROUNDING = 1e-9


class Labeling(NamedTuple):
    """The assignment of the pooled draws to P and Q, by units that are exchanged as a whole, such as clusters.

    `unit_of` is None if each draw is a unit. If `in_pairs`, unit i of P can be exchanged only with unit i of Q.
    """

    unit_of: Integers | None
    from_p: Flags
    in_pairs: bool = False

    @classmethod
    def of(cls, p: Draws, q: Draws, *, in_pairs: bool = False) -> Labeling:
        """Return the labeling of the observed draws. If P or Q has clusters, a unit is a cluster, otherwise a draw."""
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
        """Return the label of each draw; `units` has the label of each unit along the last dimension."""
        return units if self.unit_of is None else units[..., self.unit_of]

    def shuffles(self, rows: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Return masks of the draws that count as draws of P in `rows` random shuffles, shape (rows, draws)."""
        if self.in_pairs:
            kept = rng.random((rows, len(self.from_p) // 2)) < 0.5
            return self.of_draws(np.concatenate([kept, ~kept], 1))
        units = np.broadcast_to(self.from_p, (rows, len(self.from_p)))
        return self.of_draws(rng.permuted(units, axis=1))


class PermutationStatistics(ABC):
    """Statistics of two samples that can be computed for many labelings of the draws in one call."""

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """The names of the statistics."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of float64 values that one shuffle needs in memory."""

    @abstractmethod
    def of_labels(self, from_p: Flags) -> Array:
        """Return the statistics of several labelings, shape (rows, statistics).

        `from_p`, shape (rows, draws), is True for the draws that count as draws of P in each labeling.
        """

    def observed(self, labeling: Labeling) -> Array:
        """Return the statistics of the observed draws, shape (statistics,)."""
        return self.of_labels(labeling.of_draws(labeling.from_p)[None])[0]

    def shuffled(self, labeling: Labeling, rows: int, rng: np.random.Generator) -> Array:
        """Return the statistics of `rows` random shuffles, shape (rows, statistics)."""
        return self.of_labels(labeling.shuffles(rows, rng))


@dataclass(frozen=True)
class BinCounts(PermutationStatistics):
    """Statistics of P's counts in bins; without clusters, shuffled counts are drawn from a hypergeometric distribution.

    A statistic is a function of P's counts, shape (rows, bins). `codes` has the bin of each pooled draw. For
    independent draws, `counts`, P's counts, may replace `codes`.
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

    def of_labels(self, from_p: Flags) -> Array:
        bins, codes = len(self.totals), cast("Integers", self.codes)
        return self._values(np.stack([np.bincount(codes[row], minlength=bins) for row in from_p]))

    def _values(self, counts: Integers) -> Array:
        return np.stack([of(counts.astype(float)) for of in self.of_counts.values()], axis=1)


@dataclass(frozen=True)
class QuadraticForms(PermutationStatistics):
    """Statistics, by name, from sums of similarities within P, within Q and between P and Q.

    Similarities are symmetric matrices, or inner products of features, shape (draws, features), with the squared
    difference of means as statistic; for scores, it is the largest absolute one. Both have mean 0.
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

    def of_labels(self, from_p: Flags) -> Array:
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
                # This statistic counts the edges of the nearest-neighbor graph that join two draws of P, or two draws
                # of Q. The two counts are weighted for unequal sample sizes (Chen, Chen and Su, 2018).
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
    """Return the statistics of the observed draws, and the statistics of shuffles, shape (permutations, statistics)."""
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
    """Return the p-value of the combination of all statistics, and the index of the most extreme statistic.

    Each statistic becomes a normal score by its distribution over all labelings. The combination is the weighted sum of
    the inverse tail probabilities of these scores. Its rank among all labelings gives the p-value, so the test is exact
    for any distribution of the statistics.
    """
    values = np.concatenate([observed[None], shuffled])
    values = _rounded(values / np.maximum(np.abs(values).max(0), np.finfo(float).tiny))
    if values.shape[1] == 1:
        return float((values[:, 0] >= values[0, 0]).mean()), 0
    tails = torch.special.log_ndtr(torch.from_numpy(-_scores(values, values)))
    logs = tails.new_tensor([1.0] * values.shape[1] if weights is None else weights).log()
    evidence = _rounded(torch.logsumexp(logs - tails, dim=1).numpy())
    return float((evidence >= evidence[0]).mean()), int(_scores(values[:1], values[1:])[0].argmax())


def _rounded(x: Array) -> Array:
    return np.round(x / ROUNDING) * ROUNDING


def _scores(values: Array, sample: Array) -> Array:
    """Return `values` as normal scores: standardized by the mean and the spread of `sample`, and without skewness."""
    mean, spread = sample.mean(0), sample.std(0)
    spread = np.where(spread > 0, spread, np.inf)
    skewness = np.maximum((((sample - mean) / spread) ** 3).mean(0), 1e-3)
    # The chi-square distribution with this skewness has 8 / skewness^2 degrees of freedom.
    return chi_square_scores(1 + skewness * (values - mean) / spread / 2, 8 / skewness**2)
