"""Minimizing a divergence over a family of distributions: `fit`."""

from kullback.projection.fitting import fit
from kullback.projection.result import Fit, FitError

__all__ = ["Fit", "FitError", "fit"]
