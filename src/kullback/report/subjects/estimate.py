"""An `Estimate` as a document."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kullback.report.document import Document, Findings, Frame, Headline, Table
from kullback.results.estimate import Estimate, sentence_of, table_of
from kullback.results.verdict import Verdict


def document(estimate: Estimate, verdicts: Sequence[Verdict] = ()) -> Document:
    """Return the document of an estimate.

    Arguments:
        estimate: the result of `kl_estimate`, or of another estimator.
        verdicts: the limits that you asked for.
    """
    return Document(
        sentence_of(estimate),
        Headline(sentence_of(estimate)),
        (table(estimate), *Findings.of_notes(estimate.notes)),
        tuple(verdicts),
        frame=partial(_frame, estimate),
        maker="kullback.kl_estimate",
    )


def table(estimate: Estimate) -> Table:
    """Return the table of the values and their errors, with the method below it."""
    headings, rows, sentences = table_of(estimate)
    return Table("The estimate", headings, rows, tuple(sentences), is_main=True)


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
