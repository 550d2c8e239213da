"""The density of continuous draws, estimated at each draw from its nearest neighbors, with weights and clusters."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kullback.estimators.draws import Array, Integers
from kullback.estimators.knn.pilot import gaussianized

# `benchmarks/coverage.py` checks the constants of this file on hard pairs: the coverage of 95 % intervals must be at
# least 93 %.

# A search handles this number of queries at a time, which limits the memory.
_BLOCK = 20_000
# For draws with clusters, the estimate is the mean over this number of random choices of one draw from each cluster.
_CHOICES = 4


class LocalDensity(NamedTuple):
    """The density of P at its draws.

    Attributes:
        logs: estimates of log p at each draw, one for each of the two numbers of neighbors, shape (n, 2); infinite at
            an atom.
        log_weights: the logarithm of the mean weight of each draw's neighbors, relative to the mean of all weights,
            shape (n,).
        weights_vary: whether the weights depend on the position of the draws. If True, `log_weights` is included in
            `logs`; otherwise `log_weights` is 0.
    """

    logs: Array
    log_weights: Array
    weights_vary: bool


def local_log_density(
    x: Array,
    numbers: tuple[int, int],
    weights: Array | None = None,
    cluster: Integers | None = None,
    rng: np.random.Generator | None = None,
    weights_vary: bool | None = None,
) -> LocalDensity:
    """Return estimates of log p at each draw, for two numbers of neighbors, as a `LocalDensity`.

    With clusters, the neighbors of a draw are searched among one draw of each other cluster, chosen at random. The
    weight of a chosen draw is multiplied by the size of its cluster. The result is the mean over several such choices.

    If the weights depend on the position of the draws, the density at a draw is multiplied by the mean weight of its
    neighbors. If the weights do not depend on position, this factor would add a bias, because the logarithm of a mean
    of few weights is too low on average. So the factor is used only if it increases the likelihood of the draws under
    the density estimated from their neighbors.

    Arguments:
        x: the draws, shape (n, d).
        numbers: the two numbers of neighbors.
        weights: the weights of the draws, shape (n,); equal by default.
        cluster: the number of each draw's cluster, shape (n,); None for independent draws.
        rng: the generator that chooses draws from clusters.
        weights_vary: whether the weights depend on the position; None tests this dependence.
    """
    n = len(x)
    own = np.ones(n) if weights is None else weights / weights.mean()
    z, log_volume = gaussianized(x, np.ones(n) if weights is None else weights)
    if cluster is None:
        everyone = np.arange(n)
        logs, log_weights, excess = _densities_among(z, everyone, everyone, numbers, own)
    else:
        counted = np.bincount(cluster)[cluster] * own
        rng = rng or np.random.default_rng()
        logs, log_weights, excess = np.zeros((n, 2)), np.zeros(n), 0.0
        for _ in range(_CHOICES):
            order = rng.permutation(n)
            chosen = order[np.unique(cluster[order], return_index=True)[1]]
            for_choice = _densities_among(z, chosen, cluster, numbers, counted)
            logs, log_weights = logs + for_choice[0], log_weights + for_choice[1]
            excess += for_choice[2] / _CHOICES
        logs, log_weights = logs / _CHOICES, log_weights / _CHOICES
    if weights_vary is None:
        weights_vary = float(own @ log_weights) / n > excess
    log_weights = log_weights if weights_vary else np.zeros(n)
    return LocalDensity(logs + (log_volume + log_weights)[:, None], log_weights, weights_vary)


def _densities_among(
    z: Array, chosen: Integers, units: Integers, numbers: tuple[int, int], weights: Array
) -> tuple[Array, Array, float]:
    """Return estimates of the log-density at the points z from their neighbors among the points `chosen`.

    `units` has the number of each point's cluster, or of the point itself. `chosen` has one point of each cluster.

    Returns:
        the log-densities, shape (n, 2); the logarithm of the mean weight of each point's neighbors, shape (n,); and the
        logarithm of the chosen points' average of this mean weight. The last result is 0 if the mean weights
        have mean 1, like the values of a density ratio.
    """
    from scipy import special
    from scipy.spatial import KDTree

    n, d = z.shape
    tree = KDTree(z[chosen])
    ball = d / 2 * np.log(np.pi) - special.gammaln(d / 2 + 1)
    logs, log_weights = np.empty((n, 2)), np.zeros(n)
    is_uneven = np.ptp(weights[chosen]) > 0
    for start in range(0, n, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, n))
        distances, index = tree.query(z[rows], numbers[1] + 1)
        near = chosen[index]
        # The search returns one extra neighbor. If a neighbor is from the query's own unit, this neighbor is left out.
        # Otherwise, the most distant neighbor is left out.
        others = units[near] != units[rows][:, None]
        others[others.all(1), -1] = False
        distances = distances[others].reshape(len(rows), -1)
        with np.errstate(divide="ignore"):
            logs[rows] = -ball - d * np.log(distances[:, [numbers[0] - 1, numbers[1] - 1]])
        if is_uneven:
            local = weights[near[others]].reshape(len(rows), -1).mean(axis=1) / weights[chosen].mean()
            log_weights[rows] = np.log(np.where(local > 0, local, 1))
    excess = float(special.logsumexp(log_weights[chosen])) - math.log(len(chosen)) if is_uneven else 0.0
    return logs + special.digamma(np.asarray(numbers)) - special.digamma(len(chosen)), log_weights, excess
