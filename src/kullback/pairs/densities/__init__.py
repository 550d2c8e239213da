"""Univariate densities: what the generic rules know of a family; each module enters its own."""

from kullback.pairs.densities import (
    black_box as black_box,
    bounded as bounded,
    composite as composite,
    integer as integer,
    positive as positive,
    real as real,
    transformed as transformed,
)
