"""The density of continuous draws at each of them, from its nearest neighbors, with weights and clusters."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kullback.common.optional import load
from kullback.estimators.draws import Array, Integers
from kullback.estimators.knn.pilot import gaussianized

# `benchmarks/coverage.py` checks the constants of this file on hard pairs: 95 % intervals have to cover in 93 %.

# The number of queries of a search, which limits its memory.
_BLOCK = 20_000
# In clusters, the number of random choices of one draw from each.
_CHOICES = 4


class LocalDensity(NamedTuple):
    """The density of P at its draws.

    Attributes:
        logs: log p at each draw with either number of neighbors, shape (n, 2); infinite at an atom.
        log_weights: the logarithm of the mean weight near each draw, relative to the mean of all, shape (n,).
        weights_vary: whether the weights depend on the place, so that `logs` contain `log_weights`; else these are 0.
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
    """Estimate log p at each draw with either number of neighbors.

    In clusters, the neighbors of a draw come from one draw of each other cluster, chosen by `rng`, several times. Such
    a draw has its cluster's size times its own weight.

    Weights multiply the density by their mean near the draw, if they depend on the place. The draws decide: their
    likelihood is that of a density without the draw itself. If the weights are unrelated to the place, the logarithm
    of a mean of few of them would be too low.
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
    """Estimate the log-density at all points from the distances to the chosen ones, one in each unit.

    Also return the logarithm of the mean weight of the neighbors, and that of its mean over the chosen points, which
    is 0 for a density ratio.
    """
    special = load("scipy.special", "from_density")
    n, d = z.shape
    tree = load("scipy.spatial", "from_density").KDTree(z[chosen])
    ball = d / 2 * np.log(np.pi) - special.gammaln(d / 2 + 1)
    logs, log_weights = np.empty((n, 2)), np.zeros(n)
    is_uneven = np.ptp(weights[chosen]) > 0
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
        if is_uneven:
            local = weights[near[others]].reshape(len(rows), -1).mean(axis=1) / weights[chosen].mean()
            log_weights[rows] = np.log(np.where(local > 0, local, 1))
    excess = float(special.logsumexp(log_weights[chosen])) - math.log(len(chosen)) if is_uneven else 0.0
    return logs + special.digamma(np.asarray(numbers)) - special.digamma(len(chosen)), log_weights, excess
