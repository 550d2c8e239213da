"""Pairs of distributions: closed forms by family, and generic rules for every other pair."""

from kullback.pairs import (  # they register their rules
    closed_forms as closed_forms,
    densities as densities,
    families as families,
)
from kullback.pairs.registry import register_kl
from kullback.pairs.solve import estimate
from kullback.pairs.solve_options import FEWEST_DRAWS, METHODS, SolveOptions

__all__ = ["FEWEST_DRAWS", "METHODS", "SolveOptions", "estimate", "register_kl"]
