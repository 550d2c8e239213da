"""Results as strict JSON."""

from __future__ import annotations

import json
from typing import Any

from kullback.numeric import json_safe

__all__ = ["document", "to_text"]


def document(schema: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return a document of a schema, in nats, in which infinities and NaN are strings."""
    return {"schema": schema, "unit": "nats", **json_safe(fields)}


def to_text(fields: dict[str, Any]) -> str:
    """Return a document as indented ASCII that ends in a newline."""
    return json.dumps(fields, indent=2, allow_nan=False) + "\n"
