"""A comparison of tables as strict JSON with a versioned schema.

The document is one object with ``"schema": "kullback.tables/2"``, and the attributes of
`kullback.tables.TableComparison` under their own names:

* ``unit``, ``"nats"``; ``units``, an object with the unit of each divergence, which is ``"dimensionless"`` for ``tv``.
* ``p_name``, ``q_name`` (strings); ``p_rows``, ``q_rows``, ``max_bins`` (integers); ``confidence`` (number);
  ``weights``, ``cluster`` (a column's name or null).
* ``columns``: objects, the largest PSI first, with ``name``, ``column_type`` (``"numeric"``, ``"datetime"``,
  ``"boolean"``, ``"categorical"``, ``"text"``); ``kl_pq``, ``kl_qp``, ``js``, ``psi``, ``tv``, each an object with
  ``value``, ``standard_error`` (numbers or null) and ``interval`` ([from, to] or null); ``p_value``, ``p_adjusted``;
  ``ks`` (number, or null for categories); ``words`` (number, or null if no words were compared);
  ``missing_p``, ``missing_q`` (proportions); ``new``, ``vanished`` (strings); ``bins``; ``histogram``; ``notes``
  (strings).
* ``histogram``: objects with ``low``, ``high`` (numbers; equal for a single value), ``p``, ``q`` (weights); empty for
  categories.
* ``bins``: objects with ``label``, ``low``, ``high`` (numbers or null), ``p``, ``q`` (weights), ``contribution``.
* ``joint``: objects with ``columns`` (strings), and the divergences, p-values, ``bins`` and ``notes`` as above.
* ``gates``, if you set limits: ``passed`` (boolean), ``outcome`` (``"passed"``, ``"failed"``, ``"unclear"``) and
  ``limits``, objects with ``limit``, ``passed``, ``outcome``, ``failures`` and ``unclear`` (sentences),
  ``broken_by`` (the columns that break the limit), and ``unclear_for`` (the columns that leave the limit unclear).
* ``findings``: objects with ``code`` (one of `kullback.tables.FINDINGS`), ``message``, ``level`` (``"error"``,
  ``"warning"``, ``"note"``), ``advice``, ``column`` (a name or null).

Numbers are written as in `kullback.report.schemas.predictions`: the strings ``"Infinity"``, ``"-Infinity"`` and
``"NaN"`` replace numbers that JSON lacks. Later releases may add names and codes to version 2, but do not remove or
change them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kullback.common.words import TABLE_DIVERGENCE_NAMES
from kullback.report.document import Fields
from kullback.tables.table_results import TableComparison

FIRST = ("name", "columns", "column_type")


def fields(comparison: TableComparison) -> Fields:
    """Return the fields of the schema of this module."""
    values = asdict(comparison)
    values |= {key: [_named_first(each) for each in values[key]] for key in ("columns", "joint")}
    return {"schema": "kullback.tables/2", "unit": "nats", **values}


def _named_first(values: Any) -> Fields:
    """Return the fields in a new order: the names of the columns and their type are first.

    The fields ``content`` and ``reason`` are removed; a finding reports the content of a column.
    """
    values.pop("content", None)
    for name in TABLE_DIVERGENCE_NAMES:
        del values[name]["reason"]
    return {key: values[key] for key in FIRST if key in values} | values
