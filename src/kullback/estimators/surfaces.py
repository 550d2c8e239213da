"""Detection of a curved surface that contains all draws, such as normalized embeddings, and coordinates on spheres."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kullback.estimators.draws import Array

# `tests/estimators/test_surfaces.py` checks the constants of this file, and `benchmarks/coverage.py` has unit vectors.

# A sum counts as 0, up to rounding, if its absolute value is at most `_ROUNDING` times the sum of its absolute terms.
_ROUNDING = 1e-6
# Above this number of dimensions, quadrics have too many coefficients, so only spheres with center 0 are detected.
_MOST_DIMENSIONS = 12
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

    Attributes:
        name: the name of the surface in notes.
        distance: a function from points, shape (n, d), to the relative residuals of the points in the equation of the
            surface, shape (n,).
        tolerance: the largest residual that can be a rounding error.
        to_sphere: the map from the surface to the unit sphere; None if the surface is neither a sphere nor an
            ellipsoid.
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
    """Return the quadric that contains all points, shape (n, d), or None.

    Arguments:
        points: the draws of one side.
        dtypes: the original dtypes of P's and Q's draws, because unit vectors rounded to float16 have inexact norms.
    """
    d = points.shape[1]
    if d < 2 or not np.isfinite(points).all():
        return None
    epsilon = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
    return _sphere_about_zero(points, max(_ROUNDING, epsilon)) or (
        _quadric(points) if d <= _MOST_DIMENSIONS else None
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
    """Return the center of an ellipsoid, and the matrix that maps the centered ellipsoid to a unit sphere.

    `equation` has the coefficients of the equation in d dimensions. If the equation does not describe an ellipsoid,
    return None.
    """
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
