"""How draws become a number: each estimator is a function from two `Samples` to an `Estimate`."""

from kullback.estimators.choose import METHODS, estimate_from_samples
from kullback.estimators.common import EstimateWarning
from kullback.estimators.histogram import histogram
from kullback.estimators.known import from_density
from kullback.estimators.log_ratio import log_ratio
from kullback.estimators.neighbours import neighbours
from kullback.estimators.plugin import bu, coverage_adjusted, dirichlet, miller_madow, plugin, zhang_grabchak
from kullback.estimators.ratio import density_ratio
from kullback.estimators.same import SameTest, test_same
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
    "neighbours",
    "plugin",
    "test_same",
    "variational_bound",
    "variational_estimate",
    "zhang_grabchak",
]
