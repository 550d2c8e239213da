"""Results as strict JSON."""

from __future__ import annotations

import json
import math
from typing import Any, cast

__all__ = ["document", "to_text"]


def document(schema: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return a document of a schema, in nats, in which infinities and NaN are strings."""
    return {"schema": schema, "unit": "nats", **_encoded(fields)}


def to_text(fields: dict[str, Any]) -> str:
    """Return a document as indented ASCII that ends in a newline."""
    return json.dumps(fields, indent=2, allow_nan=False) + "\n"


def _encoded(value: Any) -> Any:
    """Replace the floats that JSON lacks, at any depth."""
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
