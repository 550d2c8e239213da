"""Draws as an estimator needs them: what each weighs, which belong together, and the variance of sums over them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kullback.samples import Samples

__all__ = [
    "Array",
    "Draws",
    "Integers",
    "affordable_draws",
    "cluster_correction",
    "clusters_in",
    "effective_number",
    "few_clusters",
    "number_from_scores",
    "numpy_of",
    "shares_of",
    "variance_of_sum",
    "with_weight",
]

Array = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

# How many draws of each side, by dimensions.
_AFFORDABLE = {6: 30_000, 7: 15_000, 8: 10_000, 9: 8000, 10: 6000}
_AFFORDABLE_BY_PRODUCTS = 20_000


@dataclass(frozen=True)
class Draws:
    """Draws as arrays.

    Attributes:
        x: the coordinates, shape (n, d).
        weights: what each draw counts for, shape (n,); None where all count the same.
        cluster: the cluster of each, shape (n,); None where the draws are independent.
    """

    x: Array
    weights: Array | None
    cluster: Integers | None

    @classmethod
    def of(cls, samples: Samples) -> Draws:
        """Return the draws of `samples` on the CPU, those of weight 0 left out."""
        samples = with_weight(samples)
        weights = None if samples.weights is None else samples.weights.cpu().numpy()
        cluster = None if samples.cluster is None else samples.cluster.cpu().numpy()
        return cls(numpy_of(samples), weights, cluster)

    def __len__(self) -> int:
        return len(self.x)

    def taken(self, index: Integers) -> Draws:
        """Return the draws at these places, in this order."""
        weights = None if self.weights is None else self.weights[index]
        return Draws(self.x[index], weights, None if self.cluster is None else self.cluster[index])

    def thinned(self, number: int, rng: np.random.Generator) -> Draws:
        """Return at most so many draws, chosen at random, in their order."""
        if len(self) <= number:
            return self
        return self.taken(np.sort(rng.choice(len(self), number, replace=False)))

    @property
    def shares(self) -> Array:
        """The weights, adding up to one."""
        return (
            np.full(len(self), 1 / len(self)) if self.weights is None else self.weights / self.weights.sum()
        )

    @property
    def units(self) -> Integers:
        """The number of each draw's cluster, from 0 without gaps; of the draw itself where it has none."""
        if self.cluster is None:
            return np.arange(len(self))
        return np.unique(self.cluster, return_inverse=True)[1]

    @property
    def groups(self) -> int:
        """How many independent draws there are, or clusters of them."""
        return len(self) if self.cluster is None else len(np.unique(self.cluster))

    @property
    def effective(self) -> float:
        """How many draws of equal weight tell as much."""
        return effective_number(None if self.weights is None else torch.from_numpy(self.weights), len(self))

    def variance(self, influence: Array) -> float:
        """Return the variance of a sum to which each draw adds its influence."""
        cluster = None if self.cluster is None else torch.from_numpy(self.cluster)
        return float(variance_of_sum(torch.from_numpy(influence), cluster))


def affordable_draws(d: int) -> int | None:
    """Return the number of draws whose neighbors take a few seconds in d dimensions; None where any number is fast.

    A search tree visits more of its leaves in more dimensions. From 11 dimensions on all distances are computed.
    """
    return _AFFORDABLE.get(d, None if d < min(_AFFORDABLE) else _AFFORDABLE_BY_PRODUCTS)


def with_weight(samples: Samples) -> Samples:
    """Leave out the draws of weight 0, which must not count as seen, nor their clusters as clusters."""
    if samples.weights is None or bool((samples.weights > 0).all()):
        return samples
    kept = samples.weights > 0
    found = copy.copy(samples)
    found.tensor, found.weights = samples.tensor[kept.to(samples.tensor.device)], samples.weights[kept]
    if samples.cluster is not None:
        found.cluster = torch.unique(samples.cluster[kept.to(samples.cluster.device)], return_inverse=True)[1]
    return found


def numpy_of(samples: Samples) -> Array:
    """Return the draws as a float64 array of shape (n, d) on the CPU."""
    return samples.tensor.detach().to("cpu", torch.float64).numpy()


def shares_of(samples: Samples, like: Tensor) -> Tensor:
    """Return the weights of draws adding up to one, in the dtype and on the device of a tensor."""
    if samples.weights is None:
        return torch.full((len(samples),), 1 / len(samples), dtype=like.dtype, device=like.device)
    weights = samples.weights.to(like)
    return weights / weights.sum()


def effective_number(weights: Tensor | None, n: int) -> float:
    r"""Return how many draws of equal weight tell as much, :math:`(\sum w)^2 / \sum w^2`.

    Survey Sampling (Kish, 1965)
    """
    if weights is None:
        return float(n)
    return float(weights.sum() ** 2 / weights.square().sum())


def clusters_in(samples: Samples) -> int | None:
    """Return how many clusters there are; None where each draw is its own."""
    return None if samples.cluster is None else int(samples.cluster.max()) + 1


def variance_of_sum(terms: Tensor, cluster: Tensor | None = None) -> Tensor:
    r"""Return the variance of a sum of terms with mean 0, those of one cluster dependent on each other.

    .. math:: f \sum_{c=1}^C \Bigl(\sum_{i \in c} t_i\Bigr)^2

    with f the `cluster_correction` of the clusters' sizes, :math:`C / (C - 1)` where these are equal. It is infinite
    for fewer than two terms or clusters. Longitudinal data analysis using generalized linear models (Liang and Zeger,
    1986)
    """
    sizes = torch.ones_like(terms)
    if cluster is not None:
        cluster = cluster.to(terms.device)
        sizes = torch.bincount(cluster).to(terms.dtype)
        terms = terms.new_zeros(len(sizes)).index_add(0, cluster, terms)
    if int((sizes > 0).sum()) < 2:
        return torch.full_like(terms.sum(), torch.inf)
    return terms.square().sum() * cluster_correction(sizes)


def cluster_correction(sizes: Any) -> float:
    r"""Return by what to multiply the squared deviations of clusters from a mean that they are part of.

    With their shares :math:`s_c` of the draws, it is
    :math:`\sum_c s_c^2 / \sum_c s_c^2 (1 - 2 s_c + \sum_b s_b^2)`; infinite for one cluster.
    """
    shares = sizes / sizes.sum()
    squares = shares**2
    rest = float((squares * (1 - 2 * shares + squares.sum())).sum())
    return float(squares.sum()) / rest if rest > 0 else float("inf")


def number_from_scores(scores: Array, draws: Draws) -> float:
    """Return how many independent draws of equal weight tell as much about the means of some scores, shape (n, J).

    It is Kish's number over the design effect: by how much clusters multiply the variance of these means.
    """
    if draws.cluster is None:
        return draws.effective
    shares = draws.shares[:, None]
    terms = shares * (scores - (shares * scores).sum(0))
    units = draws.units
    sums = np.stack([np.bincount(units, column) for column in terms.T])
    effect = float(np.square(sums).sum() / np.square(terms).sum())
    return draws.effective / max(effect, 1.0)


def few_clusters(clusters: float, quantile: float) -> float:
    """Return by how much a normal quantile has to be multiplied where the variance comes from so many clusters.

    It turns the quantile into that of Student's t with one degree of freedom less than there are clusters, by the first
    terms of the expansion of Cornish and Fisher (1938).
    """
    if clusters < 2:
        return float("inf")
    z, dof = quantile, clusters - 1
    t = z + (z**3 + z) / (4 * dof) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * dof**2)
    return t / z
