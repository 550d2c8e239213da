"""Names in files, options and reports; this module is fast to import."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

RepresentationName = Literal["logits", "log-probs", "probs", "counts"]
REPRESENTATION_NAMES: tuple[RepresentationName, ...] = get_args(RepresentationName)
# The divergences of each row in a comparison of predictions.
DIVERGENCE_NAMES = ("kl_pq", "kl_qp", "js", "tv")
# The divergences of each column in a comparison of tables.
TABLE_DIVERGENCE_NAMES = ("psi", *DIVERGENCE_NAMES)
# The label of a row whose true class is unknown; torch's cross_entropy ignores it.
NO_LABEL = -100


def is_model(name: str | os.PathLike[str], *, hub: bool = False) -> bool:
    """Whether a name on the command line means a model, not a file of predictions.

    Example:
        >>> [is_model(name) for name in ("q4.gguf", "http://localhost:8000", "float32.npy")]
        [True, True, False]
    """
    text = os.fspath(name)
    if text.startswith(("http://", "https://")) or text.lower().endswith((".gguf", ".klref")):
        return True
    path = Path(text)
    return (path / "config.json").is_file() or (hub and not path.exists())
