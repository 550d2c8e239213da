"""Names in files, options and reports. The module imports only the standard library, so its import is fast."""

from __future__ import annotations

import os
import re
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


# Words in the names of columns that identify a row, and in the names of columns with the true class of a row.
_IDS = frozenset(("id", "ids", "idx", "index", "rowid", "rownum", "uuid", "guid"))
_LABELS = frozenset(
    ("class", "gold", "groundtruth", "label", "labels", "target", "targets", "truth", "y", "ytrue")
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def is_name_of_ids(name: str, *, or_labels: bool = False) -> bool:
    """Return whether a column with this name identifies rows or, if `or_labels`, contains the true classes of the rows.

    A name that ends in a digit, such as LABEL_0, is the name of a class and gives False.

    Example:
        >>> [is_name_of_ids(name) for name in ("userId", "row_id", "Unnamed: 0", "idea", "id_3", "label")]
        [True, True, True, False, False, False]
    """
    if name.startswith("Unnamed:"):  # pandas' name for row numbers saved in a CSV file
        return True
    parts = [part.lower() for part in _WORD.findall(name)]
    words = _IDS | _LABELS if or_labels else _IDS
    return not name[-1:].isdigit() and not words.isdisjoint({*parts, "".join(parts)})


def is_model(name: str | os.PathLike[str], *, hub: bool = False) -> bool:
    """Return whether a name on the command line means a model, not a file of predictions.

    Example:
        >>> [is_model(name) for name in ("q4.gguf", "http://localhost:8000", "float32.npy")]
        [True, True, False]
    """
    text = os.fspath(name)
    if text.startswith(("http://", "https://")) or text.lower().endswith((".gguf", ".klref")):
        return True
    path = Path(text)
    return (path / "config.json").is_file() or (hub and not path.exists())
