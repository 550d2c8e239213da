"""The words that files, options and reports name things by; importing them takes no time."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = [
    "DIVERGENCE_NAMES",
    "NO_LABEL",
    "REPRESENTATION_NAMES",
    "TABLE_DIVERGENCE_NAMES",
    "RepresentationName",
]

RepresentationName = Literal["logits", "log-probs", "probs", "counts"]
REPRESENTATION_NAMES: tuple[RepresentationName, ...] = get_args(RepresentationName)
# The divergences of a row that a comparison of predictions reports.
DIVERGENCE_NAMES = ("kl_pq", "kl_qp", "js", "tv")
# Those of a column that a comparison of tables reports.
TABLE_DIVERGENCE_NAMES = ("psi", *DIVERGENCE_NAMES)
# The label of a row whose true class is not known, which torch's cross_entropy ignores.
NO_LABEL = -100
