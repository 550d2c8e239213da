"""A comparison of tables as strict JSON with a versioned schema.

The document is one object with ``"schema": "kullback.tables/2"`` and ``"unit": "nats"``, and the attributes of
`kullback.tables.TableComparison` under their own names:

* ``p_name``, ``q_name`` (strings); ``p_rows``, ``q_rows``, ``max_bins`` (integers); ``confidence`` (number);
  ``weights``, ``cluster`` (a column's name or null).
* ``columns``: objects, the largest PSI first, with ``name``, ``column_type`` (``"numeric"``, ``"datetime"``,
  ``"boolean"``, ``"categorical"``, ``"text"``); ``kl_pq``, ``kl_qp``, ``js``, ``psi``, ``tv``, each an object with
  ``value``, ``standard_error`` (numbers or null) and ``interval`` ([from, to] or null); ``p_value``, ``p_adjusted``;
  ``ks`` (number, or null for categories); ``words`` (number, or null where no words were compared);
  ``missing_p``, ``missing_q`` (proportions); ``new``, ``vanished`` (strings); ``bins``; ``histogram``; ``notes``
  (strings).
* ``histogram``: objects with ``low``, ``high`` (numbers; equal for a single value), ``p``, ``q`` (weights); empty for
  categories.
* ``bins``: objects with ``label``, ``low``, ``high`` (numbers or null), ``p``, ``q`` (weights), ``contribution``.
* ``joint``: objects with ``columns`` (strings), and the divergences, p-values, ``bins`` and ``notes`` as above.
* ``gates``, where limits were asked for: ``passed`` (boolean) and ``limits``, objects with ``limit``, ``passed``,
  ``failures`` (sentences) and ``broken_by`` (the columns beyond it).
* ``findings``: objects with ``code`` (one of `kullback.tables.FINDINGS`), ``message``, ``level`` (``"error"``,
  ``"warning"``, ``"note"``), ``advice``, ``column`` (a name or null).

Numbers are written as in `kullback.report.predictions.json`: the strings ``"Infinity"``, ``"-Infinity"`` and
``"NaN"`` stand for what JSON has no number for. Within version 2 names and codes may be added, never removed or
changed.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kullback.report.shared.json import document, to_text
from kullback.report.shared.verdicts import in_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kullback.report.shared.verdicts import Verdict
    from kullback.tables.result import TableComparison

__all__ = ["SCHEMA", "dumps", "to_dict"]

SCHEMA = "kullback.tables/2"
FIRST = ("name", "columns", "column_type")


def to_dict(comparison: TableComparison, verdicts: Sequence[Verdict] = ()) -> dict[str, Any]:
    """Return the comparison as dicts, lists, strings and finite numbers, in the schema of this module.

    Arguments:
        comparison: the result of `compare_tables`.
        verdicts: the limits that were asked for.

    Returns:
        What `json.dumps` can write with ``allow_nan=False``.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables import compare_tables
        >>> found = to_dict(compare_tables(pa.table({"x": [1] * 50}), pa.table({"x": [1, 2] * 25})))
        >>> found["schema"], found["columns"][0]["kl_qp"]["interval"][1]
        ('kullback.tables/2', 'Infinity')
    """
    fields = asdict(comparison)
    fields |= {key: [_named_first(each) for each in fields[key]] for key in ("columns", "joint")}
    return document(SCHEMA, in_json(verdicts) | fields)


def dumps(comparison: TableComparison, verdicts: Sequence[Verdict] = ()) -> str:
    """Return the comparison as a JSON document, indented and ending in a newline.

    Arguments:
        comparison: the result of `compare_tables`.
        verdicts: the limits that were asked for.

    Returns:
        Strict JSON in ASCII, in the schema of this module; the same text for the same comparison.

    Example:
        >>> import json, pyarrow as pa
        >>> from kullback.tables import compare_tables
        >>> table = pa.table({"x": [1, 2] * 50})
        >>> json.loads(dumps(compare_tables(table, table)))["columns"][0]["psi"]["value"]
        0.0
    """
    return to_text(to_dict(comparison, verdicts))


def _named_first(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with the names of the columns and their type first."""
    return {key: fields[key] for key in FIRST if key in fields} | fields
