"""The entropy of P from draws: from nearest neighbors for numbers, from counts for categories.

The distance to the k-th neighbor of a draw gives the log-density there (Sample estimate of the entropy of a random
vector, Kozachenko and Leonenko, 1987). In coordinates of one scale, the error of its mean depends only on the shape of
P. It can be measured on reference draws with a known density, and subtracted.
"""

from __future__ import annotations

import numpy as np

from kullback.common.optional import load
from kullback.common.special import HALF_LOG_2PI
from kullback.estimators.draws import Array, Integers

# The candidates for a coordinate's tails, in degrees of freedom of Student's t; the last is the Gaussian.
_DOFS = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, np.inf)
_ENOUGH_TO_MATCH = 10_000
_BLOCK = 20_000
_CHOICES = 4


class FlatError(Exception):
    """The draws are in a plane of fewer dimensions."""


def neighbor_numbers(n: float) -> tuple[int, int]:
    """Return the number of neighbors for the value, and a larger number that shows its bias."""
    k = int(min(max(round(n ** (1 / 3)), 3), 10))
    return k, 4 * k


def local_log_density(
    x: Array,
    numbers: tuple[int, int],
    weights: Array | None = None,
    cluster: Integers | None = None,
    rng: np.random.Generator | None = None,
) -> Array:
    """Estimate log p at each draw with either number of neighbors, shape (n, 2); infinite at an atom.

    Weights multiply the density by the mean weight of the neighbors. In clusters, the neighbors of a draw come from one
    draw of each other cluster, chosen by `rng`, several times.
    """
    n = len(x)
    z, log_volume = _gaussianized(x, np.ones(n) if weights is None else weights)
    if cluster is None:
        return _by_neighbors(z, np.arange(n), np.arange(n), numbers, weights) + log_volume[:, None]
    sizes = np.bincount(cluster)
    counted = sizes[cluster] * (np.ones(n) if weights is None else weights)
    rng = rng or np.random.default_rng()
    total = np.zeros((n, 2))
    for _ in range(_CHOICES):
        order = rng.permutation(n)
        chosen = order[np.unique(cluster[order], return_index=True)[1]]
        total += _by_neighbors(z, chosen, cluster, numbers, counted if np.ptp(counted) > 0 else None)
    return total / _CHOICES + log_volume[:, None]


def _by_neighbors(
    z: Array, chosen: Integers, units: Integers, numbers: tuple[int, int], weights: Array | None
) -> Array:
    """Estimate the log-density at all points from the distances to the chosen ones, one in each unit."""
    special = load("scipy.special", "from_density")
    n, d = z.shape
    tree = load("scipy.spatial", "from_density").KDTree(z[chosen])
    ball = d / 2 * np.log(np.pi) - special.gammaln(d / 2 + 1)
    logs = np.empty((n, 2))
    for start in range(0, n, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, n))
        distances, index = tree.query(z[rows], numbers[1] + 1)
        near = chosen[index]
        # Leave out the one of the same unit, or the farthest if that one is not among them.
        others = units[near] != units[rows][:, None]
        others[others.all(1), -1] = False
        distances = distances[others].reshape(len(rows), -1)
        with np.errstate(divide="ignore"):
            logs[rows] = -ball - d * np.log(distances[:, [numbers[0] - 1, numbers[1] - 1]])
        if weights is not None:
            local = weights[near[others]].reshape(len(rows), -1).mean(axis=1) / weights[chosen].mean()
            logs[rows] += np.log(np.where(local > 0, local, 1))[:, None]
    return logs + special.digamma(np.asarray(numbers)) - special.digamma(len(chosen))


def _gaussianized(x: Array, weights: Array) -> tuple[Array, Array]:
    """Return nearly Gaussian, uncorrelated coordinates, and the log-volume of their change at each draw.

    Each coordinate is mapped by the distribution function of the best Student's t to a Gaussian one, and then all by a
    linear map. Both leave KL unchanged.
    """
    columns, log_derivatives = zip(
        *(_gaussianized_coordinate(column, weights) for column in x.T), strict=True
    )
    z = np.stack(columns, axis=1)
    z = z - np.average(z, axis=0, weights=weights)
    covariance = (z * (weights / weights.sum())[:, None]).T @ z
    scales = np.sqrt(np.diag(covariance))
    if not (scales > 0).all() or np.linalg.cond(covariance / np.outer(scales, scales)) > 1e14:
        raise FlatError
    root = np.linalg.cholesky(covariance)
    z = np.linalg.solve(root, z.T).T
    return z, np.sum(log_derivatives, axis=0) - np.log(np.diag(root)).sum()


def _gaussianized_coordinate(column: Array, weights: Array) -> tuple[Array, Array]:
    """Map a coordinate from the Student's t that fits it best to a Gaussian; return it and the log-derivative."""
    special = load("scipy.special", "from_density")
    stride = -(-len(column) // _ENOUGH_TO_MATCH)
    some, counted = column[::stride], weights[::stride]
    quartiles = np.quantile(some, [0.25, 0.5, 0.75], weights=counted, method="inverted_cdf")
    best, dof, center, scale = -np.inf, np.inf, 0.0, 1.0
    for trial in _DOFS:
        if np.isinf(trial):
            middle = float(np.average(some, weights=counted))
            width = float(np.sqrt(np.average((some - middle) ** 2, weights=counted)))
        else:
            middle = float(quartiles[1])
            width = float(quartiles[2] - quartiles[0]) / (2 * float(special.stdtrit(trial, 0.75)))
        if width <= 0:
            continue
        fit = float(np.average(_log_student((some - middle) / width, trial), weights=counted)) - np.log(width)
        if fit > best:
            best, dof, center, scale = fit, trial, middle, width
    if best == -np.inf:
        raise FlatError
    u = (column - center) / scale
    if np.isinf(dof):
        return u, np.full(len(u), -np.log(scale))
    mapped = -np.sign(u) * special.ndtri(special.stdtr(dof, -np.abs(u)))
    return mapped, _log_student(u, dof) - np.log(scale) - _log_student(mapped, np.inf)


def _log_student(u: Array, dof: float) -> Array:
    """Return the log-density of Student's t, the Gaussian with infinitely many degrees of freedom."""
    if np.isinf(dof):
        return -(u**2) / 2 - HALF_LOG_2PI
    special = load("scipy.special", "from_density")
    half = (dof + 1) / 2
    constant = special.gammaln(half) - special.gammaln(dof / 2) - 0.5 * np.log(dof * np.pi)
    return np.asarray(constant - half * np.log1p(u**2 / dof), dtype=np.float64)


def category_surprise(counts: Array, n: float) -> tuple[Array, float]:
    r"""Estimate the surprise :math:`-\log p` of each category from its count, and the bias of its mean.

    The mean of :math:`\psi(n) - \psi(a_i)` over the draws is the entropy, except for
    :math:`\sum_{r \ge n} \frac1r \sum_i p_i (1 - p_i)^r`. Categories with one or two draws predict this sum.

    Entropy and the species accumulation curve (Chao, Wang and Jost, 2013)
    """
    digamma = load("scipy.special", "from_density").digamma
    once, twice = float((counts == 1).sum()), float((counts == 2).sum())
    surprise = digamma(n) - digamma(counts)
    if once == 0:
        return surprise, 0.0
    rate = 2 * twice / ((n - 1) * once + 2 * twice) if twice else 2 / ((n - 1) * (once - 1) + 2)
    if rate >= 1:
        return surprise, 0.0
    terms = np.arange(n, n + min(50 / rate, 1e7))
    unseen = once / n * float(np.sum(np.exp((terms - n + 1) * np.log1p(-rate)) / terms))
    return surprise, unseen
