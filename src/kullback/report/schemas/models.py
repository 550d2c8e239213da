"""A comparison of language models as strict JSON of a stable schema.

The document is one object with ``"schema": "kullback.models/1"``:

* ``unit``, ``"nats"``; ``units``, an object with the unit of each divergence, which is ``"dimensionless"`` for ``tv``;
  ``confidence``, the confidence level of the intervals.
* ``base``: ``name``, ``kind``, ``dtype``, ``classes``, ``parameters``, ``file_bytes``, ``bits_per_weight``; unknown
  values are null.
* ``candidates``: objects, in the order of the mean KL(base || candidate), with ``model`` (as ``base``),
  ``comparison`` (the attributes of `kullback.report.schemas.predictions`),
  ``shared_classes`` (integer or null), ``known`` (``"all classes"``, ``"reference"`` or ``"top classes"``),
  ``certain`` (null, or for each divergence the smallest and the largest possible mean over these tokens), ``drawn``
  (null, or for each divergence ``mean``, ``standard_error``, ``interval`` and ``bounds`` of the sampling), and
  ``passages``: objects ``window``, ``first``, ``text_before``, ``tokens`` (objects ``index``, ``text``, ``kl``, ``p``,
  ``q``, ``top``: objects ``index``, ``text``, ``p``, ``q``). If ``known`` is ``"top classes"``, the divergences of
  ``comparison`` are lower bounds, and their intervals extend to the upper bounds. ``certain_in_groups`` and
  ``drawn_in_groups``, if there are groups and not all classes are known: ``certain`` and ``drawn`` of each group.
* ``differences``: for each candidate except the first, its mean KL minus the mean KL of the candidate before, with
  ``standard_error``, ``interval`` and ``reason``. ``differences_by_group``, if there are groups: the same for the
  tokens of each group.
* ``noise_floor``: the comparison of the base with itself plus rounding noise, in the form of a candidate, or null.
* ``until_sure``: null, or how far a run with a goal read: ``goal``, ``unit`` (``"window"`` or ``"document"``)
  (strings), ``confidence``, ``units``, ``read`` (of them), ``decided`` (boolean), and ``candidates``: for each name,
  ``units`` (read for it), ``outcome`` (``"below"``, ``"above"``, ``"ordered"``, ``"narrow"``, ``"undecided"``), ``cap``
  (null, or the mean KL that the upper end assumes for unread units at most) and ``above`` (null, or the largest share
  of units above it). Windows and rows then have numbers in the order of reading.
* ``gates``, if you set limits: ``passed`` (boolean), ``outcome`` (``"passed"``, ``"failed"``, ``"unclear"``) and
  ``limits``, objects with ``limit``, ``passed``, ``outcome``, ``failures`` and ``unclear`` (sentences),
  ``broken_by`` (the candidates that break the limit), and ``unclear_for`` (the candidates that leave the limit
  unclear).
* ``windows``, ``context`` (integers); ``score`` (string); ``whole_text`` (boolean); ``notes`` (strings).

Infinities and NaN are the strings ``"Infinity"``, ``"-Infinity"`` and ``"NaN"``. Later releases may add names to
version 1, but do not remove or change names.
"""

from __future__ import annotations

from dataclasses import asdict

from kullback.common.formats import token_text
from kullback.models import Candidate, ModelComparison, ModelInfo, Passage
from kullback.predictions.reference_rows import DrawnMean
from kullback.report.document import Fields
from kullback.report.schemas import predictions


def fields(result: ModelComparison) -> Fields:
    """Return the fields of the schema of this module."""
    run, differences = result.until_sure, result.differences_by_group.items()
    by_group = {
        name: [predictions.mean_fields(asdict(mean)) for mean in means] for name, means in differences
    }
    return {
        "schema": "kullback.models/1",
        "base": _info(result.base),
        "candidates": [_candidate(result, candidate) for candidate in result.candidates],
        "differences": [predictions.mean_fields(asdict(mean)) for mean in result.differences],
        "noise_floor": None if result.noise_floor is None else _candidate(result, result.noise_floor),
        "windows": result.windows,
        "context": result.context,
        "score": result.score,
        "whole_text": result.whole_text,
        "until_sure": run and {**asdict(run), "read": run.read, "decided": run.is_decided},
        "notes": result.notes,
        **({"differences_by_group": by_group} if by_group else {}),
    }


def _candidate(result: ModelComparison, candidate: Candidate) -> Fields:
    comparison = predictions.fields(candidate.comparison)
    of_groups = {name: _drawn(means) for name, means in candidate.drawn_in_groups.items()}
    return {
        "model": _info(candidate.model),
        "comparison": {key: value for key, value in comparison.items() if key != "schema"},
        "shared_classes": candidate.shared_classes,
        "known": candidate.known,
        "certain": candidate.certain,
        "drawn": candidate.drawn and _drawn(candidate.drawn),
        **({"certain_in_groups": candidate.certain_in_groups} if candidate.certain_in_groups else {}),
        **({"drawn_in_groups": of_groups} if of_groups else {}),
        "passages": [_passage(result, passage) for passage in candidate.passages],
    }


def _drawn(means: dict[str, DrawnMean]) -> Fields:
    by_name = {name: predictions.mean_fields(asdict(mean)) for name, mean in means.items()}
    return {
        name: {key: value for key, value in values.items() if key != "reason"}
        for name, values in by_name.items()
    }


def _info(info: ModelInfo) -> Fields:
    return {**asdict(info), "bits_per_weight": info.bits_per_weight}


def _passage(result: ModelComparison, passage: Passage) -> Fields:
    return {
        "window": passage.window,
        "first": passage.first,
        "text_before": "".join(token_text(result.tokens, index) for index in passage.before),
        "tokens": [
            {
                **asdict(token),
                "text": token_text(result.tokens, token.index),
                "top": [{**asdict(top), "text": token_text(result.tokens, top.index)} for top in token.top],
            }
            for token in passage.tokens
        ],
    }
