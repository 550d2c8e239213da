"""Names in files, options and reports. This module imports only the standard library, so its import is fast."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, get_args

from kullback.common.extra_arguments import by_name

RepresentationName = Literal["logits", "log-probs", "probs", "counts"]
REPRESENTATION_NAMES: tuple[RepresentationName, ...] = get_args(RepresentationName)
# A comparison of predictions computes these divergences for each row.
DIVERGENCE_NAMES = ("kl_pq", "kl_qp", "js", "tv")
# A comparison of tables computes these divergences for each column.
TABLE_DIVERGENCE_NAMES = ("psi", *DIVERGENCE_NAMES)
# A row whose true class is unknown has this label; torch's cross_entropy ignores rows with this label.
NO_LABEL = -100
# The short output includes the remarks of a source that begin with this word.
WARNING = "warning: "
# These fields of a batch replace a teacher. The first two contain the teacher's most probable tokens, shape (...,
# tokens, k). The third, which may be missing, contains the true token that each row predicts, shape (..., tokens).
STORED = ("teacher_indices", "teacher_log_probs", "teacher_labels")
# The two files of a card that `compare` reads: the record, and the reference of the base.
CARD, CARD_REFERENCE = "card.json", "reference.klref"

# A name with a word of `_IDS` is the name of a column that identifies rows. A name with a word of `_LABELS` is the name
# of a column with the true classes of rows.
_IDS = frozenset(("id", "ids", "idx", "index", "rowid", "rownum", "uuid", "guid"))
_LABELS = frozenset(
    ("class", "gold", "groundtruth", "label", "labels", "target", "targets", "truth", "y", "ytrue")
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def is_name_of_ids(name: str, *, or_labels: bool = False) -> bool:
    """Return whether a column with this name identifies rows or, if `or_labels`, contains the true classes of the rows.

    A name that ends in a digit, such as LABEL_0, is taken for the name of a class, and the result is False.

    Example:
        >>> [is_name_of_ids(name) for name in ("userId", "row_id", "Unnamed: 0", "idea", "id_3", "label")]
        [True, True, True, False, False, False]
    """
    if name.startswith("Unnamed:"):  # pandas' name for row numbers saved in a CSV file
        return True
    parts = [part.lower() for part in _WORD.findall(name)]
    words = _IDS | _LABELS if or_labels else _IDS
    return not name[-1:].isdigit() and not words.isdisjoint({*parts, "".join(parts)})


@by_name()
def is_model(name: str | os.PathLike[str], *, hub: bool = False) -> bool:
    """Return whether a name on the command line means a model rather than a file of predictions.

    If `hub` is True, the name of a missing file counts as a model on the Hugging Face Hub.

    Example:
        >>> [is_model(name) for name in ("q4.gguf", "http://localhost:8000", "float32.npy")]
        [True, True, False]
    """
    text = os.fspath(name)
    if is_address(text) or text.lower().endswith((".gguf", ".klref")):
        return True
    path = Path(text)
    if (path / "config.json").is_file() or is_hidden_states(path) or is_card(path):
        return True
    return hub and not path.exists()


def is_address(name: str) -> bool:
    """Return whether a name is the address of a server."""
    return name.startswith(("http://", "https://"))


def is_hidden_states(name: str | os.PathLike[str]) -> bool:
    """Return whether a name means a folder of hidden states: safetensors files without the config.json of a model."""
    path = Path(name)
    if not path.is_dir() or (path / "config.json").is_file() or is_card(path):
        return False
    return any(path.glob("*.safetensors"))


def is_card(name: str | os.PathLike[str]) -> bool:
    """Return whether a name means the folder of a card. A folder with the config.json of a model is a model."""
    # Unlike Path.is_file, os.path.isfile is False for an invalid path, such as a long address.
    parts = (os.path.join(name, part) for part in (CARD, CARD_REFERENCE, "config.json"))  # noqa: PTH118
    card, reference, model = map(os.path.isfile, parts)
    return (card or reference) and not model


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that is most similar to `name`, ignoring case; None if no name is similar.

    Example:
        >>> nearest("Agee", ["income", "age"]), nearest("city", ["income", "age"])
        ('age', None)
    """
    by_lower_case = {each.lower(): each for each in names}
    close = get_close_matches(name.lower(), by_lower_case, n=1)
    return by_lower_case[close[0]] if close else None
