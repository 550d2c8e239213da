"""KL from draws by other packages, called as in their documentation. Packages that are not installed are left out.

    pip install --no-deps infomeasure universal-divergence divergence

NPEET is not on PyPI. The function with its name repeats its `kldiv`, also with scikit-learn. Vectors are arrays of
shape (n, d), categories of shape (n,). All answers are in nats.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

Peer = Callable[[np.ndarray, np.ndarray], float]


def npeet(x: np.ndarray, y: np.ndarray, k: int = 3) -> float:
    """The plain nearest-neighbor estimate in the maximum norm."""
    from sklearn.neighbors import BallTree, KDTree

    tree = BallTree if x.shape[1] >= 20 else KDTree
    own = tree(x, metric="chebyshev").query(x, k + 1)[0][:, k]
    cross = tree(y, metric="chebyshev").query(x, k)[0][:, k - 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.log(cross) - np.log(own)
    return x.shape[1] * float(terms.mean()) + math.log(len(y) / (len(x) - 1))


def infomeasure(x: np.ndarray, y: np.ndarray) -> float:
    return float(
        importlib.import_module("infomeasure").kullback_leiber_divergence(x, y, approach="metric", k=4)
    )


def infomeasure_discrete(x: np.ndarray, y: np.ndarray) -> float:
    return float(importlib.import_module("infomeasure").kullback_leiber_divergence(x, y, approach="discrete"))


def universal_divergence(x: np.ndarray, y: np.ndarray) -> float:
    return float(importlib.import_module("universal_divergence").estimate(x, y, k=5))


def divergence(x: np.ndarray, y: np.ndarray) -> float:
    return float(divergence_neighbors().knn_kl_divergence(x, y, k=5))


def divergence_neighbors() -> ModuleType:
    """The only module of `divergence` that is needed; its other modules import more packages."""
    package = importlib.util.find_spec("divergence")
    assert package is not None
    assert package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "knn.py"
    spec = importlib.util.spec_from_file_location("divergence_knn", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scipy_entropy(x: np.ndarray, y: np.ndarray) -> float:
    """Relative frequencies: infinite where Q's draws miss a category of P's."""
    from scipy.stats import entropy

    size = int(max(x.max(), y.max())) + 1
    return float(entropy(np.bincount(x, minlength=size), np.bincount(y, minlength=size)))


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


# The name, the required package, the function, and whether it is for categories.
_ALL: list[tuple[str, str, Peer, bool]] = [
    ("NPEET, k=3", "sklearn", npeet, False),
    ("infomeasure, k=4", "infomeasure", infomeasure, False),
    ("universal-divergence, k=5", "universal_divergence", universal_divergence, False),
    ("divergence, k=5", "divergence", divergence, False),
    ("infomeasure, discrete", "infomeasure", infomeasure_discrete, True),
    ("scipy.stats.entropy", "scipy", scipy_entropy, True),
]
PEERS: dict[str, tuple[Peer, bool]] = {
    name: (peer, discrete) for name, package, peer, discrete in _ALL if installed(package)
}
