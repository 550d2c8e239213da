"""Minimizing a divergence over a family of distributions: `fit`."""

from kullback.fitting.choose_method import fit
from kullback.fitting.fit_result import Fit, FitError

__all__ = ["Fit", "FitError", "fit"]
