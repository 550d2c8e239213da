"""Nearest neighbours within one set of points."""

from __future__ import annotations

from typing import Any

import numpy as np

from kullback.errors import OptionalDependencyError

__all__ = ["nearest_among"]

Array = np.ndarray[Any, np.dtype[Any]]
BLOCK = 100_000


def nearest_among(points: Array, number: int) -> Array:
    """Return the indices of each point's `number` nearest others, shape (n, number), by a k-d tree."""
    try:
        from scipy.spatial import KDTree
    except ImportError:
        raise OptionalDependencyError(
            "nearest neighbours need SciPy. Run: pip install 'kullback[samples]'"
        ) from None
    tree = KDTree(points)
    found = np.empty((len(points), number), dtype=np.int32)
    for start in range(0, len(points), BLOCK):
        block = points[start : start + BLOCK]
        near = np.asarray(tree.query(block, k=number + 1, workers=-1)[1])
        # A point is its own neighbour, though not always the first one: equal points come in any order.
        itself = near == np.arange(start, start + len(block))[:, None]
        itself[~itself.any(1), -1] = True
        found[start : start + len(block)] = near[~itself].reshape(len(block), number)
    return found
