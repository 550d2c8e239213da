"""A diagnosis of a call to `F.kl_div` as strict JSON of a stable schema.

The document is one object with ``"schema": "kullback.diagnosis/1"`` and the attributes of
`kullback.diagnosis.Diagnosis` under their own names:

* ``call``, ``direction``, ``reduction`` (strings); ``raises`` (string or null); ``ok`` (boolean); ``codes`` (strings);
  ``dim`` (an integer, or an array of integers).
* ``input``, ``target``: objects with ``shape`` (integers), ``dtype``, ``device``, ``representation``, ``why`` (strings
  or null), ``row_sums`` ([smallest, largest], or null), and ``zeros``, ``minus_infinities``, ``plus_infinities``,
  ``nans``, each [number, index of the first entry or null].
* ``unit``, ``"nats"``; ``units``, an object with the unit of each divergence; ``confidence``, null.
* ``values``, ``meanings``: for each reduction, torch's value (for ``"none"``, the shape) and a sentence.
* ``kl_target_input``, ``kl_input_target``: null, or ``mean``, ``low``, ``high`` (numbers), ``rows``, ``infinite``,
  ``undefined`` (integers).
* ``findings``: objects with ``code``, ``message``, ``level``, ``advice`` (strings), ``column`` (null).
* ``suggestion``: null, or ``kullback``, ``torch`` (strings), ``needs`` (strings), ``value`` (number or null).

Infinities and NaN are the strings ``"Infinity"``, ``"-Infinity"`` and ``"NaN"``. Later releases may add names to
version 1, but do not remove or change names.
"""

from __future__ import annotations

from dataclasses import asdict

from kullback.diagnosis.diagnosis_result import Diagnosis
from kullback.report.document import Fields


def fields(diagnosis: Diagnosis) -> Fields:
    """Return the fields of the schema of this module."""
    summary = {"ok": diagnosis.ok, "codes": diagnosis.codes}
    return {"schema": "kullback.diagnosis/1", **asdict(diagnosis), **summary}
