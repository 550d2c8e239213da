"""Vectors on a curved surface, as normalized embeddings are: which surface it is, and coordinates on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kullback.common.optional import load
from kullback.estimators.draws import Array

__all__ = ["Surface", "sphere_chart", "surface_of"]

# A sum whose terms cancel to this relative size is 0 but for rounding.
_ROUNDING = 1e-6
# Quadrics have a quadratic number of coefficients: in more dimensions only spheres about 0 are looked for.
_MOST_DIMENSIONS = 12
# Distinct draws for each coefficient, so that a few repeated ones are no surface.
_DRAWS_FOR_COEFFICIENT = 2
# Above this share of draws with one value of a component it has an atom, and products of components may be 0.
_MOST_EQUAL = 0.05
# Draws that are off a surface by less may be rounded otherwise than those on it, as float16 rounds.
_CLOSE = 0.01
# A semi-axis this many times longer than another one makes no ellipsoid.
_LONGEST_AXIS = 1e3


@dataclass(frozen=True)
class Surface:
    """A quadric that all draws of one side are on.

    Attributes:
        name: what it is called.
        distance: by how much points, shape (n, d), are off it, relative to what cancels: shape (n,).
        tolerance: up to which distance rounding explains it.
        to_sphere: maps its points to the unit sphere; None where it is no sphere or ellipsoid.
    """

    name: str
    distance: Callable[[Array], Array]
    tolerance: float
    to_sphere: Callable[[Array], Array] | None

    def contains(self, points: Array) -> bool:
        """Say whether all these points are on it."""
        return bool((self.distance(points) <= self.tolerance).all())

    def misses(self, points: Array) -> bool:
        """Say whether none of these points is on it, and most are off by more than any rounding."""
        distance = self.distance(points)
        return bool((distance > self.tolerance).all()) and float(np.median(distance)) > _CLOSE


def surface_of(points: Array, *dtypes: torch.dtype) -> Surface | None:
    """Return the quadric that points of shape (n, d) are on; None where they are on none.

    Arguments:
        points: the draws of one side.
        dtypes: in which they and others were given: what is normalized in float16 has norms of its precision.
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

    found = Surface("a sphere", distance, tolerance, lambda x: x / _norms(x)[:, None])
    return found if found.contains(points) else None


def _norms(points: Array) -> Array:
    return np.sqrt(np.square(points).sum(1))


def _quadric(points: Array) -> Surface | None:
    r"""Fit :math:`x^T A x + b^T x + c = 0` to points by the smallest eigenvector of their monomials' products."""
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
    found = Surface("a curved surface", distance, 10 * _ROUNDING, None)
    if whitened is not None:
        center, root = whitened
        to_sphere = lambda x: ((x - mean) / spread - center) @ root  # noqa: E731
        found = Surface("an ellipsoid", distance, 10 * _ROUNDING, to_sphere)
    return found if found.contains(points) else None


def _has_atom(column: Array) -> bool:
    return int(np.unique(column, return_counts=True)[1].max()) > max(_MOST_EQUAL * len(column), 2)


def _ellipsoid(equation: Array, d: int) -> tuple[Array, Array] | None:
    """Return the center of an ellipsoid, and the matrix that maps it to the unit sphere; None of other quadrics."""
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
    r"""Map points of the unit sphere in d dimensions to d - 1 coordinates in which its uniform distribution is normal.

    About the mean direction m of both sides a point at the angle :math:`\theta` keeps its direction across and gets the
    radius r with :math:`P(\chi_{d - 1} \le r)` the share of the sphere within :math:`\theta` of m. KL does not depend
    on coordinates. The pole opposite to m is at infinity.
    """
    special = load("scipy.special", "nearest_neighbors")
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
