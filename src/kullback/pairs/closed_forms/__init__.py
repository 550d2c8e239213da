"""Closed forms for vectors and matrices, and reductions to other pairs; each module registers its rules on import."""

from kullback.pairs.closed_forms import (
    matrix_variate as matrix_variate,
    multivariate_normal as multivariate_normal,
    reductions as reductions,
)
