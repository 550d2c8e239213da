"""An `Estimate` and a `TwoSampleTest` as documents."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kullback.report.document import Document, Findings, Frame, Headline, Table
from kullback.report.estimates import sentence_of, table_of
from kullback.results.estimate import Estimate
from kullback.results.two_sample_test import TwoSampleTest
from kullback.results.verdict import Verdict


def of_estimate(estimate: Estimate, verdicts: Sequence[Verdict] = ()) -> Document:
    """Return the document of the result of `kl_estimate`, or of another estimator."""
    return Document(
        sentence_of(estimate),
        Headline(sentence_of(estimate)),
        (_table(estimate), *Findings.of_notes(estimate.notes)),
        tuple(verdicts),
        frame=partial(_frame, estimate),
        maker="kullback.kl_estimate",
    )


def of_test(test: TwoSampleTest, verdicts: Sequence[Verdict] = ()) -> Document:
    """Return the document of the result of `two_sample_test`, and of the estimate of how much the two differ."""
    cells = {
        "p-value": f"{test.p_value:.3g}",
        "statistic": test.method.replace("_", " "),
        "value": f"{test.statistic:.6g}",
        "permutations": f"{test.permutations}",
    }
    effect = [] if test.effect is None else [test.effect]
    notes = dict.fromkeys(note for each in (test, *effect) for note in each.notes)
    names = ("p_value", "statistic", "method", "permutations")
    return Document(
        str(test),
        Headline(str(test)),
        (
            Table("The test", list(cells), [list(cells.values())], is_main=True),
            *map(_table, effect),
            *Findings.of_notes(notes),
        ),
        tuple(verdicts),
        frame=lambda: Frame({name: [getattr(test, name)] for name in names}),
        maker="kullback.two_sample_test",
    )


def _table(estimate: Estimate) -> Table:
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
