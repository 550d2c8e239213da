"""Estimators of divergences from draws: each estimator is a function of two `Samples` that returns an `Estimate`."""

from kullback.estimators.density_ratio.classifier_estimate import density_ratio
from kullback.estimators.discrete.categorical_estimators import (
    augmented_plugin,
    bias_corrected,
    coverage_adjusted,
    dirichlet,
    miller_madow,
    plugin,
    zhang_grabchak,
)
from kullback.estimators.draws import Draws
from kullback.estimators.evidence import SIDE_P, SIDE_Q, Evidence
from kullback.estimators.histogram import histogram
from kullback.estimators.importance import log_ratio
from kullback.estimators.knn.neighbor_estimate import nearest_neighbors
from kullback.estimators.known_density import from_density
from kullback.estimators.registry import EstimateWarning, register_estimator
from kullback.estimators.two_sample_test import TwoSampleTest, two_sample_test
from kullback.estimators.variational import variational_bound, variational_estimate

__all__ = [
    "SIDE_P",
    "SIDE_Q",
    "Draws",
    "EstimateWarning",
    "Evidence",
    "TwoSampleTest",
    "augmented_plugin",
    "bias_corrected",
    "coverage_adjusted",
    "density_ratio",
    "dirichlet",
    "from_density",
    "histogram",
    "log_ratio",
    "miller_madow",
    "nearest_neighbors",
    "plugin",
    "register_estimator",
    "two_sample_test",
    "variational_bound",
    "variational_estimate",
    "zhang_grabchak",
]
