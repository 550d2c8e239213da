"""The record of a card as strict JSON of a stable schema.

The document is one object with ``"schema": "kullback.card/1"``. Unknown values are null.

* ``base``: ``name``, ``kind``, ``dtype``, ``device``, ``weights_sha256`` (of the files of the weights in the order of
  their names), ``tokenizer_sha256`` (of the tokens and their numbers).
* ``text``: ``name``, ``sha256`` (of the bytes), ``tokens_sha256`` (of the tensor ``tokens`` in the reference:
  little-endian integers of 32 bits), ``tokens``, ``scored``, ``windows``, ``context`` (integers), ``score``.
* ``intervals``: ``confidence``, ``bootstrap`` (draws), ``seed``, ``unit`` (``"window"`` or ``"document"``).
* ``reference``: ``file``, ``bytes``, ``sha256``, ``top``, ``tail_draws``, ``seed``, ``created_by``.
* ``candidates``: objects ``name``, ``weights_sha256`` (as of ``base``), ``kl_pq`` (in nats: ``mean``,
  ``standard_error``, ``interval``, ``reason``),
  ``known`` (as in `kullback.report.schemas.models`), ``repeatable`` (boolean: whether the reference can take the place
  of the base), ``badge`` (a file), ``gates`` (``"passed"``, ``"failed"``, ``"unclear"``, or null without limits).
* ``versions``: the versions of packages and of Python, and ``platform``.
* ``commands``: ``repeat``; ``original`` (null if the comparison was of objects of Python, or of a card or reference as
  its base); ``with_text`` (repeats groups by role or key too; null without such groups or without a file of the text).

Infinities and NaN are the strings ``"Infinity"``, ``"-Infinity"`` and ``"NaN"``. Later releases may add names to
version 1, but do not remove or change names.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from kullback.common.files import file_hash, without_folders
from kullback.common.plain_values import JsonObject, json_safe
from kullback.common.words import CARD_REFERENCE
from kullback.models.card import SCHEMA, tokens_hash

if TYPE_CHECKING:
    from kullback.io import Reference
    from kullback.models import ModelComparison
    from kullback.models.model_results import Recorded
    from kullback.predictions import Summary
    from kullback.report.document import Fields
    from kullback.report.repeat import Commands

PACKAGES = {
    "kullback": "kullback",
    "torch": "torch",
    "transformers": "transformers",
    "llama_cpp": "llama-cpp-python",
}


def fields(
    result: ModelComparison,
    recorded: Recorded,
    reference: Reference,
    commands: Commands,
    of_candidates: Mapping[str, Fields],
) -> JsonObject:
    """Return the fields of the schema of this module.

    Arguments:
        result: the comparison, whose names have no folders.
        recorded: the arguments of the comparison.
        reference: the reference of the card.
        commands: the commands of the card.
        of_candidates: for each candidate, ``repeatable``, ``badge`` and ``gates``.
    """
    stored, windows = reference.metadata, reference.windows
    text = None if recorded.text is None else without_folders(recorded.text)
    base = without_folders(stored.get("model", result.base.name))
    fields: Fields = {
        "schema": SCHEMA,
        "base": {
            "name": result.base.name if Path(result.base.name).name == base else base,
            "kind": stored.get("model_kind"),
            "dtype": result.base.dtype,
            "device": stored.get("device"),
            "weights_sha256": stored.get("model_hash"),
            "tokenizer_sha256": stored.get("tokenizer"),
        },
        "text": {
            "name": text,
            "sha256": stored.get("text_hash"),
            "tokens_sha256": tokens_hash(windows),
            "tokens": len(windows.tokens),
            "scored": reference.rows,
            "windows": len(windows),
            "context": result.context,
            "score": result.score,
        },
        "intervals": {
            "confidence": 0.95,
            "bootstrap": recorded.settings.get("bootstrap", 1000),
            "seed": recorded.seed,
            "unit": "window" if result.candidates[0].comparison.clusters == len(windows) else "document",
        },
        "reference": {
            "file": CARD_REFERENCE,
            "bytes": reference.ref.path.stat().st_size,
            "sha256": file_hash(reference.ref.path),
            "top": reference.top,
            "tail_draws": reference.tail_draws,
            "seed": stored.get("seed"),
            "created_by": stored.get("created_by"),
        },
        "candidates": [
            {
                "name": each.model.name,
                "weights_sha256": each.weights_sha256,
                "kl_pq": _mean(each.comparison.divergences["kl_pq"]),
                "known": each.known,
                **of_candidates[each.model.name],
            }
            for each in result.candidates
        ],
        "versions": _versions(),
        "commands": commands._asdict(),
    }
    return json_safe(fields)


def _mean(kl: Summary) -> Fields:
    return {
        "mean": kl.mean,
        "standard_error": kl.standard_error,
        "interval": kl.interval,
        "reason": kl.reason,
    }


def _versions() -> dict[str, str]:
    packages = {name: version(package) for name, package in PACKAGES.items() if name in sys.modules}
    return {
        **packages,
        "Python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
