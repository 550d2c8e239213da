"""Univariate densities for the generic rules; each module registers its families."""

from kullback.pairs.densities import (
    black_box as black_box,
    bounded as bounded,
    composite as composite,
    integer as integer,
    positive as positive,
    real as real,
    transformed as transformed,
)
