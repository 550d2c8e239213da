"""Interchangeable implementations of divergences of rows of logits, and of the terms of kl_div."""

from kullback.kernels.choose import logit_divergence, row_divergence, value_and_gradient, weighted_total
from kullback.kernels.reference import finite_pair, rounding_error

__all__ = [
    "finite_pair",
    "logit_divergence",
    "rounding_error",
    "row_divergence",
    "value_and_gradient",
    "weighted_total",
]
