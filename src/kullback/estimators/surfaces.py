"""Draws that do not fill all dimensions: linear dependence of components, curved surfaces, the intrinsic dimension.

Proportions, which sum to 1, and unit vectors, such as normalized embeddings, are examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from kullback.estimators.draws import Array, Draws, Integers, in_usual_units
from kullback.estimators.evidence import SIDE_P, SIDE_Q

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

    Whitening scales by the distance between distant clusters, and each may then look flat. So a small dimension is
    measured again in `_locally_scaled` coordinates. On a curved surface, it is small in both.
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
    """Return whether the intrinsic dimensions of two sets of up to ten components differ by more than `_ONE_LESS`."""
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
    """Return the points after a linear map that gives differences of k neighbors mean square 1 in each direction."""
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

    `growth` is this mean log-ratio of the distances :math:`\rho` to the K-th and the k-th neighbor, and `ks` is (k, K).
    For K = k + 1, it is Levina and Bickel's, Maximum Likelihood Estimation of Intrinsic Dimension (2004).
    """
    return _steps(ks) / growth if growth > 0 else math.inf


def fewest_dimensions(ks: tuple[int, int], n: int, d: int) -> float:
    """Return the measured dimension below which n draws of d components count as having fewer than d dimensions.

    If n is small, neighbors are distant, and `dimension_of` is less than d even for normal draws.
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


# `tests/estimators/test_surfaces.py` checks the constants of this file, and `benchmarks/coverage.py` has unit vectors.

# A sum counts as 0, up to rounding, if its absolute value is at most `_ROUNDING` times the sum of its absolute terms.
_ROUNDING = 1e-6
# Above this number of dimensions, quadrics have too many coefficients, so only spheres with center 0 are detected.
_MOST_FOR_QUADRIC = 12
# A quadric is fitted only if there are at least this number of distinct draws for each of its coefficients.
_DRAWS_FOR_COEFFICIENT = 2
# A component has an atom if more than this proportion of its values are equal. The points may then satisfy a
# quadratic equation although they are not on a smooth surface, so no quadric is detected.
_MOST_EQUAL = 0.05
# Draws up to this relative distance from a surface may be on the surface except for rounding, for example to float16.
_CLOSE = 0.01
# An ellipsoid is detected only if the ratio of any two of its semi-axes is at most this number.
_LONGEST_AXIS = 1e3


@dataclass(frozen=True)
class Surface:
    """A quadric (a surface with a quadratic equation) that contains all draws of one side.

    `distance` returns the relative residuals of points in the equation of the surface, and `tolerance` is the largest
    residual that can be a rounding error. `to_sphere` maps a sphere or an ellipsoid to the unit sphere.
    """

    name: str
    distance: Callable[[Array], Array]
    tolerance: float
    to_sphere: Callable[[Array], Array] | None

    def contains(self, points: Array) -> bool:
        """Return whether all points are on the surface."""
        return bool((self.distance(points) <= self.tolerance).all())

    def misses(self, points: Array) -> bool:
        """Return whether no point is on the surface and the median residual is too large for a rounding error."""
        distance = self.distance(points)
        return bool((distance > self.tolerance).all()) and float(np.median(distance)) > _CLOSE


def surface_of(points: Array, *dtypes: torch.dtype) -> Surface | None:
    """Return the quadric that contains all points of one side up to rounding to `dtypes`, or None."""
    d = points.shape[1]
    if d < 2 or not np.isfinite(points).all():
        return None
    epsilon = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
    return _sphere_about_zero(points, max(_ROUNDING, epsilon)) or (
        _quadric(points) if d <= _MOST_FOR_QUADRIC else None
    )


def _sphere_about_zero(points: Array, tolerance: float) -> Surface | None:
    radius = float(np.median(_norms(points)))
    if not radius > 0 or len(points) <= points.shape[1]:
        return None

    def distance(x: Array) -> Array:
        return np.abs(_norms(x) / radius - 1)

    surface = Surface("a sphere", distance, tolerance, lambda x: x / _norms(x)[:, None])
    return surface if surface.contains(points) else None


def _norms(points: Array) -> Array:
    return np.sqrt(np.square(points).sum(1))


def _quadric(points: Array) -> Surface | None:
    r"""Return the surface :math:`x^T A x + b^T x + c = 0` that contains the points, or None."""
    d = points.shape[1]
    coefficients = (d + 1) * (d + 2) // 2
    if len(np.unique(points[: 20 * coefficients], axis=0)) < _DRAWS_FOR_COEFFICIENT * coefficients:
        return None
    mean, spread = points.mean(0), points.std(0)
    if not (spread > _ROUNDING * np.abs(points).max(0)).all():
        return None
    rows, columns = np.triu_indices(d)

    def monomials(x: Array) -> Array:
        z = (x - mean) / spread
        return np.concatenate([z[:, rows] * z[:, columns], z, np.ones((len(z), 1))], axis=1)

    some = monomials(points[: 20 * coefficients])
    size = np.sqrt(np.square(some).mean(0))
    values, vectors = np.linalg.eigh((some / size).T @ (some / size) / len(some))
    flat = values <= _ROUNDING**2 * coefficients
    if not flat.any() or any(_has_atom(column) for column in points.T):
        return None
    equations = vectors[:, flat] / size[:, None]

    def distance(x: Array) -> Array:
        terms = monomials(x)
        return (np.abs(terms @ equations) / (np.abs(terms) @ np.abs(equations))).max(1)

    whitened = _ellipsoid(equations[:, 0], d) if equations.shape[1] == 1 else None
    surface = Surface("a curved surface", distance, 10 * _ROUNDING, None)
    if whitened is not None:
        center, root = whitened
        to_sphere = lambda x: ((x - mean) / spread - center) @ root  # noqa: E731
        surface = Surface("an ellipsoid", distance, 10 * _ROUNDING, to_sphere)
    return surface if surface.contains(points) else None


def _has_atom(column: Array) -> bool:
    return int(np.unique(column, return_counts=True)[1].max()) > max(_MOST_EQUAL * len(column), 2)


def _ellipsoid(equation: Array, d: int) -> tuple[Array, Array] | None:
    """Return the center of an ellipsoid and the matrix that maps it, centered, to a unit sphere; None for others."""
    rows, columns = np.triu_indices(d)
    upper: Array = np.zeros((d, d))
    upper[rows, columns] = equation[: len(rows)]
    matrix = (upper + upper.T) / 2
    values, vectors = np.linalg.eigh(matrix)
    if values[0] < 0:
        matrix, equation, values = -matrix, -equation, -values
    if not values.min() * _LONGEST_AXIS**2 > values.max():
        return None
    center = np.linalg.solve(matrix, -equation[len(rows) : -1] / 2)
    square = float(center @ matrix @ center - equation[-1])
    if not square > 0:
        return None
    root: Array = vectors * np.sqrt(values / square)
    return np.asarray(center, dtype=np.float64), root


def sphere_chart(p: Array, q: Array) -> tuple[Array, Array]:
    r"""Return d - 1 coordinates of P's points p and of Q's points q, which are on the unit sphere in d dimensions.

    The coordinates of uniform points have a standard normal distribution. Let m be the mean direction of both sides. A
    point at the angle :math:`\theta` from m is mapped to radius r, in the direction of its projection orthogonal to m.
    The radius solves :math:`P(\chi_{d - 1} \le r) = s`, where s is the proportion of the sphere within the angle
    :math:`\theta` of m. The pole opposite to m is mapped to infinity. KL does not depend on the coordinates.
    """
    from scipy import special

    d = p.shape[1]
    middle = p.mean(0) + q.mean(0)
    length = float(np.linalg.norm(middle))
    middle = middle / length if length > 0 else np.eye(d)[0]
    basis = np.linalg.qr(np.column_stack([middle, np.eye(d)]))[0]
    half = (d - 1) / 2

    def chart(x: Array) -> Array:
        along, across = x @ middle, x @ basis[:, 1:]
        square = np.square(across).sum(1)
        nearer = special.betainc(half, 0.5, np.minimum(square, 1.0)) / 2
        inside, beyond = special.gammaincinv(half, nearer), special.gammainccinv(half, nearer)
        radius = np.sqrt(2 * np.where(along > 0, inside, beyond))
        tiny = np.finfo(np.float64).tiny
        return across * (radius / np.sqrt(np.maximum(square, tiny)))[:, None]

    return chart(p), chart(q)


# A component counts as a linear combination of others if its relative error as such a combination is at most this
# number. Sums stored in float32 have a rounding error of 6e-8 for each term; `benchmarks/coverage.py` has such sums.
_FLAT = 1e-6


@dataclass(frozen=True)
class Span:
    """The draws of both sides without components that follow linearly from others, and notes on these components.

    `infinite` is a note if a plane or surface has all draws of one side and no draw of the other; otherwise empty.
    """

    p: Draws
    q: Draws
    notes: tuple[str, ...] = ()
    infinite: str = ""


def common_span(p: Draws, q: Draws) -> Span:
    """Return the draws without the components that are linear functions of others in both P and Q; KL does not change.

    Draws on a curved surface keep all components, and so do sides with fewer than d + 2 draws, which have no plane.
    """
    p, q = in_usual_units(p, q)
    x, y = p.x, q.x
    d = x.shape[1]
    if d == 1 or min(len(x), len(y)) < d + 2:
        return Span(p, q)
    both = np.concatenate([x, y])
    scale = both.std(0)
    scale = np.where(scale > _FLAT * np.abs(both).max(0), scale, np.maximum(np.abs(both).max(0), 1e-300))
    sides = [side / scale for side in (x, y)]
    means = [side.mean(0) for side in sides]
    null_p, null_q = (_null_space(side - mean) for side, mean in zip(sides, means, strict=True))
    if not null_p.shape[1] and not null_q.shape[1]:
        return Span(p, q, infinite=_on_other_surfaces(p, q, x, y))
    off_plane = np.abs((sides[1] - means[0]) @ null_p), np.abs((sides[0] - means[1]) @ null_q)
    for where, off in zip((SIDE_P, SIDE_Q), off_plane, strict=True):
        if (off > 10 * _FLAT).all(0).any():
            why = (
                f"{where}'s draws are in a plane of fewer than {d} dimensions, because a component is constant or "
                "follows from others. None of the other side's draws is in it: KL is infinite."
            )
            return Span(p, q, infinite=why)
    if any((off > 10 * _FLAT).any() for off in off_plane):
        # Some draws of one side are in the plane of the other side, and some are not. Atoms of P or Q can cause this.
        # All components are then kept.
        return Span(p, q)
    kept = _independent(np.concatenate([side - means[0] for side in sides]), d - null_p.shape[1])
    left_out = [j for j in range(d) if j not in set(kept.tolist())]
    fixed = [j for j in left_out if (both[:, j] == both[0, j]).all()]
    notes = [
        f"Component {', '.join(map(str, some))} is left out, because it {reason}."
        for some, reason in (
            (fixed, f"is constant, the same in {SIDE_P} and in {SIDE_Q}"),
            (
                [j for j in left_out if j not in fixed],
                f"follows from the others, in {SIDE_P} and {SIDE_Q} alike",
            ),
        )
        if some
    ]
    if not len(kept):
        return Span(p, q)
    p, q = (replace(side, tensor=side.tensor[:, kept.tolist()]) for side in (p, q))
    return Span(p, q, tuple(notes), _on_other_surfaces(p, q, x[:, kept], y[:, kept]))


def _on_other_surfaces(p: Draws, q: Draws, x: Array, y: Array) -> str:
    """Return a note if a curved surface has all draws of one side and none of the other; otherwise an empty string."""
    for name, own, others in ((SIDE_P, x, y), (SIDE_Q, y, x)):
        surface = surface_of(own, p.tensor.dtype, q.tensor.dtype)
        if surface is not None and surface.misses(others):
            return f"All draws of {name} are on {surface.name}, and no draw of the other side is on it: KL is infinite."
    return ""


def as_log_ratios(p: Draws, q: Draws) -> tuple[Draws, Draws, tuple[str, ...]]:
    """Return log(x_i / x_d), i < d, for rows x of positive probabilities, and a note; return other draws unchanged.

    KL does not change. Near a boundary, which log-ratios lack, a density varies strongly between neighbors.
    """
    ratios: list[Draws] = []
    for side in (p, q):
        x = side.x
        rounding = max(_FLAT, x.shape[1] * torch.finfo(side.tensor.dtype).eps)
        if x.shape[1] < 2 or not (x > 0).all() or (np.abs(x.sum(1) - 1) > rounding).any():
            return p, q, ()
        ratios.append(side.at(np.log(x[:, :-1]) - np.log(x[:, -1:])))
    note = "All rows are probabilities. Neighbors are searched in the logarithms of their ratios; KL is the same."
    return ratios[0], ratios[1], (note,)


def rank_of(centered: Array) -> int:
    """Return the rank of centered draws, shape (n, d): d minus the number of directions without variance."""
    return centered.shape[1] - _null_space(centered).shape[1]


def _null_space(centered: Array) -> Array:
    """Return the directions without variance of centered draws, as columns, shape (d, number of directions)."""
    variances, directions = np.linalg.eigh(centered.T @ centered)
    return directions[:, variances <= _FLAT**2 * max(float(variances[-1]), 1e-300)]


def _independent(points: Array, rank: int) -> Integers:
    """Return the sorted indices of `rank` components of the points that determine the other components linearly."""
    from scipy import linalg

    pivots: Any = linalg.qr(points, mode="r", pivoting=True)[-1]
    return np.sort(pivots[:rank])
