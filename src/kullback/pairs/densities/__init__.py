"""Univariate densities, for the integrals and sums of divergences; each module registers its densities on import."""

from kullback.pairs.densities import (
    black_box as black_box,
    composite as composite,
    transformed as transformed,
)
