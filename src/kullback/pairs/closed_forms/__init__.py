"""Closed forms by family; each module registers its rules."""

from kullback.pairs.closed_forms import (
    bounded as bounded,
    bounded_mixed as bounded_mixed,
    dirichlet as dirichlet,
    discrete as discrete,
    infinite as infinite,
    matrix_variate as matrix_variate,
    multivariate_normal as multivariate_normal,
    positive as positive,
    positive_log_moments as positive_log_moments,
    real as real,
    reductions as reductions,
    relaxed as relaxed,
)
