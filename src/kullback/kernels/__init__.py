"""Interchangeable implementations of divergences of rows of logits, and of the terms of kl_div."""

from kullback.kernels.backends import BACKENDS
from kullback.kernels.reference import RowDivergence, finite_pair, rounding_error
from kullback.kernels.whole_rows import logit_divergence, row_divergence, value_and_gradient, weighted_total

__all__ = [
    "BACKENDS",
    "RowDivergence",
    "finite_pair",
    "logit_divergence",
    "rounding_error",
    "row_divergence",
    "value_and_gradient",
    "weighted_total",
]
