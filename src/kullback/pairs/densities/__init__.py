"""Densities of numbers, which integrals and sums read; each module registers its densities."""

from kullback.pairs.densities import (
    black_box as black_box,
    composite as composite,
    transformed as transformed,
)
