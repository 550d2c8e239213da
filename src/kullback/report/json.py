"""Converts a result to strict JSON: the exact numbers in the schema of the result (`kullback.report.schemas`).

A result without a schema of its own has ``"schema": "kullback.document/1"``: ``outcome`` and ``size`` (strings),
``numbers`` (the columns of the data frame), ``tables`` (objects ``title``, ``headings``, ``rows``, ``caption``) and
``remarks`` (objects ``level``, ``message``). ``kind`` and ``unit`` are of the numbers, ``confidence`` (number or null)
of their intervals; an estimate and a fit have ``method``, and an estimate that is not in nats has ``base`` (number).
Several batches have ``"schema": "kullback.batches/1"`` and ``batches``, one object of `kullback.report.schemas.tables`
for each batch. If you set limits, every document has ``gates``.
Infinities and NaN are the strings ``"Infinity"``, ``"-Infinity"`` and ``"NaN"``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kullback.common.plain_values import JsonObject, flat_numbers, json_safe
from kullback.report.document import Document, Fields, Findings, Table
from kullback.report.subjects import document
from kullback.results.verdict import Verdict, worst


def to_dict(result: Any, verdicts: Sequence[Verdict] = (), *, flat: bool = False) -> JsonObject:
    """Return a result as dicts, lists, strings and finite numbers, which `json.dumps` writes with ``allow_nan=False``.

    With `flat`, the result has only the numbers, in one dict with the keys of `flat_numbers`.

    Example:
        >>> import torch
        >>> from kullback import Probs, compare_predictions
        >>> p = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
        >>> q = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
        >>> fields = to_dict(compare_predictions(Probs(p), Probs(q)))
        >>> fields["schema"], fields["divergences"]["kl_pq"]["maximum"], fields["infinite"]["kl_pq"]
        ('kullback.predictions/3', 'Infinity', 1)
        >>> to_dict(compare_predictions(Probs(p), Probs(q)), flat=True)["divergences/kl_pq/maximum"]
        inf
    """
    page = document(result, verdicts)
    fields = _plain(page) if page.fields is None else page.fields()
    labels = {} if page.measured is None else page.measured.fields()
    if flat:
        return flat_numbers(labels | _gates(page.verdicts) | fields)
    first = {"schema": fields.pop("schema")} if "schema" in fields else {}
    return json_safe(first | labels | _gates(page.verdicts) | fields)


def dumps(result: Any, verdicts: Sequence[Verdict] = ()) -> str:
    """Return a result as an indented JSON document in ASCII that ends in a newline.

    Example:
        >>> import json, pyarrow as pa
        >>> from kullback.tables import compare_tables
        >>> table = pa.table({"x": [1, 2] * 50})
        >>> json.loads(dumps(compare_tables(table, table)))["columns"][0]["psi"]["value"]
        0.0
    """
    return json.dumps(to_dict(result, verdicts), indent=2, allow_nan=False) + "\n"


def _gates(verdicts: Sequence[Verdict]) -> Fields:
    if not verdicts:
        return {}
    limits = [
        {"limit": each.limit, "passed": each.passed, "outcome": each.outcome, **asdict(each)}
        for each in verdicts
    ]
    return {"gates": {"passed": worst(verdicts) == "passed", "outcome": worst(verdicts), "limits": limits}}


def _plain(page: Document) -> Fields:
    numbers = {} if page.frame is None else page.frame().columns
    return {
        "schema": "kullback.document/1",
        "outcome": page.headline.outcome,
        "size": page.headline.size,
        "numbers": {name: list(column) for name, column in numbers.items()},
        "tables": [
            {"title": each.title, "headings": each.headings, "rows": each.rows, "caption": each.caption}
            for each in page.blocks
            if isinstance(each, Table)
        ],
        "remarks": [
            {"level": remark.level, "message": remark.message}
            for each in page.blocks
            if isinstance(each, Findings)
            for remark in each.remarks
        ],
    }
