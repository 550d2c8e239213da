"""A comparison of predictions as strict JSON of a stable schema.

The document is one object with ``"schema": "kullback.predictions/3"``, and the attributes of
`kullback.predictions.Comparison` under their own names:

* ``unit``, ``"nats"``; ``units``, an object with the unit of each divergence, which is ``"dimensionless"`` for ``tv``;
  ``confidence``, the confidence level of the intervals.
* ``p_name``, ``q_name`` (strings); ``rows``, ``classes`` (integers); ``clusters`` (integer or null).
* ``divergences``: for each of ``kl_pq``, ``kl_qp``, ``js``, ``tv`` an object with ``mean``, ``standard_error``,
  ``interval`` ([from, to] of the 95 % interval, or null), ``reason`` (why a limit is unknown, or null), ``minimum``,
  ``p001`` (the 0.1 % quantile), ``p01``, ``p05``, ``p10``, ``p25``, ``median``, ``p75``, ``p90``, ``p95``, ``p99``,
  ``p999``, ``maximum``.
* ``acceptance_rate``: ``mean``, ``standard_error``, ``interval``, ``reason``.
* ``top1_agreement``: ``value``, ``standard_error``, ``interval``, ``reason``; ``top_k_agreement``: five such objects,
  for k = 1 to 5.
* ``labels``: null, or ``labeled`` and, each with ``mean``, ``standard_error``, ``interval``, ``reason``:
  ``cross_entropy_p``, ``cross_entropy_q``, ``difference``, ``perplexity_p``, ``perplexity_q``, ``perplexity_ratio``,
  ``perplexity_difference``, ``delta_prob_rms``; ``correlation`` (a number); ``delta_prob``, like a divergence;
  ``top_k_accuracy_p``, ``top_k_accuracy_q``, like ``top_k_agreement``.
* ``worst``: objects ``row``, ``kl``, ``label``, ``cluster``, ``top`` (objects ``index``, ``p``, ``q``).
* ``by_confidence``: objects ``low``, ``high``, ``rows``, ``kl_mean``, ``kl_p99``, ``top1_agreement``.
* ``histogram``: objects ``low``, ``high``, ``rows``; ``quantiles``: objects ``probability``, ``kl``.
* ``segments``: objects ``start``, ``stop``, ``kl_mean``, ``kl_max``.
* ``infinite``: for each divergence, the number of infinite rows.
* ``gates``, if you set limits: ``passed`` (boolean), ``outcome`` (``"passed"``, ``"failed"``, ``"unclear"``) and
  ``limits``, objects with ``limit``, ``passed``, ``outcome``, ``failures`` and ``unclear`` (sentences), and
  ``broken_by`` and ``unclear_for`` (empty).
* ``independent_units``: what intervals assume to be independent: ``"rows"``, ``"blocks"``, ``"clusters"``,
  ``"windows"`` or ``"documents"``; ``unseen``: the largest proportion of them that may be of a kind absent from these
  data; 0 if the ``interval`` of ``kl_pq`` takes such units into account.
* ``further``, if statistics were registered: for each statistic, ``title``, ``mean``, ``standard_error``,
  ``interval``, ``reason``.
* ``groups``, if there are groups: for each group, these attributes of its rows, without ``worst``, and
  ``against_rest``: by the names of statistics, the group's mean minus the mean of all other rows, with ``mean``,
  ``standard_error``, ``interval``, ``reason``.
* ``quantiles_exact`` (boolean); ``notes`` (strings).
* ``llama_cpp``: null or, if you request them, the numbers that llama.cpp prints: ``chunks`` (a list) and ``total``,
  objects with ``count``, ``correlation`` and, each [number, uncertainty], ``perplexity_q``, ``perplexity_p``,
  ``log_ratio``, ``ratio``, ``difference``, ``kld``, ``delta_p``, ``delta_p_rms``, ``same_top``; ``kld_quantiles``,
  ``delta_p_quantiles`` (numbers, from the maximum to the minimum).

JSON has no infinity and no NaN: the strings ``"Infinity"``, ``"-Infinity"`` and ``"NaN"`` replace them, as in the JSON
mapping of Protocol Buffers. Python's ``float`` and JavaScript's ``Number`` convert these strings to numbers.
Finite floats have enough digits to recover the same float.

Later releases may add names to version 3, but do not remove or change names.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kullback.predictions import Comparison
from kullback.report.document import Fields


def fields(comparison: Comparison) -> Fields:
    """Return the fields of the schema of this module."""
    values = asdict(comparison)
    for name, parts in (("histogram", ("low", "high", "rows")), ("quantiles", ("probability", "kl"))):
        values[name] = [dict(zip(parts, numbers, strict=True)) for numbers in values[name]]
    for name in ("further", "groups", "against_rest"):
        if not values[name]:
            del values[name]
    if comparison.groups:
        groups = {name: fields(group) for name, group in comparison.groups.items()}
        left_out = ("schema", "worst")
        values["groups"] = {
            name: {key: value for key, value in group.items() if key not in left_out}
            for name, group in groups.items()
        }
    for name in {"divergences", "labels", "further", "against_rest"} & values.keys():
        values[name] = values[name] and {key: mean_fields(value) for key, value in values[name].items()}
    values["acceptance_rate"] = mean_fields(values["acceptance_rate"])
    return {"schema": "kullback.predictions/3", **values}


def mean_fields(value: Any) -> Any:
    """Return the fields of a value with ``value`` renamed to ``mean``; return any other argument unchanged."""
    if not isinstance(value, dict):
        return value
    return {"mean" if name == "value" else name: number for name, number in value.items()}
