"""Shuffling which draw came from which data set, in whole clusters where there are any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from kullback.errors import invalid_value
from kullback.progress import progress_bar
from kullback.samples import Samples

__all__ = ["Cells", "Graph", "Labeling", "Statistic", "permuted"]

Array = np.ndarray[Any, np.dtype[Any]]
BLOCK_BYTES = 32 * 1024 * 1024


class Labeling(NamedTuple):
    """Which unit each pooled draw belongs to, and which units came from P."""

    unit_of: Array | None  # None: each draw is a unit of its own
    from_p: Array

    @classmethod
    def of(cls, p: Samples, q: Samples) -> Labeling:
        """Read the units off two data sets: their clusters where either has some, else the draws."""
        n, m = len(p), len(q)
        if p.cluster is None and q.cluster is None:
            return cls(None, np.arange(n + m) < n)
        x, y = (np.arange(len(side)) if side.cluster is None else side.cluster.numpy() for side in (p, q))
        first = int(x.max()) + 1
        units = first + int(y.max()) + 1
        if first < 2 or units - first < 2:
            raise invalid_value(
                "two_sample_test",
                "p, q",
                wanted="at least two clusters on both sides",
                got=f"{first} in p and {units - first} in q",
                instead="Samples(x) without clusters, where the draws are independent",
            )
        return cls(np.concatenate([x, first + y]), np.arange(units) < first)

    @property
    def draws(self) -> int:
        """How many pooled draws there are."""
        return len(self.from_p if self.unit_of is None else self.unit_of)

    def of_draws(self, units: Array) -> Array:
        """Spread labels of units, along the last dimension, over their draws."""
        return units if self.unit_of is None else units[..., self.unit_of]

    def shuffles(self, rows: int, rng: np.random.Generator) -> Array:
        """Return which draws count as P's in some shuffles, shape (rows, draws)."""
        units = np.broadcast_to(self.from_p, (rows, len(self.from_p)))
        return self.of_draws(rng.permuted(units, axis=1))


class Statistic(Protocol):
    """A difference of two data sets that can be computed for many labelings of the pooled draws."""

    @property
    def width(self) -> int:
        """How many numbers one shuffle takes."""
        ...

    def observed(self, labeling: Labeling) -> float:
        """Return its value for the draws as they are."""
        ...

    def shuffled(self, labeling: Labeling, rows: int, rng: np.random.Generator) -> Array:
        """Return its values for some shuffles."""
        ...


class Cells(NamedTuple):
    """A statistic of how many of P's draws fall into each cell; without clusters these counts are drawn directly."""

    codes: Array  # of each pooled draw
    totals: Array  # draws in each cell
    of_counts: Callable[[Array], Array]  # from (rows, cells) to (rows,)

    @property
    def width(self) -> int:
        return max(len(self.codes), len(self.totals))

    def observed(self, labeling: Labeling) -> float:
        return float(self.of_counts(self._counts(labeling.of_draws(labeling.from_p)[None]))[0])

    def shuffled(self, labeling: Labeling, rows: int, rng: np.random.Generator) -> Array:
        if labeling.unit_of is not None:
            return self.of_counts(self._counts(labeling.shuffles(rows, rng)))
        drawn = int(labeling.from_p.sum())
        return self.of_counts(
            rng.multivariate_hypergeometric(self.totals, drawn, size=rows, method="marginals").astype(float)
        )

    def _counts(self, from_p: Array) -> Array:
        cells = len(self.totals)
        return np.stack([np.bincount(self.codes[row], minlength=cells) for row in from_p]).astype(float)


class Graph(NamedTuple):
    """The share of the edges that join draws of one data set."""

    adjacency: Any  # a sparse matrix, float32; its rows sum to the number of neighbors

    @property
    def width(self) -> int:
        return 4 * self.adjacency.shape[0]

    def observed(self, labeling: Labeling) -> float:
        return float(self._shares(labeling.of_draws(labeling.from_p)[None])[0])

    def shuffled(self, labeling: Labeling, rows: int, rng: np.random.Generator) -> Array:
        return self._shares(labeling.shuffles(rows, rng))

    def _shares(self, from_p: Array) -> Array:
        sign = np.where(from_p.T, np.float32(1), np.float32(-1))
        # The product counts edges within minus edges across.
        balance = np.einsum("ij,ij->j", sign, self.adjacency @ sign, dtype=float)
        return (1 + balance / self.adjacency.nnz) / 2


def permuted(
    statistic: Statistic, labeling: Labeling, permutations: int, rng: np.random.Generator
) -> tuple[float, Array]:
    """Return the statistic of the draws as they are, and of each shuffle."""
    found: list[Array] = []
    block = max(1, BLOCK_BYTES // (8 * statistic.width))
    with progress_bar("permutations") as update:
        for start in range(0, permutations, block):
            rows = min(block, permutations - start)
            found.append(statistic.shuffled(labeling, rows, rng))
            if update:
                update(start + rows, permutations)
    return statistic.observed(labeling), np.concatenate(found)
