"""Divergences of pairs of distributions, by closed forms for pairs of families and generic rules for other pairs."""

from kullback.pairs import (  # the import registers their rules
    closed_forms as closed_forms,
    densities as densities,
    families as families,
)
from kullback.pairs.registry import register_kl
from kullback.pairs.solve import estimate
from kullback.pairs.solve_options import FEWEST_DRAWS, METHODS, SolveOptions

__all__ = ["FEWEST_DRAWS", "METHODS", "SolveOptions", "estimate", "register_kl"]
