"""Draws for estimators: weights, clusters, and the variance of sums over them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kullback.samples import Samples

Array = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

# The largest number of draws of each side, by dimensions.
_AFFORDABLE = {6: 30_000, 7: 15_000, 8: 10_000, 9: 8000, 10: 6000}
_AFFORDABLE_BY_PRODUCTS = 20_000
# The fourth power of smaller values is finite.
_HUGE = 1e75


@dataclass(frozen=True)
class Draws:
    """Draws as arrays.

    Attributes:
        x: the coordinates, shape (n, d).
        weights: the weight of each draw, shape (n,); None if all are equal.
        cluster: the cluster of each draw, shape (n,); None if draws are independent.
    """

    x: Array
    weights: Array | None
    cluster: Integers | None

    @classmethod
    def of(cls, samples: Samples) -> Draws:
        """Return the draws of `samples` on the CPU, without draws of weight 0."""
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
        """Return at most this number of draws, chosen at random, in their order."""
        if len(self) <= number:
            return self
        return self.taken(np.sort(rng.choice(len(self), number, replace=False)))

    @property
    def shares(self) -> Array:
        """The weights, normalized to sum 1."""
        return (
            np.full(len(self), 1 / len(self)) if self.weights is None else self.weights / self.weights.sum()
        )

    @property
    def units(self) -> Integers:
        """The number of each draw's cluster, from 0 without gaps; the number of the draw itself without clusters."""
        if self.cluster is None:
            return np.arange(len(self))
        return np.unique(self.cluster, return_inverse=True)[1]

    @property
    def groups(self) -> int:
        """The number of independent draws or clusters."""
        return len(self) if self.cluster is None else len(np.unique(self.cluster))

    @property
    def effective(self) -> float:
        """The number of equally weighted draws with the same information."""
        return effective_number(None if self.weights is None else torch.from_numpy(self.weights), len(self))

    def variance(self, influence: Array) -> float:
        """Return the variance of a sum of the draws' influences."""
        cluster = None if self.cluster is None else torch.from_numpy(self.cluster)
        return float(variance_of_sum(torch.from_numpy(influence), cluster))


def affordable_draws(d: int) -> int | None:
    """Return the number of draws whose neighbors take a few seconds in d dimensions; None if any number is fast.

    A search tree visits more of its leaves in more dimensions. With 11 dimensions or more, all distances are computed.
    """
    return _AFFORDABLE.get(d, None if d < min(_AFFORDABLE) else _AFFORDABLE_BY_PRODUCTS)


def with_weight(samples: Samples) -> Samples:
    """Leave out the draws of weight 0, which must not count as observed, and clusters of such draws."""
    if samples.weights is None or bool((samples.weights > 0).all()):
        return samples
    kept = samples.weights > 0
    used = copy.copy(samples)
    used.tensor, used.weights = samples.tensor[kept.to(samples.tensor.device)], samples.weights[kept]
    if samples.cluster is not None:
        used.cluster = torch.unique(samples.cluster[kept.to(samples.cluster.device)], return_inverse=True)[1]
    return used


def in_usual_units(p: Samples, q: Samples) -> tuple[Samples, Samples]:
    """Return numbers with each column of huge or tiny values in another unit, a power of two; KL does not change.

    Products of such values would overflow or underflow.
    """
    if p.discrete or q.discrete or p.tensor.shape[1] != q.tensor.shape[1]:
        return p, q
    largest = torch.maximum(*(side.tensor.detach().abs().amax(0).cpu().double() for side in (p, q)))
    is_extreme = (largest > 0) & (largest < torch.inf) & ((largest > _HUGE) | (largest < 1 / _HUGE))
    if not bool(is_extreme.any()):
        return p, q
    exponent = torch.where(is_extreme, torch.frexp(largest).exponent, 0)
    sides = copy.copy(p), copy.copy(q)
    for side in sides:
        side.tensor = torch.ldexp(side.tensor.double(), -exponent.to(side.tensor.device))
        side.unit = torch.ldexp(torch.ones_like(largest), exponent)
    return sides


def numpy_of(samples: Samples) -> Array:
    """Return the draws as a float64 array of shape (n, d) on the CPU."""
    return samples.tensor.detach().to("cpu", torch.float64).numpy()


def shares_of(samples: Samples, like: Tensor) -> Tensor:
    """Return the weights of draws, normalized to sum 1, in the dtype and on the device of a tensor."""
    if samples.weights is None:
        return torch.full((len(samples),), 1 / len(samples), dtype=like.dtype, device=like.device)
    weights = samples.weights.to(like)
    return weights / weights.sum()


def effective_number(weights: Tensor | None, n: int) -> float:
    r"""Return the number of equally weighted draws with the same information, :math:`(\sum w)^2 / \sum w^2`.

    Survey Sampling (Kish, 1965)
    """
    if weights is None:
        return float(n)
    return float(weights.sum() ** 2 / weights.square().sum())


def clusters_in(samples: Samples) -> int | None:
    """Return the number of clusters; None without clusters."""
    return None if samples.cluster is None else int(samples.cluster.max()) + 1


def variance_of_sum(terms: Tensor, cluster: Tensor | None = None) -> Tensor:
    r"""Return the variance of a sum of terms with mean 0, with dependent terms within clusters.

    .. math:: f \sum_{c=1}^C \Bigl(\sum_{i \in c} t_i\Bigr)^2

    with f the `cluster_correction` of the clusters' sizes, :math:`C / (C - 1)` for equal sizes. It is infinite for
    fewer than two terms or clusters. Longitudinal data analysis using generalized linear models (Liang and Zeger, 1986)
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
    r"""Return the factor for squared deviations of clusters from a mean that includes them.

    With their shares :math:`s_c` of the draws, it is
    :math:`\sum_c s_c^2 / \sum_c s_c^2 (1 - 2 s_c + \sum_b s_b^2)`; infinite for one cluster.
    """
    shares = sizes / sizes.sum()
    squares = shares**2
    rest = float((squares * (1 - 2 * shares + squares.sum())).sum())
    return float(squares.sum()) / rest if rest > 0 else float("inf")


def number_from_scores(scores: Array, draws: Draws) -> float:
    """Return the number of independent draws with the same information on the means of some scores, shape (n, J).

    It is Kish's number divided by the design effect of clusters on the variance of these means.
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
    """Return the ratio of Student's quantile to a normal one for a variance from this number of clusters."""
    return student_ratio(clusters - 1, quantile) if clusters >= 2 else float("inf")


def student_ratio(dof: Any, quantile: float) -> Any:
    """Return Student's quantile over the normal one, by the first terms of Cornish and Fisher's expansion (1938)."""
    z = quantile
    return (z + (z**3 + z) / (4 * dof) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * dof**2)) / z
