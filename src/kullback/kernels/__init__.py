"""How rows become divergences: interchangeable implementations of the same operations."""

from kullback.kernels.reference import finite_pair, rounding_error, row_divergence

__all__ = ["finite_pair", "rounding_error", "row_divergence"]
