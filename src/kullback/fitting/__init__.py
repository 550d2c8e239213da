"""The function `fit`, which minimizes a divergence over a family of distributions."""

from kullback.fitting.choose_method import fit
from kullback.fitting.fit_result import Fit, FitError

__all__ = ["Fit", "FitError", "fit"]
