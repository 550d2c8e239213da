"""How draws become a number: each estimator is a function from two `Samples` to an `Estimate`."""

from kullback.estimators.checks import EstimateWarning
from kullback.estimators.density_ratio.api import density_ratio
from kullback.estimators.discrete.api import (
    bu,
    coverage_adjusted,
    dirichlet,
    miller_madow,
    plugin,
    zhang_grabchak,
)
from kullback.estimators.dispatch import METHODS, estimate_from_samples
from kullback.estimators.histogram import histogram
from kullback.estimators.importance import log_ratio
from kullback.estimators.knn.api import neighbors
from kullback.estimators.known_density import from_density
from kullback.estimators.two_sample_test import SameTest, test_same
from kullback.estimators.variational import variational_bound, variational_estimate

__all__ = [
    "METHODS",
    "EstimateWarning",
    "SameTest",
    "bu",
    "coverage_adjusted",
    "density_ratio",
    "dirichlet",
    "estimate_from_samples",
    "from_density",
    "histogram",
    "log_ratio",
    "miller_madow",
    "neighbors",
    "plugin",
    "test_same",
    "variational_bound",
    "variational_estimate",
    "zhang_grabchak",
]
