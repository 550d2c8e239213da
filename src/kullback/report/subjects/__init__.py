"""The functions that make the `Document` of a result, one function for each type of result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from importlib import import_module
from typing import Any

from kullback.errors import invalid_type
from kullback.report.document import Document
from kullback.results.verdict import Verdict

__all__ = ["document"]

# The functions for kullback's types of results. The module of a function is imported when the function is first used.
_FUNCTIONS = {
    "Batches": "tables.of_batches",
    "Comparison": "predictions.document",
    "Diagnosis": "diagnosis.document",
    "Estimate": "estimates.of_estimate",
    "Fit": "fit.document",
    "Mismatch": "mismatch.document",
    "ModelComparison": "models.document",
    "TableComparison": "tables.document",
    "TwoSampleTest": "estimates.of_test",
}


@singledispatch
def document(result: Any, verdicts: Sequence[Verdict] = (), **options: Any) -> Document:
    """Return the document of a result, which every medium renders. A `Document` is returned unchanged.

    ``@document.register(Type)`` adds a function for another type of result.

    Arguments:
        result: a result of kullback.
        verdicts: the verdicts of the limits that you set.
        options: further arguments of `document`, such as `tokens` for a comparison of predictions.

    Example:
        >>> import torch
        >>> from kullback import Probs, compare_predictions
        >>> p = Probs(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
        >>> document(compare_predictions(p, p)).outcome
        'P and Q are equal in every row: KL(P||Q) is 0.'
    """
    for kind in type(result).__mro__:
        if kind.__module__.startswith("kullback.") and kind.__name__ in _FUNCTIONS:
            module, function = _FUNCTIONS[kind.__name__].split(".")
            write = getattr(import_module(f"{__name__}.{module}"), function)
            return write(result, verdicts, **options)
    wanted = "a result of kullback, or of a type that is registered"
    instead = "@document.register(Type) above a function that returns its Document"
    raise invalid_type("document", "result", wanted=wanted, got=type(result).__name__, instead=instead)


@document.register(Document)
def _(result: Document, verdicts: Sequence[Verdict] = (), **options: Any) -> Document:
    return result
