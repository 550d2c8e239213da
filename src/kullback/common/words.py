"""Names in files, options and reports; this module is fast to import."""

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
# The divergences of each row in a comparison of predictions.
DIVERGENCE_NAMES = ("kl_pq", "kl_qp", "js", "tv")
# The divergences of each column in a comparison of tables.
TABLE_DIVERGENCE_NAMES = ("psi", *DIVERGENCE_NAMES)
# The label of a row whose true class is unknown; torch's cross_entropy ignores it.
NO_LABEL = -100
