"""A comparison as strict JSON, of a schema that scripts can rely on.

The document is one object with ``"schema": "kullback.comparison/1"`` and ``"unit": "nats"``, and the attributes of
`kullback.predictions.Comparison` under their own names:

* ``p_name``, ``q_name`` (strings); ``rows``, ``classes`` (integers); ``clusters`` (integer or null).
* ``divergences``: for each of ``kl_pq``, ``kl_qp``, ``js``, ``tv`` an object with ``mean``, ``standard_error``,
  ``interval`` ([from, to] of the 95 % interval, or null), ``median``, ``p90``, ``p95``, ``p99``, ``p999``, ``maximum``.
* ``top1_agreement``: ``value``, ``standard_error``, ``interval``.
* ``labels``: null, or ``labeled`` and, each with ``mean``, ``standard_error``, ``interval``: ``cross_entropy_p``,
  ``cross_entropy_q``, ``difference``, ``delta_prob_mean``, ``delta_prob_rms``.
* ``worst``: objects ``row``, ``kl``, ``label``, ``cluster``, ``top`` (objects ``index``, ``p``, ``q``).
* ``by_confidence``: objects ``low``, ``high``, ``rows``, ``kl_mean``, ``kl_p99``, ``top1_agreement``.
* ``histogram``: objects ``low``, ``high``, ``rows``; ``quantiles``: objects ``probability``, ``kl``.
* ``along``: objects ``start``, ``stop``, ``kl_mean``, ``kl_max``.
* ``infinite``: for each divergence, in how many rows it is infinite.
* ``quantiles_exact`` (boolean); ``notes`` (strings).

JSON has no number for infinity or not-a-number. Where a float is one, the string ``"Infinity"``, ``"-Infinity"`` or
``"NaN"`` stands in its place, as in the JSON mapping of Protocol Buffers; Python's ``float`` and JavaScript's
``Number`` turn those strings, like any finite value, back into the same number. Finite floats are written with as
many digits as it takes to read the same float again.

Within version 1 names may be added, never removed or changed.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any, cast

from kullback.predictions import Comparison

__all__ = ["SCHEMA", "dumps", "encoded", "to_dict"]

SCHEMA = "kullback.comparison/1"


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """The comparison as dicts, lists, strings and finite numbers, in the schema that this module describes.

    Arguments:
        comparison: what `compare_predictions` found.

    Returns:
        What `json.dumps` can write with ``allow_nan=False``.

    Example:
        >>> import torch
        >>> from kullback import Probs
        >>> from kullback.predictions import compare_predictions
        >>> p = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
        >>> q = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
        >>> found = to_dict(compare_predictions(Probs(p), Probs(q)))
        >>> found["schema"], found["divergences"]["kl_pq"]["maximum"], found["infinite"]["kl_pq"]
        ('kullback.comparison/1', 'Infinity', 1)
    """
    fields = asdict(comparison)
    fields["histogram"] = [
        dict(zip(("low", "high", "rows"), part, strict=True)) for part in fields["histogram"]
    ]
    fields["quantiles"] = [
        dict(zip(("probability", "kl"), part, strict=True)) for part in fields["quantiles"]
    ]
    return {"schema": SCHEMA, "unit": "nats", **encoded(fields)}


def dumps(comparison: Comparison) -> str:
    """The comparison as a JSON document, indented, ending in a newline; the same text for the same comparison.

    Arguments:
        comparison: what `compare_predictions` found.

    Returns:
        Strict JSON in ASCII, in the schema that this module describes.

    Example:
        >>> import json, torch
        >>> from kullback import Probs
        >>> from kullback.predictions import compare_predictions
        >>> p = Probs(torch.tensor([[0.5, 0.5]]))
        >>> json.loads(dumps(compare_predictions(p, p)))["divergences"]["kl_pq"]["mean"]
        0.0
    """
    return json.dumps(to_dict(comparison), indent=2, allow_nan=False) + "\n"


def encoded(value: Any) -> Any:
    """Replace the floats that JSON cannot write, at any depth."""
    if isinstance(value, dict):
        return {key: encoded(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [encoded(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
