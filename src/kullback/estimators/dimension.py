"""How many dimensions vectors fill at the distance of their neighbors, and how few are too few for a density."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from kullback.common.optional import load
from kullback.estimators.draws import Array

__all__ = ["dimension_of", "fewest_dimensions", "fills_less", "too_few_dimensions"]

# Draws among which neighbors are looked for, and how many of them look.
_MOST_DRAWS, _MOST_QUERIES = 10_000, 1000
# Between the dimension of a normal distribution and that of one with a component less, this share above the latter.
_SHARE = 0.25
# So many standard errors below that of a normal distribution may be chance.
_CHANCE = 2.0
# Numbers of neighbors by which two sides are compared, in so many dimensions, and by how much they have to differ.
_KS, _MOST_DIMENSIONS, _ONE_LESS = (4, 16), 10, 0.7
# Radii at which a normal distribution's balls are looked at.
_RADII = 64


def too_few_dimensions(points: Array, whitened: Array, ks: tuple[int, int]) -> float | None:
    """Return the dimension of points where it is below `fewest_dimensions`, None elsewhere.

    Clusters far apart look flat where the distance between them sets the scale. So points that look flat when they are
    whitened are measured again, in coordinates in which neighbors differ as much in all directions. A curved surface
    fills its space in neither.
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
    """Say whether one of two sets of points fills at least one dimension less than the other, and than it has."""
    if not 1 < x.shape[1] <= _MOST_DIMENSIONS:
        return False
    found = [
        too_few_dimensions(points, (points - points.mean(0)) / _spread(points), _KS) for points in (x, y)
    ]
    dimensions = [x.shape[1] if d is None else d for d in found]
    return abs(dimensions[0] - dimensions[1]) > _ONE_LESS


def _spread(points: Array) -> Array:
    spread = points.std(0)
    return np.where(spread > 0, spread, 1.0)


def _measured(points: Array, ks: tuple[int, int]) -> float:
    """Return the dimension by the distances of some points to their neighbors; those that coincide have none."""
    tree = load("scipy.spatial", "nearest_neighbors").cKDTree(points)
    distance = tree.query(_some(points), [ks[0] + 1, ks[1] + 1])[0]
    apart = distance[distance[:, 0] > 0]
    return dimension_of(float(np.log(apart[:, 1] / apart[:, 0]).mean()), ks) if len(apart) else math.inf


def _locally_scaled(points: Array, k: int) -> Array:
    """Return points in coordinates in which the mean square of the steps to k neighbors is 1 in each direction."""
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
    """Return the dimension below which n draws are nearer to a set of d - 1 dimensions than to filling all d.

    It is measured as `dimension_of` does: the balls of few draws are wide, and then a normal distribution shows less
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
    """Return the dimension that n draws of a standard normal distribution in d dimensions show."""
    special = load("scipy.special", "nearest_neighbors")
    square = 2 * special.gammaincinv(d / 2, (np.arange(_RADII) + 0.5) / _RADII)
    masses = [math.exp(float(special.digamma(k) - special.digamma(n))) for k in ks]
    near, far = (special.chndtrix(mass, d, square) for mass in masses)
    return dimension_of(float(np.log(far / near).mean()) / 2, ks)
