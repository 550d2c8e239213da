"""An `Estimate` as a document."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from kullback.report.document import Document, Findings, Frame, Headline, Remark, Table
from kullback.results.estimate import Estimate, sentence_of
from kullback.results.verdict import Verdict

__all__ = ["MOST_ROWS", "document", "table"]

MOST_ROWS = 20


def document(estimate: Estimate, verdicts: Sequence[Verdict] = ()) -> Document:
    """Return the document of an estimate.

    Arguments:
        estimate: the result of `kl_estimate`, or of another estimator.
        verdicts: the limits that you asked for.
    """
    notes = [Findings("Notes", [Remark("note", note) for note in estimate.notes])] if estimate.notes else []
    return Document(
        sentence_of(estimate),
        Headline(sentence_of(estimate)),
        (table(estimate), *notes),
        tuple(verdicts),
        frame=partial(_frame, estimate),
        maker="kullback.kl_estimate",
    )


def table(estimate: Estimate) -> Table:
    """Return the table of the values and their errors, with the method below it."""
    is_batch = estimate.value.ndim > 0
    columns = {"value": _numbers(estimate.value)}
    for name, numbers in (
        ("bound on the error", estimate.error),
        ("standard error", estimate.standard_error),
    ):
        if numbers is not None:
            columns[name] = _numbers(numbers)
    if estimate.interval is not None:
        ends = map(_numbers, estimate.interval)
        columns["interval"] = [f"{low} to {high}" for low, high in zip(*ends, strict=True)]
    if is_batch:
        places = range(len(columns["value"]))
        columns = {"element": [_element(place, estimate.value.shape) for place in places]} | columns
    first = f"The first {MOST_ROWS} of {estimate.value.numel():,} elements."
    return Table(
        "The estimate",
        list(columns),
        list(zip(*columns.values(), strict=True)),
        (*[first] * (estimate.value.numel() > MOST_ROWS), _origin(estimate)),
        is_main=True,
    )


def _numbers(x: Tensor) -> list[str]:
    return [f"{number:.6g}" for number in x.detach().double().flatten()[:MOST_ROWS].tolist()]


def _element(place: int, shape: torch.Size) -> str:
    index = [int(i) for i in torch.unravel_index(torch.tensor(place), shape)]
    return ", ".join(map(str, index))


def _origin(estimate: Estimate) -> str:
    origin = f"by {estimate.method}"
    if estimate.n is None:
        return origin
    first, second = (
        f"{int(x.min()):,} to {int(x.max()):,}" if isinstance(x, Tensor) else f"{x:,}" for x in estimate.n
    )
    return f"{origin}, from {first} and {second} draws"


def _frame(estimate: Estimate) -> Frame:
    """Return the numbers of each element of the batch, in the order of ``flatten``."""
    low, high = estimate.interval or (None, None)
    numbers = {
        "value": estimate.value,
        "error": estimate.error,
        "standard_error": estimate.standard_error,
        "low": low,
        "high": high,
    }
    return Frame(
        {name: x.detach().double().flatten().tolist() for name, x in numbers.items() if x is not None}
    )
