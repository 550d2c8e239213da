"""A fit as strict JSON.

The document is one object with ``"schema": "kullback.fit/1"`` and ``"unit": "nats"``, null for a divergence without a
logarithm: ``family`` (the class),
``parameters`` (names and nested lists of numbers), ``kind``, ``quantity``, ``method``, ``value``, ``error``,
``standard_error``, ``before``, ``before_error``, ``above``, ``gradient_norm``, ``converged``, ``iterations``
(numbers, or nested lists of a batch; null where there is none), ``history`` (values after every step), ``notes`` and
``seconds``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.distributions import Distribution

from kullback.projection.parameters import read_family
from kullback.report.fits.wording import unit
from kullback.report.shared.json import document, to_text
from kullback.representations import Representation

if TYPE_CHECKING:
    from kullback.projection.result import Fit

__all__ = ["SCHEMA", "dumps", "to_dict"]

SCHEMA = "kullback.fit/1"
NUMBERS = (
    "value",
    "error",
    "standard_error",
    "before",
    "before_error",
    "above",
    "gradient_norm",
    "converged",
)


def to_dict(fit: Fit) -> dict[str, Any]:
    """Return a fit as dicts, lists, strings and finite numbers, in the schema of this module.

    Example:
        >>> from torch.distributions import Gamma, Normal
        >>> from kullback import fit
        >>> to_dict(fit(Normal(0.0, 1.0), to=Gamma(4.0, 2.0)))["parameters"]
        {'loc': 2.0, 'scale': 1.0}
    """
    fields: dict[str, Any] = {
        "unit": unit(fit, "") or None,
        "family": type(fit.distribution).__name__,
        "parameters": _parameters(fit.distribution),
        "kind": repr(fit.kind),
        "quantity": fit.quantity,
        "method": fit.method,
        **{name: _listed(getattr(fit, name)) for name in (*NUMBERS, "iterations", "history")},
        "notes": list(fit.notes),
        "seconds": fit.seconds,
    }
    return document(SCHEMA, fields)


def dumps(fit: Fit) -> str:
    """Return a fit as indented JSON."""
    return to_text(to_dict(fit))


def _listed(x: Tensor | None) -> Any:
    return None if x is None else x.detach().tolist()


def _parameters(distribution: Any) -> dict[str, Any]:
    if isinstance(distribution, Representation):
        return {type(distribution).__name__.lower(): distribution.tensor.tolist()}
    if not isinstance(distribution, Distribution):
        return {}
    try:
        leaves = read_family(distribution, frozenset()).free
    except (TypeError, ValueError):
        return {}
    return {name: _listed(getattr(distribution, name, leaf.value)) for name, leaf in leaves.items()}
