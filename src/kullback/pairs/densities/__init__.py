"""Univariate densities for the generic rules; each module registers its families."""

from kullback.pairs.densities import (
    black_box as black_box,
    bounded_densities as bounded_densities,
    composite as composite,
    integer as integer,
    positive_densities as positive_densities,
    real_densities as real_densities,
    transformed as transformed,
)
