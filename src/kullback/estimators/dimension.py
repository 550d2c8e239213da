"""The number of dimensions that vectors fill at the distance of their neighbors, and the fewest for a density."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from kullback.common.optional import load
from kullback.estimators.draws import Array

# `tests/estimators/test_surfaces.py` checks the constants of this file on curves, on surfaces, and on draws that fill
# all dimensions.

# The number of draws with neighbors, and the number of queries, which limit the time.
_MOST_DRAWS, _MOST_QUERIES = 10_000, 1000
# The limit of the dimension is this share of the way between two measured dimensions: of a normal distribution with one
# component less, and of one with all components.
_SHARE = 0.25
# Up to this many standard errors below a normal distribution's dimension may be chance.
_CHANCE = 2.0
# The numbers of neighbors for a comparison of two sides, the most dimensions, and the smallest difference.
_KS, _MOST_DIMENSIONS, _ONE_LESS = (4, 16), 10, 0.7
# The number of radii for balls of a normal distribution.
_RADII = 64


def too_few_dimensions(points: Array, whitened: Array, ks: tuple[int, int]) -> float | None:
    """Return the dimension of points if it is below `fewest_dimensions`, otherwise None.

    Distant clusters look flat, because the distance between them sets the scale. So points that look flat after
    whitening are measured again, in coordinates with equal differences of neighbors in all directions. A curved surface
    is flat in both.
    """
    step = -(-len(points) // _MOST_DRAWS)
    points, whitened = points[::step], whitened[::step]
    n, d = points.shape
    if d < 2 or n <= ks[1]:
        return None
    least = fewest_dimensions(ks, n, d)
    if _measured(whitened, ks) >= least:
        return None
    dimension = _measured(_locally_scaled(points, ks[0]), ks)
    return dimension if dimension < least else None


def fills_less(x: Array, y: Array) -> bool:
    """Return whether one of two sets of points fills at least one dimension less than the other and its components."""
    if not 1 < x.shape[1] <= _MOST_DIMENSIONS:
        return False
    fewer = [
        too_few_dimensions(points, (points - points.mean(0)) / _spread(points), _KS) for points in (x, y)
    ]
    dimensions = [x.shape[1] if d is None else d for d in fewer]
    return abs(dimensions[0] - dimensions[1]) > _ONE_LESS


def _spread(points: Array) -> Array:
    spread = points.std(0)
    return np.where(spread > 0, spread, 1.0)


def _measured(points: Array, ks: tuple[int, int]) -> float:
    """Return the dimension from the distances of some points to their neighbors, without coincident points."""
    tree = load("scipy.spatial", "nearest_neighbors").cKDTree(points)
    distance = tree.query(_some(points), [ks[0] + 1, ks[1] + 1])[0]
    apart = distance[distance[:, 0] > 0]
    return dimension_of(float(np.log(apart[:, 1] / apart[:, 0]).mean()), ks) if len(apart) else math.inf


def _locally_scaled(points: Array, k: int) -> Array:
    """Return points in coordinates with mean square steps of 1 to k neighbors in each direction."""
    tree = load("scipy.spatial", "nearest_neighbors").cKDTree(points)
    queries = _some(points)
    steps = (points[tree.query(queries, k + 1)[1][:, 1:]] - queries[:, None]).reshape(-1, points.shape[1])
    values, vectors = np.linalg.eigh(steps.T @ steps / len(steps))
    return points @ (vectors / np.sqrt(np.maximum(values, np.finfo(np.float64).eps * values[-1])))


def _some(points: Array) -> Array:
    return points[:: -(-len(points) // _MOST_QUERIES)]


def dimension_of(growth: float, ks: tuple[int, int]) -> float:
    r"""Return the d of :math:`E[\log \rho_K - \log \rho_k] = (\psi(K) - \psi(k)) / d`.

    Maximum Likelihood Estimation of Intrinsic Dimension (Levina and Bickel, 2004) is the same for neighboring k.

    Arguments:
        growth: the mean of the log-ratio of the distances to the K-th and to the k-th neighbor.
        ks: k and K.
    """
    return _steps(ks) / growth if growth > 0 else math.inf


def fewest_dimensions(ks: tuple[int, int], n: int, d: int) -> float:
    """Return the dimension below which n draws are nearer to a set of d - 1 dimensions than to all d.

    It is measured as in `dimension_of`: the balls of few draws are wide, and a normal distribution then shows fewer
    than its d dimensions.
    """
    full, below = _of_normal(ks, n, d), _of_normal(ks, n, d - 1)
    # The log-ratio of two neighbors' distances has the variance of a sum of exponentials; neighbors share draws.
    spread = full * math.sqrt(2 * sum(1 / j**2 for j in range(*ks)) / n) / _steps(ks)
    return min(below + _SHARE * (full - below), full - _CHANCE * spread)


def _steps(ks: tuple[int, int]) -> float:
    return sum(1 / j for j in range(*ks))


@lru_cache(maxsize=256)
def _of_normal(ks: tuple[int, int], n: int, d: int) -> float:
    """Return the measured dimension of n draws of a standard normal distribution in d dimensions."""
    special = load("scipy.special", "nearest_neighbors")
    square = 2 * special.gammaincinv(d / 2, (np.arange(_RADII) + 0.5) / _RADII)
    masses = [math.exp(float(special.digamma(k) - special.digamma(n))) for k in ks]
    near, far = (special.chndtrix(mass, d, square) for mass in masses)
    return dimension_of(float(np.log(far / near).mean()) / 2, ks)
