"""The intrinsic dimension of draws, from distances to neighbors, and its comparison with the number of components."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from kullback.estimators.draws import Array

# `tests/estimators/test_surfaces.py` checks the constants of this file on curves, on surfaces, and on draws that fill
# all dimensions.

# To limit the time, neighbors are searched among at most `_MOST_DRAWS` draws, for at most `_MOST_QUERIES` of them.
_MOST_DRAWS, _MOST_QUERIES = 10_000, 1000
# A measured dimension counts as d if it is at least a + `_SHARE` (b - a). Here a is the dimension measured for a normal
# distribution with d - 1 components, and b the dimension measured for a normal distribution with d components.
_SHARE = 0.25
# A measured dimension may be below the dimension of a normal distribution by chance, by up to this number of standard
# errors.
_CHANCE = 2.0
# `fills_less` compares the dimensions of P's and Q's draws for these two numbers of neighbors, for at most
# `_MOST_DIMENSIONS` components. Dimensions that differ by more than `_ONE_LESS` count as unequal.
_KS, _MOST_DIMENSIONS, _ONE_LESS = (4, 16), 10, 0.7
# A mean over the points of a normal distribution is computed as the mean over this number of quantiles of the radius.
_RADII = 64


def too_few_dimensions(points: Array, whitened: Array, ks: tuple[int, int]) -> float | None:
    """Return the intrinsic dimension of points if it is below `fewest_dimensions`, otherwise None.

    If the points form distant clusters, whitening scales by the distance between clusters, and each cluster may look
    flat. So if the dimension is too small after whitening, it is measured again in `_locally_scaled` coordinates. For
    points on a curved surface, the dimension is too small in both coordinate systems.

    Arguments:
        points: the points, shape (n, d).
        whitened: the same points after whitening, shape (n, d).
        ks: the two numbers of neighbors, as for `dimension_of`.
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
    """Return whether the intrinsic dimensions of two sets of points, shape (n, d), differ by more than `_ONE_LESS`.

    The result is False if d is 1 or above `_MOST_DIMENSIONS`.
    """
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
    """Return the intrinsic dimension of points by `dimension_of`; points that coincide with a neighbor are ignored."""
    from scipy.spatial import cKDTree  # pyright: ignore[reportAttributeAccessIssue]

    tree = cKDTree(points)
    distance = tree.query(_some(points), [ks[0] + 1, ks[1] + 1])[0]
    apart = distance[distance[:, 0] > 0]
    return dimension_of(float(np.log(apart[:, 1] / apart[:, 0]).mean()), ks) if len(apart) else math.inf


def _locally_scaled(points: Array, k: int) -> Array:
    """Return the points after a linear map that normalizes the differences between neighbors.

    After the map, these differences have mean square 1 in each direction. `k` is the number of neighbors of each point.
    """
    from scipy.spatial import cKDTree  # pyright: ignore[reportAttributeAccessIssue]

    tree = cKDTree(points)
    queries = _some(points)
    steps = (points[tree.query(queries, k + 1)[1][:, 1:]] - queries[:, None]).reshape(-1, points.shape[1])
    values, vectors = np.linalg.eigh(steps.T @ steps / len(steps))
    return points @ (vectors / np.sqrt(np.maximum(values, np.finfo(np.float64).eps * values[-1])))


def _some(points: Array) -> Array:
    return points[:: -(-len(points) // _MOST_QUERIES)]


def dimension_of(growth: float, ks: tuple[int, int]) -> float:
    r"""Return the dimension d that solves :math:`E[\log \rho_K - \log \rho_k] = (\psi(K) - \psi(k)) / d`.

    Here :math:`\rho_k` is the distance to the k-th neighbor, and :math:`\psi` is the digamma function. For K = k + 1,
    the result is the estimate of Levina and Bickel, Maximum Likelihood Estimation of Intrinsic Dimension (2004).

    Arguments:
        growth: the mean of the log-ratio of the distances to the K-th and to the k-th neighbor.
        ks: k and K.
    """
    return _steps(ks) / growth if growth > 0 else math.inf


def fewest_dimensions(ks: tuple[int, int], n: int, d: int) -> float:
    """Return the measured dimension below which n draws of d components count as having fewer than d dimensions.

    `ks` is the argument of `dimension_of`. The limit depends on n: if n is small, neighbors are distant, and
    `dimension_of` returns less than d even for draws of a normal distribution.
    """
    full, below = _of_normal(ks, n, d), _of_normal(ks, n, d - 1)
    # `spread` is the standard error of the measured dimension. The log-ratio of the distances to two neighbors has the
    # variance of a sum of exponential variables. The factor 2 allows for neighbors that several queries have in common.
    spread = full * math.sqrt(2 * sum(1 / j**2 for j in range(*ks)) / n) / _steps(ks)
    return min(below + _SHARE * (full - below), full - _CHANCE * spread)


def _steps(ks: tuple[int, int]) -> float:
    return sum(1 / j for j in range(*ks))


@lru_cache(maxsize=256)
def _of_normal(ks: tuple[int, int], n: int, d: int) -> float:
    """Return the result of `dimension_of` with `ks` for n draws of a standard normal distribution in d dimensions."""
    from scipy import special

    square = 2 * special.gammaincinv(d / 2, (np.arange(_RADII) + 0.5) / _RADII)
    masses = [math.exp(float(special.digamma(k) - special.digamma(n))) for k in ks]
    near, far = (special.chndtrix(mass, d, square) for mass in masses)
    return dimension_of(float(np.log(far / near).mean()) / 2, ks)
