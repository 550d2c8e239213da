"""Pairs of distributions: closed forms by family, and generic rules for every other pair."""

from kullback.pairs import (  # each enters its laws or its rules
    bounded as bounded,
    bounded_cross as bounded_cross,
    discrete as discrete,
    gaussian as gaussian,
    laws_any as laws_any,
    laws_bounded as laws_bounded,
    laws_integer as laws_integer,
    laws_positive as laws_positive,
    laws_real as laws_real,
    laws_wrapped as laws_wrapped,
    matrix as matrix,
    normal as normal,
    pareto as pareto,
    positive as positive,
    positive_cross as positive_cross,
    simplex as simplex,
    wrappers as wrappers,
)
from kullback.pairs.options import METHODS, Options
from kullback.pairs.registry import register_kl
from kullback.pairs.solve import estimate

__all__ = ["METHODS", "Options", "estimate", "register_kl"]
